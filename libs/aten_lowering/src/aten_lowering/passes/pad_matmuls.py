"""Large matmuls of 16-bit operands whose rows begin at odd places, on copies whose rows do not.

mm(a, permute(w))   ->   mm(constant_pad_nd(a, [0, 63]), permute(constant_pad_nd(w, [0, 63])))

with a of [4096, 4097] and w of [3072, 4097]. TMA addresses rows that begin at multiples of 16
bytes. The vendor's kernels for others reach a third of its rate, or a seventh where they begin at
odd elements (H200, logits of 30522 and 50257: 245 and 95 to 148 TFLOP/s beside 700 to 790), and
copies move 2.8 TB/s: they are made where they and the product are predicted to take less, which
measures nothing. A matrix that is an operand as it lies and turned, as the gradient of logits is,
has one copy: the columns of a [8192, 50257] are those of its copy of [8192, 50304].
It is exact: zeros meet zeros alone. A result with such rows is left as it is; templates write it.
"""

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
Copies = dict[tuple[fx.Node, int, int], fx.Node]  # of a node, with zeros behind rows and below
DEVICES = frozenset({"cuda"})
# Of an H200: products of 16 bits a second by the vendor's kernels for rows at odd elements, at even
# ones, and at whole units at least; bytes that a copy moves a second; seconds of its launch; and
# how much less is less.
_ODD, _EVEN, _WHOLE, _MOVED, _LAUNCH, _MARGIN = 113e12, 245e12, 500e12, 2.8e12, 3e-6, 1.2
_UNIT, _LINE = 8, 64  # elements in 16 bytes, and in a cache line, at which copied rows begin


def pad_matmuls(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    copies: Copies = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _OPERANDS:
            continue
        first, second, by_rows = _OPERANDS[node.target]
        a, b = node.args[first], node.args[second]
        left, right = _value(a), _value(b)
        if left is None or right is None or right.dim() != 2:
            continue
        wide = right if by_rows else right.t()
        k = int(left.shape[-1])
        more = -k % _LINE if k % _UNIT else 0
        if not _is_amiss(left, wide) or not is_worth_it(left, wide, more):
            continue
        with graph.inserting_before(node):
            rows = _padded(graph, b if by_rows else _turned(graph, b), wide, more, copies)
            node.update_arg(first, _padded(graph, a, left, more, copies))
            node.update_arg(second, rows if by_rows else _turned(graph, rows))


def _value(node: Any) -> Tensor | None:
    """What is known of an operand that this is for: all of its sizes and strides as numbers."""
    value = tensor(node)
    if value is None or value.dim() < 2 or value.device.type not in DEVICES:
        return None
    known = all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    return value if known and value.dtype in (torch.bfloat16, torch.float16) else None


def _is_amiss(a: Tensor, b: Tensor) -> bool:
    """a: [..., M, K]; b: [N, K]."""
    leads = (_lead(a), _lead(b))
    return None not in leads and any(lead is not None and lead % _UNIT for lead in leads)


def is_worth_it(a: Tensor, b: Tensor, more: int) -> bool:
    """Whether copies of what lies amiss and a product of them take less than the product."""
    leads = (_lead(a) or 0, _lead(b) or 0)
    amiss = [x for x, lead in zip((a, b), leads, strict=True) if more or lead % _UNIT]
    flops = 2 * a.numel() * b.shape[0]
    now = flops / (_ODD if any(lead % 2 for lead in leads) else _EVEN)
    copies = sum(_LAUNCH + 2 * x.numel() * x.element_size() / _MOVED for x in amiss)
    return now > _MARGIN * (flops / _WHOLE + copies)


def _lead(value: Tensor) -> int | None:
    """The stride between rows, or columns where those are contiguous; None where neither is."""
    if value.stride(-1) == 1:
        return int(value.stride(-2))
    return int(value.stride(-1)) if value.dim() == 2 and value.stride(0) == 1 else None


def _padded(graph: fx.Graph, node: fx.Node, value: Tensor, more: int, copies: Copies) -> fx.Node:
    """`node`, [..., K], with `more` zeros behind each row; itself if nothing is amiss."""
    lead = _lead(value)
    assert lead is not None
    if lead % _UNIT == 0 and not more:
        return node
    if value.stride(-1) == 1:
        return _copy(graph, node, more, 0, copies)
    columns, count = _turned(graph, node), int(value.shape[0])
    apart = -count % _LINE if lead % _UNIT and count % _UNIT else 0
    rows = _copy(graph, columns, apart, more, copies)
    return _turned(graph, call(graph, aten.slice.Tensor, rows, 1, 0, count) if apart else rows)


def _turned(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A matrix with rows and columns exchanged."""
    if node.target == aten.permute.default and node.args[1] == [1, 0]:
        return node.all_input_nodes[0]
    return call(graph, aten.permute.default, node, [1, 0])


def _copy(graph: fx.Graph, node: fx.Node, wide: int, high: int, copies: Copies) -> fx.Node:
    """Contiguous rows of `node` with `wide` zeros behind each and `high` rows of zeros below."""
    key = node, wide, high
    if key not in copies:
        if wide or high:
            ends = [0, wide, 0, high] if high else [0, wide]
            copies[key] = call(graph, aten.constant_pad_nd.default, node, ends, 0.0)
        else:
            form = torch.contiguous_format
            copies[key] = call(graph, aten.clone.default, node, memory_format=form)
    return copies[key]
