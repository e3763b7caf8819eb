"""Printing and parsing are inverse; parse errors know where they are."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from symexpr import FloorDiv, symbol
from wrapper_ir import (
    Comment,
    DefineKernel,
    Describe,
    Device,
    DType,
    ExternCall,
    Param,
    ParseError,
    Program,
    Ref,
    Return,
    Symbol,
    TensorType,
    TorchEnum,
    parse_program,
    parse_symbol,
    parse_type,
    print_program,
    print_symbol,
    print_type,
    verify,
)

s0 = symbol("s0")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_generated_programs_round_trip(data, programs):
    program = data.draw(programs)
    verify(program)
    assert parse_program(print_program(program)) == program
    assert parse_program(print_program(program, after="some_pass")) == program


def test_encoder_reads_as_it_prints(golden):
    text = golden("encoder.txt")
    program = parse_program(text)
    verify(program)
    assert print_program(program, after="lower") == text


scalars = st.one_of(
    st.integers(), st.booleans(), st.none(), st.text(), st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([
        Ref("x"), s0 + 1, s0 * (s0 + 1), FloorDiv(s0 + 3, 2), s0 < 3, sympy.And(s0 < 3, s0 > 1),
        Device("cuda", 1), Device("cpu"), DType.bf16, TorchEnum("layout", "strided"),
        TorchEnum("memory_format", "channels_last"), -s0,
    ]),
)  # fmt: skip
arguments = st.recursive(scalars, lambda a: st.lists(a, max_size=3).map(tuple), max_leaves=6)


def same(a, b):
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | complex | bool):
        return type(a) is type(b) and repr(a) == repr(b)
    return a == b


@settings(max_examples=40, deadline=None)
@given(args=st.lists(arguments, max_size=4), comment=st.text(max_size=20))
def test_every_argument_round_trips(args, comment):
    call = ExternCall(
        "aten.f.default", tuple(args), tuple((f"k{i}", a) for i, a in enumerate(args))
    )
    program = Program(
        "p", (Param("x", TensorType(DType.f32, (), (), Device("cpu"))), Param("s0", None)),
        (Comment(comment), call, Return(tuple(args), comment)),
    )  # fmt: skip
    back = parse_program(print_program(program))
    assert back.ops[0] == program.ops[0]
    assert same(back.ops[1].args, call.args)
    assert same(tuple(v for _, v in back.ops[1].kwargs), call.args)
    assert same(back.ops[2].values, call.args) and back.ops[2].comment == comment


@settings(max_examples=80, deadline=None)
@given(source=st.text(alphabet=st.sampled_from("\n\t \rab#\"'\\:end"), max_size=40))
def test_kernel_source_is_kept_to_the_letter(source):
    kernel = DefineKernel("k", source, (), (("B", 1), ("F", 1.0), ("T", True), ("N", None)))
    program = Program("p", (), (kernel, Return(())))
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize("text", [
    "f32[] cpu",
    "bf16[s0, 768] cuda:0",
    "bool[s0*2, s0//3] cuda:1 stride (1, s0*2) offset s0 + 5",
    "f8e4m3[4] cpu stride (0,)",
])  # fmt: skip
def test_types_round_trip(text):
    assert print_type(parse_type(text)) == text


@pytest.mark.parametrize(
    "text", ["s0", "s0 in [1, 64] hint 2", "s0 in [*, 5]", "u in [0, *]", "s1 hint 7"]
)
def test_symbols_round_trip(text):
    assert print_symbol(parse_symbol(text)) == text


def test_symbol_bounds():
    assert parse_symbol("s0 in [1, *] hint 2") == Symbol("s0", 1, None, 2)


HEAD = "program p(x: f32[4] cpu, n: int):\n"


@pytest.mark.parametrize(("text", "line", "column", "expected"), [
    ("", 1, 1, "'program'"),
    ("program p(x: f33[4] cpu):\n", 1, 14, "an element type"),
    ("program p(x: f32[4 cpu):\n", 1, 18, "an integer expression"),
    (HEAD + "  b = alloc f32[4 +] cpu\n", 2, 17, "an integer expression"),
    (HEAD + "  b = allocate f32[4] cpu\n", 2, 7, "alloc, reuse, view"),
    (HEAD + "  d = describe x (2,)\n", 2, 18, "'block'"),
    (HEAD + "  kernel k(t: tensordesc<f32[n]>) warps 4", 2, 25, "','"),
    (HEAD + "    free b\n", 2, 5, "indented by 2"),
    (HEAD + "free b\n", 2, 1, "indented by 2"),
    (HEAD + "  frees b\n", 2, 3, "an op"),
    (HEAD + "  free b c\n", 2, 10, "'#'"),
    (HEAD + "  assert n < 3\n", 2, 15, "a string"),
    (HEAD + "  assert n \"m\"\n", 2, 10, "a condition"),
    (HEAD + "  b = view x f32[2, 2] cpu stride (1,)\n", 2, 35, "2 strides"),
    (HEAD + "  launch k grid (1, 1) ()\n", 2, 17, "three grid sizes"),
    (HEAD + "  kernel k() warps 4 stages 3:\n    def k(): ...\n", 4, 1, "'end'"),
    (HEAD + "  a, b = extern aten.f(x) -> f32[4] cpu\n", 2, 40, "2 result types"),
    (HEAD + "  a = extern aten.f(x) -> _\n", 2, 28, "'_'"),
])  # fmt: skip
def test_errors_show_line_and_column(text, line, column, expected):
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert expected in caught.value.expected
    assert (caught.value.line, caught.value.column) == (line, column)


def test_names_that_are_words_of_the_language():
    text = HEAD + (
        "  free = alloc f32[4] cpu\n  where = view free f32[2] cpu\n"
        "  copy free -> where\n  copy = alloc f32[2] cpu\n  copy where -> copy\n"
        "  free free\n  return (copy,)\n"
    )
    assert print_program(parse_program(text)) == text


def test_descriptors_and_clusters():
    text = """program p(x: f32[8, 64] cpu):
  kernel k(t: tensordesc<f32[4, 32]> mutated, u: tensordesc<f32[1,64]>) warps 4 stages 3 ctas 2:
    def k(t, u): ...
  end
  d0 = describe x block (4, 32)  # k.py:3
  d1 = describe x block (1, 64)
  launch k grid (1, 1, 1) (d0, d1)
  describe = alloc f32[4] cpu
  d2 = describe describe block (4,)
  return ()
""".replace("ctas 2:", "ctas 2 contract:")
    program = parse_program(text)
    verify(program)
    assert print_program(program) == text
    assert program.ops[0].num_ctas == 2 and program.ops[0].params[0].mutated
    assert program.ops[0].contract
    assert program.ops[1] == Describe("d0", "x", (4, 32), "k.py:3")
