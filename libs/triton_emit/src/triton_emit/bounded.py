"""What is known not to be large, or to be whole: rows over their own maximum, sum or norm, clamped
values, counts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loop_ir import Compute, Const, DType, Index, Kernel, Load, Reduce, Stmt
from loop_ir.ir import results, statements
from triton_emit.intervals import Interval, Intervals
from triton_emit.ssa import clean

_FLOATS = frozenset({DType.bf16, DType.f32})  # which have the same exponents
_POSITIVE = frozenset({"abs", "exp", "near_exp", "exp2", "sigmoid", "near_sigmoid", "sqrt"})
_BYTES = (DType.i8, DType.u8)
_WIDE = (DType.u8, DType.u16)  # which other floats reach by way of 64 bits
_TINY = 2.0**-126  # what is smaller has fewer bits
_LARGE = 2.0**60
_Made = Mapping[str, Stmt]


@dataclass(frozen=True)
class _Divisor:
    """A value that is never negative. times: by name, what is in magnitude at most that many times
    it, where it is neither 0 nor NaN. least: a number that it is never below."""

    times: Mapping[str, float] = field(default_factory=dict)
    least: float = 0.0


def within_bounds(kernel: Kernel) -> Kernel:
    """The kernel with operations of this library's own, which give the same bits:

    `x / y` -> `bounded_div(x, y)` in f32, where y is made of the maximum or the sum of the |x| of
    a row, or of the root of the sum of their squares: no quotient but that by 0 is infinite.

    `x / y` -> `count_div(x, y)` in f32, where y is a whole number: nothing overflows.

    `cast(round(x)) : i8` -> `byte(x)`, where x is such a quotient below 256, or what is clamped
    to less: no conversion, which costs as much as four additions.

    `cast(x) : f8e4m3` -> `fit(x)`, where x is known to be at most 464: nothing is out of range;
    likewise `cast(x) : u8`, which goes through 32 bits where they are enough."""
    body = list(statements(kernel))
    if not any(isinstance(s, Compute) and _may_gain(s) for s in body):
        return kernel
    made: dict[str, Stmt] = {n: s for s in body for n in results(s)}
    quotients: dict[str, Interval] = {}
    small: dict[str, float] = {}  # quotients that are infinite where they divide by 0
    written: dict[str, tuple[Stmt, ...]] = {}
    for s in body:
        if not isinstance(s, Compute):
            continue
        divisor = _divisor(s.args[1], made) if s.op == "div" and s.dtype is DType.f32 else None
        times = divisor.times.get(_magnitude_of(s.args[0], made)) if divisor else None
        if divisor and times is not None and times < _LARGE:
            written[s.out] = (replace(s, op="bounded_div"),)
            if divisor.least > 0:
                quotients[s.out] = Interval(-times, times)
            small[s.out] = times
        elif s.op == "div" and s.dtype is DType.f32 and _is_count(s.args[1], made):
            written[s.out] = (replace(s, op="count_div"),)
    casts = [s for s in body if isinstance(s, Compute) and s.op == "cast" and _may_gain(s)]
    found = Intervals(kernel, known=quotients).found if casts else {}
    for s in casts:
        inside = found[s.args[0]]
        if s.dtype in _BYTES:
            written[s.out] = _byte(s, made, inside, small)
        float8 = s.dtype is DType.f8e4m3 and _is_f32(s.args[0], made)
        most = 464 if float8 else 2**31 - 1 if s.dtype in _WIDE else -1
        if written.get(s.out, (s,)) == (s,) and -most <= inside.low <= inside.high <= most:
            written[s.out] = (replace(s, op="fit"),)

    def new(s: Stmt) -> tuple[Stmt, ...]:
        return written.get(s.out, (s,)) if isinstance(s, Compute) else (s,)

    phases = tuple(replace(p, body=tuple(n for s in p.body for n in new(s))) for p in kernel.phases)
    return kernel if phases == kernel.phases else clean(replace(kernel, phases=phases))


def _may_gain(s: Compute) -> bool:
    small = s.op == "cast" and s.dtype in (*_BYTES, *_WIDE, DType.f8e4m3)
    return small or (s.op == "div" and s.dtype is DType.f32)


def _is_count(name: str, made: _Made) -> bool:
    """A value that was an integer."""
    s = made.get(name)
    if not isinstance(s, Compute) or s.op != "cast":
        return False
    whole = made.get(s.args[0])
    return isinstance(whole, Compute | Index | Load) and whole.dtype.is_int


def _divisor(name: str, made: _Made) -> _Divisor | None:
    """What a value is never below; None where it may be negative, for all that is known."""
    s = made.get(name)
    if isinstance(s, Reduce):
        (value, *others) = s.args
        if others or s.op not in ("max", "sum") or not _positive(value, made):
            return None
        return _Divisor(dict.fromkeys((value, _magnitude_of(value, made)), 1.0))
    if not isinstance(s, Compute) or s.dtype not in _FLOATS:
        return None
    if s.op in ("cast", "narrow") and _is_float(s.args[0], made):
        return _scaled(_divisor(s.args[0], made), 1.0)
    if s.op == "sqrt":
        return _root(_divisor(s.args[0], made), made)
    if s.op not in ("mul", "div", "add", "maximum"):
        return None
    number, other = _number(s.args[1], made), s.args[0]
    if number is None and s.op != "div":
        number, other = _number(s.args[0], made), s.args[1]
    inner = _divisor(other, made) if number is not None else None
    if number is None or inner is None or not 0 <= number < _LARGE:
        return None
    if s.op in ("add", "maximum"):
        return replace(inner, least=max(inner.least, number))
    if number <= 1 / _LARGE:
        return None
    return _scaled(inner, number if s.op == "mul" else 1 / number)


def _scaled(divisor: _Divisor | None, by: float) -> _Divisor | None:
    """Of what is multiplied and rounded: to half of itself more, where it has few bits."""
    if divisor is None:
        return None
    least = 0.99 * by * divisor.least
    off = 1.01 if least >= _TINY else 1.51
    return _Divisor({n: off * t / by for n, t in divisor.times.items()}, least)


def _root(divisor: _Divisor | None, made: _Made) -> _Divisor | None:
    """Of a sum of squares, those below 2**-149 of which are 0."""
    if divisor is None:
        return None
    times: dict[str, float] = {}
    for name, t in divisor.times.items():
        s = made.get(name)
        if isinstance(s, Compute) and s.op == "mul" and s.args[0] == s.args[1]:
            times[_magnitude_of(s.args[0], made)] = 2 * math.sqrt(max(t, 1.0))
    return _Divisor(times, 0.99 * math.sqrt(divisor.least))


def _magnitude_of(name: str, made: _Made) -> str:
    """The value whose magnitude this one has."""
    s = made.get(name)
    while isinstance(s, Compute) and s.op in ("abs", "neg") and s.dtype is DType.f32:
        name = s.args[0]
        s = made.get(name)
    return name


def _positive(name: str, made: _Made) -> bool:
    """Whether a float is known not to be negative."""
    s = made.get(name)
    if not isinstance(s, Compute) or s.dtype is not DType.f32:
        return False
    square = s.op == "mul" and s.args[0] == s.args[1]
    return square or s.op in _POSITIVE


def _byte(
    s: Compute, made: _Made, inside: Interval, small: Mapping[str, float]
) -> tuple[Stmt, ...]:
    """The cast of a rounded value to a byte, and the clamps between, without the rounding."""
    clamps: list[Compute] = []
    at = made.get(s.args[0])
    while isinstance(at, Compute) and at.op in ("maximum", "minimum"):
        number = _number(at.args[1], made)
        if number is None or not number.is_integer():
            return (s,)
        clamps.append(at)
        at = made.get(at.args[0])
    if not isinstance(at, Compute) or at.op != "round" or at.dtype is not DType.f32:
        return (s,)
    if not (-256 <= inside.low <= inside.high <= 255) and (
        clamps or small.get(at.args[0], _LARGE) > 255
    ):
        return (s,)
    name, written = at.args[0], list[Stmt]()
    for number, clamp in enumerate(reversed(clamps)):
        written.append(replace(clamp, out=f"{s.out}_clamp{number}", args=(name, clamp.args[1])))
        name = f"{s.out}_clamp{number}"
    return (*written, Compute(s.out, "byte", (name,), s.dtype))


def _number(name: str, made: _Made) -> float | None:
    s = made.get(name)
    return float(s.value) if isinstance(s, Const) else None


def _is_float(name: str, made: _Made) -> bool:
    s = made.get(name)
    return isinstance(s, Compute | Reduce) and s.dtype in _FLOATS


def _is_f32(name: str, made: _Made) -> bool:
    s = made.get(name)
    return isinstance(s, Compute | Reduce) and s.dtype is DType.f32
