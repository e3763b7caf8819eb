"""The tensors of a graph while it is lowered: what FX nodes stand for, copies of them, and the
results of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx

from aten_lowering.buffers import Buffers
from aten_lowering.builder import Operand
from aten_lowering.elementwise import copy_kernel
from aten_lowering.errors import CannotLower, NotPlain
from aten_lowering.extern import Fallback, bind, extern_argument, extern_call
from aten_lowering.meta import SYMBOLIC, expr, origin, source_line, tensor_type
from aten_lowering.subgraphs import Within
from loop_ir import CopyBack, Extern, GraphArg, Node, Origin, TensorRef, TensorType

aten = torch.ops.aten


class Tensors:
    """What FX nodes stand for, and the copies that are made of it.

    env: an `Operand`, an integer expression, a Python value, or a tuple of those, by FX node.
    nodes: loop IR so far, to which copies are appended.
    owned: no op writes to a constant of the graph.
    for_gpu: the graph has tensors on a GPU; those on the CPU then have no kernels.
    within: of a subgraph, what calls it."""

    def __init__(
        self, gm: fx.GraphModule, graph: fx.Graph, owned: bool, for_gpu: bool, within: Within | None
    ) -> None:
        self.gm = gm
        self.graph = graph
        self.within = within
        self.for_gpu = for_gpu
        self.env: dict[fx.Node, Any] = {}
        self.nodes: list[Node] = []
        self.fallbacks: list[Fallback] = []
        names = within.names if within is not None else set[str]()
        self.buffers = Buffers(gm, owned, names)
        self.fresh, self.buffer = self.buffers.fresh, self.buffers.declare

    def value(self, argument: Any) -> Any:
        """An FX argument in the IR's terms."""
        if isinstance(argument, fx.Node):
            return self.env[argument]
        if isinstance(argument, list | tuple):
            return tuple(self.value(a) for a in argument)
        return expr(argument) if isinstance(argument, SYMBOLIC) else argument

    def plain(self, value: Any, origin: Origin) -> Any:
        """An argument, copied where it does not show its memory as it is."""
        if isinstance(value, tuple):
            return tuple(self.plain(v, origin) for v in value)
        if isinstance(value, Operand) and not value.is_plain:
            return self.copied(value, origin)
        return value

    def has_kernels(self, x: Operand) -> bool:
        """Whether kernels run where a tensor is: not on the CPU, in a program for a GPU."""
        return not (self.for_gpu and x.type.device.kind == "cpu")

    def copied(self, x: Operand, origin: Origin) -> Operand:
        """`x` in new memory, where its elements lie as they are: all of the memory that it spans
        is copied."""
        flat = _flat(x.type)
        seen = replace(x.ref, type=replace(flat, offset=x.type.offset))
        return self.span("aten.clone.default", (seen,), x.type, f"{x.ref.buffer}_copy", origin)

    def span(
        self, target: str, args: tuple[GraphArg, ...], type: TensorType, name: str, origin: Origin
    ) -> Operand:
        """A tensor of this layout in a new buffer of one dimension, which the call fills."""
        flat = _flat(type)
        name = self.fresh(name)
        self.nodes.append(
            Extern(target, args, (), ((name, flat),), fallback=False, origins=(origin,))
        )
        return Operand(TensorRef(name, replace(type, offset=sympy.S.Zero)), flat)

    def outside(self, node: fx.Node, source: Operand) -> Operand:
        """`as_strided` of a tensor of the caller's that reaches out of it: what is there is known
        when the model runs, and is copied then."""
        bound = bind(node, aten.as_strided.default)
        type = tensor_type(node.meta["val"])
        start = None if bound["storage_offset"] is None else expr(node.meta["val"].storage_offset())
        arguments = (source.ref, _flat(type).size, (1,), start)
        op = aten.as_strided_copy.default
        self.fallbacks.append(Fallback(str(op), source_line(node), "it reaches out of its tensor"))
        return self.span(str(op), arguments, type, node.name, origin(node))

    def into(self, x: Operand, type: TensorType, node: fx.Node, own: bool = False) -> Operand:
        """`x` in the layout of `type`, copied if it lies in another, or is to have its own."""
        if not own and x.is_plain and replace(x.type, offset=type.offset) == type:
            return x
        name = self.fresh(f"{x.ref.buffer}_copy")
        out = Operand(TensorRef(name, type), type)
        if self.has_kernels(out):
            self.nodes.append(copy_kernel(name, x, out, origin(node)))
        else:
            clone = str(aten.clone.default)
            self.nodes.append(extern_call(clone, (x,), {}, (out,), (), origin(node), False))
        return out

    def copy_back(self, node: fx.Node) -> Operand:
        """`copy_(placeholder, x)` as a kernel, which what makes `x` may become part of; where there
        can be none, `CopyBack`, through a copy if size or element type differ."""
        target: Operand = self.value(node.args[0])
        source: Operand = self.value(node.args[1])
        if source.ref == target.ref:  # it was written there
            return target
        if 0 in target.size:
            return target
        if self.has_kernels(target):
            try:
                self.nodes.append(copy_kernel(self.fresh(node.name), source, target, origin(node)))
                return target
            except (CannotLower, NotPlain):
                pass
        if source.size != target.size or source.dtype != target.dtype:
            value = self.buffer(f"{node.name}_value", node.meta["val"])
            self.nodes.append(copy_kernel(value.ref.buffer, source, value, origin(node)))
            source = value
        self.nodes.append(CopyBack(source.ref, target.ref))
        return target

    def output(self, node: fx.Node) -> tuple[GraphArg, ...]:
        """The results of the graph, as its output node names them."""
        values = node.args[0]
        flat = values if isinstance(values, list | tuple) else (values,)
        results = [self.value(v) for v in flat]
        if self.within is not None:
            results = self.apart(node, results, self.within)
        else:
            results = self.again(flat, results)
        return tuple(map(extern_argument, results))

    def again(self, nodes: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The results, of which those of different nodes are different tensors, as what a node
        makes of an input is another tensor than that."""
        given = [n for n in self.graph.nodes if n.op in ("placeholder", "get_attr")]
        known: dict[TensorRef, list[Any]] = {}
        numbered: list[Any] = []
        for node, x in (*((n, self.env.get(n)) for n in given), *zip(nodes, results, strict=True)):
            if isinstance(x, Operand):
                alike = known.setdefault(x.ref, [])
                alike += [] if node in alike else [node]
                x = replace(x, ref=replace(x.ref, again=alike.index(node)))
            numbered.append(x)
        return numbered[len(given) :]

    def apart(self, node: fx.Node, results: list[Any], within: Within) -> list[Any]:
        """The results of a subgraph, each in memory of its own and in the layout that is asked
        for."""
        given = {i.name for i in self.buffers.inputs} | set(self.buffers.constants)
        for i, x in enumerate(results):
            if not isinstance(x, Operand):
                continue
            carried = self.buffers.inputs[i].type if i < within.carries else None
            type = carried or replace(x.type, offset=sympy.S.Zero)
            results[i] = self.into(x, type, node, x.ref.buffer in given)
            given.add(results[i].ref.buffer)
        return results


def _flat(type: TensorType) -> TensorType:
    """One dimension that holds the memory which a layout spans."""
    length = type.numel if type.is_contiguous else type.extent
    return replace(type, size=(length,), stride=(sympy.S.One,), offset=sympy.S.Zero)
