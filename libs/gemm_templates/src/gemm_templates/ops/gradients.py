# mypy: disable-error-code="no-any-return,no-untyped-call"
# torch.ops is not typed.
"""Gradients of the custom ops. They are products too, and run through the same ops."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemm_templates.ops.activations import TORCH_ACTIVATIONS
from gemm_templates.ops.operation import Gradient

_OPS: Any = torch.ops.gemm_templates


def _of_operands(ctx: Any, grad: Tensor, wanted: tuple[bool, bool]) -> tuple[Any, Any]:
    """Gradients of `a` and of `b`, for that of `a @ b`."""
    a, b = ctx.saved_tensors
    multiply = _OPS.mm if a.dim() == 2 else _OPS.bmm
    grad_a = multiply(grad, b.transpose(-1, -2)) if wanted[0] else None
    grad_b = multiply(a.transpose(-1, -2), grad) if wanted[1] else None
    return grad_a, grad_b


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grad = grad.to(ctx.saved_tensors[0].dtype)
    return *_of_operands(ctx, grad, ctx.needs_input_grad[:2]), None, None


def _sum_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    bias, a, b, beta, alpha = inputs[:5]
    ctx.save_for_backward(a, b)
    ctx.bias_shape, ctx.beta, ctx.alpha = bias.shape, beta, alpha


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    dtype = ctx.saved_tensors[0].dtype
    grad_bias = None
    if ctx.needs_input_grad[0]:
        # In f32: a column of many rows is summed.
        total = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
        grad_bias = (total.sum_to_size(ctx.bias_shape) * ctx.beta).to(dtype)
    grad = grad.to(dtype)
    scaled = grad if ctx.alpha == 1 else grad * ctx.alpha
    of_operands = _of_operands(ctx, scaled, ctx.needs_input_grad[1:3])
    return grad_bias, *of_operands, None, None, None, None


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


def _gated_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.act = inputs[3]


def _gated_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, w1, w3 = ctx.saved_tensors
    before, value = (_OPS.linear_act(x, w, None, "none") for w in (w1, w3))
    gate = TORCH_ACTIVATIONS[ctx.act](before)
    grad_value = grad * gate
    grad_before = _through(ctx.act, grad * value, gate if ctx.act == "relu" else before)
    grad_x = None
    if ctx.needs_input_grad[0]:
        grad_x = _OPS.addmm(_OPS.mm(grad_before, w1), grad_value, w3)
    grad_w1 = _OPS.mm(grad_before.t(), x) if ctx.needs_input_grad[1] else None
    grad_w3 = _OPS.mm(grad_value.t(), x) if ctx.needs_input_grad[2] else None
    return grad_x, grad_w1, grad_w3, None, None


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


def _saving(count: int) -> Callable[..., None]:
    """The setup that saves the first inputs."""
    return lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:count])


PRODUCT = Gradient(_product_backward, _saving(2))
SUM = Gradient(_sum_backward, _sum_setup)
LINEAR = Gradient(_linear_backward, _linear_setup)
GATED = Gradient(_gated_backward, _gated_setup)
GROUPED = Gradient(_grouped_backward, _saving(3))
