"""Choosing among kernels that compute the same: by a cost model, by measuring, by what is known.

Candidates run in this process, or in workers that they may crash; results are kept on disk.
"""

from triton_rt.tuning.cost_model import Machine, Work
from triton_rt.tuning.options import Options
from triton_rt.tuning.pool import TuningPool
from triton_rt.tuning.store import Query, TuningStore
from triton_rt.tuning.tuned_kernel import Candidate, TunedKernel
from triton_rt.tuning.tuner import Tuned, autotune

__all__ = [
    "Candidate",
    "Machine",
    "Options",
    "Query",
    "Tuned",
    "TunedKernel",
    "TuningPool",
    "TuningStore",
    "Work",
    "autotune",
]
