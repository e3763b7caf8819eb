# mypy: disable-error-code="no-any-return,no-untyped-call"
# torch.ops and torch.library are not typed.
"""The custom ops `gemm_templates::<name>`: schemas, what runs, shapes for fake tensors, gradients.

Gradients are products too, and run through the same ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemm_templates.errors import InvalidArguments
from gemm_templates.grouped import grouped_mm
from gemm_templates.ops import linear, matmul
from gemm_templates.ops.kind import parse_config
from gemm_templates.ops.run import run
from gemm_templates.scaled import mixed_mm, scaled_mm

__all__ = ["grouped_mm", "mixed_mm", "scaled_mm"]

LIBRARY = torch.library.Library("gemm_templates", "DEF")
_OPS: Any = torch.ops.gemm_templates
Dtype = torch.dtype | None


def _define(
    name: str,
    signature: str,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
) -> None:
    LIBRARY.define(f"{name}{signature}", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, implementation, "CPU")
    LIBRARY.impl(name, implementation, "CUDA")
    qualified = f"gemm_templates::{name}"
    torch.library.register_fake(qualified, fake, lib=LIBRARY)
    if backward is not None:
        torch.library.register_autograd(qualified, backward, setup_context=setup, lib=LIBRARY)


# mm, bmm


def _mm(a: Tensor, b: Tensor, out_dtype: Dtype = None, config: str = "") -> Tensor:
    return run(matmul.MM, (a, b), (out_dtype,), None, parse_config(config))


def _bmm(a: Tensor, b: Tensor, out_dtype: Dtype = None, config: str = "") -> Tensor:
    return run(matmul.BMM, (a, b), (out_dtype,), None, parse_config(config))


def _mm_fake(a: Tensor, b: Tensor, out_dtype: Dtype = None, config: str = "") -> Tensor:
    shape, dtype = matmul.checked("mm", a, b, out_dtype)
    return a.new_empty(shape, dtype=dtype)


def _bmm_fake(a: Tensor, b: Tensor, out_dtype: Dtype = None, config: str = "") -> Tensor:
    shape, dtype = matmul.checked("bmm", a, b, out_dtype, batched=True)
    return a.new_empty(shape, dtype=dtype)


def _mm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    grad = grad.to(a.dtype)
    multiply = _OPS.mm if a.dim() == 2 else _OPS.bmm
    grad_a = multiply(grad, b.transpose(-1, -2)) if ctx.needs_input_grad[0] else None
    grad_b = multiply(a.transpose(-1, -2), grad) if ctx.needs_input_grad[1] else None
    return grad_a, grad_b, None, None


_PRODUCT = "(Tensor a, Tensor b, ScalarType? out_dtype=None, str config='') -> Tensor"
_define("mm", _PRODUCT, _mm, _mm_fake, _product_backward, _mm_setup)
_define("bmm", _PRODUCT, _bmm, _bmm_fake, _product_backward, _mm_setup)


# addmm, baddbmm


def _addmm(
    bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1,
    out_dtype: Dtype = None, config: str = "",
) -> Tensor:  # fmt: skip
    options = (out_dtype, float(beta), float(alpha))
    return run(matmul.ADDMM, (bias, a, b), options, None, parse_config(config))


def _baddbmm(
    bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1,
    out_dtype: Dtype = None, config: str = "",
) -> Tensor:  # fmt: skip
    options = (out_dtype, float(beta), float(alpha))
    return run(matmul.BADDBMM, (bias, a, b), options, None, parse_config(config))


def _addmm_fake(
    bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1,
    out_dtype: Dtype = None, config: str = "",
) -> Tensor:  # fmt: skip
    name, batched = ("addmm", False) if a.dim() == 2 else ("baddbmm", True)
    shape, dtype = matmul.checked(name, a, b, out_dtype, bias, batched)
    return a.new_empty(shape, dtype=dtype)


def _addmm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    bias, a, b, beta, alpha = inputs[:5]
    ctx.save_for_backward(a, b)
    ctx.bias_shape, ctx.beta, ctx.alpha = bias.shape, beta, alpha


def _addmm_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    grad_bias = None
    if ctx.needs_input_grad[0]:
        # In f32: a column of many rows is summed.
        total = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
        grad_bias = (total.sum_to_size(ctx.bias_shape) * ctx.beta).to(a.dtype)
    grad = grad.to(a.dtype)
    scaled = grad if ctx.alpha == 1 else grad * ctx.alpha
    multiply = _OPS.mm if a.dim() == 2 else _OPS.bmm
    grad_a = multiply(scaled, b.transpose(-1, -2)) if ctx.needs_input_grad[1] else None
    grad_b = multiply(a.transpose(-1, -2), scaled) if ctx.needs_input_grad[2] else None
    return grad_bias, grad_a, grad_b, None, None, None, None


_SUM = (
    "(Tensor bias, Tensor a, Tensor b, float beta=1, float alpha=1, ScalarType? out_dtype=None, "
    "str config='') -> Tensor"
)
_define("addmm", _SUM, _addmm, _addmm_fake, _addmm_backward, _addmm_setup)
_define("baddbmm", _SUM, _baddbmm, _addmm_fake, _addmm_backward, _addmm_setup)


# with `out`


def _product_out(a: Tensor, b: Tensor, out: Tensor, config: str = "") -> None:
    kind = matmul.MM if a.dim() == 2 else matmul.BMM
    run(kind, (a, b), (matmul.wanted(a, out, None),), out, parse_config(config))


def _product_out_fake(a: Tensor, b: Tensor, out: Tensor, config: str = "") -> None:
    name = "mm" if a.dim() == 2 else "bmm"
    found = matmul.checked(name, a, b, matmul.wanted(a, out, None), batched=a.dim() == 3)
    matmul.check_out(name, out, *found)


def _sum_out(
    bias: Tensor, a: Tensor, b: Tensor, out: Tensor, beta: float = 1, alpha: float = 1,
    config: str = "",
) -> None:  # fmt: skip
    kind = matmul.ADDMM if a.dim() == 2 else matmul.BADDBMM
    options = (matmul.wanted(a, out, None), float(beta), float(alpha))
    run(kind, (bias, a, b), options, out, parse_config(config))


def _sum_out_fake(
    bias: Tensor, a: Tensor, b: Tensor, out: Tensor, beta: float = 1, alpha: float = 1,
    config: str = "",
) -> None:  # fmt: skip
    name = "addmm" if a.dim() == 2 else "baddbmm"
    found = matmul.checked(name, a, b, matmul.wanted(a, out, None), bias, a.dim() == 3)
    matmul.check_out(name, out, *found)


_PRODUCT_OUT = "(Tensor a, Tensor b, Tensor(a!) out, str config='') -> ()"
_SUM_OUT = (
    "(Tensor bias, Tensor a, Tensor b, Tensor(a!) out, float beta=1, float alpha=1, "
    "str config='') -> ()"
)
for _name in ("mm_out", "bmm_out"):
    _define(_name, _PRODUCT_OUT, _product_out, _product_out_fake)
for _name in ("addmm_out", "baddbmm_out"):
    _define(_name, _SUM_OUT, _sum_out, _sum_out_fake)


# linear_act


def _linear_act(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, config: str = ""
) -> Tensor:
    return run(linear.LINEAR_ACT, (x, weight, bias), (act,), None, parse_config(config))


def _linear_act_keep(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, config: str = ""
) -> tuple[Tensor, Tensor]:
    linear.checked("linear_act", act, x, [weight], bias)
    before = x.new_empty(x.shape[0], weight.shape[0])
    tensors = (x, weight, bias, before)
    return run(linear.LINEAR_ACT_KEEP, tensors, (act,), None, parse_config(config)), before


def _linear_act_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, config: str = ""
) -> Tensor:
    linear.checked("linear_act", act, x, [weight], bias)
    return x.new_empty(x.shape[0], weight.shape[0])


def _linear_act_keep_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, config: str = ""
) -> tuple[Tensor, Tensor]:
    return tuple(_linear_act_fake(x, weight, bias, act) for _ in range(2))  # type: ignore[return-value]


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, ctx.act = inputs[:4]
    kept = output if isinstance(output, Tensor) else output[1]
    # relu's result says where it was positive; the others' input is kept, or made again.
    ctx.save_for_backward(x, weight, bias, kept)
    ctx.made_again = isinstance(output, Tensor) and ctx.act in ("gelu", "silu")
    ctx.set_materialize_grads(False)


def _linear_backward(ctx: Any, grad: Tensor | None, *more: Tensor | None) -> tuple[Any, ...]:
    """more: the gradient of what is kept, which there is in second derivatives."""
    x, weight, bias, kept = ctx.saved_tensors
    if ctx.made_again:
        kept = _OPS.linear_act(x, weight, bias, "none")
    if grad is not None:
        grad = _through(ctx.act, grad, kept)
    for other in more:
        grad = other if grad is None else grad if other is None else grad + other
    if grad is None:
        return (None,) * 5
    grad_x = _OPS.mm(grad, weight) if ctx.needs_input_grad[0] else None
    grad_weight = _OPS.mm(grad.t(), x) if ctx.needs_input_grad[1] else None
    grad_bias = None
    if bias is not None and ctx.needs_input_grad[2]:
        grad_bias = grad.sum(0)
    return grad_x, grad_weight, grad_bias, None, None


def _through(act: str, grad: Tensor, before: Tensor) -> Tensor:
    """The gradient of what `act` got; for relu its result serves as well."""
    if act == "gelu":
        return torch.ops.aten.gelu_backward(grad, before)
    if act == "silu":
        if grad.requires_grad or before.requires_grad:  # torch's has no derivative of its own
            share = torch.sigmoid(before)
            return grad * (share * (1 + before * (1 - share)))
        return torch.ops.aten.silu_backward(grad, before)
    return torch.ops.aten.threshold_backward(grad, before, 0) if act == "relu" else grad


_LINEAR = "(Tensor x, Tensor weight, Tensor? bias, str act, str config='') -> "
_define(
    "linear_act", _LINEAR + "Tensor", _linear_act, _linear_act_fake, _linear_backward, _linear_setup
)
_define(
    "linear_act_keep", _LINEAR + "(Tensor, Tensor)", _linear_act_keep, _linear_act_keep_fake,
    _linear_backward, _linear_setup,
)  # fmt: skip


# gated_linear


def _gated_linear(x: Tensor, w1: Tensor, w3: Tensor, act: str, config: str = "") -> Tensor:
    return run(linear.GATED_LINEAR, (x, w1, w3), (act,), None, parse_config(config))


def _gated_linear_fake(x: Tensor, w1: Tensor, w3: Tensor, act: str, config: str = "") -> Tensor:
    linear.checked("gated_linear", act, x, [w1, w3], None)
    return x.new_empty(x.shape[0], w1.shape[0])


def _gated_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.act = inputs[3]


def _gated_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, w1, w3 = ctx.saved_tensors
    before, value = (_OPS.linear_act(x, w, None, "none") for w in (w1, w3))
    gate = linear.TORCH_ACTIVATIONS[ctx.act](before)
    grad_value = grad * gate
    grad_before = _through(ctx.act, grad * value, gate if ctx.act == "relu" else before)
    grad_x = None
    if ctx.needs_input_grad[0]:
        grad_x = _OPS.addmm(_OPS.mm(grad_before, w1), grad_value, w3)
    grad_w1 = _OPS.mm(grad_before.t(), x) if ctx.needs_input_grad[1] else None
    grad_w3 = _OPS.mm(grad_value.t(), x) if ctx.needs_input_grad[2] else None
    return grad_x, grad_w1, grad_w3, None, None


_define(
    "gated_linear", "(Tensor x, Tensor w1, Tensor w3, str act, str config='') -> Tensor",
    _gated_linear, _gated_linear_fake, _gated_backward, _gated_setup,
)  # fmt: skip


# grouped_mm


def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, config: str = ""
) -> Tensor:
    return grouped_mm(a, b, offs, bias, config=parse_config(config))


def _grouped_mm_fake(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, config: str = ""
) -> Tensor:
    if a.dim() not in (2, 3) or b.dim() not in (2, 3) or a.shape[-1] != b.shape[-2]:
        raise InvalidArguments(f"grouped_mm: shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if (offs is None) != (a.dim() == b.dim() == 3):
        raise InvalidArguments("grouped_mm: offs exactly where a total is cut into groups")
    m, n = a.shape[-2], b.shape[-1]
    row = (n + 7) // 8 * 8  # rows begin at multiples of 16 bytes
    if a.dim() != b.dim():
        return a.new_empty_strided((m, n), (row, 1))
    groups = a.shape[0] if offs is None else offs.shape[0]
    return a.new_empty_strided((groups, m, n), (m * row, row, 1))


def _grouped_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])


def _grouped_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b, offs = ctx.saved_tensors
    if 1 not in grad.stride()[-2:]:  # of a sum, for instance: one value at all places
        grad = grad.contiguous()
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = _OPS.grouped_mm(grad, b.transpose(-1, -2), offs)
    if ctx.needs_input_grad[1]:
        grad_b = _OPS.grouped_mm(a.transpose(-1, -2), grad, offs)
    return grad_a, grad_b, None, None, None


_define(
    "grouped_mm",
    "(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None, str config='') -> Tensor",
    _grouped_mm, _grouped_mm_fake, _grouped_backward, _grouped_setup,
)  # fmt: skip


# scaled_mm, mixed_mm


def _scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    out_dtype: Dtype = None, use_fast_accum: bool = False, act: str = "none", config: str = "",
) -> Tensor:  # fmt: skip
    chosen = parse_config(config)
    return scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, act, config=chosen)


def _scaled_mm_fake(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    out_dtype: Dtype = None, use_fast_accum: bool = False, act: str = "none", config: str = "",
) -> Tensor:  # fmt: skip
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or torch.bfloat16)


def _mixed_mm(
    a: Tensor, b: Tensor, scale_b: Tensor, bias: Tensor | None = None, act: str = "none",
    out_dtype: Dtype = None, config: str = "",
) -> Tensor:  # fmt: skip
    chosen = parse_config(config)
    return mixed_mm(a, b, scale_b, bias, act, out_dtype=out_dtype, config=chosen)


def _mixed_mm_fake(
    a: Tensor, b: Tensor, scale_b: Tensor, bias: Tensor | None = None, act: str = "none",
    out_dtype: Dtype = None, config: str = "",
) -> Tensor:  # fmt: skip
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)


_define(
    "scaled_mm",
    "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
    "ScalarType? out_dtype=None, bool use_fast_accum=False, str act='none', str config='') "
    "-> Tensor",
    _scaled_mm, _scaled_mm_fake,
)  # fmt: skip
_define(
    "mixed_mm",
    "(Tensor a, Tensor b, Tensor scale_b, Tensor? bias=None, str act='none', "
    "ScalarType? out_dtype=None, str config='') -> Tensor",
    _mixed_mm, _mixed_mm_fake,
)  # fmt: skip
