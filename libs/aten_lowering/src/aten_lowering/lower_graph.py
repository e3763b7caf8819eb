"""`lower`: an ATen FX graph to a loop IR graph, node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from aten_lowering.associative_scans import associative_scans
from aten_lowering.equal_sizes import equal_sizes
from aten_lowering.layers import fold
from aten_lowering.lower_nodes import Lowerer, Stuck
from aten_lowering.lowered import Lowered
from aten_lowering.meta import unsupported
from aten_lowering.opaque import enclose
from aten_lowering.passes import PASSES, lint
from aten_lowering.passes.forget_blocks import forget_blocks
from aten_lowering.passes.host_constants import host_constants
from aten_lowering.subgraphs import Within
from aten_lowering.symbols import settle_sizes, settle_slices
from loop_ir import Graph
from tensor_ir import Pass, run_passes


def lower(gm: fx.GraphModule, name: str = "graph") -> Graph:
    """Lowers a functional ATen graph whose nodes carry fake tensors in `meta["val"]`.

    Placeholders are tensors or SymInts. Ops without a lowering become `Extern(fallback=True)`, and
    so do higher-order operators and values without a type in the IR, with all that uses them
    (`opaque`); a `copy_` into a placeholder becomes a kernel, or `CopyBack`. `gm` itself
    is not changed. Raises `UnsupportedGraph` for inputs and results of such types: sizes that
    depend on data (`DependsOnData`), sparse tensors. Launches of the user's Triton kernels become
    `UserKernel`."""
    return lower_with_report(gm, name).graph


def lower_with_report(
    gm: fx.GraphModule,
    name: str = "graph",
    on_pass: Callable[[str, fx.Graph], None] | None = None,
    before: Sequence[Pass[fx.Graph]] = (),
    eager_random: bool = False,
    within: Within | None = None,
    fold_layers: bool = False,
) -> Lowered:
    """`lower`, with the tensors of the constants and the reason of every fallback.

    before: the caller's own passes, which run first, on a copy of the graph; nodes that they add
    carry fake tensors. eager_random: random operators stay torch's own, whose numbers eager has;
    else they are kernels, of other numbers. within: of a subgraph, what calls it. fold_layers: the
    graph has fewer layers where many are alike (`Lowered.whole`).
    `on_pass(name, graph)` sees the FX graph after every pass."""
    folded = fold(gm.graph) if fold_layers else None
    graph = fx.Graph() if folded is None else folded[0]
    if folded is None:
        graph.output(graph.graph_copy(gm.graph, {}))
    settle_sizes(graph)
    settle_slices(graph)
    equal_sizes(graph)
    forget_blocks(graph)
    associative_scans(gm, graph)
    host_constants(gm, graph)
    graph = enclose(gm, graph)
    graph = run_passes(graph, (*before, *PASSES), lint, on_pass, "FX graph").program
    refused: set[str] = set()

    def lower_body(body: fx.GraphModule, name: str, within: Within) -> Lowered:
        return lower_with_report(body, name, None, before, eager_random, within)

    while True:
        try:
            how = within, eager_random, lower_body, lower, folded and folded[1:]
            return Lowerer(gm, graph, name, *how).run()
        except Stuck as stuck:
            node = stuck.node
            if node.op != "call_function" or node.name in refused:
                raise unsupported(node, stuck.why) from stuck.why
            refused.add(node.name)
            graph = enclose(gm, graph, {node.name: str(stuck.why)})
