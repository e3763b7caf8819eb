"""Fusion of kernels with each other and with matmuls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loop_ir.nodes import Graph
from loop_ir.options import FuseOptions
from loop_ir.schedule import Fusion, Scheduler


def _ignore(fusions: list[Fusion]) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class FuseKernels:
    """Producers into consumers that pick few of their elements or read as much without them,
    producers with consumers, then kernels that read the same tensor, then cheap producers into
    consumers that read them at other points; again until nothing changes.
    `report` gets the decisions."""

    options: FuseOptions = field(default_factory=FuseOptions)
    report: Callable[[list[Fusion]], None] = _ignore
    name = "fuse_kernels"

    def run(self, graph: Graph) -> Graph:
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
            if not (self.options.inline and scheduler.run_inline()):
                break
        scheduler.drop_dead_stores()
        self.report(scheduler.decisions)
        return scheduler.result() if scheduler.decisions else graph

    def _wanted(self, vertical: bool) -> bool:
        return self.options.vertical if vertical else self.options.horizontal


@dataclass(frozen=True)
class FuseEpilogues:
    """Pointwise kernels into the matmuls whose result only they read."""

    options: FuseOptions = field(default_factory=FuseOptions)
    report: Callable[[list[Fusion]], None] = _ignore
    name = "fuse_epilogues"

    def run(self, graph: Graph) -> Graph:
        scheduler = Scheduler(graph, self.options)
        scheduler.run_epilogues()
        self.report(scheduler.decisions)
        return scheduler.result() if scheduler.decisions else graph


@dataclass(frozen=True)
class FusePrologues:
    """Cheap pointwise kernels into the matmuls that alone read what they make."""

    options: FuseOptions = field(default_factory=FuseOptions)
    report: Callable[[list[Fusion]], None] = _ignore
    name = "fuse_prologues"

    def run(self, graph: Graph) -> Graph:
        scheduler = Scheduler(graph, self.options)
        scheduler.run_prologues()
        self.report(scheduler.decisions)
        return scheduler.result() if scheduler.decisions else graph
