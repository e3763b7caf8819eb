"""Branches run beside each other, and what one uses is there, and not used again too early."""

from __future__ import annotations

import random

import pytest

from wrapper_ir import ExternCall, Launch, StreamSwitch, StreamWait, parse_program
from wrapper_ir.analysis import definitions
from wrapper_ir.passes import InsertFrees, OverlapBranches, PlanMemory, run_passes

TYPE = "f32[1024, 1024] cuda:0"
HEAD = f"""program p(x: {TYPE}, w: {TYPE}):
  kernel k(x: *f32, y: *f32 mutated) warps 1 stages 1:
    def k(x, y): ...
  end
"""


def made(*ops: str) -> list[str]:
    """`b a`: a launch that reads a and makes b; `c a b`: a product."""
    lines = []
    for op in ops:
        out, *read = op.split()
        if len(read) == 1:
            lines += [f"{out} = alloc {TYPE}", f"launch k grid (1, 1, 1) ({read[0]}, {out})"]
        else:
            lines.append(f"{out} = extern aten.mm.default({', '.join(read)}) -> {TYPE}")
    return lines


def split(lines: list[str], *last: str, **how: float):
    text = HEAD + "".join(f"  {line}\n" for line in lines) + f"  return ({', '.join(last)},)\n"
    passes = [OverlapBranches(**how), InsertFrees(), PlanMemory()]
    return run_passes(parse_program(text), passes)


def streams(program) -> list[list[str]]:
    """What each stream of each fork makes or launches, the last that of the call."""
    found: list[list[str]] = [[]]
    for op in program.ops:
        if isinstance(op, StreamSwitch | StreamWait):
            found += [[]] if found[-1] else []
        elif isinstance(op, ExternCall):
            found[-1] += [name for name, _ in definitions(op)]
        elif isinstance(op, Launch):
            found[-1].append(op.args[1].name)
    return found


def test_two_branches():
    program = split(made("a x", "b a w", "c b", "d a w", "e d", "f e", "g c f"), "g")
    assert streams(program) == [["a"], ["b", "c"], ["d", "e", "f"], ["g"]]


@pytest.mark.parametrize(
    "lines",
    [
        made("a x", "b a", "c b"),  # a chain
        ["extern aten.zero_.default(x) mutates (x,)", *made("a w w"), "copy a -> w"],
        [*made("a x"), f"v = view a {TYPE}", "launch k grid (1, 1, 1) (x, v)", *made("b v")],
    ],
)
def test_what_hangs_on_each_other_stays(lines: list[str]):
    assert len(streams(split(lines, lines[-1].split()[0] if "=" in lines[-1] else "w"))) == 1


def test_little_is_not_worth_it():
    lines = made("a x", "b x", "c a b")
    assert len(streams(split(lines, "c"))) == 3
    assert len(streams(split(lines, "c", least=1.0))) == 1
    assert len(streams(split(lines, "c", share=0.9))) == 1


def test_views_of_what_was_there_go_first():
    lines = [*made("a x"), f"v = view a {TYPE}", *made("b v w", "c v w", "d b c")]
    program = split(lines, "d")
    assert streams(program) == [["a"], ["c"], ["b"], ["d"]]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int):
    """`run_passes` verifies: each op waits for what it needs, and memory is used again after."""
    rng = random.Random(seed)
    names, ops = ["x", "w"], []
    for i in range(40):
        read = rng.choices(names[-8:], k=rng.randint(1, 2))
        ops.append(" ".join((f"t{i}", *read)))
        names.append(f"t{i}")
    lines = made(*ops)
    for at in sorted(rng.sample(range(len(lines)), 3), reverse=True):
        if "launch" in lines[at]:  # written again by what is no branch of either
            name = lines[at][:-1].split()[-1]
            lines.insert(at + 1, f"extern aten.zero_.default({name}) mutates ({name},)")
    program = split(lines, *names[-3:], share=0.0)
    assert any(isinstance(op, StreamSwitch) for op in program.ops)
    assert sorted(name for part in streams(program) for name in part) == sorted(names[2:])
