"""Kernels of a test as one library, run on numpy arrays beside the reference interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cpp_emit
import cpp_loops
from loop_ir import DType, Kernel, interpret_kernel, verify
from loop_ir.ir.scalars import from_bits, to_bits, to_dtype
from symexpr import evaluate

# Relative distance of neighbours, the unit of the tolerances.
EPS = {DType.f8e4m3: 2.0**-3, DType.f8e5m2: 2.0**-2, DType.bf16: 2.0**-8, DType.f16: 2.0**-11,
       DType.f32: 2.0**-23, DType.f64: 2.0**-52}  # fmt: skip


class Case(NamedTuple):
    """A kernel, its sizes, and some of its tensors; the others are random. twice: so many elements
    from the 40th on are the last ones, too, which no vector may hold."""

    kernel: Kernel
    sizes: Mapping[str, int] = {}
    tensors: Mapping[str, Any] = {}
    twice: int = 0


def random_array(rng: Any, dtype: DType, size: tuple[int, ...]) -> Any:
    """Ordinary values of an element type; small integers."""
    if dtype is DType.bool_:
        return rng.random(size) < 0.5
    if dtype.is_float:
        return to_dtype(rng.standard_normal(size), dtype)
    return to_dtype(rng.integers(0 if dtype.value[0] == "u" else -9, 9, size), dtype)


def _memory(array: Any, dtype: DType) -> Any:
    """The array's elements as they lie in memory."""
    return np.ascontiguousarray(to_bits(np.ascontiguousarray(array), dtype)).reshape(
        np.shape(array)
    )


def close(got: Any, want: Any, dtype: DType, ulp: float, text: str) -> None:
    """Equal; floats to so many units of the type at the magnitude of the result."""
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want, err_msg=text)
        return
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    finite = np.abs(want[np.isfinite(want)])
    scale = np.maximum(np.abs(want), 0.05 * (finite.max() if finite.size else 1.0))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=text)
    with np.errstate(invalid="ignore"):
        bad = (np.abs(got - want) > ulp * EPS[dtype] * scale) & (got != want) & ~np.isnan(want)
    assert not bad.any(), f"{got[bad][:5]} is not {want[bad][:5]}\n{text}"


@pytest.fixture(scope="session")
def check(libraries: Path) -> Callable[..., None]:
    """`check(cases, ulp)`: one library of all kernels, each against its reference."""

    def run(cases: Sequence[Case], ulp: float = 4.0) -> None:
        made = []
        for number, case in enumerate(cases):
            verify(case.kernel)
            made.append(cpp_loops.emit(replace(case.kernel, name=f"k{number}")))
        text = cpp_loops.translation_unit(kernel.source for kernel in made)
        given = cpp_loops.headers(), cpp_loops.WAYS
        library = ctypes.CDLL(str(cpp_emit.build_plain(text, libraries, "loops", *given)))
        for case, kernel in zip(cases, made, strict=True):
            _run(library, case, kernel, ulp)

    return run


def _run(library: Any, case: Case, kernel: cpp_loops.CppKernel, ulp: float) -> None:
    rng, tensors = np.random.default_rng(0), dict(case.tensors)
    types = {b.name: b.type for b in case.kernel.buffers}
    for name, type_ in types.items():
        if name not in tensors:
            size = tuple(int(evaluate(n, case.sizes)) for n in type_.size)
            tensors[name] = random_array(rng, type_.dtype, size)
    expected = interpret_kernel(case.kernel, tensors, case.sizes)
    memory = {name: _memory(array, types[name].dtype) for name, array in tensors.items()}
    args = [
        ctypes.c_void_p(memory[a].ctypes.data)
        if isinstance(a, str)
        else ctypes.c_int64(int(evaluate(a, case.sizes)))
        for a in kernel.args
    ]
    getattr(library, f"kernel_{kernel.name}")(*args)
    for name, want in expected.items():
        dtype = types[name].dtype
        close(from_bits(memory[name], dtype), want, dtype, ulp, f"{name} of\n{kernel.source}")
        if n := case.twice:
            np.testing.assert_array_equal(memory[name][40 : 40 + n], memory[name][-n:], name)


@pytest.fixture(scope="session")
def case() -> type[Case]:
    """The class of cases, for test modules (which cannot import each other)."""
    return Case
