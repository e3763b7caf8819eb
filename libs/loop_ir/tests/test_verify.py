"""Every rule has its error, found in a kernel or graph with one fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loop_ir import DType, errors, parse_graph, parse_kernel, print_graph, verify

KERNEL = """\
kernel norm(
    x: f32[s0, 8] cuda:0,
    ids: i64[s0] cuda:0,
    table: f32[100, 8] cuda:0,
    out y: f32[s0, 8] cuda:0,
):
  where s0 in [1, 64] hint 2
  parallel i0 < s0:
    once:
      k = load ids[i0]                 : i64
      t0 = indirect k < 100
    over r0 < 8:
      a = load x[i0*8 + r0]            : f32
      b = load table[t0*8 + r0]        : f32
      c = add(a, b)                    : f32
      mean, m2 = reduce welford(c)     : f32
    once:
      n = const 8.0                    : f32
      var = div(m2, n)                 : f32
    over r0 < 8:
      d = sub(c, mean)                 : f32
      e = mul(d, var)                  : f32
      small = lt(e, n)                 : bool
      f = where(small, e, n)           : f32
      store y[i0*8 + r0] = f
"""


def test_a_valid_kernel_passes():
    verify(parse_kernel(KERNEL))


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("d = sub(c, mean)", "d = sub(q, mean)", errors.UndefinedValue, "q is not defined"),
        ("e = mul(d, var)", "d = mul(d, var)", errors.DuplicateDefinition, "value d"),
        ("r0 < 8:\n      a", "i0 < 8:\n      a", errors.DuplicateDefinition, "symbol i0"),
        ("t0 = indirect", "s0 = indirect", errors.DuplicateDefinition, "symbol s0"),
        ("x: f32[s0, 8]", "y: f32[s0, 8]", errors.DuplicateDefinition, "y twice"),
        ("load x[i0*8 + r0]", "load x[i0*8 + r1]", errors.UndefinedSymbol, "symbol r1"),
        ("x: f32[s0, 8]", "x: f32[s1, 8]", errors.UndefinedSymbol, "s1"),
        ("load x[", "load z[", errors.UndefinedBuffer, "z is not declared"),
        ("div(m2, n)                 : f32", "div(m2, k) : f32", errors.ElementType, "f32, i64"),
        ("lt(e, n)                 : bool", "lt(e, n) : f32", errors.ElementType, "gives bool"),
        ("where(small, e, n)", "where(e, e, n)", errors.ElementType, "no bool"),
        ("a = load x[i0*8 + r0]            : f32", "a = load x[i0*8 + r0] : bf16",
         errors.ElementType, "x holds f32, not bf16"),
        ("var = div(m2, n)                 : f32", "var = narrow(m2) : f32",
         errors.ElementType, "narrow takes f32 and gives bf16 or f16"),
        ("indirect k < 100", "indirect n < 100", errors.UndefinedValue, "n"),
        ("n = const 8.0                    : f32", "n = const 8.0 : i64",
         errors.ElementType, "8.0 is no i64"),
        ("add(a, b)                    : f32", "and(a, b) : f32", errors.ElementType,
         "and does not take f32"),
        ("      n = const", "      g = add(c, c) : f32\n      n = const",
         errors.PhaseMismatch, "c belongs to `over r0 < 8`"),
        ("    over r0 < 8:\n      d", "    over r0 < 9:\n      d",
         errors.PhaseMismatch, "c belongs"),
        ("welford(c)     : f32\n", "welford(c)     : f32\n      g = add(c, mean) : f32\n",
         errors.ReduceTooEarly, "mean is reduced in this phase"),
        ("      var = div", "      q = reduce sum(n) : f32\n      var = div",
         errors.MisplacedReduce, "`once`"),
        ("load x[i0*8 + r0]", "load x[i0*8 + r0 + 1]", errors.OutOfBounds, "[1, 16] of x with 16"),
        ("load x[i0*8 + r0]", "load x[i0*8 - r0]", errors.OutOfBounds, "[-7, 8]"),
        ("load table[t0*8 + r0]", "load table[t0*9 + r0]", errors.OutOfBounds, "[0, 898]"),
        ("out y:", "y:", errors.NotWritten, "y is stored to"),
        ("    x: f32", "    out x: f32", errors.NotWritten, "x is declared as written"),
        ("      store y", "      store y[i0*8 + r0] = e\n      store y",
         errors.WriterConflict, "y is stored to twice"),
        ("      store y", "      h = load y[i0*8 - r0 + 7] : f32\n      store y",
         errors.ReadOfOwnWrite, "other indices of y"),
    ],
)  # fmt: skip
def test_kernel_rules(old, new, error, text):
    assert old in KERNEL
    with pytest.raises(error) as caught:
        verify(parse_kernel(KERNEL.replace(old, new, 1)))
    assert text in str(caught.value)
    assert str(caught.value).startswith("norm")
    assert error.rule in str(caught.value)


def test_operations_outside_of_the_grammar():
    kernel = parse_kernel(KERNEL)

    def with_op(**changes):
        phases = list(kernel.phases)
        body = list(phases[1].body)
        body[2] = replace(body[2], **changes)
        phases[1] = replace(phases[1], body=tuple(body))
        return replace(kernel, phases=tuple(phases))

    with pytest.raises(errors.UnknownOp, match="no operation plus"):
        verify(with_op(op="plus"))
    with pytest.raises(errors.Arity, match="add takes 2 arguments, got 1"):
        verify(with_op(args=("a",)))
    with pytest.raises(errors.InvalidName, match="'a b' is no identifier"):
        verify(with_op(out="a b"))


def test_a_mask_frees_an_index_from_its_bounds():
    masked = KERNEL.replace(
        "a = load x[i0*8 + r0] ",
        "p = const true : bool\n      a = load x[i0*8 + r0 + 9] if p else 0 ",
    )
    verify(parse_kernel(masked))


def graph_text(make_builder):
    b = make_builder()
    x = b.input("x", DType.f32, 2, 4)
    w = b.constant("w", DType.f32, 4, 4)
    y = b.linear(b.unary("tanh", x), w)
    return print_graph(b.graph(b.unary("neg", y)))


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("    x: f32[2, 4] cuda:0,\n):\n  constant", "):\n  constant", errors.UndefinedBuffer, "x"),
        ("constant w", "constant x", errors.DuplicateDefinition, "buffer x"),
        ("constant w", "constant tanh_1", errors.WriterConflict, "tanh_1 is a constant"),
        ("b w: f32[4, 4] cuda:0 stride (1, 4)", "b w: f32[4, 4] cuda:0 stride (2, 4)",
         errors.LayoutMismatch, "a view of w ends at 19"),
        ("b w: f32[4, 4] cuda:0 stride (1, 4)", "b w: f32[3, 4] cuda:0 stride (1, 3)",
         errors.LayoutMismatch, "sizes do not match"),
        ("b w: f32[4, 4] cuda:0 stride (1, 4)", "b w: f32[4, 4] cuda:0 stride (1, 4) again 1",
         errors.LayoutMismatch, "w again, which is no result"),
        ("b w: f32[4, 4] cuda:0 stride (1, 4)", "b w: bf16[4, 4] cuda:0",
         errors.ElementType, "w holds f32"),
        ("kernel op_neg_3", "kernel op_tanh_1", errors.DuplicateDefinition, "op_tanh_1"),
        ("return (neg_3", "return (neg_4", errors.UndefinedBuffer, "neg_4"),
        ("    linear_2: f32[2, 4] cuda:0,", "    linear_2: f32[2, 5] cuda:0,",
         errors.LayoutMismatch, "linear_2"),
    ],
)  # fmt: skip
def test_graph_rules(old, new, error, text, make_builder):
    good = graph_text(make_builder)
    verify(parse_graph(good))
    assert old in good
    with pytest.raises(error, match=text):
        verify(parse_graph(good.replace(old, new, 1)))
