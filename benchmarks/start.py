"""The first call, and the first call of a second process, beside Inductor's.

    python benchmarks/start.py [--only softmax bert layers:32] [--backends compile_cli inductor]
                               [--processes first second carried] [--mode reduce-overhead]
                               [--out start.json] [--device cuda] [--train]

Each program is compiled in a process of its own with caches of its own, which are empty; then in
another process, which finds what the first one left (`second`), or has caches that are empty but
for what `torch.compiler.save_cache_artifacts` took from the first (`carried`). Seconds until there
is a result, with all imports that `import torch` and the model's construction do not make, and the
most memory that a process held. Backends take turns. `layers:32` is BERT of as many layers,
`regions:32` the same, of which each layer is a `torch.compiler.nested_compile_region`. With
`--train`, models are in training mode, and a gradient is part of the call.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import shutil
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
    """What a first process takes, whose caches are empty, and what others do."""
    caches = tempfile.mkdtemp()
    found = {p: _in_process(caches, p, name, backend, options) for p in options.processes}
    shutil.rmtree(caches, ignore_errors=True)  # not as a child leaves: by hand
    return found


def _in_process(caches: str, process: str, *program: Any) -> dict[str, float]:
    """`once` in a process that has begun as this one: torch is imported, and no GPU in use."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        folder = f"{caches}/{'carried' if process == 'carried' else 'kept'}"
        os.environ.update({v: f"{folder}/{v.lower()}" for v in CACHES})
        os.write(writer, json.dumps(once(process, *program)).encode())
        sys.exit()
    os.close(writer)
    text = os.read(reader, 10_000)  # none of a process that failed
    os.close(reader)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{program[0]} with {program[1]} failed")
    found: dict[str, float] = json.loads(text)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--backends", nargs="+", default=["compile_cli", "inductor"])
    parser.add_argument("--processes", nargs="+", default=["first", "second"])
    parser.add_argument("--mode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--train", action="store_true", help="with a gradient")
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
    turns = [(b, p) for p in options.processes for b in options.backends]
    heads = [f"{b} {p}" for b, p in turns]
    print(f"{'seconds of the first call':26}" + "".join(f"{head:>22}" for head in heads))
    for name in names:
        row = {b: measured(name, b, options) for b in options.backends}
        rows[name] = row
        cells = (f"{row[b][p]['call']:9.2f} s {row[b][p]['memory']:6.0f} MB" for b, p in turns)
        print(f"{name:26}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
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
