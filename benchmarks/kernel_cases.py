"""Memory-bound work by family: functions of tensors, their inputs, and whether gradients are part.

Every size is past the GPU's L2. `grad`: the result is differentiated with respect to all floating
inputs, and forward and backward are timed together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Make = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    family: str
    name: str
    run: Callable[..., Any]
    make: Make
    grad: bool = False


CASES: list[Case] = []


def case(family: str, name: str, run: Callable[..., Any], make: Make, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


def randn(*size: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(size, device="cuda", dtype=dtype)


def ids(high: int, *size: int) -> Tensor:
    return torch.randint(0, high, size, device="cuda")


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


# ---- reductions to few results
case("reduce", "sum all bf16", lambda x: x.sum(), lambda: (randn(16384, 8192),))
case("reduce", "sum all f32", lambda x: x.sum(), lambda: (randn(8192, 8192, dtype=F32),))
case("reduce", "sum all odd", lambda x: x.sum(), lambda: (randn(8191, 8193),))
case("reduce", "pow mean", lambda x: x.pow(2).mean(), lambda: (randn(64, 1024, 2048),))
case("reduce", "mse", lambda x, y: F.mse_loss(x, y), lambda: (randn(8192, 8192), randn(8192, 8192)))
case("reduce", "norm", lambda x: x.norm(), lambda: (randn(8192, 8192, dtype=F32),))
case("reduce", "max all", lambda x: x.amax(), lambda: (randn(16384, 8192),))
case("reduce", "argmax all", lambda x: x.argmax(), lambda: (randn(8192, 8192),))
case("reduce", "var_mean all", torch.var_mean, lambda: (randn(8192, 8192),))
case("reduce", "any", lambda x: (x > 9).any(), lambda: (randn(16384, 8192),))
case("reduce", "few rows", lambda x: x.sum(-1), lambda: (randn(16, 4 << 20),))
case("reduce", "100 rows", lambda x: x.float().square().sum(-1), lambda: (randn(100, 1000000),))
case("reduce", "rows", lambda x: x.sum(-1), lambda: (randn(65536, 2048),))
case("reduce", "short rows", lambda x: x.sum(-1), lambda: (randn(2097152, 64),))
case("reduce", "columns", lambda x: x.sum(0), lambda: (randn(65536, 2048),))
case("reduce", "few columns", lambda x: x.sum(0), lambda: (randn(1 << 21, 64),))
case("reduce", "columns f32", lambda x: x.sum(0), lambda: (randn(32768, 4096, dtype=F32),))
case("reduce", "max of columns", lambda x: x.amax(0), lambda: (randn(65536, 2048),))
case("reduce", "middle", lambda x: x.sum(1), lambda: (randn(64, 1024, 2048),))
case("reduce", "mean over images", lambda x: x.mean((0, 2, 3)), lambda: (randn(128, 256, 56, 56),))
case("reduce", "pool images", lambda x: x.mean((2, 3)), lambda: (randn(256, 512, 28, 28),))
case("reduce", "argmax rows", lambda x: x.argmax(-1), lambda: (randn(1024, 128256),))
case("reduce", "max rows", lambda x: x.max(-1), lambda: (randn(8192, 16384),))
case(
    "reduce",
    "bias gradient",
    lambda g: (g.float().sum((0, 1)), g * 2),
    lambda: (randn(32, 1024, 4096),),
)

# ---- softmax
for rows, width in (
    (262144, 256),
    (65536, 1024),
    (32768, 4096),
    (16384, 8192),
    (8192, 16384),
    (4096, 32768),
    (2048, 65536),
    (1024, 131072),
    (40000, 3333),
):
    case(
        "softmax",
        f"softmax {rows} x {width}",
        lambda x: x.softmax(-1),
        lambda r=rows, w=width: (randn(r, w),),
    )
case(
    "softmax", "softmax f32 8192", lambda x: x.softmax(-1), lambda: (randn(8192, 8192, dtype=F32),)
)
case("softmax", "log_softmax 128256", lambda x: x.log_softmax(-1), lambda: (randn(1024, 128256),))
case(
    "softmax",
    "masked softmax",
    lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1),
    lambda: (randn(16, 16, 1024, 1024), ids(2, 16, 1, 1024, 1024).bool()),
)
case("softmax", "few long rows", lambda x: x.softmax(-1), lambda: (randn(8, 8 << 20),))
case("softmax", "softmax of columns", lambda x: x.softmax(0), lambda: (randn(8192, 8192),))
case("softmax", "logsumexp", lambda x: x.float().logsumexp(-1), lambda: (randn(4096, 32768),))
case(
    "softmax",
    "cross entropy 32k",
    lambda x, t: F.cross_entropy(x.float(), t),
    lambda: (randn(8192, 32000), ids(32000, 8192)),
)
case(
    "softmax",
    "cross entropy 128k",
    lambda x, t: F.cross_entropy(x.float(), t),
    lambda: (randn(2048, 128256), ids(128256, 2048)),
)
case("softmax", "softmax grad", lambda x: x.softmax(-1), lambda: (randn(32768, 2048),), True)
case(
    "softmax",
    "cross entropy grad",
    lambda x, t: F.cross_entropy(x.float(), t),
    lambda: (randn(4096, 32000), ids(32000, 4096)),
    True,
)

# ---- normalisations
for rows, width in ((262144, 256), (65536, 768), (32768, 4096), (16384, 8192), (4096, 32768)):
    case(
        "norm",
        f"layer norm {rows} x {width}",
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        lambda r=rows, w=width: (randn(r, w), randn(w), randn(w)),
    )
    case(
        "norm",
        f"rms norm {rows} x {width}",
        lambda x, w: F.rms_norm(x, x.shape[-1:], w),
        lambda r=rows, w=width: (randn(r, w), randn(w)),
    )
case(
    "norm",
    "add layer norm",
    lambda x, y, w, b: F.layer_norm(x + y, x.shape[-1:], w, b),
    lambda: (randn(32768, 2048), randn(32768, 2048), randn(2048), randn(2048)),
)
case(
    "norm",
    "layer norm of long rows",
    lambda x: F.layer_norm(x, x.shape[1:]),
    lambda: (randn(32, 4 << 20, dtype=F32),),
)
case(
    "norm",
    "group norm silu",
    lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
    lambda: (randn(32, 512, 64, 64), randn(512), randn(512)),
)
case(
    "norm",
    "group norm, few groups",
    lambda x: F.group_norm(x, 8),
    lambda: (randn(4, 512, 256, 256),),
)
case(
    "norm",
    "layer norm grad",
    lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    lambda: (randn(16384, 4096), randn(4096), randn(4096)),
    True,
)
case(
    "norm",
    "rms norm grad",
    lambda x, w: F.rms_norm(x, x.shape[-1:], w),
    lambda: (randn(16384, 4096), randn(4096)),
    True,
)
case(
    "norm",
    "batch norm train",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    lambda: (randn(64, 256, 56, 56, dtype=F32), randn(256, dtype=F32), randn(256, dtype=F32)),
)
case(
    "norm",
    "batch norm train, channels-last",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    lambda: (
        channels_last(randn(64, 256, 56, 56, dtype=F32)),
        randn(256, dtype=F32),
        randn(256, dtype=F32),
    ),
)
case(
    "norm",
    "batch norm eval relu",
    lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
    lambda: (randn(64, 256, 56, 56), randn(256), randn(256).abs(), randn(256), randn(256)),
)
case("norm", "instance norm", lambda x: F.instance_norm(x), lambda: (randn(64, 128, 112, 112),))

# ---- pointwise
for name, function in (
    ("gelu", F.gelu),
    ("gelu tanh", lambda x: F.gelu(x, approximate="tanh")),
    ("silu", F.silu),
    ("elu", F.elu),
    ("selu", F.selu),
    ("softplus", F.softplus),
    ("mish", F.mish),
    ("tanh", torch.tanh),
    ("sigmoid", torch.sigmoid),
    ("exp", torch.exp),
    ("log1p", torch.log1p),
    ("sin", torch.sin),
    ("erf", torch.erf),
    ("pow", lambda x: x.abs().pow(2.2)),
):
    case("pointwise", f"{name} f32", function, lambda: (randn(8192, 8192, dtype=F32),))
    if name in ("gelu", "silu", "tanh"):
        case("pointwise", f"{name} bf16", function, lambda: (randn(16384, 8192),))
case(
    "pointwise",
    "add bias gelu",
    lambda x, b: F.gelu(x + b),
    lambda: (randn(16384, 8192), randn(8192)),
)
case(
    "pointwise",
    "swiglu",
    lambda x: F.silu(x[..., :4096]) * x[..., 4096:],
    lambda: (randn(16384, 8192),),
)
case("pointwise", "add in place", lambda x: x.add_(1), lambda: (randn(8192, 8192),))


def slice_in_place(cache: Tensor, new: Tensor) -> Tensor:
    cache[:, :, 100:102] = new
    return new + 1


def rows_in_place(cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, at, new)
    return new + 1


def index_put_in_place(x: Tensor, at: Tensor, new: Tensor) -> Tensor:
    x[at] = new * 2
    return at + 1


def adamw_in_place(step: Tensor, *state: Tensor) -> Tensor:
    """Parameters, gradients, means and mean squares, one after the other."""
    for p, g, m, v in zip(*(state[n::4] for n in range(4)), strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
        p.mul_(1 - 1e-5).add_(m_hat / (v_hat.sqrt() + 1e-8), alpha=-1e-3)
    return step + 1


def states(count: int, *size: int) -> tuple[Any, ...]:
    state = [randn(*size, dtype=F32).abs() for _ in range(4 * count)]
    return torch.tensor(3.0, device="cuda"), *state


def cache() -> Tensor:
    return randn(16, 32, 4096, 128)


case("write", "slice in place", slice_in_place, lambda: (cache(), randn(16, 32, 2, 128)))
case("write", "rows in place", rows_in_place,
     lambda: (cache(), torch.tensor([7, 90], device="cuda"), randn(16, 32, 2, 128)))  # fmt: skip
case("write", "index_put in place", index_put_in_place,
     lambda: (randn(65536, 4096), torch.randperm(65536, device="cuda")[:8192],
              randn(8192, 4096)))  # fmt: skip
case("write", "adamw of 100 in place", adamw_in_place, lambda: states(100, 512, 512))
case("write", "adamw of 2 in place", adamw_in_place, lambda: states(2, 8192, 4096))
case(
    "pointwise",
    "cat silu",
    lambda x, y: F.silu(torch.cat((x, y), -1)),
    lambda: (randn(16384, 4096), randn(16384, 4096)),
)
case(
    "pointwise",
    "transpose add",
    lambda x, y: x.t() + y,
    lambda: (randn(8192, 8192), randn(8192, 8192)),
)
case("pointwise", "cast", lambda x: x.to(BF16), lambda: (randn(8192, 8192, dtype=F32),))
case(
    "pointwise",
    "fp8 rows",
    lambda x: (
        (s := x.abs().amax(-1, keepdim=True).float() / 448),
        (x / s).to(torch.float8_e4m3fn),
    ),
    lambda: (randn(16384, 8192),),
)
case(
    "pointwise",
    "dropout add",
    lambda x, y: F.dropout(x, 0.1) + y,
    lambda: (randn(16384, 4096), randn(16384, 4096)),
)
case(
    "pointwise",
    "dropout add grad",
    lambda x, y: F.dropout(x, 0.1) + y,
    lambda: (randn(16384, 4096), randn(16384, 4096)),
    True,
)
case(
    "pointwise", "dropout f32", lambda x: F.dropout(x, 0.1), lambda: (randn(8192, 8192, dtype=F32),)
)
case("pointwise", "rand", torch.rand_like, lambda: (randn(8192, 8192, dtype=F32),))
case("pointwise", "randn", torch.randn_like, lambda: (randn(8192, 8192, dtype=F32),))
case("pointwise", "bernoulli", lambda x: x.sigmoid().bernoulli(), lambda: (randn(8192, 8192),))
case("pointwise", "gelu grad", F.gelu, lambda: (randn(16384, 8192),), True)

# ---- scans, windows, gathers
case("scan", "cumsum rows", lambda x: x.cumsum(-1), lambda: (randn(16384, 4096),))
case("scan", "cumsum columns", lambda x: x.cumsum(0), lambda: (randn(4096, 16384),))
case("scan", "cumsum f32", lambda x: x.cumsum(-1), lambda: (randn(8192, 8192, dtype=F32),))
case("scan", "cumsum of short rows", lambda x: x.cumsum(-1), lambda: (randn(1 << 20, 64),))
case("scan", "cumsum of wide rows", lambda x: x.cumsum(-1), lambda: (randn(1024, 65536),))
case("scan", "cumsum of few long rows", lambda x: x.cumsum(-1), lambda: (randn(8, 8 << 20),))
case("scan", "cumsum of one row", lambda x: x.cumsum(0), lambda: (randn(1 << 26, dtype=F32),))
case("scan", "cumsum of few columns", lambda x: x.cumsum(0), lambda: (randn(1 << 20, 64),))
case("scan", "cumsum of i64", lambda x: (x > 9).cumsum(-1), lambda: (ids(20, 8192, 4096),))
case(
    "scan",
    "mul cumsum add",
    lambda x, y, z: (x * y).cumsum(-1) + z,
    lambda: (randn(16384, 4096), randn(16384, 4096), randn(16384, 4096)),
)
case("scan", "cumsum grad", lambda x: x.cumsum(-1), lambda: (randn(16384, 4096),), True)
case("scan", "cumsum columns grad", lambda x: x.cumsum(0), lambda: (randn(4096, 16384),), True)
case("scan", "cumprod columns", lambda x: x.cumprod(0), lambda: (randn(4096, 8192, dtype=F32),))
case("scan", "cummax rows", lambda x: x.cummax(-1), lambda: (randn(16384, 4096),))
case("scan", "cummax columns", lambda x: x.cummax(0), lambda: (randn(4096, 16384),))
case("scan", "logcumsumexp", lambda x: x.logcumsumexp(-1), lambda: (randn(8192, 4096, dtype=F32),))
case("scan", "cumprod f32", lambda x: x.cumprod(-1), lambda: (randn(8192, 4096, dtype=F32),))
case("window", "max pool", lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (randn(64, 128, 112, 112),))
case(
    "window",
    "max pool, channels-last",
    lambda x: F.max_pool2d(x, 3, 2, 1),
    lambda: (channels_last(randn(64, 128, 112, 112)),),
)
case(
    "window",
    "max pool of tanh",
    lambda x: F.max_pool2d(torch.tanh(x), 3, 1, 1),
    lambda: (randn(32, 64, 112, 112, dtype=F32),),
)
case("window", "avg pool", lambda x: F.avg_pool2d(x, 2), lambda: (randn(64, 256, 112, 112),))
case(
    "gather",
    "embedding",
    lambda i, w: F.embedding(i, w),
    lambda: (ids(50257, 65536), randn(50257, 1024)),
)
case(
    "gather",
    "embedding grad",
    lambda w, i: F.embedding(i, w),
    lambda: (randn(30522, 1024), ids(30522, 32768)),
    True,
)
case(
    "gather",
    "index_add",
    lambda x, i, y: x.index_add(0, i, y),
    lambda: (randn(65536, 512, dtype=F32), ids(65536, 65536), randn(65536, 512, dtype=F32)),
)
case(
    "gather",
    "scatter_add",
    lambda x, i, y: x.scatter_add(0, i, y),
    lambda: (randn(65536, 512, dtype=F32), ids(65536, 65536, 512), randn(65536, 512, dtype=F32)),
)
