"""The emitted text on a GPU: the library's own checks, with compiled kernels in place of the
interpreter."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from symexpr import evaluate
from triton_rt import load_jit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TESTS = Path(__file__).parents[2] / "libs" / "triton_emit" / "tests"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"triton_emit_{name}", TESTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONFTEST, HELPERS, OPS, KERNELS = (
    load(n) for n in ("conftest", "test_helpers", "test_ops", "test_kernels")
)


def launch(kernel: Any, tensors: Mapping[str, torch.Tensor], symbols: Mapping[str, int]) -> None:
    """As the runner of the tests, on the GPU: results are copied back."""
    there = {name: t.cuda() for name, t in tensors.items()}
    args = [there[a] if isinstance(a, str) else int(evaluate(a, symbols)) for a in kernel.args]
    grid = tuple(int(evaluate(g, symbols)) for g in kernel.grid)
    load_jit(CONFTEST.kernel_source(kernel))[grid](
        *args, **dict(kernel.constants), num_warps=kernel.num_warps, num_stages=kernel.num_stages
    )
    for name, t in tensors.items():
        t.copy_(there[name])


@pytest.fixture(scope="module")
def tools() -> SimpleNamespace:
    CONFTEST.launch = launch
    return SimpleNamespace(
        check=CONFTEST.check, launch=launch, kernel_source=CONFTEST.kernel_source,
        to_torch=CONFTEST.to_torch, to_numpy=CONFTEST.to_numpy, close=CONFTEST.close,
        kernels=CONFTEST.KERNELS,
    )  # fmt: skip


def _on_the_gpu(*modules: ModuleType) -> dict[str, Any]:
    """The tests that launch, as they are, with their parameters: `tools` is the one above."""
    found: dict[str, Any] = {}
    for module in modules:
        for name, test in vars(module).items():
            if name.startswith("test_") and "tools" in inspect.signature(test).parameters:
                assert name not in found, f"two tests are {name}"
                found[name] = test
    return found


globals().update(_on_the_gpu(HELPERS, OPS, KERNELS))


@pytest.mark.parametrize("name", CONFTEST.KERNELS)
def test_kernels_of_an_encoder(name: str, tools: SimpleNamespace) -> None:
    tools.check(CONFTEST.KERNELS[name], symbols={"s0": 3}, ulp=8)
