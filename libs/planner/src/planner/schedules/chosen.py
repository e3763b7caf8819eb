"""The schedule that was chosen for a kernel, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from triton_emit import Schedule
from tuning import MARGINS

#: Why a guess stays one that a later compilation, which finds candidates compiled, may measure.
NO_TIME = "no time left"


@dataclass(frozen=True)
class Chosen:
    """The schedule of a kernel and where it is from. times: seconds by schedule, the guess first;
    empty where nothing was measured, and `why` says why. failures: schedules that did not compile,
    launch or agree with the guess."""

    schedule: Schedule
    guess: Schedule
    how: Literal["guess", "measured", "stored"] = "guess"
    times: tuple[tuple[Schedule, float], ...] = ()
    failures: tuple[tuple[Schedule, str], ...] = ()
    why: str = ""

    @property
    def lost(self) -> float:
        """By how much the guess is slower than the fastest: 0.05 for 5 %."""
        known = [t for _, t in self.times if t < math.inf]
        return self.times[0][1] / min(known) - 1 if known else 0.0

    def __str__(self) -> str:
        if not self.times:
            return f"{label(self.schedule)} (guess: {self.why})"
        times = dict(self.times)
        text = f"{label(self.schedule)} {_us(times[self.schedule])} ({self.how}"
        if self.schedule == self.guess:
            text += ", the guess"
        rest = [f"{label(s)} {_us(t)}" for s, t in self.times if s != self.schedule]
        rest += [f"{label(s)} failed: {why}" for s, why in self.failures]
        return f"{text}); {'; '.join(rest)}" if rest else f"{text})"


def _us(seconds: float) -> str:
    return "slow" if seconds == math.inf else f"{seconds * 1e6:.1f} us"


def label(schedule: Schedule) -> str:
    """`persistent x2 r1024 w4`: what tells the schedules of one kernel apart."""
    blocks = (("x", schedule.xblock), ("y", schedule.yblock), ("r", schedule.rblock))
    parts = [f"{name}{size}" for name, size in blocks if name == "x" or size != 1]
    parts.append(f"w{schedule.num_warps}")
    parts += [f"s{schedule.num_stages}"] if schedule.num_stages != 1 else []
    parts += [f"t{schedule.steps}"] if schedule.steps != 1 else []
    parts += [f"l{schedule.lookback}"] if schedule.lookback else []
    parts += [f"p{schedule.share}"] if schedule.share != 1 else []
    parts += [f"v{schedule.vector}"] if schedule.vector else []
    parts += ["pairs"] if schedule.pairs else []
    return " ".join((schedule.kind, *parts))


def decide(
    guess: Schedule,
    times: Sequence[tuple[Schedule, float]],
    how: Literal["measured", "stored"],
    failures: Sequence[tuple[Schedule, str]] = (),
) -> Chosen:
    """The fastest, where it is `MARGINS.schedule` faster than the guess."""
    known = {guess: math.inf, **dict(times)}
    best = min(known, key=lambda s: known[s])
    if known[best] > (1 - MARGINS.schedule) * known[guess]:
        best = guess
    return Chosen(best, guess, how, tuple(known.items()), tuple(failures))
