"""Fusion decisions in words."""

from loop_ir.errors import UnknownNode
from loop_ir.fusion.common_domain import Mismatch
from loop_ir.fusion.fuse import fuse_with_report
from loop_ir.fusion.options import FuseOptions
from loop_ir.fusion.scheduler import Scheduler
from loop_ir.ir.analysis import node_name, reads, writes
from loop_ir.ir.nodes import Extern, Graph, Kernel, Matmul, Node, UserKernel


def why_not(
    graph: Graph,
    a: str,
    b: str,
    options: FuseOptions = FuseOptions(),  # noqa: B008  # frozen
) -> str:
    """Why the nodes named `a` and `b` are two nodes, in a sentence; or that they would fuse.

    Raises `UnknownNode`. Ask about a graph before or after `fuse`."""
    return _why_not(Scheduler(graph, options, reasons=True), graph, a, b)


def _why_not(scheduler: Scheduler, graph: Graph, a: str, b: str) -> str:
    numbers = []
    for name in (a, b):
        number = scheduler.deps.find(name)
        if number is None:
            raise UnknownNode(name, [node_name(n) for n in graph.nodes])
        numbers.append(number)
    first, second = sorted(numbers, key=lambda n: scheduler.deps.order[n])
    one, two = scheduler.deps.nodes[first], scheduler.deps.nodes[second]
    pair = f"{node_name(one)} and {node_name(two)}"
    if isinstance(one, Matmul) and isinstance(two, Kernel):
        if one.out not in reads(two):
            return f"{pair}: {two.name} does not read {one.out}"
        attached = scheduler.try_epilogue(first)
        if isinstance(attached, Mismatch):
            return f"{pair}: {attached.reason}"
        wanted = "" if scheduler.options.epilogue else " with the option `epilogue`"
        return f"{pair} fuse{wanted}: {two.name} is an epilogue of the matmul"
    if isinstance(one, Kernel) and isinstance(two, Matmul):
        made = set(writes(one))
        if made.isdisjoint(reads(two)):
            return f"{pair}: {two.out} does not read what {one.name} writes"
        if made.isdisjoint((two.a.buffer, two.b.buffer)):
            return f"{pair}: {one.name} makes no operand, but what is read beside one"
        operand = "a" if two.a.buffer in made else "b"
        attached = scheduler.try_prologue(second, operand)
        if isinstance(attached, Mismatch):
            return f"{pair}: {attached.reason}"
        wanted = "" if scheduler.options.prologue else " with the option `prologue`"
        return f"{pair} fuse{wanted}: {one.name} is a prologue of the matmul"
    for node in (one, two):
        if not isinstance(node, Kernel):
            return f"{pair}: {node_name(node)} is {_kind(node)}, which does not fuse"
    assert isinstance(one, Kernel) and isinstance(two, Kernel)
    if {*reads(one), *writes(one)}.isdisjoint((*reads(two), *writes(two))):
        return f"{pair}: they share no tensor, so fusing them saves no bytes"
    vertical = not set(writes(one)).isdisjoint(reads(two))
    if not (scheduler.options.vertical if vertical else scheduler.options.horizontal):
        return f"{pair}: {'vertical' if vertical else 'horizontal'} fusion is switched off"
    fused = scheduler.try_pair(first, second)
    if not isinstance(fused, Mismatch):
        return f"{pair} fuse: {scheduler.estimate(first, second)} bytes are saved"
    if vertical and scheduler.options.inline:
        inlined = scheduler.try_inline(first)
        if not isinstance(inlined, Mismatch):
            return f"{pair} fuse: {one.name} is computed where {two.name} loads it"
        return f"{pair}: {fused.reason}; and {inlined.reason}"
    return f"{pair}: {fused.reason}"


def _kind(node: Node) -> str:
    if isinstance(node, Extern):
        return f"a call of {node.target}"
    if isinstance(node, UserKernel):
        return f"a launch of the user's kernel {node.kernel}"
    return "a matmul" if isinstance(node, Matmul) else "a copy into an input"


def explain(
    graph: Graph,
    options: FuseOptions = FuseOptions(),  # noqa: B008  # frozen
) -> str:
    """What `fuse(graph, options)` does, and why the neighbours that are left stay apart."""
    fused, report = fuse_with_report(graph, options)
    scheduler = Scheduler(fused, options, reasons=True)
    lines = [str(report), "left apart:"]
    for number, node in scheduler.deps.nodes.items():
        for other in scheduler.deps.neighbours(number):
            pair = (node, scheduler.deps.nodes[other])
            if other > number and any(isinstance(n, Kernel) for n in pair):
                text = _why_not(scheduler, fused, node_name(pair[0]), node_name(pair[1]))
                lines.append(f"  {text}")
    return "\n".join(lines)
