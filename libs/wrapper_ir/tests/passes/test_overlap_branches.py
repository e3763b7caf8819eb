"""Branches run beside each other, and what one uses is there, and not used again too early."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from wrapper_ir import ExternCall, Launch, StreamSwitch, StreamWait, ops, parse_program
from wrapper_ir.analysis import definitions
from wrapper_ir.passes import InsertFrees, OverlapBranches, PlanMemory, run_passes

TYPE = "f32[1024, 1024] cuda:0"
HEAD = f"""program p(x: {TYPE}, w: {TYPE}):
  kernel k(x: *f32, y: *f32 mutated) warps 1 stages 1:
    def k(x, y): ...
  end
"""


def made(*wanted: str) -> list[str]:
    """`b a`: a launch that reads a and makes b; `c a b`: a product."""
    lines = []
    for op in wanted:
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


def random_lines(rng: random.Random) -> tuple[list[str], list[str]]:
    """Of a program whose launches and products read some of the last eight results."""
    names, made_of = ["x", "w"], []
    for i in range(40):
        read = rng.choices(names[-8:], k=rng.randint(1, 2))
        made_of.append(" ".join((f"t{i}", *read)))
        names.append(f"t{i}")
    lines = made(*made_of)
    for at in sorted(rng.sample(range(len(lines)), 3), reverse=True):
        if "launch" in lines[at]:  # written again by what is no branch of either
            name = lines[at][:-1].split()[-1]
            lines.insert(at + 1, f"extern aten.zero_.default({name}) mutates ({name},)")
    return lines, names


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int):
    """`run_passes` verifies: each op waits for what it needs, and memory is used again after."""
    lines, names = random_lines(random.Random(seed))
    program = split(lines, *names[-3:], share=0.0)
    assert any(isinstance(op, StreamSwitch) for op in program.ops)
    assert sorted(name for part in streams(program) for name in part) == sorted(names[2:])


def run(program, rng: random.Random) -> list[float]:
    """The results of a GPU that runs what it may, in any order, and of an allocator that gives what
    the host has freed to whoever asks next on the stream that first had it."""
    held: dict[str, list] = {"x": [2.0, 0], "w": [3.0, 0]}  # a number, and whose memory it is
    free: dict[int, list[list]] = {0: [], 1: []}
    queues: dict[int, list] = {0: [], 1: []}
    now = 0
    for op in program.ops:
        match op:
            case ops.Allocate():
                held[op.out] = free[now].pop() if free[now] else [math.nan, now]
            case ops.Reuse():
                held[op.out] = held.pop(op.src)
            case ops.Free():
                gone = held.pop(op.name)
                free[gone[1]].append(gone)
            case ops.Launch():
                queues[now].append(([held[op.args[0].name]], held[op.args[1].name]))
            case ops.ExternCall(mutates=()):
                name = op.outs[0][0]
                held[name] = free[now].pop() if free[now] else [math.nan, now]
                queues[now].append(([held[r.name] for r in op.args], held[name]))
            case ops.ExternCall():
                queues[now].append(([], held[op.mutates[0]]))
            case ops.StreamSwitch():
                now = op.stream
            case ops.StreamWait():
                queues[now].append((op.stream, len(queues[op.stream])))
    done = {0: 0, 1: 0}
    while left := [s for s in queues if done[s] < len(queues[s])]:
        heads = {s: queues[s][done[s]] for s in left}
        ready = [s for s, (first, many) in heads.items() if first != 1 - s or done[1 - s] >= many]
        read, out = heads[chosen := rng.choice(ready)]
        if read != 1 - chosen:
            out[0] = 0.5 + sum(x[0] / (3 + i) for i, x in enumerate(read))
        done[chosen] += 1
    return [held[value.name][0] for value in program.ops[-1].values]


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", range(20))
def test_any_order_that_waits_allow_gives_the_same(seed: int):
    lines, names = random_lines(random.Random(seed))
    two = split(lines, *names[-3:], share=0.0)
    want = run(split(lines, *names[-3:], least=1.0), random.Random(0))
    assert all(run(two, random.Random(k)) == want for k in range(10))
    loose = replace(two, ops=tuple(op for op in two.ops if not isinstance(op, StreamWait)))
    assert any(run(loose, random.Random(k)) != want for k in range(10))  # as it must
