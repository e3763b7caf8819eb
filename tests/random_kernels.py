"""Random kernels of loop IR: what emitters of kernels are tested with."""

from __future__ import annotations

from typing import Any

import sympy
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Generate
from hypothesis import strategies as st

from loop_ir import (
    Axis,
    Buffer,
    Compute,
    Const,
    Device,
    DType,
    Index,
    Indirect,
    Kernel,
    Load,
    Phase,
    Reduce,
    Store,
    Symbol,
    TensorType,
    contiguous_strides,
)
from symexpr import FloorDiv, Mod, symbol

F32 = DType.f32
SIZES = st.sampled_from([1, 2, 3, 5, 8, 12])
CHAIN = st.lists(
    st.sampled_from(["add", "sub", "mul", "maximum", "minimum", "tanh", "neg", "sigmoid", "where",
                     "index", "const", "round16", "again", "inner"]),
    max_size=6,
)  # fmt: skip


def drawn(count: int) -> settings:
    """So many examples, the same ones each time."""
    return settings(
        max_examples=count, deadline=None, derandomize=True, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck), phases=[Generate.generate],
    )  # fmt: skip


class Builder:
    """A kernel in the making: every load gets a buffer of its own."""

    def __init__(self, draw: Any, dynamic: bool) -> None:
        self.draw = draw
        self.buffers: list[Buffer] = []
        self.tensors: dict[str, Any] = {}
        self.count = 0
        self.dynamic = dynamic

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def load(self, axes: list[tuple[sympy.Symbol, sympy.Expr]]) -> list[Any]:
        """A load over some axes in some order: broadcast, transposed, through an index."""
        draw = self.draw
        used = [a for a in axes if draw(st.integers(0, 3)) > 0]
        used = draw(st.permutations(used))
        dtype = draw(st.sampled_from([F32, DType.bf16, DType.i32]))
        size = tuple(extent for _, extent in used) or (sympy.Integer(1),)
        strides = contiguous_strides(size)
        index = sympy.Add(*(s * k for (s, _), k in zip(used, strides, strict=False)))
        buffer = f"x{len(self.buffers)}"
        way = draw(st.sampled_from(["plain", "plain", "indirect", "shifted", "masked"]))
        out: list[Any] = []
        mask = None
        if way == "indirect" and used:
            ids, at = f"{buffer}_ids", symbol(f"at{self.count}")
            first, extent = used[0]
            wide = self.name()
            self.buffers.append(Buffer(ids, tensor(DType.i64, extent)))
            rows = sympy.Integer(9)
            size = (rows, *size[1:])
            strides = contiguous_strides(size)
            index = at * strides[0] + sympy.Add(
                *(s * k for (s, _), k in zip(used[1:], strides[1:], strict=True))
            )
            out += [Load(wide, ids, first, DType.i64), Indirect(at, wide, rows)]
            buffer = f"x{len(self.buffers)}"
        elif way == "shifted" and used:
            flat = index
            total = sympy.Mul(*size)
            index = Mod(FloorDiv(flat, 2) + 3, total)
        elif way == "masked" and used:
            place, limit, mask = self.name(), self.name(), self.name()
            out += [Index(place, used[-1][0], DType.i64), Const(limit, 2, DType.i64),
                    Compute(mask, "lt", (place, limit), DType.bool_)]  # fmt: skip
        raw, value = self.name(), self.name()
        self.buffers.append(Buffer(buffer, tensor(dtype, *size)))
        out.append(Load(raw, buffer, index, dtype, mask, 1))
        if dtype is not F32:
            out.append(Compute(value, "cast", (raw,), F32))
        return out if dtype is not F32 else [*out[:-1], Load(value, buffer, index, F32, mask, 1)]

    def chain(
        self, values: list[str], axes: list[tuple[sympy.Symbol, sympy.Expr]]
    ) -> tuple[list[Any], str]:
        """Statements that end in a value made from `values` and fresh loads."""
        body = self.load(axes)
        current = body[-1].out
        for op in self.draw(CHAIN):
            out = self.name()
            if op in ("add", "sub", "mul", "maximum", "minimum"):
                other = self.draw(st.sampled_from([*values, current]))
                body.append(Compute(out, op, (current, other), F32))
            elif op == "where":
                flag = self.name()
                other = self.draw(st.sampled_from([*values, current]))
                body += [Compute(flag, "gt", (current, other), DType.bool_),
                         Compute(out, "where", (flag, other, current), F32)]  # fmt: skip
            elif op == "index" and axes:
                place, cast = self.name(), self.name()
                s = self.draw(st.sampled_from([s for s, _ in axes]))
                body += [Index(place, 2 * s + 1, DType.i64), Compute(cast, "cast", (place,), F32),
                         Compute(out, "add", (current, cast), F32)]  # fmt: skip
            elif op == "const":
                c = self.name()
                body += [Const(c, 0.3, F32), Compute(out, "mul", (current, c), F32)]
            elif op == "round16":
                low = self.name()
                body += [Compute(low, "cast", (current,), DType.f16),
                         Compute(out, "cast", (low,), F32)]  # fmt: skip
            elif op == "again":
                more = self.load(axes)
                body += [*more, Compute(out, "add", (current, more[-1].out), F32)]
            else:
                body.append(Compute(out, op if op in ("neg", "tanh", "sigmoid") else "abs",
                                    (current,), F32))  # fmt: skip
            values = [*values, current]
            current = out
        return body, current


def tensor(dtype: DType, *size: Any) -> TensorType:
    return TensorType(dtype, size, contiguous_strides(size), Device("cuda", 0))


def outer_axes(draw: Any, dynamic: bool) -> tuple[list[Any], dict[str, int], tuple[Symbol, ...]]:
    extents: list[sympy.Expr] = [sympy.Integer(draw(SIZES)) for _ in range(draw(st.integers(1, 3)))]
    symbols: tuple[Symbol, ...] = ()
    sizes: dict[str, int] = {}
    if dynamic:
        extents[draw(st.integers(0, len(extents) - 1))] = symbol("s0")
        sizes["s0"] = draw(SIZES)
        symbols = (Symbol("s0", 1, 64, 8),)
    return [(symbol(f"i{k}"), e) for k, e in enumerate(extents)], sizes, symbols


@st.composite
def pointwise(draw: Any) -> tuple[Kernel, dict[str, int]]:
    b = Builder(draw, draw(st.booleans()))
    axes, sizes, symbols = outer_axes(draw, b.dynamic)
    body, value = b.chain([], axes)
    order = draw(st.permutations(axes))
    size = tuple(e for _, e in order)
    index = sympy.Add(*(s * k for (s, _), k in zip(order, contiguous_strides(size), strict=True)))
    body.append(Store("y", index, value))
    kernel = Kernel("fuzz", (*b.buffers, Buffer("y", tensor(F32, *size), True)),
                    tuple(Axis(s, e) for s, e in axes), (Phase((), tuple(body)),),
                    symbols)  # fmt: skip
    return kernel, sizes


@st.composite
def reducing(draw: Any) -> tuple[Kernel, dict[str, int]]:
    b = Builder(draw, draw(st.booleans()))
    axes, sizes, symbols = outer_axes(draw, b.dynamic)
    axes = axes[:2] if any("s0" in map(str, e.free_symbols) for _, e in axes[:2]) else axes
    inner = [(symbol(f"r{k}"), sympy.Integer(draw(SIZES))) for k in range(draw(st.integers(1, 2)))]
    space = tuple(Axis(s, e) for s, e in inner)
    first, value = b.chain([], [*axes, *inner])
    op = draw(st.sampled_from(["sum", "max", "min", "welford"]))
    outs = ("red", "red2") if op == "welford" else ("red",)
    first.append(Reduce(outs, op, (value,), F32))
    between, row = b.chain([outs[0]], axes)
    between += [Compute("rowed", "add", (row, outs[0]), F32)]
    last, final = b.chain([value, "rowed"], [*axes, *inner])
    last += [Compute("fin", "sub", (value, "rowed"), F32),
             Compute("fin2", "add", ("fin", final), F32)]  # fmt: skip
    size = tuple(e for _, e in [*axes, *inner])
    index = sympy.Add(
        *(s * k for (s, _), k in zip([*axes, *inner], contiguous_strides(size), strict=True))
    )
    last.append(Store("y", index, "fin2"))
    rows = tuple(e for _, e in axes)
    where = sympy.Add(*(s * k for (s, _), k in zip(axes, contiguous_strides(rows), strict=True)))
    between.append(Store("z", where, "rowed"))
    buffers = (*b.buffers, Buffer("y", tensor(F32, *size), True),
               Buffer("z", tensor(F32, *rows), True))  # fmt: skip
    phases = (Phase(space, tuple(first)), Phase((), tuple(between)), Phase(space, tuple(last)))
    return Kernel("fuzz", buffers, tuple(Axis(s, e) for s, e in axes), phases, symbols), sizes
