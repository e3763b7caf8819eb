"""Products of matrices whose rows begin at odd places, on copies whose rows do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from gemm_templates.dtypes import NAMES
from gemm_templates.render import template_digest
from triton_rt import Cache, KernelParam, KernelSource, LazyKernel, overlapped

_UNIT, _LINE = 8, 64  # elements of 16 bits in 16 bytes, and in a cache line
_TILE = (4, 512)  # rows and columns that a program copies

_TEXT = """\
# template {digest}
import triton
import triton.language as tl
from gemm_templates.templates.rows import copy_tile


@triton.jit
def copy_rows(src, out, rows, columns, src_gap, out_gap, height, width,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    copy_tile(src, out, rows, columns, src_gap, out_gap, height, width, ROWS, COLUMNS)
"""


def padded_mm(
    a: Tensor, b: Tensor, multiply: Callable[[Tensor, Tensor], Tensor], *, contiguous: bool = True
) -> Tensor:
    """`multiply(a, b)` of 16-bit matrices on copies whose rows are multiples of 16 bytes, with
    zeros behind: exact, since nothing but zeros meets what was added. The result is contiguous, or
    a part of the wider one.

        [4097, 4095] @ [4095, 4097] -> ([4104, 4096] @ [4096, 4104])[:4097, :4097]
    """
    wide, m, n = multiply(padded(a), padded(b)), a.shape[0], b.shape[1]
    return trimmed(wide, m, n) if contiguous else wide[:m, :n]


def padded(x: Tensor) -> Tensor:
    """A copy with both sizes rounded up to multiples of 8, and rows (columns, where x is contiguous
    along those) that begin at cache lines: the product then takes 4 % less on an H200."""
    if x.stride(0) == 1 and x.stride(1) != 1:
        return padded(x.t()).t()
    rows = x if x.stride(1) == 1 else x.contiguous()
    height, width = (-(-size // _UNIT) * _UNIT for size in rows.shape)
    out = rows.new_empty(height, -(-width // _LINE) * _LINE)[:, :width]
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
    height, width = out.shape
    kernel = _kernel(NAMES[src.dtype], _overlaps(src.device))
    kernel.launch(
        (-(-height // _TILE[0]), -(-width // _TILE[1]), 1), src, out, min(src.shape[0], height),
        min(src.shape[1], width), src.stride(0) - 1, out.stride(0) - 1, height, width,
    )  # fmt: skip


@cache
def _kernel(dtype: str, overlap: bool) -> LazyKernel:
    params = [KernelParam("src", f"*{dtype}"), KernelParam("out", f"*{dtype}", mutated=True)]
    names = ("rows", "columns", "src_gap", "out_gap", "height", "width")
    params += [KernelParam(n, "i64") for n in names]
    text = _TEXT.format(digest=template_digest())
    constants = tuple(zip(("ROWS", "COLUMNS"), _TILE, strict=True))
    source = KernelSource("copy_rows", text, tuple(params), constants, num_warps=8)
    return LazyKernel(overlapped(source) if overlap else source, cache=Cache())


def _overlaps(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
