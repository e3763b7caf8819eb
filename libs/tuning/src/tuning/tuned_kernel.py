"""A kernel with several candidates: compiled in the background, chosen on its first real call."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_rt import Cache, CompilePool, KernelSource, LazyKernel, Target, flatten
from triton_rt.errors import BadSource, TritonRTError
from tuning.cost_model import Work
from tuning.errors import TuningSkipped
from tuning.options import Grid, Options
from tuning.pool import TuningPool
from tuning.store import TuningStore, candidate_keys, distance
from tuning.task import tensors_of
from tuning.tuner import Tuned, autotune

#: Bound callables kept for shapes that were not tuned themselves.
_MAX_BOUND = 4096


@dataclass(frozen=True)
class Candidate:
    """One way to compute a kernel. `grid`, and `work`, may be functions of the call's arguments;
    `applies(*args)` says whether this candidate computes that call at all (default: any)."""

    source: KernelSource
    grid: Grid | Callable[..., Grid]
    work: Work | Callable[..., Work] | None = None
    applies: Callable[..., bool] | None = None

    def grid_of(self, args: Sequence[Any]) -> Grid:
        """The candidate's grid for a call's arguments."""
        return self.grid(*args) if callable(self.grid) else self.grid

    def work_of(self, args: Sequence[Any]) -> Work | None:
        """The candidate's work for a call's arguments; None if nothing was said of it."""
        return self.work(*args) if callable(self.work) else self.work


class TunedKernel:
    """`kernel(*args)`: the first call with new integer arguments measures the candidates on these
    arguments, and later ones go to the winner.

    All candidates take the same parameters. The integers among the arguments are what a kernel
    knows of shapes, so a choice is made for each combination of them, at most `max_tunings` times;
    after that the choice of the nearest one holds. Candidates begin to compile at once, in `pool`
    (default: at the first call, in this process). A result found in `store` is not measured again,
    and only its winner is waited for. With `tuner`, candidates run in worker processes.

    On CPU tensors the first candidate that applies is interpreted. While a stream is captured
    nothing is measured: the nearest choice so far, or the first candidate, is captured.

    Thread-safe: one thread tunes, others that need the same choice wait for it. Errors: those of
    `LazyKernel`; where tuning itself is impossible (memory), a `TuningSkipped` warning."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        name: str | None = None,
        target: Target | None = None,
        cache: Cache | None = None,
        pool: CompilePool | None = None,
        store: TuningStore | None = None,
        tuner: TuningPool | None = None,
        options: Options = Options(),  # noqa: B008 - frozen
        max_tunings: int = 8,
    ) -> None:
        if not candidates:
            raise BadSource("a TunedKernel needs at least one candidate")
        first = candidates[0].source
        for candidate in candidates:
            if [_role(p) for p in candidate.source.params] != [_role(p) for p in first.params]:
                raise BadSource(
                    f"{candidate.source.name} takes ({_signature(candidate.source)}), but the "
                    f"first candidate {first.name} takes ({_signature(first)}): all candidates of "
                    "a kernel take the same parameters"
                )
        self.candidates = tuple(candidates)
        self.name = name or first.name
        self.store = store
        self.tuner = tuner
        self.options = options
        self.max_tunings = max_tunings
        #: What was chosen, by (device, integer arguments...); the device is -1 for the CPU.
        self.tuned: dict[tuple[int, ...], Tuned] = {}
        self.kernels = tuple(
            LazyKernel(c.source, target=target, cache=cache, pool=pool) for c in candidates
        )
        self._lock = threading.RLock()
        self._bound: dict[tuple[Any, ...], Callable[..., None]] = {}
        self._key = _key_of(first)
        if pool is not None:
            self._start(target)

    def __call__(self, *args: Any) -> None:
        """One launch on torch's current stream; the first with new integers also tunes."""
        try:
            bound = self._bound[self._key(args)]
        except (KeyError, IndexError, AttributeError):
            bound = self.bind(*args)
        bound(*args)

    def __repr__(self) -> str:
        return f"TunedKernel({self.name}, candidates={len(self.kernels)}, tuned={len(self.tuned)})"

    def _start(self, target: Target | None) -> None:
        """Compiles in the background what the first call will need: what won before, if known."""
        known: set[str] = set()
        if self.store is not None and torch.cuda.is_available():
            known = self.store.winners(self.name, torch.cuda.get_device_name())
        keys = candidate_keys([c.source for c in self.candidates])
        wanted = [k for k, key in zip(self.kernels, keys, strict=True) if key in known]
        _prefetch(wanted or self.kernels, target)

    def prefetch(self, target: Target | None = None) -> None:
        """Starts to compile every candidate, in the background where there is a pool."""
        _prefetch(self.kernels, target)

    def bind(self, *args: Any) -> Callable[..., None]:
        """`bound(*args)` launches the choice for such arguments, tuned now if need be, without
        looking at them again. A choice with a fixed grid is the bare launcher."""
        flat = flatten(args)
        if len(flat) != len(self.candidates[0].source.params):
            self.kernels[0].launch(0, *args)  # raises WrongArgumentCount
        key = self._key(args)
        with self._lock:
            found = self._bound.get(key)
            if found is not None:
                return found
            usable = [
                i for i, c in enumerate(self.candidates) if c.applies is None or c.applies(*args)
            ]
            if not usable:
                raise BadSource(f"{self.name}: none of its candidates applies to these arguments")
            tensors = tensors_of(flat)
            on_gpu = bool(tensors) and all(t.is_cuda for t in tensors)
            if len(usable) == 1 or not (on_gpu or (self.tuner and self.tuner.on_cpu)):
                chosen, final = usable[0], True
            elif on_gpu and torch.cuda.is_current_stream_capturing():
                chosen, final = self._nearest(key, usable), False
            elif len(self.tuned) >= self.max_tunings:
                chosen, final = self._nearest(key, usable), True
            else:
                result = self._tune(args, usable)
                self.tuned[key] = result
                chosen, final = result.winner, True
            bound = self._callable(chosen)
            if final:
                if len(self._bound) >= _MAX_BOUND:
                    self._bound.clear()
                self._bound[key] = bound
            return bound

    def _callable(self, index: int) -> Callable[..., None]:
        launch, grid = self.kernels[index].launch, self.candidates[index].grid
        if callable(grid):
            return lambda *args: launch(grid(*args), *args)
        return functools.partial(launch, grid)

    def _tune(self, args: Sequence[Any], usable: Sequence[int]) -> Tuned:
        """The choice among `usable`, with indices of all candidates."""
        pairs = [(self.kernels[i], self.candidates[i].grid_of(args)) for i in usable]
        works = [w for i in usable if (w := self.candidates[i].work_of(args)) is not None]

        def choose(options: Options) -> Tuned:
            return autotune(
                pairs,
                args,
                work=works if len(works) == len(pairs) else None,
                options=options,
                store=self.store,
                name=self.name,
                pool=self.tuner,
            )

        began = time.perf_counter()
        try:
            result = choose(self.options)
        except torch.OutOfMemoryError as error:
            warnings.warn(
                f"{self.name} was not measured, the cost model chooses: {error}",
                TuningSkipped,
                stacklevel=4,
            )
            result = choose(replace(self.options, deterministic=True))
        times = [math.inf] * len(self.candidates)
        for i, t in zip(usable, result.times, strict=True):
            times[i] = t
        return replace(
            result,
            winner=usable[result.winner],
            times=tuple(times),
            failures=tuple((usable[i], why) for i, why in result.failures),
            pruned=tuple((usable[i], why) for i, why in result.pruned),
            seconds=time.perf_counter() - began,
        )

    def _nearest(self, key: tuple[int, ...], usable: Sequence[int]) -> int:
        """The best usable candidate of the tuned sizes that are nearest; else the first."""
        if not self.tuned:
            return usable[0]
        near = min(self.tuned, key=lambda k: (k[0] != key[0], distance(k[1:], key[1:]), k))
        times = self.tuned[near].times
        if self.tuned[near].winner in usable:
            return self.tuned[near].winner
        return min(usable, key=lambda i: (times[i], i))


def _prefetch(kernels: Sequence[LazyKernel], target: Target | None) -> None:
    for kernel in kernels:
        # Without a GPU and a target there is nothing to compile for: calls will interpret.
        # What does not compile says so when it is measured, or alone is left.
        with contextlib.suppress(TritonRTError):
            kernel.prefetch(target)


def _role(param: Any) -> tuple[str, str]:
    return param.name, param.kind


def _signature(source: KernelSource) -> str:
    return ", ".join(f"{p.name}: {p.kind}" for p in source.params)


def _key_of(source: KernelSource) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function of a call's arguments: the device's index, then the integers."""
    if any("." in p.name for p in source.params):  # tuples: arguments are not in their places
        flat = tuple(replace(p, name=p.name.replace(".", "_")) for p in source.params)
        inner = _key_of(replace(source, params=flat))
        return lambda args: inner(flatten(args))
    integers = [i for i, p in enumerate(source.params) if not p.is_pointer and p.kind[0] in "iu"]
    pointers = [i for i, p in enumerate(source.params) if p.is_pointer]
    where = pointers[0] if pointers else None
    if where is None:
        return lambda args: (-1, *(args[i] for i in integers))
    if not integers:
        return lambda args: (args[where].get_device(),)
    if len(integers) == 1:
        only = integers[0]
        return lambda args: (args[where].get_device(), args[only])
    pick = operator.itemgetter(*integers)
    return lambda args: (args[where].get_device(), *pick(args))
