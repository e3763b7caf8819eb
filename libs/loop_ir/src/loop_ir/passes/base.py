"""What a pass over graphs is, and how passes run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import tensor_ir
from loop_ir.ir.nodes import Graph, Kernel
from loop_ir.ir.rewrite import OfMatmuls, map_kernels
from loop_ir.ir.verify import Checked, verify

Pass: TypeAlias = tensor_ir.Pass[Graph]


@dataclass(frozen=True)
class EachKernel:
    """A pass that rewrites kernels, and those of matmuls, as `map_kernels` does. It is called as
    the file is in which `rewrite` stands."""

    rewrite: Callable[[Kernel], Kernel]
    of_matmuls: OfMatmuls = "prologues"

    @property
    def name(self) -> str:
        """The last part of the module's name."""
        return self.rewrite.__module__.rpartition(".")[2]

    def run(self, graph: Graph) -> Graph:
        """The graph with its kernels rewritten."""
        return map_kernels(graph, self.rewrite, self.of_matmuls)


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    on_pass: Callable[[str, Graph], None] | None = None,
    check: bool = True,
) -> Graph:
    """The graph after all passes: `run_and_report` without what they decided."""
    return run_and_report(graph, passes, on_pass, check).program


def run_and_report(
    graph: Graph,
    passes: Iterable[Pass],
    on_pass: Callable[[str, Graph], None] | None = None,
    check: bool = True,
) -> tensor_ir.Decided[Graph]:
    """The graph after all passes, and what they decided: `tensor_ir.run_passes`, with the rules of
    this IR checked after each pass unless `check` is off. What a pass leaves as it is is
    not checked again."""
    checked = Checked()
    latest: list[Graph] = []

    def verified(result: Graph) -> None:
        if not (latest and latest[-1] is result):
            verify(result, checked)
            latest.append(result)

    return tensor_ir.run_passes(graph, passes, verified if check else None, on_pass, "graph")
