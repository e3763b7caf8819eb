"""Every rule is broken once; the error is of its class and names the op."""

from __future__ import annotations

import pytest

from wrapper_ir import errors, parse_program, verify

K = """  kernel k(p: *f32, q: *i64 mutated, n: i32, f: f32, b: bool) warps 4 stages 3:
    def k(p, q, n, f, b): ...
  end
"""
D = """  kernel d(t: tensordesc<f32[2,4]>, u: tensordesc<f32[2,4]> mutated) warps 4 stages 3 ctas 2:
    def d(t, u): ...
  end
"""
HEAD = """program p(x: f32[s0, 4] cpu, i: i64[3] cpu, n: int):
  where s0 in [1, 8]
  symbol s0 = x.size(0)
"""

BROKEN = {
    "InvalidName": [
        (HEAD + "  lambda = alloc f32[1] cpu\n  return ()\n", "1", "'lambda'"),
        ("program class():\n  return ()\n", "", "'class'"),
    ],
    "DuplicateDefinition": [
        (HEAD + "  x = alloc f32[1] cpu\n  return ()\n", "1", "x is defined before"),
        (HEAD + "  s0 = alloc f32[1] cpu\n  return ()\n", "1", "s0 is defined before"),
        (HEAD + K + K + "  return ()\n", "2", "kernel k"),
        (HEAD + "  symbol s0 = x.size(0)\n  return ()\n", "1", "s0 is defined before"),
        ("program p(x: f32[] cpu, x: int):\n  return ()\n", "", "x is defined twice"),
        ("program p():\n  where s\n  where s\n  return ()\n", "", "declared twice"),
    ],
    "UndefinedName": [
        (HEAD + "  free y\n  return ()\n", "1", "no tensor y"),
        (HEAD + "  v = view w f32[1] cpu\n  return ()\n", "1", "no tensor w"),
        (HEAD + "  return ((x, (z,)),)\n", "1", "no tensor z"),
    ],
    "UseAfterFree": [
        (HEAD + "  b = alloc f32[4] cpu\n  v = view b f32[2] cpu\n  free b\n  return (v,)\n", "4",
         "v died with its storage at op 3"),
        (HEAD + "  b = alloc f32[4] cpu\n  c = reuse b f32[4] cpu\n  return (b,)\n", "3", "b died"),
        (HEAD + "  b = alloc f32[4] cpu\n  free b\n  free b\n  return ()\n", "3", "b died"),
        (HEAD + "  b = alloc f32[4] cpu\n  free b\n  if n < 3:\n    copy b -> b\n  return ()\n",
         "3.then.0", "b died"),
        (HEAD + D + "  b = alloc f32[s0, 4] cpu\n  e = describe b block (2, 4)\n  free b\n"
         "  launch d grid (1, 1, 1) (e, e)\n  return ()\n", "5", "e died with its storage at op 4"),
        (HEAD + D + "  b = alloc f32[s0, 4] cpu\n  e = describe b block (2, 4)\n"
         "  c = reuse b f32[s0, 4] cpu\n  launch d grid (1, 1, 1) (e, e)\n  return (c,)\n", "5",
         "e died with its storage at op 4"),
    ],
    "BlockEscape": [
        (HEAD + "  if n < 3:\n    b = alloc f32[4] cpu\n  return (b,)\n", "2", "inside if 1"),
    ],
    "NotOwned": [
        (HEAD + "  b = alloc f32[4] cpu\n  comm_free b\n  return ()\n", "2", "the other of two"),
        (HEAD + '  b = comm_alloc f32[4] cpu group "0"\n  free b\n  return ()\n', "2", "of two"),
        (HEAD + "  free x\n  return ()\n", "1", "belongs to the caller"),
        (HEAD + "  c = constant f32[4] cpu \"w\"\n  free c\n  return ()\n", "2", "the caller"),
        (HEAD + "  b = alloc f32[4] cpu\n  v = view b f32[4] cpu\n  free v\n  return ()\n", "3",
         "v is a view of b"),
        (HEAD + "  b = alloc f32[4] cpu\n  if n < 1:\n    free b\n  return ()\n", "2.then.0",
         "outside of this block"),
        (HEAD + "  b = reuse x f32[4] cpu\n  return ()\n", "1", "the caller"),
    ],
    "BusyStorage": [
        (HEAD + f"  a = alloc f32[4] cpu\n  extern t.fill(a) mutates (a,)\n"
         "  r = extern _c10d_functional.all_reduce.default(a, \"sum\") -> f32[4] cpu\n"
         f"  {harm}\n  w = extern _c10d_functional.wait_tensor.default(r) -> f32[4] cpu\n"
         "  return (w,)\n", "4", "a is in use until a wait_tensor")
        for harm in ("extern t.fill(a) mutates (a,)", "free a", "b = reuse a f32[4] cpu")
    ],
    "Uninitialised": [
        (HEAD + K + "  b = alloc i64[4] cpu\n  launch k grid (1, 0, 1) (x, b, 1, 1.0, True)\n"
         "  return (b,)\n", "4", "nothing has written to b for"),
        (HEAD + "  b = alloc f32[4] cpu\n  return (b,)\n", "2", "nothing has written to b for"),
        (HEAD + "  b = alloc f32[4] cpu\n  v = view b f32[2] cpu\n  return ((v,),)\n", "3", "b"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  copy b -> x\n  return ()\n", "2", "written to b"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  y = extern aten.f(b) -> f32[4] cpu\n  return ()\n",
         "2", "written to b"),
        (HEAD + K + "  b = alloc f32[4] cpu\n  launch k grid (1, 1, 1) (b, i, 1, 1.0, True)\n"
         "  return ()\n", "3", "written to b"),
        (HEAD + D + "  b = alloc f32[s0, 4] cpu\n  e = describe b block (2, 4)\n"
         "  f = describe x block (2, 4)\n  launch d grid (1, 1, 1) (e, f)\n  return ()\n", "5",
         "written to b"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  copy x -> b\n  c = reuse b f32[4] cpu\n"
         "  return (c,)\n", "4", "written to c"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  if s0 > 3:\n    copy x -> b\n  return (b,)\n", "3",
         "for s0=1"),
    ],
    "InvalidExpression": [
        (HEAD + "  b = alloc f32[4//(s0 - 1)] cpu\n  return ()\n", "1", "divided by"),
        (HEAD + "  b = alloc f32[PowByNatural(s0 + 1, s0*700)] cpu\n  return ()\n", "1", "4096"),
        (HEAD + "  assert PowByNatural(s0 + 1, s0*700) > 2 \"\"\n  return ()\n", "", "4096"),
    ],
    "LayoutOutOfBounds": [
        (HEAD + "  v = view x f32[s0, 4] cpu offset 1\n  return ()\n", "1", "needs 20 bytes"),
        (HEAD + "  v = view x f64[s0, 4] cpu\n  return ()\n", "1", "for s0="),
        (HEAD + "  b = alloc f32[s0] cpu\n  c = reuse b f32[4] cpu\n  return ()\n", "2",
         "16 bytes"),
        (HEAD + "  v = extern aten.t(x) alias x -> f32[4, s0] cpu stride (9, 4)\n  return ()\n",
         "1", "v needs"),
    ],
    "InvalidLayout": [
        (HEAD + "  b = alloc f32[4] cpu offset 2\n  return ()\n", "1", "offset 2"),
        (HEAD + "  b = alloc f32[s0 - 2] cpu\n  return ()\n", "1", "size (-1,)"),
        (HEAD + "  y = extern aten.f(x) -> f32[s0 - 9] cpu\n  return (y,)\n", "1", "size (-8,)"),
        (HEAD + "  b = alloc f32[2] cpu\n  c = reuse b f32[1] cpu offset 1\n  return ()\n", "2",
         "offset 1"),
    ],
    "DeviceMismatch": [
        (HEAD + "  v = view x f32[4] cuda:0\n  return ()\n", "1", "storage is on cpu"),
    ],
    "UnboundSymbol": [
        (HEAD + "  b = alloc f32[s1] cpu\n  return ()\n", "1", "s1 is not bound"),
        ("program p(x: f32[s0] cpu):\n  return ()\n", "", "nothing binds s0"),
        (HEAD.replace("  symbol", '  assert s0 < 3 ""\n  symbol') + "  return ()\n", "0", "s0"),
    ],
    "InvalidSymbolDef": [
        (HEAD + "  b = alloc f32[2] cpu\n  symbol t = b.size(0)\n  return ()\n", "2", "parameter"),
        (HEAD + "  symbol t = x.size(2)\n  return ()\n", "1", "rank 2"),
        (HEAD + "  symbol t = x.size(1)\n  return ()\n", "1", "declared as 4"),
    ],
    "UndefinedKernel": [
        (HEAD + "  launch k grid (1, 1, 1) ()\n  return ()\n", "1", "no kernel k"),
    ],
    "InvalidKernel": [
        (HEAD + K.replace("*f32", "*f31") + "  return ()\n", "1", "unknown kind *f31"),
        (HEAD + K.replace("n: i32", "n: i32 mutated") + "  return ()\n", "1", "scalar parameter n"),
        (HEAD + K.replace("f: f32", "p: f32") + "  return ()\n", "1", "share a name"),
        (HEAD + K.replace("def k", "def kk") + "  return ()\n", "1", "defines no k"),
        (HEAD + D.replace("f32[2,4]", "f31[2,4]") + "  return ()\n", "1", "unknown kind"),
        (HEAD + D.replace("ctas 2", "ctas 0") + "  return ()\n", "1", "0 blocks of a program"),
    ],
    "LaunchArity": [
        (HEAD + K + "  launch k grid (1, 1, 1) (x, i, 1)\n  return ()\n", "2",
         "5 arguments, got 3"),
    ],
    "LaunchArgumentKind": [
        (HEAD + K + f"  launch k grid (1, 1, 1) ({args})\n  return ()\n", "2", who)
        for args, who in [
            ("3, i, 1, 1.0, True", "p is *f32"), ("x, i, x, 1.0, True", "n is i32"),
            ("x, i, 1.0, 1.0, True", "n is i32"), ("x, i, 1, True, True", "f is f32"),
            ("x, i, 1, 1.0, 1", "b is bool"), ("x, i, True, 1.0, True", "n is i32"),
            ("x, i, None, 1.0, True", "n is i32"), ("x, (i,), 1, 1.0, True", "q is *i64"),
        ]
    ] + [
        (HEAD + D + "  e = describe x block (1, 4)\n  launch d grid (1, 1, 1) (e, e)\n"
         "  return ()\n", "3", "e is blocks of [1, 4]"),
        (HEAD + D + "  launch d grid (1, 1, 1) (x, x)\n  return ()\n", "2", "x is a tensor"),
        (HEAD + K + "  e = describe x block (1, 4)\n"
         "  launch k grid (1, 1, 1) (e, i, 1, 1.0, True)\n  return ()\n", "3", "got tensor e"),
    ],
    "LaunchElementType": [
        (HEAD + K + "  launch k grid (1, 1, 1) (i, i, 1, 1.0, True)\n  return ()\n", "2",
         "p is *f32, got i: i64[3] cpu"),
        (HEAD + D + "  v = view x i32[s0, 4] cpu\n  e = describe v block (2, 4)\n"
         "  launch d grid (1, 1, 1) (e, e)\n  return ()\n", "4", "e is of i32[s0, 4] cpu"),
    ],
    "InvalidDescriptor": [
        (HEAD + "  e = describe x block (4,)\n  return ()\n", "1", "blocks of [4] of x"),
        (HEAD + "  e = describe x block (0, 4)\n  return ()\n", "1", "blocks of [0, 4] of x"),
        (HEAD + "  e = describe x block (2, 4)\n  return (e,)\n", "2", "e is a descriptor"),
        (HEAD + "  e = describe x block (2, 4)\n  extern aten.f(e)\n  return ()\n", "2",
         "e is a descriptor"),
        (HEAD + "  e = describe x block (2, 4)\n  f = describe e block (2, 4)\n  return ()\n", "2",
         "e is a descriptor"),
        (HEAD + "  b = alloc f32[4] cpu\n  e = describe b block (4,)\n  free e\n  return ()\n", "3",
         "e is a descriptor"),
    ],
    "InvalidExtern": [
        (HEAD + "  extern aten.f(x) mutates (i,)\n  return ()\n", "1", "i is no argument"),
        (HEAD + "  y = extern aten.f(x) alias i -> f32[1] cpu\n  return ()\n", "1", "no argument"),
        (HEAD + "  a, b = extern aten.f(x) -> f32[1] cpu, f32[1] cpu\n  return ()\n", "1",
         "no tuple"),
    ],
    "CopyMismatch": [
        (HEAD + "  b = alloc f32[4, s0] cpu\n  copy x -> b\n  return ()\n", "2", "for s0="),
    ],
    "MisplacedReturn": [
        (HEAD, "", "without return"),
        (HEAD + "  return ()\n  return ()\n", "1", "not the last"),
        (HEAD + "  if n < 3:\n    return ()\n  return ()\n", "1.then.0", "not the last"),
    ],
    "InvalidSubgraph": [
        (HEAD + "  subgraph f(a: f32[2] cpu):\n    return (a,)\n  return ()\n", "1",
         "one and an argument"),
    ],
    "UnorderedStreams": [
        (HEAD + "  stream 1\n  copy x -> x\n  return ()\n", "2", "x is not written yet"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  stream 1\n  wait 0\n  copy x -> b\n"
         "  stream 0\n  copy b -> x\n  return ()\n", "6", "b is not written yet on stream 0"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  stream 1\n  wait 0\n  copy x -> b\n"
         "  stream 0\n  extern aten.zero_.default(x) mutates (x,)\n  return ()\n", "6",
         "x may still be read"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  stream 1\n  wait 0\n  copy x -> b\n"
         "  stream 0\n  free b\n  return ()\n", "6", "b may still be in use"),
        (HEAD + "  b = alloc f32[s0, 4] cpu\n  stream 1\n  wait 0\n  copy x -> b\n"
         "  stream 0\n  c = reuse b f32[4] cpu\n  return ()\n", "6", "b may still be in use"),
        (HEAD + "  b = alloc f32[4] cpu\n  stream 1\n  wait 0\n  stream 0\n  free b\n"
         "  stream 1\n  c = alloc f32[4] cpu\n  return ()\n", "7",
         "the memory of c may be what stream 0 still uses"),
        (HEAD + "  stream 1\n  wait 0\n  copy x -> x\n  stream 0\n  return ()\n", "5",
         "streams [1] are not done"),
        (HEAD + "  stream 1\n  return ()\n", "2", "stream 1 is current"),
        (HEAD + "  stream -1\n  stream 0\n  return ()\n", "1", "32 streams"),
        (HEAD + "  wait 40\n  return ()\n", "1", "none of 32"),
        (HEAD + "  stream 1\n  stream 0\n  device cuda:1\n  return ()\n", "3", "one device"),
        (HEAD + "  wait 0\n  return ()\n", "1", "waits for itself"),
    ],
    "MisplacedOp": [
        (HEAD + "  if n < 3:\n    stream 1\n  return ()\n", "1.then.0", "block"),
        (HEAD + "  if n < 3:\n    w = workspace i32[4] cpu\n  return ()\n", "1.then.0", "block"),
        (HEAD + "  if n < 3:\n    device cuda:1\n  return ()\n", "1.then.0", "block"),
        (HEAD + '  if n < 3:\n    c = constant f32[1] cpu "k"\n  return ()\n', "1.then.0", "block"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "text", "index", "detail"),
    [(rule, *case) for rule, cases in BROKEN.items() for case in cases],
)
def test_broken_rule(rule, text, index, detail):
    program = parse_program(text)
    with pytest.raises(errors.VerifyError) as caught:
        verify(program)
    error = caught.value
    assert type(error) is getattr(errors, rule), error
    assert error.index == index and detail in str(error) and error.rule in str(error)
    if index:
        assert error.op in text and error.op in str(error)


def test_every_rule_has_a_broken_program():
    assert {c.__name__ for c in errors.VerifyError.__subclasses__()} == set(BROKEN)


VALID = [
    # Two streams, each in its turn; memory of a group
    HEAD + "  b = alloc f32[s0, 4] cpu\n  stream 1\n  wait 0\n  copy x -> b\n"
    '  stream 0\n  wait 1\n  copy b -> x\n  c = comm_alloc f32[4] cpu group "0"\n'
    "  comm_free c\n  stream 1\n  wait 0\n  d = reuse b f32[4] cpu\n"
    "  extern aten.zero_.default(d) mutates (d,)\n  stream 0\n  wait 1\n  return (d,)\n",
    # Written in both branches, or where it is read; an empty one needs no writer.
    HEAD + "  b = alloc f32[s0, 4] cpu\n  if s0 > 3:\n    copy x -> b\n  else:\n"
    "    extern aten.zero_.default(b) mutates (b,)\n  return (b,)\n",
    HEAD + "  b = alloc f32[s0, 4] cpu\n  if s0 > 3:\n    copy x -> b\n  if s0 > 3:\n"
    "    copy b -> x\n  return ()\n",
    HEAD + "  b = alloc f32[0, 4] cpu\n  v = view b f32[0] cpu\n  return (v, b)\n",
    HEAD + "  b = alloc f32[s0, 4] cpu\n  t = extern aten.f(b) alias b -> f32[s0] cpu\n"
    "  copy x -> b\n  return (t,)\n",
    HEAD + K + "  launch k grid (s0, 1, 1) (x, i, n*s0, 2, n < 3)\n  return (x, n)\n",
    HEAD + "  b = alloc f32[s0, 4] cpu\n  c = reuse b f16[4*s0] cpu\n"
    "  d = reuse c f32[s0, 4] cpu\n  copy x -> d\n  return (d,)\n",
    HEAD + "  if n < 3:\n    b = alloc f32[4] cpu\n    free b\n  else:\n"
    "    c = alloc f32[2] cpu\n  return ()\n",
    # A layout in a block has to hold only where the block runs.
    HEAD + "  if s0 > 3:\n    v = view x f32[s0 - 4, 4] cpu offset 16\n"
    "  else:\n    b = alloc f32[4 - s0] cpu\n  return ()\n",
    HEAD + "  v = view x f32[0, 9] cpu offset 100\n  return (v,)\n",
    HEAD + "  v = view x i16[s0, 8] cpu stride (8, 1)\n  return (v,)\n",
    HEAD + D + "  e = describe x block (2, 4)\n  if n < 3:\n    launch d grid (1, 1, 1) (e, e)\n"
    "  b = alloc f32[4] cpu\n  f = describe b block (8,)\n  free b\n  return ()\n",
    HEAD + "  assert s0 >= 2 \"no one\"\n  b = alloc f32[s0 - 2] cpu\n  return ()\n",
    # An operator refuses sizes for which its result would have a negative one.
    HEAD + "  y = extern aten.f(x) -> f32[6 - s0] cpu\n  v = view y f32[1, 6 - s0] cpu\n"
    "  return (v,)\n",
    # No end of a range meets the assertion: the hints do.
    HEAD.replace("[1, 8]", "[1, 8] hint 5\n  where n hint 3")
    + "  assert s0 == n + 2 \"\"\n  v = view x f32[s0 - n, 4] cpu offset n*4\n  return (v,)\n",
]  # fmt: skip


@pytest.mark.parametrize("text", VALID)
def test_valid(text):
    verify(parse_program(text))
