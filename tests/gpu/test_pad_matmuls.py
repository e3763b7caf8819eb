"""Matmuls of odd sizes on a real GPU: as near to float64 as eager, and several times as fast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
from compile_cli.cli.measure import relative_error
from gemm_templates import device_info
from tuning import added_seconds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def layer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(a, b.t())) * 0.5


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize(("fn", "by_rows"), [(mm, False), (mm, True), (layer, False)])
@torch.no_grad()
def test_odd_squares(tmp_path: Any, fn: Any, by_rows: bool, emit: str) -> None:
    torch.manual_seed(0)
    size = 2049
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16) * size**-0.5
    b = b if by_rows else b.t()
    options = {"cache_dir": str(tmp_path), "emit": emit}
    compiled = compile_cli.compile(fn, (a, b), options=options)
    out, eager = compiled(a, b), fn(a, b)
    exact = fn(a.double(), b.double())
    assert out.stride() == eager.stride()
    assert relative_error(out.double(), exact) < 1.5 * relative_error(eager.double(), exact) + 1e-3
    if emit != "hop":
        ours, theirs = added_seconds(
            [lambda: compiled(a, b), lambda: fn(a, b)], device_info("cuda").l2_bytes
        )
        assert ours < 0.7 * theirs
