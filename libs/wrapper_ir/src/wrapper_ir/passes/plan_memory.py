"""Takes over dead storages instead of allocating new ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy

from symexpr import Evaluation, known
from tensor_ir import TensorType
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

Ranges = Mapping[sympy.Symbol, tuple[int | None, int | None]]

# Operators whose result is always a new storage with exactly the declared layout. What others
# return may be an argument itself (aten.contiguous) or part of something larger.
FRESH = frozenset(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution")
)


@dataclass(frozen=True)
class PlanMemory:
    """`free b0 ... b4 = alloc T` -> `... b4 = reuse b0 T`, when the storage of b0 is at least as
    large as T for every size in range, on the same device, and no moment of the new program
    holds more than the fullest moment of the old one (proven, not sampled; bytes of all devices
    together). Same sizes are taken first, the latest dead among them; else the least waste; what
    is returned never wastes. Nothing changes where a storage has gaps and a size that may be 0:
    how much it holds is not one expression then.

    Only ops at the top level change. fresh: operators whose results may be taken over."""

    name: ClassVar[str] = "plan_memory"
    fresh: frozenset[str] = FRESH

    def run(self, program: Program) -> Program:
        """The program with storages reused."""
        plan = _Plan(program, self.fresh)
        if not all(map(plan.bytes.exact, plan.types.values())):
            return program  # its fullest moment is not known
        return replace(program, ops=plan.rewritten())


class _Bytes:
    """Byte counts as expressions, with memory: programs repeat few sizes many times."""

    def __init__(self, program: Program) -> None:
        self.ranges: Ranges = ranges(program)
        self.at = [Evaluation(env) for env in (hint_env(program), *sample_envs(program))]
        self._sums: dict[tuple[sympy.Expr, sympy.Expr], sympy.Expr] = {}
        self._order: dict[tuple[sympy.Expr, sympy.Expr], bool] = {}
        self._values: dict[sympy.Expr, list[int]] = {}
        self._sizes: dict[TensorType, sympy.Expr] = {}

    def of(self, type: TensorType) -> sympy.Expr:
        """Bytes of the storage; an upper bound where a size may be 0 and there are gaps."""
        if type not in self._sizes:
            elements = type.numel if type.is_contiguous else type.extent
            if not self.exact(type):
                elements = sympy.Max(0, elements)
            self._sizes[type] = sympy.expand((elements + type.offset) * type.dtype.itemsize)
        return self._sizes[type]

    def exact(self, type: TensorType) -> bool:
        """Whether `of` is the number of bytes and not only an upper bound."""
        if type.is_contiguous and type.offset == 0:
            return True
        return all(known(n >= 1, self.ranges) is True for n in type.size)

    def inside(self, op: Op) -> sympy.Expr:
        """At most so many bytes are made inside of an op: the blocks of `if`."""
        if not isinstance(op, If):
            return sympy.S.Zero
        made = (type for o in walk((*op.then, *op.orelse)) for type in _made(o).values())
        return sympy.Add(*map(self.of, made))

    def add(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        if (a, b) not in self._sums:
            self._sums[a, b] = sympy.expand(a + b)
        return self._sums[a, b]

    def at_most(self, a: sympy.Expr, b: sympy.Expr) -> bool:
        """Whether `a <= b` is proven."""
        if (a, b) not in self._order:
            less = self.add(b, -a)
            proven = less >= 0 if less.is_Integer else known(less >= 0, self.ranges) is True
            self._order[a, b] = bool(proven)
        return self._order[a, b]

    def values(self, a: sympy.Expr) -> list[int]:
        """For the hints, then for the sampled sizes."""
        if a not in self._values:
            self._values[a] = [int(at.value(a)) for at in self.at]
        return self._values[a]


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
        self.bytes = _Bytes(program)
        self.types: dict[str, TensorType] = {}  # type of the whole storage that a name owns
        self.reusable: set[str] = set()
        self.ends: dict[str, int] = {}  # name -> op that frees it or takes it over
        self.live: list[sympy.Expr] = []  # bytes held after each op
        roots = storages(program.ops, param_roots(program))
        self.returned = {roots[name] for op in program.ops[-1:] for name in uses(op)}
        total: sympy.Expr = sympy.S.Zero
        for i, op in enumerate(program.ops):
            if isinstance(op, Free):
                self.ends[op.name] = i
                total = self.bytes.add(total, -self.bytes.of(self.types[op.name]))
            elif isinstance(op, Reuse):
                self.ends[op.src] = i
                self.types[op.out] = self.types[op.src]
                self.reusable |= {op.out} if op.src in self.reusable else set()
            for name, type in _made(op).items():
                self.types[name] = type
                total = self.bytes.add(total, self.bytes.of(type))
                if isinstance(op, Allocate) or (isinstance(op, ExternCall) and op.target in fresh):
                    self.reusable.add(name)
            self.live.append(total)
        self.inside = [self.bytes.inside(op) for op in program.ops]
        held = [self.bytes.values(e) for e in self.live]
        self.peaks = [max(column) for column in zip(*held, strict=True)]
        fullest = {[row[k] for row in held].index(peak) for k, peak in enumerate(self.peaks)}
        self.fullest = {self.live[i] for i in fullest}

    def rewritten(self) -> tuple[Op, ...]:
        pool: dict[str, _Dead] = {}
        for i, op in enumerate(self.ops):
            if isinstance(op, Free) and op.name in self.reusable:
                type = self.types[op.name]
                if type.offset == 0:
                    pool[op.name] = _Dead(op.name, i, type, self.bytes.of(type))
            elif isinstance(op, Allocate):
                self.place(i, op, pool)
        return tuple(op for op in self.ops if op is not None)

    def place(self, index: int, op: Allocate, pool: dict[str, _Dead]) -> None:
        need = self.bytes.of(op.type)
        for dead in self.candidates(op, need, pool):
            waiting = range(dead.index, index)
            if not self.fits(waiting, dead.bytes):
                del pool[dead.name]  # nor will it be allowed to wait any longer
                continue
            waste = self.bytes.add(dead.bytes, -need)
            holding = range(index, self.end(op.out)) if waste != 0 else range(0)
            if self.fits(holding, waste):
                del pool[dead.name]
                self.hold(waiting, dead.bytes)
                self.hold(holding, waste)
                self.ops[dead.index] = None
                self.ops[index] = Reuse(op.out, dead.name, op.type, op.comment)
                self.ends[dead.name] = index
                self.types[op.out] = dead.type
                return

    def candidates(self, op: Allocate, need: sympy.Expr, pool: dict[str, _Dead]) -> list[_Dead]:
        """Those that fit: same size first, then least waste; the latest dead first."""
        found: list[tuple[bool, int, int, _Dead]] = []
        for dead in pool.values():
            differs = dead.bytes != need
            if dead.type.device != op.type.device:
                continue
            if differs and op.out in self.returned:
                continue  # the caller would keep the waste
            if self.bytes.at_most(need, dead.bytes):
                waste = self.bytes.values(dead.bytes)[0] - self.bytes.values(need)[0]
                found.append((differs, waste, -dead.index, dead))
        return [dead for *_, dead in sorted(found, key=lambda f: f[:3])]

    def end(self, name: str) -> int:
        """The op that ends the storage which `name` owns now."""
        while True:
            index = self.ends.get(name, len(self.ops))
            op = self.ops[index] if index < len(self.ops) else None
            if not isinstance(op, Reuse):
                return index
            name = op.out

    def fits(self, points: range, extra: sympy.Expr) -> bool:
        """Whether `extra` bytes more at these ops are no more than at the fullest moment."""
        more = self.bytes.values(extra)
        for p in points:
            if not isinstance(self.ops[p], Allocate | ExternCall | If):
                continue  # no fuller than the op before it
            rows = zip(self.bytes.values(self.live[p]), more, self.peaks, strict=True)
            if any(have + plus > peak for have, plus, peak in rows):
                return False
            bound = self.bytes.add(self.bytes.add(self.live[p], extra), self.inside[p])
            if not any(self.bytes.at_most(bound, full) for full in self.fullest):
                return False
        return True

    def hold(self, points: range, extra: sympy.Expr) -> None:
        for p in points:
            self.live[p] = self.bytes.add(self.live[p], extra)


def _made(op: Op) -> dict[str, TensorType]:
    """Storages that an op makes."""
    if isinstance(op, Allocate | ExternCall) and alias_source(op) is None:
        return dict(definitions(op))
    return {}
