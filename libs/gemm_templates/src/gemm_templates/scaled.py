"""Matmuls of operands that carry scales: fp8, and weights of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

from gemm_templates.chosen import Task, run_task
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import ACTIVATIONS, GELU_NARROW, chain, scaled_of
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs
from gemm_templates.problem import FP8, Config, Epilogue, Problem
from gemm_templates.prologues import block_scale_of, cast_of

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_OUT = ("bf16", "f16", "f32")
_BLOCK = 128
# Where one sum in a tensor core ends. Its error grows with K: of 16384 positive products it was
# 0.22, of torch's call 0.045.
FAST_K = 4096
_TORCH_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}


class _Kind(NamedTuple):
    """How one scale tensor belongs to an operand: "none" does, "one", "each" (row or column), or
    blocks of `rows` along the operand's outer dimension, with strides along that and along K."""

    kind: str
    rows: int = 0
    outer: int = 0
    inner: int = 0


class ScaledProblem(NamedTuple):
    """What is computed with scales: `act(a * scale_a @ b * scale_b + bias)`.

    out_dtype, bias, scale_dtype: element types ("bf16"), bias None where there is none.
    scale_a, scale_b: how they belong to the operands. block_k: elements along K that share a factor
    of blocks. widened: `b` becomes the type of `a` before it is multiplied.
    """

    sizes: tuple[int, int, int]
    dtypes: tuple[str, str]
    strides: tuple[tuple[int, ...], tuple[int, ...]]
    aligned: frozenset[str]
    out_dtype: str
    bias: str | None
    act: str
    scale_a: _Kind
    scale_b: _Kind
    scale_dtype: str = "f32"
    block_k: int = 128
    fast_accum: bool = False
    widened: bool = False


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    act: str = "none",
    *,
    config: Config | None = None,
) -> torch.Tensor:
    """`act((a[m, k] @ b[k, n]) * scale_a * scale_b + bias[n])` of fp8 operands, contiguous.

    scale_a, scale_b: f32, and as in `torch._scaled_mm` their shapes say what they are: one element;
    [m, 1] and [1, n] for rows and columns; [m, ceil(k / 128)] and [ceil(k / 128), n] for 1 x 128
    blocks; [ceil(m / 128), ceil(k / 128)] and [ceil(k / 128), ceil(n / 128)] for 128 x 128 blocks.
    What `a` has and what `b` has need not be of one kind.
    out_dtype: bf16 (default), f16 or f32. bias: any of them. act: as of `linear_act`.
    use_fast_accum: sums stay in the tensor cores, which keep about 14 bits of the larger addend
    (Hopper), up to a K of `FAST_K`; else they are moved to f32 after each 128 along K. Blocks
    always are.
    config: that template; by default the fastest, measured on the first call with these sizes,
    `torch._scaled_mm` among them (on the CPU: f32 products in torch). No gradients.
    Raises InvalidArguments.
    """
    return run_task(
        scaled_task(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, act), config
    )


def scaled_task(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    act: str = "none",
) -> Task:
    """As `scaled_mm`."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise InvalidArguments(
            f"scaled_mm: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected [m, k] and [k, n]"
        )
    (m, k), n = a.shape, b.shape[1]
    out = out_dtype or torch.bfloat16
    types = [_NAMES.get(t.dtype, str(t.dtype)) for t in (a, b)]
    if not set(types) <= set(FP8) or _NAMES.get(out) not in _OUT:
        raise InvalidArguments(f"scaled_mm: {types} to {out}: expected fp8 to bf16, f16 or f32")
    if act != "none" and act not in ACTIVATIONS:
        raise InvalidArguments(f"scaled_mm: act={act!r}, expected 'none' or {list(ACTIVATIONS)}")
    if bias is not None and (bias.shape != (n,) or _NAMES.get(bias.dtype) not in _OUT):
        raise InvalidArguments(f"scaled_mm: bias {tuple(bias.shape)} {bias.dtype}, expected {(n,)}")
    tensors = [a, b, scale_a, scale_b, *([] if bias is None else [bias])]
    if len({t.device for t in tensors}) != 1:
        raise InvalidArguments(f"scaled_mm: tensors on {sorted({str(t.device) for t in tensors})}")
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.dtype != torch.float32:
            raise InvalidArguments(f"scaled_mm: {name} is {scale.dtype}, expected torch.float32")
    kind_a = _kind("scale_a", scale_a, m, k)
    kind_b = _kind("scale_b", scale_b.t() if scale_b.dim() == 2 else scale_b, n, k)
    if "blocks" in (kind_a.kind, kind_b.kind):
        kind_a, kind_b = _as_blocks(kind_a, scale_a), _as_blocks(kind_b, scale_b.t())
    problem = _problem(
        ScaledProblem(
            (m, n, k), (types[0], types[1]), (a.stride(), b.stride()), _aligned(a, b), _NAMES[out],
            None if bias is None else _NAMES[bias.dtype], act, kind_a, kind_b,
            fast_accum=use_fast_accum and k <= FAST_K,
        )
    )  # fmt: skip
    ending: list[torch.Tensor] = []
    before: list[torch.Tensor] = []
    for kind, scale in ((kind_a, scale_a), (kind_b, scale_b)):
        if kind.kind == "blocks":
            before.append(scale)
        else:
            ending.append(scale.reshape(-1))
    if bias is not None:
        ending.append(bias.contiguous())
    result = torch.empty((m, n), dtype=out, device=a.device)
    inputs = Inputs(a, b, result, None, tuple(ending), before=tuple(before))

    def extern(_: Inputs) -> torch.Tensor:
        return _vendor(a, b, scale_a, scale_b, bias, out, use_fast_accum, act)

    return Task(problem, inputs, extern)


def mixed_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    act: str = "none",
    *,
    out_dtype: torch.dtype | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """`act(a[m, k] @ (b[k, n] * scale_b) + bias[n])`: `a` bf16 or f16, weights `b` int8 (or fp8)
    that are widened on their way to the tensor cores, and never in memory.

    scale_b: [n] (or [1, n]) a factor for each column, applied to the sums; or [k / g, n] for groups
    of g = 32, 64 or 128 along K, applied to each group's. f32, bf16 or f16. out_dtype: of `a`, or
    any of bf16, f16, f32. Otherwise like `scaled_mm`; the peer is torch's
    matmul of widened weights.
    """
    return run_task(mixed_task(a, b, scale_b, bias, act, out_dtype=out_dtype), config)


def mixed_task(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    act: str = "none",
    *,
    out_dtype: torch.dtype | None = None,
) -> Task:
    """As `mixed_mm`."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise InvalidArguments(
            f"mixed_mm: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected [m, k] and [k, n]"
        )
    (m, k), n = a.shape, b.shape[1]
    out = out_dtype or a.dtype
    wide, narrow = _NAMES.get(a.dtype, ""), _NAMES.get(b.dtype, "")
    if wide not in ("bf16", "f16") or narrow not in ("i8", *FP8) or _NAMES.get(out) not in _OUT:
        raise InvalidArguments(
            f"mixed_mm: {a.dtype} by {b.dtype} to {out}: expected bf16 or f16 by int8 or fp8"
        )
    if act != "none" and act not in ACTIVATIONS:
        raise InvalidArguments(f"mixed_mm: act={act!r}, expected 'none' or {list(ACTIVATIONS)}")
    if bias is not None and (bias.shape != (n,) or _NAMES.get(bias.dtype) not in _OUT):
        raise InvalidArguments(f"mixed_mm: bias {tuple(bias.shape)} {bias.dtype}, expected {(n,)}")
    if _NAMES.get(scale_b.dtype) not in _OUT:
        raise InvalidArguments(f"mixed_mm: scale_b is {scale_b.dtype}, expected a float type")
    scales = scale_b.reshape(1, -1) if scale_b.dim() == 1 else scale_b
    groups = scales.shape[0] if scales.dim() == 2 else 0
    if groups < 1 or scales.shape[1] != n or (groups > 1 and k % groups):
        raise InvalidArguments(
            f"mixed_mm: scale_b {tuple(scale_b.shape)}: expected {(n,)} or (groups, {n}) with "
            f"groups that divide k={k}"
        )
    if groups > 1 and k // groups not in (32, 64, 128):
        raise InvalidArguments(f"mixed_mm: groups of {k // groups}: expected 32, 64 or 128 along K")
    tensors = [a, b, scale_b, *([] if bias is None else [bias])]
    if len({t.device for t in tensors}) != 1:
        raise InvalidArguments(f"mixed_mm: tensors on {sorted({str(t.device) for t in tensors})}")
    if groups == 1:
        scales = scales.contiguous()
    outer, inner = scales.stride(1), scales.stride(0)
    problem = _problem(
        ScaledProblem(
            (m, n, k), (wide, narrow), (a.stride(), b.stride()), _aligned(a, b), _NAMES[out],
            None if bias is None else _NAMES[bias.dtype], act, _Kind("none"),
            _Kind("each") if groups == 1 else _Kind("blocks", 1, outer, inner),
            _NAMES[scale_b.dtype], k // groups, widened=True,
        )
    )  # fmt: skip
    ending = (scales,) if groups == 1 else ()
    before = (scales,) if groups > 1 else ()
    if bias is not None:
        ending = (*ending, bias.contiguous())
    result = torch.empty((m, n), dtype=out, device=a.device)

    def extern(_: Inputs) -> torch.Tensor:
        if groups == 1:
            product = (a @ b.to(a.dtype)).float() * scales.float()
        else:
            each = b.float().reshape(groups, k // groups, n) * scales.float()[:, None, :]
            product = (a @ each.reshape(k, n).to(a.dtype)).float()
        if bias is not None:
            product = product + bias.float()
        return _activated(product, act).to(out)

    inputs = Inputs(a, b, result, None, ending, before=before)
    return Task(problem, inputs, extern)


def _kind(name: str, scale: torch.Tensor, outer: int, k: int) -> _Kind:
    """Of a scale whose first dimension goes along the operand's rows (of `a`, or of `b.t()`)."""
    if scale.numel() == 1:
        return _Kind("one")
    blocks = -(-k // _BLOCK)
    if scale.dim() == 2 and scale.shape == (outer, 1):
        return _Kind("each")
    for rows in (1, _BLOCK):
        if scale.dim() == 2 and scale.shape == (-(-outer // rows), blocks):
            return _Kind("blocks", rows, scale.stride(0), scale.stride(1))
    at = "[m, ...]" if name == "scale_a" else "[..., n], transposed:"
    raise InvalidArguments(
        f"scaled_mm: {name} {at} {tuple(scale.shape)}: expected one element, {(outer, 1)}, "
        f"{(outer, blocks)} or {(-(-outer // _BLOCK), blocks)}"
    )


def _as_blocks(kind: _Kind, scale: torch.Tensor) -> _Kind:
    """The same scale as one for each 128 along K, which may all be the same in memory."""
    if kind.kind == "blocks":
        return kind
    return _Kind("blocks", 1, scale.stride(0), 0) if kind.kind == "each" else _Kind("blocks", 128)


def _ending(act: str, out: str) -> Epilogue | None:
    if act == "none":
        return None
    return GELU_NARROW if act == "gelu" and out != "f32" else ACTIVATIONS[act]


@lru_cache(maxsize=4096)
def _problem(given: ScaledProblem) -> Problem:
    m, n, k = given.sizes
    a_dtype, b_dtype = given.dtypes
    (a_m, a_k), (b_k, b_n) = given.strides
    a, b = given.scale_a, given.scale_b
    blocks, ends = None, (a.kind, b.kind)
    if "blocks" in ends:
        blocks = block_scale_of(
            a=(a.rows, a.outer, a.inner) if a.kind == "blocks" else None,
            b=(b.rows, b.inner, b.outer) if b.kind == "blocks" else None,
            dtype=given.scale_dtype,
            block_k=given.block_k,
        )
        ends = ("none", "none")
    parts = []
    if blocks is None or given.bias is not None:
        parts.append(scaled_of(m, n, *ends, given.bias, given.scale_dtype))
    if (last := _ending(given.act, given.out_dtype)) is not None:
        parts.append(last)
    return Problem(
        m, n, k, a_dtype, b_dtype, given.out_dtype, (a_m, a_k), (b_k, b_n),
        epilogue=chain(*parts) if len(parts) > 1 else parts[0] if parts else None,
        aligned=given.aligned, prologue_b=cast_of(a_dtype) if given.widened else None,
        block_scale=blocks, fast_accum=given.fast_accum,
    )  # fmt: skip


def _aligned(a: torch.Tensor, b: torch.Tensor) -> frozenset[str]:
    found = {name for name, t in (("a", a), ("b", b)) if t.data_ptr() % 16 == 0}
    return frozenset({*found, "out"})  # a new tensor always is


def _activated(product: torch.Tensor, act: str) -> torch.Tensor:
    return product if act == "none" else _TORCH_ACTIVATIONS[act](product)


def _vendor(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.dtype,
    fast: bool,
    act: str,
) -> torch.Tensor:
    """`torch._scaled_mm` where it takes these operands, else products in f32."""
    m, k, n = *a.shape, b.shape[1]
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
    bf16 = out == torch.bfloat16
    if takes and (single or (bf16 and (rowwise or _cublas_blocks(a, scale_a, b, scale_b)))):
        if single:
            scale_a, scale_b = scale_a.reshape(()), scale_b.reshape(())
        inside = bias if bias is None or bias.dtype == out == torch.bfloat16 else None
        product = torch._scaled_mm(
            a, b, scale_a, scale_b, inside, out_dtype=out, use_fast_accum=fast
        )
        if bias is not None and inside is None:
            product = (product.float() + bias.float()).to(out)
        return _activated(product, act)
    wide_a = a.float() * _spread(scale_a, m, k)
    wide_b = b.float() * _spread(scale_b.t(), n, k).t()
    product = wide_a @ wide_b
    if bias is not None:
        product = product + bias.float()
    return _activated(product, act).to(out)


def _cublas_blocks(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor
) -> bool:
    """1 x 128 blocks of `a` and 128 x 128 blocks of `b` as cuBLAS has them, from 12.9 on, on
    Hopper: scales along m are contiguous, and those of `b` along k."""
    (m, k), n = a.shape, b.shape[1]
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


def _spread(scale: torch.Tensor, outer: int, k: int) -> torch.Tensor:
    """A factor for each element of [outer, k]."""
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.shape == (outer, 1):
        return scale
    if scale.shape[0] != outer:
        scale = scale.repeat_interleave(_BLOCK, 0)[:outer]
    return scale.repeat_interleave(_BLOCK, 1)[:, :k]
