"""Operators of tensors whose types agree, which most are, in one step of numpy.

Triton's semantic checks, promotes, casts and broadcasts the operands of each, at ten times the
cost. What is not plainly one of the cases below is left to it: `slow`."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from triton.language import core
from triton.runtime.interpreter import TensorHandle

from triton_rt.interp.floats import numpy_dtype

Array = np.ndarray[Any, Any]
Operator = Callable[[Any, Any], Any]

_LIMITS = {"int32": 2**31, "int64": 2**63}
_INTEGERS = frozenset(_LIMITS)
_NUMBERS = frozenset({*_LIMITS, "fp32", "fp64"})
_BITS = frozenset({*_LIMITS, "int1"})


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
    "__add__": (np.add, _NUMBERS),
    "__radd__": (np.add, _NUMBERS),
    "__sub__": (np.subtract, _NUMBERS),
    "__mul__": (np.multiply, _NUMBERS),
    "__rmul__": (np.multiply, _NUMBERS),
    "__floordiv__": (quotient, _INTEGERS),
    "__mod__": (remainder, _INTEGERS),
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


def quick(name: str, slow: Operator, block_type: Any) -> Operator:
    """The operator of `tensor` with this name. block_type: `of(scalar, shape)`, and the class of
    the types of all blocks."""
    if name in _COMPARISONS:
        return _operator(_COMPARISONS[name], _NUMBERS, slow, block_type, core.int1)
    if name in _ARITHMETIC:
        return _operator(*_ARITHMETIC[name], slow, block_type, None, pointers=name == "__add__")
    return slow


def _operator(
    compute: Callable[..., Any],
    kinds: frozenset[str],
    slow: Operator,
    block_type: Any,
    result: Any,
    pointers: bool = False,
) -> Operator:
    """result: the element type of the results, if not that of the operands."""
    block_of: Callable[[Any, tuple[int, ...]], Any] = block_type.of
    takes_floats = "fp32" in kinds and result is None  # a comparison may be of 64 bits

    def operator(self: Any, other: Any) -> Any:
        kind = self.dtype
        if other.__class__ is core.constexpr:
            other = other.value
        if other.__class__ is self.__class__:
            shared = kind.name if kind is other.dtype or kind.name == other.dtype.name else None
            if shared not in kinds:
                if pointers and kind.is_ptr() and other.dtype.name in _INTEGERS:
                    return _pointer(self, other, block_type) or slow(self, other)
                return slow(self, other)
            left, right = self.type, other.type
            if right.__class__ is block_type:
                if left.__class__ is not block_type:
                    left = right
                elif not _broadcast(left.key, right.key):
                    return slow(self, other)
            b = other.handle.data
        elif other.__class__ is int:
            limit = _LIMITS.get(kind.name)
            if limit is None or not -limit <= other < limit:
                return slow(self, other)
            left, b = self.type, _constant(other, kind.name)
        elif other.__class__ is float and kind.name == "fp32" and takes_floats:
            left, b = self.type, np.array([other], np.float32)
        else:
            return slow(self, other)
        data = compute(self.handle.data, b)
        scalar = kind if result is None else result
        type = block_of(scalar, data.shape) if left.__class__ is block_type else scalar
        return self.__class__(TensorHandle(data, scalar), type)

    return operator


def _pointer(base: Any, offset: Any, block_type: Any) -> Any:
    """The addresses `offset` elements on; None where shapes are not plain."""
    left, right = base.type, offset.type
    blocks = (left.__class__ is block_type, right.__class__ is block_type)
    if all(blocks) and not _broadcast(left.key, right.key):
        return None
    size = numpy_dtype(base.handle.get_element_ty()).itemsize
    step = offset.handle.data.astype(np.int64) * np.int64(size)
    data = base.handle.data + step.view(np.uint64)
    type = block_type.of(base.dtype, data.shape) if any(blocks) else left
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
