"""Choosing among kernels that compute the same, by measuring and by what is known.

Candidates run in this process, or in workers that they may crash; results are kept on disk."""

from tuning.margins import MARGINS as MARGINS
from tuning.margins import Margins as Margins
from tuning.options import Options as Options
from tuning.pool import TuningPool as TuningPool
from tuning.store import Query as Query
from tuning.store import TuningStore as TuningStore
from tuning.timer import Timer as Timer
from tuning.timer import added_seconds as added_seconds
from tuning.timer import time_ms as time_ms
from tuning.tuner import Tuned as Tuned
from tuning.tuner import autotune as autotune
