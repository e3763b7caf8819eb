"""Stores and sums at places that are data, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_lowering import Lowered
from loop_ir import CopyBack, DType, Extern, Kernel, Store
from loop_ir.ir import product, statements, writes

aten = torch.ops.aten
Fn = Callable[..., Any]

X = torch.arange(24.0).reshape(4, 6) / 4
ROWS = torch.tensor([2, 0, 2])
INTO = torch.tensor([[5, 0], [1, 1], [2, 3], [0, 0]])
FEW = -torch.arange(1.0, 9).reshape(4, 2)


def put_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_put((i[:2],), v[:2, :1])


def put_pairs(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return aten.index_put(x, [i, i + 1], v[0, :1])


def put_columns(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return aten.index_put(x.view(4, 3, 2), [i[:2], None, i[:2] // 2], v[:2, :1].expand(2, 3))


def sum_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_put((i,), v[:1, :1] * 3, accumulate=True)


def added_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_add(0, i, v[:1, :1].expand(i.shape[0], x.shape[1]), alpha=2)


def copied_columns(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_copy(1, i + 1, v[:, :1].expand(x.shape[0], i.shape[0]))


def masked(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return aten.index_put(x, [x > 2], v[0, 0])


def masked_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return aten.index_put(x, [x[:, 0] > 2], v[:1, 0])


FUNCTIONS: list[Fn] = [
    put_rows, put_pairs, put_columns, sum_rows, added_rows, copied_columns, masked, masked_rows,
]  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_places_that_are_data(oracle: Any, fn: Fn, symbolic: bool) -> None:
    oracle(fn, X, ROWS, FEW, symbolic=symbolic)


def scattered(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    sums = x.t().scatter_add(0, i.t(), v.t())
    return x.scatter(1, i, v), x.scatter(1, i[:2], 7), sums, x.scatter_reduce(1, i, v, "sum")


@pytest.mark.parametrize("symbolic", [False, True])
def test_scatters(oracle: Any, symbolic: bool) -> None:
    index = torch.tensor([[5, 0], [1, 4], [2, 3], [0, 1]])  # no order to tell
    oracle(scattered, X, index, FEW, symbolic=symbolic)
    oracle(lambda x, i, v: x.scatter_add(1, i, v), X, INTO, FEW, symbolic=symbolic)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.int64])
def test_sums_of_types(oracle: Any, dtype: torch.dtype) -> None:
    many = torch.zeros(300, dtype=torch.int64)
    oracle(
        lambda x, i, v: aten.index_put(x, [i], v, True),
        torch.ones(2, dtype=dtype), many, torch.ones(300, dtype=dtype),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_few_elements_a_row_need_no_order(oracle: Any, dtype: torch.dtype) -> None:
    """A kernel each, in which every element asks whether it is one of the places; no atomics."""

    def fn(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        put = (-x).scatter(1, i[:, :1], v), x.scatter(0, i[1:3].repeat(1, 3), 3)
        return *put, x.scatter_add(1, i, v), x.t().scatter_add(0, i[:, :1].t(), v.t())

    lowered = oracle(fn, X.to(dtype), INTO, FEW.to(dtype))
    assert modes(lowered) == {"set"} and len(lowered.graph.nodes) == 6  # one negates, one repeats


@pytest.mark.parametrize(
    ("count", "wide", "asks"), [(2, 9000, True), (3, 9000, False), (9, 40, False)]
)
def test_long_rows_are_not_asked_often(oracle: Any, count: int, wide: int, asks: bool) -> None:
    """Where each element would ask many times, places are written one by one."""
    i = torch.arange(2 * count).view(2, count) * 2
    lowered = oracle(lambda i: torch.zeros(2, wide).scatter(1, i, 3.0), i)
    last = lowered.graph.nodes[-1]
    assert isinstance(last, Kernel) and (product(a.extent for a in last.axes) == 2 * wide) == asks


def test_sums_that_stay_with_the_operator(oracle: Any) -> None:
    bytes_ = X.to(torch.uint8)
    fallbacks = ["aten.index_put.default"]
    oracle(sum_rows, bytes_, ROWS, FEW.to(torch.uint8), fallbacks=fallbacks)


TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64)


@pytest.mark.spread(2)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_reductions(oracle: Any, reduce: str, own: bool) -> None:
    """Several elements a place, none, and NaN there before, among them, or both."""

    def fn(i: Tensor, rows: Tensor, *given: Tensor) -> list[Tensor]:
        made = []
        for x, v in zip(given[::2], given[1::2], strict=True):
            made.append(x.scatter_reduce(1, i, v, reduce, include_self=own))
            made.append(x[0, 0].scatter_reduce(0, i[3, 1], v[0, 0], reduce, include_self=own))
            if reduce != "sum":
                source = v.repeat(1, 3)[:3]
                made.append(x.index_reduce(-2, rows, source, reduce, include_self=own))
        return made

    pairs = [(X.to(t) - 2, (FEW * 1.5).to(t)) for t in TYPES]
    holed = X.masked_fill(X == 4, torch.nan), FEW.masked_fill(FEW == -2, -torch.nan)
    given = [t for pair in (*pairs, holed) for t in pair]
    oracle(fn, INTO, ROWS, *given)


# -- many values in few places


def modes(lowered: Lowered) -> set[str]:
    """How the kernels store; there are no calls."""
    assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)
    kernels = [n for n in lowered.graph.nodes if isinstance(n, Kernel)]
    return {s.mode for k in kernels for s in statements(k) if isinstance(s, Store)}


MANY = torch.arange(700) * 7 % 11
MANY[MANY == 9] = 2  # none there


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_few_places(oracle: Any, reduce: str, own: bool) -> None:
    """Every place asks every value: no atomics."""
    index = MANY[:, None].expand(700, 3)

    def fn(x: Tensor, i: Tensor, v: Tensor, n: Tensor) -> list[Tensor]:
        made = [
            a.scatter_reduce(0, i, b, reduce, include_self=own) for a, b in ((x, v), (n, 2 * i - 5))
        ]
        made.append(x.t().scatter_reduce(1, i.t(), v.t(), reduce, include_self=own))
        return made

    v = (torch.arange(2100.0).reshape(700, 3) % 13 - 6) / 64 + 1
    v[5, 1] = torch.nan
    lowered = oracle(fn, torch.rand(11, 3), index, v, torch.arange(33).reshape(11, 3))
    assert modes(lowered) == {"set"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_sums_in_few_places(oracle: Any, dtype: torch.dtype) -> None:
    """Negative places; of two tensors; of a dimension in the middle; of no dimension at all."""

    def fn(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        y = x.view(11, 3, 1).expand(11, 3, 4)
        pairs = aten.index_put(y, [None, i % 3 - 3, i % 4], v[:, 0], True)
        middle = aten.index_put(y.transpose(0, 1), [None, i, None], v.t()[:, :, None], True)
        one = x[:1, 0].index_add(0, i * 0, v[:, 0])
        return pairs, middle, one, x.index_add(0, i, v), x[0].index_add(0, i % 3, v[:, 1])

    seventh = (torch.arange(2100) % 7 == 0).view(700, 3)  # sums that 16 bits hold
    lowered = oracle(fn, torch.ones(11, 3, dtype=dtype), MANY, seventh.to(dtype))
    assert modes(lowered) == {"set"}


def test_a_histogram_a_row(oracle: Any) -> None:
    """Places side by side, which values of one row meet in: they ask, however many rows there
    are."""
    rows = (MANY[:512] % 16).view(2, 256)
    weights = (torch.arange(512.0) % 8).view(2, 256)
    lowered = oracle(lambda x, i, v: x.scatter_add(1, i, v), torch.ones(2, 16), rows, weights)
    assert modes(lowered) == {"set"} and len(lowered.graph.nodes) == 1


def test_few_places_in_an_input(oracle: Any) -> None:
    """What is added up is added to what is there, once a place."""
    lowered = oracle(
        changing(lambda x, i, v: x.index_add(0, i, v)), torch.ones(11, 3), MANY,
        torch.ones(700, 3), functional=False,
    )  # fmt: skip
    x = lowered.graph.inputs[0].name
    (kernel,) = [n for n in lowered.graph.nodes if isinstance(n, Kernel) and x in writes(n)]
    assert kernel.phases[-1].axes == () and modes(lowered) == {"set", "add"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_copies_of_places(oracle: Any, dtype: torch.dtype) -> None:
    """Neighbours go to copies of rows, or of numbers, which are added up in the end."""

    def fn(i: Tensor, v: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        rows = x.index_add(0, i % 11, v)
        numbers = y.index_add(0, i, v[:, 0])
        most = y.scatter_reduce(0, i, v[:, 1], "amax")
        masked = aten._unsafe_masked_index_put_accumulate(y, i > 7, [i], v[:, 2])
        return [rows, numbers, most, masked, y.new_zeros(40).index_add(0, i, v[:, 3])]

    seventh = (torch.arange(28000) % 7 == 0).view(1400, 20).to(dtype)
    places = torch.arange(1400) * 13 % 40
    lowered = oracle(
        fn, places, seventh, torch.ones(11, 20, dtype=dtype), -torch.ones(40, dtype=dtype)
    )
    assert modes(lowered) == {"set", "add", "max"}
    nodes = [n for n in lowered.graph.nodes if isinstance(n, Kernel)]
    assert sum("% 4" in str(s.index) or "Mod" in str(s.index) for n in nodes
               for s in statements(n) if isinstance(s, Store)) == 5  # fmt: skip


@pytest.mark.parametrize("places", [11, 40, 900])
@pytest.mark.parametrize("reduce", ["amax", "prod"])
def test_places_forget_what_the_input_has_there(oracle: Any, reduce: str, places: int) -> None:
    """They are marked, once for all columns; some have nothing but what changes nothing."""

    def fn(x: Tensor, i: Tensor, v: Tensor, columns: Tensor) -> list[Tensor]:
        rows = i[:, None].expand(1400, 9)
        alike = x.scatter_reduce(0, rows, v, reduce, include_self=False)
        numbers = x[:, 0].scatter_reduce(0, i, v[:, 1], reduce, include_self=False)
        other = x.scatter_reduce(0, columns, v, reduce, include_self=False)
        return [alike, numbers, other, x.index_reduce(0, i, v, reduce, include_self=False)]

    i = torch.arange(1400) * 7 % places
    i[i == 3] = 5
    v = torch.exp2(((torch.arange(12600) * 5) % 3 - 1.0).view(1400, 9))
    v[i == 5] = -torch.inf if reduce == "amax" else 1.0
    columns = (i[:, None] + torch.arange(9)) % places
    lowered = oracle(fn, torch.full((places, 9), 7.0), i, v, columns)
    marked = any(b.type.dtype is DType.bool_ for n in lowered.graph.nodes
                 if isinstance(n, Kernel) for b in n.buffers)  # fmt: skip
    assert marked == (places > 11)  # so few ask


def test_copies_of_places_in_an_input(oracle: Any) -> None:
    def fn(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return x.index_add(0, i, v)

    lowered = oracle(changing(fn), torch.ones(11, 20), MANY, torch.ones(700, 20), functional=False)
    x = lowered.graph.inputs[0].name
    (kernel,) = [n for n in lowered.graph.nodes if isinstance(n, Kernel) and x in writes(n)]
    assert [p.axes == () for p in kernel.phases] == [False, True]


def test_rows_of_no_account_in_few_places(oracle: Any) -> None:
    """The gradient of a table of few rows, one of which has none."""
    lowered = oracle(
        lambda g, i: aten.embedding_dense_backward(g, i, 11, 3, False), torch.randn(7, 100, 6),
        MANY.view(7, 100),
    )  # fmt: skip
    assert modes(lowered) == {"set"}


def test_few_places_are_deterministic(oracle: Any, deterministic: None) -> None:
    lowered = oracle(
        lambda x, i, v: x.index_add(0, i, v), torch.ones(11, 3), MANY, torch.ones(700, 3)
    )
    assert modes(lowered) == {"set"}


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_deterministic_algorithms(oracle: Any, deterministic: None) -> None:
    oracle(sum_rows, X, ROWS, FEW, fallbacks=["aten.index_put.default"])


@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_gradient_of_an_embedding(oracle: Any, padding: int, by_frequency: bool) -> None:
    def fn(gradient: Tensor, ids: Tensor) -> Tensor:
        return aten.embedding_dense_backward(gradient, ids, 5, padding, by_frequency)

    lowered = oracle(fn, torch.randn(2, 4, 6), torch.tensor([[0, 3, 1, 1], [1, 4, 3, 0]]))
    assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)
    stores = [s for n in lowered.graph.nodes if isinstance(n, Kernel) for s in statements(n)
              if isinstance(s, Store) and s.mode == "add"]  # fmt: skip
    assert (stores[-1].mask is not None) == (padding >= 0)


# -- in place


def written(lowered: Lowered) -> list[str]:
    """What the kernels and calls write to, in order; nothing is copied back."""
    assert not any(isinstance(n, CopyBack) for n in lowered.graph.nodes)
    return [name for n in lowered.graph.nodes for name in writes(n)]


def changing(fn: Fn) -> Fn:
    """A model that puts the result of `fn` into its first argument."""

    def run(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        y = fn(x, i, v)
        aten.copy_.default(x, y)
        return y * 2

    return run


@pytest.mark.parametrize("fn", [*FUNCTIONS[:2], *FUNCTIONS[3:6]])
def test_an_input_that_changes_is_written_where_it_lies(oracle: Any, fn: Fn) -> None:
    lowered = oracle(changing(fn), X, ROWS, FEW, functional=False)
    x = lowered.graph.inputs[0].name
    (kernel,) = [n for n in lowered.graph.nodes if isinstance(n, Kernel) and x in writes(n)]
    (store,) = [s for s in statements(kernel) if isinstance(s, Store)]
    assert "t0" in str(store.index) and not any(s in str(store.index) for s in ("v", "r"))
    assert written(lowered).count(x) == 1


def nested(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    row = x[1:3]
    part = row[:, :2]
    new = part.select_scatter(v[1:3, 0], 1, 1)
    return x.slice_scatter(row.slice_scatter(new, 1, 0, 2), 0, 1, 3)


def diagonal(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.diagonal_scatter(x.diagonal() * 2)


def strided(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.as_strided_scatter(v[:2], (2, 2), (6, 2), 1)


def rows_of_a_part(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    part = x[:, ::2]
    return x.slice_scatter(part.index_put((i[:2],), v[:2, :1]), 1, 0, 9999, 2)


@pytest.mark.parametrize(("fn", "points"), [(nested, 2), (diagonal, 4), (strided, 4),
                                            (rows_of_a_part, 6)])  # fmt: skip
def test_a_part_is_written_alone(oracle: Any, fn: Fn, points: int) -> None:
    lowered = oracle(changing(fn), X, ROWS, FEW, functional=False)
    x = lowered.graph.inputs[0].name
    (kernel,) = [n for n in lowered.graph.nodes if isinstance(n, Kernel) and x in writes(n)]
    assert product(a.extent for a in kernel.axes) == points


def returned(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = put_rows(x, i, v)
    aten.copy_.default(x, y)
    return y


def old_value(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = put_rows(x, i, v)
    z = x[0] * 2
    aten.copy_.default(x, y)
    return z


def old_row(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.slice_scatter(v[:2, :1].expand(2, 6), 0, 1, 3)
    z = x.slice_scatter(y[:1] + 1, 0, 2, 3)
    aten.copy_.default(x, z)
    return y[2] + z[1]


def own_rows(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.index_put((i[:2],), x[1:3])
    aten.copy_.default(x, y)
    return y + 1


@pytest.mark.parametrize("fn", [returned, old_value, old_row, own_rows, put_rows])
def test_what_is_needed_later_is_kept(oracle: Any, fn: Fn) -> None:
    lowered = oracle(fn, X, ROWS, FEW, functional=False)
    x = lowered.graph.inputs[0].name
    scatters = [n for n in lowered.graph.nodes if isinstance(n, Kernel) and x in writes(n)]
    assert all("t0" not in str(s.index) for n in scatters for s in statements(n)
               if isinstance(s, Store))  # fmt: skip


def test_what_dies_is_taken_over(oracle: Any) -> None:
    """`y` is no input: rows of it change where it lies. A sum that no kernel does is a call that
    writes in place."""
    lowered = oracle(lambda x, i, v: put_rows(x * 2, i, v), X, ROWS, FEW)
    assert len(set(written(lowered))) == 1
    bytes_ = X.to(torch.int8)
    calls = oracle(changing(sum_rows), bytes_, ROWS, FEW.to(torch.int8), functional=False,
                   fallbacks=["aten.index_put.default"])  # fmt: skip
    (call,) = [n for n in calls.graph.nodes if isinstance(n, Extern)]
    assert call.target == "aten.index_put_.default" and call.mutates == (
        calls.graph.inputs[0].name,
    )


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_gradients_of_bags(oracle: Any, mode: int, padding: int) -> None:
    """Bags of no row, of one and of several, some rows twice or of no account; what the forward
    tells of them, and what it leaves out on the CPU."""
    ids = torch.tensor([1, 3, 3, 2, 0, 2, 2, 1])
    offsets = torch.tensor([0, 0, 3, 5, 7])
    table, weights = torch.randn(5, 6), torch.randn(8) if mode == 0 else None
    forward = aten._embedding_bag(table, ids, offsets, False, mode, False, weights, False, padding)
    bag = torch.searchsorted(offsets, torch.arange(8), right=True) - 1

    def fn(gradient: Tensor, bags: Tensor, *more: Tensor) -> list[Tensor]:
        how = 5, False, mode, False, weights, padding
        made = [aten._embedding_bag_backward(gradient, ids, offsets, bags, *more, *how)]
        if mode == 0:
            args = gradient, table, ids, offsets, bags, mode, padding
            made.append(aten._embedding_bag_per_sample_weights_backward(*args))
        return made

    given = torch.randn(5, 6)
    for bags in (forward[1], bag):
        lowered = oracle(fn, given, bags, *forward[2:])
        assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)


def test_an_operator_that_runs_updates_a_copy(oracle: Any, deterministic: None) -> None:
    """Which may be computed with what it is a copy of. (Eager's own copies its input twice.)"""
    x, i, v = (
        torch.randn(7, 3),
        torch.stack([torch.randperm(7) for _ in range(3)], 1),
        torch.ones(7, 3),
    )
    name = "aten.scatter_reduce.two"
    lowered = oracle(lambda a: a.scatter_reduce(0, i, v, "prod"), x, fallbacks=[name])
    copy, extern = lowered.graph.nodes
    assert isinstance(copy, Kernel) and isinstance(extern, Extern)
    assert extern.target == "aten.scatter_reduce_.two" and extern.fallback
    assert extern.mutates == tuple(b.name for b in copy.buffers if b.written)
    oracle(lambda a: (a.scatter_reduce(0, i, v, "prod"), a + 1), x, fallbacks=[name])
    oracle(lambda a: a.t().scatter_reduce(1, i.t(), v.t(), "prod"), x, fallbacks=[name])
    oracle(lambda a: a.expand(7, 3).scatter_reduce(0, i, v, "prod"), x[:1], fallbacks=[name])
