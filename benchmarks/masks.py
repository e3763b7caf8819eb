"""Masks of dropout: read, drawn again, or read as bits, in kernels as training has them.

    python benchmarks/masks.py

Milliseconds of a compiled function of 65536 rows, the median of seven.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli  # noqa: F401  # the backend

ROWS, P, SCALE = 65536, 0.1, 1 / 0.9
aten = torch.ops.aten


def milliseconds(call: Callable[[], Any]) -> float:
    """Of a call, of ten in a row."""
    event: Any = torch.cuda.Event
    for _ in range(5):
        call()
    found: list[float] = []
    for _ in range(7):
        first, last = (event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(10):
            call()
        last.record()
        last.synchronize()
        found.append(first.elapsed_time(last) / 10)
    return statistics.median(found)


def cases(width: int, dtype: torch.dtype) -> Iterator[tuple[str, Any, tuple[Tensor, ...]]]:
    """A name, a function, and what it is called with."""
    torch.manual_seed(0)
    size = (ROWS, width)
    g, x, r = (torch.randn(size, device="cuda", dtype=dtype) for _ in range(3))
    w, b = (torch.randn(width, device="cuda", dtype=dtype) for _ in range(2))
    mask = torch.rand(size, device="cuda") > P
    bits = torch.randint(0, 256, (ROWS, width // 8), device="cuda", dtype=torch.uint8)
    place = torch.arange(8, device="cuda", dtype=torch.uint8)
    stats = torch.randn(ROWS, 1, device="cuda"), torch.rand(ROWS, 1, device="cuda") + 1

    def by_bits(g: Tensor, bits: Tensor, place: Tensor) -> Tensor:
        kept = (bits[..., None] >> place) & 1
        return (g.view(ROWS, -1, 8) * kept).view(size) * SCALE

    def forward(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y, mask = aten.native_dropout(x, P, True)
        return mask, y + r, F.layer_norm(y + r, (width,), w, b)

    def backward(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor, b: Tensor) -> Any:
        whole = [True, True, True]
        return aten.native_layer_norm_backward(g, x, (width,), mean, rstd, w, b, whole)

    yield "apply, read", lambda g, m: g * m * SCALE, (g, mask)
    yield "apply, drawn", lambda g: F.dropout(g, P) + 0, (g,)
    yield "apply, bits", by_bits, (g, bits, place)
    yield "gelu grad, read", lambda g, x, m: aten.gelu_backward(g * m * SCALE, x), (g, x, mask)
    yield "gelu grad, drawn", lambda g, x: aten.gelu_backward(F.dropout(g, P), x), (g, x)
    yield "norm, stored", forward, (x, r, w, b)
    yield "norm, drawn", lambda *a: forward(*a)[1:], (x, r, w, b)
    given = (g, x, *stats, w, b)
    yield "norm grad, read", lambda m, *a: (lambda d: (d, d[0] * m * SCALE))(backward(*a)), (
        mask, *given,
    )  # fmt: skip
    yield "norm grad, drawn", lambda *a: (lambda d: (d, F.dropout(d[0], P)))(backward(*a)), given


def main() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        for width in (768, 3072):
            for name, function, given in cases(width, dtype):
                torch._dynamo.reset()
                with torch.no_grad():
                    compiled = torch.compile(function, backend="compile_cli", fullgraph=True)
                    taken = milliseconds(partial(compiled, *given))
                print(f"{str(dtype)[6:]:9}{width:6}  {name:18}{taken:8.4f}", flush=True)


if __name__ == "__main__":
    main()
