"""A value of a kernel as Triton text: what it says, how tightly it binds, its type and shape."""

import math
import struct
from dataclasses import dataclass

from loop_ir import DType

# Python's precedence of the operators that we print; higher binds tighter.
ATOM, UNARY, MUL, ADD, SHIFT, BIT_AND, BIT_XOR, BIT_OR, COMPARE = 9, 8, 7, 6, 5, 4, 3, 2, 1

TL_TYPES = {d: f"tl.{d.triton_name}" for d in DType if d.triton_name}

F32_MAX = float.fromhex("0x1.fffffep127")

SMALL_FLOATS = frozenset({DType.f16, DType.bf16, DType.f8e4m3, DType.f8e5m2})

Literal = int | float | bool


@dataclass(frozen=True)
class Value:
    """`text` has the Triton type of `dtype`, except that an index value (`narrow`) may be held
    in the integer type of the kernel's indices. `axes`: names of the tile dimensions ("x", "r0",
    ...) that it varies over. `literal` is set for a constant, whose text is a Python literal;
    `normal` for a float that is known to be 0 or at least 1e-30."""

    text: str
    prec: int
    dtype: DType
    axes: frozenset[str] = frozenset()
    literal: Literal | None = None
    narrow: bool = False
    normal: bool = False

    def at(self, prec: int) -> str:
        """The text, in parentheses if it binds looser than `prec`."""
        return self.text if self.prec >= prec else f"({self.text})"


def round_to(value: float, dtype: DType) -> float:
    """`value` rounded to the nearest number of a float type (half to even)."""
    if math.isnan(value) or math.isinf(value) or value == 0.0 or dtype is DType.f64:
        return value
    bits, low, top = {
        DType.f32: (24, -149, F32_MAX),
        DType.bf16: (8, -133, float.fromhex("0x1.fep127")),
        DType.f16: (11, -24, 65504.0),
        DType.f8e4m3: (4, -9, 448.0),
        DType.f8e5m2: (3, -16, 57344.0),
    }[dtype]
    exponent = max(math.frexp(value)[1] - bits, low)
    scaled = math.ldexp(value, -exponent)
    rounded = math.ldexp(float(round(scaled)), exponent)
    if abs(rounded) > top:
        return math.nan if dtype is DType.f8e4m3 else math.copysign(math.inf, value)
    return rounded


def literal_text(value: Literal, dtype: DType) -> str:
    """Text that Triton reads back as the same number of `dtype`."""
    if isinstance(value, float):
        if math.isnan(value):
            return 'float("nan")'
        if math.isinf(value):
            return 'float("inf")' if value > 0 else 'float("-inf")'
        if dtype is not DType.f64:  # the shortest decimal that rounds to the same f32
            for digits in range(1, 10):
                short = float(f"{value:.{digits}g}")
                largest = abs(short) <= F32_MAX  # what is larger is an f64 to Triton
                if largest and round_to(short, DType.f32) == value:
                    return repr(short)
    return repr(value)


def literal(value: Literal, dtype: DType) -> Value:
    """A constant of an element type; floats are rounded to it, ints wrap around."""
    number: Literal
    if dtype is DType.bool_:
        number = bool(value)
    elif dtype.is_float:
        number = round_to(float(value), dtype)
    else:
        bits = 8 * dtype.itemsize
        number = int(value) & ((1 << bits) - 1)
        if dtype.value.startswith("i") and number >> (bits - 1):
            number -= 1 << bits
    if _is_minus_zero(number):  # Triton makes +0.0 of such a constant
        text = f"-1.0 * tl.full((), 0.0, {TL_TYPES[dtype]})"
        return Value(text, MUL, dtype, literal=number)
    text = literal_text(number, dtype)
    if not _is_spelled(number, dtype):
        return Value(
            f"tl.full((), {text}, tl.float32).to(tl.bfloat16)", ATOM, dtype, literal=number
        )
    return Value(text, UNARY if text.startswith("-") else ATOM, dtype, literal=number)


def typed(value: Value) -> Value:
    """A literal as a 0-d tensor of its type (Triton would otherwise guess i32 or f32), other
    values as they are."""
    if value.literal is None:
        return value
    text = value.text
    if value.dtype in (DType.f8e4m3, DType.f8e5m2):
        narrowed = f"tl.full((), {text}, tl.float32).to({TL_TYPES[value.dtype]})"
        return Value(narrowed, ATOM, value.dtype)
    if _is_minus_zero(value.literal) or not _is_spelled(value.literal, value.dtype):
        return Value(text, value.prec, value.dtype)
    return Value(f"tl.full((), {text}, {TL_TYPES[value.dtype]})", ATOM, value.dtype)


def guessed(value: Value) -> bool:
    """Triton gives this literal its own type where nothing else says one: i32, or f32 (f64 for
    subnormals), so that the number is rounded to it."""
    number = value.literal
    if number is None:
        return False
    if value.dtype is DType.f32:
        return number == 0 or not 0 < abs(number) < 2.0**-126
    return value.dtype is DType.i32


def in_memory(value: Value) -> str:
    """What is converted to the type of memory on its way: a literal as it is, but for numbers that
    the f32 that Triton guesses would round."""
    rounded = value.dtype is DType.f64 and value.literal is not None
    return typed(value).text if rounded and not _is_f32(float(value.literal or 0)) else value.text


def in_call(value: Value) -> str:
    """An argument of a `tl` function that converts its arguments to a common type: a literal as
    it is where the type that Triton guesses holds the number, beside a tensor of its type."""
    number = value.literal
    if number is None or guessed(value):
        return value.text
    if value.dtype is DType.i64 and -(2**31) <= number < 2**31:
        return value.text
    if value.dtype is DType.f64 and _is_f32(float(number)):
        return value.text
    return typed(value).text


def _is_spelled(number: Literal, dtype: DType) -> bool:
    """Triton makes a bf16 constant of the number's first six decimals: of 1.2e-7 it makes 0."""
    if dtype is not DType.bf16 or not math.isfinite(number):
        return True
    return round_to(float(f"{number:f}"), dtype) == number


def _is_minus_zero(value: Literal | None) -> bool:
    return value == 0 and str(value).startswith("-")


def _is_f32(number: float) -> bool:
    """The number is an f32 exactly."""
    if math.isnan(number) or math.isinf(number):
        return True
    try:
        return bool(struct.unpack("f", struct.pack("f", number))[0] == number)
    except OverflowError:
        return False
