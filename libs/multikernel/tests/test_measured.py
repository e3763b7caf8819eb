"""`select="measured"`: choices by a synthetic cost, so that brute force knows the best."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multikernel import (
    AllVariantsFailed,
    InvalidSizes,
    InvalidTime,
    Measurement,
    MultiKernel,
    TableStore,
    VariantFailed,
    follow,
    host_timer,
    sample_hints,
)


class Model:
    """Variants that return their name; a timer that knows what each would cost."""

    def __init__(self, costs, **limits):
        self.costs = costs  # name -> function of the sizes
        self.timed = []
        self.limits = {"timer": self.timer, **limits}

    def variant(self, name):
        return lambda *sizes: (name, sizes)

    def timer(self, call):
        name, sizes = call()
        self.timed.append((name, sizes))
        return self.costs[name](*sizes)

    def kernel(self, **options):
        return MultiKernel(
            {name: self.variant(name) for name in self.costs},
            "measured",
            key=lambda *sizes: sizes,
            measurement=Measurement(**self.limits),
            **options,
        )


def lines(draw, rank):
    """Times `base + sum(rate * size)`, whose best variant changes with the sizes."""
    costs = {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        base = draw(st.integers(1, 2000))
        rates = [draw(st.integers(1, 200)) for _ in range(rank)]
        costs[name] = lambda *s, base=base, rates=rates: (
            base + sum(r * max(n, 1) for r, n in zip(rates, s, strict=True))
        )
    return costs


@st.composite
def traffic(draw):
    rank = draw(st.integers(1, 2))
    size = st.integers(0, 1000)
    return lines(draw, rank), draw(st.lists(st.tuples(*[size] * rank), min_size=1, max_size=40))


@settings(max_examples=20, deadline=None)
@given(traffic(), st.sampled_from([1, 3, 256]), st.integers(2, 30))
def test_stream_of_sizes_against_brute_force(case, buckets, memory):
    costs, stream = case
    model = Model(costs, buckets=buckets)
    kernel = model.kernel(memory=memory)
    answers = {}
    for sizes in stream:
        name = kernel(*sizes)[0]
        # The same as ever before, whatever was learnt meanwhile.
        assert answers.setdefault(sizes, name) == name
        assert kernel.remembered <= memory and len(kernel.table.cells) <= buckets
    chain, table = kernel.chain(), kernel.table
    for sizes, name in answers.items():
        assert kernel(*sizes)[0] == kernel.lookup_choice(sizes) == name
        assert kernel.names[follow(chain, sizes)] == name
    for decision in table.cells.values():
        if decision.seconds:  # measured: within 3 % of the best that brute force finds
            best = min(cost(*decision.sizes) for cost in costs.values())
            assert costs[decision.variant](*decision.sizes) <= 1.03 * best
    assert len({(n, s) for n, s in model.timed}) <= buckets * len(costs)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_loss_over_all_sizes_is_bounded(data):
    """Every size from 1 to 600 in any order. A cell is a fifth wide above, so within it two
    lines that agree to 3 % at one size part by a quarter at most; a choice taken from measured
    sizes on both sides holds between them, since `f <= 1.03 g` at both ends of a line holds on
    all of it."""
    costs = lines(data.draw, 1)
    sizes = data.draw(st.permutations(range(1, 601)))
    kernel = Model(costs, seconds=60.0).kernel()
    for size in sizes:
        kernel(size)
    for size in sizes:
        best = min(cost(size) for cost in costs.values())
        assert costs[kernel.lookup_choice(size)](size) <= 1.03 * 1.25 * best


def test_cells_merge_where_one_variant_is_within_three_percent():
    model = Model({"a": lambda s: 100, "b": lambda s: 102 if s < 64 else 98.5})
    kernel = model.kernel()
    assert [kernel(s)[0] for s in (2, 1000, 30, 200)] == ["a"] * 4
    assert [b.text(["s0"]) for b in kernel.chain()] == [""]
    model = Model({"a": lambda s: 100, "b": lambda s: 102 if s < 64 else 90})
    kernel = model.kernel()
    assert [kernel(s)[0] for s in (2, 1000, 30, 200)] == ["a", "b", "a", "b"]
    assert [b.text(["s0"]) for b in kernel.chain()] == ["s0 <= 79", ""]


def test_sizes_between_measured_ones_that_agree_are_not_measured():
    model = Model({"a": lambda s: s, "b": lambda s: 2 * s})
    kernel = model.kernel()
    for size in (64, 100, 70, 80, 90):
        assert kernel(size)[0] == "a"
    assert {s for _, (s,) in model.timed} == {64, 100}
    assert sum(bool(d.seconds) for d in kernel.table.cells.values()) == 2


def test_a_size_seen_again_is_not_measured_again():
    model = Model({"a": lambda s: s, "b": lambda s: 2 * s})
    kernel = model.kernel()
    kernel(7)
    before = len(model.timed)
    for _ in range(3):
        kernel(7)
    assert len(model.timed) == before == 2


def test_time_budget():
    def slow(call):
        threading.Event().wait(0.02)
        return 1.0

    model = Model({"a": lambda s: 1, "b": lambda s: 1}, timer=slow, seconds=0.05)
    kernel = model.kernel()
    for exponent in range(20):
        kernel(2**exponent)
    measured = [d for d in kernel.table.cells.values() if d.seconds]
    assert 1 <= len(measured) <= 2
    assert len(kernel.table.cells) == 20  # the others are guesses that stay


def test_candidates_are_bounded():
    costs = {str(2**i): lambda s: 1.0 for i in range(10)}
    model = Model(costs, candidates=3)
    kernel = MultiKernel(
        {int(name): model.variant(name) for name in costs},
        "measured",
        key=lambda s: s,
        measurement=Measurement(**model.limits),
    )
    kernel(64)
    assert sorted(int(n) for n, _ in model.timed) == [32, 64, 128]


def test_hints_decide_until_something_is_measured():
    kernel = MultiKernel({1: lambda s: "a", 64: lambda s: "b"}, "measured", key=lambda s: s)
    assert kernel.lookup_choice(2) == "1" and kernel.lookup_choice(50) == "64"
    assert [b.text(["s0"]) for b in kernel.chain()] == ["s0 <= 8", ""]
    assert Model({"a": None, "b": None}).kernel().lookup_choice(5) == "a"


def test_default_is_a_candidate_and_runs_where_sizes_are_unknown():
    kernel = MultiKernel(
        {8: lambda s: "8", None: lambda s: "default"},
        "measured",
        key=lambda s: s,
        measurement=Measurement(timer=lambda call: {"8": 2.0, "default": 1.0}[call()]),
    )
    assert kernel(8) == "default" and kernel(None) == "default"
    assert len(kernel.table.cells) == 1


def test_recorded_choices_go_first_and_are_not_measured():
    model = Model({"a": lambda s: 1, "b": lambda s: 2})
    kernel = model.kernel()
    kernel.record_choice(5, "b")
    assert kernel(5)[0] == "b" and not model.timed
    assert kernel(6)[0] == "a" and kernel.lookup_choice(6) == "a"
    assert [(b.text(["n"]), kernel.names[b.variant]) for b in kernel.chain()] == [
        ("n <= 5 and 5 <= n", "b"),
        ("", "a"),
    ]


def test_explore_ahead_of_time():
    model = Model({"a": lambda m, n: 100 + m, "b": lambda m, n: 2 * m, "c": lambda m, n: 1e9})
    kernel = model.kernel()
    hints = sample_hints([(1, 4096), (64, 4096)], 40)
    table = kernel.explore(hints, lambda m, n: (m, n))
    for m, n in hints:
        decided = table.lookup((m, n))
        assert model.costs[decided](m, n) <= 1.03 * 1.25 * min(100 + m, 2 * m)
    assert table is kernel.table and "c" not in {d.variant for d in table.cells.values()}
    assert "if s0 <=" in table.explain()


def test_timing_runs_on_copies_if_asked():
    def grow(x):
        x.append(0)
        return x

    kernel = MultiKernel(
        {"a": grow, "b": grow}, "measured", key=len, measurement=Measurement(copy=list)
    )
    x = [1, 2]
    assert kernel(x) is x and x == [1, 2, 0]


def test_when_says_not_now():
    open_ = [False]
    model = Model({"a": lambda s: 2, "b": lambda s: 1}, when=lambda: open_[0])
    kernel = model.kernel()
    assert kernel(5)[0] == "a" and not model.timed and kernel.remembered == 0
    open_[0] = True
    assert kernel(5)[0] == "b" and kernel.remembered == 1


def test_a_variant_that_raises_while_measured():
    def broken(s):
        raise RuntimeError("no shared memory")

    kernel = MultiKernel(
        {"a": broken, "b": lambda s: "b", "c": lambda s: "c"},
        "measured",
        key=lambda s: s,
        measurement=Measurement(timer=lambda call: {"b": 1.0, "c": 2.0}[call()]),
    )
    with pytest.warns(VariantFailed, match="variant a"):
        assert kernel(5) == "b"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel(500) == "b"
    assert list(kernel.dropped) == ["a"] and kernel.order(5) == ["b", "c", "a"]


def test_a_variant_that_raises_later_leaves_the_table():
    down = set()

    def variant(name):
        def run(s):
            if name in down:
                raise RuntimeError(name)
            return name

        return run

    costs = {"a": 1.0, "b": 3.0, "c": 2.0}
    kernel = MultiKernel(
        {name: variant(name) for name in costs},
        "measured",
        key=lambda s: s,
        measurement=Measurement(timer=lambda call: costs[call()]),
    )
    assert [kernel(5), kernel(500)] == ["a", "a"]
    down.add("a")
    with pytest.warns(VariantFailed):
        assert kernel(500) == "c"  # the next best by its times
    assert kernel(5) == kernel.lookup_choice(5) == kernel.names[kernel.chain()[-1].variant] == "c"


def test_arguments_are_to_blame_where_all_fail():
    def strict(s):
        if s == 13:
            raise ValueError("thirteen")
        return s

    kernel = MultiKernel({"a": strict, "b": lambda s: strict(s)}, "measured", key=lambda s: s)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AllVariantsFailed, match="thirteen"):
            kernel(13)
    assert kernel.dropped == {} and not kernel.table.cells
    assert kernel(12) == 12


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timer_that_gives_no_time_is_named(time):
    kernel = Model({"a": None}, timer=lambda call: time).kernel()
    with pytest.raises(InvalidTime, match="variant a"):
        kernel(5)
    with pytest.raises(ZeroDivisionError):
        Model({"a": None}, timer=lambda call: 1 / 0).kernel()(5)


def test_another_number_of_sizes_is_named():
    kernel = Model({"a": lambda *s: 1, "b": lambda *s: 2}).kernel()
    kernel(5)
    with pytest.raises(InvalidSizes):
        kernel(5, 6)


def test_host_timer():
    wait = threading.Event()
    calls = []

    def call():
        calls.append(0)
        wait.wait(0.002)

    assert 0.002 <= host_timer(call) < 0.1 and len(calls) <= 6
    assert host_timer(lambda: None) > 0


def test_many_threads(tmp_path):
    """Threads that meet new sizes at once, with little memory and a store: one answer a size."""
    model = Model({"a": lambda s: 50 + s, "b": lambda s: 3 * s, "c": lambda s: 400})
    kernel = model.kernel(memory=6, store=TableStore(tmp_path))
    answers = [{} for _ in range(6)]

    def work(seen, step):
        for i in range(600):
            size = (i * step) % 211 + 1
            name = kernel(size)[0]
            if seen.setdefault(size, name) != name:
                seen["wrong"] = (size, name)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, answers, (1, 3, 7, 11, 13, 17)))  # raises what a thread raised
    merged = {}
    for seen in answers:
        assert "wrong" not in seen
        for size, name in seen.items():
            assert merged.setdefault(size, name) == name
    assert kernel.remembered <= 6 + 6


def test_threads_that_meet_a_broken_variant_report_it_once():
    both = threading.Barrier(2)

    def broken(s):
        both.wait(20)
        raise RuntimeError("no shared memory")

    kernel = MultiKernel({1: broken, 64: lambda s: "b"}, key=lambda s: s)
    with pytest.warns(VariantFailed) as caught, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(kernel, [1, 2])) == ["b", "b"]
    assert len(caught) == 1 and list(kernel.dropped) == ["1"]
