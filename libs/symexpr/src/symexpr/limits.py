"""How large numbers and texts may become: what a size or an index needs, with much room.

Python's integers have no end, so a short text (`9**9**9`) may ask for one that takes all memory."""

import math
from typing import Any

from symexpr.errors import TooLarge

MAX_BITS = 4096  # of an integer: 1,233 digits, fewer than Python refuses to print
MAX_EXPONENT = 1024  # of a power whose base is no number
MAX_TEXT = 200_000  # characters that `parse` reads
MAX_DEPTH = 100  # brackets, calls and operators inside of one another that it follows


def power_bits(base: int, exponent: int) -> int:
    """At least as many bits as `base ** |exponent|` has; few where the power is 0 or +-1."""
    return 1 if -2 < base < 2 else base.bit_length() * abs(exponent)


def check_bits(bits: int, where: str) -> None:
    """Raises TooLarge."""
    if bits > MAX_BITS:
        raise TooLarge(f"{where}: an integer of about {bits} bits; at most {MAX_BITS} are computed")


def checked_number(value: Any, where: str) -> Any:
    """A sympy number, or a term or sum with one, unless that is too large."""
    for part in value.args if value.is_Mul or value.is_Add else (value,):
        if part.is_Rational:
            check_bits(max(int(part.p).bit_length(), int(part.q).bit_length()), where)
        elif part.is_Float:
            to_float(part, where)
    return value


def to_float(value: Any, where: str) -> float:
    """`float(value)`. Raises TooLarge for what is beyond every float."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number) and not isinstance(value, float):  # sympy gives an infinity
        raise TooLarge(f"{where}: a number beyond every float")
    return number


def quotient(a: int, b: int) -> float:
    """`a / b`. Raises TooLarge."""
    try:
        return a / b
    except OverflowError:
        raise TooLarge("IntTrueDiv: a quotient beyond every float") from None


def finite(value: Any, where: str) -> float:
    """A float that can be rounded to an integer."""
    number = to_float(value, where)
    if not math.isfinite(number):
        raise TooLarge(f"{where}: {number} is no integer")
    return number
