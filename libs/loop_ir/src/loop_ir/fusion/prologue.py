"""A cheap pointwise kernel moved into the matmul that alone reads what it makes.

kernel widen: w[i0] = bf16(q[i0]), i0 < n*k     matmul a, b = w as [k, n] strides (1, k)
matmul a, b = w as [k, n] strides (1, k)    ->  with prologue_b widen, which over the elements of
                                                `b` is w[k, n] = bf16(q[n*K + k]): q is what a
                                                template loads in place of w
"""

from collections import Counter
from dataclasses import dataclass, replace

import sympy

from loop_ir.fusion.common_domain import Mismatch
from loop_ir.fusion.inline import inline
from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import linear, span
from loop_ir.ir.analysis import is_pointwise, iterates, reads, writes
from loop_ir.ir.names import defined_values, statements
from loop_ir.ir.points import at_strides
from loop_ir.ir.renaming import fresh_name, fresh_symbols, union_origins
from loop_ir.ir.rewrite import ranges_of
from loop_ir.passes.fold_tests import fold
from loop_ir.passes.merge_axes import merge
from symexpr import FloorDiv, bounds
from tensor_ir import TensorType, contiguous_strides


@dataclass(frozen=True)
class Prologue:
    """A prologue over (row, column) of its operand, or (batch, row, column), with one store, of the
    element there.

    source: what a template loads in its place, at every point: a tensor of the operand's sizes; one
    with a stride of 0 is not looked at, for the kernel reads what is packed there by itself."""

    kernel: ir.Kernel
    source: ir.TensorRef


def attach_prologue(matmul: ir.Matmul, kernel: ir.Kernel, operand: str) -> ir.Matmul | Mismatch:
    """The matmul with `kernel` as the prologue of its operand "a" or "b", or why that cannot be."""
    ref = matmul.a if operand == "a" else matmul.b
    if matmul.groups is not None:
        return Mismatch(f"{matmul.out} is of groups")
    others = [matmul.b if operand == "a" else matmul.a, *matmul.added]
    used = {other.buffer for other in others}
    used |= set(reads(matmul.epilogue)) if matmul.epilogue is not None else set()
    if ref.buffer in used:
        return Mismatch(f"{matmul.out} reads {ref.buffer} in another place, too")
    changed = set(writes(matmul)) & set(reads(kernel))
    if changed:
        return Mismatch(f"{matmul.out} changes {sorted(changed)[0]}, which {kernel.name} reads")
    found = over_operand(kernel, ref)
    if isinstance(found, Mismatch):
        return found
    origins = union_origins(kernel.origins, matmul.origins)
    a, b = matmul.operands
    operands = (ir.Operand(ref, kernel), b) if operand == "a" else (a, ir.Operand(ref, kernel))
    return replace(matmul, operands=operands, origins=origins)


def over_operand(kernel: ir.Kernel, ref: ir.TensorRef) -> Prologue | Mismatch:
    """What `kernel` makes, element by element of the matrix `ref` or a batch of them: pointwise,
    without gathers, and of at least one tensor that it reads at a place of its own for each element
    of a matrix, or for a few that are packed there."""
    if iterates(kernel):
        return Mismatch(f"{kernel.name} takes as many steps as its elements ask for")
    if not is_pointwise(kernel):
        return Mismatch(f"{kernel.name} reduces")
    if writes(kernel) != (ref.buffer,):
        return Mismatch(f"{kernel.name} writes more than {ref.buffer}")
    if any(isinstance(s, ir.Indirect) for s in statements(kernel)):
        return Mismatch(f"{kernel.name} gathers")
    if any(s == 0 and n != 1 for n, s in zip(ref.type.size, ref.type.stride, strict=True)):
        return Mismatch(f"{ref.buffer} is repeated")
    taken = {s.name for s in kernel.symbols}
    letters = fresh_symbols("i", taken)
    axes = tuple(ir.Axis(s, n) for n, s in zip(ref.type.size, letters, strict=False))
    point = at_strides(axes, ref.type.stride)
    made = f"{ref.buffer}_operand"
    sizes = contiguous_strides(ref.type.size)
    place = at_strides(axes, sizes)
    storage = next(b.type for b in kernel.buffers if b.name == ref.buffer)
    dtype = ref.type.dtype
    reader = ir.Kernel(
        kernel.name,
        (
            ir.Buffer(ref.buffer, storage),
            ir.Buffer(made, TensorType(dtype, ref.type.size, sizes, ref.type.device), True),
        ),
        axes,
        (
            ir.Phase(
                (),
                (
                    ir.Load("element", ref.buffer, ref.type.offset + point, dtype),
                    ir.Store(made, place, "element"),
                ),
            ),
        ),
        kernel.symbols,
    )
    whole = inline(merge(kernel), reader, ref.buffer)
    if isinstance(whole, Mismatch):
        return whole
    whole = fold(_read_once(whole))
    source = _source(whole, axes, ref.type) or _packed(whole, axes, ref.type)
    if source is None:
        return Mismatch(f"{kernel.name} reads no tensor at a place of its own for each element")
    return Prologue(replace(whole, origins=kernel.origins), source)


def _read_once(kernel: ir.Kernel) -> ir.Kernel:
    """Loads of one place under several masks, such as the halves of a byte, as one without:

       a = load q[i0//2] if m else 0; b = load q[i0//2] if n else 0
    -> v = load q[i0//2]; a = where(m, v, 0); b = where(n, v, 0), where q has all these places
    """
    ranges, spans = dict(ranges_of(kernel)), {b.name: span(b.type) for b in kernel.buffers}
    loads = [s for s in statements(kernel) if isinstance(s, ir.Load)]
    times = Counter((s.buffer, s.index) for s in loads if s.mask is not None)
    taken = {name for s in statements(kernel) for name in defined_values(s)}
    read: dict[tuple[str, sympy.Expr], str] = {}
    body: list[ir.Stmt] = []
    for stmt in statements(kernel):
        if not isinstance(stmt, ir.Load) or stmt.mask is None or times[stmt.buffer, stmt.index] < 2:
            body.append(stmt)
            continue
        low, high = bounds(stmt.index, ranges)
        last = spans[stmt.buffer] - 1
        if low is None or low < 0 or high is None or not last.is_Integer or high > last:
            body.append(stmt)
            continue
        if (stmt.buffer, stmt.index) not in read:
            read[stmt.buffer, stmt.index] = name = fresh_name(f"{stmt.out}_here", taken)
            body.append(replace(stmt, out=name, mask=None))
        other = fresh_name(f"{stmt.out}_other", taken)
        body.append(ir.Const(other, stmt.other, stmt.dtype))
        values = (stmt.mask, read[stmt.buffer, stmt.index], other)
        body.append(ir.Compute(stmt.out, "where", values, stmt.dtype))
    return replace(kernel, phases=(ir.Phase((), tuple(body)),)) if read else kernel


def _source(kernel: ir.Kernel, axes: tuple[ir.Axis, ...], type: TensorType) -> ir.TensorRef | None:
    """The tensor to load: of those read once at each element, along (row, column), the one with
    the widest elements."""
    buffers = {b.name: b.type for b in kernel.buffers}
    best: ir.TensorRef | None = None
    for stmt in statements(kernel):
        if not isinstance(stmt, ir.Load) or stmt.mask is not None:
            continue
        form = linear(stmt.index, tuple(a.symbol for a in axes))
        if form is None:
            continue
        strides = tuple(form.coefficient(a.symbol) for a in axes)
        if any(s == 0 and a.extent != 1 for a, s in zip(axes[-2:], strides[-2:], strict=True)):
            continue
        if any(s.could_extract_minus_sign() for s in strides):  # turned around: no tensor lies so
            continue
        # The stride of one row or column may be any: as if rows lay one after the other.
        *batch, row, column = strides
        column = column if axes[-1].extent != 1 else sympy.S.One
        row = row if axes[-2].extent != 1 else axes[-1].extent * column
        at = TensorType(
            stmt.dtype,
            type.size,
            (*batch, row, column),
            buffers[stmt.buffer].device,
            sympy.expand(form.rest),
        )
        if best is None or stmt.dtype.itemsize > best.type.dtype.itemsize:
            best = ir.TensorRef(stmt.buffer, at)
    return best


def _packed(kernel: ir.Kernel, axes: tuple[ir.Axis, ...], type: TensorType) -> ir.TensorRef | None:
    """The tensor of which several elements along one axis share a place, such as `q[4*i1 + i0//8]`
    with eight numbers in one, with a stride of 0 along that axis."""
    buffers = {b.name: b.type for b in kernel.buffers}
    symbols = tuple(a.symbol for a in axes)
    for stmt in statements(kernel):
        if not isinstance(stmt, ir.Load) or stmt.mask is not None:
            continue
        shared = [d for d in stmt.index.atoms(FloorDiv) if d.args[0] in symbols[-2:]]
        if len(shared) != 1:
            continue
        form = linear(stmt.index.xreplace({shared[0]: sympy.S.Zero}), symbols)
        if form is None or not set(symbols) - {shared[0].args[0]} <= {s for s, _ in form.terms}:
            continue
        strides = tuple(form.coefficient(s) for s in symbols)
        if any(s.could_extract_minus_sign() for s in strides):
            continue
        if strides[symbols.index(shared[0].args[0])] == 0:
            device = buffers[stmt.buffer].device
            at = TensorType(stmt.dtype, type.size, strides, device, sympy.expand(form.rest))
            return ir.TensorRef(stmt.buffer, at)
    return None
