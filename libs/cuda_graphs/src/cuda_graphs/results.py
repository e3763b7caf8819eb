"""What a replay gives the caller: copies of results, and results that are lent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cuda_graphs.arguments import ArgumentResult
from cuda_graphs.graph_pool import GraphPool

_holders = torch._C._storage_Use_Count  # of a storage, by its address
_functions: Any = torch._C._dynamo.guards
_alias = _functions._reinterpret_tensor  # half the time of `detach`


class Loans:
    """Graphs that share the memory of a pool, in the order in which they were captured, and what
    they lend. A capture takes no memory of results that others made before it; so a graph may be
    replayed while these are held, but not while its own are, or those of a later one."""

    def __init__(self) -> None:
        self.pool = GraphPool()
        self._made: list[Results] = []
        self._later: dict[Results, tuple[list[int], list[int]]] = {}

    def held(self, made: Results) -> bool:
        """Whether somebody has what the graph of these results must not write to."""
        if made not in self._later:
            after = self._made[self._made.index(made) :]
            lent = [one for later in after for one in later.lent.values()]
            self._later[made] = [s for s, _ in lent], [n for _, n in lent]
        storages, counts = self._later[made]
        return list(map(_holders, storages)) != counts

    def __contains__(self, address: int | None) -> bool:
        """Whether a result that is lent begins there."""
        return any(address in made.lent for made in self._made)

    def begin(self, made: Results) -> None:
        """Notes a graph that was captured, which lends these results from now on."""
        self._made.append(made)
        self._later.clear()

    def end(self, made: Results) -> None:
        """Forgets results whose graph is gone."""
        self._made.remove(made)
        self._later.clear()


@dataclass(frozen=True)
class Lending:
    """Results at `positions` are lent, such as what training keeps for its backward pass. Callables
    that share `loans` share their pool, and capture what is lent where it lies."""

    positions: Collection[int] = ()
    loans: Loans = field(default_factory=Loans)


@dataclass(eq=False)
class Results:
    """The results of a captured graph. copied, lending: positions of those that are given as
    copies, and as they lie there. shared: what is copied with all of the memory that it lies in,
    and the positions of the results in it. lent: where each of those lent begins, with the address
    of its storage, and by how many that is held when the caller has none."""

    outputs: Any
    copied: list[int]
    lending: list[int]
    shared: list[tuple[torch.Tensor, list[int]]] = field(default_factory=list)
    lent: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Any, lends: Collection[int], cut: bool = False) -> Results:
        """Copies of all but those at the positions `lends`; where they are not `cut`, of memory
        that several lie in, or one with gaps, as a whole."""
        tensors = {i: v for i, v in enumerate(_listed(outputs)) if isinstance(v, torch.Tensor)}
        together: dict[int, list[int]] = {}
        for i, value in tensors.items():
            if i not in lends:
                together.setdefault(i if cut else value.untyped_storage()._cdata, []).append(i)
        made = cls(outputs, [], [i for i in tensors if i in lends])
        for places in together.values():
            if cut or (len(places) == 1 and _is_dense(tensors[places[0]])):
                made.copied += places
            else:
                made.shared.append((_memory([tensors[i] for i in places]), places))
        for i in made.lending:
            storage = tensors[i].untyped_storage()._cdata
            made.lent[tensors[i].data_ptr()] = storage, _holders(storage)
        return made

    def held(self) -> bool:
        """Whether somebody has a result that was lent, or a view of it."""
        return any(_holders(s) != n for s, n in self.lent.values())

    def give(
        self, args: Any, cut: Callable[[int, torch.Tensor], torch.Tensor] | None = None
    ) -> Any:
        """What a call with these arguments returns. cut: the part of a padded result, which stands
        at a position."""
        values = _listed(self.outputs)
        for i, value in enumerate(values):
            if isinstance(value, ArgumentResult):
                values[i] = args[value.position]
            elif cut is not None and isinstance(value, torch.Tensor):
                values[i] = cut(i, value)
        for i in self.lending:
            values[i] = _alias(values[i], values[i].shape, values[i].stride(), 0)
        if len(self.copied) > 1:  # one launch
            there = [values[i] for i in self.copied]
            copies = [torch.empty_like(t) for t in there]
            torch._foreach_copy_(copies, there)
            for i, copied in zip(self.copied, copies, strict=True):
                values[i] = copied
        elif self.copied:
            values[self.copied[0]] = values[self.copied[0]].clone()
        for memory, places in self.shared:
            seen: dict[int, torch.Tensor] = {}
            copied = memory.clone()
            for i in places:
                known = id(values[i])
                if known not in seen:
                    seen[known] = _seen(values[i], memory, copied)
                values[i] = seen[known]
        kind = type(self.outputs)
        return kind(values) if issubclass(kind, (tuple, list)) else values[0]


def _is_dense(x: torch.Tensor) -> bool:
    """Whether a copy has the layout of the tensor, and all that is to be known of it."""
    alike = torch.empty_like(x, device="meta").stride() == x.stride()
    return alike and not (x.is_conj() or x.is_neg())


def _memory(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """What tensors of one storage span, as one dimension of it."""
    types = {t.dtype for t in tensors}
    dtype = types.pop() if len(types) == 1 else torch.uint8
    spans = [_span(t) for t in tensors]
    start, end = min(s for s, _ in spans), max(e for _, e in spans)
    start -= start % 16 if dtype is torch.uint8 else 0  # elements of any type begin there
    flat = torch.empty(0, dtype=dtype, device=tensors[0].device)
    width = dtype.itemsize
    flat.set_(tensors[0].untyped_storage(), start // width, ((end - start) // width,), (1,))
    return flat


def _span(x: torch.Tensor) -> tuple[int, int]:
    """The bytes of the storage in which the elements lie."""
    start = int(x.storage_offset())
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return start * x.itemsize, (start + (last + 1 if x.numel() else 0)) * x.itemsize


def _seen(x: torch.Tensor, memory: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
    """`x`, which lies in `memory`, in a copy of that."""
    start = x.storage_offset() - memory.storage_offset() * memory.itemsize // x.itemsize
    made = torch.empty(0, dtype=x.dtype, device=x.device)
    made.set_(copied.untyped_storage(), start, x.shape, x.stride())
    made = made.conj() if x.is_conj() else made
    return torch._neg_view(made) if x.is_neg() else made


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
