"""Who compiles a kernel: one at a time, across threads and processes that share a cache."""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from triton_rt.compiler.binary import Binary
from triton_rt.compiler.cache import Cache
from triton_rt.errors import WorkerFailed

#: Seconds to wait for another process that compiles the same kernel, before compiling it here too.
LOCK_SECONDS = 300.0
_POLL = 0.01


class Busy(Exception):
    """Another process is compiling this kernel."""


class Claim:
    """The right to build one cache entry: an exclusive lock on `KEY.lock` beside it.

    `flock` ends with the process that holds it, so a crash leaves nothing stale. Where a file
    cannot be locked (a read-only folder, a file system without locks) every claim is granted: the
    same kernel may then be compiled twice, which is slower and not wrong."""

    def __init__(self, cache: Cache, key: str, timeout: float = LOCK_SECONDS) -> None:
        self.cache = cache
        self.key = key
        self.file = cache.file(key).with_suffix(".lock")
        self.deadline = time.monotonic() + timeout
        self._handle: int | None = None

    def take(self, seconds: float | None = None) -> Binary | None:
        """The entry, if another process built it; None if it is ours to build, until `release`.

        Raises `Busy` if after `seconds` (default: no limit) it is still being built elsewhere.
        Past the claim's own timeout it is ours in any case."""
        end = self.deadline if seconds is None else time.monotonic() + seconds
        while not self._lock():
            now = time.monotonic()
            if now >= self.deadline:
                return None
            if now >= end:
                raise Busy
            time.sleep(_POLL)
        found = self.cache.get(self.key) if self.cache.file(self.key).exists() else None
        if found is not None:
            self.release()
        return found

    def build(self, make: Callable[[], Binary], seconds: float | None = None) -> Binary:
        """The entry: what another process built, or what `make` gives, written before others may
        build it. Raises what `take` and `make` do."""
        found = self.take(seconds)
        if found is not None:
            return found
        try:
            binary = make()
            self.cache.put(self.key, binary)
            return binary
        finally:
            self.release()

    def release(self) -> None:
        """Gives the claim up; the entry, if there is one, is written by now."""
        if self._handle is not None:
            self.file.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def _lock(self) -> bool:
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError:
            os.close(handle)
            return True
        # The holder before us unlinked the file: a lock on that one excludes nobody.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(handle), self.file.stat()):
                self._handle = handle
                return True
        os.close(handle)
        return False


class Flights:
    """Compilations under way in this process: the same job asked for twice is done once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._futures: dict[Any, Future[Binary]] = {}

    def at_forks(self) -> None:
        """From now on, a forked child has none of the compilations under way: their threads are
        the parent's. Who waits for one there gets a `WorkerFailed`, and may ask again."""
        os.register_at_fork(
            before=self._lock.acquire,
            after_in_parent=self._lock.release,
            after_in_child=self._forget,
        )

    def _forget(self) -> None:
        futures = list(self._futures.values())
        self._futures.clear()
        self._lock.release()
        for future in futures:
            abandon(future, WorkerFailed("this process was forked while the kernel was compiled"))

    def join(self, key: Any) -> tuple[Future[Binary], bool]:
        """The future of a job, and whether the caller is the one who has to do it."""
        with self._lock:
            found = self._futures.get(key)
            if found is not None:
                return found, False
            future = self._futures[key] = Future()
            return future, True

    def land(self, key: Any, result: Binary | BaseException) -> None:
        """Ends a job. Whoever asks from now on starts anew (or finds the entry in the cache)."""
        with self._lock:
            future = self._futures.pop(key, None)
        if future is not None and not future.done():  # else forked meanwhile
            settle(future, result)


def settle(future: Future[Binary], result: Binary | BaseException) -> None:
    """Gives a future its result, or its error."""
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def abandon(future: Future[Binary], error: Exception) -> None:
    """Fails a future in a forked child, where the thread that would end it is gone. One that the
    parent's threads were touching as it forked stays as it is: its lock is held for good."""
    if not future._condition.acquire(blocking=False):
        return
    future._condition.release()
    if not future.done():
        future.set_exception(error)


def follow(shared: Future[Binary]) -> Future[Binary]:
    """A future of one's own, whose cancellation is nobody else's."""
    own: Future[Binary] = Future()

    def pass_on(done: Future[Binary]) -> None:
        if own.set_running_or_notify_cancel():
            settle(own, done.exception() or done.result())

    shared.add_done_callback(pass_on)
    return own
