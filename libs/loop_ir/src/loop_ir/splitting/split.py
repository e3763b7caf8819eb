"""Cuts a kernel into stages, and shares those that pay between programs."""

from collections.abc import Callable

from loop_ir.ir.nodes import Kernel
from loop_ir.splitting.chunks import Cut, chunks
from loop_ir.splitting.stages import separate


def split(
    kernel: Kernel,
    cut_of: Callable[[Kernel], Cut | None],
    taken: set[str],
    apart: Callable[[Kernel], bool] = lambda kernel: False,
) -> list[Kernel]:
    """The kernels that do what `kernel` does, in order, where `cut_of` says that it pays: one
    for each reduction that others wait for, shared between programs as `cut_of` says of it, and one
    for all points that are left. It reads nothing that it writes, but where nothing is reduced.
    apart: whether stages are worth a kernel each, though nothing is shared.
    taken: names of the graph, to which those of new kernels and buffers are added."""
    cut = cut_of(kernel)
    if cut is None and not apart(kernel):
        return [kernel]
    stages = separate(kernel, taken)
    if len(stages) > 1:
        return [part for stage in stages for part in split(stage, cut_of, taken)]
    if cut is None:
        return [kernel]
    partial, finish = chunks(kernel, cut, taken)
    return [*split(partial, cut_of, taken), finish]
