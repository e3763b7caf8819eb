"""Numbers and scalar operations of loop IR as C++ expressions.

Floats of 8 and 16 bits are computed in f32 and rounded once an operation. Most operations are
functions of that name in `loops.h`."""

import math
import struct
from collections.abc import Sequence

from loop_ir import Compute, DType

SMALL = (DType.f16, DType.bf16, DType.f8e4m3, DType.f8e5m2)

_FLOATS = {DType.f32: "float", DType.f64: "double"}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_INFIX |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_POWERS = {2: "square", 3: "cube", 4: "fourth_power"}


def value_type(dtype: DType) -> str:
    """The C++ type of a value."""
    if dtype is DType.bool_:
        return "bool"
    if dtype.is_float:
        return _FLOATS.get(dtype, "float")
    return f"{'u' if dtype.value[0] == 'u' else ''}int{8 * dtype.itemsize}_t"


def memory_type(dtype: DType) -> str:
    """The C++ type of an element in memory."""
    if dtype in SMALL or dtype is DType.bool_:
        return f"uint{8 * dtype.itemsize}_t"
    return value_type(dtype)


def loaded(text: str, dtype: DType) -> str:
    """An element in memory as a value."""
    if dtype is DType.bool_:
        return f"{text} != 0"
    return f"load_{dtype.value}({text})" if dtype in SMALL else text


def stored(text: str, dtype: DType) -> str:
    """A value, which its type has, as an element in memory."""
    return f"store_{dtype.value}({text})" if dtype in SMALL else text


def number(value: int | float | bool, dtype: DType) -> str:
    """A number of the type."""
    if dtype is DType.bool_:
        return "true" if value else "false"
    if not dtype.is_float:
        kind, n = value_type(dtype), int(value)
        if dtype.value[0] == "u":
            return f"{kind}({n % (1 << 8 * dtype.itemsize)}u{'ll' * (dtype.itemsize == 8)})"
        return f"{kind}({n}ll)" if n > -(2**63) else f"{kind}({n + 1}ll - 1)"
    x, kind = float(value), value_type(dtype)
    if math.isnan(x) or math.isinf(x):
        text = "nan" if math.isnan(x) else "inf" if x > 0 else "(-inf)"
        return text if kind == "float" else f"double({text})"
    text = repr(x) if any(c in repr(x) for c in ".en") else f"{x!r}.0"
    if kind == "float":
        text = f"{text}f" if _is_f32(x) else f"float({text})"
    return rounded(f"({text})" if text[0] == "-" else text, dtype)


def _is_f32(x: float) -> bool:
    try:
        return bool(struct.unpack("f", struct.pack("f", x))[0] == x)
    except OverflowError:
        return False


def rounded(text: str, dtype: DType) -> str:
    """An f32 as a value of a smaller type; of others, as it is."""
    return f"round_{dtype.value}({text})" if dtype in SMALL else text


def cast(text: str, src: DType, dtype: DType) -> str:
    """Converts as torch does: to bool by `!= 0`, floats to integers by truncation."""
    if src is dtype:
        return text
    if dtype is DType.bool_:
        return f"{text} != 0"
    kind = value_type(dtype)
    if src.is_float and dtype.is_int:
        way = "int32_t" if dtype in (DType.i8, DType.i16, DType.i32) else "int64_t"
        return f"{kind}({way}({text}))"
    return rounded(text if src in SMALL and kind == "float" else f"{kind}({text})", dtype)


def compute(
    stmt: Compute, args: Sequence[str], kinds: Sequence[DType], numbers: Sequence[float | None]
) -> str:
    """The value of an operation, given those of its arguments, their types, and what they are
    where they are numbers."""
    op, dtype, kind = stmt.op, stmt.dtype, kinds[0]
    if op in ("cast", "narrow"):
        return cast(args[0], kind, dtype)
    if op == "bitcast":
        return loaded(f"bits<{memory_type(dtype)}>({_in_memory(args[0], kind)})", dtype)
    if op in ("where", "rarely"):
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op in _COMPARISONS:
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op == "not":
        return f"!{args[0]}" if dtype is DType.bool_ else f"{value_type(dtype)}(~{args[0]})"
    if kind is DType.bool_ and op not in _INFIX:
        args = [f"int32_t({a})" for a in args]
    text = _plain(op, args, dtype, numbers)
    if op in ("isnan", "isinf", "signbit", "philox"):
        return text
    return rounded(text, dtype) if dtype.is_float else f"{value_type(dtype)}({text})"


def _in_memory(text: str, dtype: DType) -> str:
    return f"uint8_t({text})" if dtype is DType.bool_ else stored(text, dtype)


def _plain(op: str, args: Sequence[str], dtype: DType, numbers: Sequence[float | None]) -> str:
    if op in _INFIX:
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op == "neg":
        return f"-{args[0]}"
    if op in ("div", "near_div"):
        return f"{args[0]} / {args[1]}"
    if op == "pow" and dtype.is_float and numbers[1] is not None:
        if numbers[1] == 1:
            return args[0]
        if numbers[1] == -1:
            return f"1 / {args[0]}"
        if numbers[1] in _POWERS:
            return f"{_POWERS[int(numbers[1])]}({args[0]})"
    return f"{op}({', '.join(args)})"
