# mypy: disable-error-code="no-any-return"
"""`grouped_mm`: as a problem, and as torch's calls. Tensors (a, b, offs, bias), no options."""

import torch
from torch import Tensor

from gemm_templates.epilogues import group_bias_of
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs
from gemm_templates.ops import gradients
from gemm_templates.ops.matmul import aligned
from gemm_templates.ops.operation import Operation, Options, Tensors
from gemm_templates.problem import Problem

# The size that is cut into groups, by the numbers of dimensions.
_JAGGED = {(2, 3): "M", (3, 2): "N", (2, 2): "K", (3, 3): None}


def _check(tensors: Tensors, options: Options, out: Tensor | None) -> None:
    a, b, offs, bias = tensors
    if a.dim() not in (2, 3) or b.dim() not in (2, 3) or a.shape[-1] != b.shape[-2]:
        raise InvalidArguments(
            f"grouped_mm: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected two or three "
            "dimensions, and the same k"
        )
    if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16:
        raise InvalidArguments(f"grouped_mm: {a.dtype} and {b.dtype}: expected torch.bfloat16")
    jagged = _JAGGED[a.dim(), b.dim()]
    if (offs is None) != (jagged is None):
        need = "needs no" if jagged is None else "needs"
        raise InvalidArguments(f"grouped_mm of {a.dim()}D and {b.dim()}D tensors {need} offs")
    if offs is not None and (offs.dim() != 1 or offs.dtype != torch.int32):
        raise InvalidArguments(
            f"grouped_mm: offs {tuple(offs.shape)} {offs.dtype}: expected a vector of torch.int32"
        )
    counts = [t.shape[0] for t in (a, b) if t.dim() == 3]
    counts += [] if offs is None else [offs.shape[0]]
    if any(count != counts[0] for count in counts):
        raise InvalidArguments(f"grouped_mm: numbers of groups differ: {counts}")
    devices = {str(t.device) for t in (a, b, offs) if t is not None}
    if len(devices) != 1:
        raise InvalidArguments(f"grouped_mm: tensors on {sorted(devices)}")
    if bias is not None:
        _rows_of_bias(bias, counts[0], b.shape[-1])


def _rows_of_bias(bias: Tensor, groups: int, n: int) -> Tensor:
    """[groups, n]. Raises InvalidArguments."""
    try:
        return bias.expand(groups, n)
    except RuntimeError as error:
        raise InvalidArguments(
            f"grouped_mm: bias {tuple(bias.shape)} does not broadcast to {(groups, n)}"
        ) from error


def _groups(tensors: Tensors) -> int:
    a, _, offs, _ = tensors
    return (offs if offs is not None else a).shape[0]


def _result(tensors: Tensors, options: Options) -> Tensor:
    """Rows begin at multiples of 16 bytes, as torch lays them out."""
    a, b, _, _ = tensors
    m, n = a.shape[-2], b.shape[-1]
    row = (n + 7) // 8 * 8
    if a.dim() != b.dim():
        return a.new_empty_strided((m, n), (row, 1))
    return a.new_empty_strided((_groups(tensors), m, n), (m * row, row, 1))


def _problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    a, b, _, bias = tensors
    sizes, groups = (a.shape[-2], b.shape[-1], a.shape[-1]), _groups(tensors)
    if 0 in (*sizes, groups):
        return None
    a_batch, b_batch, out_batch = (t.stride(0) if t.dim() == 3 else 0 for t in (a, b, out))
    row = None if bias is None else _rows_of_bias(bias, groups, sizes[1])
    return Problem(
        *sizes,
        a_stride=(a.stride(-2), a.stride(-1)),
        b_stride=(b.stride(-2), b.stride(-1)),
        out_stride=(out.stride(-2), out.stride(-1)),
        batch=groups,
        batch_strides=(a_batch, b_batch, out_batch),
        aligned=aligned(out, a=a, b=b),
        jagged=_JAGGED[a.dim(), b.dim()],
        epilogue=None if row is None else group_bias_of(sizes[1], row.stride()),
    )


def _inputs(tensors: Tensors, options: Options, out: Tensor) -> Inputs:
    a, b, offs, bias = tensors
    row = () if bias is None else (_rows_of_bias(bias, _groups(tensors), b.shape[-1]),)
    return Inputs(a, b, out, None, row, offs=offs)


def _examples(tensors: Tensors) -> Tensors:
    """Equal groups: what these ones are is not known, and the next call has others."""
    a, b, _, bias = tensors
    jagged = _JAGGED[a.dim(), b.dim()]
    if jagged is None:
        return tensors
    whole = {"M": a.shape[-2], "N": b.shape[-1], "K": a.shape[-1]}[jagged]
    groups = _groups(tensors)
    ends = [whole * (i + 1) // groups for i in range(groups)]
    return a, b, torch.tensor(ends, dtype=torch.int32, device=a.device), bias


def _extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    """torch's own function has no bias yet: each row or column gets its group's afterwards."""
    a, b, offs, bias = tensors
    product = torch._grouped_mm(a, b, offs=offs)
    if bias is None:
        return product
    row = _rows_of_bias(bias, _groups(tensors), b.shape[-1])
    jagged = _JAGGED[a.dim(), b.dim()]
    if jagged in (None, "K"):
        return product + row.unsqueeze(1)
    places = torch.arange(product.shape[0 if jagged == "M" else 1], device=offs.device)
    group = torch.searchsorted(offs, places, right=True).clamp(max=row.shape[0] - 1)
    return product + (row[group] if jagged == "M" else row[group, places])


GROUPED_MM = Operation(
    "grouped_mm",
    "(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None, str config='') -> Tensor",
    _check,
    _problem,
    _inputs,
    _extern,
    _result,
    gradients.GROUPED,
    examples=_examples,
    worth=0,
)
