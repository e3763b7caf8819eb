"""When a graph is captured, what is copied, and what has none; a stand-in records and replays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from cuda_graphs import Buckets, GraphedCallable, GraphError, GraphPool, Lending, Loans
from cuda_graphs.graph_pool import Recording


class Recorder:
    """Replays by running the callable on the very tensors that were captured."""

    def __init__(self, holds: bool = True) -> None:
        self.holds = holds
        self.captured = 0
        self.replayed = 0
        self.released = 0
        self.refusal: str | None = None

    def refuses(self, tensors: list[torch.Tensor]) -> str | None:
        return self.refusal

    def busy(self) -> bool:
        return self.refusal is not None

    def order(self, device: torch.device) -> None:
        pass

    def record(self, fn: Callable[..., Any], args: Sequence[Any]) -> Recording:
        self.captured += 1
        held = list(args)
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        outputs = fn(*held)
        for a, b in zip(held, before, strict=True):
            if isinstance(a, torch.Tensor):
                a.copy_(b)

        if not self.holds:
            held = [unheld(a) for a in held]

        def replay() -> None:
            self.replayed += 1
            new = fn(*held)
            for o, n in zip(as_list(outputs), as_list(new), strict=True):
                if isinstance(o, torch.Tensor) and o is not n and 0 not in o.stride():
                    o.copy_(n)

        def release() -> None:
            self.released += 1

        return Recording(replay, outputs, release)


def unheld(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, which lives no longer for that: as a graph knows it."""
    storage = tensor.untyped_storage()
    memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def test_a_list_is_emptied() -> None:
    graphed = GraphedCallable(lambda x, w: x @ w, recorder=Recorder())
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    for _ in range(4):
        args = [x, w]
        assert torch.equal(graphed.boxed(args), x @ w) and args == []


def test_what_stays_is_in_place_and_what_moves_is_copied() -> None:
    recorder = Recorder()
    graphed = GraphedCallable(lambda x, w: x @ w, recorder=recorder)
    w = torch.randn(4, 4)
    kept = []
    for _ in range(5):
        x = torch.randn(3, 4)
        kept.append(x)  # alive, so that each has an address of its own
        assert torch.equal(graphed(x, w), x @ w)
    assert (recorder.captured, recorder.replayed) == (1, 4)
    text = graphed.explain()
    assert "in place: argument 1\n" in text
    assert "argument 0 is copied, 48 bytes: it moved from 0x" in text and "4 copies made" in text


def test_a_weight_that_moves_later_is_captured_again_once() -> None:
    recorder = Recorder()
    graphed = GraphedCallable(lambda x, w: x + w, recorder=recorder)
    x = torch.randn(8)
    weights = [torch.randn(8) for _ in range(4)]
    for w in (weights[0], weights[0], weights[0], *weights):
        assert torch.equal(graphed(x, w), x + w)
    assert recorder.captured == 2 and recorder.released == 1
    assert "captured again: argument 1 moved; copied from now on" in graphed.explain()
    other = torch.randn(8)
    assert torch.equal(graphed(other, weights[0]), other + weights[0])
    assert recorder.captured == 3, "each argument can move once"


@pytest.mark.parametrize("moving", [False, True])
def test_mutation_reaches_the_callers_tensor(moving: bool) -> None:
    """Found by the version counter, without being told."""
    graphed = GraphedCallable(lambda x, y: x.mul_(2).add_(y), recorder=Recorder())
    y = torch.ones(4)
    x = torch.zeros(4)
    kept = [x]
    expected = torch.zeros(4)
    for _ in range(4):
        if moving:
            x = x.clone()
            kept.append(x)
        expected = 2 * expected + 1
        out = graphed(x, y)
        assert out is x and torch.equal(x, expected)
    assert "mutated: argument 0" in graphed.explain()


def test_sizes_of_a_bucket_share_a_graph() -> None:
    recorder = Recorder()
    buckets = Buckets((4, 16), inputs={0: 0, 1: 0}, outputs={0: 0})
    graphed = GraphedCallable(
        lambda x, y, w: (x @ w + y, w.sum()), buckets=buckets, recorder=recorder
    )
    w = torch.randn(3, 5)
    for n in (3, 4, 1, 9, 16, 2, 12):
        x, y = torch.randn(n, 3), torch.randn(n, 5)
        out, total = graphed(x, y, w)
        torch.testing.assert_close(out, x @ w + y)
        assert torch.equal(total, w.sum())
    assert (recorder.captured, recorder.replayed) == (2, 7)
    big = torch.randn(17, 3), torch.randn(17, 5)
    torch.testing.assert_close(graphed(*big, w)[0], big[0] @ w + big[1])
    text = graphed.explain()
    assert "bucket 4: 4 replays" in text and "it is padded to 16" in text
    assert "1 calls without a graph: size 17 is past the last bucket, 16" in text
    with pytest.raises(GraphError, match=r"differ.*\{0: 3, 1: 2\}"):
        graphed(torch.randn(3, 3), torch.randn(2, 5), w)


def test_buckets_and_mutation() -> None:
    buckets = Buckets((8,), inputs={0: 0}, outputs={})
    graphed = GraphedCallable(lambda x, t: x.add_(t), buckets=buckets, recorder=Recorder())
    t = torch.tensor(1.0)
    for n in (3, 8, 5):
        x = torch.zeros(n)
        assert graphed(x, t) is x and x.eq(1).all()
    total = torch.zeros(())
    count = GraphedCallable(lambda x, t: t.add_(x.sum()), buckets=buckets, recorder=Recorder())
    with pytest.raises(GraphError, match=r"mutated=\(1,\)"):
        count(torch.ones(8), total)


@pytest.mark.parametrize("lent", [(), (0,)])
def test_results_outlive_the_next_call(lent: tuple[int, ...]) -> None:
    graphed = GraphedCallable(lambda x: x + 1, lending=Lending(lent), recorder=Recorder())
    x = torch.zeros(2)
    graphed(x)
    first = graphed(x.fill_(1.0))
    graphed(x.fill_(2.0))
    assert first.eq(2.0).all()


def test_results_share_memory_as_they_were_captured() -> None:
    def parts(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        z = x.double()
        part = torch.complex(x, y)[:, ::2]
        views = [y[:], y, y[1:, ::2], y.view(torch.int16), z, z.expand(2, 2, 4), part.conj()]
        return [y, *views, x.new_empty(0)[:], -x]

    graphed, x = GraphedCallable(parts, recorder=Recorder()), torch.zeros(2, 4)

    def objects(results: list[torch.Tensor]) -> list[Any]:
        keys = [id, lambda t: t.untyped_storage().data_ptr()]
        every = [[key(t) for t in results] for key in keys]
        return [[ids.index(i) for i in ids] for ids in every]

    for n in range(3):
        got, want = graphed(x.fill_(n)), parts(x)
        for g, w in zip(got, want, strict=True):
            assert torch.equal(g, w) and (g.stride(), g.is_conj()) == (w.stride(), w.is_conj())
        assert objects(got) == objects(want)
        assert got[3].data_ptr() - got[0].data_ptr() == want[3].data_ptr() - want[0].data_ptr()
    got[0].fill_(9)
    assert got[1].eq(9).all() and graphed(x)[0].eq(3).all()


def test_layouts_and_values_have_graphs_of_their_own_and_the_oldest_goes() -> None:
    recorder = Recorder()
    graphed = GraphedCallable(lambda x, k: x * k, max_graphs=2, recorder=recorder)
    x = torch.randn(6, 6)
    for _ in range(2):
        for args in ((x, 2), (x, 3.0), (x.t(), 2)):
            assert torch.equal(graphed(*args), args[0] * args[1])
    assert "graphs dropped: more than 2 layouts" in graphed.explain()
    graphed.clear()
    assert graphed(x, 2).shape == (6, 6)


CASES: list[tuple[str, Callable[..., Any], str]] = [
    ("view", lambda x: x[1:], "a result shares the memory of argument 0"),
    ("dict", lambda x: {"y": x + 1}, "a result is dict"),
]


@pytest.mark.parametrize(("fn", "why"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_has_no_graph_runs_as_it_is(fn: Callable[..., Any], why: str) -> None:
    graphed = GraphedCallable(fn, recorder=Recorder())
    x = torch.randn(4)
    for _ in range(3):
        assert str(graphed(x)) == str(fn(x))
    assert f"no graph: {why}" in graphed.explain()


def test_errors_while_capturing_mean_no_graph() -> None:
    recorder = Recorder()

    def failing(fn: Callable[..., Any], args: Sequence[Any]) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    recorder.record = failing  # type: ignore[method-assign]
    graphed = GraphedCallable(lambda x: x + 1, recorder=recorder)
    for _ in range(3):
        assert graphed(torch.zeros(2)).eq(1).all()
    assert "no graph: capture failed: operation not permitted" in graphed.explain()


def test_grad_devices_and_aliases() -> None:
    w = torch.randn(3, requires_grad=True)
    graphed = GraphedCallable(lambda x: x * w, recorder=Recorder())
    for _ in range(3):
        assert graphed(torch.ones(3)).requires_grad
    assert "a result requires grad" in graphed.explain()
    with torch.no_grad():
        for _ in range(3):
            assert not graphed(torch.ones(3)).requires_grad
        given = GraphedCallable(lambda x, w: (x * w, w), recorder=Recorder())
        for _ in range(3):
            assert given(torch.ones(3), w)[1] is w, "an argument may require grad"
        assert "2 replays" in given.explain()
    on_cpu = GraphedCallable(lambda x: x + 1)
    assert on_cpu(torch.zeros(2)).eq(1).all()
    assert "1 calls without a graph: its tensors are on cpu" in on_cpu.explain()
    told = GraphedCallable(lambda x, y: x.add_(y), mutated=(0,), recorder=Recorder())
    x = torch.ones(4)
    assert told(x, x[:]).eq(2).all()
    assert "share memory" in told.explain()
    lists = GraphedCallable(lambda x, n: x.sum(n), recorder=Recorder())
    assert lists(torch.ones(2, 2), [0, 1]) == 4
    assert "argument 1 is list" in lists.explain()


def test_bad_buckets() -> None:
    for sizes in ((), (4, 2), (0, 1)):
        with pytest.raises(GraphError, match="ascend"):
            Buckets(sizes, {0: 0}, {})
    with pytest.raises(GraphError, match="at least one argument"):
        Buckets((1, 2), {}, {})


@pytest.mark.parametrize("gradients", [False, True])
def test_what_differs_from_the_call_before_is_not_replayed_at_once(gradients: bool) -> None:
    """Layouts at the same address, gradients, modes of torch, other addresses, other captures."""
    recorder = Recorder()
    graphed = GraphedCallable(lambda x, w: x @ w, recorder=recorder)
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    plain = [(x, w), (x, w.t()), (x.t().contiguous().t(), w), (x.clone(), w), (x[:1], w)]
    kept = [torch.randn(3, 4) for _ in range(4)]
    with torch.set_grad_enabled(gradients):
        for a, b in [*plain, *plain[::-1], *plain, *((k, w) for k in kept), *plain]:
            assert torch.equal(graphed(a, b), a @ b)
    before, known = recorder.captured, len(graphed._known)
    assert known == (0 if gradients else 4)
    with torch.no_grad():
        graphed(x, w)
        assert not graphed(x, w.requires_grad_()).requires_grad
    with torch.inference_mode():
        assert torch.equal(graphed(x, w), x @ w)
    assert graphed(x, w).requires_grad, "the callable itself ran"
    recorder.refusal, count = "another capture", recorder.replayed
    with torch.no_grad():
        assert torch.equal(graphed(x, w), x @ w) and recorder.replayed == count
    assert recorder.captured == before + gradients and "1 calls without" in graphed.explain()


def test_of_calls_like_the_last_nothing_else_is_asked() -> None:
    """Nor is anything kept alive."""
    asked = []

    def same(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> Callable[..., bool]:
        asked.append((len(tensors), list(places)))
        return lambda args: True

    recorder = Recorder()
    graphed = GraphedCallable(lambda x, w: x + w, recorder=recorder, same=same)
    w = torch.ones(4)
    with torch.no_grad():
        kept = [torch.full((4,), float(i)) for i in range(5)]
        for x in kept:
            assert torch.equal(graphed(x, w), x + 1)
    assert asked == [(2, [1])] and recorder.replayed == 4
    assert "4 copies made" in graphed.explain()
    graphed.clear()
    with torch.no_grad():
        assert torch.equal(graphed(kept[0], w), kept[0] + 1)


def test_what_is_lent_to_the_next_is_captured_in_the_call_in_which_it_first_lies_there() -> None:
    """Three in a row, each of which gets what the one before lends, and lends, too."""
    loans, recorders = Loans(), [Recorder(holds=False) for _ in range(3)]
    w = torch.randn(4, 4)
    steps = [
        GraphedCallable(lambda x, w: (x @ w,), lending=Lending(lent, loans), recorder=recorder)
        for recorder, lent in zip(recorders, ([0], [0], []), strict=True)
    ]
    with torch.no_grad():
        for call in range(5):
            x = wanted = torch.randn(3, 4)
            for step in steps:
                (x,) = step(x, w)
                wanted = wanted @ w
            torch.testing.assert_close(x, wanted)
            assert [r.captured for r in recorders] == [min(call, 1)] * 3
            x = None
        assert [r.replayed for r in recorders] == [4] * 3
    assert "copied" not in steps[1].explain() + steps[2].explain()


def test_a_graph_does_not_write_to_what_a_later_one_lends() -> None:
    """It may lie where the earlier one has its intermediates: that one is captured again."""
    loans, recorders = Loans(), [Recorder(holds=False) for _ in range(2)]
    first, later = (
        GraphedCallable(lambda x: (x + 1,), lending=Lending([0], loans), recorder=recorder)
        for recorder in recorders
    )
    x = torch.ones(4)
    with torch.no_grad():
        for step in (first, later):
            for _ in range(3):
                step(x)
        assert [r.captured for r in recorders] == [1, 1]
        held = later(x)
        assert torch.equal(*first(x), x + 1) and recorders[0].captured == 2, "it is the later now"
        for _ in range(3):
            assert torch.equal(*first(x), x + 1), "which may be replayed while the other is held"
        assert recorders[0].captured == 2 and recorders[0].replayed == 6
        mine = first(x)
        later(x)
        assert recorders[1].replayed == 3, "its own is held"
        del held
        assert torch.equal(*later(x), x + 1) and recorders[1].captured == 2
        assert torch.equal(*mine, x + 1)
    assert "captured again: what a later graph lent was held" in first.explain()


def test_values_that_are_no_tensors_are_compared_too() -> None:
    recorder = Recorder()
    graphed = GraphedCallable(lambda n, x, by: x[:n] * by, recorder=recorder)
    x = torch.ones(4)
    calls: list[tuple[int, float]] = [(2, 1.5), (3, 1.5), (2, 2.0)]
    with torch.no_grad():
        for n, by in calls * 3:
            assert torch.equal(graphed(n, x, by), x[:n] * by)
        assert len(graphed._known) == recorder.captured == 3
        assert torch.equal(graphed(True, x, 2.0), x[:1] * 2), "True is not 1"
        assert recorder.captured == 3 and recorder.replayed == 6


def test_what_a_forward_pass_keeps_is_lent_to_the_backward_pass() -> None:
    """Nothing of it is copied on the way, and it holds while anybody has it."""
    ahead, back, loans = Recorder(), Recorder(holds=False), Loans()
    forward = GraphedCallable(
        lambda x, w: (x @ w, x * 2, w), lending=Lending(range(1, 9), loans), recorder=ahead
    )
    backward = GraphedCallable(
        lambda kept, g, w: (kept.t() @ g, g @ w), lending=Lending(loans=loans), recorder=back
    )
    w = torch.randn(4, 4)
    with torch.no_grad():
        for _ in range(6):
            x, g = torch.randn(3, 4), torch.randn(3, 4)
            y, kept, same = forward(x, w)
            assert same is w and torch.equal(y, x @ w)
            grads = backward(kept, g, w)
            assert torch.equal(grads[0], 2 * x.t() @ g) and torch.equal(grads[1], g @ w)
            kept_at = kept.data_ptr()
            del kept
        assert (ahead.captured, ahead.replayed) == (1, 5)
        assert (back.captured, back.replayed) == (1, 5)
        assert "in place: argument 0, argument 2\n" in backward.explain()
        x = torch.randn(3, 4)
        part = forward(x, w)[1][1:]
        other = forward(torch.randn(3, 4), w)
        assert torch.equal(part, 2 * x[1:]) and ahead.replayed == 6
        assert torch.equal(backward(other[1], g, w)[0], other[1].t() @ g)
        del part
        forward(x, w)
        assert ahead.replayed == 7
    assert "1 calls without a graph: results that an earlier call lent" in forward.explain()
    assert kept_at in loans
    forward.clear()
    assert kept_at not in loans
    with pytest.raises(GraphError, match="the pool of the loans"):
        GraphedCallable(torch.sin, pool=GraphPool(), lending=Lending((0,)))
