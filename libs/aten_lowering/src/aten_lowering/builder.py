"""Writes one kernel: axes, phases and SSA statements with fresh names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import sympy
import torch

import loop_ir as ir
from aten_lowering.errors import CannotLower, NotPlain, require
from aten_lowering.meta import expr
from loop_ir.ir import same
from symexpr import Where, symbol

Scalar: TypeAlias = int | float | bool
Number: TypeAlias = Scalar | sympy.Expr | torch.SymBool
Coords = tuple[sympy.Expr, ...]

_PREDICATES = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"})
F8 = frozenset({ir.DType.f8e4m3, ir.DType.f8e5m2})
_UNLOADABLE = F8 | {ir.DType.u16, ir.DType.u32, ir.DType.u64}


def _sign(op: str) -> Callable[[Value, Value | Number], Value]:
    return lambda self, other: self(op, other)


def _turned(op: str) -> Callable[[Value, Number], Value]:
    return lambda self, other: self.number(other)(op, self)


@dataclass(frozen=True)
class Value:
    """An SSA value of the kernel `k` that is being built, under the signs of arithmetic, logic and
    comparisons. Numbers and expressions of sizes beside it take its type.

    `2 * x + x("exp")` appends a product, an exponential and a sum to the kernel."""

    name: str
    dtype: ir.DType
    k: KernelBuilder = field(repr=False, compare=False)

    def number(self, value: Number) -> Value:
        """A number, or what an expression of sizes is, of this type."""
        return self.k.number(value, self.dtype)

    def __call__(self, op: str, *others: Value | Number, dtype: ir.DType | None = None) -> Value:
        """An entry of `loop_ir.OPS` with this as its first argument; the result has the type of
        the last argument, predicates are bool, and casts name theirs."""
        args = (self, *(o if isinstance(o, Value) else self.number(o) for o in others))
        if len(args) != ir.OPS[op]:
            raise TypeError(f"{op} takes {ir.OPS[op]} arguments, got {len(args)}")
        if dtype is None:
            dtype = ir.DType.bool_ if op in _PREDICATES else args[-1].dtype
        return self.k.compute(op, tuple(a.name for a in args), dtype)

    def over(self, other: Value | Number) -> Value:
        """A quotient that may be two units in the last place off: a third of the instructions."""
        return self("near_div", other)

    def choose(self, a: Value | Number, b: Value | Number) -> Value:
        """`a` where this condition holds, `b` elsewhere. One of them is a value."""
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value)
        a, b = (v if isinstance(v, Value) else like.number(v) for v in (a, b))
        return self("where", a, b)

    def seldom(self, a: Value, b: Value) -> Value:
        """As `choose`, of a condition that few numbers meet, and an `a` that takes long."""
        return self("rarely", a, b)

    def to(self, dtype: ir.DType, asked: bool = False) -> Value:
        """Conversion as torch does it: to bool is `!= 0`; wide types reach 16-bit floats through
        f32 (`c10::Half(double)` and `c10::BFloat16(double)` round twice). `asked`: the program
        converts by itself, so that a rounding to 16 bits stays in fused kernels too."""
        if self.dtype is dtype:
            return self
        if dtype is ir.DType.bool_:
            return self("ne", 0)
        narrow = dtype in (ir.DType.f16, ir.DType.bf16)
        asked = asked and self.dtype.itemsize > 1  # integers of 8 bits fit
        wide = narrow and (self.dtype.is_int or self.dtype is ir.DType.f64)
        x = self("cast", dtype=ir.DType.f32) if wide else self
        rounds = asked and narrow and x.dtype is ir.DType.f32
        return x("narrow" if rounds else "cast", dtype=dtype)

    __add__, __sub__, __mul__, __truediv__ = map(_sign, ("add", "sub", "mul", "div"))
    __and__, __or__, __xor__, __lshift__, __rshift__ = map(
        _sign, ("and", "or", "xor", "shl", "shr")
    )
    __lt__, __gt__, __le__, __ge__ = map(_sign, ("lt", "gt", "le", "ge"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_turned, ("add", "sub", "mul", "div"))

    def __neg__(self) -> Value:
        return self("neg")

    def __abs__(self) -> Value:
        return self("abs")

    def __invert__(self) -> Value:
        return self("not")


@dataclass(frozen=True)
class Operand:
    """A tensor as a kernel reads or writes it: a view `ref` of a buffer with layout `storage`.

    constant: the value of a tensor of rank 0 that is known now (a lifted Python number)."""

    ref: ir.TensorRef
    storage: ir.TensorType
    constant: Scalar | None = None

    @property
    def type(self) -> ir.TensorType:
        """Element type, sizes, strides, device and offset of the view."""
        return self.ref.type

    @property
    def is_plain(self) -> bool:
        """The elements are what the memory holds."""
        lazy = self.ref.conj or self.ref.neg
        return self.ref.type.dtype is self.storage.dtype and not lazy

    @property
    def dtype(self) -> ir.DType:
        """The element type of the view."""
        return self.ref.type.dtype

    @property
    def size(self) -> tuple[sympy.Expr, ...]:
        """The extent of each dimension of the view."""
        return self.ref.type.size


def address(type: ir.TensorType, coords: Coords) -> sympy.Expr:
    """Element of the storage at `coords`: `offset + sum(stride * coordinate)`."""
    terms = (s * c for s, c in zip(type.stride, coords, strict=True))
    return sympy.expand(sympy.Add(type.offset, *terms))


def at(coords: Coords, dim: int, c: sympy.Expr) -> Coords:
    """`coords` with coordinate `dim` replaced."""
    return (*coords[:dim], c, *coords[dim + 1 :])


class KernelBuilder:
    """Statements are appended to the current phase; `inner(...)` and `once()` start the next.

    size: the logical iteration space of the parallel axes. `coords` has one coordinate a
    dimension; dimensions of extent one get the coordinate 0 and no axis.
    casts_f8: 8-bit floats are loaded and stored, to be moved or converted and nothing else."""

    def __init__(
        self, name: str, size: Sequence[sympy.Expr], origin: ir.Origin, casts_f8: bool = False
    ) -> None:
        self.name = name
        self.origin = origin
        self._refused = _UNLOADABLE - F8 if casts_f8 else _UNLOADABLE
        self._axes, self.coords = _axes("i", size)
        self._inner: tuple[ir.Axis, ...] = ()
        self._body: list[ir.Stmt] = []
        self._phases: list[ir.Phase] = []
        self._buffers: dict[str, ir.Buffer] = {}
        self._seen: dict[object, Value] = {}
        self._count = 0
        self._indirects = 0

    @property
    def on_cpu(self) -> bool:
        """What it has read so far is on the CPU, where some of eager's kernels differ."""
        return any(b.type.device.kind == "cpu" for b in self._buffers.values())

    # -- structure

    def inner(self, size: Sequence[sympy.Expr]) -> Coords:
        """Starts a phase over `size`; returns the inner coordinates."""
        axes, coords = _axes("r", size)
        # A reduction over one point still needs an axis to reduce over.
        if not axes:
            axes = (ir.Axis(symbol("r0"), sympy.S.One),)
        self._next_phase(axes)
        return coords

    def once(self) -> None:
        """Starts a phase without inner axes."""
        self._next_phase(())

    def _next_phase(self, axes: tuple[ir.Axis, ...]) -> None:
        if self._body:
            self._phases.append(ir.Phase(self._inner, tuple(self._body)))
        if axes != self._inner:
            self._seen = {}
        self._inner, self._body = axes, []

    @property
    def buffers(self) -> tuple[ir.Buffer, ...]:
        """What the kernel reads and writes so far."""
        return tuple(self._buffers.values())

    def finish(self) -> ir.Kernel:
        """The kernel as it has been built."""
        self._next_phase(())
        return ir.Kernel(
            name=self.name,
            buffers=self.buffers,
            axes=self._axes,
            phases=tuple(self._phases),
            origins=(self.origin,),
        )

    # -- statements

    def load(
        self, x: Operand, coords: Coords, mask: Value | None = None, other: Scalar = 0
    ) -> Value:
        """The element of `x` at `coords`, one coordinate a dimension."""
        if x.constant is not None:
            value = self.const(x.constant, x.dtype)
            return value if mask is None else mask.choose(value, other)
        self._use(x, written=False)
        held = x.storage.dtype.part
        if held is not x.dtype:
            same = held.itemsize == x.dtype.itemsize and ir.DType.bool_ not in (held, x.dtype)
            if not same or other != 0:
                raise NotPlain(f"{x.dtype.value} elements of a buffer of {held.value}")
        if x.ref.neg:
            other = -other
        index = address(x.type, coords)
        name = mask.name if mask else None
        key = ("load", x.ref.buffer, index, name, repr(other))
        value = self._once(
            key, held, lambda out: ir.Load(out, x.ref.buffer, index, held, name, other)
        )
        if held is not x.dtype:
            value = value("bitcast", dtype=x.dtype)
        return -value if x.ref.neg else value

    def load_broadcast(self, x: Operand, size: Sequence[sympy.Expr], coords: Coords) -> Value:
        """The element of `x`, broadcast to `size`, at `coords` of `size`."""
        skip = len(size) - len(x.size)
        require(skip >= 0, f"operand of rank {len(x.size)} does not broadcast to {tuple(size)}")
        own: list[sympy.Expr] = []
        for n, full, c in zip(x.size, size[skip:], coords[skip:], strict=True):
            if n == 1:
                own.append(sympy.S.Zero)
            else:
                if not same(n, full):
                    raise CannotLower(f"size {n} is not proven to be {full}")
                own.append(c)
        return self.load(x, tuple(own))

    def read(self, x: Operand | Number, coords: Coords, dtype: ir.DType) -> Value:
        """The element of a tensor at `coords`, or a number as a value of `dtype`."""
        return self.load(x, coords) if isinstance(x, Operand) else self.number(x, dtype)

    def const(self, value: Scalar, dtype: ir.DType) -> Value:
        """A constant, converted to what `dtype` holds: integers wrap, floats keep their value."""
        require(not isinstance(value, complex), "a complex number")
        if dtype is ir.DType.bool_:
            value = bool(value)
        elif dtype.is_int:
            require(not isinstance(value, float) or math.isfinite(value), f"{value} as an integer")
            value = _wrap(int(value), dtype)
        else:
            value = float(value)
        key = ("const", repr(value), dtype)
        return self._once(key, dtype, lambda out: ir.Const(out, value, dtype))

    def number(self, value: Number, dtype: ir.DType) -> Value:
        """A Python number, a size expression, or whether a condition on sizes holds (1 or 0), as a
        value of `dtype`."""
        if isinstance(value, torch.SymBool):
            value = Where(expr(value), sympy.S.One, sympy.S.Zero)
        if isinstance(value, sympy.Expr) and not value.is_Integer:
            return self.index(value, ir.DType.i64 if value.is_integer else ir.DType.f64).to(dtype)
        return self.const(int(value) if isinstance(value, sympy.Expr) else value, dtype)

    def is_number(self, value: Value) -> bool:
        """Whether `value` is a constant of this phase, and no NaN."""
        return any(
            isinstance(s, ir.Const) and s.out == value.name and s.value == s.value
            for s in self._body
        )

    def is_nan(self, value: Value) -> bool:
        """Whether `value` is the constant NaN."""
        consts = (s for s in self._body if isinstance(s, ir.Const) and s.out == value.name)
        return any(s.value != s.value for s in consts)

    def index(self, e: sympy.Expr, dtype: ir.DType = ir.DType.i64) -> Value:
        """An integer expression of axes and sizes as a value."""
        if e.is_Integer:
            return self.const(int(e), dtype)
        return self._once(("index", e, dtype), dtype, lambda out: ir.Index(out, e, dtype))

    def compute(self, op: str, args: tuple[str, ...], dtype: ir.DType) -> Value:
        """An entry of `loop_ir.OPS` of named values, as `Value` gives its signs to it."""
        return self._once((op, args, dtype), dtype, lambda out: ir.Compute(out, op, args, dtype))

    def indirect(self, value: Value, extent: sympy.Expr) -> sympy.Symbol:
        """A loaded integer as a coordinate in [0, extent); negative values count from the end."""
        s = symbol(f"t{self._indirects}")
        self._indirects += 1
        self._body.append(ir.Indirect(s, value.name, extent))
        return s

    def reduce(self, op: str, x: Value, dtype: ir.DType | None = None) -> tuple[Value, ...]:
        """An entry of `loop_ir.REDUCTIONS` over the inner axes of this phase."""
        dtype = dtype or (ir.DType.i64 if op.startswith("arg") else x.dtype)
        outs = tuple(self._fresh(dtype) for _ in range(ir.REDUCTIONS[op][1]))
        self._body.append(ir.Reduce(tuple(o.name for o in outs), op, (x.name,), dtype))
        return outs

    def scan(self, op: str, x: Value) -> Value:
        """An entry of `loop_ir.SCANS` along the inner axes of this phase."""
        out = self._fresh(ir.DType.i64 if op.startswith("arg") else x.dtype)
        self._body.append(ir.Scan(out.name, op, (x.name,), out.dtype))
        return out

    def store(
        self,
        out: Operand,
        coords: Coords,
        value: Value,
        mode: str = "set",
        mask: Value | None = None,
    ) -> None:
        """Casts to the type of `out` and stores, or combines with what is there
        (`loop_ir.ATOMICS`), where the mask holds."""
        require(out.is_plain, "a result that is no plain view of its memory")
        value = value.to(out.dtype)
        self._use(out, written=True)
        index, inside = address(out.type, coords), mask.name if mask else None
        self._body.append(ir.Store(out.ref.buffer, index, value.name, mode, inside))

    # -- names

    def _fresh(self, dtype: ir.DType) -> Value:
        value = Value(f"v{self._count}", dtype, self)
        self._count += 1
        return value

    def _once(self, key: object, dtype: ir.DType, make: Callable[[str], ir.Stmt]) -> Value:
        found = self._seen.get(key)
        if found is None:
            found = self._fresh(dtype)
            self._body.append(make(found.name))
            self._seen[key] = found
        return found

    def _use(self, x: Operand, written: bool) -> None:
        storage = x.storage.parts
        for dtype in (x.dtype, storage.dtype):
            computable = not dtype.is_complex and dtype not in self._refused
            require(computable, f"kernels do not compute on {dtype.value}")
        name = x.ref.buffer
        buffer = self._buffers.get(name)
        if buffer is None:
            self._buffers[name] = ir.Buffer(name, replace(storage, offset=sympy.S.Zero), written)
        elif buffer.written != written:
            raise CannotLower(f"{name} is both read and written")


def _wrap(value: int, dtype: ir.DType) -> int:
    """`value` modulo two to the width of `dtype`, in its range."""
    bits = 8 * dtype.itemsize
    value %= 1 << bits
    signed = dtype.value.startswith("i")
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _axes(prefix: str, size: Sequence[sympy.Expr]) -> tuple[tuple[ir.Axis, ...], Coords]:
    axes: list[ir.Axis] = []
    coords: list[sympy.Expr] = []
    for n in size:
        if n == 1:
            coords.append(sympy.S.Zero)
        else:
            axes.append(ir.Axis(symbol(f"{prefix}{len(axes)}"), n))
            coords.append(axes[-1].symbol)
    return tuple(axes), tuple(coords)
