"""Measure the few best, the vendor's call among them, and remember the winner."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, TypeAlias

import torch

from gemm_templates.device import DeviceInfo, device_info
from gemm_templates.launch import Bound, Inputs, bind, written
from gemm_templates.model import (
    SLOW,
    Candidate,
    candidates,
    explain,
    model_digest,
    worth_measuring,
)
from gemm_templates.problem import Config, Problem
from gemm_templates.registry import make_plan
from gemm_templates.render import template_digest
from multikernel import RecordStore as Store
from triton_rt import Binary, Cache, CompilePool, Target
from tuning import MARGINS, added_seconds

#: Seconds of each of some calls, on a device.
Timer: TypeAlias = Callable[[Sequence[Callable[[], object]], DeviceInfo], list[float]]

#: Why a candidate was out that was not compiled when the others were measured.
LATE = "not compiled in time: a later compilation measures it"


@dataclass(frozen=True)
class Choice:
    """What to run for a problem: a config, or (None) the vendor's call.

    times: label -> measured seconds, the epilogue included on either side.
    failures: label -> why a candidate was out: it did not compile, launch, or agree.
    reason: "measured", "stored", "model" (deterministic, or every template is predicted to be
        far slower than the vendor's call), "no GPU", "only one", "no time" (no template was
        compiled in time)."""

    problem: Problem
    config: Config | None
    candidates: tuple[Candidate, ...]
    times: tuple[tuple[str, float], ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    reason: str = "measured"

    @property
    def late(self) -> frozenset[str]:
        """Labels of candidates that were not compiled in time, and so not measured."""
        return frozenset(label for label, why in self.failures if why == LATE)

    def from_python(self) -> Config | None:
        """The config for calls from Python, which may wait for the host: one that needs several
        launches or memory of its own has to save `MARGINS.host` for each."""
        times = dict(self.times)
        if self.config is None or "extern" not in times:
            return self.config
        configs = {c.label: c.config for c in self.candidates if c.label in times and c.config}
        for label, config in configs.items():
            plan = make_plan(self.problem, config)
            allocated = sum(not workspace.zeroed for workspace in plan.workspaces)
            times[label] += MARGINS.host * (len(plan.steps) - 1 + allocated)
        best = min(times, key=lambda label: times[label])
        return configs.get(best) if times[best] <= (1 - MARGINS.vendor) * times["extern"] else None

    def among(
        self, times: Mapping[str, float], why: str = "", margin: float = MARGINS.vendor
    ) -> Choice:
        """The fastest by these times, or the vendor's call where no template is faster by that
        share; what has no time there is out, and `why`."""
        best = min(times, key=lambda label: times[label])
        if times[best] > times["extern"] * (1 - margin):
            best = "extern"
        config = next(c.config for c in self.candidates if c.label == best)
        out = sorted({label for label, _ in self.times} - times.keys())
        failures = (*self.failures, *((label, why) for label in out))
        return replace(self, config=config, times=tuple(times.items()), failures=failures)

    def explain(self) -> str:
        """A table of the candidates' times, why some were out, and what was chosen."""
        label = "extern" if self.config is None else str(self.config)
        lines = [explain(self.problem, self.candidates, dict(self.times))]
        lines += [f"{label} failed: {why}" for label, why in self.failures]
        return "\n".join([*lines, f"-> {label} ({self.reason})"])


def choose(
    problem: Problem,
    inputs: Inputs | Callable[[], Inputs],
    extern: Callable[[Inputs], object],
    found: Sequence[Candidate] | None = None,
    *,
    device: torch.device | str = "cuda",
    store: Store | None = None,
    deterministic: bool = False,
    force: bool | Timer = False,
    build: Callable[[Problem, Config], Callable[[Inputs], None]] = bind,
    spent: Callable[[], bool] | None = None,
) -> Choice:
    """The fastest of `found` (by default `candidates(problem, device)`) on these inputs.

    inputs: the tensors, or a function that makes some like them. `out` is overwritten.
    extern: the vendor's way, with all that the epilogue does as further kernels. If it raises a
        RuntimeError, it refuses these operands: it takes for ever. If it returns
        tensors (one, or a sequence in the order of `written`), each candidate's results are
        compared with them, and one that disagrees is out.
    store: choices remembered, by problem, device, versions and candidates.
    deterministic: do not measure: a stored choice, else the model's first.
    build: how a config becomes a call (`partial(bind, pool=..., cache=...)` compiles side by side
        and keeps binaries).
    force: measure on the CPU, too, and whatever the model says; a function takes the place of
        `added_seconds`.
    spent: whether there is no time to measure anything: the vendor's call is taken then, and
        nothing remembered, but where it is predicted to be slow.

    Templates that are late (`bind`'s in_time) are not measured, until a later call finds more of
    them compiled (`Choice.late`); where all are, the vendor's call is taken, and nothing
    remembered. The first is waited for where the vendor's call is predicted to be slow."""
    device = torch.device(device)
    info = device_info(device)
    store = store or Store()
    key = choice_key(problem, info, found)
    stored = None if (record := store.get(key)) is None else from_record(problem, record, "stored")
    if stored is not None and not stored.late:
        return stored
    options = tuple(found if found is not None else candidates(problem, info))
    if deterministic:
        return Choice(problem, options[0].config, options, reason="model")
    if device.type != "cuda" and not force:
        return Choice(problem, None, options, reason="no GPU")
    if all(c.config is None for c in options):
        return Choice(problem, None, options, reason="only one")
    if not force and not worth_measuring(options):
        return Choice(problem, None, options, reason="model")

    vendor = next((c.predicted for c in options if c.config is None), 0.0)
    slow = options[0].predicted * SLOW < vendor
    if spent is not None and not slow and spent():
        return stored or Choice(problem, None, options, reason="no time")

    failures: dict[str, str] = {}
    # Built before any runs, so that a pool compiles them side by side.
    built: dict[str, Callable[[Inputs], None]] = {}
    for candidate in options:
        if candidate.config is None:
            continue
        try:
            built[candidate.label] = build(problem, candidate.config)
        except Exception as error:  # a compiler's refusal can be any error; it is reported
            failures[candidate.label] = _reason(error)

    def not_compiled() -> set[str]:
        bound = ((label, run) for label, run in built.items() if isinstance(run, Bound))
        return {label for label, run in bound if run.is_late()}

    if stored is not None and not_compiled() >= stored.late:
        return stored

    # The vendor's first call loads its library, while templates are compiled.
    given = inputs if isinstance(inputs, Inputs) else inputs()
    runs: dict[str, Callable[[], object]] = {"extern": lambda: extern(given)}
    expected: list[torch.Tensor] = []
    try:
        expected = _tensors(extern(given))
    except RuntimeError as error:
        failures["extern"] = _reason(error)
        del runs["extern"]
    late = not_compiled() if "extern" in runs else set()  # nothing else runs it: it is waited for
    if slow:
        late.discard(options[0].label)
    failures |= dict.fromkeys(sorted(late), LATE)
    built = {label: run for label, run in built.items() if label not in late}
    if late and not built:
        return Choice(problem, None, options, (), tuple(failures.items()), "no time")
    results = written(problem, given)
    for run in built.values():
        if isinstance(run, Bound):
            with contextlib.suppress(Exception):  # it is raised again, and reported, as it runs
                run.prepare(given)
    for label, run in built.items():
        try:
            for result in results:
                result.fill_(float("nan") if result.is_floating_point() else 1)
            run(given)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except Exception as error:  # likewise; nothing was chosen yet
            failures[label] = _reason(error)
            continue
        wrong = [w for w in map(disagreement, results, expected) if w]
        if wrong:
            failures[label] = wrong[0]
            warnings.warn(f"{problem}, {label}: {wrong[0]}; not used", stacklevel=2)
            continue
        runs[label] = functools.partial(run, given)
    calls = list(runs.values())
    seconds = force(calls, info) if callable(force) else added_seconds(calls, info.l2_bytes)
    times = {"extern": float("inf"), **dict(zip(runs, seconds, strict=True))}
    choice = Choice(problem, None, options, (), tuple(failures.items())).among(times)
    store.put(key, to_record(choice))
    return choice


def prefetch(
    problems: Iterable[Problem],
    *,
    pool: CompilePool,
    cache: Cache | None = None,
    store: Store | None = None,
    device: DeviceInfo | torch.device | str = "cuda",
    target: Target | None = None,
    found: Mapping[Problem, Sequence[Candidate]] | None = None,
) -> list[Future[Binary]]:
    """Starts to compile, side by side, what `choose` will measure for these problems: all their
    candidates, but for problems whose choice is in `store` or that the model decides.

    found: candidates of the problems that `choose` will be given some.
    Wait for the futures (`concurrent.futures.wait`), then `choose` with
    `build=partial(bind, pool=pool, cache=cache)`: it finds the binaries in `cache`. A candidate
    that does not compile has its error in its future, and again in `Choice.failures`."""
    info = device if isinstance(device, DeviceInfo) else device_info(device)
    futures: list[Future[Binary]] = []
    for problem in dict.fromkeys(problems):
        given = (found or {}).get(problem)
        record = None if store is None else store.get(choice_key(problem, info, given))
        if record is not None and LATE not in record["failures"].values():
            continue
        options = given if given is not None else candidates(problem, info)
        if not worth_measuring(options):
            continue
        for c in options:
            if c.config is not None:
                futures += Bound(problem, c.config, cache, pool).compile(target)
    return futures


@functools.cache
def _versions() -> tuple[str, ...]:
    """What decides a kernel's speed beside its text; the text of this library is digested."""
    return tuple(f"{name} {version(name)}" for name in ("torch", "triton"))


def choice_key(problem: Problem, info: DeviceInfo, found: Sequence[Candidate] | None) -> str:
    """The candidates by their labels, or by the text of the model that proposes them."""
    offered = [model_digest()] if found is None else sorted(c.label for c in found)
    return "\n".join([problem.key, info.name, *_versions(), template_digest(), *offered])


def to_record(choice: Choice) -> dict[str, Any]:
    """A choice as plain data for a `Store`."""
    return {
        "config": encode_config(choice.config),
        "candidates": [[encode_config(c.config), c.predicted, c.why] for c in choice.candidates],
        "times": dict(choice.times),
        "failures": dict(choice.failures),
        "reason": choice.reason,
    }


def from_record(problem: Problem, record: dict[str, Any], reason: str) -> Choice:
    """The inverse of `to_record`, with a reason of its own."""
    options = tuple(
        Candidate(decode_config(c), seconds, why) for c, seconds, why in record["candidates"]
    )
    times, failures = (tuple(record[part].items()) for part in ("times", "failures"))
    return Choice(problem, decode_config(record["config"]), options, times, failures, reason)


def encode_config(config: Config | None) -> dict[str, Any] | None:
    """For a record: None is the vendor's call."""
    return asdict(config) if config else None


def decode_config(values: dict[str, Any] | None) -> Config | None:
    """The inverse of `encode_config`."""
    return Config(**values) if values else None


def _tensors(returned: object) -> list[torch.Tensor]:
    found = [returned] if isinstance(returned, torch.Tensor) else returned
    if not isinstance(found, Sequence):
        return []
    return [t.clone() for t in found if isinstance(t, torch.Tensor)]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def disagreement(out: torch.Tensor, expected: torch.Tensor) -> str:
    """Empty if `out` is `expected` up to rounding; sums in another order, tf32 and a result
    that is rounded before the epilogue all stay far below a part in fifty of the largest."""
    if out.shape != expected.shape:
        return f"has shape {tuple(out.shape)}, the extern call's {tuple(expected.shape)}"
    if out.numel() == 0:
        return ""
    reference = expected.float()
    finite = reference.isfinite()
    difference = torch.where(finite, (out.float() - reference).abs(), 0.0)
    scale = torch.where(finite, reference.abs(), 0.0).max()
    worst = difference.max()
    if not bool(worst <= 0.02 * scale + 1e-6):  # NaN fails
        return f"differs from the extern call by {float(worst):.3g}, its largest {float(scale):.3g}"
    return ""
