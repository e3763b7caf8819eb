"""Grouped matmuls as a function on tensors."""

from __future__ import annotations

from functools import lru_cache

import torch

from gemm_templates.chosen import Task, aligned, needs_gradient, run_task
from gemm_templates.epilogues import group_bias_of
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs
from gemm_templates.problem import Config, Problem


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    config: Config | None = None,
) -> torch.Tensor:
    """Products of groups, as `torch.nn.functional.grouped_mm`; bfloat16.

    - `a[rows, k]`, `b[groups, k, n]` -> `[rows, n]`: group i has the rows up to `offs[i]`.
    - `a[groups, m, k]`, `b[k, columns]` -> `[m, columns]`: the columns up to `offs[i]`.
    - `a[m, total]`, `b[total, n]` -> `[groups, m, n]`: the part of the sum up to `offs[i]`; zero
      for an empty group.
    - `a[groups, m, k]`, `b[groups, k, n]` -> `[groups, m, n]`, without `offs`.

    offs: i32 ends, on the device; the host does not wait for them. What lies past the last one is
    left unwritten. bias: added to each group, of a shape that broadcasts to `[groups, n]` (torch's
    own function has none yet). The rows of the result begin at multiples of 16 bytes, as torch's.

    config: that template; by default the fastest for equal groups, measured on the first call with
    these sizes (on the CPU, and where tensor descriptors cannot address an operand: torch's).
    Under autograd torch's own function runs. Raises InvalidArguments.
    """
    return run_task(grouped_task(a, b, offs, bias, out_dtype), config)


def grouped_task(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Task:
    """As `grouped_mm`."""
    groups, jagged = _check(a, b, offs)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if out_dtype not in (None, torch.bfloat16):
        raise InvalidArguments(f"grouped_mm: out_dtype {out_dtype}: expected torch.bfloat16")
    row = None if bias is None else _bias(bias, groups, n)

    def extern(t: Inputs) -> torch.Tensor:
        product = torch._grouped_mm(t.a, t.b, offs=t.offs)
        return product if row is None else _add(product, row, t.offs, jagged)

    out = _empty(groups, m, n, jagged, a)
    given = Inputs(a, b, out, None, () if row is None else (row,), offs=offs)
    if needs_gradient(a, b, bias) or 0 in (m, n, k, groups):
        return Task(None, given, extern)
    problem = _problem(
        (m, n, k), groups, jagged, a.stride(), b.stride(), out.stride(),
        None if row is None else row.stride(), aligned(a=a, b=b) | {"out"},
    )  # fmt: skip

    def examples() -> Inputs:
        """Equal groups: what these ones are is not known, and the next call has others."""
        if jagged is None:
            return given
        whole = {"M": m, "N": n, "K": k}[jagged]
        ends = [whole * (i + 1) // groups for i in range(groups)]
        even = torch.tensor(ends, dtype=torch.int32, device=a.device)
        return Inputs(a, b, torch.empty_like(out), None, given.operands, offs=even)

    return Task(problem, given, extern, examples)


def _check(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> tuple[int, str | None]:
    """The number of groups, and along which size they are."""
    if a.dim() not in (2, 3) or b.dim() not in (2, 3) or a.shape[-1] != b.shape[-2]:
        raise InvalidArguments(
            f"grouped_mm: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected two or three "
            "dimensions, and the same k"
        )
    if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16:
        raise InvalidArguments(f"grouped_mm: {a.dtype} and {b.dtype}: expected torch.bfloat16")
    jagged = {(2, 3): "M", (3, 2): "N", (2, 2): "K", (3, 3): None}[a.dim(), b.dim()]
    if (offs is None) != (jagged is None):
        need = "needs no" if jagged is None else "needs"
        raise InvalidArguments(f"grouped_mm of {a.dim()}D and {b.dim()}D tensors {need} offs")
    if offs is not None and (offs.dim() != 1 or offs.dtype != torch.int32):
        raise InvalidArguments(
            f"grouped_mm: offs {tuple(offs.shape)} {offs.dtype}: expected a vector of torch.int32"
        )
    counts = [t.shape[0] for t in (a, b) if t.dim() == 3]
    counts += [] if offs is None else [offs.shape[0]]
    if len(set(counts)) != 1:
        raise InvalidArguments(f"grouped_mm: numbers of groups differ: {counts}")
    devices = {str(t.device) for t in (a, b, offs) if t is not None}
    if len(devices) != 1:
        raise InvalidArguments(f"grouped_mm: tensors on {sorted(devices)}")
    return counts[0], jagged


def _empty(groups: int, m: int, n: int, jagged: str | None, like: torch.Tensor) -> torch.Tensor:
    """With rows as torch lays them out."""
    row = -(-n // 8) * 8
    size, stride = (
        ((m, n), (row, 1)) if jagged in ("M", "N") else ((groups, m, n), (m * row, row, 1))
    )
    return torch.empty_strided(size, stride, dtype=like.dtype, device=like.device)


@lru_cache(maxsize=4096)
def _problem(
    sizes: tuple[int, int, int],
    groups: int,
    jagged: str | None,
    a_stride: tuple[int, ...],
    b_stride: tuple[int, ...],
    out_stride: tuple[int, ...],
    bias_stride: tuple[int, ...] | None,
    aligned: frozenset[str],
) -> Problem:
    strides = (a_stride, b_stride, out_stride)
    a_batch, b_batch, out_batch = (s[0] if len(s) == 3 else 0 for s in strides)
    return Problem(
        *sizes, a_stride=(a_stride[-2], a_stride[-1]), b_stride=(b_stride[-2], b_stride[-1]),
        out_stride=(out_stride[-2], out_stride[-1]), batch=groups,
        batch_strides=(a_batch, b_batch, out_batch), aligned=aligned, jagged=jagged,
        epilogue=None if bias_stride is None else group_bias_of(sizes[1], bias_stride),
    )  # fmt: skip


def _bias(bias: torch.Tensor, groups: int, n: int) -> torch.Tensor:
    try:
        return bias.expand(groups, n)
    except RuntimeError as error:
        raise InvalidArguments(
            f"grouped_mm: bias {tuple(bias.shape)} does not broadcast to {(groups, n)}"
        ) from error


def _add(
    product: torch.Tensor, row: torch.Tensor, offs: torch.Tensor | None, jagged: str | None
) -> torch.Tensor:
    """The bias by torch's own functions: each row or column of `product` gets its group's."""
    if jagged in (None, "K"):
        return product + row.unsqueeze(1)
    assert offs is not None
    size = product.shape[0 if jagged == "M" else 1]
    group = torch.searchsorted(offs, torch.arange(size, device=offs.device), right=True)
    group = group.clamp(max=row.shape[0] - 1)
    if jagged == "M":
        return product + row[group]
    return product + row[group, torch.arange(size, device=offs.device)]
