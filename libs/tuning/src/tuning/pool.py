"""Workers that run candidates, so that what they break is not the user's process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

import triton_rt.errors
import tuning.errors
from triton_rt import Binary
from triton_rt.errors import TritonRTError, WorkerFailed
from triton_rt.worker_process import Died, Hung, WorkerProcess, decode, encode
from tuning.config import tuning_environment
from tuning.errors import CandidateCrashed, CandidateHung, TuningError
from tuning.portable import Values, describe
from tuning.race import Outcome
from tuning.task import Ready, Task

#: Seconds in which a worker starts, and makes the arguments.
_START_TIMEOUT = 300.0


class TuningPool:
    """One worker process a GPU, started when first needed and kept until `close()`.

    `devices`: indices of GPUs of one kind, over which candidates are spread; default is the one
    of the arguments; `("cpu",)`, or `("cpu:0", "cpu:1")` for two, interprets candidates, which
    finds faults, and whose times mean nothing. A candidate gets `timeout` seconds a message (a
    few dozen runs); then its worker is killed (SIGKILL). `values`: contents of floating-point
    tensors, drawn from a seed or sent.

    A candidate that crashes its worker, hangs, breaks the CUDA context, writes outside of its
    arguments or computes something else than the first candidate has failed, and is not run
    again; a new worker takes the rest. Workers see the call's arguments as `portable` describes
    them, in memory of their own: the GPU must hold them a third time (contents, first contents)."""

    def __init__(
        self,
        devices: Sequence[int | str] | None = None,
        *,
        timeout: float = 30.0,
        values: Values = "seeded",
    ) -> None:
        self.devices = None if devices is None else tuple(devices)
        if self.devices == ():
            raise ValueError("a tuning pool needs at least one device")
        self.timeout = timeout
        self.values = values
        self._workers: dict[int | str, WorkerProcess] = {}
        self._busy = threading.Lock()
        self._closed = False
        self.restarts = 0

    @property
    def on_cpu(self) -> bool:
        """Whether candidates are interpreted."""
        return self.devices is not None and any(map(_is_cpu, self.devices))

    def close(self) -> None:
        """Stops the workers."""
        with self._busy:
            self._closed = True
            for device in list(self._workers):
                self.stop(device)

    def __enter__(self) -> TuningPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def session(self, task: Task, ready: Ready) -> Iterator[PoolBench]:
        """A bench for one call's arguments; afterwards the workers hold no memory for it."""
        with self._busy:
            if self._closed:
                raise WorkerFailed("the tuning pool is closed")
            devices = self.devices or (task.device.index or 0,)
            bench = PoolBench(self, devices, task, ready)
            try:
                yield bench
            finally:
                bench.close()

    def worker(self, device: int | str) -> tuple[WorkerProcess, bool]:
        """The device's worker, and whether it is new."""
        found = self._workers.get(device)
        if found is not None and found.alive():
            return found, False
        environment = tuning_environment(None if _is_cpu(device) else int(device))
        made = self._workers[device] = WorkerProcess("tuning.worker", environment)
        return made, True

    def stop(self, device: int | str) -> None:
        """Kills the device's worker; the next need starts another."""
        worker = self._workers.pop(device, None)
        if worker is not None:
            worker.stop()


def _is_cpu(device: int | str) -> bool:
    return isinstance(device, str) and device.partition(":")[0] == "cpu"


class PoolBench:
    """A tuning in workers: each has the arguments, and each candidate's kernel once it ran."""

    def __init__(
        self, pool: TuningPool, devices: Sequence[int | str], task: Task, ready: Ready
    ) -> None:
        self.pool = pool
        self.task = task
        self.ready = ready
        self.call = describe(task.candidates[0][0].source.params, task.args, pool.values)
        self.binaries: dict[int, Binary | None] = {}
        self.loaded: dict[int | str, set[int]] = {}  # what each worker has run, by device
        self.reference: int | None = None
        self.free: queue.SimpleQueue[int | str] = queue.SimpleQueue()
        for device in devices:
            self.free.put(device)
        self.devices = tuple(devices)

    def measure(self, indices: Sequence[int], runs: int) -> Iterator[tuple[int, Outcome]]:
        """`runs` more times of each candidate, spread over the workers (see `Bench`)."""
        cold = [i for i in indices if i not in self.binaries]
        warm = [i for i in indices if i in self.binaries]
        arrivals: Iterator[tuple[int, Binary | TritonRTError | None]]
        arrivals = iter([(i, None) for i in cold]) if self.pool.on_cpu else iter(self.ready(cold))
        with ThreadPoolExecutor(len(self.devices)) as threads:
            jobs: dict[Future[Outcome], int] = {}
            for index, binary in self._reference_first(arrivals):
                if isinstance(binary, TritonRTError):
                    yield index, binary
                    continue
                self.binaries[index] = binary
                if self.reference is None:
                    # Alone, and first: what the others are compared with.
                    outcome = self._one(index, runs)
                    if not isinstance(outcome, TritonRTError):
                        self.reference = index
                    yield index, outcome
                    continue
                jobs[threads.submit(self._one, index, runs)] = index
            for index in warm:
                jobs[threads.submit(self._one, index, runs)] = index
            for job in as_completed(jobs):
                yield jobs[job], job.result()

    def _reference_first(
        self, arrivals: Iterator[tuple[int, Any]]
    ) -> Iterator[tuple[int, Binary | TritonRTError | None]]:
        """The first candidate before the others, so that the same one is the reference in every
        run; where it does not run, the next in order is."""
        if self.reference is not None:
            yield from arrivals
        else:
            yield from sorted(arrivals, key=lambda pair: pair[0])

    def close(self) -> None:
        """Lets the workers give up the memory that they hold for this call."""
        for device in self.devices:
            worker = self.pool._workers.get(device)
            if worker is not None and self.loaded.get(device) is not None:
                try:
                    worker.ask(encode({"op": "release"}), self.pool.timeout)
                except Died:
                    self.pool.stop(device)

    def _one(self, index: int, runs: int) -> Outcome:
        device = self.free.get()
        try:
            return self._on(device, index, runs)
        finally:
            self.free.put(device)

    def _on(self, device: int | str, index: int, runs: int) -> Outcome:
        try:
            self._set_up(device)
            if self.reference is not None and self.reference not in self.loaded[device]:
                self._ask(device, self.reference, 1)
            return self._ask(device, index, runs)
        except TritonRTError as error:
            return error

    def _set_up(self, device: int | str) -> None:
        """The arguments in the device's worker, once. Raises `WorkerFailed`."""
        where = "cpu" if _is_cpu(device) else "cuda:0"
        record, blobs = self.call
        flush = self.task.options.flush_bytes
        asked = {"op": "setup", "device": where, "call": record, "flush_bytes": flush}
        request = encode(asked, blobs)
        for last in (False, True):
            worker, new = self.pool.worker(device)
            if not new and device in self.loaded:
                return
            try:
                answer, _ = decode(worker.ask(request, _START_TIMEOUT))
            except Died as error:
                # No candidate ran yet: whoever ended it, another one may live.
                self._lost(device)
                if last:
                    raise WorkerFailed(f"the tuning worker of {device}, twice: {error}") from None
                continue
            if "ok" not in answer:
                self._lost(device)
                raise WorkerFailed(
                    f"the tuning worker of {device} cannot hold the arguments: {answer['message']}"
                )
            self.loaded[device] = set()
            return

    def _ask(self, device: int | str, index: int, runs: int) -> list[float]:
        kernel, grid = self.task.candidates[index]
        source = kernel.source
        record: dict[str, Any] = {
            "op": "measure",
            "index": index,
            "runs": runs,
            "grid": [grid] if isinstance(grid, int) else list(grid),
            "name": source.name,
            "params": [p.name for p in source.params],
            "mutated": [i for i, p in enumerate(source.params) if p.mutated],
        }
        blobs: list[bytes] = []
        if index not in self.loaded[device]:
            binary = self.binaries[index]
            if binary is None:
                record["source"] = source.to_record()
            else:
                blobs.append(binary.to_bytes())
        worker, new = self.pool.worker(device)
        try:
            if new:
                raise Died("it ended between two measurements")
            answer, _ = decode(worker.ask(encode(record, blobs), self.pool.timeout))
        except Died as error:
            self._lost(device)
            kind = CandidateHung if isinstance(error, Hung) else CandidateCrashed
            limit = f" within {self.pool.timeout:g} s" if isinstance(error, Hung) else ""
            raise kind(f"{source.name}: its worker was lost: {error}{limit}") from None
        if "ok" in answer:
            self.loaded[device].add(index)
            return [float(t) for t in answer["ok"]]
        if answer["broken"]:
            self._lost(device)
            raise CandidateCrashed(f"{source.name}: broke the CUDA context: {answer['message']}")
        known = {**vars(triton_rt.errors), **vars(tuning.errors)}
        found = known.get(answer["error"], TuningError)
        raise found(answer["message"])

    def _lost(self, device: int | str) -> None:
        self.pool.stop(device)
        self.pool.restarts += 1
        self.loaded.pop(device, None)
