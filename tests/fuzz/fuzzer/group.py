"""A worker: several seeds as one program; where it fails, each by itself."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import random
import re
import sys
import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fuzzer.check import Failure, Outcome, check
from fuzzer.generate import generate
from fuzzer.minimise import minimise
from fuzzer.program import Loaded, Program, alike, merged, names_in
from fuzzer.settings import Setting, draw_setting

_BLOCK = 4  # seeds that follow each other and have one setting
_ALIKE = 0.12  # the share of blocks that are one program several times


def serve(options: Namespace) -> int:
    """Reads jobs and writes what each gave, a line of JSON each."""
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of Dynamo, thousands
    gc.freeze()  # what is imported stays
    gc.set_threshold(50_000, 20, 100)
    with tempfile.TemporaryDirectory() as cache:
        for line in sys.stdin:
            job = json.loads(line)
            faulthandler.dump_traceback_later(0.6 * options.timeout)  # what hangs says where
            group = Group(job["seeds"], options, cache)
            given = group.small() if job.get("small") else group.run()
            faulthandler.cancel_dump_traceback_later()
            given["rss"] = _rss()
            answers.write(json.dumps(given) + "\n")
            answers.flush()
    return 0


def _rss() -> int:
    """Bytes of memory that this process has now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Group:
    """The programs of some seeds of a block."""

    def __init__(self, seeds: list[int], options: Namespace, cache: str) -> None:
        self.seeds, self.options, self.cache = seeds, options, cache
        rng = random.Random(seeds[0] // _BLOCK)
        self.setting = draw_setting(
            rng, options.emit, options.dynamic, options.grad,
            options.entry, elements=options.elements,
        )  # fmt: skip
        least, most = (int(n) for n in options.length.split(","))
        self.programs = [generate(seed, self.setting, (least, most)) for seed in seeds]
        if len(seeds) > 1 and rng.random() < _ALIKE:
            self.programs = alike(self.programs[0], len(seeds))
        self.given: dict[str, Any] = {
            "calls": 0, "eager": 0, "refused": 0, "failures": [], "refusals": [],
        }  # fmt: skip

    def run(self) -> dict[str, Any]:
        """What the programs gave, as plain data."""
        whole = merged(self.programs) if len(self.programs) > 1 else self.programs[0]
        outcome = self._check(whole, self.setting)
        if len(self.programs) == 1 or (outcome.failure is None and outcome.calls):
            self._count(outcome, len(self.programs))
            if outcome.failure is not None:
                self._found(self.seeds, whole, outcome.failure)
            return self.given
        for seed, program in zip(self.seeds, self.programs, strict=True):
            alone = self._check(program, self.setting)
            self._count(alone, 1)
            if alone.failure is not None:
                self._found([seed], program, alone.failure)
        if outcome.failure is not None and not self.given["failures"]:
            self._found(self.seeds, whole, outcome.failure)
        return self.given

    def small(self) -> dict[str, Any]:
        """The failure of these seeds, made small."""
        program = merged(self.programs) if len(self.programs) > 1 else self.programs[0]
        failure = self._check(program, self.setting).failure
        if failure is None:
            return self.given
        last, key = failure, failure.key

        def fails(smaller: Program, simpler: Setting) -> bool:
            nonlocal last
            found = self._check(smaller, simpler).failure
            if found is None or found.key != key:
                return False
            last = found
            return True

        program, setting = minimise(program, self.setting, fails, self.options.minimise)
        self._report(self.seeds, program, setting, last, "", False)
        return self.given

    def _check(self, program: Program, setting: Setting, compiler: str = "ours") -> Outcome:
        loaded = Loaded(program.source(setting), self.options.device)
        outcome = check(loaded, self.cache, compiler)
        if outcome.failure is not None and "CUDA error" in outcome.failure.text:
            self.given["spoilt"] = True  # nothing runs on the device in this process any more
        return outcome

    def _count(self, outcome: Outcome, programs: int) -> None:
        self.given["calls"] += outcome.calls * programs
        for why in outcome.refused:
            eager = why.startswith("eager")
            self.given["eager" if eager else "refused"] += 1
            if not eager:
                said = re.sub(r"\d+", "#", " ".join(why.split()))
                self.given["refusals"].append(said[:100] + (" ... " + said[-160:])[-165:])

    def _found(self, seeds: list[int], program: Program, failure: Failure) -> None:
        spoilt = self.given.get("spoilt")
        blamed = None if spoilt else self._peer(program, failure)
        key = failure.key
        if blamed is None and not spoilt and not key.startswith(("compile", "call")):
            key = f"{key} {self._first_wrong(program, failure)}"
        self._report(seeds, program, self.setting, failure, key, blamed is not None)

    def _report(
        self, seeds: list[int], program: Program, setting: Setting, failure: Failure, key: str,
        torch_too: bool,
    ) -> None:  # fmt: skip
        note = f"seed {' '.join(map(str, seeds))}: {failure.kind} {failure.where}\n{failure.text}"
        self.given["failures"].append({
            "seeds": seeds, "key": key, "text": f"{failure.where}: {failure.text}",
            "torch": torch_too, "source": program.source(setting, note),
            "short": program.short(setting),
        })  # fmt: skip

    def _peer(self, program: Program, failure: Failure) -> str | None:
        """What torch's own capture does, where it fails in the same way."""
        found = self._check(program, self.setting, "peer").failure
        return found.text if found is not None and _alike(found, failure) else None

    def _first_wrong(self, program: Program, failure: Failure) -> str:
        """The operator of the first step whose result is wrong, where all are returned."""
        made = [(s.result, s.text) for s in program.steps if s.result]
        if failure.kind == "gradient" or not made:
            return ""
        every = replace(program, result=f"({', '.join(n for n, _ in made)},)")
        found = self._check(every, self.setting).failure
        if found is None or found.kind != failure.kind or not found.where.startswith("result "):
            return ""
        return _operator(made[int(found.where.split()[1])][1])


def _operator(text: str) -> str:
    """`torch.add(v0, a1, alpha=2)` -> `torch.add`; `v0[1:] + a1` -> `[] +`."""
    call = re.match(r"(?:torch|F)\.([\w.]+)\(", text)
    if call:
        return call.group(1)
    bare = re.sub(r"\b(?:v|a|b|c)\d+(?:_\d+)?\b", "", text)
    method = re.match(r"\.(\w+)", bare)
    if method:
        return f".{method.group(1)}"
    return re.sub(r"[\w.]+|\s+|[(),:'-]", "", bare)[:6] if names_in(text) else ""


def _alike(a: Failure, b: Failure) -> bool:
    def said(failure: Failure) -> str:
        """Without what wraps it: a backend, or an error of ours that says where and why; without
        numbers of lines and objects."""
        bare = re.sub(r"backend='\w+'|<fuzz|\d+", "", failure.text)
        return max(re.split(r"\b[A-Z]\w+Error: ", bare), key=len)[:100]

    if a.kind in ("compile", "call"):
        return b.kind in ("compile", "call") and said(a) == said(b)
    return (a.kind, a.where, _rounded(a.text)) == (b.kind, b.where, _rounded(b.text))


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+(e[-+]\d+)?", lambda number: f"{float(number[0]):.3g}", text)
