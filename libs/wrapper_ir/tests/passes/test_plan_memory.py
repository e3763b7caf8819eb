from __future__ import annotations

from wrapper_ir import parse_program, print_program, verify
from wrapper_ir.memory import peak_bytes
from wrapper_ir.passes import InsertFrees, PlanMemory, run_passes

HEAD = "program p(x: f32[s0, 8] cpu):\n  where s0 in [1, 64] hint 4\n  symbol s0 = x.size(0)\n"


def planned(body: str, head: str = HEAD) -> list[str]:
    program = parse_program(head + body)
    verify(program)
    out = PlanMemory().run(program)
    verify(out)
    return print_program(out).split("\n")[head.count("\n") : -1]


def test_same_size_under_another_layout():
    assert planned(
        "  a = alloc f32[s0, 8] cpu\n  extern t.f(a) mutates (a,)\n  free a\n"
        "  b = alloc f32[8*s0] cpu  # why\n  extern t.f(b) mutates (b,)\n  return (b,)\n"
    ) == [
        "  a = alloc f32[s0, 8] cpu",
        "  extern t.f(a) mutates (a,)",
        "  b = reuse a f32[s0*8] cpu  # why",
        "  extern t.f(b) mutates (b,)",
        "  return (b,)",
    ]


def test_another_element_type_is_allocated():
    body = (
        "  a = alloc f32[8] cpu\n  extern t.f(a) mutates (a,)\n  free a\n"
        "  b = alloc i16[16] cpu\n  extern t.f(b) mutates (b,)\n  return (b,)\n"
    )
    assert "reuse" not in "".join(planned(body))


def test_same_size_first_then_least_waste():
    body = (
        "  a = alloc f32[s0, 16] cpu\n  b = alloc f32[s0, 8] cpu\n  c = alloc f32[s0, 32] cpu\n"
        "  free b\n  free a\n  free c\n  d = alloc f32[s0, 8] cpu\n  e = alloc f32[s0, 8] cpu\n"
        "  return (x,)\n"
    )
    assert planned(body)[-3:-1] == ["  d = reuse b f32[s0, 8] cpu", "  e = reuse a f32[s0, 8] cpu"]


def test_not_where_it_might_not_fit():
    for size in ("s0 + 1", "s0*s0", "s0*2"):
        body = f"  a = alloc f32[s0] cpu\n  free a\n  b = alloc f32[{size}] cpu\n"
        body += "  extern t.f(b) mutates (b,)\n  return (b,)\n"
        assert not any("reuse" in line for line in planned(body))


def test_a_fit_that_needs_the_range():
    body = "  a = alloc f32[64] cpu\n  free a\n  b = alloc f32[s0] cpu\n  return ()\n"
    assert "  b = reuse a f32[s0] cpu" in planned(body)


def test_not_across_devices_and_not_what_belongs_to_others():
    head = "program p(x: f32[8] cpu):\n"
    body = (
        "  a = alloc f32[8] cuda:0\n  free a\n  b = alloc f32[8] cuda:1\n"
        "  extern t.f(b) mutates (b,)\n  return (b,)\n"
    )
    assert "  b = alloc f32[8] cuda:1" in planned(body, head)
    # `aten.contiguous` may return its argument: what it gave is not taken over.
    call = (
        "  a = extern {} -> f32[8] cpu\n  free a\n  b = alloc f32[8] cpu\n"
        "  extern t.f(b) mutates (b,)\n  return (b,)\n"
    )
    assert "  b = alloc f32[8] cpu" in planned(call.format("aten.contiguous.default(x)"), head)
    assert "  b = reuse a f32[8] cpu" in planned(call.format("aten.mm.default(x, x)"), head)


def test_peak_never_grows():
    # Keeping `a` for `c` would hold it beside `big`, keeping `big` for `d` would beside `c`.
    body = (
        "  a = alloc f32[s0, 8] cpu\n  free a\n  big = alloc f32[s0, 100] cpu\n  free big\n"
        "  c = alloc f32[s0, 8] cpu\n  d = alloc f32[s0, 90] cpu\n"
        "  extern t.f(c, d) mutates (c, d)\n  return (c, d)\n"
    )
    assert not any("reuse" in line for line in planned(body))
    assert "  c = reuse a f32[s0, 8] cpu" in planned(body.replace("100", "50"))


def test_what_is_returned_wastes_nothing():
    body = (
        "  a = alloc f32[s0, 8] cpu\n  free a\n  b = alloc f32[s0, 6] cpu\n"
        "  v = view b f32[s0] cpu\n  extern t.f(v) mutates (v,)\n  return ({},)\n"
    )
    assert "  b = reuse a f32[s0, 6] cpu" in planned(body.format("x"))
    assert "  b = alloc f32[s0, 6] cpu" in planned(body.format("v"))


def test_block_memory_counts():
    body = (
        "  a = alloc f32[s0, 8] cpu\n  free a\n  if s0 > 4:\n    t = alloc f32[s0, 8] cpu\n"
        "    free t\n  b = alloc f32[s0, 8] cpu\n  extern t.f(b) mutates (b,)\n"
        "  return (b,)\n"
    )
    assert "  b = alloc f32[s0, 8] cpu" in planned(body)


def test_gaps_in_what_may_be_empty():
    head = HEAD.replace("[1, 64]", "[0, 64]")
    body = (
        "  a = alloc f32[s0, 8] cpu stride (16, 1)\n  free a\n  b = alloc f32[s0, 8] cpu\n"
        "  return (x,)\n"
    )
    assert "  b = alloc f32[s0, 8] cpu" in planned(body, head)
    assert "  b = reuse a f32[s0, 8] cpu" in planned(body)


def test_encoder(golden):
    program = parse_program(golden("encoder.txt"))
    out = run_passes(program, [InsertFrees(), PlanMemory()])
    assert print_program(out, after="plan_memory") == golden("encoder.plan_memory.txt")
    freed = InsertFrees().run(program)
    for s0 in (1, 2, 7, 64):
        peaks = [peak_bytes(p, {"s0": s0}) for p in (program, freed, out)]
        assert peaks[2] <= peaks[1] < peaks[0]


def test_peak_of_a_program():
    text = HEAD + (
        "  a = alloc f32[s0, 8] cpu\n  b = extern t.f(x) -> f16[s0] cpu\n  free a\n"
        "  if s0 > 4:\n    t = alloc f32[100] cpu\n  return (b,)\n"
    )
    program = parse_program(text)
    assert peak_bytes(program) == max(4 * 32 + 4 * 2, 4 * 2 + 400)
    assert peak_bytes(program, {"s0": 50}) == 50 * 32 + 50 * 2
