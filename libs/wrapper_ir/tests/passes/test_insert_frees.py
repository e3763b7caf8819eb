from __future__ import annotations

from wrapper_ir import parse_program, print_program
from wrapper_ir.passes import InsertFrees, PlanMemory, run_passes


def freed(body: str) -> list[str]:
    program = parse_program("program p(x: f32[4] cpu, n: int):\n" + body)
    return print_program(InsertFrees().run(program)).split("\n")[1:-1]


def test_after_the_last_use_of_a_view():
    assert freed(
        "  b = alloc f32[4] cpu\n  v = view b f32[2] cpu\n  w = view v f32[1] cpu\n"
        "  extern t.f(b)\n  extern t.f(w)\n  extern t.f(x)\n  return ()\n"
    )[-3:] == ["  free b", "  extern t.f(x)", "  return ()"]


def test_unused_storage_dies_at_once():
    assert freed("  b = alloc f32[4] cpu\n  extern t.f(x)\n  return ()\n")[1] == "  free b"


def test_never_parameters_constants_or_results():
    body = (
        '  c = constant f32[4] cpu "k"\n  b = alloc f32[4] cpu\n  v = view b f32[2] cpu\n'
        "  extern t.f(c, x)\n  return (v,)\n"
    )
    assert not any("free" in line for line in freed(body))


def test_results_of_calls_and_their_aliases():
    assert freed(
        "  a = extern t.f(x) -> f32[4] cpu\n  s = extern t.g(a) alias a -> f32[2] cpu\n"
        "  extern t.h(s)\n  t = extern t.g(x) alias x -> f32[2] cpu\n  extern t.h(t)\n"
        "  return ()\n"
    ) == [
        "  a = extern t.f(x) -> f32[4] cpu",
        "  s = extern t.g(a) alias a -> f32[2] cpu",
        "  extern t.h(s)",
        "  free a",
        "  t = extern t.g(x) alias x -> f32[2] cpu",
        "  extern t.h(t)",
        "  return ()",
    ]


def test_not_twice():
    body = "  b = alloc f32[4] cpu\n  extern t.f(b)\n  free b\n  c = alloc f32[4] cpu\n"
    body += "  d = reuse c f32[4] cpu\n  return (d,)\n"
    assert freed(body) == body.split("\n")[:-1]


def test_blocks_free_their_own():
    assert freed(
        "  b = alloc f32[4] cpu\n  if n < 3:\n    t = alloc f32[4] cpu\n    extern t.f(t, b)\n"
        "    extern t.g(x)\n  return ()\n"
    ) == [
        "  b = alloc f32[4] cpu",
        "  if n < 3:",
        "    t = alloc f32[4] cpu",
        "    extern t.f(t, b)",
        "    free t",
        "    extern t.g(x)",
        "  free b",
        "  return ()",
    ]


def test_a_tensor_outlives_its_descriptor():
    body = (
        "  kernel k(t: tensordesc<f32[4]>) warps 4 stages 3:\n    def k(t): ...\n  end\n"
        "  b = alloc f32[8] cpu\n  v = view b f32[4] cpu\n  d = describe v block (4,)\n"
        "  extern t.f(b) mutates (b,)\n  launch k grid (1, 1, 1) (d)\n  c = alloc f32[8] cpu\n"
        "  extern t.f(c) mutates (c,)\n  return ()\n"
    )
    lines = freed(body)
    at = lines.index("  launch k grid (1, 1, 1) (d)")
    assert lines.index("  free b") == at + 1
    program = parse_program("program p(x: f32[4] cpu, n: int):\n" + body)
    planned = run_passes(program, [InsertFrees(), PlanMemory()])
    lines = print_program(planned).split("\n")
    assert lines.index("  c = reuse b f32[8] cpu") > lines.index("  launch k grid (1, 1, 1) (d)")
