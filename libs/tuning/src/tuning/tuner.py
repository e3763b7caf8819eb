"""The fastest of some kernels, measured on the arguments that it will run on."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Literal

import torch

from triton_rt import Binary, LazyKernel, flatten
from triton_rt.errors import NoGPU, TritonRTError
from tuning.errors import CandidateCrashed, CandidateHung, CorruptedMemory, WrongResult
from tuning.local_bench import LocalBench
from tuning.margins import MARGINS
from tuning.options import Grid, Options
from tuning.pool import TuningPool
from tuning.race import Bench, Race, race, winner
from tuning.store import Query, Record, TuningStore, candidate_keys
from tuning.task import Task, tensors_of

#: Faults that mark a candidate bad for every shape on a device.
DANGEROUS = (CandidateCrashed, CandidateHung, CorruptedMemory, WrongResult)

#: Two tunings at once on a GPU would measure each other.
_MEASURING = threading.Lock()


@dataclass(frozen=True)
class Tuned:
    """`winner` indexes the candidates. `times` are medians in milliseconds, by candidate, and
    infinite for one that failed, whose message is in `failures`, or was left out: `pruned` says
    why (a shape nearby, an earlier fault). `how`: where the choice is from."""

    winner: int
    times: tuple[float, ...]
    failures: tuple[tuple[int, str], ...] = ()
    pruned: tuple[tuple[int, str], ...] = ()
    how: Literal["measured", "stored"] = "measured"
    seconds: float = 0.0
    runs: tuple[int, ...] = ()


def autotune(
    candidates: Sequence[tuple[LazyKernel, Grid]],
    args: Sequence[Any],
    *,
    options: Options = Options(),  # noqa: B008 - frozen
    store: TuningStore | None = None,
    name: str | None = None,
    pool: TuningPool | None = None,
    keys: Sequence[str] | None = None,
) -> Tuned:
    """Measures (kernel, grid) pairs on the same arguments and returns the fastest.

    Each run is timed alone by CUDA events around the launch that will be deployed, after a write
    that evicts the L2 cache, with the host ahead of the device. Arguments that a kernel mutates
    have their first values before each run, and afterwards. With `store`, results are kept and
    found again, under `name` (default: the kernel's) and `keys`, what tells the candidates apart
    there (default: their sources, names and comments included). With `pool`, candidates run in
    worker processes on copies of the arguments, and what crashes, hangs or corrupts memory there
    harms nobody.

    Raises `NoGPU` on CPU tensors, unless the pool has a CPU worker, and the last failure if every
    candidate fails."""
    began = time.perf_counter()
    if not candidates:
        raise ValueError("autotune needs at least one candidate")
    on_cpu = pool is not None and pool.on_cpu
    tensors = tensors_of(args)
    if not tensors or not (on_cpu or all(t.is_cuda for t in tensors)):
        raise NoGPU(
            "autotune measures on a GPU, and got CPU tensors or none: an interpreter's time says "
            "nothing about a kernel"
        )
    device = tensors[0].device
    guard = contextlib.nullcontext() if on_cpu else torch.cuda.device(device)
    with guard:
        task = Task(candidates, args, device, options)
        return _Tuning(task, store, name, pool, keys).run(began)


class _Tuning:
    """One call of `autotune`."""

    def __init__(
        self,
        task: Task,
        store: TuningStore | None,
        name: str | None,
        pool: TuningPool | None,
        keys: Sequence[str] | None,
    ) -> None:
        self.task = task
        candidates, device = task.candidates, task.device
        self.store = store
        self.pool = pool
        first = candidates[0][0].source
        self.keys = tuple(keys or candidate_keys([k.source for k, _ in candidates]))
        label = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self.query = Query.of(name or first.name, label, first.params, flatten(task.args))
        self.pruned: dict[int, str] = {}

    def run(self, began: float) -> Tuned:
        stored = self.store.get(self.query) if self.store else None
        if stored is not None and stored.candidates == self.keys and stored.winner in self.keys:
            times = tuple(float(stored.times.get(k, math.inf)) for k in self.keys)
            at = self.keys.index(stored.winner)
            return Tuned(at, times, how="stored", seconds=time.perf_counter() - began)
        order = self._first_guess()
        if self.task.device.type == "cuda":
            # Made current on this thread, and idle: what ran before is not measured.
            torch.cuda.current_stream().synchronize()
        with _MEASURING, self._bench() as bench:
            result = race(bench, order, self.task.options.repeats)
        times = tuple(result.time(i) for i in range(len(self.keys)))
        failures = tuple(
            (i, f"{type(e).__name__}: {e}") for i, e in sorted(result.failures.items())
        )
        if min(times) == math.inf:
            raise result.failures[max(result.failures)]
        best = winner(times)
        self._keep(best, times, result)
        return Tuned(
            best,
            times,
            failures,
            tuple(sorted(self.pruned.items())),
            "measured",
            time.perf_counter() - began,
            tuple(len(result.samples.get(i, ())) for i in range(len(times))),
        )

    def _first_guess(self) -> list[int]:
        """Candidates in the order to try them: the winner of the nearest shape first, without
        those that lost clearly there, and without known faults."""
        order = list(range(len(self.keys)))
        if self.store is None:
            return order
        for key, why in self.store.bad(self.query).items():
            for i in [i for i in order if self.keys[i] == key]:
                self.pruned[i] = f"failed before: {why}"
        near = self.store.nearest(self.query)
        if near is not None and near.winner in self.keys:
            close = near.query.distance(self.query) <= MARGINS.near
            bar = MARGINS.near_ratio * near.times.get(near.winner, math.inf)
            for i, key in enumerate(self.keys):
                if close and near.times.get(key, 0.0) > bar:
                    self.pruned.setdefault(i, f"slow at {near.query.sizes}")
            order.sort(key=lambda i: near.times.get(self.keys[i], math.inf))
        kept = [i for i in order if i not in self.pruned]
        if not kept:  # nothing else is left to choose from
            self.pruned.clear()
        return kept or order

    def _keep(self, best: int, times: Sequence[float], result: Race) -> None:
        if self.store is None:
            return
        measured = {k: t for k, t in zip(self.keys, times, strict=True) if t < math.inf}
        bad = {
            self.keys[i]: f"{type(e).__name__}: {e}"
            for i, e in result.failures.items()
            if isinstance(e, DANGEROUS)
        }
        self.store.put(Record(self.query, self.keys[best], measured, bad, self.keys))

    @contextlib.contextmanager
    def _bench(self) -> Iterator[Bench]:
        if self.pool is not None:
            with self.pool.session(self.task, self._ready) as bench:
                yield bench
            return
        local = LocalBench(self.task, self._ready)
        try:
            yield local
        finally:
            local.close()

    def _ready(self, indices: Sequence[int]) -> Iterator[tuple[int, Binary | TritonRTError]]:
        """Candidates as the compilation of what their launches need ends."""
        futures: dict[int, Future[Binary]] = {}
        for index in indices:
            try:
                kernel, _ = self.task.candidates[index]
                futures[index] = kernel.prefetch(alignment=kernel.alignment(*self.task.args))
            except TritonRTError as error:
                yield index, error
        while futures:
            done = [i for i, f in futures.items() if f.done()]
            if not done:
                wait(futures.values(), return_when=FIRST_COMPLETED)
                continue
            index = done[0]
            found: Binary | TritonRTError
            try:
                found = futures.pop(index).result()
            except TritonRTError as error:
                found = error
            yield index, found
