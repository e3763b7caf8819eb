"""The tensor maps of a kernel's launches, made once for each address and number of rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemm_templates.plan import Maps
from triton_rt import Address, MapPlan, TensorMap

# Maps that are kept for a parameter: beyond, all are forgotten.
_KEPT = 2048


class Described:
    """`described(name, tensor, m)` is the `TensorMap` for the parameter `name`.

    On a GPU it names an address and keeps no tensor alive: what lies there next, of the same type
    and with as many rows, has the same map. The maps of CPU tensors hold them, as the interpreter
    looks at their storages.
    """

    def __init__(self, maps: Maps, dims: Mapping[str, int]) -> None:
        self._maps = {name: _Matrix(plan, dims) for name, plan in maps}

    def __call__(self, name: str, tensor: torch.Tensor, m: int) -> TensorMap:
        matrix = self._maps[name]
        key = (tensor.data_ptr(), m, tensor.dtype)
        return matrix.known.get(key) or matrix.make(key, tensor)


class _Matrix:
    """What one parameter describes."""

    def __init__(self, plan: MapPlan, dims: Mapping[str, int]) -> None:
        assert plan.shape is not None
        self.plan = plan
        self.dims = dims
        self.rows = plan.shape.index("M") if "M" in plan.shape else None
        self.known: dict[tuple[int, int, torch.dtype], TensorMap] = {}
        self.last: TensorMap | None = None

    def make(self, key: tuple[int, int, torch.dtype], tensor: torch.Tensor) -> TensorMap:
        m = key[1]
        if tensor.get_device() < 0:
            return self.plan.bind(tensor, {**self.dims, "M": m})
        base = Address.like(tensor)
        last = self.last
        if last is None or last.kind != base.kind:
            made = self.plan.bind(base, {**self.dims, "M": m})
        else:
            shape = list(last.shape)
            if self.rows is not None:
                shape[self.rows] = m
            made = last.moved(base, shape)
        if len(self.known) >= _KEPT:
            self.known.clear()
        self.known[key] = self.last = made
        return made
