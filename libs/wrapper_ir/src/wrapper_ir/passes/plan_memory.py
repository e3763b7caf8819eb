"""Takes over dead storages instead of allocating new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy

from symexpr import evaluate, known
from wrapper_ir.analysis import (
    alias_source,
    definitions,
    param_roots,
    ranges,
    sample_envs,
    storages,
    uses,
    walk,
)
from wrapper_ir.memory import hint_env
from wrapper_ir.ops import Allocate, ExternCall, Free, If, Op, Program, Reuse
from wrapper_ir.types import TensorType

Ranges = Mapping[sympy.Symbol, tuple[int | None, int | None]]

# Operators whose result is always a new storage with exactly the declared layout. What others
# return may be an argument itself (aten.contiguous) or part of something larger.
FRESH = frozenset({
    "aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default",
    "aten.linear.default", "aten.convolution.default",
})  # fmt: skip


@dataclass(frozen=True)
class PlanMemory:
    """`free b0 ... b4 = alloc T` -> `... b4 = reuse b0 T`, when the storage of b0 is at least as
    large as T for every size in range, on the same device, and no moment of the new program
    holds more than the fullest moment of the old one (proven, not sampled). Same sizes are taken
    first, the latest dead among them; else the least waste; what is returned never wastes.
    Nothing changes where a storage has
    gaps and a size that may be 0: how much it holds is not one expression then.

    Only ops at the top level change. fresh: operators whose results may be taken over.
    """

    name: ClassVar[str] = "plan_memory"
    fresh: frozenset[str] = FRESH

    def run(self, program: Program) -> Program:
        plan = _Plan(program, self.fresh)
        if not all(map(plan.exact, plan.types.values())):
            return program  # its fullest moment is not known
        for i, op in enumerate(program.ops):
            if isinstance(op, Allocate):
                plan.place(i, op)
        return replace(program, ops=tuple(op for op in plan.ops if op is not None))


@dataclass(frozen=True)
class _Dead:
    """A storage that was freed at op `index` and not taken over yet."""

    name: str
    index: int
    type: TensorType
    bytes: sympy.Expr


class _Plan:
    def __init__(self, program: Program, fresh: frozenset[str]) -> None:
        self.ops: list[Op | None] = list(program.ops)
        self.ranges: Ranges = ranges(program)
        self.envs = [hint_env(program), *sample_envs(program)]
        self.types: dict[str, TensorType] = {}  # type of the whole storage that a name owns
        self.reusable: set[str] = set()
        roots = storages(program.ops, param_roots(program))
        last = program.ops[-1:]
        self.returned = {roots[name] for op in last for name in uses(op)}
        self.freed_at: dict[str, int] = {}
        self.live: list[sympy.Expr] = []  # bytes held after each op
        self.inner: list[sympy.Expr] = []  # at most so many more inside the op: blocks of `if`
        total: sympy.Expr = sympy.S.Zero
        for i, op in enumerate(program.ops):
            if isinstance(op, Free):
                self.freed_at[op.name] = i
                total -= self.size(self.types[op.name])
            elif isinstance(op, Reuse):
                self.types[op.out] = self.types[op.src]
                self.freed_at[op.src] = i
                if op.src in self.reusable:
                    self.reusable.add(op.out)
            elif isinstance(op, Allocate | ExternCall) and alias_source(op) is None:
                for name, type in definitions(op):
                    self.types[name] = type
                    total += self.size(type)
                    if isinstance(op, Allocate) or op.target in fresh:
                        self.reusable.add(name)
            self.live.append(total)
            self.inner.append(self.block_size(op))
        self.live_at = [[_value(e, env) for env in self.envs] for e in self.live]

    def size(self, type: TensorType) -> sympy.Expr:
        """Bytes of the storage; an upper bound where a size may be 0 and there are gaps."""
        elements = type.extent
        if type.is_contiguous:
            elements = type.numel
        elif not self.exact(type):
            elements = sympy.Max(0, elements)
        return sympy.expand((elements + type.offset) * type.dtype.itemsize)

    def exact(self, type: TensorType) -> bool:
        """Whether `size` is the number of bytes and not only an upper bound."""
        if type.is_contiguous and type.offset == 0:
            return True
        return all(known(n >= 1, self.ranges) is True for n in type.size)

    def block_size(self, op: Op) -> sympy.Expr:
        if not isinstance(op, If):
            return sympy.S.Zero
        made = [
            type
            for inner in walk((*op.then, *op.orelse))
            if isinstance(inner, Allocate | ExternCall) and alias_source(inner) is None
            for _, type in definitions(inner)
        ]
        return sympy.Add(*map(self.size, made))

    def at_most(self, a: sympy.Expr, b: sympy.Expr) -> bool:
        difference = sympy.expand(b - a)
        if difference.is_Integer:
            return bool(difference >= 0)
        return known(difference >= 0, self.ranges) is True

    def place(self, index: int, op: Allocate) -> None:
        need = self.size(op.type)
        for dead in self.candidates(index, op, need):
            if self.fits_peak(dead, index, op, need):
                self.take_over(dead, index, op, need)
                return

    def candidates(self, index: int, op: Allocate, need: sympy.Expr) -> Sequence[_Dead]:
        found: list[tuple[bool, int, int, _Dead]] = []
        for name in self.reusable:
            free = self.freed_at.get(name, index)
            type = self.types[name]
            if free >= index or not isinstance(self.ops[free], Free):
                continue
            if type.device != op.type.device or type.offset != 0:
                continue
            have = self.size(type)
            if have != need and op.out in self.returned:
                continue  # the caller would keep the waste
            if self.at_most(need, have):
                waste = _value(have - need, self.envs[0])
                found.append((have != need, waste, -free, _Dead(name, free, type, have)))
        return [dead for *_, dead in sorted(found, key=lambda f: f[:3])]

    def end(self, name: str) -> int:
        """The op after which the storage that `name` now owns is gone."""
        while True:
            index = self.freed_at.get(name, len(self.ops))
            op = self.ops[index] if index < len(self.ops) else None
            if not isinstance(op, Reuse):
                return index
            name = op.out

    def changes(
        self, dead: _Dead, index: int, op: Allocate, need: sympy.Expr
    ) -> list[tuple[range, sympy.Expr]]:
        """Extra bytes while the storage waits, then what it is larger than needed."""
        waiting = (range(dead.index, index), dead.bytes)
        waste = sympy.expand(dead.bytes - need)
        return [waiting, (range(index, self.end(op.out)), waste)] if waste != 0 else [waiting]

    def fits_peak(self, dead: _Dead, index: int, op: Allocate, need: sympy.Expr) -> bool:
        peaks = [max(column) for column in zip(*self.live_at, strict=True)]
        fullest = {
            next(i for i, row in enumerate(self.live_at) if row[k] == peak)
            for k, peak in enumerate(peaks)
        }
        for points, extra in self.changes(dead, index, op, need):
            more = [_value(extra, env) for env in self.envs]
            for p in points:
                if self.inner[p] == 0 and p > 0 and not self.grows(p):
                    continue  # no fuller than the op before it, which is checked or unchanged
                bound = self.live[p] + self.inner[p] + extra
                rows = zip(self.live_at[p], more, peaks, strict=True)
                if any(have + plus > peak for have, plus, peak in rows):
                    return False
                if not any(self.at_most(bound, self.live[q]) for q in fullest):
                    return False
        return True

    def grows(self, p: int) -> bool:
        return not self.at_most(self.live[p], self.live[p - 1])

    def take_over(self, dead: _Dead, index: int, op: Allocate, need: sympy.Expr) -> None:
        for points, extra in self.changes(dead, index, op, need):
            more = [_value(extra, env) for env in self.envs]
            for p in points:
                self.live[p] = sympy.expand(self.live[p] + extra)
                self.live_at[p] = [a + b for a, b in zip(self.live_at[p], more, strict=True)]
        self.ops[dead.index] = None
        self.ops[index] = Reuse(op.out, dead.name, op.type, op.comment)
        self.freed_at[dead.name] = index
        self.types[op.out] = dead.type


def _value(expression: sympy.Expr, env: Mapping[str, int]) -> int:
    return int(evaluate(expression, env))
