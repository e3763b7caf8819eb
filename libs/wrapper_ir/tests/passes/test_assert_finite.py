from __future__ import annotations

from wrapper_ir import parse_program, print_program, verify
from wrapper_ir.passes import AssertFinite, InsertFrees, PlanMemory, run_passes

KERNEL = "  kernel k(x: *f32, out: *f32 mutated) warps 4 stages 3:\n    def k(x, out): ...\n  end\n"


def checked(body: str) -> list[str]:
    head = 'program p(x: f32[4] cpu, i: i64[4] cpu, n: int):\n  assert n < 9 "n"\n'
    program = parse_program(head + KERNEL + body)
    out = run_passes(program, [AssertFinite("t.check", ("t.empty",))])
    assert parse_program(print_program(out)) == out
    verify(run_passes(out, [InsertFrees(), PlanMemory()]))
    return print_program(out).split("\n")[5:-1]


def test_inputs_launches_and_calls():
    assert checked(
        '  c = constant f32[4] cpu "w"\n  b = alloc f32[4] cpu\n'
        "  launch k grid (1, 1, 1) (x, b)  # aten.log.default m.py:3\n"
        "  (r, s) = extern t.f(b, x) -> (f32[4] cpu, i64[4] cpu)\n"
        "  extern t.g(x, i) mutates (x, i)\n  return (r, s)\n"
    ) == [
        '  extern t.check(x, "x", "input", "")',
        '  c = constant f32[4] cpu "w"',
        '  extern t.check(c, "c", "constant", "")',
        "  b = alloc f32[4] cpu",
        "  extern aten.zero_.default(b) mutates (b,)",
        "  launch k grid (1, 1, 1) (x, b)  # aten.log.default m.py:3",
        '  extern t.check(b, "b", "kernel k", "aten.log.default m.py:3")',
        "  (r, s) = extern t.f(b, x) -> (f32[4] cpu, i64[4] cpu)",
        '  extern t.check(r, "r", "operator t.f", "")',
        "  extern t.g(x, i) mutates (x, i)",
        '  extern t.check(x, "x", "operator t.g", "")',
        "  return (r, s)",
    ]


def test_blocks_views_and_memory_without_content():
    assert checked(
        "  b = extern t.empty.default(4) -> f32[4] cpu\n  v = view b f32[2] cpu\n"
        "  if n < 3:  # from m.py:5\n    launch k grid (1, 1, 1) (x, v)\n"
        "  w = extern t.alias(b) alias b -> f32[4] cpu\n  return (w,)\n"
    )[1:] == [
        "  b = extern t.empty.default(4) -> f32[4] cpu",
        "  extern aten.zero_.default(b) mutates (b,)",
        "  v = view b f32[2] cpu",
        "  if n < 3:  # from m.py:5",
        "    launch k grid (1, 1, 1) (x, v)",
        '    extern t.check(v, "v", "kernel k", "from m.py:5")',
        "  w = extern t.alias(b) alias b -> f32[4] cpu",
        "  return (w,)",
    ]


def test_what_a_descriptor_describes():
    program = parse_program(
        "program p(x: f32[8] cpu):\n"
        "  kernel k(t: tensordesc<f32[4]> mutated) warps 4 stages 3:\n    def k(t): ...\n  end\n"
        "  d = describe x block (4,)\n  launch k grid (1, 1, 1) (d)\n  return ()\n"
    )
    text = print_program(AssertFinite("t.check").run(program))
    assert 'extern t.check(x, "x", "kernel k", "")' in text
