"""What is done when, in a program whose ops run on several streams (`StreamSwitch`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from wrapper_ir import ops as ir

_MOST = 32  # of torch's, which has so many
_START = 1  # of the stream of the call: what a program is given is there
Time = tuple[int, int]  # a stream, and how many ops it was given by then


@dataclass
class Order:
    """Which accesses to a storage are done before others, for ops that are told in order of the
    program. Each method says what is wrong, or nothing.

    A storage is freed on the stream of the call, when that has waited for all that used it. Who
    makes a storage elsewhere has waited for the stream of the call since: memory that was freed may
    be what it gets."""

    current: int = 0
    given: dict[int, int] = field(default_factory=lambda: defaultdict(int, {0: _START}))
    waited: dict[int, dict[int, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    writes: dict[str, Time] = field(default_factory=dict)
    reads: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    freed: int = _START

    def _done(self, stream: int, count: int) -> bool:
        return stream == self.current or self.waited[self.current][stream] >= count

    def move(self) -> str:
        """What follows runs on another device, on the stream of the call."""
        return "" if self.given.keys() == {0} else "streams are those of one device"

    def switch(self, op: ir.StreamSwitch) -> str:
        """What follows runs there."""
        self.current = op.stream
        self.given[op.stream] += 0
        return "" if 0 <= op.stream < _MOST else f"a program has {_MOST} streams at most"

    def wait(self, op: ir.StreamWait) -> str:
        """The current stream waits for another, and so for all that this has waited for."""
        if op.stream == self.current or not 0 <= op.stream < _MOST:
            return f"stream {op.stream} waits for itself, or is none of {_MOST}"
        mine = self.waited[self.current]
        for stream, count in (*self.waited[op.stream].items(), (op.stream, self.given[op.stream])):
            mine[stream] = max(mine[stream], count)
        return ""

    def access(self, read: list[str], written: list[str]) -> str:
        """The current stream is given an op that reads and writes these storages."""
        self.given[self.current] += 1
        now = self.given[self.current]
        for storage in (*read, *written):
            if not self._done(*self.writes.get(storage, (0, _START))):
                return f"{storage} is not written yet on stream {self.current}"
        for storage in read:
            self.reads[storage][self.current] = now
        for storage in written:
            if not all(self._done(*use) for use in self.reads[storage].items()):
                return f"{storage} may still be read when stream {self.current} writes to it"
            self.writes[storage] = self.current, now
            self.reads[storage] = {}
        return ""

    def make(self, storage: str) -> str:
        """The current stream is the first to use a storage."""
        if not self._done(0, self.freed):
            return f"the memory of {storage} may be what stream 0 still uses"
        self.writes[storage] = self.current, self.given[self.current]
        return ""

    def _idle(self, storage: str) -> bool:
        uses = (*self.reads[storage].items(), self.writes.get(storage, (0, _START)))
        return all(self._done(*use) for use in uses)

    def free(self, storage: str) -> str:
        """The storage ends."""
        if self.current != 0 or not self._idle(storage):
            return f"{storage} may still be in use on another stream than that of the call"
        self.given[0] += 1
        self.freed = self.given[0]
        return ""

    def reuse(self, old: str, new: str) -> str:
        """The memory of one storage is another's."""
        self.writes[new] = self.current, self.given[self.current]
        return "" if self._idle(old) else f"{old} may still be in use on another stream"

    def end(self) -> str:
        """The program returns."""
        if self.current != 0:
            return f"stream {self.current} is current"
        late = [s for s, count in self.given.items() if not self._done(s, count)]
        return f"streams {late} are not done" if late else ""
