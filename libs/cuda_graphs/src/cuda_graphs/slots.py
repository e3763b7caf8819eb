"""What is kept of one layout of arguments: its graph, and what a call like the one before is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cuda_graphs.arguments import global_state
from cuda_graphs.graph_pool import Recording
from cuda_graphs.results import Results

SameTensors = Callable[[Sequence[torch.Tensor], Sequence[int]], Callable[[Sequence[Any]], bool]]

Places = tuple[int | None, ...]
"""By position: where an argument lies that another graph has lent."""


@dataclass(frozen=True)
class Again:
    """What a call is compared with at once, and what is left to do where it is like the one before:
    tensors of the same layouts, those captured in place where they were, and equal values. tensors:
    their positions. moved: positions of what is copied into `buffers`."""

    like: Callable[[Sequence[Any]], bool]
    state: tuple[Any, ...]
    tensors: list[int]
    values: list[tuple[int, Any]]
    buffers: list[torch.Tensor]
    moved: list[int]

    @classmethod
    def of(cls, slot: Slot, args: Sequence[Any], same: SameTensors) -> Again | None:
        """None where there is more to look at: padding, writes into copies, gradients."""
        written = slot.mutated and slot.copied
        if slot.bucket is not None or written or torch.is_grad_enabled():
            return None
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        values = [(i, a) for i, a in enumerate(args) if not isinstance(a, torch.Tensor)]
        places = [n for n, i in enumerate(tensors) if i not in slot.copied]
        like = same([args[i] for i in tensors], places)
        moved = sorted(slot.copied)
        buffers = [slot.statics[i] for i in moved]
        return cls(like, global_state(), tensors, values, buffers, moved)

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether nothing else is to be done for these arguments."""
        if self.state != global_state():
            return False
        if self.values:
            if len(args) != len(self.tensors) + len(self.values):
                return False
            if any(type(args[i]) is not type(v) or args[i] != v for i, v in self.values):
                return False
            args = [args[i] for i in self.tensors]
        return self.like(args)


@dataclass(eq=False)
class Slot:
    """The graph of one layout of arguments. again: the calls that are replayed at once."""

    key: tuple[Hashable, Places]
    label: str
    bucket: int | None
    addresses: list[int | None]
    mutated: set[int]
    copied: dict[int, str] = field(default_factory=dict)  # position -> why
    statics: list[Any] = field(default_factory=list)
    recording: Recording | None = None
    results: Results | None = None
    eager: str = ""  # why there will be no graph
    warm: bool = False
    overtaken: int = 0
    replays: int = 0
    copies: int = 0
    history: list[str] = field(default_factory=list)
    again: Again | None = None

    def release(self) -> None:
        """Drops the graph and its buffers."""
        if self.recording is not None:
            self.recording.release()
        self.recording = self.results = self.again = None
        self.statics = []
