"""Element types and scalar operations in numpy, exactly.

numpy has no bf16 and no 8-bit floats: their values live in float32 arrays and every operation
rounds its result to the type (to nearest, ties to even). f16 operations round once from float32,
as numpy does."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loop_ir.ir.iterated import ITERATED
from tensor_ir import DType

Array = Any  # an ndarray or numpy scalar of any element type

_NUMPY: Mapping[DType, Any] = {d: getattr(np, d.numpy_name) for d in DType}


def numpy_dtype(dtype: DType) -> Any:
    """The numpy type that holds values of `dtype`."""
    return _NUMPY[dtype]


def round_bf16(x: Array) -> Array:
    """float32 -> the nearest bf16 value, as float32; ties to even, NaN stays NaN."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    out = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), out)


def round_f8(x: Array, mantissa: int, least: int, largest: float, has_inf: bool) -> Array:
    """float32 -> the nearest 8-bit float with `mantissa` bits and least normal exponent `least`,
    as float32; ties to even. Past the largest value: infinity, or NaN where the type has none
    (as torch casts to float8_e4m3fn)."""
    x = np.asarray(x, np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        step = np.ldexp(1.0, np.maximum(exponent - 1, least) - mantissa)
        out = np.round(x / step) * step
        over = np.abs(out) > largest
        out = np.where(over, np.copysign(np.inf, x) if has_inf else np.nan, out)
    return np.where(np.isfinite(x) | has_inf, np.where(np.isnan(x), np.nan, out), np.nan).astype(
        np.float32
    )


def to_dtype(x: Array, dtype: DType) -> Array:
    """A value of any type as `dtype`: floats round, float to integer truncates and wraps, to
    bool compares with zero."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if dtype == DType.bf16:
            return round_bf16(x.astype(np.float32))
        if dtype == DType.f8e4m3:
            return round_f8(x, 3, -6, 448.0, False)
        if dtype == DType.f8e5m2:
            return round_f8(x, 2, -14, 57344.0, True)
        if dtype == DType.bool_:
            return x != 0
        if dtype.is_int and x.dtype.kind == "f":
            return np.trunc(x).astype(np.int64).astype(_NUMPY[dtype])
        return x.astype(_NUMPY[dtype])


def to_bits(x: Array, dtype: DType) -> Array:
    """The bits of a value as an unsigned array of the type's width."""
    x = np.asarray(x)
    if dtype == DType.bf16:
        return (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if dtype in (DType.f8e4m3, DType.f8e5m2):
        table = from_bits(np.arange(256, dtype=np.uint8), dtype)
        flat = np.asarray(x, np.float32).reshape(-1)
        found = [_find_bits(table, float(v)) for v in flat]
        return np.array(found, np.uint8).reshape(np.shape(x))
    if dtype == DType.bool_:
        return x.astype(np.uint8)
    return np.ascontiguousarray(x, _NUMPY[dtype]).view(f"u{dtype.itemsize}").reshape(x.shape)


def _find_bits(table: Array, value: float) -> int:
    if math.isnan(value):
        return 0x7F
    matches = np.nonzero(table == value)[0]
    if value == 0:
        return 0x80 if math.copysign(1, value) < 0 else 0
    return int(matches[0])


def from_bits(bits: Array, dtype: DType) -> Array:
    """Unsigned bits as a value of `dtype`."""
    if dtype == DType.bf16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in (DType.f8e4m3, DType.f8e5m2):
        mantissa, bias = (3, 7) if dtype == DType.f8e4m3 else (2, 15)
        sign = np.where(bits & 0x80, -1.0, 1.0)
        exponent = ((bits & 0x7F) >> mantissa).astype(np.int64)
        fraction = (bits & ((1 << mantissa) - 1)).astype(np.float64) / (1 << mantissa)
        value = np.where(
            exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias)
        )
        if dtype == DType.f8e4m3:
            value = np.where((bits & 0x7F) == 0x7F, np.nan, value)
        else:
            special = np.where(fraction == 0, np.inf, np.nan)
            value = np.where(exponent == 31, special, value)
        return (sign * value).astype(np.float32)
    if dtype == DType.bool_:
        return bits != 0
    return np.ascontiguousarray(bits).view(_NUMPY[dtype]).reshape(bits.shape)


def _vectorize(f: Callable[[float], float]) -> Callable[[Array], Array]:
    run = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(run(np.asarray(x, np.float64))).astype(np.float64)


def _log_gamma(x: float) -> float:
    """Infinite at the poles; minus infinity counts as one."""
    pole = x == -math.inf or (x <= 0 and x == math.floor(x))
    return math.inf if pole or x > 2.5e305 else math.lgamma(x)


def _inverse_erf(y: float) -> float:
    """By bisection of `erf`, or of `erfc` next to 1."""
    if not -1 <= y <= 1:
        return math.nan
    if abs(y) == 1 or y == 0:
        return math.copysign(math.inf, y) if y else y
    low, high, rest = 0.0, 6.0, 1 - abs(y)
    for _ in range(80):
        middle = (low + high) / 2
        below = math.erf(middle) < abs(y) if rest > 0.5 else math.erfc(middle) > rest
        low, high = (middle, high) if below else (low, middle)
    return math.copysign(high, y)


def _sigmoid(x: Array) -> Array:
    x = np.asarray(x, np.float64)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _truncdiv(a: Array, b: Array) -> Array:
    if np.asarray(a).dtype.kind == "f":
        return np.trunc(a / b)
    quotient = np.asarray(np.floor_divide(a, b))
    return quotient + ((quotient < 0) & (quotient * b != a))


# Functions whose last bit numpy leaves to the platform are computed in float64, then rounded.
_SAME = "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh hypot"
_ARC = "asin acos atan atan2 asinh acosh atanh"
_WIDE: Mapping[str, Callable[..., Array]] = {
    **{op: getattr(np, op) for op in _SAME.split()},
    **{op: getattr(np, f"arc{op[1:]}") for op in _ARC.split()},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _vectorize(math.erf),
    "erfc": _vectorize(math.erfc),
    "erfinv": _vectorize(_inverse_erf),
    "lgamma": _vectorize(_log_gamma),
    "sigmoid": _sigmoid,
}
_NUMPY_NAMES = """
add:add sub:subtract mul:multiply neg:negative abs:abs maximum:maximum minimum:minimum
div:true_divide near_div:true_divide floordiv:floor_divide mod:mod fmod:fmod floor:floor
ceil:ceil trunc:trunc
round:round isnan:isnan isinf:isinf signbit:signbit eq:equal ne:not_equal lt:less le:less_equal
gt:greater ge:greater_equal and:bitwise_and or:bitwise_or xor:bitwise_xor not:invert
shl:left_shift shr:right_shift where:where rarely:where
"""
_PLAIN: Mapping[str, Callable[..., Array]] = {
    "truncdiv": _truncdiv,
    **{op: getattr(np, f) for op, f in (entry.split(":") for entry in _NUMPY_NAMES.split())},
}


def philox(seed: Array, counter: Array) -> Array:
    """The words of Philox-2x32-10, two from each block, for 64-bit seeds and counters."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    seeds, counters = (np.asarray(a).astype(np.int64).astype(np.uint64) for a in (seed, counter))
    key: Array = seeds & low
    left: Array
    right: Array
    blocks = counters >> np.uint64(1)
    left, right = blocks & low, (blocks >> half) ^ (seeds >> half)
    for _ in range(10):
        product = left * np.uint64(0xD256D193)
        left, right = (product >> half) ^ key ^ right, product & low
        key = (key + np.uint64(0x9E3779B9)) & low
    return np.where(counters & np.uint64(1), right, left).astype(np.uint32)


_DIVISIONS = ("floordiv", "truncdiv", "mod", "fmod")


def _by_zero(op: str, x: Array, dtype: DType) -> Array:
    """What integers divided by zero give, as on a GPU: all bits set, or the lower half of them for
    64-bit dividends that fit in 32. Rounded down, one less below zero."""
    x = np.asarray(x)
    ones = to_dtype(np.full(x.shape, -1), dtype)
    if dtype.itemsize == 8:
        ones = np.where(x >> x.dtype.type(32) == 0, to_dtype(2**32 - 1, dtype), ones)
    return ones - (x < 0).astype(ones.dtype) if op == "floordiv" else ones


def compute(op: str, args: list[Array], kinds: list[DType], dtype: DType) -> Array:
    """One operation of `OPS` on values of element types `kinds`, rounded to `dtype`."""
    with np.errstate(all="ignore"):
        if op in ("cast", "narrow"):
            return to_dtype(args[0], dtype)
        if op == "bitcast":
            return from_bits(to_bits(args[0], kinds[0]), dtype)
        if op == "pow":
            if dtype.is_float:
                return _round(np.power(*(np.asarray(a, np.float64) for a in args)), dtype)
            return to_dtype(np.power(args[0], np.maximum(args[1], 0)), dtype)
        if op == "philox":
            return philox(*args)
        if op == "fma":
            if dtype.is_float:
                a, b, c = (np.asarray(x, np.float64) for x in args)
                return _round(a * b + c, dtype)
            return to_dtype(args[0] * args[1] + args[2], dtype)
        if op in _DIVISIONS and not dtype.is_float and dtype is not DType.bool_:
            quotient = to_dtype(_PLAIN[op](*args), dtype)
            return np.where(np.asarray(args[1]) == 0, _by_zero(op, args[0], dtype), quotient)
        if op in ITERATED:
            return to_dtype(ITERATED[op](*np.broadcast_arrays(*args)), dtype)
        if op in _WIDE:
            return _round(_WIDE[op](*(np.asarray(a, np.float64) for a in args)), dtype)
        return _round(_PLAIN[op](*args), dtype)


def _round(x: Array, dtype: DType) -> Array:
    return to_dtype(x, dtype)
