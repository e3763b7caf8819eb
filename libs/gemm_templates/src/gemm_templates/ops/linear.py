"""`linear_act` and `gated_linear`: as problems, and as torch's calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gemm_templates.dtypes import NAMES
from gemm_templates.epilogues import ACTIVATIONS, GELU_NARROW
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs
from gemm_templates.ops.kind import Kind, Options, Tensors
from gemm_templates.ops.matmul import FLOATS, aligned, check_types, strides_of
from gemm_templates.problem import ITEMSIZE, Epilogue, Problem
from triton_rt import KernelParam

TORCH_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}


def checked(name: str, act: str, x: Tensor, weights: list[Tensor], bias: Tensor | None) -> None:
    """Raises InvalidArguments."""
    if act not in TORCH_ACTIVATIONS:
        raise InvalidArguments(f"{name}: act={act!r}, expected one of {list(TORCH_ACTIVATIONS)}")
    for weight in weights:
        if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
            raise InvalidArguments(
                f"{name}: x {tuple(x.shape)}, weight {tuple(weight.shape)}: "
                "expected [..., k] and [n, k]"
            )
    n = weights[0].shape[0]
    if any(w.shape[0] != n for w in weights):
        raise InvalidArguments(f"{name}: weights {[tuple(w.shape) for w in weights]}")
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != n):
        raise InvalidArguments(f"{name}: bias {tuple(bias.shape)}, expected {(n,)}")
    check_types(name, [x, *weights, *([] if bias is None else [bias])], FLOATS)


def _checked(name: str, tensors: Tensors, options: Options, out: Tensor | None) -> None:
    x, *weights = tensors
    assert x is not None
    if name == "gated_linear":
        checked(name, options[0], x, [w for w in weights if w is not None], None)
    else:
        assert weights[0] is not None
        checked(name, options[0], x, [weights[0]], weights[1])


def flat(x: Tensor) -> Tensor:
    """[rows, k] of [..., k]."""
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


def epilogue_of(act: str, dtype: torch.dtype) -> Epilogue | None:
    """The GELU for 16-bit results is exact to less than their rounding."""
    if act == "gelu" and dtype not in (torch.float32, torch.float64):
        return GELU_NARROW
    return ACTIVATIONS.get(act)


def _problem(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, epilogue: Epilogue | None
) -> Problem:
    name = NAMES[x.dtype]
    tf32 = x.dtype == torch.float32 and torch._C._get_cublas_allow_tf32()
    b = weight.t()
    return Problem(
        x.shape[0], b.shape[1], x.shape[1], name, name, name, strides_of(x), strides_of(b),
        strides_of(out), None if bias is None else name, 1 if bias is None else bias.stride(0),
        epilogue, input_precision="tf32" if tf32 else "ieee",
        aligned=aligned(out, a=x, b=weight, bias=bias),
    )  # fmt: skip


# linear_act: tensors (x, weight, bias), options (act,).


def _linear_shape(tensors: Tensors, options: Options) -> tuple[tuple[int, ...], torch.dtype]:
    x, weight, _ = tensors
    assert x is not None and weight is not None
    return (x.shape[0], weight.shape[0]), x.dtype


def _linear_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    x, weight, bias = tensors
    assert x is not None and weight is not None
    if x.dtype not in NAMES or out.numel() == 0:
        return None
    return _problem(x, weight, bias, out, epilogue_of(options[0], x.dtype))


def _linear_inputs(tensors: Tensors, options: Options, out: Tensor) -> Inputs:
    x, weight, bias = tensors
    assert x is not None and weight is not None
    return Inputs(x, weight.t(), out, bias)


def _linear_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    x, weight, bias = tensors
    assert x is not None and weight is not None
    result = TORCH_ACTIVATIONS[options[0]](F.linear(x, weight, bias))
    return result if out is None else out.copy_(result)


LINEAR_ACT = Kind(
    "linear_act",
    partial(_checked, "linear_act"),
    _linear_problem,
    _linear_inputs,
    _linear_extern,
    _linear_shape,
    rows=(0,),
    operands=(0, 1),
)


# linear_act_keep: tensors (x, weight, bias, before), where `before` gets what `act` is given.


def _keep_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    x, weight, bias, before = tensors
    assert x is not None and weight is not None and before is not None
    act = epilogue_of(options[0], x.dtype)
    if x.dtype not in NAMES or out.numel() == 0 or act is None:
        return None
    ending = _kept(act, NAMES[x.dtype], out.shape[1])
    return _problem(x, weight, bias, out, ending)


def _keep_inputs(tensors: Tensors, options: Options, out: Tensor) -> Inputs:
    x, weight, bias, before = tensors
    assert x is not None and weight is not None
    return Inputs(x, weight.t(), out, bias, (before,))


def _keep_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    x, weight, bias, before = tensors
    assert x is not None and weight is not None and before is not None
    if bias is None:
        torch.mm(x, weight.t(), out=before)
    else:
        torch.addmm(bias, x, weight.t(), out=before)
    result = TORCH_ACTIVATIONS[options[0]](before)
    return result if out is None else out.copy_(result)


def _keep_shape(tensors: Tensors, options: Options) -> tuple[tuple[int, ...], torch.dtype]:
    return _linear_shape(tensors[:3], options)


LINEAR_ACT_KEEP = Kind(
    "linear_act_keep",
    partial(_checked, "linear_act_keep"),
    _keep_problem,
    _keep_inputs,
    _keep_extern,
    _keep_shape,
    rows=(0, 3),
    operands=(0, 1),
)


@lru_cache(maxsize=256)
def _kept(act: Epilogue, dtype: str, columns: int) -> Epilogue:
    """Stores the sums with the bias, [M, columns] contiguous, and goes on with what it stored:
    the gradient is that of the values that are kept."""
    kind = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype]
    name = f"keep_then_{act.name}"
    text = (
        f"{act.text.strip()}\n\n\n@triton.jit\n"
        f"def {name}(acc, rm, rn, mask, operands):\n"
        f"    narrow = acc.to(tl.{kind})\n"
        f"    at = rm.to(tl.int64) * {columns} + rn\n"
        "    tl.store(operands[0] + at, narrow, mask=mask)\n"
        f"    return {act.name}(narrow.to(tl.float32), rm, rn, mask, ())\n"
    )
    return Epilogue(
        name, text, (KernelParam("before", f"*{dtype}", mutated=True),),
        bytes_per_element=ITEMSIZE[dtype], work=act.instructions + 4,
    )  # fmt: skip


# gated_linear: tensors (x, w1, w3), options (act,).


def _gated_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    x, first, second = tensors
    assert x is not None and first is not None and second is not None
    gate = epilogue_of(options[0], x.dtype)
    if (
        x.dtype not in NAMES
        or out.numel() == 0
        or gate is None
        or strides_of(first) != strides_of(second)
    ):
        return None
    plain = _problem(x, first, None, out, None)
    found = plain.aligned | ({"b2"} if second.data_ptr() % 16 == 0 else set())
    return replace(plain, gate=gate, aligned=found)


def _gated_inputs(tensors: Tensors, options: Options, out: Tensor) -> Inputs:
    x, first, second = tensors
    assert x is not None and first is not None and second is not None
    return Inputs(x, first.t(), out, b2=second.t())


def _gated_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    x, first, second = tensors
    assert x is not None and first is not None and second is not None
    gate = TORCH_ACTIVATIONS[options[0]](F.linear(x, first))
    value = F.linear(x, second)
    return torch.mul(gate, value) if out is None else torch.mul(gate, value, out=out)


GATED_LINEAR = Kind(
    "gated_linear",
    partial(_checked, "gated_linear"),
    _gated_problem,
    _gated_inputs,
    _gated_extern,
    _linear_shape,
    rows=(0,),
    operands=(0, 1, 2),
)
