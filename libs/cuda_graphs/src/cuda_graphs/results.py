"""What a replay gives the caller: copies of results, and results that are lent."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from cuda_graphs.arguments import ArgumentResult

_holders = torch._C._storage_Use_Count  # of a storage, by its address
_functions: Any = torch._C._dynamo.guards
_alias = _functions._reinterpret_tensor  # half the time of `detach`


class Loans:
    """Results that lie in the memory of graphs as long as the caller holds them."""

    def __init__(self) -> None:
        self._made: list[Results] = []

    def held(self) -> bool:
        """Whether somebody has a result of a call before, or a view of it."""
        return any(_holders(s) != n for made in self._made for s, n in made.lent.values())

    def __contains__(self, address: int) -> bool:
        """Whether a result that is lent begins there."""
        return any(address in made.lent for made in self._made)

    def begin(self, made: Results) -> None:
        """These are lent from now on."""
        if made.lent:
            self._made.append(made)

    def end(self, made: Results) -> None:
        """Their graph is gone."""
        self._made = [m for m in self._made if m is not made]


@dataclass(frozen=True)
class Lending:
    """Results at `positions` are lent, such as what training keeps for its backward pass. Two
    callables share `loans`: the one that lends does not replay while one of its results is held,
    and the one that gets them captures them where they lie."""

    positions: Collection[int] = ()
    loans: Loans = field(default_factory=Loans)


@dataclass(eq=False)
class Results:
    """The results of a captured graph. copied, lending: positions of those that are given as
    copies, and as they lie there. lent: where each of the latter begins, with the address of its
    storage, and by how many that is held when the caller has none."""

    outputs: Any
    copied: list[int]
    lending: list[int]
    lent: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Any, lends: Collection[int]) -> Results:
        """Copies of all but those at the positions `lends`."""
        tensors = {i: v for i, v in enumerate(_listed(outputs)) if isinstance(v, torch.Tensor)}
        copied = [i for i in tensors if i not in lends]
        made = cls(outputs, copied, [i for i in tensors if i in lends])
        for i in made.lending:
            storage = tensors[i].untyped_storage()._cdata
            made.lent[tensors[i].data_ptr()] = storage, _holders(storage)
        return made

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
        kind = type(self.outputs)
        return kind(values) if issubclass(kind, (tuple, list)) else values[0]


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
