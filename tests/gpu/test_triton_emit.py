"""The emitted text on a GPU: the library's own checks, with compiled kernels in place of the
interpreter."""

from __future__ import annotations

import importlib.util
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


@pytest.mark.parametrize("op", HELPERS.UNARY)
def test_accuracy_f32(op: str, tools: SimpleNamespace) -> None:
    HELPERS.test_f32(op, tools)


@pytest.mark.parametrize("op", [o for o in HELPERS.UNARY if o not in ("exp", "exp2")])
def test_accuracy_f64(op: str, tools: SimpleNamespace) -> None:
    HELPERS.test_f64(op, tools)


def test_accuracy_of_two_arguments(tools: SimpleNamespace) -> None:
    HELPERS.test_two_arguments(tools)
    HELPERS.test_erf_for_narrow_results(tools)


@pytest.mark.parametrize("op", OPS.ARITHMETIC + OPS.FLOAT_ONLY)
def test_floats(op: str, tools: SimpleNamespace) -> None:
    OPS.test_floats(op, OPS.DType.f32, tools)


@pytest.mark.parametrize("dtype", [OPS.DType.i32, OPS.DType.u8, OPS.DType.i64], ids=str)
@pytest.mark.parametrize("op", [*OPS.ARITHMETIC, *OPS.BITS, "pow"])
def test_ints(op: str, dtype: Any, tools: SimpleNamespace) -> None:
    OPS.test_ints(op, dtype, tools)


@pytest.mark.parametrize("dtype", [OPS.DType.f8e4m3, OPS.DType.f8e5m2], ids=str)
def test_eight_bit_floats(dtype: Any, tools: SimpleNamespace) -> None:
    OPS.test_eight_bit_floats(dtype, tools)


@pytest.mark.parametrize("schedule", OPS.SCHEDULES, ids=lambda s: f"{s.kind}{s.xblock}")
@pytest.mark.parametrize("op", OPS.REDUCTIONS)
def test_reductions(op: str, schedule: Any, tools: SimpleNamespace) -> None:
    OPS.test_reductions(op, schedule, tools)


@pytest.mark.parametrize("name", CONFTEST.KERNELS)
def test_kernels_of_an_encoder(name: str, tools: SimpleNamespace) -> None:
    tools.check(CONFTEST.KERNELS[name], symbols={"s0": 3}, ulp=8)


def test_scatter_and_broadcast(tools: SimpleNamespace) -> None:
    KERNELS.test_scatter_add(OPS.DType.f32, tools)
    for schedule in KERNELS.BOTH:
        KERNELS.test_a_row_added_to_one_place_counts_every_point(schedule, tools)
        KERNELS.test_two_inner_spaces(schedule, tools)
    KERNELS.test_masked_load_and_store(tools)
