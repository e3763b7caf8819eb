"""Long-lived compile workers, talked to over pipes; and `compile`, which uses them if given."""

from __future__ import annotations

import contextlib
import queue
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType
from typing import IO

from triton_rt import wire
from triton_rt.binary import Binary
from triton_rt.config import worker_environment
from triton_rt.errors import WorkerFailed
from triton_rt.source import KernelSource
from triton_rt.target import Target

_LENGTH = struct.Struct("<Q")


class _Died(Exception):
    """A worker closed its pipe, or exceeded its time."""


class _Worker:
    """One `python -m triton_rt.worker`, which answers one job at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "triton_rt.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_environment(),
        )

    def ask(self, request: bytes, timeout: float) -> bytes:
        assert self.process.stdin is not None and self.process.stdout is not None
        deadline = time.monotonic() + timeout
        try:
            self.process.stdin.write(_LENGTH.pack(len(request)) + request)
            self.process.stdin.flush()
        except OSError as error:
            raise _Died(f"its input is closed ({error}), exit code {self._exit_code()}") from None
        size = _LENGTH.unpack(self._read(self.process.stdout, _LENGTH.size, deadline))[0]
        return self._read(self.process.stdout, size, deadline)

    def _read(self, pipe: IO[bytes], count: int, deadline: float) -> bytes:
        chunks: list[bytes] = []
        with DefaultSelector() as selector:
            selector.register(pipe, EVENT_READ)
            while count:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise _Died("it did not answer in time")
                # read1 returns what is there: no other reader, and no buffering past a message
                chunk = pipe.read1(count)  # type: ignore[attr-defined]
                if not chunk:
                    raise _Died(f"it exited with code {self._exit_code()}")
                chunks.append(chunk)
                count -= len(chunk)
        return b"".join(chunks)

    def _exit_code(self) -> int | None:
        try:
            return self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                # Closing flushes, into the pipe of a dead process.
                with contextlib.suppress(OSError):
                    pipe.close()


class CompilePool:
    """`n` worker processes, started when first needed and kept until `close()`.

    A worker that dies, or takes longer than `timeout` seconds for a job, is replaced and the job
    is tried once more; a second failure is a `WorkerFailed` on that job alone. Workers run an
    entry point of this library: the user's script is never imported again.
    """

    def __init__(self, n: int, timeout: float = 300.0) -> None:
        if n < 1:
            raise ValueError(f"a pool needs at least one worker, got {n}")
        self.timeout = timeout
        self._jobs: queue.SimpleQueue[tuple[bytes, str, Future[Binary]] | None] = (
            queue.SimpleQueue()
        )
        self._workers: list[_Worker | None] = [None] * n
        self._threads = [
            threading.Thread(target=self._serve, args=(i,), daemon=True, name=f"triton_rt-pool-{i}")
            for i in range(n)
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        source: KernelSource,
        target: Target,
        alignment: int | None = None,
        keep_ptx: bool = False,
    ) -> Future[Binary]:
        """A compile job; its future raises what compiling in process would."""
        if self._closed:
            raise WorkerFailed("the pool is closed")
        future: Future[Binary] = Future()
        request = wire.encode_job(source, target, alignment, keep_ptx)
        self._jobs.put((request, f"{source.name} for {target}", future))
        return future

    def close(self) -> None:
        """Finishes the queued jobs, then stops the workers."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, index: int) -> None:
        while (job := self._jobs.get()) is not None:
            request, what, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(wire.decode_answer(self._ask(index, request, what)))
            except BaseException as error:
                # The thread serves others: the waiter of this job gets whatever happened to it.
                future.set_exception(error)
        worker = self._workers[index]
        if worker is not None:
            worker.stop()

    def _ask(self, index: int, request: bytes, what: str) -> bytes:
        reasons = []
        for _attempt in range(2):
            worker = self._workers[index]
            if worker is None:
                worker = self._workers[index] = _Worker()
            try:
                return worker.ask(request, self.timeout)
            except _Died as error:
                reasons.append(str(error))
                worker.stop()
                self._workers[index] = None
        raise WorkerFailed(
            f"compiling {what}: the worker failed twice: {'; then '.join(reasons)} "
            f"(timeout {self.timeout:g} s)"
        )
