"""`emit`: a loop IR kernel under a schedule -> a Triton kernel."""

from __future__ import annotations

from loop_ir import Kernel, pair_softmax
from triton_emit.forms.check import check
from triton_emit.forms.kernel import KernelWriter
from triton_emit.forms.looped import LoopedWriter
from triton_emit.forms.pairs import PairWriter
from triton_emit.forms.persistent import PersistentWriter
from triton_emit.forms.plane import PlaneWriter
from triton_emit.forms.walk import WalkWriter
from triton_emit.idioms import cheaper
from triton_emit.schedule import Schedule, walks
from triton_emit.source import TritonKernel
from triton_emit.ssa import clean

_FORMS: dict[str, type[KernelWriter]] = {
    "flat": KernelWriter,
    "tiled": PlaneWriter,
    "persistent": PersistentWriter,
    "looped": LoopedWriter,
}


def emit(kernel: Kernel, schedule: Schedule) -> TritonKernel:
    """The Triton source of `kernel` cut as `schedule` says, and its launch.

    Raises BadSchedule when the two do not fit, UnsupportedDType for element types that Triton
    lacks, UnsupportedKernel when a loop would have to read what it overwrote.
    """
    kernel = cheaper(clean(kernel))
    if schedule.kind == "looped":
        kernel = pair_softmax(kernel)  # a row that is held whole is read once anyway
    check(kernel, schedule)
    form = _FORMS[schedule.kind]
    if schedule.pairs:
        form = PairWriter
    elif walks(kernel):
        form = WalkWriter
    return form(kernel, schedule).emit()
