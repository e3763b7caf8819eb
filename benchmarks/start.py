"""The first call, and the first call of a second process, beside Inductor's.

    python benchmarks/start.py [--only softmax bert layers:32] [--backends compile_cli inductor]
                               [--processes first second carried] [--mode reduce-overhead]
                               [--out start.json] [--device cuda] [--train] [--limit 120]

Each program is compiled in a process of its own with caches of its own, which are empty; then in
another process, which finds what the first one left (`second`), or has caches that are empty but
for what `torch.compiler.save_cache_artifacts` took from the first (`carried`). Seconds until there
is a result, with all imports that `import torch` and the model's construction do not make, and the
most memory that a process held. Backends take turns. `layers:32` is BERT of as many layers,
`regions:32` the same, of which each layer is a `torch.compiler.nested_compile_region`. With
`--train`, models are in training mode, and a gradient is part of the call. A process that takes
longer than the limit, or ten seconds to end (Inductor waits for its workers then), is ended; where
all its threads are is printed before.
"""

from __future__ import annotations

import argparse
import compileall
import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CACHES = ("COMPILE_CLI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
SIZE = 1024
ENDING = 10.0  # seconds


def _kernels() -> dict[str, Callable[..., Any]]:
    import torch.nn.functional as F

    return {
        "relu": lambda x: F.relu(x),
        "gelu": lambda x: F.gelu(x),
        "bias gelu": lambda x: F.gelu(x + x[0]),
        "softmax": lambda x: x.softmax(-1),
        "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "sum": lambda x: x.sum(),
        "sum of columns": lambda x: x.sum(0),
        "cumsum": lambda x: x.cumsum(-1),
        "transpose add": lambda x: x + x.t(),
        "matmul gelu": lambda x: F.gelu(x @ x),
    }


def once(process: str, name: str, backend: str, options: argparse.Namespace) -> dict[str, float]:
    """Compiles and calls one program; what took how long, in seconds, and the memory in MB."""
    import torch

    device, train = options.device, options.train
    program, inputs = _program(name, device, train)
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    if backend == "compile_cli":
        import compile_cli  # noqa: F401  # its import is measured
    import_s = time.perf_counter() - start
    taken = Path(os.environ[CACHES[0]]).parent.parent / "taken"
    if process == "carried":
        torch.compiler.load_cache_artifacts(taken.read_bytes())
    with torch.set_grad_enabled(train):
        result = torch.compile(program, backend=backend, mode=options.mode)(*inputs)
        if train:
            _first(result).float().square().mean().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    call_s = time.perf_counter() - start
    if process == "first" and "carried" in options.processes:
        saved = torch.compiler.save_cache_artifacts()
        taken.write_bytes(saved[0] if saved else b"")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"import": import_s, "call": call_s, "memory": memory}


def _first(result: Any) -> Any:
    """The first tensor of what a model gives."""
    from torch.utils._pytree import tree_leaves

    return next(x for x in tree_leaves(result) if hasattr(x, "backward"))


def _program(name: str, device: str, train: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    if name in (kernels := _kernels()):
        return kernels[name], (torch.randn(SIZE, SIZE, device=device, requires_grad=train),)
    import models

    kind, _, count = name.partition(":")
    with torch.device(device):
        model, sets = models.bert(layers=int(count)) if count else models.CASES[name]()
    if kind == "regions":
        layer = type(model.model.encoder.layer[0])
        layer.forward = torch.compiler.nested_compile_region(layer.forward)
    model = model.train(train).to(device).bfloat16()
    args = (x.to(device) for x in sets[0])
    return model, tuple(x.bfloat16() if x.is_floating_point() else x for x in args)


def measured(name: str, backend: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What a first process takes, whose caches are empty, and what others do; printed as it is
    known."""
    caches, found = tempfile.mkdtemp(), {}
    for process in options.processes:
        found[process] = row = _in_process(caches, process, name, backend, options)
        print(f"{row['call']:11.2f} s {row['memory']:6.0f} MB", end="", flush=True)
    shutil.rmtree(caches, ignore_errors=True)  # not as a child leaves: by hand
    return found


def _in_process(caches: str, process: str, *program: Any) -> dict[str, float]:
    """`once` in a process that has begun as this one: torch is imported, and no GPU in use."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        faulthandler.register(signal.SIGUSR1)  # all threads, to stderr
        folder = f"{caches}/{'carried' if process == 'carried' else 'kept'}"
        os.environ.update({v: f"{folder}/{v.lower()}" for v in CACHES})
        os.write(writer, json.dumps(once(process, *program)).encode())
        sys.exit()
    os.close(writer)
    name, backend, options = program
    told = select.select([reader], [], [], options.limit)[0]
    text = os.read(reader, 10_000) if told else b""  # none of a process that failed, too
    os.close(reader)
    said = time.monotonic()
    what = f"{name} with {backend}, {process} process"
    if _ended(child, ENDING if told else 0.0, what) or not text:
        raise SystemExit(f"{what}: failed")
    return dict(json.loads(text), end=time.monotonic() - said)


def _ended(child: int, seconds: float, what: str) -> int:
    """How a process ended; one that does not in time says where it is, and is killed."""
    end = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.01)
    if ended[0]:
        return ended[1]
    threads = Path(f"/proc/{child}/task").glob("*")
    waits = [f"{(t / 'comm').read_text().strip()} {(t / 'wchan').read_text()}" for t in threads]
    print(f"\n{what} does not end; its threads: {', '.join(waits)}", file=sys.stderr, flush=True)
    os.kill(child, signal.SIGUSR1)
    time.sleep(1.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--backends", nargs="+", default=["compile_cli", "inductor"])
    parser.add_argument("--processes", nargs="+", default=["first", "second"])
    parser.add_argument("--mode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--train", action="store_true", help="with a gradient")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    specs = map(find_spec, ("torch", "triton", "sympy"))
    theirs = [Path(str(spec.origin)).parent for spec in specs if spec]
    for sources in (*Path(__file__).parents[1].glob("*/*/src"), *theirs):  # as pip compiles them
        compileall.compile_dir(sources, quiet=2, workers=0)
    import torch  # noqa: F401  # each process begins with it

    models = ("bert", "gpt2", "llama", "t5", "vit", "resnet50", "efficientnet", "swin")
    names = options.only or [*_kernels(), *models]
    rows: dict[str, dict[str, Any]] = {}
    heads = [f"{b} {p}" for b in options.backends for p in options.processes]
    print(f"{'seconds of the first call':26}" + "".join(f"{head:>22}" for head in heads))
    for name in names:
        print(f"{name:26}", end="", flush=True)
        rows[name] = {b: measured(name, b, options) for b in options.backends}
        print()
    if len(options.backends) == 2:
        ours, peer = options.backends
        for process in options.processes:
            ratios = [r[ours][process]["call"] / r[peer][process]["call"] for r in rows.values()]
            print(f"{process} process, {ours} / {peer}: {statistics.geometric_mean(ratios):.2f} "
                  f"over {len(ratios)} programs, the worst {max(ratios):.2f}")  # fmt: skip
    imports = [row[b]["first"]["import"] for row in rows.values() for b in row if b != "inductor"]
    if imports:
        print(f"import beyond torch: {statistics.median(imports):.2f} s")
    if options.out:
        options.out.write_text(json.dumps({"device": options.device, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
