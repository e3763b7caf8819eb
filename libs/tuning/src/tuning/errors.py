"""Errors of tuning, beside those of triton_rt: one class per mistake."""

from triton_rt.errors import TritonRTError


class TuningError(TritonRTError):
    """Base of what is wrong with a candidate, or with its tuning."""


class CandidateCrashed(TuningError):
    """A candidate ended its worker, or left its CUDA context broken (an illegal address)."""


class CandidateHung(TuningError):
    """A candidate ran longer than the pool allows; its worker was killed."""


class WrongResult(TuningError):
    """A candidate's outputs differ from the reference candidate's by more than the tolerance."""


class CorruptedMemory(TuningError):
    """A candidate wrote outside of its arguments, or to one that it does not declare mutated."""


class UnportableArgument(TuningError):
    """An argument that cannot be recreated in a worker: tune that kernel in process."""


class CorruptTuningRecord(UserWarning):
    """A stored tuning result whose checksum or fields are wrong: dropped, and measured again."""
