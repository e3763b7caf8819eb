"""All that follows the products of a matmul, as one kernel over their sums.

matmul out: bf16 = 0.5*(a @ b) + bias[m]        epilogue reads s = load out_sum[m*n] : f32, and
epilogue v = load out[m*n]; store y = v*v   ->  v = bf16(s*0.5 + f32(load bias[m])); store y = v*v
"""

from dataclasses import replace

import sympy

from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import span
from loop_ir.ir.names import defined_values, renamed
from loop_ir.ir.points import at_strides
from loop_ir.ir.renaming import fresh_name, fresh_symbols, union_buffers, used_buffers
from symexpr import Max
from tensor_ir import DType, Symbol, TensorType


def is_plain(matmul: ir.Matmul) -> bool:
    """Whether a matmul computes `a @ b`, or that and a bias for each column, and nothing else."""
    plain = matmul.bias is None or (len(matmul.bias.type.size) == 1 and matmul.beta == 1)
    return plain and matmul.alpha == 1 and matmul.scales is None


def whole_epilogue(
    matmul: ir.Matmul, symbols: tuple[Symbol, ...] = ()
) -> tuple[ir.Kernel | None, str]:
    """What follows the products, and the name of the buffer that stands for them there. symbols:
    what is known of the sizes.

    That is the epilogue and `out` of a plain matmul. Else it is a kernel over the sizes of the
    result that reads the sums as f32, under another name; applies factors and bias; rounds
    to the type of `out` as the operator does; and does what the epilogue does, or stores `out`.
    Where factors are of the columns of each group, it runs over the groups, too, as over a batch:
    of each point in the group that has it."""
    if is_plain(matmul):
        return matmul.epilogue, matmul.out
    epilogue, type = matmul.epilogue, matmul.type
    taken = {b.name for b in epilogue.buffers} if epilogue else {matmul.out}
    sums = fresh_name(f"{matmul.out}_sum", taken)
    if epilogue is not None:
        axes: tuple[ir.Axis, ...] = epilogue.axes
        old = [s for p in epilogue.phases for s in p.body]
    else:
        letters = fresh_symbols("i", {s.name for n in type.size for s in n.free_symbols})
        axes = tuple(ir.Axis(s, n) for n, s in zip(type.size, letters, strict=False))
        old = []
    if matmul.groups is not None:
        used = {s.name for x in axes for s in (x.symbol, *x.extent.free_symbols)}
        axes = (ir.Axis(next(fresh_symbols("g", used)), matmul.groups.type.size[0]), *axes)
    names = {name for s in old for name in defined_values(s)}
    body, value = _sum(matmul, sums, axes, names)
    buffers = [ir.Buffer(sums, replace(type, dtype=DType.f32))]
    ends: dict[str, sympy.Expr] = {}
    for ref in matmul.added:
        ends[ref.buffer] = Max(ends.get(ref.buffer, sympy.S.One), span(ref.type))
    for name, dtype in {ref.buffer: ref.type.dtype for ref in matmul.added}.items():
        storage = TensorType(dtype, (ends[name],), (sympy.S.One,), type.device)
        buffers.append(ir.Buffer(name, storage))
    if epilogue is None:
        points = axes[-len(type.size) :]
        body.append(ir.Store(matmul.out, at_strides(points, type.stride), value))
        buffers.append(ir.Buffer(matmul.out, type, True))
        free = {s.name for n in (*type.size, *type.stride) for s in n.free_symbols}
        kernel = ir.Kernel(
            f"{matmul.out}_finish",
            tuple(buffers),
            axes,
            (ir.Phase((), tuple(body)),),
            tuple(s for s in symbols if s.name in free),
            matmul.origins,
        )
        return used_buffers(kernel), sums
    read = {s.out: value for s in old if isinstance(s, ir.Load) and s.buffer == matmul.out}
    body += [renamed(s, read) for s in old if not (isinstance(s, ir.Load) and s.out in read)]
    kernel = replace(
        epilogue,
        axes=axes,
        buffers=union_buffers(epilogue.buffers, buffers),
        phases=(ir.Phase((), tuple(body)),),
    )
    return used_buffers(kernel), sums


def _sum(
    matmul: ir.Matmul, sums: str, axes: tuple[ir.Axis, ...], names: set[str]
) -> tuple[list[ir.Stmt], str]:
    """Statements of `alpha * scale_a * scale_b * sums + beta * bias`, rounded, and the value's
    name."""
    body: list[ir.Stmt] = []

    def fresh(base: str) -> str:
        return fresh_name(base, names)

    def times(value: str, factor: str) -> str:
        body.append(ir.Compute(out := fresh("scaled"), "mul", (value, factor), DType.f32))
        return out

    def scaled(value: str, factor: float) -> str:
        if factor == 1:
            return value
        body.append(ir.Const(number := fresh("factor"), float(factor), DType.f32))
        return times(value, number)

    def load(base: str, ref: ir.TensorRef, along: tuple[ir.Axis, ...]) -> str:
        """An element of a tensor, in f32."""
        index = ref.type.offset + at_strides(along, ref.type.stride)
        body.append(ir.Load(out := fresh(base), ref.buffer, index, ref.type.dtype))
        if ref.type.dtype is not DType.f32:
            body.append(ir.Compute(wide := fresh("wide"), "cast", (out,), DType.f32))
            out = wide
        return out

    points, stride = axes[-len(matmul.type.size) :], matmul.type.stride
    body.append(ir.Load(value := fresh("total"), sums, at_strides(points, stride), DType.f32))
    value = scaled(value, matmul.alpha)
    if matmul.scales is not None and matmul.scales.blocks is None:
        of_group = axes[:-2] if matmul.groups is not None else ()
        value = times(value, load("row", matmul.scales.a, axes[-2:-1]))
        value = times(value, load("column", matmul.scales.b, (*of_group, axes[-1])))
    bias = matmul.bias
    if bias is not None and matmul.beta != 0:
        added = scaled(load("bias", bias, axes[-len(bias.type.size) :]), matmul.beta)
        body.append(ir.Compute(out := fresh("both"), "add", (value, added), DType.f32))
        value = out
    if matmul.type.dtype is not DType.f32:
        body.append(ir.Compute(out := fresh("rounded"), "cast", (value,), matmul.type.dtype))
        value = out
    return body, value
