"""One decision for a range of M: which config from which number of rows on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isqrt
from typing import Any

import torch

from gemm_templates.choice import Choice, choice_key, choose, decode_config
from gemm_templates.device import DeviceInfo, device_info
from gemm_templates.errors import InvalidProblem
from gemm_templates.launch import Bound, Inputs, bind
from gemm_templates.model import Candidate, candidates, is_legal
from gemm_templates.problem import Config, Problem
from gemm_templates.store import Store

# Neighbours share a config where it is at most this much slower than the best at each hint.
TOLERANCE = 0.03
_PROPOSED = 3  # configs that each hint adds to those measured at all
_LARGEST = 2**24  # rows; what is legal there is taken to be legal for any larger number


@dataclass(frozen=True)
class RangeChoice:
    """What to run for any M: `configs[i]` (None: the vendor's call) up to `bounds[i]` rows,
    inclusive, and the last one beyond.

    problem: with M dynamic. hints: the numbers of rows that were looked at, ascending.
    choices: for each hint, the choice for it alone, with its times. reason: "measured", "stored",
    "model", "no GPU" or "only one", as of the choices.
    """

    problem: Problem
    bounds: tuple[int, ...]
    configs: tuple[Config | None, ...]
    hints: tuple[int, ...]
    choices: tuple[Choice, ...]
    reason: str = "measured"

    def config(self, m: int) -> Config | None:
        return self.configs[bisect_left(self.bounds, m)]

    def explain(self) -> str:
        """Predicted and measured times for each hint, and the boundaries."""
        lines = []
        for hint, choice in zip(self.hints, self.choices, strict=True):
            lines += [f"M = {hint}", choice.explain(), ""]
        first = 0
        for i, config in enumerate(self.configs):
            last = str(self.bounds[i]) if i < len(self.bounds) else "..."
            lines.append(f"M in [{first}, {last}]: {'extern' if config is None else config}")
            first = self.bounds[i] + 1 if i < len(self.bounds) else first
        return "\n".join([*lines, f"({self.reason})"])


def choose_range(
    problem: Problem,
    hints: Sequence[int],
    inputs: Callable[[int], Inputs],
    extern: Callable[[Inputs], object],
    *,
    device: torch.device | str = "cuda",
    store: Store | None = None,
    deterministic: bool = False,
    force: bool = False,
    build: Callable[[Problem, Config], Callable[[Inputs, int], None]] = bind,
    timer: Callable[[Sequence[Callable[[], object]], DeviceInfo], list[float]] | None = None,
    limit: int = 6,
) -> RangeChoice:
    """Chooses at each of `hints` (numbers of rows) among at most `limit` candidates, the vendor's
    call among them, and joins neighbouring hints where one config is within 3 % of the best of
    each. Between hints whose configs differ the boundary is their geometric mean, or less where
    the config is not legal for as many rows. A config is compiled once, with M at run time, and
    must be legal so. Decompose-K takes part: its workspace grows with M.

    problem: with "M" in `dynamic`; its `m` counts for nothing. inputs: makes the tensors for a
    number of rows. All else is as in `choose`, whose store keeps the measurements at each hint,
    and with them the decision.

    Raises InvalidProblem if M is not dynamic, or there is no hint.
    """
    hints = sorted({*hints})
    if "M" not in problem.dynamic or not hints or hints[0] < 1:
        raise InvalidProblem(f"{problem}, hints {hints}: expected M in `dynamic`, and hints >= 1")
    store = store or Store()
    info = device_info(torch.device(device))
    problem = replace(problem, m=hints[-1])
    at = [replace(problem, m=hint) for hint in hints]
    key = "\n".join([choice_key(problem, info, None), f"range {hints} limit {limit}"])
    if (record := store.get(key)) is not None:
        return _from_record(problem, at, record)

    proposed = proposals(at, info)
    built: dict[Config, Callable[[Inputs, int], None]] = {}
    for config in proposed:
        built[config] = build(problem, config)
    found = [candidates(p, info, limit=limit, configs=proposed) for p in at]
    for p, options in zip(at, found, strict=True):
        for c in options:
            run = built.get(c.config) if c.config is not None else None
            if isinstance(run, Bound) and torch.device(device).type == "cuda":
                run.prepare(inputs(p.m), p.m)

    def with_rows(p: Problem, config: Config) -> Callable[[Inputs], None]:
        return lambda given: built[config](given, p.m)

    choices = [
        choose(
            p, partial(inputs, p.m), extern, options, device=device,
            deterministic=deterministic, force=force, build=with_rows, timer=timer,
        )
        for p, options in zip(at, found, strict=True)
    ]  # fmt: skip
    configs, lasts = merge(choices, problem, info)
    for taken in filter(None, configs):
        run = built[taken]
        if isinstance(run, Bound) and torch.device(device).type == "cuda":
            for m in (16, 17):  # numbers of rows that 16 divides have a kernel of their own
                run.prepare(inputs(hints[0]), m)
    bounds = [bound_after(hints, last, config, problem, info)
              for config, last in zip(configs, lasts, strict=True)][:-1]  # fmt: skip
    reasons = {c.reason for c in choices}
    reason = "measured" if "measured" in reasons else choices[0].reason
    if reason == "measured":
        store.put(key, _to_record(bounds, configs, choices))
    return RangeChoice(problem, tuple(bounds), tuple(configs), tuple(hints), tuple(choices), reason)


def proposals(at: Sequence[Problem], info: DeviceInfo) -> list[Config]:
    """The best few of each hint by the model, those of all hints together; at least one of them
    is legal for any number of rows, if there is such."""
    largest = replace(at[-1], m=_LARGEST)
    found: dict[Config, None] = {}
    for p in at:
        ranked = [c.config for c in candidates(p, info, limit=64) if c.config is not None]
        found.update(dict.fromkeys(ranked[:_PROPOSED]))
        always = [c for c in ranked if is_legal(largest, c, info)]
        found.update(dict.fromkeys(always[:1]))
    return list(found)


def merge(
    choices: Sequence[Choice], problem: Problem, info: DeviceInfo
) -> tuple[list[Config | None], list[int]]:
    """The fewest runs of hints such that one config is within TOLERANCE of the choice at each of
    a run, and the number of the last hint of each. From left to right, as far as each will go:
    that leaves the fewest. The vendor's call replaces no template that was chosen over it by its
    own margin, and the last run's config is legal for any number of rows."""
    configs: list[Config | None] = []
    lasts: list[int] = []
    start = 0
    while start < len(choices):
        common = near(choices[start])
        end = start + 1
        while end < len(choices) and (shared := common.keys() & near(choices[end]).keys()):
            more = near(choices[end])
            common = {config: common[config] + more[config] for config in shared}
            end += 1
        if end == len(choices):
            largest = replace(problem, m=_LARGEST)
            always = {c: t for c, t in common.items() if c is None or is_legal(largest, c, info)}
            if not always:  # the vendor's call, from the last hint on
                configs += [min(common, key=lambda c: common[c]), None]
                lasts += [end - 1, end - 1]
                break
            common = always
        configs.append(min(common, key=lambda c: common[c]))
        lasts.append(end - 1)
        start = end
    return configs, lasts


def near(choice: Choice) -> dict[Config | None, float]:
    """Config -> its time over the choice's, for those within TOLERANCE of it."""
    times = dict(choice.times)
    by_label: Mapping[str, Config | None] = {c.label: c.config for c in choice.candidates}
    label = "extern" if choice.config is None else str(choice.config)
    if label not in times:
        return {choice.config: 1.0}
    found = {by_label[n]: t / times[label] for n, t in times.items() if n in by_label}
    return {c: r for c, r in found.items() if r <= 1 + TOLERANCE or c == choice.config}


def bound_after(
    hints: Sequence[int], last: int, config: Config | None, problem: Problem, info: DeviceInfo
) -> int:
    """The largest M that a run whose last hint is number `last` takes."""
    if last + 1 == len(hints):
        return hints[last]
    bound = max(hints[last], isqrt(hints[last] * hints[last + 1]))
    while config is not None and bound > hints[last]:
        if is_legal(replace(problem, m=bound), config, info):
            break
        bound = max(hints[last], bound // 2)
    return bound


def _to_record(
    bounds: Sequence[int], configs: Sequence[Config | None], choices: Sequence[Choice]
) -> dict[str, Any]:
    def encode(config: Config | None) -> dict[str, Any] | None:
        return asdict(config) if config else None

    return {
        "bounds": list(bounds),
        "configs": [encode(c) for c in configs],
        "choices": [
            {
                "config": encode(c.config),
                "candidates": [[encode(o.config), o.predicted, o.why] for o in c.candidates],
                "times": dict(c.times),
                "failures": dict(c.failures),
                "reason": c.reason,
            }
            for c in choices
        ],
    }


def _from_record(problem: Problem, at: Sequence[Problem], record: dict[str, Any]) -> RangeChoice:
    choices = [
        Choice(
            p,
            decode_config(r["config"]),
            tuple(Candidate(decode_config(c), s, why) for c, s, why in r["candidates"]),
            tuple(r["times"].items()),
            tuple(r["failures"].items()),
            r["reason"],
        )
        for p, r in zip(at, record["choices"], strict=True)
    ]
    configs = tuple(decode_config(c) for c in record["configs"])
    hints = tuple(p.m for p in at)
    return RangeChoice(problem, tuple(record["bounds"]), configs, hints, tuple(choices), "stored")
