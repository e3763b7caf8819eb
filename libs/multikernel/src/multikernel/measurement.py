"""How variants are timed, and how much that may cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from multikernel.errors import InvalidOption, InvalidTime

Timer = Callable[[Callable[[], Any]], float]


def host_timer(call: Callable[[], Any]) -> float:
    """Seconds of one call: the best of up to 5 after one to warm up, by the host's clock, at
    most 20 ms in all (but one call). For work that runs asynchronously this measures the
    launch: give a timer that waits for the device."""
    call()
    best, spent = math.inf, 0.0
    for _ in range(5):
        start = perf_counter()
        call()
        time = perf_counter() - start
        best, spent = min(best, time), spent + time
        if spent > 0.02:
            break
    return max(best, 1e-9)  # a clock may stand still


@dataclass(frozen=True)
class Measurement:
    """How `select="measured"` measures.

    timer: runs its argument a few times and returns the seconds of one run.
    tolerance: a variant within this share of the fastest is as good (0.03: 3 %).
    resolution: buckets per octave of a size.
    buckets: cells decided at most, over all processes that share a store; then the table is
        full and answers without measuring.
    seconds: wall time one kernel may spend measuring in a process; the measurement that passes
        it is finished. A variant's first run (it may compile) is not counted.
    candidates: variants timed in one cell at most: the table's choice, then the nearest hints.
    copy: applied to each argument, to give those which timing runs on; needed where variants
        write into their arguments in a way that running twice changes.
    when: asked before measuring; False (while a CUDA graph is captured, say) runs the table's
        choice and measures another time."""

    timer: Timer = host_timer
    tolerance: float = 0.03
    resolution: int = 4
    buckets: int = 256
    seconds: float = 2.0
    candidates: int = 8
    copy: Callable[[Any], Any] | None = None
    when: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        for name in ("resolution", "buckets", "candidates"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name}={getattr(self, name)}: expected at least 1")
        if not (self.tolerance >= 0 and self.seconds >= 0):
            raise InvalidOption(
                f"tolerance={self.tolerance}, seconds={self.seconds}: expected at least 0"
            )

    def time(self, name: str, call: Callable[[], Any]) -> float:
        """Seconds of `call`. Raises InvalidTime where the timer does not give a time."""
        seconds = float(self.timer(call))
        if not (math.isfinite(seconds) and seconds > 0):
            raise InvalidTime(
                f"the timer gave {seconds} for variant {name}: expected seconds above 0"
            )
        return seconds
