"""Which schedule runs a kernel: triton_emit's guess, or the fastest of a few by measurement.

A kernel is measured on memory of its own, with the layouts that it will meet; what was measured is
kept on disk, by the kernel's text, sizes, GPU and versions. `tune="auto"` measures where the guess
is in doubt, within a share of the time that the compilation takes without it: what is left out, the
next compilation of such a kernel measures."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Literal

import torch

import triton_rt
import tuning
from loop_ir import Kernel
from loop_ir.ir import Alike, traffic
from planner.kernels import Kernels, kernel_source
from planner.plan import define_kernel
from planner.schedules.arguments import arguments, layouts, overwritten, why_not
from planner.schedules.candidates import anonymous, digest, like, prefetch, usual_alignment
from planner.schedules.chosen import NO_TIME, Chosen, decide, label
from planner.schedules.proposals import candidate_schedules, near_schedule
from planner.settings import Settings
from planner.torch_compat import unset_fake_temporarily
from symexpr import DivisionByZero, evaluate
from triton_emit import Emitter, Schedule, TritonKernel, as_kind
from triton_rt.errors import TritonRTError

Hints = Mapping[str, int]

# Bytes that a kernel moves at least to be measured: below, the launch is the cost.
WORTH = 1 << 20
# Of `auto`: candidates of a kernel, the guess among them; runs of each that stays in the race; what
# measuring may add to the time of a compilation, and seconds that it may take where all was found
# in the cache; seconds that one kernel is taken to cost.
_FEW = 4
_FEW_RUNS = 7
_SHARE = 0.1
_FLOOR = 0.1
_ONE = 0.05


@dataclass(eq=False)
class _Job:
    """One kernel at some sizes, to be measured. name: its text, and versions, as a digest."""

    kernel: Kernel
    hints: Hints
    bytes: int
    schedules: tuple[Schedule, ...]
    emitted: tuple[TritonKernel, ...]
    name: str
    query: tuning.Query
    keys: list[tuple[str, tuple[int, ...]]]
    kernels: tuple[triton_rt.LazyKernel, ...] = ()
    futures: dict[int, Future[triton_rt.Binary]] = field(default_factory=dict)


@dataclass
class ScheduleTuner:
    """Schedules of the kernels of one graph: `start`, then `measure`, then it is asked for each.

    chosen: by kernel and the values of its symbols, for those that move more than `WORTH`.
    guessing: why nothing is measured at all; empty where something may be. pool: where candidates
    are measured, in place of this process. began: when the compilation did."""

    options: Settings
    kernels: Kernels
    pool: tuning.TuningPool | None = None
    began: float = field(default_factory=perf_counter)
    chosen: dict[tuple[str, tuple[int, ...]], Chosen] = field(default_factory=dict)
    guessing: str = ""
    _jobs: dict[tuple[str, tuning.Query], _Job] = field(default_factory=dict)
    _texts: dict[tuple[str, Schedule], TritonKernel] = field(default_factory=dict)
    _alike: Alike = field(default_factory=Alike)
    _emit: Emitter = field(default_factory=Emitter)
    _firsts: dict[Hashable, Kernel] = field(default_factory=dict)
    _later: list[_Job] = field(default_factory=list)

    @cached_property
    def store(self) -> tuning.TuningStore:
        """Times on disk."""
        return tuning.TuningStore(self.options.cache_path / "schedules")

    def __call__(self, kernel: Kernel, hints: Hints) -> Schedule:
        """The schedule of a kernel at these sizes."""
        found = self.chosen.get(_key(kernel, hints))
        guess = self._guess(kernel, hints) if found is None else found.schedule
        if self.options.multikernel in ("persistent", "looped"):
            return as_kind(kernel, guess, self.options.multikernel) or guess  # type: ignore[arg-type]  # one of two
        return guess

    def emit(self, kernel: Kernel, schedule: Schedule) -> TritonKernel:
        """A kernel as Triton's, which may have been emitted already to be measured. Kernels of a
        graph have names of their own."""
        made = self._texts.get((kernel.name, schedule))
        return self._emit(kernel, schedule) if made is None else made

    def _guess(self, kernel: Kernel, hints: Hints) -> Schedule:
        """`near_schedule`, asked once of kernels that are alike."""
        make = partial(near_schedule, kernel, hints)
        return self._alike.once(("guess", *hints.items()), [kernel], make)

    def start(self, kernels: Iterable[tuple[Kernel, Hints]]) -> None:
        """Looks up what is known of kernels (in the order of the program) at sizes, and begins to
        compile, side by side, what will be measured of the others, those that move most first."""
        self.guessing = "tune=off" if self.options.tune == "off" else ""
        if self.guessing:
            return
        here = [(k, hints) for k, hints in kernels if self.pool is not None or _on_gpu(k)]
        found = []
        for kernel, hints in here:
            with suppress(DivisionByZero):  # such sizes do not exist
                if (moved := traffic(kernel, hints).total) > WORTH:
                    found.append((moved, kernel, hints))
        self.guessing = self._why_not() if found else ""
        if self.guessing:
            return
        for moved, kernel, hints in found:
            try:
                make = partial(candidate_schedules, kernel, hints)
                schedules = self._alike.once(("schedules", *hints.items()), [kernel], make)
            except DivisionByZero:
                continue
            guess = schedules[0]
            why = why_not(kernel, self.kernels.given)
            if not why and self.options.tune == "auto" and guess.kind == "flat":
                # candidates differ by what one measurement differs from the next
                why = "" if guess.vector else "pointwise, in the order of memory"
            if why:
                self.chosen[_key(kernel, hints)] = Chosen(guess, guess, why=why)
            elif len(schedules) > 1:
                self._start(kernel, hints, moved, schedules)
        self._jobs = dict(sorted(self._jobs.items(), key=lambda item: -item[1].bytes))
        self._compile(here)

    def _why_not(self) -> str:
        if self.options.multikernel in ("persistent", "looped"):
            return f"multikernel={self.options.multikernel}"
        if self.options.emit == "hop" and self.options.tune == "auto":
            return "Triton compiles what hop launches"
        if self.pool is None:
            if not torch.cuda.is_available():
                return "no GPU to measure on"
            if torch.cuda.is_current_stream_capturing():
                return "nothing is measured while a stream is captured"
        if torch.are_deterministic_algorithms_enabled():
            return "nothing is measured for deterministic algorithms"
        return ""

    def _start(
        self, kernel: Kernel, hints: Hints, moved: int, offered: tuple[Schedule, ...]
    ) -> None:
        guess, key = offered[0], _key(kernel, hints)
        first = self._texts[kernel.name, guess] = self._emit(kernel, guess)
        name = digest(first)
        with unset_fake_temporarily():
            device = torch.device(str(kernel.buffers[0].type.device))
            on_gpu = device.type == "cuda"
            where = torch.cuda.get_device_name(device) if on_gpu else "cpu"
            params = kernel_source(define_kernel(first)).params
            query = tuning.Query.of(name, where, params, layouts(kernel, first, hints))
        if (job := self._jobs.get((name, query))) is not None:
            job.keys.append(key)
            return
        record = self.store.get(query)
        known = {} if record is None else {c: record.times.get(c) for c in record.candidates}
        wanted = offered if self.options.tune == "max" else offered[:_FEW]
        # named as the program's definition of this text will be, so that it is compiled once
        named = self._firsts.setdefault(anonymous(first), kernel)
        if named is not kernel:
            kernel = replace(kernel, name=named.name, origins=named.origins)
            first = self._emit(kernel, guess)
        emitted = {guess: first}
        for schedule in sorted(wanted[1:], key=lambda s: label(s) in known):
            if len(emitted) == 1 and label(schedule) in known:
                break  # and so are all that follow
            if (made := like(first, kernel, schedule)) is not None:
                emitted[schedule] = made
                if named is kernel:
                    self._texts[kernel.name, schedule] = made
        if len(emitted) == 1:
            seconds = {s: known[label(s)] for s in offered if label(s) in known}
            times = [(s, math.inf if t is None else t * 1e-3) for s, t in seconds.items()]
            if times:
                self.chosen[key] = decide(guess, times, "stored")
            return
        ordered = tuple(s for s in wanted if s in emitted)
        texts = tuple(emitted[s] for s in ordered)
        self._jobs[name, query] = _Job(kernel, hints, moved, ordered, texts, name, query, [key])

    def _compile(self, kernels: Sequence[tuple[Kernel, Hints]]) -> None:
        """Begins with guesses and what is not measured, which are needed anyway."""
        pool = others = self.kernels.pool
        if pool is not None and self.options.tune != "max":
            # half of the workers; nobody closes it, so a compilation does not wait for the last
            others = triton_rt.shared_pool(self._half)
        for job in self._jobs.values():
            sources = [kernel_source(define_kernel(e)) for e in job.emitted]
            job.kernels = tuple(
                triton_rt.LazyKernel(source, cache=self.kernels.cache, pool=others if i else pool)
                for i, source in enumerate(sources)
            )
        if self.pool is not None or pool is None:
            return
        for job in self._jobs.values():
            job.futures[0] = prefetch(job.kernels[0], job.emitted[0], job.hints)
            self.kernels.started.append(job.futures[0])
        measured = {job.kernel.name for job in self._jobs.values()}
        for kernel, hints in kernels:
            # of several sizes, which kernels there will be hangs on what is measured
            alone = kernel.name not in measured and not kernel.symbols
            if alone and self.options.emit != "hop":
                self._compile_ahead(kernel, hints)
        if self.options.tune == "max":
            self._compile_candidates(self._jobs.values(), math.inf)

    def _compile_candidates(self, jobs: Iterable[_Job], room: float) -> None:
        """Begins with up to `room` candidates besides the guesses."""
        for job in jobs:
            if not job.futures:
                return  # nothing is compiled to be measured elsewhere
            for i in range(1, len(job.kernels)):
                if room > 0 and i not in job.futures:
                    job.futures[i] = prefetch(job.kernels[i], job.emitted[i], job.hints)
                room -= i in job.futures and not job.futures[i].done()

    def _compile_ahead(self, kernel: Kernel, hints: Hints) -> None:
        """A kernel that is not measured, as the program will have it compiled."""
        schedule = self(kernel, hints)
        made = self._texts[kernel.name, schedule] = self.emit(kernel, schedule)
        if self._firsts.setdefault(anonymous(made), kernel) is kernel:
            self.kernels.start(define_kernel(made), usual_alignment(made, hints))

    def begin_candidates(self) -> None:
        """Begins to compile candidates besides the guesses, for workers that have nothing else to
        do: where it takes a while until `measure`."""
        self._compile_candidates(self._jobs.values(), self._half)

    def measure(self) -> None:
        """Times what was started: with `max` everything, else as far as there is time, candidates
        being compiled once the guesses are. What is not ready then will be found in the cache."""
        if not self._jobs:
            return
        guesses = [job.futures[0] for job in self._jobs.values() if job.futures]
        cached = all(future.done() for future in guesses)
        ready = end = math.inf
        if self.options.tune != "max":
            short = _SHARE * (perf_counter() - self.began) < _ONE
            if not cached and (short or self.options.emit == "cpp"):
                # what follows, a C++ compiler maybe, runs while the guesses compile
                self._later = list(self._jobs.values())
                self._jobs.clear()
                for job in self._later:
                    chosen = Chosen(job.schedules[0], job.schedules[0], why=NO_TIME)
                    self.chosen.update(dict.fromkeys(job.keys, chosen))
                return
            wait(guesses)
            self.begin_candidates()
            now = perf_counter()
            share = _SHARE * (now - self.began)
            ready, end = now + share / 2, now + (max(share, _FLOOR) if cached else share)
        with unset_fake_temporarily(), torch.no_grad():
            for job in self._jobs.values():
                if perf_counter() + _ONE > end:
                    chosen = Chosen(job.schedules[0], job.schedules[0], why=NO_TIME)
                else:
                    chosen = self._measure(job, ready)
                self.chosen.update(dict.fromkeys(job.keys, chosen))
        self._jobs.clear()
        kept = {(name, chosen.schedule) for (name, _), chosen in self.chosen.items()}
        self._texts = {key: text for key, text in self._texts.items() if key in kept}

    def finish(self) -> None:
        """At the end of a compilation: what it had no time for begins to compile, for the next."""
        self._compile_candidates(self._later, self._half)
        self.kernels.late.extend(f for job in self._later for f in job.futures.values())
        self._later = []

    @property
    def _half(self) -> int:
        """Of the workers."""
        return max(1, self.options.workers // 2)

    def _measure(self, job: _Job, ready_by: float) -> Chosen:
        """Times the candidates that are compiled until then."""
        guess = job.schedules[0]
        left = ready_by - perf_counter()
        wait(job.futures.values(), None if left == math.inf else max(0.0, left))
        ready, failures = [], []
        for i, schedule in enumerate(job.schedules):
            future = job.futures.get(i)
            if future is None and job.futures:
                continue  # not begun
            if future is not None and not future.done():
                continue
            error = future.exception() if future is not None else None
            if error is None:
                ready.append(i)
            elif i == 0:
                return Chosen(guess, guess, why=f"it does not compile: {_first_line(error)}")
            else:
                failures.append((schedule, _first_line(error)))
        if len(ready) < 2 or ready[0] != 0:
            alone = len(failures) + 1 == len(job.schedules)
            why = "no other compiles" if alone else NO_TIME
            return Chosen(guess, guess, failures=tuple(failures), why=why)
        if not self._has_room(job):
            return Chosen(guess, guess, why="no memory to measure with")
        emitted = [job.emitted[i] for i in ready]
        grids = [tuple(int(evaluate(g, job.hints)) for g in e.grid) for e in emitted]
        names = dict(zip(emitted[0].args, (p[0] for p in emitted[0].params), strict=True))
        runs = tuning.Options().repeats if self.options.tune == "max" else _FEW_RUNS
        try:
            tuned = tuning.autotune(
                list(zip((job.kernels[i] for i in ready), grids, strict=True)),
                arguments(job.kernel, emitted, job.hints, self.kernels.given),
                options=tuning.Options(
                    runs,
                    overwritten=tuple(
                        names[b] for b in sorted(overwritten(job.kernel)) if b in names
                    ),
                    verify=True,
                ),
                store=self.store,
                name=job.name,
                keys=[label(job.schedules[i]) for i in ready],
                pool=self.pool,
            )
        except torch.OutOfMemoryError:
            return Chosen(guess, guess, why="no memory to measure with")
        except TritonRTError as error:
            why = f"not measured: {_first_line(error)}"
            return Chosen(guess, guess, why=why)
        times = [(job.schedules[i], t * 1e-3) for i, t in zip(ready, tuned.times, strict=True)]
        failures += [(job.schedules[ready[i]], why) for i, why in tuned.failures]
        how: Literal["stored", "measured"] = "stored" if tuned.how == "stored" else "measured"
        return decide(guess, times, how, failures)

    def _has_room(self, job: _Job) -> bool:
        """Whether a quarter of the free memory holds what the kernel touches."""
        if self.pool is not None:
            return True
        size = sum(
            int(evaluate(b.type.extent, job.hints)) * b.type.dtype.itemsize
            for b in job.kernel.buffers
        )
        return size <= torch.cuda.mem_get_info()[0] // 4

    def explain(self) -> str:
        """What runs each kernel that is worth measuring, and why."""
        lines = [f"guesses ({self.guessing})"] if self.guessing else []
        for (name, sizes), chosen in self.chosen.items():
            at = f" at {', '.join(map(str, sizes))}" if sizes else ""
            lines.append(f"{name}{at}: {chosen}")
        return "\n  ".join(["schedules:", *lines]) if lines else ""


def _on_gpu(kernel: Kernel) -> bool:
    return all(buffer.type.device.kind == "cuda" for buffer in kernel.buffers)


def _key(kernel: Kernel, hints: Hints) -> tuple[str, tuple[int, ...]]:
    return kernel.name, tuple(hints[s.name] for s in kernel.symbols)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
