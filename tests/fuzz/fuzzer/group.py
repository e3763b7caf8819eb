"""Several seeds as one program; where it fails, each by itself, made small."""

from __future__ import annotations

import random
from typing import Any

from fuzzer.check import Failure, Outcome, check
from fuzzer.generate import generate
from fuzzer.minimise import minimise
from fuzzer.program import Loaded, Program, merged
from fuzzer.settings import Setting, draw_setting


def run_group(seeds: list[int], options: Any, cache: str) -> dict[str, Any]:
    """What a group of seeds gave, as plain data."""
    setting = draw_setting(
        random.Random(seeds[0]), options.emit, options.dynamic, options.grad, options.entry
    )
    least, most = (int(n) for n in options.length.split(","))
    programs = [generate(seed, setting, (least, most)) for seed in seeds]
    device = options.device
    given: dict[str, Any] = {"calls": 0, "eager": 0, "refused": 0, "failures": [], "refusals": []}
    alone = [(seed, program) for seed, program in zip(seeds, programs, strict=True)]
    if len(programs) > 1:
        outcome = _check(merged(programs), setting, cache, device)
        if outcome.failure is None and outcome.calls:
            _count(given, outcome, len(programs))
            return given
    found = False
    for seed, program in alone:
        outcome = _check(program, setting, cache, device)
        _count(given, outcome, 1)
        if outcome.failure is not None:
            found = True
            given["failures"].append(
                _reported(seed, program, setting, outcome.failure, options, cache)
            )
    if len(programs) > 1 and not found:
        outcome = _check(merged(programs), setting, cache, device)
        if outcome.failure is not None:
            given["failures"].append(
                _reported(seeds[0], merged(programs), setting, outcome.failure, options, cache)
            )
    return given


def _check(program: Program, setting: Setting, cache: str, device: str) -> Outcome:
    return check(Loaded(program.source(setting), device), cache)


def _count(given: dict[str, Any], outcome: Outcome, programs: int) -> None:
    given["calls"] += outcome.calls * programs
    for why in outcome.refused:
        eager = why.startswith("eager")
        given["eager" if eager else "refused"] += 1
        if not eager:
            given["refusals"].append(
                why.splitlines()[0][:100] + " " + why[-160:].replace("\n", " ")
            )


def _reported(
    seed: int, program: Program, setting: Setting, failure: Failure, options: Any, cache: str
) -> dict[str, Any]:
    """The failure, made small unless torch's own capture fails likewise, or this process has made
    that error small before."""

    def fails(smaller: Program, simpler: Setting) -> bool:
        found = _check(smaller, simpler, cache, options.device).failure
        if found is None or found.key != failure.key:
            return False
        seen.append(found)
        return True

    seen = [failure]
    known = failure.key in _KNOWN
    blamed = _peer(program, setting, options.device, cache, failure)
    if options.minimise and not known and not blamed:
        program, setting = minimise(program, setting, fails, options.minimise)
        blamed = _peer(program, setting, options.device, cache, failure)
        if failure.kind in ("compile", "call"):
            _KNOWN.add(failure.key)
    last = seen[-1]
    note = f"seed {seed}: {last.kind} {last.where}\n{last.text}"
    if blamed:
        note += f"\ntorch's own capture, without a compiler, does the same: {blamed}"
    return {
        "seed": seed, "kind": f"torch's {last.kind}" if blamed else last.kind, "where": last.where,
        "text": "(as before)" if known else last.text, "source": program.source(setting, note),
        "torch": blamed is not None,
    }  # fmt: skip


_KNOWN: set[str] = set()


def _peer(
    program: Program, setting: Setting, device: str, cache: str, failure: Failure
) -> str | None:
    found = check(Loaded(program.source(setting), device), cache, "peer").failure
    return found.text if found is not None and found.kind == failure.kind else None
