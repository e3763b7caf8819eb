"""The guessed schedules of kernels beside the fastest of all their candidates.

    python benchmarks/guesses.py [--cases kernel_cases odd_cases] [--only softmax] [--seconds 130]
                                 [--out guesses.jsonl] [--processes 14] [--part 0/2]

Processes compile the cases of the lists, which are shuffled, and take turns on the GPU: what is
measured is measured alone. A line for each case as it is done: the time of its guesses over that of
the fastest, and every kernel whose guess lost. After `--seconds` no further case is begun, so what
was measured is a fair sample. The bar: 90 % of the rows within 5 %.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from kernel_cases import Case
from kernels import NEAR, chosen, compiled, inputs, keep_graphs, too_long, tuned

import planner.schedules.tuning as schedules
import tuning

LISTS = ("kernel_cases", "odd_cases", "kernelbench_single_cases")


class Turn:
    """One process at a time holds the GPU."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")
        self.held = False

    def take(self) -> None:
        if not self.held:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            self.held = True

    def give(self) -> None:
        if self.held:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.held = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.give()


def in_turns(turn: Turn) -> None:
    """What is measured of schedules is measured by one process at a time, from its arguments on."""
    arguments, autotune = schedules.arguments, tuning.autotune

    def first(*args: Any, **more: Any) -> Any:
        turn.take()
        return arguments(*args, **more)

    def alone(*args: Any, **more: Any) -> Any:
        with turn():
            return autotune(*args, **more)

    schedules.arguments = first  # type: ignore[attr-defined]  # a module has any attribute
    tuning.autotune = alone


def work(cases: list[Case], folder: Path, out: Path, end: float) -> None:
    turn = Turn(folder / "turn")
    in_turns(turn)
    for number, case in enumerate(cases):
        if time.time() > end:
            return
        try:
            (folder / f"case{number}").touch(exist_ok=False)
        except FileExistsError:
            continue  # another process has it
        row: dict[str, Any] = {"family": case.family, "name": case.name}
        began = time.time()
        signal.alarm(90)
        try:
            with turn():
                args = inputs(case)
            run = compiled(case, "compile_cli", tune="max", gemm="extern", jobs=1)
            run(*args)
        except Exception as error:  # a compiler's failure is a row
            row["failed"] = (str(error).splitlines() or [repr(error)])[0][:200]
        signal.alarm(0)
        turn.give()
        row |= tuned()
        row["seconds"] = round(time.time() - began, 1)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def summary(out: Path) -> int:
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for row in sorted(rows, key=lambda r: -r.get("guess", 0)):
        if row.get("guess", 0) > NEAR:
            text = f"{row['family']}: {row['name']}: guess / fastest {row['guess']:.3f}"
            print(text, *row["schedules"], sep="\n    ")
        if "failed" in row:
            print(f"{row['family']}: {row['name']}: {row['failed']}")
    guesses = [r["guess"] for r in rows if "guess" in r]
    near = sum(g <= NEAR for g in guesses)
    print(f"guessed schedules within {NEAR - 1:.0%} of the fastest: {near} of {len(guesses)} rows "
          f"({near / max(len(guesses), 1):.1%}); the others had no choice")  # fmt: skip
    return int(near < 0.9 * len(guesses))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=LISTS, help="modules beside this one")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("guesses.jsonl"))
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--part", default="0/1", help="of several runs: this one of so many")
    parser.add_argument("--worker", type=Path)
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    found = [c for module in options.cases for c in chosen(module, options.only)]
    random.Random(0).shuffle(found)
    found = found[part::parts]
    end = time.time() + options.seconds
    if options.worker is not None:
        signal.signal(signal.SIGALRM, too_long)
        keep_graphs()
        work(found, options.worker, options.out, end)
        return 0
    options.out.write_text("")
    folder = Path(f"{options.out}.work")
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    again = [sys.executable, *sys.argv, "--worker", str(folder)]
    workers = [subprocess.Popen(again) for _ in range(options.processes)]
    for worker in workers:
        worker.wait()
    return summary(options.out)


if __name__ == "__main__":
    sys.exit(main())
