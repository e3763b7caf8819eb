"""Whether the matmuls of a program should use templates that count in zeroed memory.

The memory is filled once a call for all of them (`planner.zeroed`)."""

import functools
from dataclasses import dataclass

import gemm_templates
from planner.plan import Condition
from symexpr import sstr
from tuning import MARGINS

# Seconds that filling a few bytes with zeros adds to a stream, measured on an H200.
FILL = 1.9e-6


@functools.lru_cache(maxsize=4096)
def wants_zeroed(problem: gemm_templates.Problem, config: gemm_templates.Config | None) -> bool:
    """Whether a template's kernels need such memory."""
    if config is None:
        return False
    return any(w.zeroed for w in gemm_templates.make_plan(problem, config).workspaces)


def wanting(choice: gemm_templates.Choice) -> set[str]:
    """The labels of measured candidates that need such memory. Their times are without a fill."""
    measured = dict(choice.times)
    return {
        c.label
        for c in choice.candidates
        if c.label in measured and wants_zeroed(choice.problem, c.config)
    }


NOT_PAID = "its counters would have to be zeroed, which takes longer than it saves"


def without(choice: gemm_templates.Choice, why: str = NOT_PAID) -> gemm_templates.Choice:
    """What had been chosen with no such memory; `why` that is."""
    out = wanting(choice)
    if not out:
        return choice
    return choice.among({label: time for label, time in choice.times if label not in out}, why)


def as_called(choice: gemm_templates.Choice) -> gemm_templates.Choice:
    """What is the fastest where the host queues each call. A vendor's call keeps it for
    `MARGINS.vendor_call` and more, a template for a launch: one that takes the GPU less counts as
    that, beside templates that take it hardly more."""
    times = dict(choice.times)
    vendor = times.get("extern", MARGINS.vendor_call)
    if vendor >= MARGINS.vendor_call:
        return choice
    most = vendor * (1 + MARGINS.hardly)
    times = {label: time for label, time in times.items() if time <= most}
    times["extern"] = MARGINS.vendor_call
    why = f"takes the GPU over {MARGINS.hardly:.0%} longer than the vendor's call"
    return choice.among(times, why, margin=0.0)


def saved(choice: gemm_templates.Choice) -> float:
    """Seconds by which what was chosen is faster than without such memory."""
    if not wants_zeroed(choice.problem, choice.config):
        return 0.0
    other, times = without(choice), dict(choice.times)
    label = "extern" if other.config is None else str(other.config)
    return max(0.0, times[label] - times[str(choice.config)])


@dataclass(frozen=True)
class Account:
    """Whether a program should zero memory: once a call, for all its matmuls together. saved:
    condition (of a range of sizes; None: all that no other condition tells) and seconds, of each
    matmul that would be faster with such memory."""

    saved: tuple[tuple[Condition, float], ...]

    def total(self, condition: Condition) -> float:
        """Seconds that zeroed memory saves where `condition` holds."""
        return sum(seconds for where, seconds in self.saved if where == condition)

    def pays(self, condition: Condition) -> bool:
        """Whether the matmuls save more than the fill takes; one that all sizes need serves every
        range of them."""
        return self.total(None) > FILL or self.total(condition) > FILL

    def lines(self) -> tuple[str, ...]:
        """For people: `counters for 3 matmuls: zeroing counts as 1.9 us a call; saves 4.2 us`."""
        found = []
        for condition in dict.fromkeys(where for where, _ in self.saved):
            count = sum(1 for where, _ in self.saved if where == condition)
            place = "" if condition is None else f"{sstr(condition)}: "
            does = "saves" if self.pays(condition) else "not used, would save"
            found.append(
                f"{place}counters for {count} matmul{'s' if count > 1 else ''}: zeroing counts as "
                f"{FILL * 1e6:.1f} us a call; {does} {self.total(condition) * 1e6:.1f} us"
            )
        return tuple(found)
