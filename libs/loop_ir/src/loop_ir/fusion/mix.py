"""Sums of columns made by the kernel that reduces rows of the same points."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from loop_ir.fusion.combine import combine
from loop_ir.fusion.common_domain import Mismatch
from loop_ir.ir.affine import linear, product, same, substitute
from loop_ir.ir.analysis import inner_axes, scans
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.in_place import stays_outside
from loop_ir.ir.names import free_names, map_expressions, statements, symbol_names
from loop_ir.ir.nodes import Axis, Buffer, Kernel, Load, Phase, Reduce, Stmt, Store
from loop_ir.ir.points import place_in
from loop_ir.ir.renaming import fresh_name, fresh_symbols, new_buffer, renumber, used_buffers
from loop_ir.ir.rewrite import ranges_of, substitute_axes
from loop_ir.ir.strides import reduces_columns
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.passes.merge_axes import merge
from symexpr import FloorDiv, Mod
from tensor_ir import DType, TensorType


@dataclass(frozen=True)
class Columns:
    """A kernel that sums columns, as a kernel over rows and columns that stores each summand
    (`summands`: buffer -> the reduction that it is for), and the phases that run once a column."""

    kernel: Kernel
    turned: Kernel
    summands: Mapping[str, Reduce]
    once: tuple[Phase, ...]


def columns_of(kernel: Kernel, taken: set[str]) -> Columns | None:
    """What sums columns of floats, once, and otherwise runs once a column; else None. taken: names
    of the graph, to which those of new buffers are added."""
    rows = inner_axes(kernel)
    reduces = [s for s in statements(kernel) if isinstance(s, Reduce)]
    if not (rows and reduces and kernel.axes and stays_outside(kernel)) or scans(kernel):
        return None
    if any(s.op != "sum" or s.dtype not in (DType.f32, DType.f64) for s in reduces):
        return None
    level = next(n for n, p in enumerate(kernel.phases) if p.axes and reduces[0] in p.body)
    if any(p.axes for p in kernel.phases[level + 1 :]) or not reduces_columns(kernel):
        return None
    stored = {s.buffer: s.mode for s in statements(kernel) if isinstance(s, Store)}
    if any(mode != "set" for mode in stored.values()):
        return None
    body: list[Stmt] = []
    for phase in kernel.phases[: level + 1]:
        drop: type[Stmt] | tuple[type[Stmt], ...] = Reduce if phase.axes else Store
        body += [s for s in phase.body if not isinstance(s, drop)]
    size = (product(a.extent for a in rows), *(a.extent for a in kernel.axes))
    at = place_in((*rows, *kernel.axes))
    buffers = list(kernel.buffers)
    summands: dict[str, Reduce] = {}
    for stmt in reduces:
        name = fresh_name(f"{kernel.name}_sum", taken)
        buffers.append(new_buffer(name, stmt.dtype, size, buffers[0].type.device))
        summands[name] = stmt
        body.append(Store(name, at, stmt.args[0]))
    turned = replace(
        kernel, buffers=tuple(buffers), axes=(*rows, *kernel.axes), phases=(Phase((), tuple(body)),)
    )
    once = tuple(p for p in kernel.phases if not p.axes)
    return Columns(kernel, used_buffers(turned), summands, once)


def join(
    rows: Kernel, columns: Columns, rows_first: bool, hints: Mapping[str, int], dead: frozenset[str]
) -> Kernel | Mismatch:
    """The kernel of rows that also stores the summands of the columns, at its inner points."""
    if scans(rows):
        return Mismatch(f"{rows.name} scans its rows")
    pair = (rows, columns.turned) if rows_first else (columns.turned, rows)
    fused = combine(*pair, hints, dead)
    if isinstance(fused, Mismatch):
        return fused
    if not fused.axes or not inner_axes(fused):
        return Mismatch(f"{rows.name} has no rows")
    fused = _along_one(fused)
    symbol = fused.axes[0].symbol
    width = product(a.extent for a in columns.kernel.axes)
    if not same(product(a.extent for a in inner_axes(fused) or ()), width):
        return Mismatch(f"rows of {rows.name} are several of {columns.kernel.name}")
    for phase in fused.phases:
        for s in phase.body:
            if isinstance(s, Store) and s.buffer in columns.summands:
                form = linear(s.index, (symbol,))
                if not phase.axes or form is None or not same(form.coefficient(symbol), width):
                    return Mismatch(f"rows of {columns.kernel.name} are not those of {rows.name}")
    return replace(fused, name=rows.name)


def _along_one(kernel: Kernel) -> Kernel:
    """The kernel with its rows along one axis, of which those that it has are digits.

    parallel i0 < 6, i1 < 24: .. x[i0*48 + i1]   ->   parallel i2 < 144: .. x[i2//24*48 + i2%24]"""
    if len(kernel.axes) == 1:
        return kernel
    extent = product(a.extent for a in kernel.axes)
    axis = Axis(next(fresh_symbols("i", symbol_names(kernel))), extent)
    digits: list[tuple[sympy.Symbol, sympy.Expr]] = []
    rest: sympy.Expr = axis.symbol
    for own in reversed(kernel.axes):
        digits.append((own.symbol, sympy.sympify(Mod(rest, own.extent))))
        rest = sympy.sympify(FloorDiv(rest, own.extent))
    one = replace(kernel, axes=(axis,))
    return replace(substitute_axes(kernel, tuple(digits), ranges_of(one)), axes=(axis,))


def walked(fused: Kernel, parts: int, length: sympy.Expr, summands: Mapping[str, Reduce]) -> Kernel:
    """`fused` with its rows shared out to `parts` programs of `length` rows each; a program sums
    the summands over its rows.

    parallel i0 < 640: .. store s[i0*8 + r0] = v
    -> parallel i1 < 10, i0 < 64: .. store s[i1*8 + r0] sum= v
    """
    (row,) = fused.axes
    exact = same(length * parts, row.extent)
    fresh = fresh_values(fused)
    part = Axis(next(fresh_symbols("i", symbol_names(fused))), sympy.Integer(parts))
    at = sympy.expand(part.symbol * length + row.symbol)
    shift = ((row.symbol, at),)
    buffers = tuple(
        replace(b, type=_first_rows(b.type, parts)) if b.name in summands else b
        for b in fused.buffers
    )
    head = Body(fresh)
    inside = None if exact else head.test("lt", head.number(at), head.number(row.extent))
    phases = [Phase((), tuple(head))] if head else []
    for phase in fused.phases:
        body = Body(fresh)
        for stmt in phase.body:
            if isinstance(stmt, Store) and stmt.buffer in summands:
                index = substitute(stmt.index, ((row.symbol, part.symbol),))
                value = stmt.value
                if inside is not None:
                    dtype = summands[stmt.buffer].dtype
                    none = body.const(0.0, dtype)
                    value = body.compute(dtype, "where", inside, stmt.value, none)
                body.append(Store(stmt.buffer, index, value, "sum"))
                continue
            stmt = map_expressions(stmt, lambda e: substitute(e, shift))
            if inside is not None and isinstance(stmt, Load | Store):
                stmt = body.guarded(stmt, inside)
            body.append(stmt)
        phases.append(replace(phase, body=tuple(body)))
    axes = (part, replace(row, extent=length))
    return renumber(replace(fused, buffers=buffers, axes=axes, phases=tuple(phases)))


def _first_rows(layout: TensorType, rows: int) -> TensorType:
    return replace(layout, size=(sympy.Integer(rows), *layout.size[1:]))


def finish(columns: Columns, parts: int) -> Kernel:
    """The kernel that adds up the partial sums and does what comes once a column."""
    kernel = columns.kernel
    used = free_names(kernel) | {a.symbol.name for a in kernel.axes}
    over = Axis(next(fresh_symbols("r", used)), sympy.Integer(parts))
    at = place_in(kernel.axes, over.symbol)
    layouts = {b.name: b.type for b in columns.turned.buffers}
    buffers = list(kernel.buffers)
    body = Body(fresh_values(kernel))
    for name, stmt in columns.summands.items():
        value = body.load(name, at, stmt.dtype)
        body.append(replace(stmt, args=(value,)))
        buffers.append(Buffer(name, _first_rows(layouts[name], parts)))
    first = next(n for n, p in enumerate(kernel.phases) if p.axes)
    before = tuple(p for p in kernel.phases[:first] if not p.axes)
    after = columns.once[len(before) :]
    phases = (*before, Phase((over,), tuple(body)), *after)
    whole = replace(kernel, buffers=tuple(buffers), phases=phases)
    slim = drop_dead_statements(whole)
    assert slim is not None, kernel.name
    return renumber(merge(used_buffers(slim)))
