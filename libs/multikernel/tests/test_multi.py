from __future__ import annotations

import subprocess
import sys
import threading
import timeit
import warnings
from pathlib import Path

import pytest

from multikernel import (
    AllVariantsFailed,
    ChoiceTable,
    InvalidChoices,
    InvalidHint,
    InvalidSizes,
    MultiKernel,
    UnknownVariant,
    VariantFailed,
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


def test_errors_are_raised_by_default():
    kernel = MultiKernel({1: broken, 8: named("b")}, key=lambda n: n)
    with pytest.raises(RuntimeError, match="shared memory"):
        kernel(1)


def test_on_error_next_warns_and_remembers():
    kernel = MultiKernel({1: broken, 8: named("b")}, key=lambda n: n, on_error="next", name="mm")
    with pytest.warns(VariantFailed, match=r"mm: variant 1 failed.*shared memory.*running 8"):
        assert kernel(1)[0] == "b"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel(1)[0] == "b"


def test_on_error_next_raises_if_all_fail():
    kernel = MultiKernel({1: broken, None: broken}, key=lambda n: n, on_error="next")
    with pytest.warns(VariantFailed), pytest.raises(AllVariantsFailed) as caught:
        kernel(1)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_many_threads():
    kernel = MultiKernel({1: named("a"), 64: named("b")}, key=lambda n: n, memory=7)
    wrong = []

    def work(start):
        for n in range(start, start + 3000):
            size = n % 40
            if kernel(size)[0] != ("a" if size <= 8 else "b"):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(i * 11,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: MultiKernel({}), InvalidHint),
        (lambda: MultiKernel({0: broken}), InvalidHint),
        (lambda: MultiKernel({1: broken}, "best"), ValueError),
        (lambda: MultiKernel({1: broken}, on_error="ignore"), ValueError),
        (lambda: MultiKernel({1: broken}, memory=0), ValueError),
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


def test_dispatch_costs_about_a_microsecond(record_testsuite_property):
    def run(x):
        return None

    kernel = MultiKernel({(1, 768): run, (64, 768): run}, key=lambda x: x.shape)
    array = Array(3, 768)
    kernel(array)
    number = 20000
    direct = min(timeit.repeat(lambda: run(array), number=number, repeat=5)) / number
    dispatched = min(timeit.repeat(lambda: kernel(array), number=number, repeat=5)) / number
    record_testsuite_property("dispatch_ns", round((dispatched - direct) * 1e9))
    assert dispatched - direct < 5e-6  # a wide margin for a busy machine


def test_readme_example_runs():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    for block in text.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "README.md", "exec"), {})
