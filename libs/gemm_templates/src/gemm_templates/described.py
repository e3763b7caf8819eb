"""The tensor maps of a kernel's launches, made once for each address and number of rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemm_templates.plan import Maps
from triton_rt import MapPlan, TensorMap
from triton_rt.kinds import kind_of
from triton_rt.tma import Address

# Maps that are kept for a parameter: beyond, all are forgotten.
_KEPT = 512


class Described:
    """`described(name, tensor, m)` is the `TensorMap` for the parameter `name`.

    On a GPU it names an address and keeps no tensor alive: what lies there next, of the same type
    and with as many rows, has the same map. The maps of CPU tensors hold them, as the interpreter
    looks at their storages.
    """

    def __init__(self, maps: Maps, dims: Mapping[str, int]) -> None:
        self._dims = dims
        self._maps: dict[str, tuple[MapPlan, dict[tuple[int, int, torch.dtype], TensorMap]]] = {
            name: (plan, {}) for name, plan in maps
        }

    def __call__(self, name: str, tensor: torch.Tensor, m: int) -> TensorMap:
        plan, known = self._maps[name]
        key = (tensor.data_ptr(), m, tensor.dtype)
        found = known.get(key)
        if found is not None:
            return found
        device = tensor.get_device()
        sizes = {**self._dims, "M": m}
        if device < 0:
            return plan.bind(tensor, sizes)
        found = plan.bind(Address(key[0], kind_of(tensor.dtype), device), sizes)
        if len(known) >= _KEPT:
            known.clear()
        known[key] = found
        return found
