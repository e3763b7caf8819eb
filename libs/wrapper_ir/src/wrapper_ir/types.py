"""Types of the host program: element types, devices, and strided tensor layouts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import sympy


class DType(Enum):
    """An element type. The value is the name it prints as."""

    bool_ = "bool"
    u8 = "u8"
    u16 = "u16"
    u32 = "u32"
    u64 = "u64"
    i8 = "i8"
    i16 = "i16"
    i32 = "i32"
    i64 = "i64"
    f16 = "f16"
    bf16 = "bf16"
    f32 = "f32"
    f64 = "f64"
    f8e4m3 = "f8e4m3"
    f8e5m2 = "f8e5m2"
    c32 = "c32"
    c64 = "c64"
    c128 = "c128"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def is_float(self) -> bool:
        return self.value.startswith(("f", "bf"))

    @property
    def is_complex(self) -> bool:
        return self.value.startswith("c")

    @property
    def is_int(self) -> bool:
        return self.value[0] in "iu"


_ITEMSIZE = {
    DType.bool_: 1, DType.u8: 1, DType.u16: 2, DType.u32: 4, DType.u64: 8,
    DType.i8: 1, DType.i16: 2, DType.i32: 4, DType.i64: 8,
    DType.f16: 2, DType.bf16: 2, DType.f32: 4, DType.f64: 8,
    DType.f8e4m3: 1, DType.f8e5m2: 1, DType.c32: 4, DType.c64: 8, DType.c128: 16,
}  # fmt: skip


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
    from contiguous and 0.
    """

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
    def is_contiguous(self) -> bool:
        """Row-major with no gaps; strides of dimensions of size one do not count."""
        expected: sympy.Expr = sympy.S.One
        for n, s in zip(reversed(self.size), reversed(self.stride), strict=True):
            if n != 1 and s != expected:
                return False
            expected = expected * n
        return True


def contiguous_strides(size: tuple[sympy.Expr | int, ...]) -> tuple[sympy.Expr, ...]:
    """Row-major strides: `(a, b, c) -> (b*c, c, 1)`."""
    out: list[sympy.Expr] = []
    step: sympy.Expr = sympy.S.One
    for n in reversed(size):
        out.append(step)
        step = step * n
    return tuple(reversed(out))
