"""Each graph pass: what it rewrites, and what it leaves alone."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering.passes import fetch_ahead, one_stream, sums_at_once
from aten_lowering.passes.common_subexpressions import common_subexpressions
from aten_lowering.passes.dead_code import dead_code
from aten_lowering.passes.diagonal_products import diagonal_products
from aten_lowering.passes.exclusive_scans import exclusive_scans
from aten_lowering.passes.joined_gradients import joined_gradients
from aten_lowering.passes.known_masks import known_masks
from aten_lowering.passes.no_ops import no_ops
from aten_lowering.passes.numbers_alone import numbers_alone
from aten_lowering.passes.prims import prims
from aten_lowering.passes.window_offsets import window_offsets


def calls(run: Any, fn: Any, *inputs: torch.Tensor, sizes: str = "fake") -> Counter[str]:
    gm = make_fx(fn, tracing_mode=sizes)(*inputs)
    run(gm.graph)
    gm.graph.lint()
    gm.recompile()
    got, want = (f(*(x.clone() for x in inputs)) for f in (gm, fn))
    torch.testing.assert_close(got, want, equal_nan=True)
    return Counter(_name(n) for n in gm.graph.nodes if n.op == "call_function")


def _name(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).split(".")[0]


def test_dead_code() -> None:
    x = torch.randn(3)

    def fn(a: torch.Tensor) -> torch.Tensor:
        a.exp().sin()
        return a + 1

    assert calls(dead_code, fn, x) == {"add": 1}


def test_dead_code_keeps_effects() -> None:
    def fn(a: torch.Tensor) -> torch.Tensor:
        b = a * 1
        b.add_(1)
        return b

    assert calls(dead_code, fn, torch.randn(3)) == {"mul": 1, "add_": 1}


def test_common_subexpressions() -> None:
    def fn(a: torch.Tensor) -> torch.Tensor:
        return a.exp() + a.exp() * (a + 1) * (a + 1.0)

    # 1 and 1.0 are different arguments.
    assert calls(common_subexpressions, fn, torch.randn(3)) == {"exp": 1, "add": 3, "mul": 2}


def test_two_results_do_not_become_one() -> None:
    def fn(a: torch.Tensor) -> Any:
        return a.exp(), a.exp()

    assert calls(common_subexpressions, fn, torch.randn(3)) == {"exp": 2}


def test_random_numbers_are_not_merged() -> None:
    gm = make_fx(lambda a: torch.rand(3) - torch.rand(3) + a, tracing_mode="fake")(torch.randn(3))
    common_subexpressions(gm.graph)
    assert sum("rand" in str(n.target) for n in gm.graph.nodes) == 2


def test_no_ops() -> None:
    def fn(a: torch.Tensor) -> torch.Tensor:
        b = (a + 1).view(3, 4).clone()
        return b.expand(3, 4).detach() * 2

    assert calls(no_ops, fn, torch.randn(3, 4)) == {"add": 1, "mul": 1}


def test_views_that_are_tensors_of_their_own_stay() -> None:
    def fn(a: torch.Tensor) -> Any:
        b = a + 1
        return b[:], b.view(3, 4), a.view(3, 4), b.expand(3, 4)[:] * 2

    assert calls(no_ops, fn, torch.randn(3, 4)) == {"add": 1, "view": 2, "mul": 1}


def test_copies_that_a_caller_could_see_stay() -> None:
    x = torch.randn(3, 4)
    assert calls(no_ops, lambda a: a.clone(), x) == {"clone": 1}
    assert calls(no_ops, lambda a: (a.exp().clone(),), x) == {"exp": 1}

    def twice(a: torch.Tensor) -> Any:
        b = a.exp()
        return b, b.clone()

    assert calls(no_ops, twice, x) == {"exp": 1, "clone": 1}


def test_copies_stay_where_something_is_written_in_place() -> None:
    def fn(a: torch.Tensor) -> torch.Tensor:
        b = a * 1
        c = b.clone()
        b.add_(1)
        return b + c

    assert calls(no_ops, fn, torch.randn(3))["clone"] == 1


def test_copies_of_what_changes_at_the_end_stay() -> None:
    def swapped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a.clone()
        d = b.exp().clone()
        a.copy_(d)
        b.copy_(c)
        return d

    assert calls(no_ops, swapped, torch.randn(3), torch.randn(3))["clone"] == 1


def test_equal_values_become_one_where_inputs_change_at_the_end() -> None:
    def doubled(a: torch.Tensor) -> torch.Tensor:
        b = a.exp() + a.exp()
        a.copy_(b * 0)
        return b

    def changed(a: torch.Tensor) -> torch.Tensor:
        b = a.exp()
        a.copy_(b * 0)
        return b + a.exp()

    assert calls(common_subexpressions, doubled, torch.zeros(3))["exp"] == 1
    assert calls(common_subexpressions, changed, torch.zeros(3))["exp"] == 2


def test_copies_that_change_strides_stay() -> None:
    assert calls(no_ops, lambda a: a.t().contiguous() + 1, torch.randn(3, 4))["clone"] == 1


def test_prims_that_aten_has() -> None:
    ops = torch.ops.prims

    def fn(a: torch.Tensor) -> Any:
        wide = ops.convert_element_type.default(ops.sin.default(a), torch.float64)
        whole = ops.convert_element_type.default(ops.mul.default(a, a), torch.int64)
        half = ops.div.default(whole, torch.full_like(whole, -3))
        chosen = ops.where.default(ops.lt.default(a, a), a, ops.fmax.default(a, a))
        total = ops.sum.default(whole, [0, 1])
        return wide, half, ops.div.default(chosen, a), ops.amax.default(a, [0]), total

    gm = make_fx(fn, tracing_mode="fake")(torch.empty(3, 4))
    prims(gm.graph)
    gm.recompile()
    assert not [n for n in gm.graph.nodes if str(n.target).startswith("prims")]
    x = torch.randn(3, 4) * 5
    torch.testing.assert_close(gm(x), fn(x))


def names_after(
    passes: Sequence[Any], fn: Any, *inputs: torch.Tensor, sizes: str = "fake"
) -> list[str]:
    """The operators of a graph after passes and without dead code; what it gives is as before."""

    def run(graph: torch.fx.Graph) -> None:
        for step in (*passes, dead_code):
            step(graph)
        names.extend(_name(n) for n in graph.nodes if n.op == "call_function")

    names: list[str] = []
    calls(run, fn, *inputs, sizes=sizes)
    return names


def test_scans_of_what_comes_before() -> None:
    x = torch.rand(3, 5)

    def before(a: torch.Tensor) -> torch.Tensor:
        return torch.cat([a.new_zeros(3, 1), a.cumsum(-1)[:, :-1]], 1)

    def products(a: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.ones(1, 5), a.cumprod(0)])

    def ends(a: torch.Tensor) -> torch.Tensor:
        return F.pad(a.cumsum(0, dtype=torch.int32), (1, 0))

    def shifted(a: torch.Tensor) -> torch.Tensor:
        return F.pad(a.cumsum(0), (0, 0, 2, -1))

    assert names_after((no_ops, exclusive_scans), before, x) == [
        "slice",
        "constant_pad_nd",
        "cumsum",
    ]
    assert names_after((no_ops, exclusive_scans), before, x.bfloat16())[-1] == "cumsum"
    assert names_after((no_ops, exclusive_scans), products, x) == ["constant_pad_nd", "cumprod"]
    assert names_after((no_ops, exclusive_scans), ends, torch.arange(4)) == [
        "_to_copy", "constant_pad_nd", "cumsum"
    ]  # fmt: skip
    assert names_after((no_ops, exclusive_scans), shifted, x) == ["constant_pad_nd", "cumsum"]


def test_products_with_diagonal_matrices() -> None:
    """The rows (columns, batches) of the other are scaled; what is infinite there makes a row of
    NaN of each other one, as the zeros of the matrix do."""
    x, b = torch.randn(4), torch.randn(4, 4)
    x[2], b[1, 1], b[3, 2], b[0, 2], b[2, 3] = 0.0, math.inf, math.nan, -math.inf, math.inf
    many = torch.stack([b, b * 2, torch.randn(4, 4)])
    for fn, *inputs in (
        (lambda a, m: torch.diag(a) @ m, x, b),
        (lambda a, m: m @ torch.diag(a).permute(1, 0), x, b[:3]),
        (lambda a, m: torch.diag(a) @ m.t(), x.double(), b.double()),
        (lambda a, m: torch.diag_embed(a) @ m, torch.randn(3, 4), many),
        (lambda a, m: torch.diag_embed(a, dim1=-1, dim2=1) @ m, torch.randn(3, 4), many),
    ):
        names = names_after((no_ops, diagonal_products), fn, *inputs)
        assert "sum" in names and not {"mm", "bmm", "diag_embed"} & {*names}, names
    for fn in (
        lambda a, m: torch.diag(a, 1) @ F.pad(m, (0, 0, 1, 0)),
        lambda a, m: torch.diag(a).long() @ m.isnan().long(),
        lambda a, m: torch.diag(a).exp() @ m,
    ):
        assert "mm" in names_after((no_ops, diagonal_products), fn, x, b)


def test_scans_that_stay_behind() -> None:
    """What is in front would count, or lies elsewhere, or the scan is a result too."""
    x = torch.rand(3, 5)
    for fn in (
        lambda a: torch.cat([a.new_ones(3, 1), a.cumsum(1)], 1),
        lambda a: torch.cat([a.new_zeros(3, 1), a.cumprod(1)], 1),
        lambda a: torch.cat([a.new_zeros(1, 5), a.cumsum(1)], 0),
        lambda a: torch.cat([a.new_zeros(3, 1), a.cumsum(1)[:, 1:]], 1),
        lambda a: torch.cat([a.cumsum(1), a.new_zeros(3, 1)], 1),
        lambda a: torch.cat([a.new_zeros(3, 1, dtype=torch.float64), a.cumsum(1)], 1),
        lambda a: F.pad(a.cumsum(1), (0, 1)),
        lambda a: F.pad(a.cumsum(1), (1, 0), value=2.0),
        lambda a: F.pad(a.cumsum(1), (1, 0, 1, 0)),
        lambda a: (s := a.cumsum(1), F.pad(s, (1, 0))),
    ):
        assert names_after((no_ops, exclusive_scans), fn, x)[-1] not in ("cumsum", "cumprod")


def test_gradients_of_pieces_that_are_all() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 6)
    x[0, 0] = -0.0

    def slices(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        zeros = a.new_zeros(3, 10)
        return zeros.slice_scatter(b, 1, 4) + zeros.slice_scatter(a, -1, 0, -6)

    def selected(a: torch.Tensor) -> torch.Tensor:
        first, *rest = (a.new_zeros(3, 3, 4).select_scatter(a * n, 1, n - 1) for n in range(3))
        for part in rest:
            first = part + first
        return first

    assert names_after((joined_gradients,), slices, x, y) == ["add", "add", "cat"]
    assert names_after((joined_gradients,), slices, x.int(), y.int()) == ["cat"]
    assert names_after((joined_gradients,), selected, x)[-1] == "cat"


def test_gradients_of_pieces_in_turns() -> None:
    def turns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        parts = ((a, 0), (b, 1), (b, 0), (a, 1), (a, 0))
        zeros = (a.new_zeros(3, 8, 2).slice_scatter(v, 1, n, 9, 2) for v, n in parts)
        return sum(zeros, start=next(zeros))

    def halves(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        parts = ((a, 0), (b, 4), (b, 0))
        zeros = (a.new_zeros(3, 8, 2).slice_scatter(v, 1, n, n + 4) for v, n in parts)
        return sum(zeros, start=next(zeros))

    x, y = torch.randn(3, 4, 2), torch.randn(3, 4, 2)
    found = names_after((joined_gradients,), turns, x, y)
    assert "slice_scatter" not in found and found[-2:] == ["cat", "view"]
    assert "slice_scatter" not in names_after((joined_gradients,), halves, x, y)

    def many(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        zeros = a.new_zeros(a.shape[0], 8, 2)
        return zeros.slice_scatter(a, 1, 0, 9, 2) + zeros.slice_scatter(b, 1, 1, 9, 2)

    found = names_after((joined_gradients,), many, x, y, sizes="symbolic")
    assert "slice_scatter" not in found and found[-1] == "view"


def test_gradients_of_pieces_of_two_dimensions() -> None:
    """The corners of windows, which a merge of patches takes apart."""

    def corners(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        parts = ((a, 0, 0), (b, 1, 0), (a, 0, 1), (b, 1, 1))
        rows = ((a.new_zeros(4, 6).slice_scatter(v, 1, j, 9, 2), i) for v, i, j in parts)
        whole = (a.new_zeros(8, 6).slice_scatter(r, 0, i, 9, 2) for r, i in rows)
        return sum(whole, start=next(whole))

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    assert "slice_scatter" not in names_after((joined_gradients,), corners, x, y)


def test_places_that_only_gradients_read() -> None:
    """Are a byte each; not those that are a result, nor of windows that are walked over."""
    aten, x = torch.ops.aten, torch.randn(2, 3, 12, 11)

    def pooled(a: torch.Tensor, *args: Any) -> Any:
        y, places = aten.max_pool2d_with_indices(a, *args)
        whole = [*args, *([0, 0], [1, 1], False)[len(args) - 2 :]]
        return y, aten.max_pool2d_with_indices_backward(y * 2, a, *whole, places), places

    for args in (([3, 2], [2, 2], [1, 1]), ([2], [3]), ([2, 2], [])):
        fn = functools.partial(lambda w, a: pooled(a, *w)[:2], args)
        assert names_after((window_offsets,), fn, x) == [
            "max_pool_offsets", "getitem", "getitem", "mul", "max_pool_offsets_backward"
        ]  # fmt: skip
    for fn in (lambda a: pooled(a, [3, 3], [2, 2]), lambda a: pooled(a, [6, 6], [1, 1])[:2]):
        assert "max_pool_offsets" not in names_after((window_offsets,), fn, x)


def test_pieces_that_meet_or_are_not_all() -> None:
    x = torch.randn(3, 4)
    for fn in (
        lambda a: a.new_zeros(3, 10).slice_scatter(a, 1, 0, 4)
        + a.new_zeros(3, 10).slice_scatter(a, 1, 4, 8),
        lambda a: a.new_zeros(3, 7).slice_scatter(a, 1, 0, 4)
        + a.new_zeros(3, 7).slice_scatter(a, 1, 3),
        lambda a: a.new_ones(3, 8).slice_scatter(a, 1, 0, 4)
        + a.new_zeros(3, 8).slice_scatter(a, 1, 4),
        lambda a: a.new_zeros(3, 9).slice_scatter(a, 1, 0, 8, 2)
        + a.new_zeros(3, 9).slice_scatter(a, 1, 1, 8, 2),
        lambda a: a.new_zeros(3, 12).slice_scatter(a, 1, 0, 12, 3)
        + a.new_zeros(3, 12).slice_scatter(a, 1, 1, 12, 3),
        lambda a: a.new_zeros(3, 8).slice_scatter(a, 1, 0, 8, 2)
        + a.new_zeros(3, 8).slice_scatter(a, 1, 4),
        lambda a: torch.add(
            a.new_zeros(3, 8).slice_scatter(a, 1, 0, 4),
            a.new_zeros(3, 8).slice_scatter(a, 1, 4), alpha=2
        ),
    ):  # fmt: skip
        assert "cat" not in names_after((joined_gradients,), fn, x)
    assert names_after((joined_gradients,), lambda a: a + a, x.sum()) == ["add"]


def test_numbers_alone() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.vmap(lambda t: (t * 2).cumsum(-1) - t.mean())(x)
        return out

    before, after = (calls(run, fn, torch.randn(3)) for run in (lambda graph: None, numbers_alone))
    assert after - before == {"scalar_tensor": 1}


def test_rows_are_put_onto_the_other_gradient() -> None:
    """Of a table that is also a weight, and of one that is read twice; not where more reads the
    other gradient, nor in fewer bits, in which sums are rounded in their order."""
    put = torch.ops.aten.index_put.default
    Given = torch.Tensor

    def tied(a: Given, b: Given, rows: Given, ids: Given) -> Given:
        return put(a.new_zeros(5, 4), [ids], rows, True) + torch.mm(a, b)

    def twice(a: Given, b: Given, rows: Given, ids: Given) -> Given:
        first, second = (put(a.new_zeros(5, 4), [i], rows, True) for i in (ids, ids + 1))
        return torch.mm(a, b) + (first + second)

    def shared(a: Given, b: Given, rows: Given, ids: Given) -> Given:
        y = torch.mm(a, b)
        return (put(a.new_zeros(5, 4), [ids], rows, True) + y) * y

    ids = torch.tensor([2, 0, 2])
    given = torch.randn(5, 6), torch.randn(6, 4), torch.randn(3, 4)
    run = functools.partial(calls, joined_gradients)
    assert run(tied, *given, ids) == {"mm": 1, "index_put": 1}
    assert run(twice, *given, ids) == {"mm": 1, "add": 1, "index_put": 2}  # of the ids
    assert run(shared, *given, ids)["new_zeros"] == 1
    assert run(tied, *(x.bfloat16() for x in given), ids)["new_zeros"] == 1


def counted(size: int, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.arange(size, device=given.device)
    return places[:, None], places


# A mask of 5 queries and 5 keys, and what takes its place.
MASKS: dict[str, tuple[Any, tuple[Any, bool] | None]] = {
    "triangle": (lambda x: counted(5, x)[0] >= counted(5, x)[1], (None, True)),
    "triangle of a batch": (
        lambda x: (counted(5, x)[0] >= counted(5, x)[1]).expand(2, 1, 5, 5),
        (None, True),
    ),
    "infinities": (lambda x: torch.full((5, 5), -math.inf).triu(1), (None, True)),
    "every key": (lambda x: (counted(5, x)[1] >= 0).expand(2, 1, 5, 5), (None, False)),
    "zeros": (lambda x: torch.zeros(5, 5), (None, False)),
    "a window": (lambda x: (counted(5, x)[0] - counted(5, x)[1]).abs() < 2, None),
    "slopes": (lambda x: (counted(5, x)[1] - counted(5, x)[0]).float().triu(1) * -1e4, None),
    "upside down": (lambda x: counted(5, x)[0] <= counted(5, x)[1], None),
    "of an input": (
        lambda x: counted(5, x)[0] + x[0, 0, 0, 0].clamp(0, 0) >= counted(5, x)[1],
        None,
    ),
    "of floats": (lambda x: counted(5, x)[0].cos() <= 1, None),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_known(name: str) -> None:
    mask, wanted = MASKS[name]
    x = torch.randn(2, 3, 5, 8)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask(x))

    gm = make_fx(fn, tracing_mode="fake")(x)
    known_masks(gm.graph)
    gm.recompile()
    torch.testing.assert_close(gm(x), fn(x))
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    (call,) = gm.graph.find_nodes(op="call_function", target=op)
    if wanted is None:
        assert isinstance(call.kwargs["attn_mask"], torch.fx.Node) and len(call.args) == 3
    else:
        assert (call.kwargs.get("attn_mask"), call.args[4]) == wanted


def test_a_known_triangle_of_more_keys_than_queries_stays() -> None:
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8)
    gm = make_fx(
        lambda q, k: F.scaled_dot_product_attention(q, k, k, torch.ones(4, 5).tril() > 0),
        tracing_mode="fake",
    )(q, k)
    before = gm.code
    known_masks(gm.graph)
    gm.recompile()
    assert gm.code == before


def test_copies_from_a_host_begin_one_ahead() -> None:
    """Where nobody waits for them; each is waited for where it was."""

    def run(h: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for n, w in enumerate(weights):
            h = (h @ w.to("cuda", non_blocking=n != 1)).relu()
        return h

    with FakeTensorMode(allow_non_fake_inputs=True):
        weights = [torch.empty(4, 4) for _ in range(4)]
        gm = make_fx(run)(torch.empty(4, 4, device="cuda"), *weights)
    fetch_ahead.fetch_ahead(gm.graph)
    gm.graph.lint()
    found = [str(n.target).split(".")[1] for n in gm.graph.nodes if n.op == "call_function"]
    layer = ["mm", "relu"]
    ahead = ["fetch", "fetch", "fetched", *layer, "_to_copy", *layer, "fetch", "fetched", *layer]
    assert found == [*ahead, "fetched", *layer]


@pytest.mark.parametrize("what", ["waits for a stream", "is written"])
def test_copies_from_a_host_stay_where_something_fills_it(what: str) -> None:
    """What another stream fills, or the program itself."""

    def run(x: torch.Tensor) -> torch.Tensor:
        if what == "waits for a stream":
            torch.ops.aten_lowering.await_streams.default([0])
        y = x.to("cuda", non_blocking=True)
        if what == "is written":
            x.mul_(2)
        return y.relu()

    one_stream._for_tracing()
    with FakeTensorMode(allow_non_fake_inputs=True):
        gm = make_fx(run)(torch.empty(4))
    before = gm.code
    fetch_ahead.fetch_ahead(gm.graph)
    assert gm.recompile().src == before


def test_the_memory_of_a_copy_that_nobody_waited_for_is_safe() -> None:
    """Its stream waits where the tensor dies, before it is something else's."""

    waits: list[object] = []
    stream = SimpleNamespace(wait_event=waits.append)
    tensor = torch.empty(4)
    setattr(tensor, fetch_ahead._COPY, fetch_ahead.Copy("end", stream))
    assert not waits
    del tensor
    assert waits == ["end"]
    there = fetch_ahead.fetched(fetch_ahead.fetch(torch.ones(4), torch.device("cpu")))
    assert there.sum() == 4 and waits == ["end"]


@pytest.mark.parametrize(
    ("count", "enabled", "made"),
    [(4096, True, True), (4096, False, False), (1 << 20, True, False), (3, True, False)],
)
def test_small_sums_over_ranks(
    count: int, enabled: bool, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for the start and the wait, of groups that share memory; one part of it for all."""
    family, ours = torch.ops._c10d_functional, torch.ops.aten_lowering.sum_at_once.default
    shared = {"group"} if enabled else set()
    memory = SimpleNamespace(is_symm_mem_enabled_for_group=shared.__contains__)
    monkeypatch.setattr(sums_at_once, "symmetric_memory", lambda: memory)
    graph = fx.Graph()
    x = graph.placeholder("x")
    with FakeTensorMode():
        x.meta["val"] = torch.empty(count, device="cuda")
    for _ in range(2):
        start = graph.call_function(family.all_reduce.default, (x, "sum", "group"))
        y = graph.call_function(family.wait_tensor.default, (start,))
        y.meta["val"], x = x.meta["val"], y
    graph.output(x)
    sums_at_once.sums_at_once(graph)
    graph.lint()
    calls = [n.target for n in graph.nodes if n.op == "call_function"]
    parts = calls.count(torch.ops.aten_lowering.shared_memory.default)
    assert (calls.count(ours), parts, len(calls)) == ((2, 1, 3) if made else (0, 0, 4))
