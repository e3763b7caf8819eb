"""Kernels and graphs as text, and back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loop_ir import (
    OPS,
    REDUCTIONS,
    Axis,
    Buffer,
    Compute,
    Const,
    CopyBack,
    Device,
    DType,
    Extern,
    Graph,
    GraphInput,
    Index,
    Indirect,
    Kernel,
    Load,
    Matmul,
    Operand,
    Origin,
    ParseError,
    Phase,
    Reduce,
    Ref,
    Store,
    Symbol,
    TensorRef,
    TensorType,
    TorchEnum,
    fuse,
    parse_graph,
    parse_kernel,
    print_graph,
    print_kernel,
)
from loop_ir.errors import Unprintable
from symexpr import FloorDiv, Mod, ModularIndexing, symbol

GOLDEN = Path(__file__).parent / "golden"

names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda n: n not in ("none", "true", "false", "not", "and", "or")
)
symbols = st.sampled_from([symbol(n) for n in ("i0", "i1", "r0", "s0", "t0")])
dtypes = st.sampled_from([d for d in DType if not d.is_complex])
devices = st.sampled_from([Device("cpu"), Device("cuda", 0), Device("cuda", 3)])


def _combine(children):
    positive = st.integers(2, 9)
    return st.one_of(
        st.builds(lambda a, b: a + b, children, children),
        st.builds(lambda a, b: a * b, children, children),
        st.builds(FloorDiv, children, positive),
        st.builds(Mod, children, positive),
        st.builds(ModularIndexing, children, positive, positive),
    )


exprs = st.recursive(
    st.one_of(symbols, st.integers(-4, 4096).map(sympy.Integer)), _combine, max_leaves=5
)
literals = st.one_of(
    st.integers(), st.booleans(), st.floats(allow_nan=False), st.just(math.inf), st.just(-math.inf)
)
masks = st.none() | names


@st.composite
def types(draw):
    rank = draw(st.integers(0, 3))
    vector = st.lists(exprs, min_size=rank, max_size=rank).map(tuple)
    offset = draw(st.sampled_from((0, 5)))
    return TensorType(draw(dtypes), draw(vector), draw(vector), draw(devices), offset)


axes = st.builds(Axis, symbols, exprs)
stmts = st.one_of(
    st.builds(Load, names, names, exprs, dtypes, masks, literals),
    st.builds(Index, names, exprs, dtypes),
    st.builds(Const, names, literals, dtypes),
    st.sampled_from(sorted(OPS)).flatmap(
        lambda op: st.builds(
            Compute,
            names,
            st.just(op),
            st.lists(names, min_size=OPS[op], max_size=OPS[op]).map(tuple),
            dtypes,
        )
    ),
    st.builds(Indirect, symbols, names, exprs),
    st.sampled_from(sorted(REDUCTIONS)).flatmap(
        lambda op: st.builds(
            Reduce,
            st.lists(names, min_size=REDUCTIONS[op][1], max_size=REDUCTIONS[op][1]).map(tuple),
            st.just(op),
            st.tuples(names),
            dtypes,
        )
    ),
    st.builds(Store, names, exprs, names, st.sampled_from(("set", "add")), masks),
)
phases = st.builds(
    Phase, st.lists(axes, max_size=2).map(tuple), st.lists(stmts, max_size=4).map(tuple)
)
origins = st.builds(
    Origin,
    st.from_regex(r"[a-z]+\.[a-z_]+(\.[A-Za-z]+)?", fullmatch=True),
    st.sampled_from(("", "encoder.py:41", "a b/c d.py:1", "at x.py:2")),
)
program_symbols = st.builds(
    Symbol, names, st.none() | st.integers(-3, 5), st.none() | st.integers(5, 99),
    st.none() | st.integers(0, 9),
)  # fmt: skip
buffers = st.builds(Buffer, names, types().map(lambda t: replace(t, offset=0)), st.booleans())


def tuples(strategy, size=3):
    return st.lists(strategy, max_size=size).map(tuple)


kernels = st.builds(
    Kernel, names, tuples(buffers), tuples(axes), tuples(phases), tuples(program_symbols),
    tuples(origins),
)  # fmt: skip
refs = st.builds(TensorRef, names, types(), st.booleans(), st.booleans(), st.integers(0, 2))
args = st.recursive(
    st.one_of(
        refs, literals, exprs, st.text(max_size=8), st.none(), dtypes, devices,
        st.just(TorchEnum("memory_format", "contiguous_format")), st.builds(Ref, names),
        st.just(complex(1.5, -2.0)), st.just(sympy.Gt(symbol("s0"), 3)),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)  # fmt: skip
externs = st.builds(
    Extern,
    st.sampled_from(("aten.mm.default", "mylib::op.out")),
    tuples(args),
    tuples(st.tuples(names, args), 2),
    tuples(st.none() | st.tuples(names, types()), 2),
    st.booleans(),
    tuples(names, 2),
    st.booleans(),
    tuples(origins, 2),
)
operands = st.builds(Operand, refs, st.none() | kernels)
matmuls = st.builds(
    Matmul,
    names,
    types(),
    st.tuples(operands, operands),
    st.none() | refs,
    externs,
    st.none() | kernels,
    tuples(origins, 2),
    st.sampled_from((1, 0.125, -2, 1e-30)),
    st.sampled_from((1, 0, 0.5)),
)
nodes = st.one_of(kernels, externs, matmuls, st.builds(CopyBack, refs, refs))
graphs = st.builds(
    Graph,
    names,
    tuples(st.builds(GraphInput, names, st.none() | types())),
    tuples(nodes),
    tuples(args),
    tuples(program_symbols),
    tuples(st.tuples(names, types())),
)
relaxed = settings(
    deadline=None, max_examples=20, suppress_health_check=list(HealthCheck), derandomize=True
)


@relaxed
@given(kernels)
def test_kernel_round_trip(kernel):
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert print_kernel(parse_kernel(text)) == text


@relaxed
@given(graphs)
def test_graph_round_trip(graph):
    text = print_graph(graph)
    assert parse_graph(text) == graph
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize("fused", [False, True])
def test_golden_encoder(fused, encoder):
    graph = encoder(layers=1, symbolic=True, dtype=DType.bf16)
    if fused:
        graph = fuse(graph)
    path = GOLDEN / f"encoder_{'fused' if fused else 'lowered'}.txt"
    assert print_graph(graph) == path.read_text(), f"if the change is wanted, rewrite {path.name}"
    assert parse_graph(path.read_text()) == graph


KERNEL = """\
kernel add(
    x: f32[s0, 8] cuda:0,
    out y: f32[s0, 8] cuda:0,
):
  where s0 in [1, 64] hint 2
  # from aten.add.Tensor at encoder.py:41
  parallel i0 < s0, i1 < 8:
    once:
      v0 = load x[i0*8 + i1] : f32
      v1 = const 1.0         : f32
      v2 = add(v0, v1)       : f32
      store y[i0*8 + i1] = v2
"""


def test_comments_of_the_reader_are_skipped():
    kernel = parse_kernel(KERNEL)
    commented = KERNEL.replace("    once:\n", "    # elementwise\n    once:\n\n")
    assert parse_kernel(commented) == kernel
    assert kernel.origins == (Origin("aten.add.Tensor", "encoder.py:41"),)


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "expected"),
    [
        ("kernel add(", "kernel add", 1, 11, "'('"),
        ("x: f32[s0, 8]", "x: f31[s0, 8]", 2, 8, "an element type"),
        ("x: f32[s0, 8] cuda:0", "x f32", 2, 7, "':'"),
        ("hint 2", "hint two", 5, 28, "an integer"),
        ("i1 < 8:", "i1 = 8:", 7, 21, "`name < extent`"),
        ("    once:", "    twice:", 8, 5, "`over r0 < 2, ...:` or `once:`"),
        ("i0*8 + i1] : f32", "i0*8 + ] : f32", 9, 19, "an integer expression"),
        ("const 1.0 ", "const one ", 10, 18, "a number, true or false"),
        ("add(v0, v1)", "plus(v0, v1)", 11, 12, "an operation of the grammar"),
        ("add(v0, v1)", "add(v0, 1)", 11, 20, "the name of a value"),
        ("v2 = add(v0, v1)       : f32", "v2 = add(v0, v1)", 11, 23, "':'"),
        ("v1 = const 1.0         : f32", "v1 = const 1.0 : float", 10, 24, "an element type"),
    ],
)
def test_errors_say_where(old, new, line, column, expected):
    assert old in KERNEL
    with pytest.raises(ParseError) as caught:
        parse_kernel(KERNEL.replace(old, new, 1))
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert expected in error.expected


@pytest.mark.parametrize(
    ("old", "new"),
    [("const 1.0         : f32", "const 7 : i64"), ("i1] : f32", "i1] if v3 else 7 : f32")],
)
def test_numbers_of_thousands_of_digits_are_refused(old, new):
    with pytest.raises(ParseError, match="an integer of at most 1000 digits"):
        parse_kernel(KERNEL.replace(old, new.replace("7", "7" * 5000), 1))


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("7" * 5000, "an integer of at most 1000 digits"),
        ("[" * 3000 + "]" * 3000, "at most 50 brackets inside of one another"),
        ("(" * 3000 + ")" * 3000, "an integer expression"),
        ("complex(1, x)", "an integer expression"),
        ("complex(1.0, x)", "an integer expression"),
        ("device cuda:" + "7" * 5000, "a device such as cuda:0"),
        ("\u0663", "an integer expression"),  # a digit of another script
    ],
    ids=lambda text: text[:16],
)
def test_arguments_that_are_none(argument, expected):
    text = f"graph g(\n):\n  extern aten.f.default({argument})\n    out y: f32[4] cpu\n  return ()"
    with pytest.raises(ParseError, match=expected):
        parse_graph(text)


def test_text_that_ends_or_goes_on():
    with pytest.raises(ParseError, match="line 4, column 1: expected `parallel` or `single`"):
        parse_kernel("kernel k(\n):\n\n")
    with pytest.raises(ParseError, match="expected end of text"):
        parse_kernel(KERNEL + "kernel b(\n")


def test_what_has_no_text_form_is_refused():
    kernel = parse_kernel(KERNEL)
    with pytest.raises(Unprintable, match="origin ''"):
        print_kernel(replace(kernel, origins=(Origin(""),)))
