# mypy: disable-error-code="no-any-return"
"""`mm`, `addmm`, `bmm`, `baddbmm`: as problems, and as torch's calls."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemm_templates.dtypes import NAMES
from gemm_templates.epilogues import alpha_beta_of, residual_of, scaled_by_of
from gemm_templates.errors import InvalidArguments
from gemm_templates.fused import Epilogue
from gemm_templates.launch import Inputs
from gemm_templates.ops import gradients
from gemm_templates.ops.operation import Operation, Options, Tensors
from gemm_templates.ops.padded import padded_mm
from gemm_templates.problem import ITEMSIZE, Problem

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def checked(
    name: str,
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype | None = None,
    bias: Tensor | None = None,
    batched: bool = False,
) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of the result. Raises InvalidArguments."""
    dims = 3 if batched else 2
    if (
        a.dim() != dims
        or b.dim() != dims
        or a.shape[-1] != b.shape[-2]
        or (batched and a.shape[0] != b.shape[0])
    ):
        expected = "[g, m, k] and [g, k, n]" if batched else "[m, k] and [k, n]"
        raise InvalidArguments(
            f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected {expected}"
        )
    tensors = [a, b] if bias is None else [a, b, bias]
    check_types(name, tensors, FLOATS)
    dtype = out_dtype or a.dtype
    if dtype != a.dtype and (dtype != torch.float32 or a.dtype == torch.float64):
        raise InvalidArguments(
            f"{name}: out_dtype {dtype} of {a.dtype}: expected that, or torch.float32 of 16 bits"
        )
    shape = (*a.shape[:-1], b.shape[-1])
    if bias is not None and not broadcasts(bias, shape):
        raise InvalidArguments(f"{name}: bias {tuple(bias.shape)} does not broadcast to {shape}")
    return shape, dtype


def check_types(name: str, tensors: list[Tensor], known: tuple[torch.dtype, ...]) -> None:
    """One element type, of those known, on one device."""
    if len({t.dtype for t in tensors}) != 1 or tensors[0].dtype not in known:
        raise InvalidArguments(
            f"{name}: element types {[t.dtype for t in tensors]}: expected one of {list(known)} "
            "for all"
        )
    check_devices(name, tensors)


def check_devices(name: str, tensors: list[Tensor]) -> None:
    """Raises InvalidArguments for tensors on several devices."""
    if len({t.device for t in tensors}) != 1:
        raise InvalidArguments(f"{name}: tensors on {sorted({str(t.device) for t in tensors})}")


def broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor can be expanded to a shape."""
    if tensor.dim() > len(shape):
        return False
    sizes = shape[len(shape) - tensor.dim() :]
    return all(have == 1 or have == want for have, want in zip(tensor.shape, sizes, strict=True))


def check_out(name: str, out: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises InvalidArguments for another shape or type."""
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise InvalidArguments(
            f"{name}: out is {tuple(out.shape)} of {out.dtype}, expected {tuple(shape)} of {dtype}"
        )


def wanted(a: Tensor, out: Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype | None:
    """The type asked for, which `out` may say, too; None is that of `a`."""
    if out is not None and out_dtype is None and out.dtype != a.dtype:
        return out.dtype
    return out_dtype


def aligned(out: Tensor, **tensors: Tensor | None) -> frozenset[str]:
    """The names of tensors that begin at multiples of 16 bytes, "out" among them."""
    found = {"out": out, **tensors}
    return frozenset(n for n, t in found.items() if t is not None and t.data_ptr() % 16 == 0)


def strides_of(tensor: Tensor) -> tuple[int, int]:
    """The strides of the last two dimensions; of one with a single element as if contiguous."""
    (rows, columns), (row, column) = tensor.shape[-2:], tensor.stride()[-2:]
    if columns <= 1:
        column = 1 if row != 1 or rows <= 1 else max(1, rows)
    if rows <= 1:
        row = max(1, columns) if column == 1 else 1
    return row, column


def product_of(
    a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, epilogue: Epilogue | None
) -> Problem | None:
    """The problem of a product or a batch of them; `bias`: of all rows. None for types that the
    templates do not know, and where there is nothing to compute."""
    if a.dtype not in NAMES or out.dtype not in NAMES or out.numel() == 0:
        return None
    batched = a.dim() == 3
    precision = torch._C._get_fp32_precision_getter("cuda", "matmul")
    name = NAMES[a.dtype]
    sizes = (a.shape[-2], b.shape[-1], a.shape[-1])
    strides = (strides_of(a), strides_of(b), strides_of(out))
    return Problem(
        *sizes,
        name,
        name,
        NAMES[out.dtype],
        *strides,
        bias=None if bias is None else NAMES[bias.dtype],
        bias_stride=1 if bias is None else bias.stride(-1),
        epilogue=epilogue,
        batch=max(1, a.shape[0]) if batched else 1,
        batch_strides=(a.stride(0), b.stride(0), out.stride(0)) if batched else None,
        input_precision="tf32" if a.dtype == torch.float32 and precision == "tf32" else "ieee",
        aligned=aligned(out, a=a, b=b, bias=bias),
    )


def _checked(
    name: str, batched: bool, tensors: Tensors, options: Options, out: Tensor | None
) -> None:
    *rest, a, b = tensors
    found = checked(name, a, b, options[-1], rest[0] if rest else None, batched)
    if out is not None:
        check_out(name, out, *found)


# mm, bmm: tensors (a, b), options (out_dtype,).


def _result(tensors: Tensors, options: Options) -> Tensor:
    *_, a, b = tensors
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=options[-1] or a.dtype)


def _mm_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    a, b = tensors
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    if options[0] in (None, a.dtype):
        return multiply(a, b) if out is None else multiply(a, b, out=out)
    if a.device.type == "cuda" and a.numel() and b.numel():
        wide = multiply(a, b, out_dtype=options[0])
    else:
        wide = multiply(a.to(options[0]), b.to(options[0]))
    return wide if out is None else out.copy_(wide)


_PRODUCT = "(Tensor a, Tensor b, ScalarType? out_dtype=None, str config='') -> Tensor"
_PRODUCT_OUT = "(Tensor a, Tensor b, Tensor(a!) out, str config='') -> ()"
MM = Operation(
    "mm",
    _PRODUCT,
    partial(_checked, "mm", False),
    lambda t, options, out: product_of(t[0], t[1], out, None, None),
    lambda t, options, out: Inputs(t[0], t[1], out),
    _mm_extern,
    _result,
    gradients.PRODUCT,
    _PRODUCT_OUT,
    rows=(0,),
    padded=lambda t, options: padded_mm(
        t[0], t[1], lambda first, second: _mm_extern((first, second), options, None)
    ),
    operands=(0, 1),
)
_BATCHED: dict[str, Any] = {"rows": (), "padded": None, "operands": ()}
BMM = replace(MM, name="bmm", check=partial(_checked, "bmm", True), **_BATCHED)


# addmm, baddbmm: tensors (bias, a, b), options (beta, alpha, out_dtype).


def _is_row(bias: Tensor, out: Tensor) -> bool:
    """Whether all rows of [m, n] get the same bias."""
    return out.dim() == 2 and (bias.dim() < 2 or bias.shape[0] == 1)


def _expanded(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return bias.expand(*a.shape[:-1], b.shape[-1])


_Ending = tuple[Tensor | None, tuple[Any, ...], Callable[[], Epilogue] | None]


def _ending(tensors: Tensors, options: Options, out: Tensor) -> _Ending:
    """How the sum is made: a bias of all rows, or the operands of an epilogue and what makes it."""
    bias, a, b = tensors
    beta, alpha, _ = options
    if beta == 0:
        scaled = None if alpha == 1 else partial(scaled_by_of, a.dim() == 3)
        return None, () if alpha == 1 else (alpha,), scaled
    full, name = _expanded(bias, a, b), NAMES[a.dtype]
    if a.dim() == 3:
        return None, (alpha, beta, full), partial(alpha_beta_of, name, full.stride(), True)
    if alpha == beta == 1 and _is_row(bias, out):
        return full[0], (), None
    stride = (full.stride(0), full.stride(1))
    if alpha == beta == 1 and full.data_ptr() % 16 == 0 and not _is_wide(full):
        return None, (full,), partial(residual_of, name, ITEMSIZE[name], stride=stride)
    return None, (alpha, beta, full), partial(alpha_beta_of, name, stride, _is_wide(full))


def _addmm_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    _, a, b = tensors
    if out.numel() == 0 or a.dtype not in NAMES:
        return None
    row, _, make = _ending(tensors, options, out)
    return product_of(a, b, out, row, None if make is None else make())


def _addmm_inputs(tensors: Tensors, options: Options, out: Tensor) -> Inputs:
    _, a, b = tensors
    row, operands, _ = _ending(tensors, options, out)
    return Inputs(a, b, out, row, operands)


def _addmm_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    bias, a, b = tensors
    beta, alpha, out_dtype = options
    add = torch.addmm if a.dim() == 2 else torch.baddbmm
    if out_dtype in (None, a.dtype):
        if out is None:
            return add(bias, a, b, beta=beta, alpha=alpha)
        return add(bias, a, b, beta=beta, alpha=alpha, out=out)
    product = _mm_extern((a, b), (out_dtype,), None)
    product = product if alpha == 1 else product * alpha
    wide = product if beta == 0 else product + beta * bias.to(out_dtype)
    return wide if out is None else out.copy_(wide)


def _is_wide(full: Tensor) -> bool:
    reach = sum((n - 1) * abs(s) for n, s in zip(full.shape, full.stride(), strict=True))
    return max(full.numel(), reach) >= 2**31 - 2**24


_SUM = (
    "(Tensor bias, Tensor a, Tensor b, float beta=1, float alpha=1, ScalarType? out_dtype=None, "
    "str config='') -> Tensor"
)
_SUM_OUT = (
    "(Tensor bias, Tensor a, Tensor b, Tensor(a!) out, float beta=1, float alpha=1, "
    "str config='') -> ()"
)
ADDMM = Operation(
    "addmm",
    _SUM,
    partial(_checked, "addmm", False),
    _addmm_problem,
    _addmm_inputs,
    _addmm_extern,
    _result,
    gradients.SUM,
    _SUM_OUT,
    rows=(1, 0),
    operands=(1, 2),
)
BADDBMM = replace(ADDMM, name="baddbmm", check=partial(_checked, "baddbmm", True), **_BATCHED)
