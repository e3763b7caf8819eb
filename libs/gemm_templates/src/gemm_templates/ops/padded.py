"""Products of matrices whose rows begin at odd places, on copies whose rows do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from gemm_templates.dtypes import NAMES
from gemm_templates.render import template_digest
from triton_rt import Cache, KernelParam, KernelSource, LazyKernel, overlapped

_ROW = 8  # elements of 16 bits in 16 bytes
_MOST = 1024  # columns of a row that a program copies at once

_TEXT = """\
# template {digest}
import triton
import triton.language as tl
from gemm_templates.templates.rows import copy_row


@triton.jit
def copy_rows(src, out, rows, columns, src_stride, out_stride, width, BLOCK: tl.constexpr):
    copy_row(src, out, rows, columns, src_stride, out_stride, width, BLOCK)
"""


def padded_mm(a: Tensor, b: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`multiply(a, b)` of 16-bit matrices on copies whose rows are multiples of 16 bytes, with
    zeros behind: exact, since nothing but zeros meets what was added.

        [4097, 4095] @ [4095, 4097] -> ([4104, 4096] @ [4096, 4104])[:4097, :4097]
    """
    return trimmed(multiply(padded(a), padded(b)), a.shape[0], b.shape[1])


def padded(x: Tensor) -> Tensor:
    """A copy with both sizes rounded up to multiples of 8, contiguous along the dimension along
    which x is."""
    if x.stride(0) == 1 and x.stride(1) != 1:
        return padded(x.t()).t()
    rows = x if x.stride(1) == 1 else x.contiguous()
    out = rows.new_empty([-(-size // _ROW) * _ROW for size in rows.shape])
    copy_rows(rows, out)
    return out


def trimmed(x: Tensor, m: int, n: int) -> Tensor:
    """`x[:m, :n]`, contiguous."""
    wanted = x[:m, :n]
    if wanted.is_contiguous():
        return wanted
    out = x.new_empty(m, n)
    copy_rows(wanted, out)
    return out


def copy_rows(src: Tensor, out: Tensor) -> None:
    """`out[:, :]` = `src`, with zeros beyond its sizes. Both are contiguous along their rows."""
    if not out.numel():
        return
    width = out.shape[1]
    block = max(16, min(_MOST, 1 << (min(width, _MOST) - 1).bit_length()))
    kernel = _kernel(NAMES[src.dtype], block, _overlaps(src.device))
    kernel.launch(
        (out.shape[0], 1, 1), src, out, src.shape[0], min(src.shape[1], width), src.stride(0),
        out.stride(0), width,
    )  # fmt: skip


@cache
def _kernel(dtype: str, block: int, overlap: bool) -> LazyKernel:
    params = [KernelParam("src", f"*{dtype}"), KernelParam("out", f"*{dtype}", mutated=True)]
    params += [
        KernelParam(n, "i64") for n in ("rows", "columns", "src_stride", "out_stride", "width")
    ]
    text = _TEXT.format(digest=template_digest())
    source = KernelSource("copy_rows", text, tuple(params), (("BLOCK", block),), num_warps=4)
    return LazyKernel(overlapped(source) if overlap else source, cache=Cache())


def _overlaps(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
