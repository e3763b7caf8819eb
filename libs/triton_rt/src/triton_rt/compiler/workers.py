"""Worker processes that several pools share: started as jobs come, kept warm, ended when idle."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from triton_rt.config import worker_environment
from triton_rt.errors import WorkerFailed
from triton_rt.worker_process import Died, WorkerProcess


class Share:
    """What a user of `Workers` may take: at most `n` of them at a time.

    running, pending: its jobs that a worker has, and all that have not ended."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.running = 0
        self.pending = 0
        self.ended = threading.Condition(_LOCK)  # told when `pending` is 0


class Job(Protocol):
    """`run` raises nothing, and says whether the job goes back into the queue."""

    share: Share

    def run(self, server: Server) -> bool:
        """Does the job with a server's worker; True where it has to be queued again."""

    def abandon(self, error: WorkerFailed) -> None:
        """Tells whoever waits for the job that nobody will do it, and why."""


class Workers:
    """Compile workers: `start` and `submit` start them, up to `limit`.

    A job goes to the worker that served last: it has loaded most, and those that are not needed
    stay idle. One that is idle for `idle` seconds (None: never) ends, process and thread. After a
    fork the child has none of them; jobs under way fail there, and new ones start new workers.

    >>> workers = Workers(idle=60.0)
    >>> workers.limit, workers.pids
    (0, [])
    >>> workers.close()
    """

    def __init__(self, idle: float | None = None) -> None:
        self.idle = idle
        self.limit = 0
        self._queue: deque[Job] = deque()
        self._servers: set[Server] = set()
        self._waiting: list[Server] = []  # the last one served last
        self._closed = self._killed = False
        _ALL.add(self)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that are there now, ascending."""
        with _LOCK:
            workers = [server.worker for server in self._servers]
        return sorted(w.process.pid for w in workers if w is not None and w.alive())

    def allow(self, n: int) -> None:
        """From now on, up to `n` workers; never fewer than before."""
        with _LOCK:
            self.limit = max(self.limit, n)

    def start(self, n: int) -> None:
        """Sees to it that there are `n` workers (no more than `limit`), and does not wait for
        them: jobs that come next find Triton imported."""
        environment = worker_environment()
        with _LOCK:
            while not self._closed and len(self._servers) < min(n, self.limit):
                server = Server(self, environment)
                self._servers.add(server)
                self._waiting.append(server)
                server.thread.start()

    def submit(self, job: Job) -> None:
        """Runs a job when its share and the limit allow. Raises `WorkerFailed` after `close`."""
        with _LOCK:
            if self._closed:
                raise WorkerFailed("the pool is closed")
            job.share.pending += 1
            self._queue.append(job)
            self._dispatch()

    def crowded(self) -> bool:
        """Whether jobs wait for a worker."""
        return bool(self._queue)

    def close(self) -> None:
        """Finishes the queued jobs, then stops the workers."""
        with _LOCK:
            self._closed = True
            self._dismiss()
            servers = list(self._servers)
        for server in servers:
            server.thread.join()

    def kill(self) -> None:
        """Stops the workers as they are; what they were asked fails. For the end of a process."""
        with _LOCK:
            self._closed = self._killed = True
            jobs = list(self._queue)
            self._queue.clear()
            for job in jobs:
                self._count_out(job)
            self._dismiss()
            workers = [s.worker for s in self._servers if s.worker is not None]
        for worker in workers:
            worker.process.kill()
        for job in jobs:
            job.abandon(WorkerFailed("the pool is closed"))

    # -- under the lock

    def _dismiss(self) -> None:
        for server in self._waiting:
            server.give(None)
        self._waiting.clear()

    def _dispatch(self) -> None:
        """Hands jobs that may run to workers that are idle, or may be started."""
        while self._waiting or len(self._servers) < self.limit:
            job = self._take()
            if job is None:
                return
            new = not self._waiting
            server = Server(self) if new else self._waiting.pop()
            server.give(job)
            if new:
                self._servers.add(server)
                server.thread.start()

    def _take(self) -> Job | None:
        """The first of the jobs that may run, of those whose user may take most workers: who
        leaves some to others does not keep others waiting."""
        free = [i for i, job in enumerate(self._queue) if job.share.running < job.share.n]
        if not free:
            return None
        at = max(free, key=lambda i: self._queue[i].share.n)
        job = self._queue[at]
        del self._queue[at]
        job.share.running += 1
        return job

    def _after(self, server: Server, job: Job, again: bool) -> None:
        """Notes the end of a job, and gives the server the next one if there is one."""
        with _LOCK:
            job.share.running -= 1
            if again and not self._killed:
                self._queue.append(job)
            else:
                self._count_out(job)
            following = self._take()
            if following is not None or self._closed:
                server.give(following)
            else:
                server.job = None
                self._waiting.append(server)

    def _count_out(self, job: Job) -> None:
        job.share.pending -= 1
        if job.share.pending == 0:
            job.share.ended.notify_all()

    def _leave(self, server: Server, idle: bool) -> bool:
        """Whether a server ends now: not if a job came just as it had waited long enough."""
        with _LOCK:
            if idle and server not in self._waiting:
                return False
            if idle:
                self._waiting.remove(server)
            self._servers.discard(server)
            return True

    def _forget(self) -> list[Job]:
        """In a forked child: the threads are gone, and the processes are the parent's. The jobs
        that nobody will end."""
        jobs = [*self._queue, *(s.job for s in self._servers if s.job is not None)]
        for server in self._servers:
            if server.worker is not None:
                server.worker.let_go()
        self._queue.clear()
        self._servers.clear()
        self._waiting.clear()
        for job in jobs:
            job.share.running = job.share.pending = 0
        return jobs


class Server:
    """A thread with a worker process of its own. `environment`: start that at once."""

    def __init__(self, workers: Workers, environment: Mapping[str, str] | None = None) -> None:
        self.workers = workers
        self.worker: WorkerProcess | None = None
        self.job: Job | None = None
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ahead = environment
        self.thread = threading.Thread(target=self._serve, daemon=True, name="triton_rt-worker")

    def give(self, job: Job | None) -> None:
        """The next job; None ends it."""
        self.job = job
        self._inbox.put(job)

    def ask(
        self, request: bytes, environment: Mapping[str, str], timeout: float, what: str
    ) -> bytes:
        """A worker's answer. One that dies, or takes longer than `timeout` seconds, is replaced
        and asked once more; `WorkerFailed` after that."""
        reasons: list[str] = []
        while len(reasons) < 2:
            worker = self._open(environment)
            if self.workers._killed:  # after the worker is there for `kill` to see
                self.stop()
                raise WorkerFailed(f"compiling {what}: the pool is closed")
            try:
                return worker.ask(request, timeout)
            except Died as error:
                reasons.append(str(error))
                self.stop()
        raise WorkerFailed(
            f"compiling {what}: the worker failed twice: {'; then '.join(reasons)} "
            f"(timeout {timeout:g} s)"
        )

    def stop(self) -> None:
        """Ends the process; the next `ask` starts another."""
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def _open(self, environment: Mapping[str, str]) -> WorkerProcess:
        """The worker, or a new one where it died meanwhile, or where the variables or the import
        path of this process are no longer those that it was started with."""
        worker = self.worker
        if worker is not None and (not worker.alive() or worker.environment != environment):
            self.stop()
        if self.worker is None:
            self.worker = WorkerProcess("triton_rt.compiler.worker", environment)
        return self.worker

    def _serve(self) -> None:
        if self._ahead is not None:
            # Without one now, the first job tries again and says what is wrong.
            with contextlib.suppress(OSError):
                self._open(self._ahead)
        while True:
            try:
                job = self._inbox.get(timeout=self.workers.idle)
            except queue.Empty:
                if self.workers._leave(self, idle=True):
                    break
                continue
            if job is None:
                self.workers._leave(self, idle=False)
                break
            again = job.run(self)
            self.workers._after(self, job, again)
            del job
        self.stop()


#: Of all `Workers`, so that a fork finds what they hold in order.
_LOCK = threading.Lock()
_ALL: weakref.WeakSet[Workers] = weakref.WeakSet()


def _after_in_child() -> None:
    jobs = [job for workers in list(_ALL) for job in workers._forget()]
    _LOCK.release()
    for job in jobs:
        job.abandon(WorkerFailed("this process was forked while the kernel was compiled"))


os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_after_in_child
)
