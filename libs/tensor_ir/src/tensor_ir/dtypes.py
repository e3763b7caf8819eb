"""Element types, and how each world spells them: the one table of the compiler."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


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
        return _ROWS[self].itemsize

    @property
    def torch_name(self) -> str:
        """The attribute of `torch` that it is: `"bfloat16"`."""
        return _ROWS[self].torch

    @property
    def triton_name(self) -> str:
        """The attribute of `triton.language` that it is, `"float8e4nv"`; empty if there is none."""
        return _ROWS[self].triton

    @property
    def triton_short(self) -> str:
        """The `name` of Triton's type, `"fp8e4nv"`; empty if there is none."""
        return _ROWS[self].triton_short

    @property
    def numpy_name(self) -> str:
        """The numpy type that holds all its values exactly; a wider one where numpy lacks it."""
        return _ROWS[self].numpy

    @property
    def is_float(self) -> bool:
        """Whether it is a real floating point type, those of 8 bits among them."""
        return self.value.startswith(("f", "bf"))

    @property
    def is_complex(self) -> bool:
        """Whether its elements are pairs of real numbers."""
        return self.value.startswith("c")

    @property
    def part(self) -> DType:
        """The type of the real part: of a complex type another, else this one."""
        return _PARTS.get(self, self)

    @property
    def is_int(self) -> bool:
        """Whether it is an integer type, signed or not; bool is none."""
        return self.value[0] in "iu"


class _Row(NamedTuple):
    itemsize: int
    torch: str
    triton: str
    triton_short: str
    numpy: str


_ROWS = {
    DType.bool_: _Row(1, "bool", "int1", "int1", "bool_"),
    DType.u8: _Row(1, "uint8", "uint8", "uint8", "uint8"),
    DType.u16: _Row(2, "uint16", "uint16", "uint16", "uint16"),
    DType.u32: _Row(4, "uint32", "uint32", "uint32", "uint32"),
    DType.u64: _Row(8, "uint64", "uint64", "uint64", "uint64"),
    DType.i8: _Row(1, "int8", "int8", "int8", "int8"),
    DType.i16: _Row(2, "int16", "int16", "int16", "int16"),
    DType.i32: _Row(4, "int32", "int32", "int32", "int32"),
    DType.i64: _Row(8, "int64", "int64", "int64", "int64"),
    DType.f16: _Row(2, "float16", "float16", "fp16", "float16"),
    DType.bf16: _Row(2, "bfloat16", "bfloat16", "bf16", "float32"),
    DType.f32: _Row(4, "float32", "float32", "fp32", "float32"),
    DType.f64: _Row(8, "float64", "float64", "fp64", "float64"),
    DType.f8e4m3: _Row(1, "float8_e4m3fn", "float8e4nv", "fp8e4nv", "float32"),
    DType.f8e5m2: _Row(1, "float8_e5m2", "float8e5", "fp8e5", "float32"),
    DType.c32: _Row(4, "complex32", "", "", "complex64"),
    DType.c64: _Row(8, "complex64", "", "", "complex64"),
    DType.c128: _Row(16, "complex128", "", "", "complex128"),
}

_PARTS = {DType.c32: DType.f16, DType.c64: DType.f32, DType.c128: DType.f64}

BY_TEXT = {d.value: d for d in DType}
"""Element types by their short text, `"bf16"`."""

BY_TRITON_SHORT = {d.triton_short: d for d in DType if d.triton_short}
"""Element types by the `name` of Triton's type, `"fp8e4nv"`."""
