"""One decision for a range of M: which config from which number of rows on."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from gemm_templates import choice as choosing
from gemm_templates.device import DeviceInfo, device_info
from gemm_templates.errors import InvalidProblem
from gemm_templates.launch import Bound, Inputs, bind
from gemm_templates.model import candidates, is_legal
from gemm_templates.problem import Config, Problem
from multikernel import RecordStore as Store
from multikernel import boundary, fewest_runs
from tuning import MARGINS

_LIMIT = 6  # candidates that are measured at each hint
_PROPOSED = 3  # configs that each hint adds to those measured at all
_LARGEST = 2**24  # rows; what is legal there is taken to be legal for any larger number


@dataclass(frozen=True)
class RangeChoice:
    """What to run for any M: `configs[i]` (None: the vendor's call) up to `bounds[i]` rows,
    inclusive, and the last one beyond.

    problem: with M dynamic. hints: the numbers of rows that were looked at, ascending.
    choices: for each hint, the choice for it alone, with its times. reason: "measured", "stored",
    "model", "no GPU" or "only one", as of the choices."""

    problem: Problem
    bounds: tuple[int, ...]
    configs: tuple[Config | None, ...]
    hints: tuple[int, ...]
    choices: tuple[choosing.Choice, ...]
    reason: str = "measured"

    def config(self, m: int) -> Config | None:
        """What to run for `m` rows."""
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
    force: bool | choosing.Timer = False,
    build: Callable[[Problem, Config], Callable[[Inputs, int], None]] = bind,
) -> RangeChoice:
    """Chooses at each of `hints` (numbers of rows) among at most six candidates, the vendor's
    call among them, and joins neighbouring hints where one config is within 3 % of the best of
    each. Between hints whose configs differ the boundary is their geometric mean, or less where
    the config is not legal for as many rows. A config is compiled once, with M at run time, and
    must be legal so. Decompose-K takes part: its workspace grows with M.

    problem: with "M" in `dynamic`; its `m` counts for nothing. inputs: makes the tensors for a
    number of rows. All else is as in `choose`, whose store keeps the measurements at each hint,
    and with them the decision.

    Raises InvalidProblem if M is not dynamic, or there is no hint."""
    hints = sorted({*hints})
    if "M" not in problem.dynamic or not hints or hints[0] < 1:
        raise InvalidProblem(f"{problem}, hints {hints}: expected M in `dynamic`, and hints >= 1")
    store = store or Store()
    info = device_info(torch.device(device))
    problem = replace(problem, m=hints[-1])
    at = [replace(problem, m=hint) for hint in hints]
    key = "\n".join([choosing.choice_key(problem, info, None), f"range {hints} limit {_LIMIT}"])
    if (record := store.get(key)) is not None:
        return _from_record(problem, at, record)

    proposed = proposals(at, info)
    built: dict[Config, Callable[[Inputs, int], None]] = {}
    for config in proposed:
        built[config] = build(problem, config)
    found = [candidates(p, info, limit=_LIMIT, configs=proposed) for p in at]
    for p, options in zip(at, found, strict=True):
        for c in options:
            run = built.get(c.config) if c.config is not None else None
            if isinstance(run, Bound) and torch.device(device).type == "cuda":
                run.prepare(inputs(p.m), p.m)

    def with_rows(p: Problem, config: Config) -> Callable[[Inputs], None]:
        return lambda given: built[config](given, p.m)

    choices = [
        choosing.choose(
            p, partial(inputs, p.m), extern, options, device=device,
            deterministic=deterministic, force=force, build=with_rows,
        )
        for p, options in zip(at, found, strict=True)
    ]  # fmt: skip
    configs, lasts = merge(choices, problem, info)
    for taken in filter(None, configs):
        run = built[taken]
        if isinstance(run, Bound) and torch.device(device).type == "cuda":
            for m in (16, 17):  # numbers of rows that 16 divides have a kernel of their own
                run.prepare(inputs(hints[0]), m)
    bounds = [
        bound_after(hints, last, config, problem, info)
        for config, last in zip(configs, lasts, strict=True)
    ][:-1]
    reasons = {c.reason for c in choices}
    reason = "measured" if "measured" in reasons else choices[0].reason
    if reason == "measured":
        encoded = [choosing.encode_config(config) for config in configs]
        records = [choosing.to_record(choice) for choice in choices]
        store.put(key, {"bounds": bounds, "configs": encoded, "choices": records})
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
    choices: Sequence[choosing.Choice], problem: Problem, info: DeviceInfo
) -> tuple[list[Config | None], list[int]]:
    """The fewest runs of hints such that one config is within `MARGINS.rows` of the choice at each
    of a run, and the number of the last hint of each. From left to right, as far as each will go:
    that leaves the fewest. The vendor's call replaces no template that was chosen over it by its
    own margin, and the last run's config is legal for any number of rows."""
    configs: list[Config | None] = []
    lasts: list[int] = []
    end = 0
    for count, common in fewest_runs([near(choice) for choice in choices]):
        end += count
        if end == len(choices):
            largest = replace(problem, m=_LARGEST)
            always = {c: t for c, t in common.items() if c is None or is_legal(largest, c, info)}
            if not always:  # the vendor's call, from the last hint on
                configs += [_cheapest(common), None]
                lasts += [end - 1, end - 1]
                break
            common = always
        configs.append(_cheapest(common))
        lasts.append(end - 1)
    return configs, lasts


def _cheapest(costs: Mapping[Config | None, float]) -> Config | None:
    return min(costs, key=lambda config: costs[config])


def near(choice: choosing.Choice) -> dict[Config | None, float]:
    """Config -> its time over the choice's, for those within `MARGINS.rows` of it."""
    times = dict(choice.times)
    by_label: Mapping[str, Config | None] = {c.label: c.config for c in choice.candidates}
    label = "extern" if choice.config is None else str(choice.config)
    if label not in times:
        return {choice.config: 1.0}
    found = {by_label[n]: t / times[label] for n, t in times.items() if n in by_label}
    return {c: r for c, r in found.items() if r <= 1 + MARGINS.rows or c == choice.config}


def bound_after(
    hints: Sequence[int], last: int, config: Config | None, problem: Problem, info: DeviceInfo
) -> int:
    """The largest M that a run whose last hint is number `last` takes."""
    if last + 1 == len(hints):
        return hints[last]
    bound = max(hints[last], boundary(hints[last], hints[last + 1]))
    while config is not None and bound > hints[last]:
        if is_legal(replace(problem, m=bound), config, info):
            break
        bound = max(hints[last], bound // 2)
    return bound


def _from_record(problem: Problem, at: Sequence[Problem], record: dict[str, Any]) -> RangeChoice:
    stored = zip(at, record["choices"], strict=True)
    choices = tuple(choosing.from_record(p, choice, choice["reason"]) for p, choice in stored)
    configs = tuple(choosing.decode_config(c) for c in record["configs"])
    hints = tuple(p.m for p in at)
    return RangeChoice(problem, tuple(record["bounds"]), configs, hints, choices, "stored")
