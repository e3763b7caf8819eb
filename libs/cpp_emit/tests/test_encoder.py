"""An encoder layer: its C++ as a golden file, and the same program run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cpp_emit
from wrapper_ir import parse_program

TEXT = (Path(__file__).parent / "golden" / "encoder.txt").read_text()


def test_the_text_of_an_encoder_layer(golden: Callable[[str, str], None]) -> None:
    golden("encoder.cpp", cpp_emit.emit(parse_program(TEXT), schemas=cpp_emit.torch_schema))


def _embed(grid: Any, ids: torch.Tensor, emb: torch.Tensor, out: torch.Tensor, n: int) -> None:
    assert n == out.numel() == grid[0] * 1024
    out.copy_(emb[ids])


def _add_norm(
    grid: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
) -> None:
    assert grid == (a.shape[0] * 32, 1, 1)
    out.copy_(torch.nn.functional.layer_norm(a + b, (64,), weight, None, eps))


def _gelu(grid: Any, x: torch.Tensor, n: int) -> None:
    assert n == x.numel() == grid[0] * 1024
    x.copy_(torch.nn.functional.gelu(x))


@pytest.mark.parametrize("batch", [1, 7])
def test_an_encoder_layer_on_the_cpu(both: Callable[..., Any], batch: int) -> None:
    torch.manual_seed(0)
    sizes = {"qkv.weight": (192, 64), "qkv.bias": (192,), "out.weight": (64, 64),
             "up.weight": (64, 128), "down.weight": (64, 128), "norm.weight": (64,)}  # fmt: skip
    program = both(
        TEXT.replace("cuda:0", "cpu"),
        kernels={"embed": _embed, "add_norm": _add_norm, "gelu": _gelu},
        constants={f"layers.0.{k}": torch.randn(s) / 8 for k, s in sizes.items()},
    )
    mask = torch.ones(batch, 1, 32, 32, dtype=torch.bool).tril()
    ids = torch.randint(0, 100, (batch, 32))
    result, size = program.check(ids, mask, torch.randn(100, 64), torch.randn(128))
    assert size == batch and result.shape == (batch, 32, 64) and result.isfinite().all()
    assert "through Python" not in program.text
