"""Two products of one matrix, of which one is multiplied by a function of the other: one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
from compile_cli.cli.measure import relative_error
from wrapper_ir import ExternCall, Launch
from wrapper_ir.analysis import walk

M, N, K = 48, 64, 96


def swiglu(x: Any, w1: Any, w3: Any) -> Any:
    return F.silu(F.linear(x, w1)) * F.linear(x, w3)


def turned(x: Any, w1: Any, w3: Any) -> Any:
    """The other order, and what follows."""
    return (F.linear(x, w3) * F.gelu(F.linear(x, w1), approximate="tanh")).relu() * 0.5


def scaled(x: Any, w1: Any, w3: Any, r: Any) -> Any:
    """What follows reads another tensor."""
    return r + F.linear(x, w3) * F.linear(x, w1).sigmoid()


def kept(x: Any, w1: Any, w3: Any) -> Any:
    """One of the products is a result, too."""
    gate = F.linear(x, w1)
    return F.silu(gate) * F.linear(x, w3), gate


def squared(x: Any, w1: Any, w3: Any) -> Any:
    """The other factor is no product as it is."""
    return F.silu(F.linear(x, w1)) * F.linear(x, w3).exp()


def added(x: Any, w1: Any, w3: Any) -> Any:
    """One product is used twice."""
    up = F.linear(x, w3)
    return F.silu(F.linear(x, w1)) * up + up


def two(x: Any, w1: Any, w3: Any) -> Any:
    """Of two matrices."""
    return F.silu(F.linear(x, w1)) * F.linear(x * 2, w3)


def bf16(*size: int) -> torch.Tensor:
    return torch.randn(size).bfloat16()


def args_of(fn: Callable[..., Any], rows: int = M) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    args = bf16(rows, K), bf16(N, K) * 0.2, bf16(N, K) * 0.2
    return (*args, bf16(rows, N)) if fn is scaled else args


def launches(compiled: Any) -> int:
    ops = list(walk(compiled.graph.program.ops))
    assert not any(isinstance(o, ExternCall) for o in ops)
    return sum(isinstance(o, Launch) for o in ops)


@pytest.mark.parametrize("fn", [swiglu, turned, scaled])
@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_pairs_are_one_launch(options: dict[str, Any], fn: Callable[..., Any], emit: str) -> None:
    args = args_of(fn)
    compiled = compile_cli.compile(
        fn, args, options={**options, "gemm": "template", "emit": emit}
    )  # fmt: skip
    assert launches(compiled) == 1
    assert relative_error(compiled(*args).double(), fn(*(x.double() for x in args))) < 8e-3


@pytest.mark.parametrize("fn", [kept, squared, added, two])
def test_others_are_not(options: dict[str, Any], fn: Callable[..., Any]) -> None:
    args = args_of(fn)
    compiled = compile_cli.compile(fn, args, options={**options, "gemm": "template"})
    assert launches(compiled) > 1
    got, expected = compiled(*args), fn(*(x.double() for x in args))
    for one, other in zip(got, expected, strict=True) if fn is kept else [(got, expected)]:
        assert relative_error(one.double(), other) < 8e-3


def test_rungs_differ(options: dict[str, Any], as_on_gpu: Any) -> None:
    """One row by a way for each product, more by a template of both."""

    def timer(runs: Any, info: Any) -> list[float]:
        times.append(None)
        both = len(times) % 3 == 0  # each rung: one product, the other, both
        template = 2.0 if len(times) == 3 else 0.1 if both else 0.9
        return [1.0, *[template] * (len(runs) - 1)]

    times: list[None] = []
    choices = as_on_gpu(timer)
    args = args_of(swiglu)
    compiled = compile_cli.compile(swiglu, args, dynamic={0: {0}}, options=options)
    assert [c.problem.gate is not None for c in choices] == [False, False, True] * 3
    (decided,) = compiled.graph.decided.values()
    assert "both products" not in str(decided[0]) and "both products" in str(decided[-1])
    for rows in (1, 7, 200):
        args = args_of(swiglu, rows)
        assert relative_error(compiled(*args).double(), swiglu(*(x.double() for x in args))) < 1e-2


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_way_is_taken(options: dict[str, Any], as_on_gpu: Any, faster: bool) -> None:
    """Both products by one template where that is faster than the best way for each."""

    def timer(runs: Any, info: Any) -> list[float]:
        return [1.0, *[0.1 if faster else 2.0] * (len(runs) - 1)]

    choices = as_on_gpu(timer)
    args = args_of(swiglu)
    compiled = compile_cli.compile(swiglu, args, options=options)
    failures = [why for choice in choices for _, why in choice.failures]
    assert not [why for why in failures if "NotInterpretable" not in why]
    assert [choice.problem.gate is not None for choice in choices].count(True) == 1
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(o, ExternCall) for o in ops) == (0 if faster else 2)
    assert relative_error(compiled(*args).double(), swiglu(*(x.double() for x in args))) < 8e-3


def test_layers_that_are_alike_are_decided_once(options: dict[str, Any], as_on_gpu: Any) -> None:
    def layers(x: Any, *w: Any) -> Any:
        for one, three, back in zip(w[::3], w[1::3], w[2::3], strict=True):
            x = F.linear(swiglu(x, one, three), back)
        return x

    choices = as_on_gpu(lambda runs, info: [1.0, *[0.1] * (len(runs) - 1)])
    torch.manual_seed(0)
    args = (bf16(M, K), *(bf16(*s) * 0.2 for _ in range(3) for s in ((N, K), (N, K), (K, N))))
    compiled = compile_cli.compile(layers, args, options=options)
    assert [choice.problem.gate is not None for choice in choices].count(True) == 1
    assert sum(isinstance(o, Launch) for o in walk(compiled.graph.program.ops)) <= 9
    assert relative_error(compiled(*args).double(), layers(*(x.double() for x in args))) < 2e-2


def side_by_side(x: Any, w: Any) -> Any:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * up


def up_first(x: Any, w: Any) -> Any:
    up, gate = F.linear(x, w).chunk(2, -1)
    return (F.gelu(gate) * up).relu()


@pytest.mark.parametrize(("fn", "rows"), [(side_by_side, 0), (up_first, None)])
def test_halves_of_one_product(
    options: dict[str, Any], fn: Callable[..., Any], rows: int | None
) -> None:
    torch.manual_seed(0)
    w = bf16(2 * N, K) * 0.2
    compiled = compile_cli.compile(
        fn, (bf16(M, K), w), dynamic=None if rows is None else {0: {rows}},
        options={**options, "gemm": "template"},
    )  # fmt: skip
    assert launches(compiled) == 1
    for count in (M,) if rows is None else (1, 7, 200):
        x = bf16(count, K)
        expected = fn(x.double(), w.double())
        assert relative_error(compiled(x, w).double(), expected) < 8e-3


@pytest.mark.parametrize("faster", [True, False])
def test_halves_where_they_are_faster(
    options: dict[str, Any], as_on_gpu: Any, faster: bool
) -> None:
    choices = as_on_gpu(lambda runs, info: [1.0, *[0.1 if faster else 2.0] * (len(runs) - 1)])
    torch.manual_seed(0)
    x, w = bf16(M, K), bf16(2 * N, K) * 0.2
    compiled = compile_cli.compile(side_by_side, (x, w), options=options)
    failures = [why for choice in choices for _, why in choice.failures]
    assert not [why for why in failures if "NotInterpretable" not in why]
    assert [choice.problem.gate is not None for choice in choices] == [False, True]
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(o, ExternCall) for o in ops) == (0 if faster else 1)
    expected = side_by_side(x.double(), w.double())
    assert relative_error(compiled(x, w).double(), expected) < 8e-3


@pytest.mark.parametrize("rows", [32, 64])
def test_halves_of_many_rows_are_no_prologue(options: dict[str, Any], rows: int) -> None:
    """Of the product that follows: a template of both runs them. Few rows are faster so."""

    def mlp(x: Any, w: Any, back: Any) -> Any:
        return F.linear(side_by_side(x, w), back)

    torch.manual_seed(0)
    args = bf16(2, rows // 2, K), bf16(2 * N, K) * 0.2, bf16(K, N) * 0.2
    compiled = compile_cli.compile(mlp, args, options={**options, "gemm": "template"})
    runs = [str(d) for ds in compiled.graph.decided.values() for d in ds]
    assert "with prologue" in runs[1] if rows < 64 else runs[0].endswith("of both products")
    assert relative_error(compiled(*args).double(), mlp(*(x.double() for x in args))) < 1e-2
