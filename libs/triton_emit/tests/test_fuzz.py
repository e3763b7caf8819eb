"""Random kernels under random schedules compute what the reference interpreter computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_kernels import drawn, pointwise, reducing

from loop_ir import verify
from triton_emit import Schedule

TILED = drawn(12)


@TILED
@given(made=pointwise(), xblock=st.sampled_from([16, 64, 128]), bits=st.sampled_from([32, 64]))
def test_pointwise(tools: SimpleNamespace, made: Any, xblock: int, bits: Any) -> None:
    kernel, sizes = made
    verify(kernel)
    tools.check(kernel, Schedule("flat", xblock, index_bits=bits), symbols=sizes, ulp=16)


@pytest.mark.parametrize("kind", ["persistent", "looped"])
@TILED
@given(made=reducing(), xblock=st.sampled_from([1, 2, 4]), bits=st.sampled_from([32, 64]))
def test_reductions(tools: SimpleNamespace, kind: Any, made: Any, xblock: int, bits: Any) -> None:
    kernel, sizes = made
    verify(kernel)
    rblock = 16 if kind == "looped" else 1024
    tools.check(kernel, Schedule(kind, xblock, rblock, index_bits=bits), symbols=sizes, ulp=64)
