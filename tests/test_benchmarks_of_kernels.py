"""What `benchmarks/kernels.py` calls wrong."""

from __future__ import annotations

import math
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

F32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, under another name: transformers imports what is called kernels."""
    folder = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = spec_from_file_location("benchmarks_of_kernels", folder / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def off_by(x: Tensor, parts: float) -> Tensor:
    """Each number by so many parts of what is allowed beside the largest."""
    return x + parts * (2e-2 if x.dtype is BF16 else 1e-3) * x.abs().max()


def roots(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of which one cancels in float32."""
    return x.square(), ((x + 1e6) - 1e6) * 1e-3


def test_results_are_judged_one_by_one(kernels: Any) -> None:
    """One that eager is far from the truth of says nothing of others."""
    x = torch.rand(64)
    case = kernels.Case("pointwise", "roots", roots, lambda: (x,))
    square, far = roots(x)
    assert not kernels.wrong(case, (x,), (square, far), (square, x * 1e-3))
    assert kernels.wrong(case, (x,), (square, far), (off_by(square, 2), far))


@pytest.mark.parametrize(("dtype", "wrong"), [(F32, False), (BF16, True)], ids=str)
def test_only_convolutions_of_float32_may_be_as_far_as_tf32_is(
    kernels: Any, dtype: torch.dtype, wrong: bool
) -> None:
    x = torch.rand(64, dtype=dtype)
    case = kernels.Case("conv", "as it is", lambda x: x * 1, lambda: (x,))
    assert bool(kernels.wrong(case, (x,), x, off_by(x, 3))) == wrong


def test_where_eager_overflows_other_numbers_are_wrong(kernels: Any) -> None:
    x = torch.full((8,), 1e30)
    case = kernels.Case("pointwise", "overflow", lambda x: x * x * 1e-30, lambda: (x,))
    want = x * x * 1e-30
    assert want.isinf().all()
    assert not kernels.wrong(case, (x,), want, x.clone())
    assert kernels.wrong(case, (x,), want, torch.zeros(8))
    assert kernels.wrong(case, (x,), want, want * math.nan)


def test_imaginary_parts_are_judged(kernels: Any) -> None:
    x = torch.randn(8, dtype=torch.complex64)
    case = kernels.Case("complex", "as it is", lambda x: x * 1, lambda: (x,))
    assert kernels.wrong(case, (x,), x, x.conj().resolve_conj())
    assert not kernels.wrong(case, (x,), x, x.clone())


def test_another_draw_is_right(kernels: Any) -> None:
    x = torch.rand(64)
    case = kernels.Case("pointwise", "noise", lambda x: (torch.rand_like(x), x * 1), lambda: (x,))
    assert not kernels.wrong(case, (x,), case.run(x), case.run(x))
    assert kernels.wrong(case, (x,), case.run(x), (torch.rand_like(x), off_by(x, 2)))
