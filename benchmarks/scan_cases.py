"""Scans of every shape: few long lines, many short ones, columns, middle dims, with gradients.
`python benchmarks/kernels.py --cases scan_cases [--only few columns middle many]`
"""

from __future__ import annotations

from typing import Any

import torch
from kernel_cases import BF16, F32, Case, ids, randn
from torch import Tensor

CASES: list[Case] = []
M = 1 << 20


def case(family: str, name: str, run: Any, make: Any, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


def near_one(*size: int) -> tuple[Tensor, ...]:
    return (1 + 1e-4 * randn(*size, dtype=F32),)


def backwards(dim: int) -> Any:
    return lambda x: x.flip(dim).cumsum(dim).flip(dim)


def masked(x: Tensor, m: Tensor) -> Tensor:
    return torch.where(m, x, 0).cumsum(-1)


# ---- few long lines: what one pass may win
for rows, length in ((1, 64 * M), (8, 8 * M), (64, M), (128, 128256), (3, 3_000_001)):
    size = f"{rows} x {length}"
    for dtype, text in ((F32, "f32"), (BF16, "bf16")):
        case(
            "few",
            f"cumsum {text} {size}",
            lambda x: x.cumsum(-1),
            lambda r=rows, n=length, d=dtype: (randn(r, n, dtype=d),),
        )
for rows, length in ((1, 64 * M), (64, M)):
    size = f"{rows} x {length}"
    case(
        "few",
        f"cumsum i64 {size}",
        lambda x: x.cumsum(-1),
        lambda r=rows, n=length // 2: (ids(20, r, n),),
    )
    case(
        "few",
        f"cumprod f32 {size}",
        lambda x: x.cumprod(-1),
        lambda r=rows, n=length: near_one(r, n),
    )
    case(
        "few",
        f"logcumsumexp f32 {size}",
        lambda x: x.logcumsumexp(-1),
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
    )
    case(
        "few",
        f"cummax f32 {size}",
        lambda x: x.cummax(-1),
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
    )
    case(
        "few",
        f"cummax value f32 {size}",
        lambda x: x.cummax(-1)[0],
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
    )
    case(
        "few",
        f"reverse cumsum f32 {size}",
        backwards(-1),
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
    )
    case(
        "few",
        f"masked cumsum f32 {size}",
        masked,
        lambda r=rows, n=length: (randn(r, n, dtype=F32), ids(2, r, n).bool()),
    )
case("few", "mask cumsum i64 1 x 64M", lambda m: m.cumsum(-1), lambda: (ids(2, 1, 64 * M).bool(),))
case(
    "few",
    "cumsum grad f32 1 x 64M",
    lambda x: x.cumsum(-1),
    lambda: (randn(1, 64 * M, dtype=F32),),
    True,
)
case("few", "cumsum grad bf16 64 x 1M", lambda x: x.cumsum(-1), lambda: (randn(64, M),), True)
case(
    "few",
    "softmax cumsum 64 x 128256",
    lambda x: x.softmax(-1).cumsum(-1),
    lambda: (randn(64, 128256, dtype=F32),),
)
case(
    "few",
    "shares past a limit 8 x 128256",
    lambda x: x.softmax(-1).cumsum(-1) > 0.9,
    lambda: (randn(8, 128256, dtype=F32),),
)
# ---- columns
for rows, columns in ((16384, 4096), (4 * M, 16), (M, 64), (131072, 500)):
    case(
        "columns",
        f"cumsum f32 {rows} x {columns} dim 0",
        lambda x: x.cumsum(0),
        lambda r=rows, c=columns: (randn(r, c, dtype=F32),),
    )
case(
    "columns",
    "cumsum bf16 16384 x 4096 dim 0",
    lambda x: x.cumsum(0),
    lambda: (randn(16384, 4096),),
)
case(
    "columns", "cummax f32 1M x 64 dim 0", lambda x: x.cummax(0), lambda: (randn(M, 64, dtype=F32),)
)
case(
    "columns",
    "logcumsumexp 1M x 64 dim 0",
    lambda x: x.logcumsumexp(0),
    lambda: (randn(M, 64, dtype=F32),),
)
case("columns", "cumprod f32 1M x 64 dim 0", lambda x: x.cumprod(0), lambda: near_one(M, 64))
case("columns", "reverse cumsum 1M x 64 dim 0", backwards(0), lambda: (randn(M, 64, dtype=F32),))
case("columns", "cumsum i64 1M x 32 dim 0", lambda x: x.cumsum(0), lambda: (ids(20, M, 32),))
# ---- middle dims
case(
    "middle",
    "cumsum 8 x 65536 x 128",
    lambda x: x.cumsum(1),
    lambda: (randn(8, 65536, 128, dtype=F32),),
)
case(
    "middle",
    "cumsum 64 x 4096 x 256",
    lambda x: x.cumsum(1),
    lambda: (randn(64, 4096, 256, dtype=F32),),
)
case(
    "middle",
    "cumsum 1024 x 64 x 1024",
    lambda x: x.cumsum(1),
    lambda: (randn(1024, 64, 1024, dtype=F32),),
)
# ---- many lines: one program a line
for rows, length in ((4096, 16384), (65536, 1000), (512, 128256)):
    size = f"{rows} x {length}"
    for dtype, text in ((F32, "f32"), (BF16, "bf16")):
        case(
            "many",
            f"cumsum {text} {size}",
            lambda x: x.cumsum(-1),
            lambda r=rows, n=length, d=dtype: (randn(r, n, dtype=d),),
        )
    case(
        "many",
        f"cumprod f32 {size}",
        lambda x: x.cumprod(-1),
        lambda r=rows, n=length: near_one(r, n),
    )
    case(
        "many",
        f"logcumsumexp f32 {size}",
        lambda x: x.logcumsumexp(-1),
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
    )
    case(
        "many",
        f"cummax f32 {size}",
        lambda x: x.cummax(-1),
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
    )
    case(
        "many",
        f"cumsum i64 {size}",
        lambda x: x.cumsum(-1),
        lambda r=rows, n=length: (ids(20, r, n),),
    )
    case(
        "many",
        f"reverse cumsum f32 {size}",
        backwards(-1),
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
    )
    case(
        "many",
        f"masked cumsum f32 {size}",
        masked,
        lambda r=rows, n=length: (randn(r, n, dtype=F32), ids(2, r, n).bool()),
    )
    case(
        "many",
        f"cumsum grad f32 {size}",
        lambda x: x.cumsum(-1),
        lambda r=rows, n=length: (randn(r, n, dtype=F32),),
        True,
    )
