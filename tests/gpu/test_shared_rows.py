"""Rows that programs hold together: the same numbers each time, whatever else runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def compiled(run: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(run, backend="compile_cli", dynamic=False, options={"tune": "off"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits(dtype: torch.dtype) -> None:
    def norms(x: Tensor) -> tuple[Tensor, ...]:
        return x.softmax(-1), F.layer_norm(x, (200_003,)), x / x.norm(dim=-1, keepdim=True)

    x = torch.randn(300, 200_003, device="cuda", dtype=dtype)
    run = compiled(norms)
    first = run(x)
    for got, wanted in zip(first, norms(x.double()), strict=True):
        loose = 1e-2 if dtype is torch.bfloat16 else 2e-6
        error = (got.double() - wanted).abs().max()
        assert error <= loose * wanted.abs().max()
    for _ in range(50):
        assert all(torch.equal(a, b) for a, b in zip(first, run(x), strict=True))


def test_on_streams_beside_each_other() -> None:
    """Programs of several launches wait for their own rows, some longer than they may, and end."""
    run = compiled(lambda x: x.softmax(-1))
    xs = [torch.randn(300, 400_000, device="cuda") for _ in range(6)]
    wanted = [x.softmax(-1) for x in xs]
    run(xs[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in xs]
    for _ in range(10):
        results = []
        for stream, x in zip(streams, xs, strict=True):
            with torch.cuda.stream(stream):
                results.append(run(x))
        torch.cuda.synchronize()
        for got, want in zip(results, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-9)
