"""Texts of the user's kernels: without their modules where that is the same, else with them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from wrapper_ir import DefineKernel

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

KERNELS = """
import torch, triton, triton.language as tl
C = tl.constexpr(2.0)

@triton.jit
def scale(v):
    return v * C

@triton.jit
def apply(x, y, n, F: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, scale(F(tl.load(x + i, i < n))), i < n)
"""
OTHERS = """
import torch, triton, triton.language as tl
C = tl.constexpr(3.0)

@triton.jit
def scale(v):
    return v + C

@triton.jit
def plain(v):
    return v + 1

@triton.jit
def scaled(v):
    return scale(v)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    (tmp_path / "user_kernels_a.py").write_text(KERNELS)
    (tmp_path / "user_kernels_b.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("user_kernels_a"), importlib.import_module("user_kernels_b")


@pytest.mark.parametrize("name", ["plain", "scaled"])
def test_a_kernel_and_a_function_of_two_modules(
    fx: Any, modules: tuple[ModuleType, ModuleType], name: str
) -> None:
    """`scale` and `C` are other things in the other module: both are imported then."""
    a, b = modules
    function = getattr(b, name)

    @torch.library.triton_op(f"user_sources::apply_{name}", mutates_args={})
    def op(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        torch.library.wrap_triton(a.apply)[(triton.cdiv(x.numel(), 32),)](
            x, y, x.numel(), F=function, B=32
        )
        return y

    x = torch.randn(40)
    out = fx(lambda t: op(t))(x)
    assert torch.equal(out, (x + 1 if name == "plain" else x + 3) * 2)
    (define,) = fx.ops(DefineKernel)
    imports = [s for s in define.source.splitlines() if s.startswith(("from ", "import "))]
    users = {s.split()[1] for s in imports} - {"triton", "triton.language"}
    assert users == (set() if name == "plain" else {"user_kernels_a", "user_kernels_b"})
