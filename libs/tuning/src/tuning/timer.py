"""How calls are timed. By what is asked there are three ways:

`Timer`: each launch alone with a cold L2 cache, as candidates of a race are compared.
`added_seconds`: what each call adds to a stream that is busy before it, as in a model; in turns.
`time_ms`: whole calls with warm caches, the work of the host included."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from tuning import saved
from tuning.margins import MARGINS

#: Longest head start given to the host, in cycles: about 0.1 s.
_MAX_HEAD_START = 200_000_000

_ROUNDS = 13  # by default, with each way to fill the cache
_AHEAD = 50e-6  # s, what the host needs to queue the events and the fill of the cache
_FASTEST_CLOCK = 2.2e9  # Hz, no GPU's is higher
_BEFORE = 10_000  # cycles of the kernel before each call, about 5 us
_LEAST = 1e-7  # s, below what events can tell apart


class Timer:
    """Times launches on the current stream of a device, each after its L2 was overwritten.

    The stream is kept busy until the host has queued every launch of a batch, which the first
    event proves: the time from event to event is the device's alone. `flush_bytes`: default is
    twice the L2. `close` gives the memory back."""

    def __init__(self, device: torch.device, flush_bytes: int | None = None) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.flush_bytes = 2 * properties.L2_cache_size if flush_bytes is None else flush_bytes
        self._flush = 0
        self._head_start = 2_000_000
        if self.flush_bytes:
            self._flush = saved.allocate(self.flush_bytes)
            if not self._flush:
                # Cached blocks that no tensor uses are the one reserve that may be taken.
                torch.cuda.empty_cache()
                self._flush = saved.allocate(self.flush_bytes)
            if not self._flush:
                raise torch.OutOfMemoryError(
                    f"tuning needs {self.flush_bytes} bytes on {device} to overwrite its L2 cache"
                )

    def run(
        self, launch: Callable[[], object], prepare: Callable[[], object], runs: int
    ) -> list[float]:
        """Milliseconds of `runs` launches, `prepare` before each outside of the time."""
        pairs = [(_event(), _event()) for _ in range(runs)]
        while True:
            _spin(self._head_start)
            for begin, end in pairs:
                prepare()
                if self._flush:
                    saved.fill(self._flush, self.flush_bytes)
                begin.record()
                launch()
                end.record()
            ahead = not pairs[0][0].query()  # type: ignore[no-untyped-call]  # torch's own
            pairs[-1][1].synchronize()
            if ahead or self._head_start >= _MAX_HEAD_START:
                return [float(begin.elapsed_time(end)) for begin, end in pairs]
            self._head_start *= 4

    def close(self) -> None:
        """Once the device has done with the last batch."""
        if self._flush:
            saved.release(self._flush)
            self._flush = 0


def added_seconds(
    runs: Sequence[Callable[[], object]], l2_bytes: int, rounds: int = _ROUNDS
) -> list[float]:
    """Seconds that each call adds to a stream that is busy before it, with nothing of its own in
    the L2 cache, of `l2_bytes` bytes. rounds: with each way to fill that, at least 2; fewer do
    where many such times are added up.

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
    other = torch.zeros(max(2 * l2_bytes, 128 << 20) // 4, device="cuda")
    total = torch.empty((), device="cuda")

    def read() -> object:
        return torch.sum(other, dim=0, out=total)

    flushes: tuple[Callable[[], object], ...] = (read, other.zero_)
    for run in (*flushes, *runs):
        run()
    torch.cuda.synchronize()
    timed = [_once(run) for run in runs]
    host, once = max((h for _, h in timed), default=0.0), [seconds for seconds, _ in timed]
    for i in out_of_reach(once):
        once[i] = min(once[i], _once(runs[i])[0])
    slow = out_of_reach(once)
    both: list[Callable[[], object]] = [
        lambda: None,
        *(r for i, r in enumerate(runs) if i not in slow),
    ]
    cycles = int(len(both) * (2 * host + _AHEAD) * _FASTEST_CLOCK)
    added = zip(*(_added(both, flush, cycles, rounds) for flush in flushes), strict=True)
    return [
        once[i] if i in slow else max(sum(next(added)) / len(flushes), _LEAST)
        for i in range(len(runs))
    ]


def _once(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, and of the host's part in it."""
    start, end = _event(), _event()
    start.record()
    began = time.perf_counter()
    run()
    host = time.perf_counter() - began
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3, host


def out_of_reach(once: Sequence[float]) -> set[int]:
    """Which calls one time each rules out: over a millisecond and three times the fastest.

    [0.0002, 0.0009, 0.015, 0.0011] -> {2, 3}
    [0.020, 0.025, 0.061] -> {2}
    """
    limit = max(MARGINS.slow_seconds, MARGINS.slow_ratio * min(once, default=0.0))
    return {i for i, seconds in enumerate(once) if seconds > limit}


def _added(
    both: Sequence[Callable[[], object]], flush: Callable[[], object], cycles: int, rounds: int
) -> list[float]:
    """Seconds of each but the first, less those of the first."""
    samples: list[list[float]] = [[] for _ in both]
    for number in range(rounds):
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
    alone, *seconds = [statistics.quantiles(times, n=4)[0] for times in samples]
    return [s - alone for s in seconds]


def turns(number: int, count: int) -> list[int]:
    """The order of a round: `turns(1, 3) -> [1, 2, 0]`."""
    return [(number + i) % count for i in range(count)]


def time_ms(call: Callable[[], object], device: torch.device) -> float:
    """Median milliseconds of a call, after one warm-up; the caches stay warm. On a GPU the time
    between CUDA events; at most 100 runs in a second, at least 3 (1 if that takes longer)."""
    call()
    times: list[float] = []
    spent = 0.0
    while len(times) < 100 and (spent < 1.0 or 0 < len(times) < 3):
        if device.type == "cuda":
            begin, end = _event(), _event()
            begin.record()
            call()
            end.record()
            end.synchronize()
            ms = begin.elapsed_time(end)
        else:
            start = time.perf_counter()
            call()
            ms = (time.perf_counter() - start) * 1e3
        times.append(ms)
        spent += ms / 1e3
        if ms > 1e3:
            break
    return statistics.median(times)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def _spin(cycles: int) -> None:
    """Keeps one multiprocessor busy for so many cycles of the clock."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch's own
