"""Devices and strided tensor layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import sympy

from symexpr import evaluate
from tensor_ir.dtypes import DType


@dataclass(frozen=True)
class Device:
    """`cpu`, or an accelerator and its index: prints `cuda:0`."""

    kind: str
    index: int | None = None

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


@dataclass(frozen=True)
class TensorType:
    """A strided view of a storage. Sizes, strides and offset are integer expressions, counted
    in elements; a plain `int` is turned into `sympy.Integer`.

    Prints `bf16[s0, 768] cuda:0`, followed by `stride (768, 1)` and `offset 5` where they differ
    from contiguous and 0."""

    dtype: DType
    size: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    device: Device
    offset: sympy.Expr = sympy.S.Zero

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", tuple(sympy.sympify(s) for s in self.size))
        object.__setattr__(self, "stride", tuple(sympy.sympify(s) for s in self.stride))
        object.__setattr__(self, "offset", sympy.sympify(self.offset))
        if len(self.size) != len(self.stride):
            raise ValueError(f"rank of size {self.size} differs from rank of stride {self.stride}")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.dtype, self.size, self.stride, self.device, self.offset))

    def __getstate__(self) -> dict[str, Any]:
        """What it is, not what was found of it: strings hash otherwise in another process."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def numel(self) -> sympy.Expr:
        """Number of elements of the view (not of its storage)."""
        return sympy.Mul(*self.size)

    @property
    def extent(self) -> sympy.Expr:
        """Elements of storage that the view spans from its offset, if no size is zero:
        `1 + sum((size - 1) * stride)`."""
        return sympy.Add(1, *((n - 1) * s for n, s in zip(self.size, self.stride, strict=True)))

    @property
    def parts(self) -> TensorType:
        """Complex numbers as pairs of real ones, along a last dimension; itself if it has none."""
        if not self.dtype.is_complex:
            return self
        stride = (*(2 * s for s in self.stride), sympy.S.One)
        return TensorType(
            self.dtype.part, (*self.size, sympy.Integer(2)), stride, self.device, 2 * self.offset
        )

    def storage_bytes(self, env: Mapping[str, int]) -> int:
        """Bytes from the start of the storage to the end of the layout, for values of the symbols:
        0 for an empty tensor. Raises `symexpr.DivisionByZero` where a size has no value."""
        size, stride = ([int(evaluate(e, env)) for e in es] for es in (self.size, self.stride))
        end = int(evaluate(self.offset, env)) + 1
        end += sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        return 0 if 0 in size else end * self.dtype.itemsize

    @cached_property
    def is_contiguous(self) -> bool:
        """Row-major with no gaps; strides of dimensions of size one do not count."""
        expected: sympy.Expr = sympy.S.One
        for n, s in zip(reversed(self.size), reversed(self.stride), strict=True):
            if n != 1 and s != expected:
                return False
            expected = expected * n
        return True


@lru_cache(1 << 12)
def contiguous_strides(size: tuple[sympy.Expr | int, ...]) -> tuple[sympy.Expr, ...]:
    """Row-major strides: `(a, b, c) -> (b*c, c, 1)`."""
    out: list[sympy.Expr] = []
    step: sympy.Expr = sympy.S.One
    for n in reversed(size):
        out.append(step)
        step = step * n
    return tuple(reversed(out))
