"""Batched matmuls as functions on tensors."""

from __future__ import annotations

from functools import lru_cache

import torch

from gemm_templates.chosen import aligned, needs_gradient, run_fastest
from gemm_templates.dtypes import NAMES
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs
from gemm_templates.problem import ITEMSIZE, Config, Epilogue, Problem
from triton_rt import KernelParam


def bmm(a: torch.Tensor, b: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """`a[batch, m, k] @ b[batch, k, n]`, any strides, a batch stride of 0 (an expanded operand)
    included; the result is contiguous.

    config: that template; by default the fastest, measured on the first call with these sizes (on
    the CPU: torch's). Under autograd torch's own function runs. Raises InvalidArguments.
    """
    _check("bmm", a, b)
    if needs_gradient(a, b) or 0 in (a.shape[0], a.shape[1], b.shape[2]):
        return torch.bmm(a, b)
    problem = _problem(*_described(a, b), None)
    return run_fastest(problem, _inputs(a, b), lambda t: torch.bmm(t.a, t.b), config)


def baddbmm(
    input: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    config: Config | None = None,
) -> torch.Tensor:
    """`beta * input + alpha * (a @ b)` in one kernel where that is faster; `input` broadcasts to
    [batch, m, n], and is not read if `beta` is 0. Otherwise like `bmm`."""
    _check("baddbmm", a, b, input)
    shape = (a.shape[0], a.shape[1], b.shape[2])
    try:
        full = input.expand(shape)
    except RuntimeError as error:
        raise InvalidArguments(
            f"baddbmm: input {tuple(input.shape)} does not broadcast to {shape}"
        ) from error
    if needs_gradient(input, a, b) or 0 in shape:
        return torch.baddbmm(input, a, b, beta=beta, alpha=alpha)
    ends = aligned(input=full)
    epilogue = _scale_and_add(NAMES[input.dtype], full.stride(), beta, alpha, bool(ends))
    given = _inputs(a, b, (full,) if beta else ())
    return run_fastest(
        _problem(*_described(a, b), epilogue),
        given,
        lambda t: torch.baddbmm(full, t.a, t.b, beta=beta, alpha=alpha),
        config,
    )


@lru_cache(maxsize=1024)
def _scale_and_add(
    dtype: str, stride: tuple[int, ...], beta: float, alpha: float, is_aligned: bool
) -> Epilogue:
    """`beta * input[batch, m, n] + alpha * acc`, all but the pointer literals of the text."""
    if not beta:
        text = f"""
@triton.jit
def scale(acc, rm, rn, mask, operands):
    return {alpha!r} * acc
"""
        return Epilogue("scale", text)
    text = f"""
@triton.jit
def scale_and_add(acc, rm, rn, mask, operands):
    batch, pointer = operands
    rows = pointer + batch * {stride[0]}
    value = tl.load(
        rows + (rm.to(tl.int64) * {stride[1]} + rn.to(tl.int64) * {stride[2]}), mask=mask, other=0.0
    )
    return {alpha!r} * acc + {beta!r} * value.to(tl.float32)
"""
    pointer = KernelParam("added", f"*{dtype}", aligned=is_aligned)
    bytes_read = ITEMSIZE[dtype] if all(stride) else 0
    return Epilogue("scale_and_add", text, (pointer,), False, bytes_read, batched=True)


def _described(
    a: torch.Tensor, b: torch.Tensor
) -> tuple[tuple[int, int, int, int], str, tuple[int, ...], tuple[int, ...], bool, frozenset[str]]:
    tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    sizes = (*a.shape, b.shape[2])
    return sizes, NAMES[a.dtype], a.stride(), b.stride(), tf32, aligned(a=a, b=b) | {"out"}


@lru_cache(maxsize=4096)
def _problem(
    sizes: tuple[int, int, int, int],
    dtype: str,
    a_stride: tuple[int, int, int],
    b_stride: tuple[int, int, int],
    tf32: bool,
    aligned: frozenset[str],
    epilogue: Epilogue | None,
) -> Problem:
    batch, m, k, n = sizes
    return Problem(
        m, n, k, dtype, dtype, dtype, a_stride[1:], b_stride[1:], None, epilogue=epilogue,
        batch=batch, batch_strides=(a_stride[0], b_stride[0], m * n),
        input_precision="tf32" if tf32 else "ieee", aligned=aligned,
    )  # fmt: skip


def _inputs(a: torch.Tensor, b: torch.Tensor, operands: tuple[torch.Tensor, ...] = ()) -> Inputs:
    out = torch.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=a.dtype, device=a.device)
    return Inputs(a, b, out, None, operands)


def _check(name: str, a: torch.Tensor, b: torch.Tensor, other: torch.Tensor | None = None) -> None:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise InvalidArguments(
            f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected [batch, m, k] and "
            "[batch, k, n]"
        )
    tensors = [a, b] if other is None else [a, b, other]
    if len({t.dtype for t in tensors}) != 1 or a.dtype not in (
        torch.float32, torch.float16, torch.bfloat16
    ):  # fmt: skip
        raise InvalidArguments(
            f"{name}: element types {[t.dtype for t in tensors]}: expected float32, float16 or "
            "bfloat16 for all"
        )
    if len({t.device for t in tensors}) != 1:
        raise InvalidArguments(f"{name}: tensors on {sorted({str(t.device) for t in tensors})}")
