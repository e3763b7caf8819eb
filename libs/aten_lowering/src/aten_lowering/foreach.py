"""Operators over lists of tensors (`torch._foreach_add`, what optimizers run) as one operator for
each tensor: those fuse with one another, and kernels that do the same become one launch later."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

aten = torch.ops.aten

_ELEMENTWISE = """
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min copy cos cosh div erf erfc exp expm1
floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt
sigmoid sign sin sinh sqrt sub tan tanh trunc
"""
_OF_A_NUMBER = {"maximum": aten.clamp_min, "minimum": aten.clamp_max}
_TENSORS, _NUMBERS = "List[Tensor]", "List[number]"
_WEIGHTS = ("value", "alpha")  # what the operator of one tensor takes by name alone


def _each(op: OpOverload, one: OpOverloadPacket, *args: Any, **kwargs: Any) -> list[Tensor]:
    """`op([x, y], ...) -> [one(x, ...), one(y, ...)]`."""
    schema = op._schema.arguments
    named = {a.name: value for a, value in zip(schema, args, strict=False)} | kwargs
    listed = [a.name for a in schema if str(a.type) in (_TENSORS, _NUMBERS)]
    made = []
    for n in range(len(named[listed[0]])):
        given = {name: v[n] if name in listed else v for name, v in named.items()}
        if "addc" in one.__name__ and "scalars" in given:
            given["value"] = given.pop("scalars")
        by_name = {name: given.pop(name) for name in _WEIGHTS if name in given}
        made.append(one(*given.values(), **by_name))
    return made


def _norms(tensors: list[Tensor], order: Any = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    """`clip_grad_norm_` asks for those of all gradients."""
    return [aten.linalg_vector_norm(x, order, dtype=dtype) for x in tensors]


def _rules() -> Iterator[tuple[OpOverload, Callable[..., Any]]]:
    for name in _ELEMENTWISE.split():
        packet: OpOverloadPacket = getattr(aten, f"_foreach_{name}")
        for kind in packet.overloads():  # type: ignore[no-untyped-call]  # of torch
            # numbers in a tensor on the CPU would have to be read while a graph is captured
            if kind.endswith("out") or (kind == "Tensor" and "addc" in name):
                continue
            of_number = kind.startswith("Scalar") and name in _OF_A_NUMBER
            one = _OF_A_NUMBER[name] if of_number else getattr(aten, name)
            op = getattr(packet, kind)
            yield op, functools.partial(_each, op, one)


FOREACH = dict(_rules()) | {aten._foreach_norm.Scalar: _norms}
