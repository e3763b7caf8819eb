"""Large matmuls of 16-bit operands whose rows begin at odd places, on copies whose rows do not.

mm(a, permute(w))   ->   mm(constant_pad_nd(a, [0, 63]), permute(constant_pad_nd(w, [0, 63])))

with a of [4096, 4097] and w of [3072, 4097]. TMA cannot address such rows, and the vendor's kernels
for them reach a seventh of the others' rate (113 TFLOP/s on an H200). Copies at 2.8 TB/s (padded
rows of 4097 there) take 81 / M + 81 / N of that time, the product of the copies a seventh: from
1024 rows and columns on, with room for the launches, this is a rule, and measures nothing.
It is exact: zeros meet zeros alone. A result with such rows is left as it is; templates write it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from aten_lowering.passes.base import call, tensor

aten = torch.ops.aten
# Where the operands are, and whether the second is [N, K].
_OPERANDS: dict[Any, tuple[int, int, bool]] = {
    aten.mm.default: (0, 1, False),
    aten.addmm.default: (1, 2, False),
    aten.linear.default: (0, 1, True),
}
DEVICES = frozenset({"cuda"})
LEAST = 1024  # rows, columns and products of a sum
_UNIT, _LINE = 8, 64  # elements in 16 bytes, and in a cache line, at which copied rows begin


def pad_matmuls(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _OPERANDS:
            continue
        first, second, by_rows = _OPERANDS[node.target]
        a, b = node.args[first], node.args[second]
        left, right = _value(a), _value(b)
        if left is None or right is None or right.dim() != 2:
            continue
        wide = right if by_rows else right.t()
        if not _is_odd(left, wide):
            continue
        k = int(left.shape[-1])
        more = -k % _LINE if k % _UNIT else 0
        with graph.inserting_before(node):
            turned = b if by_rows else call(graph, aten.permute.default, b, [1, 0])
            rows = _padded(graph, turned, wide, more)
            node.update_arg(first, _padded(graph, a, left, more))
            node.update_arg(
                second, rows if by_rows else call(graph, aten.permute.default, rows, [1, 0])
            )


def _value(node: Any) -> Tensor | None:
    """What is known of an operand that this is for: all of its sizes and strides as numbers."""
    value = tensor(node)
    if value is None or value.dim() < 2 or value.device.type not in DEVICES:
        return None
    known = all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    return value if known and value.dtype in (torch.bfloat16, torch.float16) else None


def _is_odd(a: Tensor, b: Tensor) -> bool:
    """a: [..., M, K]; b: [N, K]."""
    leads = (_lead(a), _lead(b))
    rows = a.numel() // max(1, a.shape[-1])
    return (
        min(rows, b.shape[0], b.shape[1]) >= LEAST
        and None not in leads
        and any(lead is not None and lead % 2 for lead in leads)
    )


def _lead(value: Tensor) -> int | None:
    """The stride between rows, or columns where those are contiguous; None where neither is."""
    if value.stride(-1) == 1:
        return int(value.stride(-2))
    return int(value.stride(-1)) if value.dim() == 2 and value.stride(0) == 1 else None


def _padded(graph: fx.Graph, node: fx.Node, value: Tensor, more: int) -> fx.Node:
    """`node`, [..., K], with `more` zeros behind each row; itself if nothing is amiss."""
    lead = _lead(value)
    assert lead is not None
    if lead % _UNIT == 0 and not more:
        return node
    if lead % _UNIT == 0 and value.stride(-1) != 1:  # columns that TMA can address: more of them
        columns = call(graph, aten.permute.default, node, [1, 0])
        columns = call(graph, aten.constant_pad_nd.default, columns, [0, 0, 0, more], 0.0)
        return call(graph, aten.permute.default, columns, [1, 0])
    if more:
        return call(graph, aten.constant_pad_nd.default, node, [0, more], 0.0)
    return call(graph, aten.clone.default, node, memory_format=torch.contiguous_format)
