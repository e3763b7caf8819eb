"""Parts of kernels that may be computed somewhere else."""

from dataclasses import replace

from loop_ir.ir.analysis import inner_axes, is_pointwise, scans
from loop_ir.ir.in_place import can_share
from loop_ir.ir.names import statements
from loop_ir.ir.nodes import Kernel, Phase, Reduce, Scan, Store
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.passes.unroll_short_rows import rewrite, spread
from loop_ir.splitting.online_softmax import pair_softmax
from loop_ir.splitting.stages import separate


def alone(kernel: Kernel, name: str, most: int = 4) -> Kernel:
    """What a kernel does for a buffer, over all points where nothing is reduced, or rows are of
    `most` elements."""
    part = rewrite(drop_dead_statements(kernel, {name}) or kernel, most)
    inner = inner_axes(part)
    if not inner:
        return part
    if any(isinstance(s, Reduce | Scan) for s in statements(part)):
        return spread(part) or part
    return replace(part, axes=(*part.axes, *inner), phases=(Phase((), tuple(statements(part))),))


def tail(kernel: Kernel, taken: set[str]) -> tuple[Kernel, Kernel] | None:
    """A kernel that reads its rows once for numbers of each row, and once to store something at
    all points, as the two kernels that it does this by:

        k: over r0: reduce; over r0: store y   ->   k_stage: over r0: reduce; store numbers
                                                    k: at all points: store y

    None for any other kernel. taken: names of the graph, to which new ones are added."""
    inner = inner_axes(kernel)
    if not inner or scans(kernel) or not can_share(kernel):
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
