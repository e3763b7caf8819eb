"""Host time of a call: ours as FX, as C++ and as CUDA graphs, beside Inductor's Python wrapper, its
C++ wrapper and its reduce-overhead, and eager.

    python benchmarks/host.py [--only bert softmax] [--part 1/4] [--out host.json] [--seconds 110]

Models at batch 1 in bf16, chains of one kernel a link, and training calls. Microseconds from the
call to its return, the GPU busy with something else so that nothing waits for it, and its queue
drained between calls so that it never fills; medians. `call` is what a user feels, Dynamo's guards
and AOTAutograd's wrappers included; `program` is what the compiled graphs take of it, `replay` is
`cudaGraphLaunch` alone. A link of a chain is the difference between chains of 50 and 10 kernels;
`launch` is `cuLaunchKernel` in a loop in C, of a kernel of as many arguments.

Three processes a case compile side by side, for at most `--seconds`; then they measure in turns,
one at a time, and the quietest round counts: other work on a machine only adds. What was not
compiled by then, or failed, is a row that says so. `--part 1/4` is a fourth of the cases, for
machines that are lent for minutes: what `--out` has of the others stays, and is shown, too.
Needs a GPU, transformers and timm.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

CACHES = ("COMPILE_CLI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
MODELS = ("bert", "gpt2", "t5", "llama", "vit", "resnet50", "efficientnet", "swin")
LINKS = {"softmax": (10, 50), "matmul": (10, 50)}
TRAINED = ("residual dropout layer norm grad", "swiglu grad", "bias gelu grad", "mlp step")
OURS = {"tune": "off", "jobs": int(os.environ.get("HOST_JOBS", "2"))}
SIDES: dict[str, dict[str, dict[str, Any]]] = {
    "ours": {
        "ours fx": {"backend": "compile_cli", "options": OURS},
        "ours graph": {"backend": "compile_cli", "options": {**OURS, "cuda_graphs": True}},
        "ours cpp": {"backend": "compile_cli", "options": {**OURS, "emit": "cpp"}},
    },
    "inductor": {
        "eager": {},
        "ind. py": {"backend": "inductor"},
        "ind. graph": {"backend": "inductor", "mode": "reduce-overhead"},
    },
    "inductor, C++": {
        "ind. cpp": {"backend": "inductor", "options": {"cpp_wrapper": True}},
    },
}
COLUMNS = ("eager", "ind. py", "ind. cpp", "ours fx", "ours cpp", "ind. graph", "ours graph")
PAIRS = (("ours fx", "ind. py"), ("ours cpp", "ind. cpp"), ("ours graph", "ind. graph"))
TIMM = {"vit": "vit_base_patch16_224", "resnet50": "resnet50", "efficientnet": "efficientnet_b0",
        "swin": "swin_tiny_patch4_window7_224"}  # fmt: skip
LATE = 15  # seconds after which a process that compiles is not waited for
ROUNDS = 3  # in each of which both sides measure, one after the other
CALLS = 25  # of a round
SPIN = 400_000  # cycles of the GPU, while the call is queued behind


def cases() -> dict[str, Callable[[], Any]]:
    """What makes a `kernel_cases.Case`, by the name of the case."""
    chains = {f"{n} x{c}": partial(chain, n, c) for n, counts in LINKS.items() for c in counts}
    trained = {n: partial(train, n) for n in TRAINED}
    return {n: partial(model, n) for n in MODELS} | chains | trained | {"parts": parts}


def model(name: str) -> Any:
    import models
    from kernel_cases import Case

    make = partial(models.timm_model, TIMM[name]) if name in TIMM else getattr(models, name)
    module, sets = make(batch=1)
    module = module.eval().cuda().bfloat16()
    return Case("model", name, module, lambda: models.to_gpu(sets[0]))


def chain(name: str, count: int) -> Any:
    from kernel_cases import Case, randn
    from torch import Tensor

    def softmax(x: Tensor) -> Tensor:
        for i in range(count):
            x = x.softmax(i % 2)
        return x

    def matmul(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights:
            x = x @ weight
        return x

    sizes = [(256, 256)] * (1 if name == "softmax" else count + 1)
    run = {"softmax": softmax, "matmul": matmul}[name]
    return Case("chain", name, run, lambda: tuple(randn(*size) / 16 for size in sizes))


def train(name: str) -> Any:
    import kernels
    import torch.nn.functional as F
    from kernel_cases import Case, randn
    from torch import Tensor

    def mlp(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights:
            x = F.gelu(F.linear(F.layer_norm(x, (256,)), weight))
        return x

    if name == "mlp step":
        sizes = [(64, 256), *[(256, 256)] * 8]
        return Case("train", name, mlp, lambda: tuple(randn(*size) for size in sizes), True)
    return kernels.chosen("block_cases", [name])[0]


def parts() -> Any:
    """Groups of four layers, between which is an operator that says that no graph is to hold it."""
    import torch
    from kernel_cases import Case, randn
    from torch import Tensor

    @torch.library.custom_op(
        "host::twice", mutates_args=(), schema="(Tensor x) -> Tensor",
        tags=(torch.Tag.cudagraph_unsafe,),
    )  # fmt: skip
    def twice(x: Tensor) -> Tensor:
        return x * 2

    @twice.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        for i, weight in enumerate(weights):
            x = torch.nn.functional.gelu(x @ weight) + x
            x = twice(x) if i % 4 == 3 else x
        return x

    return Case(
        "chain", "parts", run, lambda: (randn(64, 256), *(randn(256, 256) / 16 for _ in range(32)))
    )


SPENT = {"program": 0.0, "replay": 0.0}


def timed(call: Callable[..., Any], part: str) -> Callable[..., Any]:
    """`call`, whose seconds are added up under `part`."""

    def timing(*args: Any, **more: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*args, **more)
        finally:
            SPENT[part] += time.perf_counter() - begin

    return timing


def time_parts() -> None:
    """From here on, what is compiled and captured says what it takes of a call."""
    import torch
    from torch._inductor.output_code import CompiledFxGraph

    from compile_cli.graph_cache import GraphCode

    for kind in (CompiledFxGraph, GraphCode):
        kind.__call__ = timed(kind.__call__, "program")
    torch.cuda.CUDAGraph.replay = timed(torch.cuda.CUDAGraph.replay, "replay")


def worker(name: str, side: str, until: float) -> None:
    """Compiles a case for the backends of a side; when told to by a line, measures each, and prints
    what it found as its last line."""
    import kernels
    import torch

    import compile_cli  # noqa: F401  # registers the backend

    warnings.simplefilter("ignore")
    time_parts()
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    case = cases()[name]()
    with torch.set_grad_enabled(case.grad):
        args = kernels.inputs(case)
        for column, how in SIDES[side].items():
            begin = time.time()
            if begin > until:
                rows[column] = {"failed": "no time was left to compile it"}
                continue
            try:
                run = torch.compile(case.run, dynamic=False, **how) if how else case.run
                call = partial(kernels.callable_of(case, run), *args)
                for _ in range(4):  # the second and third calls capture graphs
                    call()
                torch.cuda.synchronize()
                calls[column] = call
                rows[column] = {"compile_s": time.time() - begin}
            except Exception as error:  # one backend must not hide the others
                text = (str(error).splitlines() or [""])[0]
                rows[column] = {"failed": f"{type(error).__name__}: {text}"[:160]}
        print("ready", flush=True)
        for asked in sys.stdin:
            measure = launches if asked == "launches\n" else host_us
            if measure is launches and side == "ours":
                rows["ours fx"]["launch"] = raw_us()
            found = {c: rows[c] | measure(call) for c, call in calls.items()}
            print(json.dumps(rows | found), flush=True)
    os._exit(0)  # compile workers are not waited for


def host_us(call: Callable[[], Any]) -> dict[str, float]:
    """Median microseconds of a call and of its parts."""
    import torch

    times: dict[str, list[float]] = {"call": [], "program": [], "replay": []}
    gc.collect()
    gc.disable()
    for _ in range(CALLS):
        torch.cuda.synchronize()
        torch.cuda._sleep(SPIN)
        SPENT.update(program=0.0, replay=0.0)
        begin = time.perf_counter()
        out = call()
        spent = {"call": time.perf_counter() - begin, **SPENT}
        del out
        for part, seconds in spent.items():
            times[part].append(seconds * 1e6)
    gc.enable()
    return {part: statistics.median(values[5:]) for part, values in times.items()}


def launches(call: Callable[[], Any]) -> dict[str, int]:
    """How many launches a call makes. Calls are slower once a profiler has looked."""
    import torch

    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    events = [str(e.name) for e in profile.events()]
    words = ("Launch", "MemcpyAsync", "MemsetAsync")
    return {"launches": sum(e.startswith("cu") and any(w in e for w in words) for e in events)}


def raw_us() -> float:
    """Median microseconds of `cuLaunchKernel` with the arguments that a softmax has."""
    import launch
    import torch

    from triton_rt import compile

    entry = launch.Entry.load(compile(launch.source(4), alignment=0), torch.cuda.current_device())
    batch = launch.raw_batch(entry, 4)
    return statistics.median(batch() for _ in range(20))


def asked(process: subprocess.Popen[str], what: str) -> dict[str, Any]:
    """What a worker finds when it measures once: `times` or `launches`."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{what}\n")
        process.stdin.flush()
    found, _, _ = select.select([process.stdout], [], [], 20)
    text = process.stdout.readline() if found else ""
    rows: dict[str, Any] = json.loads(text) if text else {}
    return rows


def quietest(sides: Sequence[subprocess.Popen[str]]) -> dict[str, Any]:
    """What the workers of one case find, in turns: of each column the round of the fastest call,
    since other work on the machine only adds."""
    ready = [p for p in sides if p.stdout and p.stdout.readline() == "ready\n"]
    best: dict[str, Any] = {}
    for _ in range(ROUNDS):
        for column, row in (each for p in ready for each in asked(p, "times").items()):
            if column not in best or row.get("call", 0) < best[column].get("call", 0):
                best[column] = row
    for column, row in (each for p in ready for each in asked(p, "launches").items()):
        best[column] |= row
    for process in sides:
        process.kill()
    return best


def show(rows: dict[str, dict[str, Any]]) -> None:
    def value(name: str, column: str, part: str) -> float:
        found: float = rows.get(name, {}).get(column, {}).get(part) or math.nan
        return found

    for part in ("call", "program", "replay", "launches"):
        print(f"\n{part:33}" + "".join(f"{c:>11}" for c in COLUMNS) + "   fx/py  cpp/cpp  graphs")
        for name in rows:
            at = {c: value(name, c, part) for c in COLUMNS}
            print(f"{name:33}" + "".join(f"{at[c]:11.1f}" for c in COLUMNS) + "".join(
                f"{at[a] / at[b]:8.2f}" for a, b in PAIRS))  # fmt: skip
        for name, (few, many) in LINKS.items() if part != "replay" else ():
            each = [value(f"{name} x{many}", c, part) - value(f"{name} x{few}", c, part)
                    for c in COLUMNS]  # fmt: skip
            print(f"{f'a link of {name}':33}" + "".join(f"{n / (many - few):11.2f}" for n in each))
    print(
        f"\n{'bars':33}{'fx / py, 0.45':>16}{'fx / cpp, 1':>16}{'graphs, 1':>16}{'replay, 60':>16}"
    )
    for name in rows:
        fx = value(name, "ours fx", "call")
        found = fx / value(name, "ind. py", "call"), fx / value(name, "ind. cpp", "call")
        graphs = value(name, "ours graph", "call") / value(name, "ind. graph", "call")
        above = value(name, "ours graph", "program") - value(name, "ours graph", "replay")
        print(f"{name:33}" + "".join(f"{n:16.2f}" for n in (*found, graphs, above)))
    few, many = (f"softmax x{n}" for n in LINKS["softmax"])
    link = (value(many, "ours fx", "program") - value(few, "ours fx", "program")) / 40
    print(
        f"a link of softmax is {link - value(many, 'ours fx', 'launch'):.2f} us above its launch, 1"
    )
    for name, row in rows.items():
        for column in COLUMNS:
            why = row.get(column, {"failed": "its process ended, or was late"}).get("failed")
            if why:
                print(f"{name}, {column}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--part", default="1/1", help="K/N: each N-th case, from the K-th")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=110, help="to compile in")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    until = float(os.environ.get("HOST_UNTIL", time.time() + options.seconds))
    if options.worker:
        worker(*options.worker, until=until)
        return
    names = [n for n in cases() if not options.only or any(n.startswith(o) for o in options.only)]
    part, parts = map(int, options.part.split("/"))
    names = names[part - 1 :: parts]
    with tempfile.TemporaryDirectory() as caches:
        env = {v: f"{caches}/{v.lower()}" for v in CACHES}
        jobs = str(max(2, (os.cpu_count() or 1) // (2 * len(names))))
        env |= {"HOST_UNTIL": str(until), "HOST_JOBS": jobs, "TORCHINDUCTOR_COMPILE_THREADS": jobs}
        env |= {"OMP_NUM_THREADS": "1", **os.environ}
        started = {
            (name, side): subprocess.Popen(
                [sys.executable, __file__, "--worker", name, side],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
            )
            for name in names for side in SIDES
        }  # fmt: skip
        waiting = {process.stdout for process in started.values()}
        while waiting and time.time() < until + LATE:  # nobody measures while another compiles
            waiting -= set(select.select(list(waiting), [], [], 1.0)[0])
        known = options.out is not None and options.out.exists()
        rows: dict[str, dict[str, Any]] = json.loads(options.out.read_text()) if known else {}
        rows |= {name: {} for name in names}
        try:
            for name in names:
                rows[name] = quietest([started[name, side] for side in SIDES])
                if options.out:  # what there is by now
                    options.out.write_text(json.dumps(rows, indent=1))
        finally:  # of a run that was cut, too
            show(rows)


if __name__ == "__main__":
    main()
