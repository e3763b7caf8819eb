"""Hands seeds to worker processes, ends them in time, and says what was found, by class."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_FINDING = 0.85  # of the time, where the rest makes failures small
_RSS = 3 << 30  # bytes: a worker that has more is started again


@dataclass
class Class:
    """Failures that are taken for one. example: the shortest of them, or one made small."""

    key: str
    torch: bool
    seeds: list[int] = field(default_factory=list)
    example: dict[str, Any] = field(default_factory=dict)
    small: bool = False


def lead(options: Namespace, command: list[str]) -> int:
    run = _Run(options, command)
    threads = [threading.Thread(target=run.serve) for _ in range(options.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(run.summary())
    return 1 if any(not c.torch for c in run.classes.values()) else 0


class _Run:
    def __init__(self, options: Namespace, command: list[str]) -> None:
        self.options, self.command = options, command
        self.started = time.monotonic()
        self.end = self.started + options.minutes * 60
        share = _FINDING if options.minimise else 1.0
        self.finding_ends = self.started + share * options.minutes * 60
        self.jobs: queue.Queue[list[int]] = queue.Queue()
        last = options.seed + options.count
        first = options.seed
        while first < last:  # a group lies inside one block of four seeds
            after = min(first - first % options.group + options.group, last)
            self.jobs.put(list(range(first, after)))
            first = after
        self.lock = threading.Lock()
        self.totals: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.classes: dict[str, Class] = {}
        options.out.mkdir(parents=True, exist_ok=True)

    def serve(self) -> None:
        """What one worker is asked for: groups, their parts where one dies, and small failures."""
        worker = _Worker(self.command)
        while time.monotonic() < self.finding_ends:
            try:
                seeds = self.jobs.get_nowait()
            except queue.Empty:
                break
            parts = [seeds]
            while parts and time.monotonic() < self.end:
                part = parts.pop(0)
                given = self._ask(worker, {"seeds": part})
                if "died" in given and len(part) > 1:
                    parts += [[seed] for seed in part]  # which of them was it?
                elif given:
                    self._record(given, part)
        while (example := self._unshortened()) is not None:
            given = self._ask(worker, {"seeds": example.example["seeds"], "small": True})
            for failure in given.get("failures", []):
                with self.lock:
                    example.example = failure
                    self._write(example)
        worker.stop()

    def _ask(self, worker: _Worker, job: dict[str, Any]) -> dict[str, Any]:
        """Nothing where the time of the run is up."""
        limit = self.options.timeout + (self.options.minimise if "small" in job else 0.0)
        left = self.end - time.monotonic()
        given = worker.ask(job, min(limit, left))
        return {} if "died" in given and time.monotonic() >= self.end else given

    def _unshortened(self) -> Class | None:
        """The most frequent class whose example nobody has made small."""
        with self.lock:
            left = [c for c in self.classes.values() if not c.small and not c.torch]
            if not left or not self.options.minimise or time.monotonic() >= self.end:
                return None
            found = max(left, key=lambda c: len(c.seeds))
            found.small = True
            return found

    def _record(self, given: dict[str, Any], seeds: list[int]) -> None:
        with self.lock:
            self.totals["programs"] += len(seeds)
            for name in ("calls", "eager", "refused"):
                self.totals[name] += given.get(name, 0)
            self.refusals.update(given.get("refusals", []))
            failures = given.get("failures", [])
            if "died" in given:
                failures = [{"seeds": seeds, "key": given["died"], "torch": False,
                             "text": given["said"], "source": "", "short": ""}]  # fmt: skip
            for failure in failures:
                self.totals["torch" if failure["torch"] else "failed"] += 1
                key = ("torch's " if failure["torch"] else "") + failure["key"]
                found = self.classes.setdefault(key, Class(key, failure["torch"]))
                found.seeds += failure["seeds"][:1]
                if not found.example or len(failure["source"]) < len(found.example["source"]):
                    found.example = failure
                    self._write(found)
                sys.stdout.write(
                    f"seed {failure['seeds'][0]}: {key}: {failure['text'][:200]}  "
                    f"[{self.totals['programs']} programs, "
                    f"{time.monotonic() - self.started:.0f} s]\n"
                )
            sys.stdout.flush()

    def _write(self, found: Class) -> None:
        name = "".join(c if c.isalnum() else "_" for c in found.key)[:80]
        (self.options.out / f"{name}.py").write_text(found.example["source"])

    def summary(self) -> str:
        totals, options = self.totals, self.options
        seconds = time.monotonic() - self.started
        out = [
            f"\nseeds from {options.seed}: {totals['programs']} programs, {totals['calls']} calls "
            f"compared, {totals['eager']} refused by eager, {totals['refused']} calls refused with "
            f"a reason, {totals['torch']} fail in torch, {totals['failed']} failed in "
            f"{len([c for c in self.classes.values() if not c.torch])} classes; {seconds:.0f} s, "
            f"{options.processes} processes\n"
        ]
        ranked = sorted(self.classes.values(), key=lambda c: (c.torch, -len(c.seeds)))
        for found in ranked:
            seeds = " ".join(str(s) for s in found.seeds[:12])
            out.append(f"{len(found.seeds):5}  {found.key}   (seeds {seeds})\n")
        for why, number in self.refusals.most_common(30):
            out.append(f"{number:5}  (refused) {why}\n")
        for found in ranked:
            if not found.torch:
                out.append(f"\n=== {len(found.seeds)} of {found.key}\n{found.example['text']}\n")
                out.append(found.example["short"])
        return "".join(out)


class _Worker:
    """A process that is started again where it dies, hangs or grows."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[str] | None = None

    def ask(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer, or `died` (how) and `said` (the last lines of its standard error)."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            self.tail: list[str] = []
            threading.Thread(target=self._drain, args=(self.process,), daemon=True).start()
        process, late = self.process, threading.Event()

        def kill() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(max(seconds, 0.0), kill)
        timer.start()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        timer.cancel()
        if not line:
            _kill(process)
            code = process.wait()
            self.process = None
            how = "hangs" if late.is_set() else f"the process dies with {code}"
            # The main thread comes last, its innermost frame first.
            starts = [i for i, line in enumerate(self.tail) if line.startswith("Thread ")]
            frames = self.tail[starts[-1] :] if starts else []
            said = [x for x in frames if "site-packages" not in x][:9] or self.tail[-4:]
            return {"died": how, "said": " | ".join(said)}
        found: dict[str, Any] = json.loads(line)
        if found["rss"] > _RSS or found.get("spoilt"):
            self.stop()
        return found

    def stop(self) -> None:
        if self.process is not None:
            _kill(self.process)
            self.process.wait()
            self.process = None

    def _drain(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr
        for line in process.stderr:
            self.tail = [*self.tail[-200:], line.strip()]


def _kill(process: subprocess.Popen[str]) -> None:
    """The worker and the compile workers that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
