"""Loop nests printed as Triton kernels.

The text is meant to be read: it is what a person would have written for this kernel and this
schedule, and it runs as it is under Triton and under Triton's interpreter."""

from triton_emit.candidates import as_kind, candidate_schedules
from triton_emit.emit import Emitter, emit, emit_list
from triton_emit.epilogue import emit_epilogue
from triton_emit.errors import (
    BadEpilogue,
    BadPrologue,
    BadSchedule,
    TritonEmitError,
    UnsupportedDType,
    UnsupportedKernel,
)
from triton_emit.forms.lists import likeness, list_schedule, words_of
from triton_emit.intervals import FITS
from triton_emit.prologue import emit_prologue
from triton_emit.schedule import Schedule, default_schedule, index_bits, size_in_32_bits
from triton_emit.scores import emit_scores
from triton_emit.source import EpilogueSource, PrologueSource, ScoreSource, TritonKernel

__all__ = [
    "FITS", "BadEpilogue", "BadPrologue", "BadSchedule", "Emitter", "EpilogueSource",
    "PrologueSource", "Schedule", "ScoreSource", "TritonEmitError", "TritonKernel",
    "UnsupportedDType", "UnsupportedKernel", "as_kind", "candidate_schedules", "default_schedule",
    "emit", "emit_epilogue", "emit_list", "emit_prologue", "emit_scores", "index_bits",
    "likeness", "list_schedule", "size_in_32_bits", "words_of",
]  # fmt: skip
