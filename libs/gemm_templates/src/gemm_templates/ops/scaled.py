# mypy: disable-error-code="no-any-return"
"""`scaled_mm` and `mixed_mm`: products of operands that carry scales, fp8 and weights of 8 bits, as
problems and as torch's calls."""

from typing import NamedTuple

import torch
from torch import Tensor

from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import ACTIVATIONS, chain, scaled_of
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs
from gemm_templates.ops.activations import TORCH_ACTIVATIONS, epilogue_of
from gemm_templates.ops.matmul import aligned, check_devices
from gemm_templates.ops.operation import Operation, Options, Tensors
from gemm_templates.problem import FAST_K, FP8, Problem
from gemm_templates.prologues import block_scale_of, cast_of

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_OUT = ("bf16", "f16", "f32")
_BLOCK = 128


class _Scale(NamedTuple):
    """How one scale tensor belongs to an operand: "none" does, "one", "each" (row or column), or
    blocks of `rows` along the operand's outer dimension, with strides along that and along K."""

    kind: str
    rows: int = 0
    outer: int = 0
    inner: int = 0


class _Scales(NamedTuple):
    """Those of both operands. dtype: their element type. block_k: elements along K that share a
    factor of blocks. widened: `b` becomes the type of `a` first. fast: of `Problem.fast_accum`."""

    a: _Scale
    b: _Scale
    dtype: str = "f32"
    block_k: int = _BLOCK
    widened: bool = False
    fast: bool = False


def _shapes(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    return a.shape[0], b.shape[1], a.shape[1]


def _check(name: str, tensors: Tensors, act: str) -> None:
    """Shapes, activation, bias and devices. Raises InvalidArguments."""
    a, b, *_, bias = tensors
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise InvalidArguments(
            f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected [m, k] and [k, n]"
        )
    n = b.shape[1]
    if act != "none" and act not in ACTIVATIONS:
        raise InvalidArguments(f"{name}: act={act!r}, expected 'none' or {list(ACTIVATIONS)}")
    if bias is not None and (bias.shape != (n,) or _NAMES.get(bias.dtype) not in _OUT):
        raise InvalidArguments(f"{name}: bias {tuple(bias.shape)} {bias.dtype}, expected {(n,)}")
    check_devices(name, [t for t in tensors if t is not None])


def _problem(tensors: Tensors, out: Tensor, act: str, scales: _Scales) -> Problem:
    a, b, *_, bias = tensors
    m, n, k = _shapes(a, b)
    blocks, ends = None, (scales.a.kind, scales.b.kind)
    if "blocks" in ends:
        blocks = block_scale_of(
            a=scales.a[1:] if scales.a.kind == "blocks" else None,
            b=(scales.b.rows, scales.b.inner, scales.b.outer) if ends[1] == "blocks" else None,
            dtype=scales.dtype,
            block_k=scales.block_k,
        )
        ends = ("none", "none")
    parts = []
    if blocks is None or bias is not None:
        bias_type = None if bias is None else _NAMES[bias.dtype]
        parts.append(scaled_of(m, n, *ends, bias_type, scales.dtype))
    if (last := epilogue_of(act, out.dtype)) is not None:
        parts.append(last)
    return Problem(
        m,
        n,
        k,
        _NAMES[a.dtype],
        _NAMES[b.dtype],
        _NAMES[out.dtype],
        (a.stride(0), a.stride(1)),
        (b.stride(0), b.stride(1)),
        epilogue=chain(*parts) if len(parts) > 1 else parts[0] if parts else None,
        aligned=aligned(out, a=a, b=b),
        prologue_b=cast_of(_NAMES[a.dtype]) if scales.widened else None,
        block_scale=blocks,
        fast_accum=scales.fast,
    )


# scaled_mm: tensors (a, b, scale_a, scale_b, bias), options (out_dtype, use_fast_accum, act).


def _scaled_check(tensors: Tensors, options: Options, out: Tensor | None) -> None:
    a, b, scale_a, scale_b, _ = tensors
    out_dtype, _, act = options
    _check("scaled_mm", tensors, act)
    dtype = out_dtype or torch.bfloat16
    types = [_NAMES.get(t.dtype, str(t.dtype)) for t in (a, b)]
    if not set(types) <= set(FP8) or _NAMES.get(dtype) not in _OUT:
        raise InvalidArguments(f"scaled_mm: {types} to {dtype}: expected fp8 to bf16, f16 or f32")
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.dtype != torch.float32:
            raise InvalidArguments(f"scaled_mm: {name} is {scale.dtype}, expected torch.float32")
    _scales(tensors)


def _scales(tensors: Tensors) -> _Scales:
    """How both belong to the operands. Raises InvalidArguments."""
    a, b, scale_a, scale_b, _ = tensors
    m, n, k = _shapes(a, b)
    of_a = _scale("scale_a", scale_a, m, k)
    of_b = _scale("scale_b", scale_b.t() if scale_b.dim() == 2 else scale_b, n, k)
    if "blocks" in (of_a.kind, of_b.kind):
        return _Scales(_as_blocks(of_a, scale_a), _as_blocks(of_b, scale_b.t()))
    return _Scales(of_a, of_b)


def _scale(name: str, scale: Tensor, outer: int, k: int) -> _Scale:
    """Of a scale whose first dimension goes along the operand's rows (of `a`, or of `b.t()`)."""
    if scale.numel() == 1:
        return _Scale("one")
    blocks = -(-k // _BLOCK)
    if scale.dim() == 2 and scale.shape == (outer, 1):
        return _Scale("each")
    for rows in (1, _BLOCK):
        if scale.dim() == 2 and scale.shape == (-(-outer // rows), blocks):
            return _Scale("blocks", rows, scale.stride(0), scale.stride(1))
    at = "[m, ...]" if name == "scale_a" else "[..., n], transposed:"
    raise InvalidArguments(
        f"scaled_mm: {name} {at} {tuple(scale.shape)}: expected one element, {(outer, 1)}, "
        f"{(outer, blocks)} or {(-(-outer // _BLOCK), blocks)}"
    )


def _as_blocks(scale: _Scale, tensor: Tensor) -> _Scale:
    """The same scale as one for each 128 along K, which may all be the same in memory."""
    if scale.kind == "each":
        return _Scale("blocks", 1, tensor.stride(0), 0)
    return _Scale("blocks", 128) if scale.kind == "one" else scale


def _scaled_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem:
    fast = options[1] and _shapes(*tensors[:2])[2] <= FAST_K
    return _problem(tensors, out, options[2], _scales(tensors)._replace(fast=fast))


def _scaled_inputs(tensors: Tensors, options: Options, out: Tensor) -> Inputs:
    a, b, scale_a, scale_b, bias = tensors
    scales = (scale_a, scale_b)
    blocks = _scales(tensors).a.kind == "blocks"
    ending = () if blocks else tuple(scale.reshape(-1) for scale in scales)
    if bias is not None:
        ending = (*ending, bias.contiguous())
    return Inputs(a, b, out, None, ending, before=scales if blocks else ())


def _scaled_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    """`torch._scaled_mm` where it takes these operands, else products in f32."""
    a, b, scale_a, scale_b, bias = tensors
    dtype, fast, act = options[0] or torch.bfloat16, options[1], TORCH_ACTIVATIONS[options[2]]
    m, n, k = _shapes(a, b)
    takes = (
        a.device.type == "cuda"
        and min(m, n, k) > 0
        and k % 16 == 0
        and n % 16 == 0
        and a.stride(1) == 1
        and b.stride(0) == 1
        and a.dtype == torch.float8_e4m3fn
        and b.dtype == torch.float8_e4m3fn
    )
    rowwise = scale_a.shape == (m, 1) and scale_b.shape == (1, n)
    single = scale_a.numel() == 1 and scale_b.numel() == 1
    bf16 = dtype == torch.bfloat16
    if takes and (single or (bf16 and (rowwise or _cublas_blocks(a, scale_a, b, scale_b)))):
        if single:
            scale_a, scale_b = scale_a.reshape(()), scale_b.reshape(())
        inside = bias if bias is None or bias.dtype == dtype == torch.bfloat16 else None
        product = torch._scaled_mm(
            a, b, scale_a, scale_b, inside, out_dtype=dtype, use_fast_accum=fast
        )
        if bias is not None and inside is None:
            product = (product.float() + bias.float()).to(dtype)
        return act(product)
    wide_a = a.float() * _spread(scale_a, m, k)
    wide_b = b.float() * _spread(scale_b.t(), n, k).t()
    product = wide_a @ wide_b
    if bias is not None:
        product = product + bias.float()
    return act(product).to(dtype)


def _cublas_blocks(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor) -> bool:
    """1 x 128 blocks of `a` and 128 x 128 blocks of `b` as cuBLAS has them, from 12.9 on, on
    Hopper: scales along m are contiguous, and those of `b` along k."""
    m, n, k = _shapes(a, b)
    version = tuple(int(part) for part in (torch.version.cuda or "0.0").split(".")[:2])
    return (
        version >= (12, 9)
        and torch.cuda.get_device_capability(a.device) == (9, 0)
        and m % 4 == 0
        and n % 128 == 0
        and k % 512 == 0  # columns of scales are multiples of 16 bytes
        and scale_a.shape == (m, k // 128)
        and scale_b.shape == (k // 128, n // 128)
        and scale_a.stride() == (1, m)
        and scale_b.stride() == (1, k // 128)
    )


def _spread(scale: Tensor, outer: int, k: int) -> Tensor:
    """A factor for each element of [outer, k]."""
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.shape == (outer, 1):
        return scale
    if scale.shape[0] != outer:
        scale = scale.repeat_interleave(_BLOCK, 0)[:outer]
    return scale.repeat_interleave(_BLOCK, 1)[:, :k]


SCALED_MM = Operation(
    "scaled_mm",
    "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
    "ScalarType? out_dtype=None, bool use_fast_accum=False, str act='none', str config='') "
    "-> Tensor",
    _scaled_check,
    _scaled_problem,
    _scaled_inputs,
    _scaled_extern,
    lambda t, options: t[0].new_empty(_shapes(*t[:2])[:2], dtype=options[0] or torch.bfloat16),
    worth=0,
)


# mixed_mm: tensors (a, b, scale_b, bias), options (act, out_dtype).


def _mixed_check(tensors: Tensors, options: Options, out: Tensor | None) -> None:
    a, b, scale_b, _ = tensors
    act, out_dtype = options
    _check("mixed_mm", tensors, act)
    dtype = out_dtype or a.dtype
    wide, narrow = _NAMES.get(a.dtype, ""), _NAMES.get(b.dtype, "")
    if wide not in ("bf16", "f16") or narrow not in ("i8", *FP8) or _NAMES.get(dtype) not in _OUT:
        raise InvalidArguments(
            f"mixed_mm: {a.dtype} by {b.dtype} to {dtype}: expected bf16 or f16 by int8 or fp8"
        )
    if _NAMES.get(scale_b.dtype) not in _OUT:
        raise InvalidArguments(f"mixed_mm: scale_b is {scale_b.dtype}, expected a float type")
    n, k = b.shape[1], b.shape[0]
    scales = scale_b.reshape(1, -1) if scale_b.dim() == 1 else scale_b
    groups = scales.shape[0] if scales.dim() == 2 else 0
    if groups < 1 or scales.shape[1] != n or (groups > 1 and k % groups):
        raise InvalidArguments(
            f"mixed_mm: scale_b {tuple(scale_b.shape)}: expected {(n,)} or (groups, {n}) with "
            f"groups that divide k={k}"
        )
    if groups > 1 and k // groups not in (32, 64, 128):
        raise InvalidArguments(f"mixed_mm: groups of {k // groups}: expected 32, 64 or 128 along K")


def _in_rows(scale_b: Tensor) -> Tensor:
    """[groups, n]; of one group, contiguous."""
    scales = scale_b.reshape(1, -1) if scale_b.dim() == 1 else scale_b
    return scales.contiguous() if scales.shape[0] == 1 else scales


def _mixed_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem:
    a, b, scale_b, _ = tensors
    scales = _in_rows(scale_b)
    groups, _ = scales.shape
    of_b = _Scale("blocks", 1, scales.stride(1), scales.stride(0)) if groups > 1 else _Scale("each")
    k = _shapes(a, b)[2]
    given = _Scales(_Scale("none"), of_b, _NAMES[scales.dtype], k // groups, widened=True)
    return _problem(tensors, out, options[0], given)


def _mixed_inputs(tensors: Tensors, options: Options, out: Tensor) -> Inputs:
    a, b, scale_b, bias = tensors
    scales = (_in_rows(scale_b),)
    added = () if bias is None else (bias.contiguous(),)
    if scales[0].shape[0] > 1:
        return Inputs(a, b, out, None, added, before=scales)
    return Inputs(a, b, out, None, (*scales, *added))


def _mixed_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    a, b, scale_b, bias = tensors
    scales = _in_rows(scale_b)
    groups, n = scales.shape
    if groups == 1:
        product = (a @ b.to(a.dtype)).float() * scales.float()
    else:
        each = b.float().reshape(groups, -1, n) * scales.float()[:, None, :]
        product = (a @ each.reshape(-1, n).to(a.dtype)).float()
    if bias is not None:
        product = product + bias.float()
    return TORCH_ACTIVATIONS[options[0]](product).to(options[1] or a.dtype)


MIXED_MM = Operation(
    "mixed_mm",
    "(Tensor a, Tensor b, Tensor scale_b, Tensor? bias=None, str act='none', "
    "ScalarType? out_dtype=None, str config='') -> Tensor",
    _mixed_check,
    _mixed_problem,
    _mixed_inputs,
    _mixed_extern,
    lambda t, options: t[0].new_empty(_shapes(*t[:2])[:2], dtype=options[1] or t[0].dtype),
    worth=0,
)
