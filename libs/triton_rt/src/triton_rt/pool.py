"""Long-lived compile workers, talked to over pipes; and `compile`, which uses them if given."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

from triton_rt import wire
from triton_rt.binary import Binary
from triton_rt.claim import Busy, Claim
from triton_rt.config import worker_environment
from triton_rt.errors import WorkerFailed
from triton_rt.process import Died, WorkerProcess
from triton_rt.source import KernelSource
from triton_rt.target import Target


@dataclass
class _Job:
    request: bytes
    what: str
    future: Future[Binary]
    claim: Claim | None = None
    started: bool = False


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
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers: list[WorkerProcess | None] = [None] * n
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
        *,
        claim: Claim | None = None,
    ) -> Future[Binary]:
        """A compile job; its future raises what compiling in process would.

        `claim`: the cache entry to build. It is written before the future is done; while another
        process builds it, the workers go on with other jobs.
        """
        if self._closed:
            raise WorkerFailed("the pool is closed")
        future: Future[Binary] = Future()
        request = wire.encode_job(source, target, alignment, keep_ptx)
        self._jobs.put(_Job(request, f"{source.name} for {target}", future, claim))
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
            if not job.started and not job.future.set_running_or_notify_cancel():
                continue
            job.started = True
            try:
                binary = self._run(index, job)
            except Busy:
                self._jobs.put(job)
            except BaseException as error:
                # The thread serves others: the waiter of this job gets whatever happened to it.
                job.future.set_exception(error)
            else:
                job.future.set_result(binary)
        worker = self._workers[index]
        if worker is not None:
            worker.stop()

    def _run(self, index: int, job: _Job) -> Binary:
        if job.claim is None:
            return wire.decode_answer(self._ask(index, job.request, job.what))
        # A closed pool takes nothing back into its queue: there it waits for the other process.
        patience = None if self._closed else 0.2 if self._jobs.empty() else 0.01
        found = job.claim.take(patience)
        if found is not None:
            return found
        try:
            binary = wire.decode_answer(self._ask(index, job.request, job.what))
            job.claim.cache.put(job.claim.key, binary)
            return binary
        finally:
            job.claim.release()

    def _ask(self, index: int, request: bytes, what: str) -> bytes:
        reasons = []
        for _attempt in range(2):
            worker = self._workers[index]
            if worker is None:
                worker = self._workers[index] = WorkerProcess(
                    "triton_rt.worker", worker_environment()
                )
            try:
                return worker.ask(request, self.timeout)
            except Died as error:
                reasons.append(str(error))
                worker.stop()
                self._workers[index] = None
        raise WorkerFailed(
            f"compiling {what}: the worker failed twice: {'; then '.join(reasons)} "
            f"(timeout {self.timeout:g} s)"
        )
