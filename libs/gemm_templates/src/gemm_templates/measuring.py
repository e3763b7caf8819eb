"""How calls are timed: what each adds to a stream that is busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import quantiles
from time import perf_counter

import torch

from gemm_templates.device import DeviceInfo

_ROUNDS = 13  # with each way to fill the cache
_AHEAD = 50e-6  # s, what the host needs to queue the events and the fill of the cache
_FASTEST_CLOCK = 2.2e9  # Hz, no GPU's is higher
_BEFORE = 10_000  # cycles of the kernel before each call, about 5 us
_LEAST = 1e-7  # s, below what events can tell apart
_SLOW = 1e-3  # s, and three times the fastest's: not worth another call


def measure(runs: Sequence[Callable[[], object]], info: DeviceInfo) -> list[float]:
    """Seconds that each adds to a stream that is busy before it, with nothing of its own in the L2
    cache.

        event, spin, event        -> t0
        event, spin, run, event   -> t0 + its seconds

    As in a model, what a launch costs between two kernels counts as far as it does not overlap the
    kernel before, here one that spins on one multiprocessor for a fixed number of cycles. All are
    taken in turns so that clocks that drift hit all alike. The GPU waits until the host has queued
    the whole round, so that neither what a call costs the host, nor the host's work on the next
    one, is charged to it; and each round begins with another call, so that no place in the round is
    any call's own.

    In half of the rounds the cache is full of what was read, in the others of what was filled and
    goes to memory while the call runs; the seconds are the mean of both. By the times of 21
    problems on an H200 that takes what in bursts of calls is within 3 % of the fastest, and no
    slower than the vendor's; the first alone took one that was 5 % slower, the second hid gains of
    5 %.

    What is `out_of_reach` by one call each keeps the seconds of that call, or of a second one if
    that is faster. Where other programs use the GPU too, their turns come between: they only ever
    add time, and longer calls meet more of them, so that of all rounds the lower quartile counts.
    """
    other = torch.zeros(max(2 * info.l2_bytes, 128 << 20) // 4, device="cuda")
    total = torch.empty((), device="cuda")
    flushes: tuple[Callable[[], object], ...] = (
        lambda: torch.sum(other, dim=0, out=total), other.zero_,
    )  # fmt: skip
    for run in (*flushes, *runs):
        run()
    torch.cuda.synchronize()
    timed = [_once(run) for run in runs]
    host, once = max((h for _, h in timed), default=0.0), [seconds for seconds, _ in timed]
    for i in out_of_reach(once):
        once[i] = min(once[i], _once(runs[i])[0])
    slow = out_of_reach(once)
    both: list[Callable[[], object]] = [_nothing, *(r for i, r in enumerate(runs) if i not in slow)]
    cycles = int(len(both) * (2 * host + _AHEAD) * _FASTEST_CLOCK)
    added = zip(*(_added(both, flush, cycles) for flush in flushes), strict=True)
    return [
        once[i] if i in slow else max(sum(next(added)) / len(flushes), _LEAST)
        for i in range(len(runs))
    ]


def _once(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, and of the host's part in it."""
    start, end = _event(), _event()
    start.record()
    began = perf_counter()
    run()
    host = perf_counter() - began
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3, host


def out_of_reach(once: Sequence[float]) -> set[int]:
    """Which calls one time each rules out: over a millisecond and three times the fastest.

    [0.0002, 0.0009, 0.015, 0.0011] -> {2, 3}
    [0.020, 0.025, 0.061] -> {2}
    """
    limit = max(_SLOW, 3 * min(once, default=0.0))
    return {i for i, seconds in enumerate(once) if seconds > limit}


def _added(
    both: Sequence[Callable[[], object]], flush: Callable[[], object], cycles: int
) -> list[float]:
    """Seconds of each but the first, less those of the first."""
    samples: list[list[float]] = [[] for _ in both]
    for number in range(_ROUNDS):
        events = [(_event(), _event()) for _ in both]
        _spin(cycles)
        for i in turns(number, len(both)):
            start, end = events[i]
            flush()
            start.record()
            _spin(_BEFORE)
            both[i]()
            end.record()
        torch.cuda.synchronize()
        for times, (start, end) in zip(samples, events, strict=True):
            times.append(start.elapsed_time(end) * 1e-3)
    alone, *seconds = [quantiles(times, n=4)[0] for times in samples]
    return [s - alone for s in seconds]


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _nothing() -> None:
    pass


def turns(number: int, count: int) -> list[int]:
    """The order of a round: `turns(1, 3) -> [1, 2, 0]`."""
    return [(number + i) % count for i in range(count)]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
