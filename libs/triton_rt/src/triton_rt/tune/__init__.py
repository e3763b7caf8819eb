"""Choosing among kernels that compute the same: by a cost model, by measuring, by what is known.

Candidates run in this process, or in workers that they may crash; results are kept on disk.
"""

from triton_rt.tune.kernel import Candidate, TunedKernel
from triton_rt.tune.model import Machine, Work
from triton_rt.tune.pool import TuningPool
from triton_rt.tune.store import TuningStore
from triton_rt.tune.tuner import Options, Tuned, autotune

__all__ = [
    "Candidate",
    "Machine",
    "Options",
    "Tuned",
    "TunedKernel",
    "TuningPool",
    "TuningStore",
    "Work",
    "autotune",
]
