"""Tensor maps that the host makes: what the descriptor parameters of a kernel describe, and the
maps of its launches, made once for each address and number of rows.

`a` of [M, K], contiguous along K   -> shape (M, K), strides (stride_am, 1), block (rows, block_k)
contiguous along M                  -> shape (K, M), strides (stride_ak, 1), block (block_k, rows)
a batch of them                     -> shape (batch, ...), strides (stride_ab, ...), block (1, ...)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gemm_templates.plan import Maps
from gemm_templates.problem import SIZES_OF, STRIDES_OF, Config, Problem
from triton_rt import Address, MapPlan, TensorMap

# Maps that are kept for a parameter: beyond, all are forgotten.
_KEPT = 2048


@dataclass(frozen=True)
class Moves:
    """What a kernel moves through tensor descriptors: names of `a`, `b`, `b2` and `out`.

    maps: those that the host makes. shared: those of which all products of a batch have the same.
    """

    names: frozenset[str] = frozenset()
    maps: Maps = ()
    shared: frozenset[str] = frozenset()


def moves_of(
    problem: Problem, config: Config, rows: int, stored: bool, shared: frozenset[str] | None = None
) -> Moves:
    """The operands and, if `stored`, `out`, of which a copy moves `rows` rows; the host makes maps
    unless kernels make their own (`Config.maps`).

    shared: for a batch, that of which there is one matrix; None for one product."""
    blocks = {"a": (rows, config.block_k), "b": (config.block_k, config.block_n)}
    if problem.gate:
        blocks["b2"] = blocks["b"]
    if stored:
        blocks["out"] = (rows, config.block_n // config.parts)
    if problem.pick_b is not None:
        del blocks["b"]
    maps = []
    for name, block in blocks.items() if config.maps else ():
        plan = _matrix(problem, name, block)
        maps.append((name, plan if shared is None else _batch(problem, name, plan, name in shared)))
    return Moves(frozenset(blocks), tuple(maps), shared or frozenset())


def _matrix(problem: Problem, name: str, block: tuple[int, int]) -> MapPlan:
    """One matrix, whose last dimension is the one it is contiguous along."""
    tensor = "b" if name == "b2" else name
    rows, columns = SIZES_OF[tensor]
    row, column = STRIDES_OF[tensor][:2]
    if problem.major(tensor) == column:
        return MapPlan(block, (rows, columns), (row, 1))
    return MapPlan((block[1], block[0]), (columns, rows), (column, 1))


def _batch(problem: Problem, name: str, plan: MapPlan, alone: bool) -> MapPlan:
    """`plan` for each product; `alone`: there is one matrix for all."""
    assert plan.shape is not None and plan.strides is not None
    count = 1 if alone else problem.batch
    # Of one matrix any stride will do: only the first is read.
    distance = plan.strides[0] if alone else f"stride_{name[0]}b"
    return MapPlan((1, *plan.block), (count, *plan.shape), (distance, *plan.strides))


def is_writable(problem: Problem) -> bool:
    """Whether a descriptor may write `out`, by its rows."""
    return problem.major("out", written=True) == "stride_on"


def is_strided(problem: Problem, tensor: str) -> bool:
    """Whether the batch stride of "a", "b" or "out" is one that a descriptor takes."""
    return problem.major(tensor, batched=True) is not None


class TensorMaps:
    """`maps(name, tensor, m)` is the `TensorMap` for the parameter `name`.

    On a GPU it names an address and keeps no tensor alive: what lies there next, of the same type
    and with as many rows, has the same map. The maps of CPU tensors hold them, as the interpreter
    looks at their storages."""

    def __init__(self, maps: Maps, dims: Mapping[str, int]) -> None:
        self._maps = {name: _Matrix(plan, dims) for name, plan in maps}

    def __call__(self, name: str, tensor: torch.Tensor, m: int) -> TensorMap:
        """The map of `tensor`, whose rows are `m` where they are dynamic."""
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
