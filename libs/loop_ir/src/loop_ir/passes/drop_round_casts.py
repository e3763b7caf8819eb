"""Keeps the wide value where a fused kernel would round it and widen it again."""

import struct
from dataclasses import replace

from loop_ir.ir.analysis import reaching_steps
from loop_ir.ir.names import defined_values, renamed, statements
from loop_ir.ir.nodes import Compute, Const, Kernel, Load, Reduce, Stmt, Store
from loop_ir.ir.rewrite import map_statements
from tensor_ir import DType

_NARROW = frozenset((DType.bf16, DType.f16))
# What these give of numbers of a narrow type is one of them.
_CHOOSING = frozenset(("abs", "neg", "maximum", "minimum", "max", "min"))
_CHOOSING |= {"round", "floor", "ceil", "trunc"}


def drop(kernel: Kernel) -> Kernel:
    """`cast(cast(x: f32) : bf16 or f16) : f32 -> x`.

    The value is closer to the exact one than eager's, which rounds whenever it stores; a stored
    result is still rounded once, by the store. An overflow of f16 to infinity is not kept. A
    rounding stays where its value reaches a step, which would answer otherwise:
    `x.bfloat16() == 7.3` is true of an f32 x of 7.3; and where the kernel stores it: what is read
    later, such as by a norm's gradients beside its mean, is what is computed with here; and where a
    number of that type is subtracted from it, such as the mean that a norm has saved: of equal ones
    the difference is 0, and the rounding alone, by 1 / std, would be a large number. A `narrow`
    stays everywhere. A cast that rounds nothing is dropped everywhere: of the largest |x| of a row
    of bf16, of what is rounded to an integer, and clamped to numbers of the type."""
    types: dict[str, DType] = {}
    narrowed: dict[str, str] = {}
    names: dict[str, str] = {}
    exact: dict[str, DType] = {}  # f32 values that are numbers of a narrow type
    numbers: dict[str, float] = {}
    kept = reaching_steps(kernel) | _less_one_of_their_type(kernel)
    stored = {s.value for s in statements(kernel) if isinstance(s, Store)}

    def rewrite(original: Stmt) -> Stmt:
        stmt = renamed(original, names)
        if isinstance(stmt, Const):
            numbers[stmt.out] = float(stmt.value)
        elif isinstance(stmt, Compute | Reduce) and stmt.op in _CHOOSING | {"cast"}:
            for of in _NARROW if stmt.dtype == DType.f32 else ():
                others = (a for a in stmt.args if of not in (types[a], exact.get(a)))
                if all(_is_one(numbers.get(a), of) for a in others):
                    exact.update(dict.fromkeys(defined_values(stmt), of))
        if isinstance(stmt, Compute) and stmt.op == "cast":
            (arg,) = stmt.args
            same = exact.get(narrowed.get(arg, arg)) in (stmt.dtype, types.get(arg))
            if stmt.dtype in _NARROW and types.get(arg) == DType.f32:
                if same or stmt.out not in stored:
                    narrowed[stmt.out] = arg
            elif stmt.dtype == DType.f32 and arg in narrowed and (same or stmt.out not in kept):
                names[stmt.out] = narrowed[arg]
            elif arg in narrowed and exact.get(narrowed[arg]) == types[arg]:
                stmt = replace(stmt, args=(narrowed[arg],))
        for name in defined_values(stmt):
            types[name] = stmt.dtype  # type: ignore[union-attr]  # only stores define nothing
        return stmt

    return map_statements(kernel, rewrite)


def _is_one(number: float | None, dtype: DType) -> bool:
    """Whether a constant of f32 is a number of this type."""
    if number is None or abs(number) > 65504:
        return False
    if dtype is DType.bf16:
        return struct.pack(">f", number)[2:] == bytes(2)
    return bool(struct.unpack("e", struct.pack("e", number))[0] == number)


def _less_one_of_their_type(kernel: Kernel) -> frozenset[str]:
    """The values from which a tensor's element is subtracted that has the type they are rounded to:
    `c` of `c = cast(cast(a): bf16): f32; m = cast(load y : bf16): f32; c - m`."""
    made = {s.out: s for s in statements(kernel) if isinstance(s, Compute | Load)}
    found: set[str] = set()
    for stmt in made.values():
        if isinstance(stmt, Compute) and stmt.op == "sub":
            wide = [made.get(a) for a in stmt.args]
            casts = [made.get(w.args[0]) if isinstance(w, Compute) else None for w in wide]
            left, right = casts
            if left and isinstance(right, Load) and left.dtype == right.dtype in _NARROW:
                found.add(stmt.args[0])
    return frozenset(found)
