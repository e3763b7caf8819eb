"""The templates as functions on tensors, for use without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F

from gemm_templates.choice import choose
from gemm_templates.config import cache_dir
from gemm_templates.dtypes import NAMES
from gemm_templates.epilogues import ACTIVATIONS, GELU_NARROW, residual_of
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs, bind
from gemm_templates.problem import ITEMSIZE, Config, Epilogue, Problem
from gemm_templates.store import Store

Extern = Callable[[Inputs], torch.Tensor]
_TORCH_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}


def mm(a: torch.Tensor, b: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """`a[m, k] @ b[k, n]`, any strides; the result is contiguous.

    config: that template; by default the fastest, measured on the first call with these sizes
    (on the CPU: torch's). Under autograd torch's own function runs, so that gradients flow.
    Raises InvalidArguments.
    """
    _check_matrices("mm", a, b)
    return _run(a, b, None, None, (), lambda t: torch.mm(t.a, t.b), config)


def addmm(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, config: Config | None = None
) -> torch.Tensor:
    """`bias + a[m, k] @ b[k, n]`; `bias` broadcasts to [m, n]. Otherwise like `mm`."""
    _check_matrices("addmm", a, b, bias)
    shape = (a.shape[0], b.shape[1])
    try:
        full = bias.expand(shape)
    except RuntimeError as error:
        raise InvalidArguments(
            f"addmm: bias {tuple(bias.shape)} does not broadcast to {shape}"
        ) from error
    if full.stride(0) == 0:
        row = full[0] if shape[0] else full.new_empty(shape[1])
        return _run(a, b, row, None, (), lambda t: torch.addmm(_get(t.bias), t.a, t.b), config)
    reach = sum((n - 1) * abs(s) for n, s in zip(shape, full.stride(), strict=True))
    wide = max(full.numel(), reach) >= 2**31 - 2**24
    name, stride = NAMES[bias.dtype], (full.stride(0), full.stride(1))
    epilogue = residual_of(name, ITEMSIZE[name], wide, None if wide else stride)
    operands = (full, *stride) if wide else (full,)
    return _run(a, b, None, epilogue, operands, _add_residual, config)


def linear_act(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    act: str = "gelu",
    *,
    config: Config | None = None,
) -> torch.Tensor:
    """`act(x[..., k] @ weight[n, k].T + bias[n])` in one kernel where that is faster; `act` is
    "gelu" (exact), "relu", "silu" or "none". Otherwise like `mm`."""
    if act != "none" and act not in ACTIVATIONS:
        raise InvalidArguments(f"linear_act: act={act!r}, expected 'none' or {list(ACTIVATIONS)}")
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise InvalidArguments(
            f"linear_act: x {tuple(x.shape)}, weight {tuple(weight.shape)}: "
            "expected [..., k] and [n, k]"
        )
    n, k = weight.shape
    rows = x.numel() // k if k else x.shape[:-1].numel()
    if bias is not None and bias.shape != (n,):
        raise InvalidArguments(f"linear_act: bias {tuple(bias.shape)}, expected {(n,)}")
    flat = x.reshape(rows, k)
    b = weight.t()
    _check_matrices("linear_act", flat, b, bias)

    def extern(t: Inputs) -> torch.Tensor:
        product = F.linear(t.a, t.b.t(), t.bias)
        return product if act == "none" else _TORCH_ACTIVATIONS[act](product)

    epilogue = ACTIVATIONS.get(act)
    if act == "gelu" and x.dtype != torch.float32:
        epilogue = GELU_NARROW
    out = _run(flat, b, bias, epilogue, (), extern, config)
    return out.reshape(*x.shape[:-1], n)


@lru_cache(maxsize=1)
def default_store() -> Store:
    """The choices of these functions, kept in the user's cache folder."""
    return Store(cache_dir())


def _run(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: Epilogue | None,
    operands: tuple[torch.Tensor | int, ...],
    extern: Extern,
    config: Config | None,
) -> torch.Tensor:
    tensors = [t for t in (a, b, bias, *operands) if isinstance(t, torch.Tensor)]
    out = None
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    inputs = Inputs(a, b, out, bias, operands)
    if out is None:
        return extern(inputs)
    tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    problem = _problem(
        *a.shape, b.shape[1], NAMES[a.dtype], a.stride(), b.stride(),
        NAMES[bias.dtype] if bias is not None else None,
        bias.stride(0) if bias is not None else 1, epilogue, "tf32" if tf32 else "ieee",
        _aligned(a, b, bias),
    )  # fmt: skip
    if config is None:
        if a.device.type != "cuda":
            return extern(inputs)
        known = _choices.get((problem, a.device))
        if known is None:
            if len(_choices) >= _MOST:
                _choices.clear()
            choice = choose(problem, inputs, extern, device=a.device, store=default_store())
            known = _choices[problem, a.device] = (choice.config,)
        config = known[0]
        if config is None:
            return extern(inputs)
    _bound(problem, config)(inputs)
    return out


def _aligned(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> frozenset[str]:
    pointers = {"a": a, "b": b, "bias": bias}
    found = {name for name, t in pointers.items() if t is not None and t.data_ptr() % 16 == 0}
    return frozenset({*found, "out"})  # a new tensor always is


# What a process has chosen already; dropped whole when it grows past its bound.
_MOST = 4096
_choices: dict[tuple[Problem, torch.device], tuple[Config | None]] = {}


@lru_cache(maxsize=4096)
def _problem(
    m: int,
    k: int,
    n: int,
    dtype: str,
    a_stride: tuple[int, int],
    b_stride: tuple[int, int],
    bias: str | None,
    bias_stride: int,
    epilogue: Epilogue | None,
    input_precision: str,
    aligned: frozenset[str],
) -> Problem:
    return Problem(
        m, n, k, dtype, dtype, dtype, a_stride, b_stride, None, bias, bias_stride, epilogue,
        input_precision=input_precision, aligned=aligned,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _bound(problem: Problem, config: Config) -> Callable[[Inputs], None]:
    return bind(problem, config)


def _add_residual(inputs: Inputs) -> torch.Tensor:
    return torch.addmm(inputs.operands[0], inputs.a, inputs.b)


def _get(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor


def _check_matrices(
    name: str, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise InvalidArguments(
            f"{name}: shapes {tuple(a.shape)} and {tuple(b.shape)}: expected [m, k] and [k, n]"
        )
    tensors = [a, b] if bias is None else [a, b, bias]
    if len({t.dtype for t in tensors}) != 1 or a.dtype not in NAMES:
        raise InvalidArguments(
            f"{name}: element types {[t.dtype for t in tensors]}: expected one of "
            f"{list(NAMES)} for all"
        )
    if len({t.device for t in tensors}) != 1:
        raise InvalidArguments(f"{name}: tensors on {sorted({str(t.device) for t in tensors})}")
