"""Random programs against eager: `python tests/fuzz/run.py --seed 0 --count 1000`.

Each seed is a program; `--group` of them are compiled as one, and one by one where that fails. A
failure is made small and written to `--out`, as a file for `compile-cli run FILE:Graph` and for
`run.py --replay FILE`. Exit code: 1 where something failed.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=300, help="how many programs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="no new programs after that")
    parser.add_argument("--group", type=int, default=4, help="programs compiled as one")
    parser.add_argument("--length", default="5,40", help="fewest and most operators")
    parser.add_argument("--emit", choices=["fx", "hop", "cpp"])
    parser.add_argument("--entry", choices=["compile", "backend"])
    parser.add_argument("--dynamic", action=argparse.BooleanOptionalAction)
    parser.add_argument("--grad", action=argparse.BooleanOptionalAction)
    parser.add_argument("--minimise", type=float, default=90.0, help="seconds for each failure")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for a group")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"))
    parser.add_argument("--replay", type=Path, help="check one written file and say what it does")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _work(options)
    if options.replay:
        return _replay(options)
    return _lead(options)


def _replay(options: argparse.Namespace) -> int:
    from fuzzer.check import check
    from fuzzer.program import Loaded

    with tempfile.TemporaryDirectory() as cache:
        outcome = check(Loaded(options.replay.read_text(), options.device), cache)
    sys.stdout.write(f"{outcome}\n")
    return 1 if outcome.failure else 0


def _work(options: argparse.Namespace) -> int:
    """Reads first seeds of groups, writes what each group gave, a line of JSON each."""
    from fuzzer.group import run_group

    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as cache:
        for line in sys.stdin:
            seeds = json.loads(line)
            given = run_group(seeds, options, cache)
            answers.write(json.dumps(given) + "\n")
            answers.flush()
    return 0


class Worker:
    """A process that is started again where it dies or hangs, and now and then, to give back the
    memory of what it compiled."""

    _GROUPS = 150

    def __init__(self, options: argparse.Namespace) -> None:
        self.timeout = options.timeout
        self.command = [sys.executable, str(HERE / "run.py"), "--worker", *sys.argv[1:]]
        self.process: subprocess.Popen[str] | None = None
        self.done = 0

    def run(self, seeds: list[int]) -> dict[str, Any]:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            self.tail: list[str] = []
            threading.Thread(target=self._drain, args=(self.process,), daemon=True).start()
        process = self.process
        assert process.stdin and process.stdout
        timer = threading.Timer(self.timeout, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(seeds) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        hung = not timer.is_alive()
        timer.cancel()
        self.done += 1
        if not line:
            code = process.wait()
            self.process = None
            what = "took too long" if hung else f"ended with {code}"
            said = " | ".join(self.tail[-4:])
            return {"died": {"seeds": seeds, "text": f"the process {what}: {said}"}}
        if self.done % self._GROUPS == 0:
            process.stdin.close()
            process.wait()
            self.process = None
        found: dict[str, Any] = json.loads(line)
        return found

    def _drain(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr
        for line in process.stderr:
            self.tail = [*self.tail[-20:], line.strip()]


def _lead(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    last = options.seed + options.count
    groups: queue.Queue[list[int]] = queue.Queue()
    for first in range(options.seed, last, options.group):
        groups.put(list(range(first, min(first + options.group, last))))
    started, totals, lock = time.monotonic(), Counter[str](), threading.Lock()
    kinds: Counter[str] = Counter()

    def serve() -> None:
        worker = Worker(options)
        while time.monotonic() - started < options.minutes * 60:
            try:
                seeds = groups.get_nowait()
            except queue.Empty:
                break
            given = worker.run(seeds)
            if "died" in given and len(seeds) > 1:
                for seed in seeds:  # which of them was it?
                    with lock:
                        _record(worker.run([seed]), [seed], totals, kinds, options, started)
                continue
            with lock:
                _record(given, seeds, totals, kinds, options, started)
        if worker.process is not None and worker.process.stdin:
            worker.process.stdin.close()
            worker.process.wait()

    threads = [threading.Thread(target=serve) for _ in range(options.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(
        f"seeds {options.seed} to {options.seed + totals['programs'] - 1}: {totals['programs']} "
        f"programs, {totals['calls']} calls compared, {totals['eager']} refused by eager, "
        f"{totals['refused']} calls refused with a reason, {totals['torch']} fail in torch, "
        f"{totals['failed']} failed "
        f"in {time.monotonic() - started:.0f} s\n"
    )
    for kind, number in kinds.most_common():
        sys.stdout.write(f"  {number:5} {kind}\n")
    return 1 if totals["failed"] else 0


def _record(
    given: dict[str, Any], seeds: list[int], totals: Counter[str], kinds: Counter[str],
    options: argparse.Namespace, started: float,
) -> None:  # fmt: skip
    totals["programs"] += len(seeds)
    if "died" in given:
        given = {"failures": [{"seed": seeds[0], "kind": "died", "where": "",
                               "text": given["died"]["text"], "source": ""}]}  # fmt: skip
    for name in ("calls", "eager", "refused"):
        totals[name] += given.get(name, 0)
    for failure in given.get("failures", []):
        totals["torch" if failure.get("torch") else "failed"] += 1
        kinds[f"{failure['kind']} {failure['where']}".strip()] += 1
        file = (
            options.out
            / f"seed{failure['seed']}_{failure['kind'].replace(' ', '_').replace(chr(39), '')}.py"
        )
        file.write_text(failure["source"])
        sys.stdout.write(
            f"seed {failure['seed']}: {failure['kind']} {failure['where']}: {failure['text']}\n"
            f"  {file}  {time.monotonic() - started:.0f} s, {totals['programs']} programs\n"
        )
    for refusal in given.get("refusals", []):
        kinds[f"(refused) {refusal}"] += 1
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
