"""Waits move to the first use, what a communication was given is left alone until then."""

from __future__ import annotations

import pytest

from wrapper_ir import Program, parse_program, print_program
from wrapper_ir.passes import InsertFrees, OverlapCollectives, Pass, PlanMemory, run_passes

HEAD = "program p(x: f32[4] cpu, y: f32[4] cpu):\n"


def c10d(call: str) -> str:
    return f"extern _c10d_functional.{call}"


WAIT = c10d("wait_tensor.default")


def lines(body: str, *passes: Pass[Program]) -> list[str]:
    program = parse_program(HEAD + body)
    out = run_passes(program, passes or (OverlapCollectives(),))
    return [line.strip() for line in print_program(out).split("\n")[1:-1]]


def test_a_wait_moves_to_the_first_use_and_a_sum_is_made_in_place() -> None:
    assert lines(
        "  a = alloc f32[4] cpu\n  extern t.fill(a) mutates (a,)\n"
        f'  r = {c10d("all_reduce.default")}(a, "sum", "0") -> f32[4] cpu\n'
        f"  w = {WAIT}(r) -> f32[4] cpu\n"
        "  b = extern t.f(x) -> f32[4] cpu\n  c = extern t.g(b, w) -> f32[4] cpu\n  return (c,)\n"
    )[2:] == [
        f'r = {c10d("all_reduce_.default")}(a, "sum", "0") mutates (a,) alias a -> f32[4] cpu',
        "b = extern t.f(x) -> f32[4] cpu",
        f"w = {WAIT}(r) alias r -> f32[4] cpu",
        "c = extern t.g(b, w) -> f32[4] cpu",
        "return (c,)",
    ]


@pytest.mark.parametrize("operand", ["x", "a"])
def test_sums_of_what_is_not_ones_own_or_is_used_later_are_copied(operand: str) -> None:
    body = (
        "  a = alloc f32[4] cpu\n  extern t.fill(a) mutates (a,)\n"
        f'  r = {c10d("all_reduce.default")}({operand}, "sum", "0") -> f32[4] cpu\n'
        f"  w = {WAIT}(r) -> f32[4] cpu\n  return (w, a)\n"
    )
    assert lines(body)[2] == body.split("\n")[2].strip()


def test_a_wait_stays_before_writes_to_what_is_sent() -> None:
    assert lines(
        f'  r = {c10d("all_reduce.default")}(x, "sum", "0") -> f32[4] cpu\n'
        f"  w = {WAIT}(r) -> f32[4] cpu\n"
        "  b = extern t.f(y) -> f32[4] cpu\n  copy b -> x\n  return (w,)\n"
    )[1:] == [
        "b = extern t.f(y) -> f32[4] cpu",
        f"w = {WAIT}(r) -> f32[4] cpu",
        "copy b -> x",
        "return (w,)",
    ]


def test_what_is_sent_is_neither_freed_nor_reused_before_the_wait() -> None:
    sent = (
        "  a = alloc f32[4] cpu\n  extern t.fill(a) mutates (a,)\n"
        f'  r = {c10d("all_gather_into_tensor.default")}(a, 2, "0") -> f32[8] cpu\n'
        f"  w = {WAIT}(r) -> f32[8] cpu\n"
        "  b = alloc f32[4] cpu\n  extern t.fill(b) mutates (b,)\n"
        "  c = extern t.g(b, w) -> f32[4] cpu\n  return (c,)\n"
    )
    planned = lines(sent, OverlapCollectives(), InsertFrees(), PlanMemory())
    assert planned.index("free a") > planned.index(f"w = {WAIT}(r) -> f32[8] cpu")
    assert "b = alloc f32[4] cpu" in planned


def test_copies_from_a_host_are_waited_for_late() -> None:
    fetch, fetched = (f"extern aten_lowering.{name}.default" for name in ("fetch", "fetched"))
    assert lines(
        f"  r = {fetch}(x) -> f32[4] cpu\n  w = {fetched}(r) -> f32[4] cpu\n"
        "  b = extern t.f(y) -> f32[4] cpu\n  c = extern t.g(b, w) -> f32[4] cpu\n  return (c,)\n"
    )[1:3] == ["b = extern t.f(y) -> f32[4] cpu", f"w = {fetched}(r) -> f32[4] cpu"]
