"""Products of matrices whose rows begin at odd places, on copies whose rows do not."""

from collections.abc import Callable, Sequence
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
from gemm_templates.parts.rows import copy_tile


@triton.jit
def copy_rows(src, out, rows, columns, src_gap, out_gap, height, width,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    copy_tile(src, out, rows, columns, src_gap, out_gap, height, width, ROWS, COLUMNS)


@triton.jit
def copy_two(src, out, rows, columns, src_gap, out_gap, height, width,
             src_2, out_2, rows_2, columns_2, src_gap_2, out_gap_2, height_2, width_2,
             ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    if tl.program_id(2) == 0:
        copy_tile(src, out, rows, columns, src_gap, out_gap, height, width, ROWS, COLUMNS)
    else:
        copy_tile(src_2, out_2, rows_2, columns_2, src_gap_2, out_gap_2, height_2, width_2,
                  ROWS, COLUMNS)
"""


def padded_mm(
    a: Tensor, b: Tensor, multiply: Callable[[Tensor, Tensor], Tensor], *, contiguous: bool = True
) -> Tensor:
    """`multiply(a, b)` of 16-bit matrices on copies whose rows are multiples of 16 bytes, with
    zeros behind: exact, since nothing but zeros meets what was added. The result is contiguous, or
    a part of the wider one.

        [4097, 4095] @ [4095, 4097] -> ([4104, 4096] @ [4096, 4104])[:4097, :4097]
    """
    wide, m, n = multiply(*padded(a, b)), a.shape[0], b.shape[1]
    return trimmed(wide, m, n) if contiguous else wide[:m, :n]


def padded(*matrices: Tensor) -> list[Tensor]:
    """Copies with both sizes rounded up to multiples of 8, and rows (columns, where one is
    contiguous along those) that begin at cache lines: the product takes 4 % less on an H200 then.
    """
    return _copies(matrices, _UNIT)


def on_lines(*matrices: Tensor) -> list[Tensor]:
    """The matrices, copies of those whose rows (or columns) are not multiples of 16 bytes apart:
    of the same sizes, with rows that begin at cache lines."""
    odd = [x for x in matrices if _lead(x) % _UNIT]
    copies = iter(_copies(odd, 1))
    return [next(copies) if _lead(x) % _UNIT else x for x in matrices]


def _lead(x: Tensor) -> int:
    return max(x.stride())


def _copies(matrices: Sequence[Tensor], unit: int) -> list[Tensor]:
    """Sizes rounded up to multiples of `unit`; two matrices a launch."""
    turned = [x.stride(0) == 1 and x.stride(1) != 1 for x in matrices]
    rows = [x.t() if t else x for x, t in zip(matrices, turned, strict=True)]
    rows = [x if x.stride(1) == 1 else x.contiguous() for x in rows]
    pairs = []
    for x in rows:
        height, width = (-(-size // unit) * unit for size in x.shape)
        pairs.append((x, x.new_empty(height, -(-width // _LINE) * _LINE)[:, :width]))
    for i in range(0, len(pairs), 2):
        copy_rows(*pairs[i : i + 2])
    return [out.t() if t else out for (_, out), t in zip(pairs, turned, strict=True)]


def trimmed(x: Tensor, m: int, n: int) -> Tensor:
    """`x[:m, :n]`, contiguous."""
    wanted = x[:m, :n]
    if wanted.is_contiguous():
        return wanted
    out = x.new_empty(m, n)
    copy_rows((wanted, out))
    return out


def copy_rows(*pairs: tuple[Tensor, Tensor]) -> None:
    """For one pair or two: `out[:, :]` = `src`, with zeros beyond its sizes. All are contiguous
    along their rows, of one type."""
    pairs = tuple(pair for pair in pairs if pair[1].numel())
    if not pairs:
        return
    arguments: list[Tensor | int] = []
    for src, out in pairs:
        height, width = out.shape
        arguments += [src, out, min(src.shape[0], height), min(src.shape[1], width)]
        arguments += [src.stride(0) - 1, out.stride(0) - 1, height, width]
    blocks = [max(-(-out.shape[i] // _TILE[i]) for _, out in pairs) for i in range(2)]
    src = pairs[0][0]
    kernel = _kernel(NAMES[src.dtype], _overlaps(src.device), len(pairs))
    kernel.launch((*blocks, len(pairs)), *arguments)


@cache
def _kernel(dtype: str, overlap: bool, count: int) -> LazyKernel:
    params = []
    for end in ("", "_2")[:count]:
        params.append(KernelParam(f"src{end}", f"*{dtype}"))
        params.append(KernelParam(f"out{end}", f"*{dtype}", mutated=True))
        names = ("rows", "columns", "src_gap", "out_gap", "height", "width")
        params += [KernelParam(f"{name}{end}", "i64") for name in names]
    text = _TEXT.format(digest=template_digest())
    constants = tuple(zip(("ROWS", "COLUMNS"), _TILE, strict=True))
    name = "copy_rows" if count == 1 else "copy_two"
    source = KernelSource(name, text, tuple(params), constants, num_warps=8)
    return LazyKernel(overlapped(source) if overlap else source, cache=Cache())


def _overlaps(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
