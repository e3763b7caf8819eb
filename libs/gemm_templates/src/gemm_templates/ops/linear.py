# mypy: disable-error-code="no-any-return"
"""`linear_act` and `gated_linear`: as problems, and as torch's calls."""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gemm_templates.dtypes import NAMES
from gemm_templates.epilogues import kept_then
from gemm_templates.errors import InvalidArguments
from gemm_templates.launch import Inputs
from gemm_templates.ops import gradients
from gemm_templates.ops.activations import TORCH_ACTIVATIONS, epilogue_of
from gemm_templates.ops.matmul import FLOATS, check_types, product_of, strides_of
from gemm_templates.ops.operation import Operation, Options, Tensors
from gemm_templates.problem import Problem


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
    if name == "gated_linear":
        checked(name, options[0], x, [w for w in weights if w is not None], None)
    else:
        checked(name, options[0], x, [weights[0]], weights[1])


def flat(x: Tensor) -> Tensor:
    """[rows, k] of [..., k]."""
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


# linear_act: tensors (x, weight, bias), options (act,).


def _result(tensors: Tensors, options: Options) -> Tensor:
    x, weight, *_ = tensors
    return x.new_empty(x.shape[0], weight.shape[0])


def _linear_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    x, weight, bias = tensors
    return product_of(x, weight.t(), out, bias, epilogue_of(options[0], x.dtype))


def _linear_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    x, weight, bias = tensors
    result = TORCH_ACTIVATIONS[options[0]](F.linear(x, weight, bias))
    return result if out is None else out.copy_(result)


_LINEAR = "(Tensor x, Tensor weight, Tensor? bias, str act, str config='') -> "
LINEAR_ACT = Operation(
    "linear_act",
    _LINEAR + "Tensor",
    partial(_checked, "linear_act"),
    _linear_problem,
    lambda tensors, options, out: Inputs(tensors[0], tensors[1].t(), out, tensors[2]),
    _linear_extern,
    _result,
    gradients.LINEAR,
    rows=(0,),
    operands=(0, 1),
)


# linear_act_keep: tensors (x, weight, bias, before), where `before` gets what `act` is given.


def _keep_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    x, weight, bias, _ = tensors
    act = epilogue_of(options[0], x.dtype)
    if x.dtype not in NAMES or act is None:
        return None
    ending = kept_then(act, NAMES[x.dtype], out.shape[1])
    return product_of(x, weight.t(), out, bias, ending)


def _keep_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    x, weight, bias, before = tensors
    if bias is None:
        torch.mm(x, weight.t(), out=before)
    else:
        torch.addmm(bias, x, weight.t(), out=before)
    result = TORCH_ACTIVATIONS[options[0]](before)
    return result if out is None else out.copy_(result)


LINEAR_ACT_KEEP = replace(
    LINEAR_ACT,
    name="linear_act_keep",
    schema=_LINEAR + "(Tensor, Tensor)",
    problem=_keep_problem,
    inputs=lambda t, options, out: Inputs(t[0], t[1].t(), out, t[2], (t[3],)),
    extern=_keep_extern,
    rows=(0, 3),
    besides=lambda tensors, options: (_result(tensors, options),),
)


# gated_linear: tensors (x, w1, w3), options (act,).


def _gated_problem(tensors: Tensors, options: Options, out: Tensor) -> Problem | None:
    x, first, second = tensors
    gate = epilogue_of(options[0], x.dtype)
    plain = product_of(x, first.t(), out, None, None)
    if plain is None or gate is None or strides_of(first) != strides_of(second):
        return None
    found = plain.aligned | ({"b2"} if second.data_ptr() % 16 == 0 else set())
    return replace(plain, gate=gate, aligned=found)


def _gated_extern(tensors: Tensors, options: Options, out: Tensor | None) -> Tensor:
    x, first, second = tensors
    gate = TORCH_ACTIVATIONS[options[0]](F.linear(x, first))
    value = F.linear(x, second)
    return torch.mul(gate, value) if out is None else torch.mul(gate, value, out=out)


GATED_LINEAR = Operation(
    "gated_linear",
    "(Tensor x, Tensor w1, Tensor w3, str act, str config='') -> Tensor",
    partial(_checked, "gated_linear"),
    _gated_problem,
    lambda tensors, options, out: Inputs(tensors[0], tensors[1].t(), out, b2=tensors[2].t()),
    _gated_extern,
    _result,
    gradients.GATED,
    rows=(0,),
    operands=(0, 1, 2),
)
