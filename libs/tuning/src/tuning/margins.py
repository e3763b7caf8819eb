"""Every threshold by which a measured or predicted time decides."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Margins:
    """What a time must differ by to count, and why.

    Of candidates in one race:

    rounds: (runs of each candidate, then those within this factor of the best stay). One run tells
        a hopeless candidate from a good one, the later rounds noise from a difference.
    tie: within this factor of the fastest, the first candidate wins: noise decides little.
    near, near_ratio: at shapes no farther than this (1 is one size doubled), what was slower than
        the winner by this factor there is not measured here: neighbours differ by less.
    slow_seconds, slow_ratio: a call over a millisecond that takes three times the fastest's gets no
        second round: it cannot win, and costs as much as all others together.

    What replaces what would run otherwise, where noise is no gain:

    vendor: share by which a template must be faster than the vendor's call. Of 16 on an H200 that
        measured up to 3 % faster, none took over 0.6 % longer in bursts of calls.
    in_doubt: the same where the vendor's time is compared across two measurements.
    schedule: share by which a schedule must be faster than the one that was guessed.
    convolutions: share by which rearranged convolutions must be faster, copies included: times of
        the vendor's calls vary more than those of one kernel.
    streams: the same of branches that run beside each other, for calls of whole programs.
    vendor_call: seconds for which a vendor's matmul keeps the host that queues it, at least: 18 us
        beside an H200, where a launch kept it for 3.
    hardly: share by which a template may take the GPU longer where that is what a call waits for.
    host: seconds that a template must save, where Python calls it, for each launch beyond the
        first and each workspace: the host takes two to four microseconds for one.

    Neighbouring sizes that share a choice, so that there are fewer branches:

    rows: share by which a config may be slower than the best at each number of rows it serves
        (`choose_range`, which keeps few configs).
    rung: the same for the rungs of a compiled program, where a branch costs next to nothing."""

    rounds: tuple[tuple[int, float], ...] = ((1, 3.0), (2, 1.5), (4, 1.15))
    tie: float = 1.005
    near: float = 1.5
    near_ratio: float = 2.0
    slow_seconds: float = 1e-3
    slow_ratio: float = 3.0
    vendor: float = 0.01
    in_doubt: float = 0.01
    schedule: float = 0.02
    convolutions: float = 0.03
    streams: float = 0.02
    vendor_call: float = 9e-6
    hardly: float = 0.05
    host: float = 1e-6
    rows: float = 0.03
    rung: float = 0.02


#: Those in force.
MARGINS = Margins()
