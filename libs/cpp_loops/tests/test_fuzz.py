"""Random kernels compute what the reference interpreter computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from random_kernels import drawn, pointwise, reducing


@pytest.mark.parametrize(
    "count", [pytest.param(8, id="few"), pytest.param(80, id="many", marks=pytest.mark.slow)]
)
def test_random_kernels(count: int, case: Any, check: Callable[..., None]) -> None:
    cases: list[Any] = []
    for strategy in (pointwise(), reducing()):
        drawn(count)(given(strategy)(lambda made: cases.append(case(*made))))()
    check(cases, ulp=128)
