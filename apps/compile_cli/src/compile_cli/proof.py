"""Is a graph captured for a dynamic size right for a size of 0 or 1?

Capturing treats a dynamic size as at least two, since one broadcasts. To serve one (or zero) with
the same kernels, the model is captured again for exactly those inputs, and both graphs must be
the same: operator by operator, with equal sizes once the symbols have their values. Nothing is
compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

_SIZE_OPS = ("sym_size", "sym_stride", "sym_numel")


def difference(
    dynamic: torch.fx.GraphModule, static: torch.fx.GraphModule, env: Mapping[str, int]
) -> str | None:
    """None where the graphs are the same under `env` (symbol name -> value), else why not."""
    ours, theirs = _calls(dynamic), _calls(static)
    for a, b in zip(ours, theirs, strict=False):
        if a.target is not b.target:
            return f"there {b.target} runs in place of {a.target}"
        left = [_value(x, env) for x in _leaves(a)]
        right = [_value(x, env) for x in _leaves(b)]
        if left != right:
            return f"there {b.target} takes or makes {right} in place of {left}"
    if len(ours) != len(theirs):
        return f"there {len(theirs)} operators run in place of {len(ours)}"
    return None


def _calls(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [
        n
        for n in graph.graph.nodes
        if n.op == "output"
        or (
            n.op == "call_function"
            and isinstance(n.target, torch._ops.OpOverload)
            and not any(part in str(n.target) for part in _SIZE_OPS)
        )
    ]


def _leaves(node: torch.fx.Node) -> list[Any]:
    """Arguments that are no tensors, and what the node makes."""
    args = pytree.tree_leaves((node.args, node.kwargs))
    made = [] if node.op == "output" else pytree.tree_leaves(node.meta.get("val"))
    return [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in args] + made


def _value(x: Any, env: Mapping[str, int]) -> Any:
    if isinstance(x, Tensor):
        return (str(x.dtype), tuple(_value(n, env) for n in x.shape))
    if isinstance(x, torch.SymInt):
        expr = x.node.expr
        return int(expr.subs({s: env[str(s)] for s in expr.free_symbols if str(s) in env}))
    return x
