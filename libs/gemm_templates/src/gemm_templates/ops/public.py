# mypy: disable-error-code="no-any-return,no-untyped-call"
# torch.ops and torch.library are not typed.
"""The operations as functions, each a row of `operation.Operation`.

Each checks its arguments and runs; where gradients are recorded, or something traces the call
(torch.compile, fake tensors, subclasses), it goes through the custom op `gemm_templates::<name>`.
"""

from typing import Any

import torch
from torch import Tensor

from gemm_templates.errors import InvalidArguments
from gemm_templates.ops import grouped, linear, matmul, scaled
from gemm_templates.ops.activations import TORCH_ACTIVATIONS
from gemm_templates.ops.operation import Operation, Options, Tensors, config_text, records
from gemm_templates.ops.plain import direct
from gemm_templates.ops.run import run
from gemm_templates.problem import Config

_OPS: Any = torch.ops.gemm_templates


def mm(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """`a[m, k] @ b[k, n]`, any strides; the result is contiguous.

    f32, f16 and bf16 (torch's own product for f64). out_dtype: torch.float32 for 16-bit operands,
    instead of their type. out: written instead of a new tensor, any strides; no gradients then.
    config: that template; by default the fastest, measured on the first call with these sizes
    (on the CPU: torch's). Raises InvalidArguments."""
    return _product(matmul.MM, (a, b), (), (out_dtype, out), config)


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """`a[g, m, k] @ b[g, k, n]`, any strides, a batch stride of 0 included. Otherwise as `mm`."""
    return _product(matmul.BMM, (a, b), (), (out_dtype, out), config)


def addmm(
    bias: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """`beta * bias + alpha * (a[m, k] @ b[k, n])`; `bias` broadcasts to [m, n], and is not read
    where beta is 0. Otherwise as `mm`."""
    factors = (float(beta), float(alpha))
    return _product(matmul.ADDMM, (bias, a, b), factors, (out_dtype, out), config)


def baddbmm(
    bias: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """`beta * bias + alpha * (a[g, m, k] @ b[g, k, n])`; `bias` broadcasts to [g, m, n]. Otherwise
    as `addmm`."""
    factors = (float(beta), float(alpha))
    return _product(matmul.BADDBMM, (bias, a, b), factors, (out_dtype, out), config)


_Out = tuple[torch.dtype | None, Tensor | None]


def _product(
    operation: Operation, tensors: Tensors, factors: Options, asked: _Out, config: Config | None
) -> Tensor:
    """asked: the type of the result, and `out`."""
    a, out = tensors[-2], asked[1]
    out_dtype = matmul.wanted(a, out, asked[0])
    if out is None:
        return _call(operation, tensors, (*factors, out_dtype), config)
    if direct(*tensors, out):
        return run(operation, tensors, (*factors, out_dtype), out, config)
    _check_out(operation.name, tensors, out, out_dtype or a.dtype)
    getattr(_OPS, f"{operation.name}_out")(*tensors, out, *factors, config_text(config))
    return out


def _call(
    operation: Operation, tensors: Tensors, options: Options, config: Config | None
) -> Tensor:
    """The operation, or its custom op where somebody watches."""
    if direct(*tensors):
        return run(operation, tensors, options, None, config)
    return getattr(_OPS, operation.name)(*tensors, *options, config_text(config))


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    act: str = "gelu",
    *,
    config: Config | None = None,
) -> Tensor:
    """`act(x[..., k] @ weight[n, k].T + bias[n])` in one kernel where that is faster; `act` is
    "gelu" (exact), "relu", "silu" or "none". Otherwise as `mm`. Where gradients are recorded, what
    `act` gets is stored by the same kernel."""
    tensors = (x, weight, bias)
    if direct(*tensors):
        if x.dim() == 2:
            return run(linear.LINEAR_ACT, tensors, (act,), None, config)
        linear.checked("linear_act", act, x, [weight], bias)
        out = run(linear.LINEAR_ACT, (linear.flat(x), weight, bias), (act,), None, config)
        return out.view(*x.shape[:-1], weight.shape[0])
    linear.checked("linear_act", act, x, [weight], bias)
    flat = linear.flat(x)
    keep = act in ("gelu", "silu") and records((x, weight, bias))
    if keep:
        out, _ = _OPS.linear_act_keep(flat, weight, bias, act, config_text(config))
    else:
        out = _OPS.linear_act(flat, weight, bias, act, config_text(config))
    return out.view(*x.shape[:-1], weight.shape[0])


def gated_linear(
    x: Tensor, w1: Tensor, w3: Tensor, act: str = "silu", *, config: Config | None = None
) -> Tensor:
    """`act(x[..., k] @ w1[n, k].T) * (x @ w3[n, k].T)` in one kernel where that is faster; `act`
    as of `linear_act`. Where gradients are recorded without a config, both products are kept, by
    two calls of `linear_act`; else the backward pass makes them again."""
    tensors = (x, w1, w3)
    linear.checked("gated_linear", act, x, [w1, w3], None)
    flat = linear.flat(x)
    if direct(*tensors):
        out = run(linear.GATED_LINEAR, (flat, w1, w3), (act,), None, config)
    elif config is None and records(tensors):
        gate = TORCH_ACTIVATIONS[act](linear_act(flat, w1, None, "none"))
        out = gate * linear_act(flat, w3, None, "none")
    else:
        out = _OPS.gated_linear(flat, w1, w3, act, config_text(config))
    return out.view(*x.shape[:-1], w1.shape[0])


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    config: Config | None = None,
) -> Tensor:
    """Products of groups, as `torch.nn.functional.grouped_mm`; bfloat16.

    - `a[rows, k]`, `b[groups, k, n]` -> `[rows, n]`: group i has the rows up to `offs[i]`.
    - `a[groups, m, k]`, `b[k, columns]` -> `[m, columns]`: the columns up to `offs[i]`.
    - `a[m, total]`, `b[total, n]` -> `[groups, m, n]`: the part of the sum up to `offs[i]`; zero
      for an empty group.
    - `a[groups, m, k]`, `b[groups, k, n]` -> `[groups, m, n]`, without `offs`.

    offs: i32 ends, on the device; the host does not wait for them. What lies past the last one is
    not written. bias: broadcasts to `[groups, n]`; no gradients flow to it (InvalidArguments)."""
    if bias is not None and records((bias,)):
        raise InvalidArguments("grouped_mm: no gradients of its bias; add it to the result")
    return _call(grouped.GROUPED_MM, (a, b, offs, bias), (), config)


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    act: str = "none",
    *,
    config: Config | None = None,
) -> Tensor:
    """`act((a[m, k] @ b[k, n]) * scale_a * scale_b + bias[n])` of fp8 operands, contiguous.

    scale_a, scale_b: f32, and as in `torch._scaled_mm` their shapes say what they are: one element;
    [m, 1] and [1, n] for rows and columns; [m, ceil(k / 128)] and [ceil(k / 128), n] for 1 x 128
    blocks; [ceil(m / 128), ceil(k / 128)] and [ceil(k / 128), ceil(n / 128)] for 128 x 128 blocks.
    What `a` has and what `b` has need not be of one kind.
    out_dtype: bf16 (default), f16 or f32. bias: any of them. act: as of `linear_act`.
    use_fast_accum: sums stay in the tensor cores, which keep about 14 bits of the larger addend
    (Hopper), up to a K of `FAST_K`; else they are moved to f32 after each 128 along K. Blocks
    always are. No gradients. Otherwise as `mm`; the peer is `torch._scaled_mm`."""
    options = (out_dtype, use_fast_accum, act)
    return _call(scaled.SCALED_MM, (a, b, scale_a, scale_b, bias), options, config)


def mixed_mm(
    a: Tensor,
    b: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    act: str = "none",
    *,
    out_dtype: torch.dtype | None = None,
    config: Config | None = None,
) -> Tensor:
    """`act(a[m, k] @ (b[k, n] * scale_b) + bias[n])`: `a` bf16 or f16, weights `b` int8 (or fp8)
    that are widened on their way to the tensor cores, and never in memory.

    scale_b: [n] (or [1, n]) a factor for each column, applied to the sums; or [k / g, n] for groups
    of g = 32, 64 or 128 along K. f32, bf16 or f16. out_dtype: of `a`, or any of bf16, f16, f32. No
    gradients. Otherwise as `mm`; the peer is torch's matmul of widened weights."""
    return _call(scaled.MIXED_MM, (a, b, scale_b, bias), (act, out_dtype), config)


def _check_out(name: str, tensors: Tensors, out: Tensor, dtype: torch.dtype) -> None:
    if records(tensors):
        raise InvalidArguments(
            f"{name}: no gradients flow through `out`: call it under torch.no_grad(), or without"
        )
    if out.dtype != dtype:
        raise InvalidArguments(f"{name}: out is of {out.dtype}, expected {dtype}")
