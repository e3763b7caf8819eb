"""The matmul family: `Matmul` nodes, whose `extern` is the exact ATen call."""

from dataclasses import replace
from typing import Any

import sympy
import torch

from aten_lowering.builder import Number, Operand
from aten_lowering.call import Call
from aten_lowering.errors import CannotLower, require
from aten_lowering.extern import operands
from aten_lowering.registry import Table
from loop_ir import DType, Matmul, Scales, TensorRef, TensorType
from loop_ir import Operand as MatmulOperand
from symexpr import CeilDiv

aten = torch.ops.aten
table = Table()

_FLOATS = (DType.f16, DType.bf16, DType.f32, DType.f64)
# Elements along K, and rows of large blocks, that share a scale.
_BLOCK = 128
# Of torch.nn.functional.ScalingType: one scale, one a row, blocks of 1 x 128 and of 128 x 128.
_ONE, _EACH, _SMALL, _LARGE = _RECIPES = (0, 1, 4, 5)


@table.lowers(aten.mm.default, aten.bmm.default, aten.mm.dtype, aten.bmm.dtype)
def mm(call: Call, input: Operand, mat2: Operand, out_dtype: DType | None = None) -> None:
    """`input @ mat2`: `[M, K] @ [K, N]`, or a batch of such; rounded once, to the result's type."""
    _emit(call, input.ref, mat2.ref, None, call.out.operand.type)


@table.lowers(aten._int_mm.default)
def int_mm(call: Call, input: Operand, mat2: Operand) -> None:
    """`input @ mat2` of int8, summed in int32. Eager refuses a K and an N that are no multiples of
    8 (and 16 rows and less, which templates run)."""
    inner, columns = mat2.size
    require(inner % 8 == 0 and columns % 8 == 0, f"{inner} x {columns}, which eager refuses")
    _emit(call, input.ref, mat2.ref, None, call.out.operand.type)


@table.lowers(aten._scaled_mm.default)
def scaled_mm(
    call: Call,
    input: Operand,
    mat2: Operand,
    scale_a: Operand,
    scale_b: Operand,
    bias: Operand | None,
    scale_result: Operand | None,
    out_dtype: DType | None,
    use_fast_accum: bool,
) -> None:
    """`scale_a * (input @ mat2) * scale_b + bias` of fp8: a factor for each operand, for each row
    of one and each column of the other, or for blocks of 1 x 128 and 128 x 128, as the sizes of the
    scales say."""
    require(scale_result is None, "a scale of the result")
    scales = scale_a.ref, _transposed(scale_b.ref)
    _scaled(call, (input, mat2), bias, scales, use_fast_accum)


@table.lowers(aten._scaled_mm_v2.default)
def scaled_mm_by_recipe(
    call: Call,
    input: Operand,
    mat2: Operand,
    bias: Operand | None,
    out_dtype: DType | None,
    contraction_dim: list[int],
    use_fast_accum: bool,
    **scaling: Any,
) -> None:
    """`scaled_mm` with recipes that say what the scales are of; those of `mat2` are of the rows of
    its transpose. Of blocks of 128 x 128 those along K come first, as many as fill fours."""
    require(not contraction_dim, "contraction dimensions")
    found = []
    for side in "ab":
        scales, recipes = scaling[f"scale_{side}"], scaling[f"recipe_{side}"]
        known = len(recipes) == 1 and recipes[0] in _RECIPES
        require(known and not any(scaling[f"swizzle_{side}"]), f"scales by the recipes {recipes}")
        ((scale,), (recipe,)) = scales, recipes
        ref, size = scale.ref, scale.size
        if recipe == _LARGE:
            require(len(size) == 2, f"scales of {size}")
            blocks = CeilDiv(input.size[1], _BLOCK)
            require(_same(size[0], 4 * CeilDiv(blocks, 4)), f"scales of {size}")
            ref = _transposed(replace(ref, type=replace(ref.type, size=(blocks, size[1]))))
        elif recipe == _EACH and size[0] == 1:
            ref = _transposed(ref)
        found.append(ref)
    _scaled(call, (input, mat2), bias, (found[0], found[1]), use_fast_accum)


def _scaled(
    call: Call,
    operands: tuple[Operand, Operand],
    bias: Operand | None,
    scales: tuple[TensorRef, TensorRef],
    fast: bool,
) -> None:
    """scales: of the rows of the first operand, and of those of the second's transpose."""
    a, b = operands
    out = call.out.operand.type
    require(out.dtype in _FLOATS, f"a result of {out.dtype.value}")
    added = None if bias is None else _addend(bias, out.size[1:])
    inner = a.size[1]
    (m, one), (n, two) = (_factors(s, k, inner) for s, k in zip(scales, out.size, strict=True))
    require((m == 0) == (n == 0), "blocks along K of one operand")
    factors = Scales(one, two, fast)
    if m != 0:
        factors = Scales(one, _transposed(two), False, (m, _BLOCK, n))
    _emit(call, a.ref, b.ref, added, out, scales=factors)


def _factors(scale: TensorRef, count: sympy.Expr, inner: sympy.Expr) -> tuple[int, TensorRef]:
    """Factors of the rows [count, inner] of an operand: 0 and a vector of one a row, or how many
    rows share one for each block along K, and those."""
    own = scale.type
    require(own.dtype is DType.f32, f"scales of {own.dtype.value}")
    one = all(n == 1 for n in own.size)
    if one or (len(own.size) == 2 and own.size[1] == 1 and _same(own.size[0], count)):
        step = sympy.S.Zero if one else own.stride[0]
        return 0, replace(scale, type=replace(own, size=(count,), stride=(step,)))
    for rows in (1, _BLOCK):
        wanted = CeilDiv(count, rows), CeilDiv(inner, _BLOCK)
        if len(own.size) == 2 and all(map(_same, own.size, wanted)):
            return rows, replace(scale, type=replace(own, size=wanted))
    raise CannotLower(f"scales of {own.size}")


def _transposed(ref: TensorRef) -> TensorRef:
    size, stride = ref.type.size[::-1], ref.type.stride[::-1]
    return replace(ref, type=replace(ref.type, size=size, stride=stride))


def _same(one: sympy.Expr, two: sympy.Expr) -> bool:
    return bool(one == two) or bool(sympy.expand(one - two) == 0)


@table.lowers(aten._grouped_mm.default)
def grouped_mm(
    call: Call,
    input: Operand,
    mat2: Operand,
    offs: Operand | None,
    bias: Operand | None,
    out_dtype: DType | None,
) -> None:
    """Products of groups of rows, of columns or along k, which end at `offs`; or of a batch."""
    require(bias is None, "a bias")
    if offs is None:
        return _emit(call, input.ref, mat2.ref, None, call.out.operand.type)
    ends = _ends(input, offs)
    return _emit(call, input.ref, mat2.ref, None, call.out.operand.type, groups=ends)


def _ends(input: Operand, offs: Operand) -> TensorRef:
    own = offs.type
    require(own.size[0].is_Integer and own.stride[0] == 1, f"ends {own.size} at {own.stride}")
    require(own.device == input.type.device, "ends on another device")
    return offs.ref


@table.lowers(aten._scaled_grouped_mm.default)
def scaled_grouped_mm(
    call: Call,
    input: Operand,
    mat2: Operand,
    scale_a: Operand,
    scale_b: Operand,
    offs: Operand | None,
    bias: Operand | None,
    scale_result: Operand | None,
    out_dtype: DType | None,
    use_fast_accum: bool,
) -> None:
    """`grouped_mm` of fp8 by groups of rows, with a factor for each row, and for each column of
    each group's matrix."""
    require(bias is None and scale_result is None, "a bias, or a scale of the result")
    require(offs is not None and len(mat2.size) == 3, "no groups of rows")
    assert offs is not None
    for scale in (scale_a, scale_b):
        require(scale.type.dtype is DType.f32, f"scales of {scale.type.dtype.value}")
    rows, columns = (input.size[0],), (mat2.size[0], mat2.size[2])
    scales = Scales(_sized(scale_a.ref, *rows), _sized(scale_b.ref, *columns), use_fast_accum)
    ends = _ends(input, offs)
    _emit(call, input.ref, mat2.ref, None, call.out.operand.type, scales=scales, groups=ends)


@table.lowers(aten.addmm.default, aten.baddbmm.default)
def addmm(
    call: Call, input: Operand, mat1: Operand, mat2: Operand, beta: Number, alpha: Number
) -> None:
    """`beta * input + alpha * (mat1 @ mat2)`, rounded once; or of a batch."""
    for factor in (beta, alpha):
        require(isinstance(factor, int | float), f"a factor of {factor}")
    assert isinstance(beta, int | float) and isinstance(alpha, int | float)
    out = call.out.operand.type
    _emit(call, mat1.ref, mat2.ref, _addend(input, out.size), out, float(alpha), float(beta))


@table.lowers(aten.linear.default)
def linear(call: Call, input: Operand, weight: Operand, bias: Operand | None) -> None:
    """`[..., K] @ [N, K].T -> [..., N]`, the leading dimensions taken as one."""
    require(len(weight.size) == 2, "linear with a weight of rank 1")
    a = _flatten_rows(input.type)
    out = _flatten_rows(call.out.operand.type)
    n, k = weight.size
    transposed = TensorType(
        weight.dtype, (k, n), weight.type.stride[::-1], weight.type.device, weight.type.offset
    )
    _emit(
        call,
        TensorRef(input.ref.buffer, a),
        TensorRef(weight.ref.buffer, transposed),
        _addend(bias, (n,)) if bias is not None else None,
        out,
    )


def _addend(input: Operand, size: tuple[sympy.Expr, ...]) -> TensorRef:
    """What is added to a result of `size`: `[n]` or `[1, n]` as rank 1, anything else with the
    result's sizes and strides of 0 where it broadcasts."""
    own = input.type
    missing = len(size) - len(own.size)
    require(missing >= 0, f"a bias of shape {own.size}")
    ones = [sympy.S.One] * missing
    strides: list[sympy.Expr] = []
    for n, s, full in zip([*ones, *own.size], [*ones, *own.stride], size, strict=True):
        require(n == 1 or sympy.expand(n - full) == 0, f"a bias of shape {own.size}")
        strides.append(s if full == 1 or n != 1 else sympy.S.Zero)
    if all(s == 0 or n == 1 for n, s in zip(size[:-1], strides[:-1], strict=True)):
        size, strides = size[-1:], strides[-1:]
    type = TensorType(own.dtype, size, tuple(strides), own.device, own.offset)
    return TensorRef(input.ref.buffer, type)


def _flatten_rows(type: TensorType) -> TensorType:
    """`[a, b, ..., k]` as `[a*b*..., k]`, where the strides allow it."""
    require(len(type.size) >= 2, "a matmul operand of rank 1")
    rows: sympy.Expr = sympy.S.One
    step: sympy.Expr | None = None
    for n, s in zip(reversed(type.size[:-1]), reversed(type.stride[:-1]), strict=True):
        if n == 1:
            continue
        if step is None:
            step = s
        else:
            require(sympy.expand(s - step * rows) == 0, "rows that are no single dimension")
        rows = rows * n
    if step is None:
        step = type.size[-1]
    return TensorType(
        type.dtype, (rows, type.size[-1]), (step, type.stride[-1]), type.device, type.offset
    )


def _emit(
    call: Call,
    a: TensorRef,
    b: TensorRef,
    bias: TensorRef | None,
    type: TensorType,
    alpha: float = 1.0,
    beta: float = 1.0,
    scales: Scales | None = None,
    groups: TensorRef | None = None,
) -> None:
    plain = all(x.is_plain for x in operands(tuple(call.arguments.values())))
    require(plain, "an operand that does not show its memory as it is")
    used = [a, b, *([bias] if bias is not None else [])]
    for ref in used:
        require(ref.type.device == type.device, "operands on more than one device")
    kinds = {ref.type.dtype for ref in used}
    if scales is None:
        require(len(kinds) == 1, "operands of several element types")
        summed = type.dtype is DType.i32 and a.type.dtype is DType.i8
        require(summed or kinds <= {*_FLOATS}, f"a matmul of {a.type.dtype.value}")
    require(all(n != 0 for ref in used for n in ref.type.size), "an empty operand")
    name = call.out.operand.ref.buffer
    *batch, rows, columns = type.size
    inner = a.type.size[-1]
    if groups is None:
        a, b = _sized(a, *batch, rows, inner), _sized(b, *batch, inner, columns)
    else:
        a = _sized(a, *a.type.size[:-2], rows, inner)
        b = _sized(b, *b.type.size[:-2], inner, columns)
    origins = (call.origin,)
    pair = MatmulOperand(a), MatmulOperand(b)
    parts = (name, type, pair, bias, call.extern, None, origins, alpha, beta, scales, groups)
    matmul = Matmul(*parts)
    call.emit(matmul)


def _sized(ref: TensorRef, *size: sympy.Expr) -> TensorRef:
    """An operand of these sizes, which torch has found equal to its own, and guards: two symbols
    or expressions may stand for one number."""
    return TensorRef(ref.buffer, replace(ref.type, size=size))
