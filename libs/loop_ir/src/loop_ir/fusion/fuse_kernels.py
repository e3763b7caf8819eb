"""Fusion of kernels with each other and with matmuls."""

from dataclasses import dataclass, field
from typing import Literal

from loop_ir.fusion.options import FuseOptions
from loop_ir.fusion.scheduler import Scheduler
from loop_ir.ir.nodes import Graph
from tensor_ir import Decided


@dataclass(frozen=True)
class FuseKernels:
    """Producers into consumers that pick few of their elements or read as much without them,
    producers with consumers, then kernels that read the same tensor, then cheap producers into
    consumers that read them at other points; again until nothing changes."""

    options: FuseOptions = field(default_factory=FuseOptions)
    name = "fuse_kernels"

    def run(self, graph: Graph) -> Decided[Graph]:
        """The graph with its kernels fused, and each `Fusion`."""
        scheduler = Scheduler(graph, self.options)
        if self.options.inline:
            scheduler.run_inline(early=True)
        if self.options.vertical:
            scheduler.run_pairs(lambda vertical: vertical)
            if self.options.inline:
                scheduler.run_inline(early=True)
        while True:
            if self.options.vertical or self.options.horizontal:
                scheduler.run_pairs(self._wanted)
            if not (self.options.inline and (scheduler.run_inline() or scheduler.run_tails())):
                break
        scheduler.drop_dead_stores()
        return scheduler.decided()

    def _wanted(self, vertical: bool) -> bool:
        return self.options.vertical if vertical else self.options.horizontal


@dataclass(frozen=True)
class FuseMatmuls:
    """Pointwise kernels into the matmuls whose result only they read (epilogues), or cheap ones
    into those that alone read what they make (prologues)."""

    kind: Literal["epilogues", "prologues"]
    options: FuseOptions = field(default_factory=FuseOptions)

    @property
    def name(self) -> str:
        """Which of both it is."""
        return f"fuse_{self.kind}"

    def run(self, graph: Graph) -> Decided[Graph]:
        """The graph with kernels in its matmuls, and each `Fusion`."""
        scheduler = Scheduler(graph, self.options)
        scheduler.run_epilogues() if self.kind == "epilogues" else scheduler.run_prologues()
        return scheduler.decided()
