"""One call of an operator through the table of lowerings, and what its node says of it."""

import operator
from typing import Any

import torch
from torch import fx

from aten_lowering.call import Call
from aten_lowering.errors import CannotLower, NotPlain
from aten_lowering.lowerings import TABLE
from aten_lowering.registry import NAMES, by_rule

aten = torch.ops.aten

# What has no lowering because none would be as fast as torch's kernel: loop IR knows the extents of
# its loops, and a sum in memory moves more.
_RAGGED = "sums of as many rows as data says"
# (H200: 2**24 places of 2**14 runs, each searched for by a kernel 218 us, 43 by torch's; 2**24
# numbers in 64 bins 253 us, 101 by torch's.)
_RUNS = "runs as long as data says"
_SHARED = "counts in shared memory"
_REASONS = by_rule(
    (_RAGGED, "_embedding_bag _embedding_bag_forward_only segment_reduce _segment_reduce_backward"),
    (_SHARED, "histc"),
    (_RUNS, "repeat_interleave.Tensor"),
)


def run_lowering(call: Call) -> str | None:
    """Lowers the call; the reason if there is no lowering or it declines."""
    lowering = TABLE.get(call.op)
    if lowering is None:
        return _REASONS.get(call.op, "no lowering")
    if any(n == 0 for r in call.results if r is not None and r.used for n in r.size):
        return "the result is empty"
    arguments = {NAMES.get(k, k): v for k, v in call.arguments.items()}
    try:
        lowering(call, **arguments)
    except NotPlain:
        raise
    except CannotLower as e:
        return str(e)
    used = [r for r in call.results if r is not None and r.used and not call.in_place]
    needed = {r.operand.ref.buffer for r in used}
    if missing := needed - call.written():
        raise AssertionError(f"the lowering of {call.op} does not write {sorted(missing)}")
    return None


def moves_device(call: Call) -> bool:
    """A copy between devices: always a call of the driver."""
    if call.op is not aten._to_copy.default:
        return False
    return bool(call.arguments["self"].type.device != call.out.operand.type.device)


def used_results(node: fx.Node, count: int, several: bool) -> list[bool]:
    """Which results the graph looks at."""
    if not several:
        return [bool(node.users)]
    used = [False] * count
    for user in node.users:
        if user.target is not operator.getitem:
            return [True] * count
        index = user.args[1]
        assert isinstance(index, int)
        used[index] = bool(user.users)
    return used


def fake_value(argument: Any) -> Any:
    """An FX argument with the value of each node in its place."""
    if isinstance(argument, fx.Node):
        return argument.meta.get("val")
    if isinstance(argument, list | tuple):
        return type(argument)(fake_value(a) for a in argument)
    return argument
