"""Windows as columns of a matrix, and back, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loop_ir import Kernel, Load

aten = torch.ops.aten


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_window(oracle: Any, data: st.DataObject) -> None:
    size, dilation, step = (
        [data.draw(st.integers(1, most)) for _ in range(2)] for most in (3, 2, 3)
    )
    padding = [data.draw(st.integers(0, 2)) for _ in range(2)]
    least = [max(1, d * (n - 1) + 1 - 2 * p)
             for n, d, p in zip(size, dilation, padding, strict=True)]  # fmt: skip
    image = [data.draw(st.integers(n, n + 5)) for n in least]
    batch = data.draw(st.sampled_from(((), (1,), (2,))))
    x = torch.randn(*batch, 3, *image)
    args = (size, dilation, padding, step)
    columns = aten.im2col(x, *args)
    for fn, of in ((lambda a: aten.im2col(a, *args), x),
                   (lambda a: aten.col2im(a, image, *args), columns)):  # fmt: skip
        assert [type(n) for n in oracle(fn, of).graph.nodes] == [Kernel]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types_and_orders(oracle: Any, dtype: torch.dtype) -> None:
    x = torch.randn(2, 4, 6, 7, dtype=dtype)
    args = ([3, 3], [1, 1], [1, 1], [1, 1])
    oracle(lambda a: aten.im2col(a, *args), x)
    oracle(lambda a: aten.im2col(a, *args), x.to(memory_format=torch.channels_last))
    columns = torch.randn(2, 36, 42, dtype=torch.float64).to(dtype)
    if dtype is torch.float64:  # eager adds 16-bit numbers one by one on the CPU
        oracle(lambda a: aten.col2im(a, [6, 7], *args), columns)


def test_windows_side_by_side_are_a_gather_without_masks(oracle: Any) -> None:
    x, args = torch.randn(2, 3, 6, 8), ([2, 2], [1, 1], [0, 0], [2, 2])
    for fn, of in (
        (lambda a: aten.im2col(a, *args), x),
        (lambda a: aten.col2im(a, [6, 8], *args), aten.im2col(x, *args)),
    ):
        (kernel,) = oracle(fn, of).graph.nodes
        (load,) = (s for p in kernel.phases for s in p.body if isinstance(s, Load))
        assert load.mask is None


def test_many_windows_of_a_place_are_walked_over(oracle: Any) -> None:
    x, args = torch.randn(1, 2, 9, 8), ([6, 5], [1, 1], [2, 1], [1, 1])
    columns = aten.im2col(x, *args)
    assert [type(n) for n in oracle(lambda a: aten.col2im(a, [9, 8], *args), columns).graph.nodes]
