"""Launches run where their tensors are."""

import pytest

from wrapper_ir import errors, parse_program, print_program, verify
from wrapper_ir.devices import guarded

KERNEL = "  kernel k(x: *f32 mutated) warps 4 stages 1:\n    def k(x): ...\n  end\n"
HEAD = f"program p(x: f32[4] cuda:0, y: f32[4] cuda:1, n: int):\n{KERNEL}"


def launch(name: str) -> str:
    return f"  launch k grid (1, 1, 1) ({name})\n"


def test_a_guard_where_the_device_changes():
    block = "  if n > 3:\n  " + launch("y") + "  w = workspace f32[4] cuda:0\n"
    text = HEAD + launch("x") + launch("y") + block + launch("w") + "  return ()\n"
    with pytest.raises(errors.DeviceMismatch, match="y is not on cuda:0"):
        verify(parse_program(text))
    program = guarded(parse_program(text))
    verify(program)
    assert guarded(program) == program
    made = print_program(program)
    assert [line.strip() for line in made.splitlines() if "launch" in line or "device" in line] == [
        "launch k grid (1, 1, 1) (x)", "device cuda:1", "launch k grid (1, 1, 1) (y)",
        "launch k grid (1, 1, 1) (y)", "device cuda:0", "launch k grid (1, 1, 1) (w)",
    ]  # fmt: skip


def test_programs_of_one_device_have_none():
    text = HEAD + launch("x") + "  return (y,)\n"
    program = parse_program(text)
    assert guarded(program) == program


@pytest.mark.parametrize(
    ("first", "then"), [("cuda:0", "cpu"), ("cuda:0", "cuda"), ("cuda", "cuda:1")]
)
def test_devices_have_numbers(first: str, then: str):
    text = f"program p(x: f32[4] {first}):\n  device {then}\n  return (x,)\n"
    with pytest.raises(errors.DeviceMismatch, match="not the number of a GPU"):
        verify(parse_program(text))


@pytest.mark.parametrize(
    "line", ["free w", "v = view w f32[2] cpu", "extern aten.sin_.default(w) mutates (w,)"]
)
def test_workspaces_are_for_launches_alone(line: str):
    text = f"program p(x: f32[4] cpu):\n  w = workspace f32[4] cpu\n  {line}\n  return (x,)\n"
    with pytest.raises(errors.NotOwned, match="w is a workspace"):
        verify(parse_program(text))
