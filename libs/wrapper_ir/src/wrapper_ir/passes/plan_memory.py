"""Takes over dead storages instead of allocating new ones."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, TypeAlias

import sympy

from symexpr import Evaluation, known
from tensor_ir import TensorType
from wrapper_ir import analysis
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
    large as T for every size in range, on the same device and of the same element type (to see it
    as another costs more than to allocate), and no moment of the new program holds more than the
    fullest moment of the old one (proven, not sampled; bytes of all devices together). Same sizes
    are taken first, the latest dead among them; else the least waste; what is returned never
    wastes. Nothing changes where a storage has gaps and a size that may be 0: how much it holds is
    not one expression then.

    Only ops at the top level change. fresh: operators whose results may be taken over."""

    name: ClassVar[str] = "plan_memory"
    fresh: frozenset[str] = FRESH

    def run(self, program: Program) -> Program:
        """The program with storages reused."""
        plan = _Plan(program, self.fresh)
        if not all(map(plan.bytes.exact, dict.fromkeys(plan.types.values()))):
            return program  # its fullest moment is not known
        return replace(program, ops=plan.rewritten())


Count: TypeAlias = tuple[int, ...]
_GONE = -(1 << 200)  # far less than any bytes: an op that makes nothing any more


class _Bytes:
    """Byte counts as the factors of the terms that all sizes of a program are sums of, with memory:
    programs repeat few sizes many times. Of a program without symbols each is one number."""

    def __init__(self, program: Program, types: Iterable[TensorType]) -> None:
        self.ranges: Ranges = analysis.ranges(program)
        sizes = {type: _factors(self._size(type)) for type in dict.fromkeys(types)}
        found = {term: None for size in sizes.values() for term in size}
        self.terms = tuple(found) or (sympy.S.One,)
        self.counts: dict[TensorType, Count] = {
            type: tuple(size.get(term, 0) for term in self.terms) for type, size in sizes.items()
        }
        self.none: Count = (0,) * len(self.terms)
        self.positive = all(known(term >= 0, self.ranges) is True for term in self.terms)
        at = [Evaluation(env) for env in (hint_env(program), *analysis.sample_envs(program))]
        self._at = [[int(each.value(term)) for term in self.terms] for each in at]
        self._order: dict[Count, bool] = {}
        self._values: dict[Count, list[int]] = {}

    def _size(self, type: TensorType) -> sympy.Expr:
        """Bytes of the storage; an upper bound where a size may be 0 and there are gaps."""
        elements = type.numel if type.is_contiguous else type.extent
        if not self.exact(type):
            elements = sympy.Max(0, elements)
        return sympy.expand((elements + type.offset) * type.dtype.itemsize)

    def exact(self, type: TensorType) -> bool:
        """Whether what is counted is the number of bytes and not only an upper bound."""
        if type.is_contiguous and type.offset == 0:
            return True
        return all(known(n >= 1, self.ranges) is True for n in type.size)

    def inside(self, op: Op) -> Count:
        """At most so many bytes are made inside of an op: the blocks of `if`."""
        total = self.none
        if isinstance(op, If):
            for made in map(_made, analysis.walk((*op.then, *op.orelse))):
                for type in made.values():
                    total = added(total, self.counts[type])
        return total

    def at_most(self, a: Count, b: Count) -> bool:
        """Whether `a <= b` is proven."""
        less = tuple(map(operator.sub, b, a))
        if self.positive and min(less) >= 0:
            return True
        if less not in self._order:
            rest = sympy.Add(*map(operator.mul, less, self.terms))
            proven = rest >= 0 if rest.is_Integer else known(rest >= 0, self.ranges) is True
            self._order[less] = bool(proven)
        return self._order[less]

    def values(self, a: Count) -> list[int]:
        """For the hints, then for the sampled sizes."""
        if a not in self._values:
            self._values[a] = [sum(map(operator.mul, a, terms)) for terms in self._at]
        return self._values[a]


def _factors(size: sympy.Expr) -> dict[sympy.Expr, int]:
    """`4*s0*s1 + 8` -> `{s0*s1: 4, 1: 8}`."""
    found: dict[sympy.Expr, int] = {}
    for whole in sympy.Add.make_args(size):
        number, term = whole.as_coeff_Mul()
        found |= {term: int(number)} if number.is_Integer else {whole: 1}
    return found


def added(a: Count, b: Count) -> Count:
    """The sum of two counts."""
    return tuple(map(operator.add, a, b))


@dataclass(frozen=True)
class _Dead:
    """A storage that was freed at op `index` and not taken over yet."""

    name: str
    index: int
    type: TensorType
    bytes: Count


class _Plan:
    def __init__(self, program: Program, fresh: frozenset[str]) -> None:
        self.ops: list[Op | None] = list(program.ops)
        made = (type for op in analysis.walk(program.ops) for type in _made(op).values())
        self.bytes = _Bytes(program, made)
        self.types: dict[str, TensorType] = {}  # type of the whole storage that a name owns
        self.reusable: set[str] = set()
        self.ends: dict[str, int] = {}  # name -> op that frees it or takes it over
        roots = analysis.storages(program.ops, analysis.param_roots(program))
        self.returned = {roots[name] for op in program.ops[-1:] for name in analysis.uses(op)}
        live: list[Count] = []  # bytes held after each op
        total = self.bytes.none
        for i, op in enumerate(program.ops):
            if isinstance(op, Free):
                self.ends[op.name] = i
                freed = self.bytes.counts[self.types[op.name]]
                total = tuple(map(operator.sub, total, freed))
            elif isinstance(op, Reuse):
                self.ends[op.src] = i
                self.types[op.out] = self.types[op.src]
                self.reusable |= {op.out} if op.src in self.reusable else set()
            for name, type in _made(op).items():
                self.types[name] = type
                total = added(total, self.bytes.counts[type])
                if isinstance(op, Allocate) or (isinstance(op, ExternCall) and op.target in fresh):
                    self.reusable.add(name)
            live.append(total)
        held = [self.bytes.values(count) for count in live]
        self.peaks = [max(column) for column in zip(*held, strict=True)]
        fullest = {[row[k] for row in held].index(peak) for k, peak in enumerate(self.peaks)}
        self.fullest = {live[i] for i in fullest}
        # Only the ops that make something are looked at: no other is fuller than the op before it.
        makes = [isinstance(op, Allocate | ExternCall | If) for op in program.ops]
        self.rank = [0, *accumulate(makes)]
        makers = [i for i, made in enumerate(makes) if made]
        inside = [self.bytes.inside(program.ops[i]) for i in makers]
        self.held = [list(column) for column in zip(*(held[i] for i in makers), strict=True)]
        most = (added(live[i], more) for i, more in zip(makers, inside, strict=True))
        self.most = [list(column) for column in zip(*most, strict=True)]

    def rewritten(self) -> tuple[Op, ...]:
        pool: dict[str, _Dead] = {}
        for i, op in enumerate(self.ops):
            if isinstance(op, Free) and op.name in self.reusable:
                type = self.types[op.name]
                if type.offset == 0:
                    pool[op.name] = _Dead(op.name, i, type, self.bytes.counts[type])
            elif isinstance(op, Allocate):
                self.place(i, op, pool)
        return tuple(op for op in self.ops if op is not None)

    def place(self, index: int, op: Allocate, pool: dict[str, _Dead]) -> None:
        need = self.bytes.counts[op.type]
        for dead in self.candidates(op, need, pool):
            waiting = range(dead.index, index)
            if not self.fits(waiting, dead.bytes):
                del pool[dead.name]  # nor will it be allowed to wait any longer
                continue
            waste = tuple(map(operator.sub, dead.bytes, need))
            holding = range(index, self.end(op.out)) if any(waste) else range(0)
            if self.fits(holding, waste):
                del pool[dead.name]
                self.hold(waiting, dead.bytes)
                self.hold(holding, waste)
                for column in (*self.held, *self.most):
                    column[self.rank[index]] = _GONE
                self.ops[dead.index] = None
                self.ops[index] = Reuse(op.out, dead.name, op.type, op.comment)
                self.ends[dead.name] = index
                self.types[op.out] = dead.type
                return

    def candidates(self, op: Allocate, need: Count, pool: dict[str, _Dead]) -> Iterator[_Dead]:
        """Those that fit: same size first, then least waste; the latest dead first."""
        kind = op.type.device, op.type.dtype  # others' elements are seen as these at more cost
        near = [dead for dead in pool.values() if (dead.type.device, dead.type.dtype) == kind]
        near.sort(key=lambda dead: -dead.index)
        yield from (dead for dead in near if dead.bytes == need)
        if op.out in self.returned:
            return  # the caller would keep the waste
        fitting = [d for d in near if d.bytes != need and self.bytes.at_most(need, d.bytes)]
        yield from sorted(fitting, key=lambda dead: self.bytes.values(dead.bytes)[0])

    def end(self, name: str) -> int:
        """The op that ends the storage which `name` owns now."""
        while True:
            index = self.ends.get(name, len(self.ops))
            op = self.ops[index] if index < len(self.ops) else None
            if not isinstance(op, Reuse):
                return index
            name = op.out

    def fits(self, points: range, extra: Count) -> bool:
        """Whether `extra` bytes more at these ops are no more than at the fullest moment."""
        made = slice(self.rank[points.start], self.rank[points.stop])
        if not self.held or made.start == made.stop:
            return True
        more = self.bytes.values(extra)
        for column, plus, peak in zip(self.held, more, self.peaks, strict=True):
            if max(column[made]) + plus > peak:
                return False
        # All at once, or one by one
        if self.full(added(tuple(max(column[made]) for column in self.most), extra)):
            return True
        each = zip(*(column[made] for column in self.most), strict=True)
        return all(self.full(added(held, extra)) for held in each if held[0] > _GONE // 2)

    def full(self, held: Count) -> bool:
        """Whether so much is proven to be no more than is held at the fullest moment."""
        return any(self.bytes.at_most(held, full) for full in self.fullest)

    def hold(self, points: range, extra: Count) -> None:
        made = range(self.rank[points.start], self.rank[points.stop])
        for columns, more in ((self.held, self.bytes.values(extra)), (self.most, extra)):
            for column, plus in zip(columns, more, strict=True):
                for rank in made:
                    column[rank] += plus


def _made(op: Op) -> dict[str, TensorType]:
    """Storages that an op makes."""
    if isinstance(op, Allocate | ExternCall) and analysis.alias_source(op) is None:
        return dict(analysis.definitions(op))
    return {}
