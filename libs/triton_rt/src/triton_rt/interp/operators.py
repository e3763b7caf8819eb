"""Operators of tensors whose types agree, which most are, in one step of numpy.

Triton's semantic checks, promotes, casts and broadcasts the operands of each, at ten times the
cost. What is not plainly one of the cases below is left to it: `slow`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from triton.language import core
from triton.runtime.interpreter import TensorHandle

from triton_rt.interp.floats import numpy_dtype

Array = np.ndarray[Any, Any]
Operator = Callable[[Any, Any], Any]

_LIMITS = {"int32": 2**31, "int64": 2**63}
_INTEGERS = frozenset(_LIMITS)
_FLOATS = frozenset({"fp32", "fp64"})
NUMBERS = _INTEGERS | _FLOATS
_BITS = frozenset({*_LIMITS, "int1"})


class Block(core.block_type):  # type: ignore[misc]  # Triton has no types
    """A block type, one object per element type and shape, so that what Triton derives from it
    for each operation is derived once."""

    _known: ClassVar[dict[tuple[Any, ...], Block]] = {}

    def __init__(self, scalar: Any, shape: tuple[int, ...]) -> None:
        super().__init__(scalar, list(shape))
        self.key = shape
        self.tensor_shape = core.tuple([core.constexpr(n) for n in shape])
        self.tensor_numel = core.constexpr(math.prod(shape))

    @classmethod
    def of(cls, scalar: Any, shape: tuple[int, ...]) -> Block:
        """The one of this element type and shape."""
        key: tuple[Any, ...] = (scalar.name, shape)
        if scalar.is_ptr():  # pointers differ by more than their name
            if scalar.element_ty.is_ptr():
                return cls(scalar, shape)
            key = (scalar.element_ty.name, shape, scalar.address_space, scalar.const)
        known = cls._known.get(key)
        if known is None:
            known = cls._known[key] = cls(scalar, shape)
        return known

    def with_element_ty(self, scalar_ty: Any) -> Block:
        """One of the same shape."""
        return Block.of(scalar_ty, self.key)

    def to_ir(self, builder: Any) -> Block:
        """Itself: the builder takes types as they are."""
        return self


def quotient(a: Array, b: Array) -> Array:
    """Toward zero, as C does; a zero divisor gives an unspecified value."""
    b = np.where(b == 0, np.ones_like(b), b)
    out: Array = ((a - np.fmod(a, b)) // b).astype(a.dtype)
    return out


def remainder(a: Array, b: Array) -> Array:
    """The remainder that belongs to `quotient`: its sign is that of `a`."""
    out: Array = np.fmod(a, np.where(b == 0, np.ones_like(b), b)).astype(a.dtype)
    return out


#: Operator -> what computes it, and the element types that it is computed for.
_ARITHMETIC: dict[str, tuple[Callable[..., Array], frozenset[str]]] = {
    "__add__": (np.add, NUMBERS),
    "__radd__": (np.add, NUMBERS),
    "__sub__": (np.subtract, NUMBERS),
    "__rsub__": (lambda a, b: np.subtract(b, a), NUMBERS),
    "__mul__": (np.multiply, NUMBERS),
    "__rmul__": (np.multiply, NUMBERS),
    "__truediv__": (np.divide, _FLOATS),
    "__floordiv__": (quotient, _INTEGERS),
    "__mod__": (remainder, _INTEGERS),
    "__lshift__": (np.left_shift, _INTEGERS),
    "__rshift__": (np.right_shift, _INTEGERS),
    "__and__": (np.bitwise_and, _BITS),
    "__or__": (np.bitwise_or, _BITS),
}
_COMPARISONS = {
    "__lt__": np.less,
    "__le__": np.less_equal,
    "__gt__": np.greater,
    "__ge__": np.greater_equal,
    "__eq__": np.equal,
    "__ne__": np.not_equal,
}


def quick(name: str, slow: Operator) -> Operator:
    """The operator of `tensor` with this name."""
    if name in _COMPARISONS:
        return _operator(_COMPARISONS[name], NUMBERS, slow, core.int1)
    if name in _ARITHMETIC:
        return _operator(*_ARITHMETIC[name], slow, None, pointers=name == "__add__")
    return slow


def _operator(
    compute: Callable[..., Any],
    kinds: frozenset[str],
    slow: Operator,
    result: Any,
    pointers: bool = False,
) -> Operator:
    """result: the element type of the results, if not that of the operands."""

    def operator(self: Any, other: Any) -> Any:
        kind = self.dtype
        if other.__class__ is core.constexpr:
            other = other.value
        if other.__class__ is self.__class__:
            shared = kind.name if kind is other.dtype or kind.name == other.dtype.name else None
            if shared not in kinds:
                if pointers and kind.is_ptr() and other.dtype.name in _INTEGERS:
                    return _pointer(self, other) or slow(self, other)
                return slow(self, other)
            left, right = self.type, other.type
            if right.__class__ is Block:
                if left.__class__ is not Block:
                    left = right
                elif not _broadcast(left.key, right.key):
                    return slow(self, other)
            b = other.handle.data
        elif other.__class__ is int:
            limit = _LIMITS.get(kind.name)
            if limit is None or kind.name not in kinds or not -limit <= other < limit:
                return slow(self, other)
            left, b = self.type, _constant(other, kind.name)
        elif other.__class__ is float and kind.name == "fp32" and kind.name in kinds:
            if result is not None and other and not 2**-126 <= abs(other) < 3e38:  # of 64 bits?
                return slow(self, other)
            left, b = self.type, np.array([other or 0.0], np.float32)  # of -0.0 Triton makes 0
        else:
            return slow(self, other)
        data = compute(self.handle.data, b)
        scalar = kind if result is None else result
        type = Block.of(scalar, data.shape) if left.__class__ is Block else scalar
        return self.__class__(TensorHandle(data, scalar), type)

    return operator


def _pointer(base: Any, offset: Any) -> Any:
    """The addresses `offset` elements on; None where shapes are not plain."""
    left, right = base.type, offset.type
    blocks = (left.__class__ is Block, right.__class__ is Block)
    if all(blocks) and not _broadcast(left.key, right.key):
        return None
    size = numpy_dtype(base.handle.get_element_ty()).itemsize
    step = offset.handle.data.astype(np.int64) * np.int64(size)
    data = base.handle.data + step.view(np.uint64)
    type = Block.of(base.dtype, data.shape) if any(blocks) else left
    return base.__class__(TensorHandle(data, base.dtype), type)


@functools.cache
def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two blocks of one rank go together."""
    return a == b or (
        len(a) == len(b) and all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True))
    )


@functools.lru_cache(maxsize=4096)
def _constant(value: int, name: str) -> Array:
    return np.array([value], np.dtype(name))
