"""What a graph mentions: its integer symbols (with torch's ranges and hints), its buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from loop_ir import LEAST, Axis, Buffer, Graph, Indirect, Kernel, Symbol, TensorRef
from loop_ir.analysis import walk
from symexpr import from_torch


def graph_symbols(graph: Graph, gm: fx.GraphModule) -> Graph:
    """Declares the size symbols that the graph and its kernels use."""
    known = _known(gm)
    nodes = tuple(
        replace(n, symbols=_declare(_symbols(n), known)) if isinstance(n, Kernel) else n
        for n in graph.nodes
    )
    bound = {i.name for i in graph.inputs if i.type is None}
    return replace(graph, nodes=nodes, symbols=_declare(_symbols(graph) | bound, known))


def _declare(names: set[str], known: dict[str, Symbol]) -> tuple[Symbol, ...]:
    return tuple(known.get(n, Symbol(n)) for n in sorted(names))


def used_buffers(value: object) -> set[str]:
    """Names of all buffers that nodes and results refer to."""
    found = {b.name for b in walk(value) if isinstance(b, Buffer)}
    return found | {r.buffer for r in walk(value) if isinstance(r, TensorRef)}


def _symbols(value: object) -> set[str]:
    """Free symbols of all expressions, less the axes and indirect symbols of kernels."""
    free = {str(s) for e in walk(value) if isinstance(e, sympy.Basic) for s in e.free_symbols}
    bound = {str(b.symbol) for b in walk(value) if isinstance(b, Axis | Indirect)}
    return free - bound


def _known(gm: fx.GraphModule) -> dict[str, Symbol]:
    found: dict[str, Symbol] = {}
    for env in shape_envs(gm):
        hints: dict[Any, Any] = dict(getattr(env, "backed_var_to_val", None) or env.var_to_val)
        for s, limits in env.var_to_range.items():
            name = str(from_torch(s))
            hint, low = hints.get(s), _finite(limits.lower)
            found[name] = Symbol(
                name,
                LEAST if low is None else low,
                _finite(limits.upper),
                int(hint) if hint is not None else None,
            )
    return found


def _finite(bound: Any) -> int | None:
    """None for infinity, and for `sys.maxsize - 1`, which torch means as infinity."""
    if not getattr(bound, "is_Integer", isinstance(bound, int)):
        return None
    value = int(bound)
    return value if abs(value) < 2**62 else None


def shape_envs(gm: fx.GraphModule) -> list[ShapeEnv]:
    """Those that the sizes of a graph's values belong to."""
    envs: list[ShapeEnv] = []
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        sizes: tuple[Any, ...] = ()
        if isinstance(value, torch.SymInt):
            sizes = (value,)
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            sizes = (*value.shape, *value.stride(), value.storage_offset())
        for n in sizes:
            if isinstance(n, torch.SymInt) and not any(e is n.node.shape_env for e in envs):
                envs.append(n.node.shape_env)
    return envs
