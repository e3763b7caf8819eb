"""Choosing among kernels that compute the same: by a cost model, by measuring, by what is known.

Candidates run in this process, or in workers that they may crash; results are kept on disk."""

from tuning.cost_model import Machine, Work
from tuning.margins import MARGINS, Margins
from tuning.options import Options
from tuning.pool import TuningPool
from tuning.store import Query, TuningStore
from tuning.timer import Timer, added_seconds, time_ms
from tuning.tuned_kernel import Candidate, TunedKernel
from tuning.tuner import Tuned, autotune

__all__ = [
    "MARGINS",
    "Candidate",
    "Machine",
    "Margins",
    "Options",
    "Query",
    "Timer",
    "Tuned",
    "TunedKernel",
    "TuningPool",
    "TuningStore",
    "Work",
    "added_seconds",
    "autotune",
    "time_ms",
]
