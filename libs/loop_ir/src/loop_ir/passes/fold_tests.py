"""Decides the tests of places that always come out alike."""

import math
import operator
from collections.abc import Callable
from dataclasses import replace

import sympy

import symexpr
from loop_ir.ir.names import Name, renamed
from loop_ir.ir.nodes import Compute, Const, Index, Kernel, Load, Stmt, Store
from loop_ir.ir.rewrite import ranges_of, simplify_with
from loop_ir.passes.dead_code import drop_dead_statements
from tensor_ir import DType

_TESTS = ("lt", "le", "gt", "ge", "eq", "ne")
# What places are counted in.
_SIGNED = (DType.i32, DType.i64)
_COUNTED: dict[str, Callable[..., sympy.Expr]] = {
    "cast": lambda a: a,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fma": lambda a, b, c: a * b + c,
}
# Integers that f32 holds.
_EXACT = 1 << 24


def fold(kernel: Kernel) -> Kernel:
    """The kernel without what no point of it does, and without masks that hold at all points:

    i0 < 8: m = ge(index 2*i0 + 1, 0); v = load x[i0] if m else 0  ->  v = load x[i0]
    i0 < s0//4: m = lt(index 4*i0 + 3, s0)                         ->  m = const true
    m = lt(index i0, -1); v = load x[i0] if m else 0               ->  v = const 0
    m = const true; v = where(m, a, b), or v = where(n, a, a)      ->  a for v
    v = load x[i0] if m else 0; w = where(m, v, const 0)           ->  v for w
    v = add(const 0.0, const 0.0)                                  ->  const 0.0 for v
    """
    folding = _Folding(kernel)
    phases = tuple(
        replace(p, body=tuple(s for t in p.body if (s := folding.statement(t)) is not None))
        for p in kernel.phases
    )
    if not folding.changed:
        return kernel
    return drop_dead_statements(replace(kernel, phases=phases)) or kernel


class _Folding:
    """What is known of the values so far: places, decided tests, and those that are another."""

    def __init__(self, kernel: Kernel) -> None:
        self.ranges = ranges_of(kernel)
        self.places: dict[str, sympy.Expr] = {}
        self.known: dict[str, bool] = {}
        self.zeros: set[str] = set()
        # values that are never -0.0: those to which zero was added
        self.unsigned: set[str] = set()
        self.numbers: dict[str, int | float | bool] = {}
        # by value, the mask without which it is a number, and that number
        self.masked: dict[str, tuple[str, int | float | bool]] = {}
        self.names: dict[Name, Name] = {}
        self.changed = False

    def statement(self, stmt: Stmt) -> Stmt | None:
        """The statement as it is left; None where a value stands for its result."""
        stmt = renamed(stmt, self.names)
        if isinstance(stmt, Load | Store) and stmt.mask in self.known:
            self.changed = True
            if self.known[stmt.mask]:
                stmt = replace(stmt, mask=None)
            elif isinstance(stmt, Store):
                return None
            else:
                stmt = Const(stmt.out, stmt.other, stmt.dtype)
        if isinstance(stmt, Const):
            self.numbers[stmt.out] = stmt.value
        match stmt:
            case Load(out=out, mask=str(mask)):
                self.masked[out] = mask, stmt.other
            case Index(out=out, expr=expr) if stmt.dtype.is_int:
                self.places[out] = expr
            case Const(out=out, value=value) if isinstance(value, bool):
                self.known[out] = value
            case Const(out=out, value=value) if stmt.dtype.is_int:
                self.places[out] = sympy.Integer(value)
            case Const(out=out, value=value) if value == 0 and math.copysign(1, value) > 0:
                self.zeros.add(out)
                self.unsigned.add(out)
            case Compute():
                return self._computed(stmt)
        return stmt

    def _computed(self, stmt: Compute) -> Stmt | None:
        value: bool | None = None
        taken: str | None = None
        args = [self.known.get(a) for a in stmt.args]
        if stmt.op in _TESTS and all(a in self.places for a in stmt.args):
            value = self._decided(stmt.op, *(self.places[a] for a in stmt.args))
        elif stmt.op in ("and", "or") and any(a is not None for a in args):
            decides = stmt.op == "or"
            if decides in args:
                value = decides
            else:
                taken = stmt.args[args.index(None)] if None in args else stmt.args[0]
        elif stmt.op == "where" and (args[0] is not None or stmt.args[1] == stmt.args[2]):
            taken = stmt.args[1 if args[0] else 2]
        elif stmt.op == "where" and self._chosen(*stmt.args):
            taken = stmt.args[1]
        elif stmt.op == "add" and not self.unsigned.isdisjoint(stmt.args):
            self.unsigned.add(stmt.out)
            for one, other in (stmt.args, stmt.args[::-1]):
                if one in self.unsigned and other in self.zeros:
                    taken = one
        elif stmt.op == "cast" and (held := self.masked.get(stmt.args[0])) and _same(held[1], 0):
            self.masked[stmt.out] = held
        elif stmt.dtype in (*_SIGNED, DType.f32) and all(a in self.places for a in stmt.args):
            return self._place(stmt, *(self.places[a] for a in stmt.args))
        if taken is not None:
            self.names[stmt.out] = taken
        elif value is not None:
            self.known[stmt.out] = value
        else:
            return stmt
        self.changed = True
        return None if taken is not None else Const(stmt.out, bool(value), stmt.dtype)

    def _chosen(self, mask: str, value: str, other: str) -> bool:
        """Whether a value is the other one where the mask does not hold."""
        held, number = self.masked.get(value, ("", 0)), self.numbers.get(other)
        return held[0] == mask and number is not None and _same(held[1], number)

    def _place(self, stmt: Compute, *places: sympy.Expr) -> Stmt | None:
        """What is counted of places: `minimum(index 4*i0 + 4, s0)` is the first where i0 < s0//4,
        and less the start of its window 4."""
        if stmt.op in ("minimum", "maximum"):
            first = self._decided("le" if stmt.op == "minimum" else "ge", *places)
            if first is None:
                return stmt
            self.changed = True
            self.names[stmt.out] = stmt.args[0 if first else 1]
            return None
        if stmt.op not in _COUNTED:
            return stmt
        place = sympy.expand(_COUNTED[stmt.op](*places))
        if stmt.dtype in _SIGNED and self._held(place, stmt.dtype):
            self.places[stmt.out] = place
        if stmt.op == "cast" and stmt.dtype in _SIGNED:
            return stmt
        if not (place.is_Integer and abs(place) <= _EXACT):
            return stmt
        self.changed = True
        value = int(place)
        return Const(stmt.out, value if stmt.dtype in _SIGNED else float(value), stmt.dtype)

    def _held(self, place: sympy.Expr, dtype: DType) -> bool:
        """Whether an integer is what is counted, and has not wrapped: users multiply places too."""
        low, high = symexpr.bounds(place, dict(self.ranges))
        most = 1 << 8 * dtype.itemsize - 1
        return low is not None and high is not None and -most <= low and high < most

    def _decided(self, op: str, a: sympy.Expr, b: sympy.Expr) -> bool | None:
        apart = simplify_with(sympy.expand(a - b), self.ranges)
        low, high = symexpr.bounds(apart, dict(self.ranges))
        below = True if high is not None and high < 0 else None
        below = False if low is not None and low >= 0 else below
        above = True if low is not None and low > 0 else None
        above = False if high is not None and high <= 0 else above
        match op:
            case "lt":
                return below
            case "gt":
                return above
            case "ge":
                return None if below is None else not below
            case "le":
                return None if above is None else not above
        equal = False if below or above else True if low == high == 0 else None
        return equal if op == "eq" or equal is None else not equal


def _same(a: float, b: float) -> bool:
    return a == b and math.copysign(1, a) == math.copysign(1, b)
