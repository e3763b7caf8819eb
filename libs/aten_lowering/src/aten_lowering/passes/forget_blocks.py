"""Blocks of the masks of flex attention that nobody looks at."""

from typing import Any

from torch import fx

from aten_lowering.torch_compat import flex_attention, flex_attention_backward

# Which argument of a call is its mask.
MASK = {flex_attention: 4, flex_attention_backward: 9}


def forget_blocks(graph: fx.Graph) -> bool:
    """Calls of flex attention take no blocks that are not looked at: any, where one block is all
    there is, and those of queries, but for gradients. torch makes some for calls without a mask.
    Sizes of blocks that torch takes for dynamic are what they are now. Gives whether there are
    such calls."""
    found = False
    for target, at in MASK.items():
        for node in graph.find_nodes(op="call_function", target=target):
            mask: Any = node.args[at]
            tensors: Any = node.args[:2]
            queries, keys = (n.meta["val"].shape[-2] for n in tensors)
            given = (n.meta["val"] if isinstance(n, fx.Node) else n for n in mask[10:12])
            sizes = tuple(map(int, given))
            one = sizes[0] >= queries and sizes[1] >= keys
            first = 2 if one else 6 if target is flex_attention else 10
            mask = (*mask[:first], *(None,) * (10 - first), *sizes, mask[-1])
            node.args = (*node.args[:at], mask, *node.args[at + 1 :])
            found = True
    return found
