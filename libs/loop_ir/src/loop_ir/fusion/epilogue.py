"""A pointwise kernel moved into the matmul whose result it reads."""

from dataclasses import replace
from itertools import pairwise

import sympy

from loop_ir.fusion.common_domain import Mismatch, refine
from loop_ir.ir.affine import same, substitute
from loop_ir.ir.analysis import is_pointwise, iterates
from loop_ir.ir.in_place import hazard
from loop_ir.ir.names import expression, free_names, map_expressions, statements
from loop_ir.ir.nodes import Axis, Compute, Kernel, Load, Matmul, Phase, Store
from loop_ir.ir.points import at_strides, place_in
from loop_ir.ir.renaming import fresh_symbols, union_origins
from loop_ir.passes.merge_axes import contiguous
from loop_ir.passes.order_axes import order_as_read
from symexpr import FloorDiv, Mod


def attach(matmul: Matmul, kernel: Kernel) -> Matmul | Mismatch:
    """The matmul with `kernel` as its epilogue, rewritten over the axes of the result, or why
    that cannot be: `kernel` must be pointwise, read the result at its own point only, store one
    tensor, and its axes must be a split or a merge of the rows and columns that every index walks
    as one, or are so in the order in which it reads the result. The batch may be split where other
    tensors are read: its parts become `batch // n` and `batch % n`."""
    found = _attach(matmul, kernel)
    if isinstance(found, Mismatch):
        ordered = order_as_read(kernel, matmul.out)
        again = found if ordered is kernel else _attach(matmul, ordered)
        return found if isinstance(again, Mismatch) else again
    return found


def _attach(matmul: Matmul, kernel: Kernel) -> Matmul | Mismatch:
    if iterates(kernel):
        return Mismatch(f"{kernel.name} takes as many steps as its elements ask for")
    if not is_pointwise(kernel):
        return Mismatch(f"{kernel.name} reduces")
    choices = {s.op for s in statements(kernel) if isinstance(s, Compute)} & {"where", "rarely"}
    if matmul.groups is not None and choices:
        return Mismatch(f"{kernel.name} may say what is of no group, which is not computed")
    if (why := hazard(kernel)) is not None:
        return Mismatch(f"{kernel.name}: {why}")
    stores = [s for s in statements(kernel) if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None:
        return Mismatch(f"{kernel.name} writes {len(stores)} results, or parts of one")
    taken = free_names(kernel)
    symbols = fresh_symbols("i", taken)
    axes = tuple(Axis(s, n) for s, n in zip(symbols, matmul.type.size, strict=False))
    atoms = refine(axes, kernel.axes)
    if atoms is None:
        return Mismatch(f"{kernel.name} does not run over the rows and columns of {matmul.out}")
    parts = [Axis(s, a.extent) for s, a in zip(fresh_symbols("a", taken), atoms, strict=False)]
    mapping = tuple(
        (
            axis.symbol,
            sympy.Add(
                *(
                    a.second_scale * p.symbol
                    for a, p in zip(atoms, parts, strict=True)
                    if a.second == position
                )
            ),
        )
        for position, axis in enumerate(kernel.axes)
    )
    body = tuple(s for p in kernel.phases for s in p.body)
    body = tuple(map_expressions(s, lambda e: substitute(e, mapping)) for s in body)
    point = at_strides(axes, matmul.type.stride)
    whole = tuple(
        (
            axis.symbol,
            place_in([p for a, p in zip(atoms, parts, strict=True) if a.first == position]),
        )
        for position, axis in enumerate(axes)
    )
    here = substitute(point, whole)
    for stmt in body:
        if not (isinstance(stmt, Load) and stmt.buffer == matmul.out):
            continue
        if stmt.mask is not None or not same(stmt.index, here):
            return Mismatch(f"{kernel.name} reads {matmul.out} at another point")
    exprs = [e for e in map(expression, body) if e is not None]
    back: list[tuple[sympy.Symbol, sympy.Expr]] = []
    split: list[Axis] = []
    for position, axis in enumerate(axes):
        run = [p for a, p in zip(atoms, parts, strict=True) if a.first == position]
        if not _walks_as_one(exprs, run):
            if len(axes) == 2 or position > 0:
                return Mismatch(f"{kernel.name} walks {axis.extent} rows or columns in parts")
            split = run
        back += [(p.symbol, sympy.S.Zero) for p in run[:-1]]
        back += [(p.symbol, axis.symbol) for p in run[-1:]]
    whole_batch = tuple(back)
    digits = _digits(axes[0].symbol, split)
    by_digits = tuple((s, digits.get(s, e)) for s, e in back)

    def in_axes(e: sympy.Expr) -> sympy.Expr:
        return substitute(e, whole_batch if _walks_as_one([e], split) else by_digits)

    if not _walks_as_one([s.index for s in body if isinstance(s, Store)], split):
        return Mismatch(f"{kernel.name} stores the products of a batch in another order")
    body = tuple(
        replace(s, index=point)
        if isinstance(s, Load) and s.buffer == matmul.out
        else map_expressions(s, in_axes)
        for s in body
    )
    epilogue = replace(kernel, axes=axes, phases=(Phase((), body),))
    return replace(matmul, epilogue=epilogue, origins=union_origins(matmul.origins, kernel.origins))


def _walks_as_one(exprs: list[sympy.Expr], run: list[Axis]) -> bool:
    """Whether every expression takes the parts of an axis for the digits of one number."""
    return all(contiguous(exprs, outer, inner) for outer, inner in pairwise(run))


def _digits(batch: sympy.Symbol, run: list[Axis]) -> dict[sympy.Symbol, sympy.Expr]:
    """The parts of a batch number: one for a whole tile, so that divisions cost nothing."""
    found: dict[sympy.Symbol, sympy.Expr] = {}
    step: sympy.Expr = sympy.S.One
    for part in reversed(run):
        digit = batch if step == 1 else FloorDiv(batch, step)
        found[part.symbol] = digit if part is run[0] else Mod(digit, part.extent)
        step = step * part.extent
    return found
