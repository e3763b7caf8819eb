"""Compile jobs for worker processes: a pool of one's own, or a share of the process's."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from triton_rt.compiler.binary import Binary
from triton_rt.compiler.messages import Asked, decode_answer, encode_job
from triton_rt.compiler.one_build_at_a_time import Busy, Claim, abandon, settle
from triton_rt.compiler.target import Target
from triton_rt.compiler.workers import Server, Share, Workers
from triton_rt.config import worker_environment
from triton_rt.errors import WorkerFailed
from triton_rt.source import KernelSource

#: Seconds after which an idle worker of the process ends: the next compile finds it warm,
#: a process that only runs what it compiled gives the memory back.
IDLE_SECONDS = 60.0


class CompilePool:
    """At most `n` compile jobs at a time, each in a worker process.

    `workers`: whose they are. By default the pool's own, started as jobs come and kept until
    `close()`; those of `shared_pool` outlive it. A worker that dies, or takes longer than
    `timeout` seconds for a job, is replaced and the job is tried once more; a second failure is a
    `WorkerFailed` on that job alone. Workers run an entry point of this library: the user's
    script is never imported again."""

    def __init__(self, n: int, timeout: float = 300.0, workers: Workers | None = None) -> None:
        if n < 1:
            raise ValueError(f"a pool needs at least one worker, got {n}")
        self.timeout = timeout
        self.workers = Workers() if workers is None else workers
        self._own = workers is None
        self._share = Share(n)
        self._closed = False
        self.workers.allow(n)

    def start(self, n: int = 1) -> None:
        """Begins to start `n` workers (no more than the pool may use), if there are fewer."""
        self.workers.start(min(n, self._share.n))

    def submit(
        self,
        source: KernelSource,
        target: Target,
        alignment: int | None = None,
        keep_ptx: bool = False,
        *,
        claim: Claim | None = None,
        fingerprint: str = "",
    ) -> Future[Binary]:
        """A compile job; its future raises what compiling in process would.

        `claim`: the cache entry to build. It is written before the future is done; while another
        process builds it, the workers go on with other jobs. `fingerprint`: of the source as this
        process has it. A worker that imported other text of a module is replaced; what no new
        process finds as it is here is compiled here."""
        if self._closed:
            raise WorkerFailed("the pool is closed")
        asked = (source, target, alignment, keep_ptx)
        environment = worker_environment()
        job = _Job(self._share, asked, fingerprint, claim, environment, self.timeout, Future())
        self.workers.submit(job)
        return job.future

    def close(self) -> None:
        """Waits for the pool's jobs; stops the workers if they are its own."""
        self._closed = True
        with self._share.ended:
            self._share.ended.wait_for(lambda: self._share.pending == 0)
        if self._own:
            self.workers.close()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_SHARED = Workers(IDLE_SECONDS)
atexit.register(_SHARED.kill)


def shared_workers() -> Workers:
    """The workers of this process: none until a pool asks, and gone when idle for a minute."""
    return _SHARED


def shared_pool(n: int, timeout: float = 300.0) -> CompilePool:
    """A pool of up to `n` of the workers that all of this process shares: there are as many as
    the largest `n` asked for, and what one caller started, the next finds warm."""
    return CompilePool(n, timeout, _SHARED)


@dataclass(eq=False)
class _Job:
    share: Share
    asked: Asked
    fingerprint: str
    claim: Claim | None
    environment: Mapping[str, str]
    timeout: float
    future: Future[Binary]
    started: bool = False

    def run(self, server: Server) -> bool:
        if not self.started and not self.future.set_running_or_notify_cancel():
            return False
        self.started = True
        try:
            settle(self.future, self._build(server))
        except Busy:
            return True
        except BaseException as error:
            # The thread serves others: the waiter of this job gets whatever happened to it.
            settle(self.future, error)
        return False

    def abandon(self, error: WorkerFailed) -> None:
        abandon(self.future, error)

    def _build(self, server: Server) -> Binary:
        if self.claim is None:
            return self._compile(server)
        wait = 0.01 if server.workers.crowded() else 0.2
        return self.claim.build(lambda: self._compile(server), wait)

    def _compile(self, server: Server) -> Binary:
        found = self._ask(server, self.fingerprint)
        if found is None:
            server.stop()  # it has imported what has changed since
            found = self._ask(server, self.fingerprint)
        if found is not None:
            return found
        from triton_rt.compiler import stages  # Triton, which most processes leave to the workers

        if not stages.in_process():
            found = self._ask(server, "")
            assert found is not None, "a worker that was asked for any text"
            return found
        return stages.compile_here(*self.asked)

    def _ask(self, server: Server, fingerprint: str) -> Binary | None:
        request = encode_job(self.asked, fingerprint)
        what = f"{self.asked[0].name} for {self.asked[1]}"
        return decode_answer(server.ask(request, self.environment, self.timeout, what))
