"""Time of one launch, as it will be deployed: nothing between the events but the launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from triton_rt.tuning import saved

#: Longest head start given to the host, in cycles: about 0.1 s.
_MAX_HEAD_START = 200_000_000


class Timer:
    """Times launches on the current stream of a device, each after its L2 was overwritten.

    The stream is kept busy until the host has queued every launch of a batch, which the first
    event proves: the time from event to event is the device's alone. `flush_bytes`: default is
    twice the L2. `close` gives the memory back.
    """

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
        event = torch.cuda.Event
        pairs = [
            (event(enable_timing=True), event(enable_timing=True))  # type: ignore[no-untyped-call]
            for _ in range(runs)
        ]
        while True:
            torch.cuda._sleep(self._head_start)  # type: ignore[no-untyped-call]
            for begin, end in pairs:
                prepare()
                if self._flush:
                    saved.fill(self._flush, self.flush_bytes)
                begin.record()
                launch()
                end.record()
            ahead = not pairs[0][0].query()  # type: ignore[no-untyped-call]
            pairs[-1][1].synchronize()
            if ahead or self._head_start >= _MAX_HEAD_START:
                return [float(begin.elapsed_time(end)) for begin, end in pairs]
            self._head_start *= 4

    def close(self) -> None:
        """Once the device has done with the last batch."""
        if self._flush:
            saved.release(self._flush)
            self._flush = 0
