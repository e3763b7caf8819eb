"""All that a call shows: results, and arguments, buffers and gradients after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from fuzzer.program import Loaded, Sizes
from fuzzer.tensors import may_have_gradient


@dataclass(frozen=True)
class Seen:
    """spec: how the results are nested; values: by name, results first."""

    spec: Any
    values: tuple[tuple[str, Any], ...]


class EagerRefused(Exception):
    """Eager raises for this program."""


def eager(loaded: Loaded, sizes: Sizes) -> Seen:
    """What eager does. Raises `EagerRefused`, whatever eager raises."""
    module = loaded.module()
    try:
        return observe(loaded, module, sizes, module)
    except Exception as error:
        raise EagerRefused(f"{type(error).__name__}: {error}"[:300]) from error


def observe(loaded: Loaded, module: Any, sizes: Sizes, run: Callable[..., Any]) -> Seen:
    """Calls `run`, a form of `module`, with the arguments for these sizes."""
    grad = loaded.setting.grad
    args = loaded.inputs(sizes)
    leaves = [a for a in args if grad and may_have_gradient(a)]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.set_grad_enabled(grad):
        flat, spec = pytree.tree_flatten(run(*args))
        gradients = _gradients(flat, leaves) if grad else []
    values = [(f"result {i}", v) for i, v in enumerate(flat)]
    values += [(f"argument {i}", a) for i, a in enumerate(args)]
    values += [(f"buffer {k}", b) for k, b in module.named_buffers()]
    values += [(f"gradient {i}", g) for i, g in enumerate(gradients)]
    return Seen(spec, tuple(values))


def _gradients(flat: list[Any], leaves: list[Tensor]) -> list[Any]:
    """Of a sum of all results, each element with a weight from 1 to 4."""
    loss: Any = 0.0
    for i, value in enumerate(flat):
        if isinstance(value, Tensor) and value.requires_grad and value.is_floating_point():
            weight = torch.arange(value.numel(), device=value.device) % 3 + 1 + i % 2
            loss = loss + (value.double() * weight.reshape(value.shape)).sum()
    if not isinstance(loss, Tensor):
        return []
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))
