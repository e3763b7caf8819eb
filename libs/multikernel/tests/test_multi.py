from __future__ import annotations

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multikernel import (
    AllVariantsFailed,
    ChoiceTable,
    InvalidChoices,
    InvalidHint,
    InvalidOption,
    InvalidSizes,
    Measurement,
    MultiKernel,
    NoChain,
    UnknownVariant,
    VariantFailed,
    follow,
    shape_of_first,
    sizes_of,
)


class Array:
    def __init__(self, *shape):
        self.shape = shape


def named(tag):
    return lambda *args, **kwargs: (tag, args, kwargs)


def test_picks_by_shape_of_first_array():
    kernel = MultiKernel({(1, 768): named("small"), (64, 768): named("large")})
    assert kernel(Array(2, 768))[0] == "small"
    assert kernel(3, Array(100, 768))[0] == "large"
    assert kernel(Array(8, 768))[0] == "small"  # a tie
    assert kernel(Array(0, 768))[0] == "small"


def test_default_runs_where_sizes_are_unknown():
    kernel = MultiKernel({8: named("eight"), None: named("default")}, key=lambda n: n)
    assert kernel(None)[0] == "default"
    assert kernel(1)[0] == "eight"
    with pytest.raises(InvalidSizes, match="no default"):
        MultiKernel({8: named("eight")}, key=lambda n: None)(1)


def test_arguments_per_variant_and_keywords():
    kernel = MultiKernel(
        {1: named("a"), 8: named("b"), 64: named("c")},
        key=lambda n, *rest: n,
        arguments={1: slice(1, None), 8: (2, 0)},
    )
    assert kernel(1, "x", "y", k=1) == ("a", ("x", "y"), {"k": 1})
    assert kernel(8, "x", "y") == ("b", ("y", 8), {})
    assert kernel(64, "x", "y") == ("c", (64, "x", "y"), {})


def test_select_function_is_asked_once_per_sizes():
    asked = []

    def select(sizes, hints):
        asked.append(sizes)
        return len(hints) - 1

    kernel = MultiKernel({1: named("a"), 8: named("b")}, select, key=lambda n: n)
    assert [kernel(1)[0], kernel(1)[0], kernel(2)[0]] == ["b", "b", "b"]
    assert asked == [(1,), (2,)]


def test_memory_is_bounded():
    kernel = MultiKernel({1: named("a"), 8: named("b")}, key=lambda n: n, memory=10)
    for n in range(1000):
        assert kernel(n)[0] == ("a" if n <= 2 else "b")
        assert kernel.remembered <= 10


def test_what_is_used_is_not_forgotten():
    asked = []

    def select(sizes, hints):
        asked.append(sizes)
        return 0

    kernel = MultiKernel({1: named("a")}, select, key=lambda n: n, memory=20)
    for n in range(1000):
        kernel(n)
        kernel(5)  # stays while a thousand others pass
    assert asked.count((5,)) == 1


def test_recorded_choice_goes_first_and_survives():
    table = ChoiceTable()
    kernel = MultiKernel({1: named("a"), 64: named("b")}, key=lambda n: n, name="k", choices=table)
    assert kernel(2)[0] == "a"
    kernel.record_choice(2, 64)
    assert kernel(2)[0] == "b" and kernel.lookup_choice(2) == "64"
    assert kernel.lookup_choice(3) == "1"
    again = ChoiceTable.loads(table.dumps())
    assert again.choices("k") == {(2,): "64"} and again.choices("other") == {}
    other = MultiKernel({1: named("a"), 64: named("b")}, key=lambda n: n, name="k", choices=again)
    assert other(2)[0] == "b"
    with pytest.raises(UnknownVariant):
        kernel.record_choice(2, 3)


def test_tune_records_the_fastest():
    times = {"a": 2.0, "b": 1.0}
    kernel = MultiKernel({1: named("a"), 64: named("b")}, key=lambda n: n)
    assert kernel.tune(1, measure=lambda call: times[call()[0]]) == {"1": 2.0, "64": 1.0}
    assert kernel(1)[0] == "b"
    assert set(kernel.tune(5)) == {"1", "64"}


def broken(*args):
    raise RuntimeError("out of shared memory")


def test_a_variant_that_raises_is_dropped_and_reported():
    calls = []

    def failing(*args):
        calls.append(args)
        raise RuntimeError("out of shared memory")

    kernel = MultiKernel({1: failing, 8: named("b")}, key=lambda n: n, name="mm")
    with pytest.warns(VariantFailed, match=r"mm: variant 1 failed.*shared memory") as caught:
        assert kernel(1)[0] == "b"
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [kernel(n)[0] for n in (1, 2, 3)] == ["b"] * 3
    assert len(calls) == 1 and "shared memory" in kernel.dropped["1"]
    assert kernel.lookup_choice(1) == "8" and kernel.order(1) == ["8", "1"]


def test_on_error_raise_lets_it_through():
    kernel = MultiKernel({1: broken, 8: named("b")}, key=lambda n: n, on_error="raise")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shared memory"):
            kernel(1)
    assert kernel.dropped == {}


def test_on_error_may_judge_the_error():
    def judge(variant, error):
        return isinstance(error, RuntimeError)

    def wrong(n):
        raise IndexError(n)

    runs = {1: broken, 8: named("b"), 64: wrong}
    kernel = MultiKernel(runs, key=lambda n: n, on_error=judge)
    with pytest.warns(VariantFailed):
        assert kernel(1)[0] == "b"
    with pytest.raises(IndexError):
        kernel(64)
    assert list(kernel.dropped) == ["1"]


def test_arguments_are_to_blame_where_all_fail():
    def strict(n):
        if n == 13:
            raise ValueError("thirteen")
        return n

    kernel = MultiKernel({1: strict, 64: strict, None: lambda n: strict(n)}, key=lambda n: n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AllVariantsFailed, match="thirteen") as caught:
            kernel(13)
    assert isinstance(caught.value.__cause__, ValueError)
    assert list(caught.value.errors) == ["64", "1", "default"]
    assert kernel.dropped == {} and kernel(12) == 12


def test_a_single_variant_raises_its_own_error():
    with pytest.raises(RuntimeError, match="shared memory"):
        MultiKernel({1: broken}, key=lambda n: n)(1)
    with pytest.raises(RuntimeError, match="shared memory"):
        MultiKernel({1: named("a"), None: broken}, key=lambda n: None)(1)


def test_dropped_variants_are_the_last_resort():
    down = {"a"}

    def sometimes(tag):
        def run(n):
            if tag in down:
                raise RuntimeError(tag)
            return tag

        return run

    kernel = MultiKernel({1: sometimes("a"), 8: sometimes("b")}, key=lambda n: n)
    with pytest.warns(VariantFailed):
        assert kernel(1) == "b"
    down.clear()
    down.add("b")
    with pytest.warns(VariantFailed, match="variant 8"):
        assert kernel(1) == "a"
    assert set(kernel.dropped) == {"1", "8"} and kernel(1) == "a"


SIZE = st.integers(0, 300)
SIZES2 = st.tuples(SIZE, SIZE)


@settings(max_examples=30, deadline=None)
@given(
    hints=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), unique=True, max_size=4),
    default=st.booleans(),
    recorded=st.lists(st.tuples(SIZES2, st.integers(0, 4)), max_size=3),
    dropped=st.lists(st.integers(0, 4), max_size=3),
    asked=st.lists(SIZES2, min_size=1, max_size=30),
    measured=st.booleans(),
)
@example(  # sizes whose recorded variant is dropped are decided by measuring, as others are
    hints=[(1, 1), (47, 35)],
    default=True,
    recorded=[((0, 3), 0)],
    dropped=[0],
    asked=[(0, 3), (0, 2)],
    measured=True,
)
def test_chain_is_what_runs(hints, default, recorded, dropped, asked, measured):
    keys = [*hints, *([None] if default or not hints else [])]
    failing = {keys[i % len(keys)] for i in dropped}
    if failing == set(keys):
        failing = set()

    def variant(key):
        def run(sizes):
            if key in failing:
                raise RuntimeError
            return key

        return run

    ticks = count()

    def timer(call):  # any times will do: what is measured must be what runs and what is printed
        return 1.0 + crc32(f"{call()} {next(ticks) // 5}".encode()) % 7

    kernel = MultiKernel(
        {key: variant(key) for key in keys},
        "measured" if measured else "nearest",
        key=lambda sizes: sizes,
        measurement=Measurement(timer=timer) if measured else None,
    )
    for sizes, i in recorded:
        kernel.record_choice(sizes, keys[i % len(keys)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sizes in (*hints, *asked, *(s for s, _ in recorded)):
            kernel(sizes)
    chain = kernel.chain()
    for sizes in (*asked, *(s for s, _ in recorded), *hints):
        ran = kernel(sizes)
        assert kernel.names[follow(chain, sizes)] == kernel.lookup_choice(sizes)
        assert kernel.lookup_choice(sizes) == ("default" if ran is None else f"{ran[0]}x{ran[1]}")


class Integer:
    """Like numpy's integers: no int, but one by `__index__`."""

    def __index__(self):
        return 40


def test_sizes_are_any_integers():
    kernel = MultiKernel({1: named("a"), 64: named("b")}, key=lambda n: n)
    assert kernel(Integer())[0] == "b" and kernel.lookup_choice(Integer()) == "64"
    with pytest.raises(InvalidSizes, match="hints"):
        kernel(2.5)


def test_key_by_places():
    kernel = MultiKernel({(1, 8): named("a"), (64, 8): named("b")}, key=[(0, 0), (1, 1)])
    assert kernel(Array(2, 9), Array(5, 8))[0] == "a"
    assert kernel(Array(100, 9), Array(5, 8))[0] == "b"
    assert sizes_of((0, 1))(Array(4, 5)) == 5
    assert sizes_of((1, 0), (0, -1), (1, 1))(Array(4, 5), Array(6, 7)) == (6, 5, 7)
    assert shape_of_first(3, Array(4, 5)) == (4, 5) and shape_of_first() is None


def test_many_threads():
    kernel = MultiKernel({1: named("a"), 64: named("b")}, key=lambda n: n, memory=7)
    wrong = []

    def work(start):
        for n in range(start, start + 3000):
            size = n % 40
            if kernel(size)[0] != ("a" if size <= 8 else "b"):
                wrong.append(size)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(0, 88, 11)))  # raises what a thread raised
    assert not wrong


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: MultiKernel({}), InvalidHint),
        (lambda: MultiKernel({0: broken}), InvalidHint),
        (lambda: MultiKernel({1: broken}, "best"), InvalidOption),
        (lambda: MultiKernel({1: broken}, on_error="ignore"), InvalidOption),
        (lambda: MultiKernel({1: broken}, memory=1), InvalidOption),
        (lambda: MultiKernel({1: broken}, measurement=Measurement()), InvalidOption),
        (lambda: MultiKernel({1: broken}, key=[]), InvalidOption),
        (lambda: MultiKernel({1: broken}, key=[(-1, 0)]), InvalidOption),
        (lambda: MultiKernel({1: broken}, key=[(0, "0")]), InvalidOption),
        (lambda: MultiKernel({1: broken}).explore([1], lambda n: (n,)), InvalidOption),
        (lambda: MultiKernel({"a": broken}), InvalidHint),
        (lambda: MultiKernel({8: broken, "8": broken}, "measured"), InvalidHint),
        (lambda: MultiKernel({1: broken}, lambda s, h: 0).chain(), NoChain),
        (lambda: Measurement(resolution=0), InvalidOption),
        (lambda: Measurement(tolerance=-1), InvalidOption),
        (lambda: MultiKernel({1: broken}, arguments={2: slice(1)}), UnknownVariant),
        (lambda: MultiKernel({1: broken})(Array(2, 3)), InvalidSizes),
        (lambda: MultiKernel({1: broken}, key=lambda n: [n])(1), InvalidSizes),
        (lambda: ChoiceTable.loads("{}"), InvalidChoices),
        (lambda: ChoiceTable.loads('{"version": 2}'), InvalidChoices),
    ],
)
def test_mistakes_are_named(make, error):
    with pytest.raises(error):
        make()


def test_imports_nothing_but_the_standard_library():
    code = (
        "import sys, multikernel; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'sympy')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
