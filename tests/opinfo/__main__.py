"""Every operator and module of torch's own tests, compiled, against eager.

    python tests/opinfo --device cpu --dtypes float32 --ops 'softmax|norm' --processes 2
    python tests/opinfo --device cuda --processes 12 --json sweep.jsonl --peer inductor
    python tests/opinfo --coverage docs/coverage.md

Entries run in worker processes, one at a time each; a crash or a hang of a worker is a record of
the entry's. What is random (the same call after another seed differs) or unfilled (`empty*`) is
compared by dtype, size and strides alone. Verdicts: `ok`, `graph-break` (right, in several
graphs), `wrong` (values, sizes, number of results), `dtype`, `alias` (storages shared otherwise
than by eager), `strides`, `raises`, `eager-raises`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import select
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
MODES = ("static", "dynamic", "backward", "dynamic-backward")
VARIANTS = ("function", "inplace", "train", "eval")
FINE = ("ok", "graph-break", "eager-raises")


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python tests/opinfo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtypes", default="float32,bfloat16,int64")
    parser.add_argument("--samples", type=int, default=3, help="of each entry and dtype")
    parser.add_argument("--ops", default="", help="a regular expression that names must contain")
    parser.add_argument("--variants", default="function,train,eval", help=", ".join(VARIANTS))
    for mode in MODES:
        parser.add_argument(f"--{mode}", action="store_true", help=f"only these modes: {mode}")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N parts, by hash of name")
    parser.add_argument("--elements", type=int, default=0, help="most elements of a sample")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one sample")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of the backend")
    parser.add_argument("--peer", help="a backend to ask where ours fails, such as inductor")
    parser.add_argument("--json", help="where records go, a line each")
    parser.add_argument("--coverage", help="write the page on what becomes kernels; run nothing")
    parser.add_argument("--summary", help="print the table of a file of records, and run nothing")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def settings_of(args: argparse.Namespace) -> Any:
    from opinfo.work import Settings

    modes = tuple(m for m in MODES if getattr(args, m.replace("-", "_")))
    options: dict[str, Any] = {"jobs": 1} if args.processes > 1 else {}
    for text in args.option:
        name, _, value = text.partition("=")
        options[name] = {"True": True, "False": False}.get(value, value)
    most = args.elements or (600 if args.device == "cpu" else 1 << 22)
    return Settings(
        args.device, modes or MODES[:3], args.samples, most, args.peer, options,
    )  # fmt: skip


def work(args: argparse.Namespace, commands: TextIO, out: TextIO) -> None:
    """A worker: reads `[name, variant, dtype]` lines; writes `start`, `record` and `done` lines.
    The first line that it writes is the list of all that there is to do."""
    import warnings

    import torch

    import compile_cli  # noqa: F401  # registers the backend
    from opinfo.cases import subjects
    from opinfo.work import unit

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    settings = settings_of(args)

    def say(kind: str, value: Any) -> None:
        out.write(json.dumps([kind, value]) + "\n")
        out.flush()

    dtypes, variants = args.dtypes.split(","), args.variants.split(",")
    say("todo", [
        (s.name, s.variant, dtype)
        for s in subjects(args.device).values()
        if s.variant in variants and re.search(args.ops, s.name)
        for dtype in dtypes if getattr(torch, dtype) in s.dtypes
    ])  # fmt: skip
    for line in commands:
        name, variant, dtype = json.loads(line)
        for record in unit(name, variant, dtype, settings, lambda r: say("start", r)):
            say("record", record)
            if "CUDA error" in record["text"] or "illegal memory" in record["text"]:
                return  # the device's context is lost: the next entry gets another process
        say("done", None)


class Worker:
    """A worker process, started again when it is lost."""

    def __init__(self, argv: list[str], timeout: float) -> None:
        self.argv, self.timeout = argv, timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.todo: list[list[str]] = []

    def start(self) -> None:
        if self.process is None:
            command = [sys.executable, str(HERE), "--worker", *self.argv]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                bufsize=0,  # `select` sees all that has not been read
            )  # fmt: skip
            kind, value = self.read(300)
            assert kind == "todo", f"the worker does not start: {' '.join(command)}"
            self.todo = value

    def read(self, timeout: float) -> tuple[str, Any]:
        """A line of the worker's; `("lost", why)` if none comes."""
        assert self.process is not None and self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            self.stop()
            return "lost", f"no answer in {timeout:.0f} s"
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.process = None
            return "lost", f"the process ended with {code}"
        kind, value = json.loads(line)
        return kind, value

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def records(self, entry: list[str]) -> Iterator[dict[str, Any]]:
        self.start()
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(json.dumps(entry).encode() + b"\n")
        at: dict[str, Any] = dict(zip(("op", "variant", "dtype"), entry, strict=True))
        open_case = True
        while True:
            kind, value = self.read(self.timeout)
            if kind == "start":
                at, open_case = value, True
            elif kind == "record":
                open_case = False
                yield value
            elif kind == "lost":
                if open_case:
                    yield {"sample": 0, "mode": "", **at, "verdict": "raises", "text": value}
                return
            else:
                return


def sweep(args: argparse.Namespace, argv: list[str]) -> list[dict[str, Any]]:
    """All records, written to a file as they come."""
    part, parts = (int(n) for n in args.part.split("/"))
    workers = [Worker(argv, args.timeout) for _ in range(args.processes)]
    workers[0].start()
    todo: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    chosen = [e for e in workers[0].todo if zlib.crc32(e[0].encode()) % parts == part - 1]
    for entry in chosen:
        todo.put(entry)
    records: list[dict[str, Any]] = []
    lock, left = threading.Lock(), [len(chosen)]
    begun = time.monotonic()

    def serve(worker: Worker) -> None:
        while True:
            try:
                entry = todo.get_nowait()
            except queue.Empty:
                worker.stop()
                return
            for record in worker.records(entry):
                with lock:
                    records.append(record)
                    if args.json:
                        with Path(args.json).open("a") as file:
                            file.write(json.dumps(record) + "\n")
            with lock:
                left[0] -= 1
                if left[0] % 50 == 0:
                    bad = sum(r["verdict"] not in FINE for r in records)
                    print(f"{time.monotonic() - begun:6.0f} s  {left[0]:5} entries left, "
                          f"{len(records)} records, {bad} bad", flush=True)  # fmt: skip

    if args.json:
        Path(args.json).write_text("")
    threads = [threading.Thread(target=serve, args=(w,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return records


def cause(record: dict[str, Any]) -> str:
    """The error's text without names and numbers of the case."""
    text = re.sub(r"\s*\[[\w<>.]+:\d+\]$", "", record["text"])
    text = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text)
    if record["verdict"] in ("wrong", "strides", "alias"):
        text = re.split(r"[:;]| differ| has strides| shares storage", text)[0]
    return re.sub(r"'[^']*'|\"[^\"]*\"|\([N, None]*\)|\[[N, None]*\]", "_", text)[:120]


def summary(records: list[dict[str, Any]]) -> str:
    """Counts by mode and verdict, then what failed by cause, the most frequent first."""
    lines = []
    for mode in sorted({r["mode"] for r in records}):
        counts = Counter(r["verdict"] for r in records if r["mode"] == mode)
        total = sum(counts.values())
        said = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        lines.append(f"{mode:10} {total:6} samples: {said}")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if record["verdict"] not in FINE:
            groups[record["verdict"], cause(record)].append(record)
    peers = any("peer" in r for r in records)
    lines.append("")
    for (kind, text), found in sorted(groups.items(), key=lambda g: -len(g[1])):
        names = sorted({r["op"] for r in found})
        also = ""
        if peers:
            also = f" (peer: {sum(r.get('peer') in FINE for r in found)} of them right)"
        lines.append(f"{len(found):5} {kind}: {text}{also}")
        lines.append(f"      e.g. {found[0]['text'][:300]}")
        lines.append(f"      {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}")
    bad = sum(len(found) for found in groups.values())
    worse = sum(r.get("peer") in FINE for found in groups.values() for r in found)
    lines.append(f"{len(records)} samples, {bad} of them not as eager has them" + (
        f", {worse} where the peer is right" if peers else ""))  # fmt: skip
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    args = arguments(argv)
    # The kernels of a GPU, unless asked for those of the CPU (`auto`).
    os.environ.setdefault("COMPILE_CLI_CPU_KERNELS", "interpreter")
    if args.worker:
        out = sys.stdout
        sys.stdout = sys.stderr  # what torch prints is no answer
        work(args, sys.stdin, out)
        return 0
    if args.coverage:
        from opinfo import coverage

        Path(args.coverage).write_text(coverage.page(coverage.rows(args.ops)))
        return 0
    if args.summary:
        lines = Path(args.summary).read_text().splitlines()
        records = [json.loads(line) for line in lines]
    else:
        begun = time.monotonic()
        records = sweep(args, argv)
        print(f"{time.monotonic() - begun:.0f} s")
    print(summary(records))
    return int(any(r["verdict"] not in FINE for r in records))


if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)
    sys.exit(main(sys.argv[1:]))
