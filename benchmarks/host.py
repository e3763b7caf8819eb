"""Host time of a call: ours as FX, as C++ and as CUDA graphs, beside Inductor's Python wrapper, its
C++ wrapper and its reduce-overhead, and eager.

    python benchmarks/host.py [--only bert softmax] [--out host.json] [--seconds 110]

Models at batch 1 in bf16, chains of one kernel a link, and training calls. Microseconds from the
call to its return, the GPU busy with something else so that nothing waits for it, and its queue
drained between calls so that it never fills; medians. `call` is what a user feels, Dynamo's guards
and AOTAutograd's wrappers included; `program` is what the compiled graphs take of it, `replay` is
`cudaGraphLaunch` alone. A link of a chain is the difference between chains of 50 and 10 kernels.

Two processes a case compile side by side, for at most `--seconds`; then each measures alone. What
was not compiled by then, or failed, is a row that says so. Needs a GPU, transformers and timm.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

CACHES = ("COMPILE_CLI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
MODELS = ("bert", "gpt2", "t5", "llama", "vit", "resnet50", "efficientnet", "swin")
LINKS = {"softmax": (10, 50), "matmul": (10, 50)}
TRAINED = ("residual dropout layer norm grad", "swiglu grad", "bias gelu grad", "mlp step")
OURS = {"tune": "off", "jobs": 2}
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
        "ind. cpp": {"backend": "inductor", "options": {"cpp_wrapper": True}},
    },
}
COLUMNS = ("eager", "ind. py", "ind. cpp", "ours fx", "ours cpp", "ind. graph", "ours graph")
PAIRS = (("ours fx", "ind. py"), ("ours cpp", "ind. cpp"), ("ours graph", "ind. graph"))
TIMM = {"vit": "vit_base_patch16_224", "resnet50": "resnet50", "efficientnet": "efficientnet_b0",
        "swin": "swin_tiny_patch4_window7_224"}  # fmt: skip
LATE = 15  # seconds after which a process that compiles is not waited for
CALLS = 60
SPIN = 400_000  # cycles of the GPU, while the call is queued behind


def cases() -> dict[str, Callable[[], Any]]:
    """What makes a `kernel_cases.Case`, by the name of the case."""
    chains = {f"{n} x{c}": partial(chain, n, c) for n, counts in LINKS.items() for c in counts}
    return {n: partial(model, n) for n in MODELS} | chains | {n: partial(train, n) for n in TRAINED}


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

    CompiledFxGraph.__call__ = timed(CompiledFxGraph.__call__, "program")
    torch.cuda.CUDAGraph.replay = timed(torch.cuda.CUDAGraph.replay, "replay")
    from compile_cli import pipeline

    compile_graph = pipeline.compile_graph

    def timing(*args: Any, **more: Any) -> Any:
        compiled = compile_graph(*args, **more)
        return replace(compiled, run=timed(compiled.run, "program"))

    pipeline.compile_graph = timing  # type: ignore[attr-defined]  # a module has any attribute


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
        sys.stdin.readline()
        for column, call in calls.items():
            rows[column] |= host_us(call)
    print(json.dumps(rows), flush=True)
    os._exit(0)  # compile workers are not waited for


def host_us(call: Callable[[], Any]) -> dict[str, float]:
    """Median microseconds of a call and of its parts, and how many launches it makes."""
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
    row = {part: statistics.median(values[5:]) for part, values in times.items()}
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    events = [str(e.name) for e in profile.events()]
    words = ("Launch", "MemcpyAsync", "MemsetAsync")
    row["launches"] = sum(e.startswith("cu") and any(w in e for w in words) for e in events)
    return row


def asked(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a worker finds when it measures; nothing where it is not ready, or ended."""
    assert process.stdin is not None and process.stdout is not None
    found, _, _ = select.select([process.stdout], [], [], 0)
    if not found or process.stdout.readline() != "ready\n":
        process.kill()
        return {}
    process.stdin.write("go\n")
    process.stdin.flush()
    found, _, _ = select.select([process.stdout], [], [], 20)
    text = process.stdout.readline() if found else ""
    process.kill()
    rows: dict[str, Any] = json.loads(text) if text else {}
    return rows


def show(rows: dict[str, dict[str, Any]]) -> None:
    for part in ("call", "program", "replay", "launches"):
        print(f"\n{part:33}" + "".join(f"{c:>11}" for c in COLUMNS) + "   fx/py  cpp/cpp  graphs")
        for name, row in rows.items():
            at = {c: row.get(c, {}).get(part) or math.nan for c in COLUMNS}
            print(f"{name:33}" + "".join(f"{at[c]:11.1f}" for c in COLUMNS) + "".join(
                f"{at[a] / at[b]:8.2f}" for a, b in PAIRS))  # fmt: skip
        for name, (few, many) in LINKS.items() if part != "replay" else ():
            pairs = [[rows.get(f"{name} x{n}", {}).get(c, {}).get(part, math.nan)
                      for n in (few, many)] for c in COLUMNS]  # fmt: skip
            each = "".join(f"{(b - a) / (many - few):11.2f}" for a, b in pairs)
            print(f"{f'a link of {name}':33}{each}")
    for name, row in rows.items():
        for column in COLUMNS:
            why = row.get(column, {"failed": "its process ended, or was late"}).get("failed")
            if why:
                print(f"{name}, {column}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=110, help="to compile in")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    until = float(os.environ.get("HOST_UNTIL", time.time() + options.seconds))
    if options.worker:
        worker(*options.worker, until=until)
        return
    names = [n for n in cases() if not options.only or any(n.startswith(o) for o in options.only)]
    with tempfile.TemporaryDirectory() as caches:
        env = {v: f"{caches}/{v.lower()}" for v in CACHES}
        env |= {"HOST_UNTIL": str(until), "TORCHINDUCTOR_COMPILE_THREADS": "2"}
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
        rows: dict[str, dict[str, Any]] = {name: {} for name in names}
        for (name, _), process in started.items():
            rows[name] |= asked(process)
            if options.out:  # what there is by now
                options.out.write_text(json.dumps(rows, indent=1))
    show(rows)


if __name__ == "__main__":
    main()
