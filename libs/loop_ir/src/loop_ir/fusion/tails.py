"""What follows a reduction at all points, apart from it."""

from __future__ import annotations

from loop_ir.ir.analysis import inner_axes, is_pointwise, scans
from loop_ir.ir.in_place import is_in_place
from loop_ir.ir.names import statements
from loop_ir.ir.nodes import Kernel, Reduce, Store
from loop_ir.splitting.online_softmax import pair_softmax
from loop_ir.splitting.stages import separate


def tail(kernel: Kernel, taken: set[str]) -> tuple[Kernel, Kernel] | None:
    """A kernel that reads its rows once for numbers of each row, and once to store something at
    all points, as the two kernels that it does this by:

        k: over r0: reduce; over r0: store y   ->   k_stage: over r0: reduce; store numbers
                                                    k: at all points: store y

    None for any other kernel. taken: names of the graph, to which new ones are added."""
    inner = inner_axes(kernel)
    if not inner or scans(kernel) or is_in_place(kernel):
        return None
    if not any(isinstance(s, Reduce) for s in statements(kernel)):
        return None
    stored = [s for p in kernel.phases if p.axes for s in p.body if isinstance(s, Store)]
    if len(stored) != 1 or stored[0].mode != "set":
        return None
    pieces = separate(pair_softmax(kernel), taken)
    if len(pieces) != 2 or not is_pointwise(pieces[1]):
        return None
    return pieces[0], pieces[1]
