"""Training steps through `torch.compile`: eager, Inductor and compile_cli in one run.

    python benchmarks/training.py [--only bert resnet50 adamw] [--out training.json]
                                  [--seconds 240] [--processes 10] [--repeats 9] [--kernels 15]
    python benchmarks/training.py --tiny --device cpu --only gpt2 adamw   # does it run?

A step is forward, loss and backward, of f32 weights under autocast to bf16 (Llama: bf16 weights),
dropout on; steps of optimizers are rows of their own. Each backend of a model has a process of its
own, so that peak memory (of torch's allocator, weights and gradients included) is its own. They
compile side by side, `--processes` at a time, of as many models, but take turns with first steps,
so that one at a time has a step's memory, and where they measure kernels. Seconds of first calls
are without what was waited for a turn, but cores are shared: `--processes 1` is what they are to be
compared in. Then each measures alone, the backends of a model in turns: medians of the
milliseconds of a step, of a few in a row. `--backends eager "compile_cli saved=float8_e5m2"` sets
options of a backend.

`--kernels N` prints what a step launches, by the profiler: how much time is in whose kernels, and
the N kernels whose times differ most between ours and Inductor.

Losses and norms of gradients are held against eager's, which dropout moves a little. What failed,
or was not compiled in `--seconds`, is a row that says so, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import importlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

BACKENDS = ("eager", "inductor", "compile_cli")
CACHES = ("COMPILE_CLI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
STEPS = 3  # in a row, between two events
TURNS = 3  # of each backend of a model
RESERVE, LESS = 4.0, 1.0  # seconds that the measuring of a model's row takes, and an optimizer's
LARGE = 2 << 30  # bytes that a process does not keep while others run
THREADS = 4  # of torch on the CPU, in each process
PROFILE = "profile"  # in place of a number of repeats
FORK = multiprocessing.get_context("fork")
NEAR = 0.15  # by which losses and norms of gradients may differ: dropout is another


KINDS = {  # of kernels, by what is in their names
    "attention": ("flash", "fmha", "mha_", "attention", "sdpa"),
    "torch": ("at::",),
    "convolution": ("conv", "cudnn", "dgrad", "wgrad", "fprop"),
    "vendor matmul": ("gemm", "nvjet", "splitk", "cutlass", "cublas", "xmma"),
    "copy, fill": ("memcpy", "memset"),
    "Triton": ("_",),
}


# ---- a process of one model and backend
class Turn:
    """What one process of this benchmark holds at a time: the memory of a step while it runs, or
    the clock to measure kernels by. What a process waits is not its own."""

    def __init__(self, of: str) -> None:
        self.file = os.open(f"{os.environ['TRAINING_LOCKS']}/{of}", os.O_CREAT | os.O_WRONLY)
        self.waited = 0.0

    def take(self, *_: Any) -> None:
        begin = time.perf_counter()
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            drop_unused(0)
            fcntl.flock(self.file, fcntl.LOCK_EX)
        self.waited += time.perf_counter() - begin

    def give(self, *_: Any) -> None:
        drop_unused(LARGE)
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def while_measuring(self, owner: Any, name: str) -> None:
        """Of a function that measures kernels."""
        measure = getattr(owner, name)

        def waiting(*args: Any, **more: Any) -> Any:
            self.take()
            try:
                return measure(*args, **more)
            finally:
                self.give()

        setattr(owner, name, waiting)

    def while_inductor_measures(self, *_: Any) -> None:
        """Which is in a first step, once it has imported by itself what measures."""
        heuristics: Any = sys.modules.get("torch._inductor.runtime.triton_heuristics")
        if heuristics and not hasattr(heuristics, "benchmarks_wait"):
            heuristics.benchmarks_wait = True
            self.while_measuring(heuristics.CachingAutotuner, "benchmark_all_configs")


def drop_unused(least: int) -> None:
    """What torch's allocator holds that no tensor uses is given back, if it holds so much."""
    import torch

    if torch.cuda.is_initialized():
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if unused > least:
            torch.cuda.empty_cache()


class Step:
    """A training step of a model or an optimizer under a backend. After a call, `found` is called
    for what came of it, and `rest` gives its memory to others."""

    def __init__(self, name: str, backend: str, tiny: bool, device: str) -> None:
        import torch
        from training_models import MODELS, OPTIMIZERS
        from training_others import other, steps

        of, *words = backend.split()
        more = {"options": dict(map(option, words))} if words else {}

        def compiled(run: Any) -> Any:
            return run if of == "eager" else torch.compile(run, backend=of, **more)

        torch.manual_seed(0)
        if of_parameters(name):
            optimizer = (OPTIMIZERS.get(name) or steps(name))(tiny, device)
            parameters = optimizer.param_groups[0]["params"]
            self.run: Callable[[], Any] = compiled(optimizer.step)
            self.found: Callable[[], dict[str, float]] = lambda: {"norm": norm(parameters)}
            self.rest: Callable[[], None] = lambda: None
            return
        chosen = MODELS.get(name) or other(name)
        with torch.device(device):
            model, given = chosen.make(tiny)
        model.train()
        autocast = chosen.autocast
        if not autocast:
            model.bfloat16()
        loss_of = compiled(model)
        loss = torch.tensor(math.nan)

        def run() -> None:
            nonlocal loss
            model.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16) if autocast else nullcontext():
                loss = loss_of(*given)
            loss.backward()

        def found() -> dict[str, float]:
            return {"loss": loss.item(), "norm": norm([p.grad for p in model.parameters()])}

        def rest() -> None:
            nonlocal loss
            model.zero_grad(set_to_none=True)
            loss = loss.detach()

        self.run, self.found, self.rest = run, found, rest


def option(text: str) -> tuple[str, Any]:
    """Of NAME=VALUE; what is no number, truth or tuple is a word."""
    name, value = text.split("=")
    try:
        return name, ast.literal_eval(value)
    except ValueError:
        return name, value


def of_parameters(name: str) -> bool:
    """Whether it is the name of an optimizer's step."""
    from training_models import OPTIMIZERS

    return name in OPTIMIZERS or name.startswith("steps/")


def norm(tensors: list[Any]) -> float:
    import torch

    norms = [t.float().norm() for t in tensors if t is not None]
    return torch.stack(norms).norm().item()


def worker(asked: Connection, name: str, backend: str, options: argparse.Namespace) -> None:
    """Compiles a step, says how it went, then measures as often as it is asked to."""
    import torch
    from torch._dynamo.callback import callback_handler

    warnings.simplefilter("ignore")
    os.dup2(2, 1)  # whatever is printed
    gpu = options.device == "cuda"
    settle = torch.cuda.synchronize if gpu else lambda: None
    torch.set_num_threads(THREADS)
    memory, clock = Turn("memory"), Turn("clock")
    if backend.startswith("compile_cli"):
        import compile_cli  # noqa: F401  # registers the backend

        timer = importlib.import_module("tuning.timer")
        clock.while_measuring(timer.Timer, "run")
        clock.while_measuring(timer, "_added")
    step = Step(name, backend, options.tiny, options.device)
    callback_handler.register_start_callback(memory.give)
    callback_handler.register_end_callback(memory.take)
    if backend == "inductor":
        callback_handler.register_end_callback(clock.while_inductor_measures)
    settle()
    begin = time.perf_counter()
    try:
        if backend == "eager":
            memory.take()
        step.run()
        row: dict[str, Any] = step.found()
        settle()
        row["first_s"] = time.perf_counter() - begin - memory.waited - clock.waited
        step.run()
    except Exception as error:  # a compiler's or a kernel's failure is a row
        lines = " ".join(str(error).split())
        asked.send({"failed": f"{type(error).__name__}: {lines}"[:300]})
        os._exit(1)
    step.rest()
    drop_unused(0)
    callback_handler.clear()
    memory.give()
    asked.send(row)
    while (repeats := asked.recv()) is not None:
        if repeats == PROFILE:
            asked.send({"kernels": kernels(step.run)})
            continue
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        step.run()
        times = [milliseconds(step.run, gpu) for _ in range(repeats)]
        peak = torch.cuda.max_memory_allocated() / 2**20 if gpu else math.nan
        step.rest()
        drop_unused(0)
        asked.send({"times": times, "peak": peak})
    os._exit(0)  # compile workers are not waited for


def milliseconds(step: Callable[[], Any], gpu: bool) -> float:
    """Of a step, of a few in a row."""
    import torch

    if not gpu:
        begin = time.perf_counter()
        step()
        return (time.perf_counter() - begin) * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(STEPS):
        step()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / STEPS


def kernels(step: Callable[[], Any]) -> dict[str, tuple[int, float]]:
    """How often a step launches each kernel, and the milliseconds of all of its launches."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    found: dict[str, tuple[int, float]] = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, total = found.get(event.name, (0, 0.0))
            found[event.name] = count + 1, total + event.time_range.elapsed_us() / 1e3
    return found


def copy_rate() -> float:
    """Bytes a millisecond that a copy reads and writes."""
    import torch

    a, b = (torch.empty(1 << 30, dtype=torch.int8, device="cuda") for _ in range(2))
    return (2 << 30) / min(milliseconds(lambda: a.copy_(b), True) for _ in range(9))


# ---- the process that starts them
class Worker:
    """The process of a model and a backend: a fork of this one, which has imported what models are
    made of, and has not used the GPU."""

    def __init__(self, name: str, backend: str, options: argparse.Namespace) -> None:
        self.key = name, backend
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = FORK.Process(target=worker, args=(theirs, name, backend, options))
        self.process.start()
        theirs.close()
        self.row: dict[str, Any] = {}

    def answer(self, seconds: float) -> dict[str, Any]:
        """Its next answer; nothing where there is none in time."""
        if not self.pipe.poll(seconds):
            return {}
        try:
            found: dict[str, Any] = self.pipe.recv()
        except EOFError:
            self.process.join()
            return {"failed": f"the process ended with code {self.process.exitcode}"}
        return found

    def profile(self) -> None:
        """The kernels of a step are added to the row."""
        self.pipe.send(PROFILE)
        self.row |= self.answer(60)

    def measure(self, repeats: int) -> None:
        """A turn, whose times are added to those of the row."""
        self.pipe.send(repeats)
        found = self.answer(60) or {"failed": "its steps took more than a minute"}
        self.row["times"] = self.row.get("times", []) + found.pop("times", [])
        self.row |= found


def compiled(names: list[str], options: argparse.Namespace, until: float) -> list[Worker]:
    """A worker for each model and backend, which has compiled, or a row that says why not. Eager
    steps come last, because they need few seconds of the cores."""
    left = [(name, b) for name in names for b in options.backends if b != "eager"]
    left += [(name, b) for name in names for b in options.backends if b == "eager"]
    until -= sum(LESS if of_parameters(name) else RESERVE for name in names)
    running: list[Worker] = []
    done: list[Worker] = []
    while running or (left and time.time() < until):
        while left and len(running) < options.processes and time.time() < until:
            running.append(Worker(*left.pop(0), options))
        wait([w.pipe for w in running], 1.0)
        for worker in list(running):
            worker.row = worker.answer(0)
            if time.time() > until and not worker.row:
                worker.row = {"failed": "it was not compiled in time"}
            if worker.row:
                running.remove(worker)
                done.append(worker)
            if "failed" in worker.row:
                worker.process.kill()
    return done


def measured(
    name: str, workers: list[Worker], options: argparse.Namespace, rate: float, until: float
) -> dict[str, dict[str, Any]]:
    """The rows of a model, whose processes end."""
    from training_models import MOVED

    workers = sorted(workers, key=lambda w: options.backends.index(w.key[1]))
    for w in workers * TURNS:
        if "failed" not in w.row and time.time() < until:
            w.measure(max(1, options.repeats // TURNS))
    late = {"failed": "no time was left for it"}
    found = {b: dict(late) for b in options.backends}
    for w in workers:
        if options.kernels and "times" in w.row:
            w.profile()
        w.process.kill()
        if times := w.row.get("times"):
            w.row["ms"] = statistics.median(times)
            if name in MOVED:
                w.row["of_copy"] = MOVED[name] / rate / w.row["ms"]
        found[w.key[1]] = w.row if times or "failed" in w.row else w.row | late
    check(found)
    return found


def check(rows: dict[str, dict[str, Any]]) -> None:
    """A row whose loss or gradients are not near eager's has failed."""
    for row in rows.values():
        for part in ("loss", "norm"):
            want, got = rows.get("eager", {}).get(part), row.get(part)
            if want is not None and got is not None and not abs(got - want) <= NEAR * abs(want):
                row["failed"] = f"{part} is {got:.4g}, eager's {want:.4g}"


def show(name: str, rows: dict[str, dict[str, Any]]) -> None:
    for backend, row in rows.items():
        if "failed" in row:
            print(f"{name:18}{backend:>12}  failed: {row['failed']}", flush=True)
            continue
        speedup = rows.get("eager", {}).get("ms", math.nan) / row["ms"]
        rate = f"{row['of_copy']:9.2f} of a copy" if "of_copy" in row else ""
        print(f"{name:18}{backend:>12}{row['ms']:10.3f}{speedup:9.2f}x{row['peak']:11.0f}"
              f"{row['first_s']:10.1f}{row.get('loss', math.nan):10.4f}{row['norm']:12.4g}{rate}",
              flush=True)  # fmt: skip


def kind_of(kernel: str) -> str:
    """Who wrote a kernel, by its name."""
    name = kernel.lower()
    for kind, parts in KINDS.items():
        if any(part in name for part in parts):
            return kind
    return "other"


def show_kernels(rows: dict[str, dict[str, Any]], many: int) -> None:
    """Times of a step's kernels by kind, then the `many` that differ most."""
    for backend, row in rows.items():
        kinds: dict[str, tuple[int, float]] = {}
        for kernel, (count, ms) in row.get("kernels", {}).items():
            kind = kind_of(kernel)
            before = kinds.get(kind, (0, 0.0))
            kinds[kind] = before[0] + count, before[1] + ms
        parts = [f"{kind} {ms:.3f} ms of {count}" for kind, (count, ms) in kinds.items()]
        if parts:
            total = sum(ms for _, ms in kinds.values())
            print(f"  {backend:>12} {total:.3f} ms: {', '.join(sorted(parts))}", flush=True)
    ours, theirs = (rows.get(b, {}).get("kernels", {}) for b in ("compile_cli", "inductor"))
    if ours and theirs:
        gap = {k: ours.get(k, (0, 0.0))[1] - theirs.get(k, (0, 0.0))[1] for k in ours | theirs}
        for kernel in sorted(gap, key=lambda k: -abs(gap[k]))[:many]:
            times = [f"{r[kernel][1]:.3f} of {r[kernel][0]}" if kernel in r else "-"
                     for r in (ours, theirs)]  # fmt: skip
            print(f"    {gap[kernel]:+8.3f} ms: ours {times[0]:>15} Inductor's {times[1]:>15}"
                  f"  {kernel[:150]}", flush=True)  # fmt: skip


def summary(rows: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Geometric means of ours beside each peer, of models."""
    for peer in ("inductor", "eager"):
        pairs = [(r[peer], r["compile_cli"]) for r in rows.values()
                 if all("ms" in r.get(b, {}) for b in (peer, "compile_cli"))]  # fmt: skip
        if not pairs:
            continue
        parts = [("time", "ms"), ("peak memory", "peak")]
        parts += [("first call", "first_s")] if peer == "inductor" else []
        text = ", ".join(f"{what} {mean([b[p] / a[p] for a, b in pairs]):.3f}" for what, p in parts)
        print(f"ours / {peer}, geometric mean of {len(pairs)}: {text}")


def mean(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios) if all(r > 0 for r in ratios) else math.nan


def import_models(names: list[str]) -> None:
    """What models are made of, before processes begin as this one; with one thread, because
    OpenMP's do not outlive a fork."""
    import torch
    from training_models import MODELS
    from training_others import other

    torch.set_num_threads(1)
    for name in names:
        if not of_parameters(name):
            (MODELS.get(name) or other(name)).make(True)


def main() -> int:
    from training_models import MODELS, OPTIMIZERS
    from training_others import OTHERS

    names = [*MODELS, *OPTIMIZERS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=names, metavar="NAME", help=", ".join([*names, *OTHERS])
    )
    parser.add_argument(
        "--backends", nargs="+", default=list(BACKENDS), metavar="BACKEND[ OPTION=VALUE]"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--kernels", type=int, default=0, metavar="N")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # another way, and forks cannot use the GPU
    import_models(options.only)
    until = time.time() + options.seconds
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TRAINING_LOCKS"] = folder
        os.environ |= {v: f"{folder}/{v.lower()}" for v in CACHES}
        threads = max(2, 2 * (os.cpu_count() or 1) // options.processes)
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
        print(f"first calls {options.processes} at a time")
        print(
            f"{'':18}{'backend':>12}{'step ms':>10}{'speedup':>10}{'peak MiB':>11}{'first s':>10}"
            f"{'loss':>10}{'norm':>12}",
            flush=True,
        )
        rate = math.nan
        if options.device == "cuda":
            with FORK.Pool(1) as pool:  # this process itself does not use the GPU
                rate = pool.apply(copy_rate)
        many = max(1, options.processes // len(options.backends))
        for first in range(0, len(options.only), many):
            names = options.only[first : first + many]
            workers = compiled(names, options, until)
            for name in names:
                mine = [w for w in workers if w.key[0] == name]
                rows[name] = measured(name, mine, options, rate, until)
                show(name, rows[name])
                show_kernels(rows[name], options.kernels)
                if options.out:
                    options.out.write_text(json.dumps(rows, indent=1))
    summary(rows)
    return int(any("failed" in row for found in rows.values() for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
