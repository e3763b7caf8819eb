"""What happened in a compilation: the stages, how long each took, and what each pass made."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

STAGES = ("capture", "lower", "fuse", "triton", "wrapper", "emit", "build")


@dataclass
class Record:
    """Seconds by stage, and (when `keep`) every IR in the order it was made.

    on_stage: told the name of a stage when it begins (the progress bar).
    trace: (stage, pass, the IR after it)."""

    on_stage: Callable[[str], None] | None = None
    keep: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    trace: list[tuple[str, str, Any]] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the seconds of what is done inside as those of a stage."""
        if self.on_stage is not None:
            self.on_stage(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def after(self, stage: str, name: str, value: Any) -> None:
        """Notes what pass `name` of a stage made: an IR, or (graph module, FX graph), which is
        copied, since FX passes change it in place."""
        if not self.keep:
            return
        if stage == "aten" and isinstance(value, tuple):
            module, graph = value
            value = torch.fx.GraphModule(module, copy_graph(graph))
        self.trace.append((stage, name, value))


def copy_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """The same nodes in a graph of their own."""
    out = torch.fx.Graph()
    out.output(out.graph_copy(graph, {}))
    return out
