"""Windows in two and three dimensions against eager: values, indices, edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import lower
from aten_lowering.pool_offsets import OFFSETS, OFFSETS_BACKWARD
from loop_ir import Extern, Kernel, Load

aten = torch.ops.aten
NAN, INF = math.nan, math.inf


def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Few different numbers, so that windows have several largest."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def maxima(*args: Any) -> Any:
    return lambda a: aten.max_pool2d_with_indices(a, *args)


@pytest.mark.parametrize(
    "args",
    [
        ([2, 2],),
        ([3, 2], [2, 1]),
        ([3, 3], [2, 2], [1, 1]),
        ([2, 3], [1, 2], [1, 0], [3, 2]),
        ([3, 3], [2, 2], [1, 1], [1, 1], True),
        ([2, 2], [3, 3], [0, 0], [1, 1], True),
        ([3], [2], [1]),
        ([1, 1],),
    ],
    ids=str,
)
def test_maxima_and_their_places(oracle: Any, args: Any) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    images = [image(2, 3, 9, 8, dtype=dtype) for dtype in dtypes]
    lowered = oracle.each([maxima(*args)], *images)
    assert [type(n) for n in lowered.graph.nodes] == [Kernel] * 3
    oracle.each([lambda a: maxima(*args)(a)[0] * 2], *images)


def test_without_a_batch_and_in_other_orders(oracle: Any) -> None:
    oracle(maxima([3, 3], [2, 2], [1, 1]), image(3, 7, 8))
    last = image(2, 4, 7, 6).to(memory_format=torch.channels_last)
    oracle(maxima([3, 3], [2, 2], [1, 1]), last)
    oracle(maxima([2, 2]), image(2, 8, 6, 3).permute(0, 3, 1, 2)[:, :, ::2])


def test_nan_wins_and_the_last_one_is_the_place(oracle: Any) -> None:
    x = image(1, 1, 6, 6)
    x[0, 0, 1, 1] = x[0, 0, 2, 2] = x[0, 0, 5, 0] = NAN
    oracle(maxima([3, 3], [1, 1], [1, 1]), x)
    oracle(lambda a: maxima([3, 3], [1, 1], [1, 1])(a)[0], x)


def test_infinities(oracle: Any) -> None:
    """A window of nothing but minus infinity: its first place."""
    x = torch.full((1, 2, 5, 5), -INF)
    x[0, 1, 2, 2] = INF
    oracle(maxima([3, 3], [2, 2], [1, 1]), x)


@pytest.mark.parametrize(
    "args",
    [
        ([2, 2],),
        ([3, 3], [2, 2], [1, 1]),
        ([3, 3], [2, 2], [1, 1], False, False),
        ([3, 2], [2, 2], [1, 1], True, True),
        ([3, 2], [2, 2], [1, 1], True, False),
        ([3, 3], [2, 2], [1, 1], True, True, 7),
        ([3], [], [1], False, False),
    ],
    ids=str,
)
def test_means(oracle: Any, args: Any) -> None:
    images = (image(2, 3, 8, 7, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    lowered = oracle.each([lambda a: aten.avg_pool2d(a, *args)], *images)
    assert [type(n) for n in lowered.graph.nodes] == [Kernel] * 2


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_window(oracle: Any, data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = [data.draw(st.integers(0, k // 2)) for k in size]
    step = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    least = [d * (k - 1) + 1 for k, d in zip(size, dilation, strict=True)]
    shape = [data.draw(st.integers(n, n + 6)) for n in least]
    ceil, padded = data.draw(st.booleans()), data.draw(st.booleans())
    x = image(1, 2, *shape)
    oracle.each([maxima(list(size), list(step), padding, list(dilation), ceil),
                 lambda a: aten.avg_pool2d(a, size, step, padding, ceil, padded)], x)  # fmt: skip


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_window_of_a_volume(oracle: Any, data: st.DataObject) -> None:
    size = [data.draw(st.integers(1, 3)) for _ in range(3)]
    padding = [data.draw(st.integers(0, k // 2)) for k in size]
    step = [data.draw(st.integers(1, 3)) for _ in range(3)]
    dilation = [data.draw(st.integers(1, 2)) for _ in range(3)]
    least = [d * (k - 1) + 1 for k, d in zip(size, dilation, strict=True)]
    shape = [data.draw(st.integers(n, n + 3)) for n in least]
    ceil, padded = data.draw(st.booleans()), data.draw(st.booleans())
    x = image(1, 2, *shape)
    lowered = oracle.each(
        [lambda a: aten.max_pool3d_with_indices(a, size, step, padding, dilation, ceil),
         lambda a: aten.avg_pool3d(a, size, step, padding, ceil, padded)], x,
    )  # fmt: skip
    assert [type(n) for n in lowered.graph.nodes] == [Kernel] * 2


def test_of_a_constant_and_of_what_is_negated_when_read(oracle: Any) -> None:
    oracle(lambda a: F.avg_pool2d(torch.ones_like(a), 3, 2, 1) + a.sum(), image(1, 2, 7, 6))
    oracle(lambda a: F.max_pool2d(torch._neg_view(a), 3, 2, 1), image(1, 2, 7, 6))


def gradients(x: Tensor, forward: Any, backward: Any, *args: Any) -> tuple[Any, tuple[Tensor, ...]]:
    """The gradient of a pooling as a function, and what it takes."""
    result = forward(x, *args)
    out, indices = result if isinstance(result, tuple) else (result, None)
    inputs = (image(*out.shape, dtype=x.dtype), x) + (() if indices is None else (indices,))

    def run(gradient: Tensor, x: Tensor, *indices: Tensor) -> Tensor:
        return backward(gradient, x, *args, *indices)

    return run, inputs


def averages(x: Tensor, size: tuple[int, ...]) -> Tensor:
    return [aten._adaptive_avg_pool2d, aten._adaptive_avg_pool3d][len(size) - 2](x, size)


def averages_backward(gradient: Tensor, x: Tensor, size: tuple[int, ...]) -> Tensor:
    ops = [aten._adaptive_avg_pool2d_backward, aten._adaptive_avg_pool3d_backward]
    return ops[len(size) - 2](gradient, x)


def largest(x: Tensor, size: tuple[int, ...]) -> Any:
    return [aten.adaptive_max_pool2d, aten.adaptive_max_pool3d][len(size) - 2](x, size)


def largest_backward(gradient: Tensor, x: Tensor, size: Any, indices: Tensor) -> Tensor:
    ops = [aten.adaptive_max_pool2d_backward, aten.adaptive_max_pool3d_backward]
    return ops[len(size) - 2](gradient, x, indices)


ADAPTIVE = [
    ((2, 3, 7, 5), (3, 2)), ((1, 2, 6, 4), (3, 4)), ((2, 5, 7), (7, 1)), ((1, 2, 3, 2), (5, 4)),
    ((1, 2, 5, 6, 3), (2, 4, 3)), ((1, 1, 40, 3), (3, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "size"), ADAPTIVE, ids=str)
def test_adaptive_pooling(oracle: Any, shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    x = image(*shape)
    oracle(lambda a: averages(a, size), x)
    run, inputs = gradients(x, averages, averages_backward, size)
    lowered = oracle(run, *inputs)
    assert [type(n) for n in lowered.graph.nodes] in ([Kernel], [Kernel] * 2)
    oracle(lambda a: largest(a, size), x)
    run, inputs = gradients(x, largest, largest_backward, size)
    oracle(run, *inputs)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_gradients_of_any_window(oracle: Any, data: st.DataObject) -> None:
    dims = data.draw(st.sampled_from((2, 2, 3)))
    size = [data.draw(st.integers(1, 4)) for _ in range(dims)]
    padding = [data.draw(st.integers(0, n // 2)) for n in size]
    step = [data.draw(st.integers(1, 4)) for _ in range(dims)]
    dilation = [data.draw(st.integers(1, 2)) for _ in range(dims)]
    least = [d * (n - 1) + 1 for n, d in zip(size, dilation, strict=True)]
    shape = [data.draw(st.integers(n, n + 5)) for n in least]
    ceil, padded = data.draw(st.booleans()), data.draw(st.booleans())
    x = image(1, 2, *shape)
    divisor = data.draw(st.sampled_from((None, 5)))
    maxima, maxima_backward, means, means_backward = (
        getattr(aten, name.format(dims))
        for name in ("max_pool{}d_with_indices", "max_pool{}d_with_indices_backward",
                     "avg_pool{}d", "avg_pool{}d_backward")
    )  # fmt: skip
    args = (size, step, padding, dilation, ceil)
    run, inputs = gradients(x, maxima, maxima_backward, *args)
    assert [type(n) for n in oracle(run, *inputs).graph.nodes] == [Kernel]
    if math.prod(size) <= 27:  # else no places
        (values, offsets), places = OFFSETS(x, *args), maxima(x, *args)[1]
        torch.testing.assert_close(values, maxima(x, *args)[0])
        oracle(lambda a: OFFSETS(a, *args), x)
        gradient, last = inputs[0], data.draw(st.booleans())
        wanted = maxima_backward(gradient, x, *args, places)

        def back(g: Tensor, o: Tensor) -> Tensor:
            return OFFSETS_BACKWARD(g, o, shape, last, *args)

        torch.testing.assert_close(back(gradient, offsets), wanted)
        (kernel,) = oracle(back, gradient, offsets).graph.nodes
        assert isinstance(kernel, Kernel)
    run, inputs = gradients(x, means, means_backward, size, step, padding, ceil, padded, divisor)
    nodes = oracle(run, *inputs).graph.nodes
    assert {type(n) for n in nodes} == {Kernel}
    apart = all(a >= b for a, b in zip(step, size, strict=True))
    assert len(nodes) == 1 if apart or divisor else len(nodes) <= 2


def test_gradients_of_other_layouts_and_types(oracle: Any) -> None:
    x = image(2, 4, 7, 6, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    args = ([3, 3], [2, 2], [1, 1])
    maxima = aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward
    run, inputs = gradients(x, *maxima, *args, [1, 1], False)
    oracle(run, *inputs)
    run, inputs = gradients(x.double(), aten.avg_pool2d, aten.avg_pool2d_backward, *args, False,
                            True, None)  # fmt: skip
    oracle(run, *inputs)


def test_offsets_in_windows(oracle: Any) -> None:
    """NaN, minus infinity and equals as of places, in 16 bits and channels-last."""
    x = image(2, 4, 7, 6, dtype=torch.bfloat16)
    x[0, 1, 2:4, 1:5], x[1, 2] = NAN, -INF
    args = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    for y in (x, x.to(memory_format=torch.channels_last), x[0], x[:0]):
        values, offsets = OFFSETS(y, *args)
        last = not y.is_contiguous()
        assert offsets.dtype is torch.int8
        if not last and y.numel():  # eager's kernel of channels-last says 0 for -inf
            oracle(lambda a: OFFSETS(a, *args), y)
        places = aten.max_pool2d_with_indices(y, *args)[1]
        found = OFFSETS_BACKWARD(values, offsets, (7, 6), last, *args)
        wanted = aten.max_pool2d_with_indices_backward(values, y, *args, places)
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert found.stride() == wanted.stride()
        if not y.numel():
            continue
        oracle(lambda g, o, end=last: OFFSETS_BACKWARD(g, o, (7, 6), end, *args), values, offsets)


def test_windows_that_fill_an_image_are_not_tested(oracle: Any) -> None:
    x = image(2, 3, 8, 6)
    args = ([2, 3], [2, 3], [0, 0], False, True, None)
    run, inputs = gradients(x, aten.avg_pool2d, aten.avg_pool2d_backward, *args)
    (kernel,) = oracle(run, *inputs).graph.nodes
    assert all(s.mask is None for p in kernel.phases for s in p.body if isinstance(s, Load))


def test_large_windows(oracle: Any) -> None:
    x = image(1, 2, 11, 10)
    x[0, 1, 3, 4] = NAN
    for fn in (
        lambda a: F.max_pool2d(a, 7, 1, 3) + 1,
        lambda a: F.avg_pool2d(a, 8, 2, 1),
        lambda a: F.avg_pool2d(a, 7, 3, 2, ceil_mode=True, count_include_pad=False),
    ):
        lowered = oracle(fn, x)
        assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)
    run, inputs = gradients(x, aten.avg_pool2d, aten.avg_pool2d_backward, [7, 6], [1, 1], [3, 2],
                            False, False, None)  # fmt: skip
    oracle(run, *inputs)


def test_integers(oracle: Any) -> None:
    x = image(1, 2, 6, 5, dtype=torch.int64)
    oracle(maxima([3, 3], [2, 2], [1, 1]), x)
    oracle(lambda a: F.avg_pool2d(a, 2), x)
    oracle(maxima([2, 2]), x.to(torch.uint8))


def test_what_stays_a_call(oracle: Any) -> None:
    lowered = oracle(maxima([65, 2]), image(1, 2, 66, 4),
                     fallbacks=["aten.max_pool2d_with_indices.default"])  # fmt: skip
    assert [type(n) for n in lowered.graph.nodes] == [Extern]
    assert lowered.fallbacks[0].reason == "places of 64 and more"


def test_places_in_large_windows(oracle: Any) -> None:
    """One dimension after the other, among equals and NaN the first and the last, as in one."""
    x = image(1, 2, 14, 15)
    x[0, 0, 3:9, 2:13] = 5.0
    x[0, 1, 4, 5:8] = float("nan")
    x[0, 1, 9, 3] = float("nan")
    for args in (([6],), ([6, 7], [2, 3], [2, 3]), ([4, 8], [3, 1], [1, 2], [2, 1])):
        lowered = oracle(maxima(*args), x)
        assert [type(n) for n in lowered.graph.nodes] == [Kernel] * 2
    oracle(maxima([6], [4]), torch.full((1, 1, 12, 12), float("-inf")))
    oracle(maxima([6, 7], [2, 3], [2, 3]), x, symbolic=True)
    oracle(lambda a: largest(a, (1, 2, 3)), image(1, 2, 9, 8, 11))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_windows_that_begin_at_random(oracle: Any, dims: int, dtype: torch.dtype) -> None:
    """Their values, places and gradients; several windows have one largest element."""
    forward = getattr(aten, f"fractional_max_pool{dims}d")
    backward = getattr(aten, f"fractional_max_pool{dims}d_backward")
    size, out = [3, 2, 2][-dims:], [5, 1, 4][-dims:]

    def fn(x: Tensor, samples: Tensor, given: Tensor) -> list[Tensor]:
        made = []
        for a, s, g in ((x, samples, given), (x[0], samples[:1], given[0])):
            pooled, places = forward(a, size, out, s)
            made += [pooled, places, backward(g, a, size, out, places)]
        return made

    x = image(2, 3, *(9, 8, 7)[-dims:], dtype=dtype)
    x[0, 1, ..., 3:] = -INF
    x[1, 2, ..., 2] = NAN
    lowered = oracle(fn, x, torch.rand(2, 3, dims, dtype=dtype), image(2, 3, *out, dtype=dtype))
    assert [type(n) for n in lowered.graph.nodes] == [Kernel] * 6


def test_gradients_of_large_windows_that_overlap(evaluate_graph: Any) -> None:
    """On a GPU each window adds its own, where every place would ask several."""
    x, size = image(2, 3, 25, 31), (2, 3)
    places, gradient = largest(x, size)[1], image(2, 3, *size)
    for extent, nodes in ((x, 2), (image(2, 3, 24, 30), 1)):
        with FakeTensorMode(), torch.device("cuda"):
            given = [torch.empty(t.shape, dtype=t.dtype) for t in (gradient, extent, places)]
            graph = make_fx(lambda g, a, p: [largest_backward(g, a, size, p)])(*given)
        lowered = lower(graph)
        assert [type(n) for n in lowered.nodes] == [Kernel] * nodes
        if nodes == 2:
            (got,) = evaluate_graph(lowered, [gradient, x, places], {})
            torch.testing.assert_close(got, largest_backward(gradient, x, size, places))


def test_adaptive_gradients_of_a_size_that_divides(oracle: Any) -> None:
    """Of a size that is not known they stay torch's, though it is a multiple of the windows."""
    op = aten._adaptive_avg_pool2d_backward

    def back(g: Tensor, a: Tensor) -> Tensor:
        return op(g, torch.cat([a, a], 2))

    name = str(op.default)
    oracle(back, image(1, 2, 2, 3), image(1, 2, 3, 3), symbolic=True, fallbacks=[name])
