"""What a pass is, and how passes run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from loop_ir.errors import PassError, VerifyError
from loop_ir.nodes import Graph, Kernel
from loop_ir.verify import verify


class Pass(Protocol):
    """Valid graph in, valid graph out. Options are fields of the (frozen) dataclass."""

    @property
    def name(self) -> str: ...

    def run(self, graph: Graph) -> Graph: ...


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    on_pass: Callable[[str, Graph], None] | None = None,
    check: bool = True,
) -> Graph:
    """Runs passes in order; `on_pass(name, graph)` sees every result.

    Raises `PassError` where a pass makes an invalid graph (`check`), and `VerifyError` where the
    graph was invalid to begin with.
    """
    checked: dict[int, Kernel] = {}
    if check:
        verify(graph, checked)
    for item in passes:
        result = item.run(graph)
        if check and result is not graph:
            try:
                verify(result, checked)
            except VerifyError as e:
                raise PassError(item.name, e) from e
        graph = result
        if on_pass is not None:
            on_pass(item.name, graph)
    return graph
