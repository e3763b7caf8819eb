"""Between which numbers values lie, and what follows for integers: places that lie inside of their
tensor, and values for which 32 bits are as good as 64."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import sympy

from loop_ir import Compute, Const, DType, Index, Indirect, Kernel, Stmt, Store
from loop_ir.ir import operands, ranges_of, results, statements
from symexpr import bounds
from triton_emit.ssa import clean

_Ranges = dict[sympy.Symbol, tuple[int | None, int | sympy.Expr | None]]

INT32_MAX = 2**31 - 1
FITS = INT32_MAX - 65536  # a tile overhangs what it covers
# What `saturated` leaves of numbers that 32 bits do not hold, and how far it may be moved.
_MOST_MOVED = 255
_BELOW = {"ge": 1, "gt": 1, "le": 0, "lt": 0}  # which argument is not above the other
_IN_32 = frozenset(
    ("add", "sub", "neg", "mul", "minimum", "maximum", "where", "mod", "floordiv", "shr", "and")
)
_OF_FLOATS = frozenset(("minimum", "maximum", "floor", "round"))
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


@dataclass(frozen=True)
class Interval:
    """All values lie between two numbers, or are NaN unless they are known to be numbers. below:
    integer expressions that none of them passes."""

    low: float = -math.inf
    high: float = math.inf
    number: bool = False
    below: frozenset[sympy.Expr] = frozenset()


def _of_type(dtype: DType) -> Interval:
    if dtype is DType.bool_:
        return Interval(0, 1, True)
    if not dtype.is_int:
        return Interval()
    bits = 8 * dtype.itemsize
    if dtype.value.startswith("u"):
        return Interval(0, 2**bits - 1, True)
    return Interval(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, True)


def _whole(dtype: DType) -> int:
    """Up to which number a type of floats has all that are whole."""
    return {DType.f64: 2**53, DType.f32: 2**24, DType.f16: 2**11, DType.bf16: 2**8}.get(dtype, 16)


def _dtype(s: Stmt) -> DType:
    return DType.f64 if isinstance(s, Indirect | Store) else s.dtype


class Intervals:
    """`found`, those of a kernel's values. narrow: its index arithmetic fits in 32 bits. filled: a
    size that is not 0. known: some that more is known of."""

    def __init__(
        self,
        kernel: Kernel,
        narrow: bool = False,
        filled: sympy.Expr = sympy.S.One,
        known: Mapping[str, Interval] | None = None,
    ) -> None:
        self.narrow = narrow
        self.ranges: _Ranges = dict(ranges_of(kernel))
        factors = [f for f in sympy.Mul.make_args(filled) if not f.is_Integer]
        for f in factors if all(f.is_Symbol for f in factors) else ():
            low, high = self.ranges.get(f, (None, None))
            self.ranges[f] = max(1, low or 1), high
        self.made: dict[str, Stmt] = {}
        self.found: dict[str, Interval] = defaultdict(Interval)  # of parts of kernels, too
        for s in statements(kernel):
            self.made.update(dict.fromkeys(results(s), s))
            interval = self._of(s)
            self.found.update(dict.fromkeys(results(s), interval))
            self.found.update((n, known[n]) for n in results(s) if known and n in known)

    def least(self, e: sympy.Expr) -> float:
        """What an integer expression is never below."""
        low = bounds(e, self.ranges)[0]
        return -math.inf if low is None else low

    def holds(self, place: Indirect) -> bool:
        """Whether a place lies inside of its tensor, and is not counted from the end."""
        at, last = self.found[place.value], place.extent - 1
        if at.low < 0:
            return False
        return at.high <= self.least(last) or any(self.least(last - e) >= 0 for e in at.below)

    def _of(self, s: Stmt) -> Interval:
        if isinstance(s, Const):
            if s.dtype.is_float and not abs(s.value) <= _whole(s.dtype):
                return Interval()
            end = math.ceil(s.value)  # whatever it is rounded to
            return Interval(math.floor(s.value), end, True, frozenset({sympy.Integer(end)}))
        if isinstance(s, Index) and s.dtype.is_int and s.expr.is_integer:
            own = Interval(-INT32_MAX, FITS) if self.narrow else _of_type(s.dtype)
            ends = bounds(s.expr, self.ranges)
            low = own.low if ends[0] is None else max(own.low, ends[0])
            high = own.high if ends[1] is None else min(own.high, ends[1])
            return self._held(Interval(low, high, True, frozenset({s.expr})), s.dtype)
        if not isinstance(s, Compute):
            return _of_type(_dtype(s))
        args = [self.found[a] for a in s.args]
        if s.op == "cast":
            return self._cast(args[0], s)
        rule = _RULES.get(s.op)
        if s.op == "where":
            made = self._either(self._given(s.args[1], s.args[0], args[1]), args[2])
        elif rule is None or not (s.dtype.is_int or s.op in _OF_FLOATS):
            return _of_type(s.dtype)
        else:
            made = rule(self, *args)
        return self._held(made, s.dtype)

    def _held(self, made: Interval, dtype: DType) -> Interval:
        """As a type holds it: integers wrap around."""
        own = _of_type(dtype)
        return made if own.low <= made.low and made.high <= own.high else own

    def _cast(self, x: Interval, s: Compute) -> Interval:
        own = _of_type(s.dtype)
        if s.dtype.is_float:
            if not max(-x.low, x.high) <= _whole(s.dtype):
                return own
            return replace(x, low=math.floor(x.low), high=math.ceil(x.high))
        if not x.number or not (own.low <= x.low and x.high <= own.high):
            return own
        return replace(x, low=math.trunc(x.low), high=math.trunc(x.high))

    def _given(self, name: str, condition: str, known: Interval) -> Interval:
        """What is known of a value where a condition holds."""
        s = self.made.get(condition)
        if not isinstance(s, Compute) or s.op not in ("and", *_BELOW):
            return known
        if s.op == "and":
            return self._given(name, s.args[1], self._given(name, s.args[0], known))
        if name not in s.args or s.args[0] == s.args[1]:
            return known
        where = s.args.index(name)
        other = self.found[s.args[1 - where]]
        if where != _BELOW[s.op]:
            return replace(known, low=max(known.low, other.low), number=True)
        below = known.below | other.below
        return Interval(known.low, min(known.high, other.high), True, below)

    def _either(self, a: Interval, b: Interval) -> Interval:
        number = a.number and b.number
        return Interval(min(a.low, b.low), max(a.high, b.high), number, self._above_both(a, b))

    def _above_both(self, a: Interval, b: Interval) -> frozenset[sympy.Expr]:
        """The expressions that neither of two passes."""
        return frozenset(
            e
            for one, other in ((a, b), (b, a))
            for e in one.below
            if e in other.below or self.least(e) >= other.high
        )


def _monotone(function: Callable[..., float]) -> Callable[..., Interval]:
    """Of what takes its extremes where its arguments do."""

    def rule(_: Intervals, *args: Interval) -> Interval:
        if any(math.isinf(n) for a in args for n in (a.low, a.high)):
            return Interval()
        ends = [function(*at) for at in product(*((a.low, a.high) for a in args))]
        return Interval(min(ends), max(ends), all(a.number for a in args))

    return rule


def _minimum(_: Intervals, a: Interval, b: Interval) -> Interval:
    number = a.number and b.number
    return Interval(min(a.low, b.low), min(a.high, b.high), number, a.below | b.below)


def _maximum(k: Intervals, a: Interval, b: Interval) -> Interval:
    low, high = max(a.low, b.low), max(a.high, b.high)
    return Interval(low, high, a.number and b.number, k._above_both(a, b))


def _mod(_: Intervals, a: Interval, b: Interval) -> Interval:
    if b.low <= 0:
        return Interval()
    most = a.high if a.low >= 0 else math.inf
    return Interval(0, min(b.high - 1, most), True, frozenset(e - 1 for e in b.below))


def _and(_: Intervals, a: Interval, b: Interval) -> Interval:
    high = min((x.high for x in (a, b) if x.low >= 0), default=math.inf)
    return Interval(0 if high < math.inf else -math.inf, high, True)


def _by(function: Callable[[int, int], int]) -> Callable[..., Interval]:
    """Of what is divided, or shifted, by one number."""

    def rule(k: Intervals, a: Interval, b: Interval) -> Interval:
        known = b.low == b.high and 0 < b.low < 2**31 and not math.isinf(a.high - a.low)
        return _monotone(lambda x: function(int(x), int(b.low)))(k, a) if known else Interval()

    return rule


_RULES: Mapping[str, Callable[..., Interval]] = {
    "minimum": _minimum,
    "maximum": _maximum,
    "mod": _mod,
    "and": _and,
    "add": _monotone(lambda a, b: a + b),
    "sub": _monotone(lambda a, b: a - b),
    "mul": _monotone(lambda a, b: a * b),
    "neg": _monotone(lambda a: -a),
    "floor": _monotone(math.floor),
    "round": _monotone(round),
    "floordiv": _by(lambda a, n: a // n),
    "shr": _by(lambda a, n: a >> min(n, 63)),
}


def held_places(kernel: Kernel, narrow: bool) -> dict[sympy.Symbol, bool]:
    """The places that are data and known to lie inside of their tensor, if that has any; and
    whether that is known, too: `minimum(maximum(x, 0), n - 1)` of n."""
    places = [s for s in statements(kernel) if isinstance(s, Indirect)]
    found: dict[sympy.Symbol, bool] = {}
    for extent in dict.fromkeys(s.extent for s in places):
        known = Intervals(kernel, narrow, extent)
        filled = bounds(extent, dict(ranges_of(kernel)))[0]
        held = (s for s in places if s.extent == extent and known.holds(s))
        found |= dict.fromkeys((s.symbol for s in held), filled is not None and filled > 0)
    return found


def in_32_bits(kernel: Kernel) -> Kernel:
    """The kernel, whose index arithmetic fits in 32 bits, with other integers in 32 bits where
    these hold them, too: a GPU has no instructions for 64.

    `i64: minimum(maximum(cast(x) + 1, 0), n - 1)` -> i32, of `saturated(x)`: what x is beyond is
    beyond the same end then."""
    longs = [s for s in statements(kernel) if isinstance(s, Compute) and s.dtype is DType.i64]
    if not longs:
        return kernel
    short = _Short(kernel)
    if not any(s.out in short.held for s in longs):
        return kernel
    phases = (replace(p, body=tuple(n for s in p.body for n in short.of(s))) for p in kernel.phases)
    return clean(replace(kernel, phases=tuple(phases)))


class _Short:
    """held: the integers that 32 bits hold. far: of those the ones that are `saturated`, or such a
    one moved, by how much; all that reads one leaves it as far out of reach, or brings it back."""

    def __init__(self, kernel: Kernel) -> None:
        self.known = Intervals(kernel, True)
        readers: dict[str, list[Stmt]] = {}
        for s in statements(kernel):
            for name in operands(s):
                readers.setdefault(str(name), []).append(s)
        kept: set[str] = set()
        while True:
            self.held: set[str] = set()
            self.far: dict[str, int] = {}
            for s in statements(kernel):
                if isinstance(s, Const | Index | Compute) and s.out not in kept and self._holds(s):
                    self.held.add(s.out)
            seen = {n for n in self.far if not all(map(self._is_short, readers.get(n, ())))}
            if not seen:
                break
            kept |= seen

    def _fits(self, name: str, most: int = INT32_MAX) -> bool:
        interval = self.known.found[name]
        return -most - 1 <= interval.low and interval.high <= most

    def _is_short(self, s: Stmt) -> bool:
        """It is computed in 32 bits."""
        return isinstance(s, Compute) and s.out in self.held

    def _holds(self, s: Const | Index | Compute) -> bool:
        if s.dtype is not DType.i64:
            return False
        if not isinstance(s, Compute):
            return self._fits(s.out)
        if s.op == "cast":
            dtype = _dtype(self.known.made[s.args[0]])
            if dtype.is_float and not self._fits(s.out):
                self.far[s.out] = 0
            return dtype is not DType.i64 and (dtype.is_float or self._fits(s.out))
        args = s.args[1:] if s.op == "where" else s.args
        if s.op not in _IN_32 or not self.held.issuperset(args):
            return False
        near = [a for a in args if a not in self.far]
        if len(near) == len(args):
            return self._fits(s.out)
        if len(near) != 1 or s.op not in ("add", "sub", "minimum", "maximum"):
            return False
        (by,) = (self.far[a] for a in args if a in self.far)
        if s.op in ("add", "sub"):
            other = self.known.found[near[0]]
            by += int(max(abs(other.low), abs(other.high)))
        moves = by <= _MOST_MOVED and (s.op != "sub" or near[0] == args[1])
        if moves and not self._fits(s.out, FITS):
            self.far[s.out] = by
        return moves

    def of(self, s: Stmt) -> Iterator[Stmt]:
        """A statement with values in 32 bits, and the value in 64."""
        if isinstance(s, Const | Index | Compute) and s.out in self.held:
            short = replace(s, out=_name(s.out), dtype=DType.i32)
            if isinstance(short, Compute):
                args = tuple(_name(a) if a in self.held else a for a in short.args)
                saturated = short.op == "cast" and s.out in self.far
                short = replace(short, args=args, op="saturated" if saturated else short.op)
            yield short
            yield Compute(s.out, "cast", (short.out,), s.dtype) if isinstance(s, Compute) else s
        elif isinstance(s, Indirect) and self._is_short(self.known.made[s.value]):
            yield replace(s, value=_name(s.value))
        elif isinstance(s, Compute) and self._reads_short(s):
            yield replace(s, args=tuple(map(_name, s.args)))
        else:
            yield s

    def _reads_short(self, s: Compute) -> bool:
        """It takes values in 32 bits as well."""
        if (s.op != "cast" and s.op not in _COMPARISONS) or not self.held.issuperset(s.args):
            return False
        return any(self._is_short(self.known.made[a]) for a in s.args)


def _name(value: str) -> str:
    return f"{value}_short"
