"""Custom operators that write to their arguments: the one place that reads torch's operators for
them.

torch makes them functional: `auto_functionalized_v2(op, y=..., _x_base_index=0, _all_bases=[x])`
gives what `op` returns, then the tensors of `_all_bases` as it leaves them, of which its arguments
are views; the older `auto_functionalized(op, x=..., y=...)` gives its written arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import OpOverload

from aten_lowering import torch_compat as compat
from aten_lowering.aliasing import view_of
from aten_lowering.builder import Operand
from aten_lowering.errors import require
from aten_lowering.extern import extern_call
from aten_lowering.meta import source_line
from aten_lowering.placement import Placement, moved
from loop_ir import Node, Origin


def is_functionalized(node: fx.Node) -> bool:
    """The node runs a custom operator on copies of what it writes to."""
    known = node.target in (compat.auto_functionalized, compat.auto_functionalized_v2)
    return known and isinstance(node.args[0], OpOverload)


@dataclass(frozen=True)
class Surroundings:
    """What lowering a call needs of the graph.

    nodes: the loop IR so far. value: gives what an FX argument means. buffer: declares a new
    buffer for a tensor. fresh: gives a new name."""

    placement: Placement
    nodes: list[Node]
    value: Callable[[Any], Any]
    buffer: Callable[[str, torch.Tensor], Operand]
    fresh: Callable[[str], str]


def lower_functionalized(node: fx.Node, around: Surroundings) -> tuple[Any, ...]:
    """Appends the call, which writes in place where it may (`Placement.takes_over`) and else to
    copies; gives its results, then the tensors as it leaves them."""
    op: Any = node.args[0]
    names, types = compat.get_mutable_args(op)
    given: dict[str, Any] = dict(node.kwargs)
    written = {name: given.get(name) for name in names}
    bases: list[Any] = list(written.values())
    if node.target is compat.auto_functionalized_v2:
        bases = given["_all_bases"]
        known = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], given)
        written = compat.read_view_information_from_args(names, types, known, known["_all_bases"])
    seen = _placed(node, [n for n in pytree.tree_leaves(bases) if n is not None], around)

    def value(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return tuple(value(a) for a in argument)
        if isinstance(argument, fx.Node):
            return seen[argument] if argument in seen else around.value(argument)
        if isinstance(argument, compat.ViewInfo):
            base = bases[argument.base_index]
            fakes = [n.meta["val"] for n in bases]
            return view_of(seen[base], base.meta["val"], argument.regenerate_view(fakes))
        return argument

    values = {a.name: value({**given, **written}[a.name]) for a in op._schema.arguments}
    results: tuple[Any, ...] = node.meta["val"][: len(node.meta["val"]) - len(bases)]
    require(all(r is None or isinstance(r, torch.Tensor) for r in results), "a result of its own")
    outs = [r if r is None else around.buffer(f"{node.name}_{i}", r) for i, r in enumerate(results)]
    schema = op._schema.arguments
    call = extern_call(
        str(op),
        [values[a.name] for a in schema if not a.kwarg_only],
        {a.name: values[a.name] for a in schema if a.kwarg_only},
        outs[: len(op._schema.returns)],
        [values[name] for name in names],
        Origin(str(op), source_line(node)),
        several=len(op._schema.returns) > 1,
        fallback=True,
    )
    around.nodes.append(call)
    return (*outs, *(value(b) for b in bases))


def _placed(node: fx.Node, bases: list[fx.Node], around: Surroundings) -> dict[fx.Node, Operand]:
    """The tensors that a call takes, in the memory that it works on: those of a buffer that it
    writes move along."""
    found = {n: around.value(n) for n in node.all_input_nodes}
    seen = {n: v for n, v in found.items() if isinstance(v, Operand)}
    require(all(seen[n].is_plain for n in bases), "a write to a lazily conjugated tensor")
    for buffer in dict.fromkeys(seen[n].ref.buffer for n in bases):
        written = [n for n in bases if seen[n].ref.buffer == buffer]
        alone = written[0] if len(written) == 1 else None
        if not around.placement.takes_over(node, buffer, alone):
            new = around.fresh(f"{buffer}_new")
            group = {n.name: v for n, v in seen.items() if v.ref.buffer == buffer}
            there = moved(group, new, around.nodes, Origin(str(node.args[0]), source_line(node)))
            seen.update((n, there[n.name]) for n in seen if n.name in there)
    return seen
