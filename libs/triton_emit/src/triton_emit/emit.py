"""`emit`: a loop IR kernel under a schedule -> a Triton kernel; `Emitter`: many; `emit_list`:
several as one."""

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loop_ir import Kernel, in_pieces, pair_softmax, row_of_pieces
from loop_ir.ir import Alike
from triton_emit.errors import BadSchedule
from triton_emit.forms.check import check
from triton_emit.forms.kernel import KernelWriter
from triton_emit.forms.lists import ListWriter, arguments_of, common, entry, list_form
from triton_emit.forms.lookback import LookbackWriter
from triton_emit.forms.looped import LoopedWriter
from triton_emit.forms.pairs import PairWriter
from triton_emit.forms.persistent import PersistentWriter, read_first
from triton_emit.forms.plane import PlaneWriter
from triton_emit.forms.shared import SharedWriter
from triton_emit.forms.totals import PlaneTotalsWriter, TotalsWriter
from triton_emit.forms.walk import WalkWriter
from triton_emit.idioms import cheaper
from triton_emit.intervals import in_32_bits
from triton_emit.joined_loads import join_loads
from triton_emit.schedule import Schedule, walks
from triton_emit.source import TritonKernel, as_of, module, with_buffers
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
    lacks, UnsupportedKernel when a loop would have to read what it overwrote."""
    kernel, form = _fitting(kernel if schedule.pairs else join_loads(kernel), schedule)
    return form(kernel, schedule).emit()


class Emitter:
    """`emit`, done once for kernels that are alike, as those of the layers of a model are: the
    others get the text with their own name and origins, and their buffers as arguments."""

    def __init__(self) -> None:
        self._alike = Alike()

    def __call__(self, kernel: Kernel, schedule: Schedule) -> TritonKernel:
        """What `emit` gives, and raises."""
        made = self._alike.once(
            ("emit", schedule), [kernel], lambda: emit(kernel, schedule), renamed=with_buffers
        )
        return as_of(made, kernel)


def emit_list(lists: Sequence[Sequence[Kernel]], schedules: Sequence[Schedule]) -> TritonKernel:
    """One Triton kernel that does what all of them do, named as the first. Those of each list are
    alike (`likeness`) and have its schedule, but for the warps, which are those of the schedule
    with the most; none needs what another does. Each argument of the table has eight bytes of the
    launch, and `TRITON_RT_ALIGNED` is what the launcher knows of all buffers. Raises what `emit`
    raises, and BadSchedule for schedules of which programs do pairs or tell each other
    something."""
    name = lists[0][0].name
    warps = max(s.num_warps for s in schedules)
    writers: list[ListWriter] = []
    functions: list[tuple[str, list[str]]] = []
    begin = place = 0
    for kernels, schedule in zip(lists, schedules, strict=True):
        if schedule.pairs or schedule.lookback or schedule.share > 1:
            raise BadSchedule(name, "pairs", 1, "False: a list of kernels has no pairs")
        first, values = common(kernels)
        first, form = _fitting(first, schedule)
        schedule = replace(schedule, num_warps=warps)
        writer = list_form(form)(first, kernels, values, schedule, begin, place)
        functions.append(writer.function(f"{name}_{len(writers)}"))
        begin, place = writer.starts[-1], place + writer.words
        writers.append(writer)
    signature, lines, words = entry(name, writers)
    origins = tuple(dict.fromkeys(o for kernels in lists for k in kernels for o in k.origins))
    if schedules[0].overlap:
        lines.insert(0, "tl.extra.cuda.gdc_wait()")
    functions.append((signature, lines))
    return TritonKernel(
        name=name,
        source=module(functions, replace(lists[0][0], origins=origins), arguments_of(name)),
        params=tuple((p, word.kind, word.written) for p, word in words.items()),
        args=tuple(word.value for word in words.values()),
        grid=(sympy.Integer(begin), sympy.S.One, sympy.S.One),
        constants=(("TRITON_RT_ALIGNED", 16),),
        num_warps=warps,
        num_stages=max(s.num_stages for s in schedules),
        schedule=replace(schedules[0], num_warps=warps),
    )


def _fitting(kernel: Kernel, schedule: Schedule) -> tuple[Kernel, type[KernelWriter]]:
    """The kernel as it is written, and its form."""
    kernel = clean(kernel)
    if schedule.kind == "looped" or schedule.share > 1:
        kernel = pair_softmax(
            kernel, schedule.share > 1
        )  # a row that is held whole is read once anyway
    kernel = cheaper(kernel)
    if schedule.index_bits == 32:
        kernel = in_32_bits(kernel)
    check(kernel, schedule)
    if schedule.share > 1:
        return kernel, SharedWriter
    if schedule.kind == "persistent" and row_of_pieces(kernel) > schedule.rblock:
        kernel = clean(in_pieces(kernel, schedule.rblock))
    if schedule.pairs:
        return kernel, PairWriter
    if schedule.kind in ("flat", "tiled") and any(p.axes for p in kernel.phases):
        return kernel, TotalsWriter if schedule.kind == "flat" else PlaneTotalsWriter
    if schedule.lookback:
        return kernel, LookbackWriter
    if schedule.kind == "persistent" and not walks(kernel):
        kernel = read_first(kernel, schedule)
    return kernel, WalkWriter if walks(kernel) else _FORMS[schedule.kind]
