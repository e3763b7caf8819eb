# mypy: disable-error-code="no-any-return,no-untyped-call"
# torch.ops and torch.library are not typed.
"""The custom ops `gemm_templates::<name>`: schemas, what runs, shapes for fake tensors, gradients.

Gradients are products too, and run through the same ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gemm_templates.errors import InvalidArguments
from gemm_templates.grouped import grouped_mm
from gemm_templates.ops import linear, matmul
from gemm_templates.ops.kind import Kind, Options, Tensors, parse_config
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


@dataclass(frozen=True)
class Operator:
    """A custom op that `run` computes: what it is called and multiplies (`kind`), and its schema.

    signature: the tensors, those scalars that `defaults` has, in this order, `config`, and what is
    returned. defaults: of the scalars (None for one that is always given); the dispatcher leaves
    out what has its default.
    options: of the scalars, as the kind takes them. backward, setup: of its gradients.
    out: the last of the tensors is written, and nothing returned.
    """

    kind: Kind
    signature: str
    defaults: tuple[Any, ...] = ()
    options: Callable[..., Options] = lambda *scalars: scalars
    backward: Callable[..., Any] | None = None
    setup: Callable[..., None] | None = None
    out: bool = False

    def define(self) -> None:
        name = f"{self.kind.name}_out" if self.out else self.kind.name
        _define(name, self.signature, self._run, self._fake, self.backward, self.setup)

    def _run(self, *given: Any) -> Tensor | None:
        tensors, options, out, config = self._parts(given)
        result = run(self.kind, tensors, options, out, parse_config(config))
        return None if self.out else result

    def _fake(self, *given: Any) -> Tensor | None:
        tensors, options, out, _ = self._parts(given)
        self.kind.check(tensors, options, out)
        if self.out:
            return None
        shape, dtype = self.kind.shape(tensors, options)
        return next(t for t in tensors if t is not None).new_empty(shape, dtype=dtype)

    @cached_property
    def _tensors(self) -> int:
        return self.signature.partition(" -> ")[0].count("Tensor")

    def _parts(self, given: tuple[Any, ...]) -> tuple[Tensors, Options, Tensor | None, str]:
        """The tensors that are read, the kind's options, what is written, the config."""
        tensors, said = given[: self._tensors], given[self._tensors :]
        *scalars, config = (*said, *(*self.defaults, "")[len(said) :])
        options = self.options(*scalars)
        if not self.out:
            return tensors, options, None, config
        read, out = tensors[:-1], tensors[-1]
        return read, (matmul.wanted(read[-1], out, None), *options), out, config


# mm, bmm, addmm, baddbmm


def _mm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    grad = grad.to(a.dtype)
    multiply = _OPS.mm if a.dim() == 2 else _OPS.bmm
    grad_a = multiply(grad, b.transpose(-1, -2)) if ctx.needs_input_grad[0] else None
    grad_b = multiply(a.transpose(-1, -2), grad) if ctx.needs_input_grad[1] else None
    return grad_a, grad_b, None, None


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


_PRODUCT = "(Tensor a, Tensor b, ScalarType? out_dtype=None, str config='') -> Tensor"
_SUM = (
    "(Tensor bias, Tensor a, Tensor b, float beta=1, float alpha=1, ScalarType? out_dtype=None, "
    "str config='') -> Tensor"
)
_PRODUCT_OUT = "(Tensor a, Tensor b, Tensor(a!) out, str config='') -> ()"
_SUM_OUT = (
    "(Tensor bias, Tensor a, Tensor b, Tensor(a!) out, float beta=1, float alpha=1, "
    "str config='') -> ()"
)


def _of_sum(beta: float, alpha: float, out_dtype: Dtype) -> Options:
    return out_dtype, beta, alpha


for _kind in (matmul.MM, matmul.BMM):
    Operator(_kind, _PRODUCT, (None,), backward=_product_backward, setup=_mm_setup).define()
    Operator(_kind, _PRODUCT_OUT, out=True).define()
for _kind in (matmul.ADDMM, matmul.BADDBMM):
    Operator(_kind, _SUM, (1.0, 1.0, None), _of_sum, _addmm_backward, _addmm_setup).define()
    Operator(_kind, _SUM_OUT, (1.0, 1.0), out=True).define()


# linear_act, gated_linear


def _linear_act_keep(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, config: str = ""
) -> tuple[Tensor, Tensor]:
    linear.checked("linear_act", act, x, [weight], bias)
    before = x.new_empty(x.shape[0], weight.shape[0])
    tensors = (x, weight, bias, before)
    return run(linear.LINEAR_ACT_KEEP, tensors, (act,), None, parse_config(config)), before


def _linear_act_keep_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, config: str = ""
) -> tuple[Tensor, Tensor]:
    linear.checked("linear_act", act, x, [weight], bias)
    result, before = (x.new_empty(x.shape[0], weight.shape[0]) for _ in range(2))
    return result, before


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
    gate = linear.TORCH_ACTIVATIONS[ctx.act](before)
    grad_value = grad * gate
    grad_before = _through(ctx.act, grad * value, gate if ctx.act == "relu" else before)
    grad_x = None
    if ctx.needs_input_grad[0]:
        grad_x = _OPS.addmm(_OPS.mm(grad_before, w1), grad_value, w3)
    grad_w1 = _OPS.mm(grad_before.t(), x) if ctx.needs_input_grad[1] else None
    grad_w3 = _OPS.mm(grad_value.t(), x) if ctx.needs_input_grad[2] else None
    return grad_x, grad_w1, grad_w3, None, None


_LINEAR = "(Tensor x, Tensor weight, Tensor? bias, str act, str config='') -> "
Operator(
    linear.LINEAR_ACT, _LINEAR + "Tensor", (None,), backward=_linear_backward, setup=_linear_setup
).define()
_define(
    "linear_act_keep", _LINEAR + "(Tensor, Tensor)", _linear_act_keep, _linear_act_keep_fake,
    _linear_backward, _linear_setup,
)  # fmt: skip
Operator(
    linear.GATED_LINEAR, "(Tensor x, Tensor w1, Tensor w3, str act, str config='') -> Tensor",
    (None,),
    backward=_gated_backward, setup=_gated_setup,
).define()  # fmt: skip


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
