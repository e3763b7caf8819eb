"""A model as it was when it was compiled, to be captured again for other sizes.

Capturing puts fake tensors in the place of a module's parameters while its code runs. A call of a
compiled model must not do that to a module which the caller may be using, so that it captures a
copy: the modules and all that they hold are copied, the tensors are shared."""

import copy
import gc
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from compile_cli.capture import Captured, capture, export
from compile_cli.errors import CompileFailed, first_line
from compile_cli.result.compiled import CompiledGraph
from compile_cli.result.proof import difference
from compile_cli.result.regimes import Regime

# What copying an object does not look into.
_WHOLE = (type, ModuleType, FunctionType, Tensor)

# Capturing patches torch for its duration: one thread at a time.
CAPTURING = threading.RLock()


def twin(model: nn.Module) -> nn.Module | str:
    """A copy of a module that shares its tensors; in words why there is none."""
    tensors: dict[int, Any] = {}
    seen: set[int] = set()
    pending: list[Any] = [model]
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            tensors[id(item)] = item
        elif not isinstance(item, _WHOLE):
            pending.extend(gc.get_referents(item))
    try:
        return copy.deepcopy(model, tensors)
    except Exception as error:  # attributes are objects of any class, copied by code of their own
        return f"the model cannot be copied: {type(error).__name__}: {first_line(error)}"


@dataclass(frozen=True)
class Source:
    """What a model is captured from again. model: the copy, or in words why there is none.
    compile_graph: the compiler, for a graph of the model. dynamic: position of a flattened input
    -> dimensions that may be of any size."""

    model: nn.Module | str
    compile_graph: Callable[[torch.fx.GraphModule], CompiledGraph]
    dynamic: Mapping[int, set[int]]

    def exact(self, args: tuple[Any, ...]) -> Captured:
        """The model for exactly these sizes. Raises `CompileFailed`."""
        return self._capture(args, {})

    def regime(self, args: tuple[Any, ...]) -> Regime:
        """The model compiled with these inputs as the example. Dimensions stay dynamic where the
        model lets them. Those of size 0 or 1 do not: capturing takes a dynamic size to be another.
        """
        leaves = pytree.tree_leaves(args)
        dynamic = self.dynamic.items()
        open_ = {i: {d for d in dims if leaves[i].shape[d] > 1} for i, dims in dynamic}
        captured = self._capture(args, {i: dims for i, dims in open_.items() if dims})
        return Regime(captured, self.compile_graph(captured.graph))

    def _capture(self, args: tuple[Any, ...], dynamic: Mapping[int, set[int]]) -> Captured:
        if isinstance(self.model, str):
            raise CompileFailed(self.model)
        return capture(export(self.model, args, dynamic))


def unchanged(dynamic: Captured, exact: Captured, sizes: dict[str, int]) -> str | None:
    """None where a model, captured for exactly these sizes, is the graph that was captured for
    dynamic ones, else what differs."""
    for (name, ours), theirs in zip(dynamic.lifted.items(), exact.lifted.values(), strict=False):
        if ours.data_ptr() != theirs.data_ptr() and not torch.equal(ours, theirs):
            return f"there {name} holds other values"
    if dynamic.outputs != exact.outputs:
        return "there results are other constants"
    return difference(dynamic.graph, exact.graph, sizes)
