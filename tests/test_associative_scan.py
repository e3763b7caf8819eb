"""`associative_scan` of a function of the user's: kernels, of known functions and of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch.fx.experimental.proxy_tensor import make_fx

from compile_cli.options import Options
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record


def recurrence(a, b, c, d):
    """Of h = a*h + b, as pairs."""
    return a * c, b * c + d


def maximum(a, b):
    return [torch.maximum(a, b)]


def total(a, b):
    return [a + b]


def within(a, b, w):
    return [torch.minimum(a * w, b * w) / w]


def apart(a, b):
    return [a + b + 1]


def serial(function, xs, rest):
    """Point by point."""
    rows = [tuple(x[0] for x in xs)]
    for i in range(1, len(xs[0])):
        rows.append(tuple(function(*rows[-1], *(x[i] for x in xs), *rest)))
    return [torch.stack(ys) for ys in zip(*rows, strict=True)]


# The user's operator takes tensors on a GPU alone: this is what torch makes of it there.
def graph(function, xs, rest, mode="fake"):
    def run(*args: Any) -> Any:
        given, more = [x + 0 for x in args[: len(xs)]], args[len(xs) :]
        return [y * 2 for y in associative_scan_op(function, given, more)]

    return make_fx(run, tracing_mode=mode)(*xs, *rest)


@pytest.mark.parametrize(
    ("function", "count", "size"),
    [(recurrence, 2, 12), (recurrence, 2, 1), (maximum, 1, 7), (total, 1, 12), (apart, 1, 7)],
)
def test_functions(options, function, count, size):
    torch.manual_seed(0)
    xs = [torch.rand(5, size).t() for _ in range(count)]
    made = compile_graph(graph(function, xs, ()), Options.from_mapping(options), Record())
    assert not made.fallbacks
    got = made.run(*xs)
    for y, want in zip(got, serial(function, xs, ()), strict=True):
        torch.testing.assert_close(y, want * 2)
        assert size == 1 or y.stride() == xs[0].stride()


def test_what_is_taken_beside_and_sizes_that_are_free(options):
    x, w = torch.rand(6, 4), torch.rand(4) + 1
    made = compile_graph(graph(within, [x], (w,)), Options.from_mapping(options), Record())
    torch.testing.assert_close(made.run(x, w)[0], serial(within, [x], (w,))[0] * 2)
    assert not made.fallbacks
    for function, left in ((total, 0), (apart, 1)):
        gm = graph(function, [x], (), "symbolic")
        made = compile_graph(gm, Options.from_mapping(options), Record())
        assert len(made.fallbacks) == left, "a size that is not known says not how many steps"
        sizes = [p.name for p in made.program.params if p.type is None]
        for n in (6, 9):
            y = torch.rand(n, 4)
            given = [y] if not sizes else [*y.shape[: len(sizes)], y]
            torch.testing.assert_close(made.run(*given)[0], serial(function, [y], ())[0] * 2)
