"""The encoder on a GPU: eager, Inductor and compile_cli side by side.

    python benchmarks/encoder.py [--out results.json] [--layers 12] [--dtypes bf16 f32]

BERT-base sizes: batch 32 x 512 tokens, hidden 768, 12 heads, 12 layers, MLP 3072, with padding.
Every call gets another of a few input sets; times are medians between CUDA events, the three
interleaved; kernels are counted by the profiler; errors are against eager in float64. All caches
are empty at the start; compile times include the first call. "as C++" comes after "compile_cli"
and finds its kernels and choices on disk.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.cli.measure import relative_error
from compile_cli.cli.report import count_kernels, fused_groups

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def load_encoder() -> Any:
    spec = importlib.util.spec_from_file_location("encoder", ROOT / "examples" / "encoder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_inputs(batch: int, length: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Random ids of random lengths (at least half full), `count` sets."""
    generator = torch.Generator().manual_seed(1)
    sets = []
    for _ in range(count):
        ids = torch.randint(1, 30000, (batch, length), generator=generator)
        lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
        mask = torch.arange(length)[None, :] < lengths
        sets.append((torch.where(mask, ids, 0).cuda(), mask.cuda()))
    return sets


def event_ms(call: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def host_ms(call: Callable[[], Any]) -> float:
    """Time until the call returns, the GPU idle before it: what the host pays."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    spent = (time.perf_counter() - start) * 1e3
    torch.cuda.synchronize()
    return spent


def kernels_of(call: Callable[[], Any]) -> int:
    """GPU kernels (copies and fills included) of one call."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in profile.events())


def peak_mb(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


@torch.no_grad()
def bench(name: str, args: argparse.Namespace) -> dict[str, Any]:
    dtype = DTYPES[name]
    torch.manual_seed(0)
    encoder = load_encoder().Encoder(
        vocab=30000, hidden=768, heads=12, layers=args.layers, mlp=3072, max_len=args.length
    )
    model: nn.Module = encoder.eval().cuda().to(dtype)
    sets = make_inputs(args.batch, args.length, 4)
    reference = copy.deepcopy(model).double()(*sets[0])

    calls: dict[str, Callable[..., Any]] = {"eager": model}
    compile_s = {"eager": 0.0}

    def add(key: str, make: Callable[[], Callable[..., Any]]) -> Any:
        start = time.perf_counter()
        calls[key] = make()
        calls[key](*sets[0])
        torch.cuda.synchronize()
        compile_s[key] = time.perf_counter() - start
        return calls[key]

    ours = add("compile_cli", lambda: compile_cli.compile(model, sets[0]))
    add("  as C++", lambda: compile_cli.compile(model, sets[0], options={"emit": "cpp"}))
    if not args.no_inductor:
        add("inductor", lambda: torch.compile(model))

    times: dict[str, list[float]] = {key: [] for key in calls}
    host: dict[str, list[float]] = {key: [] for key in calls}
    for call in calls.values():
        for inputs in sets:
            call(*inputs)
    for i in range(args.repeats):
        inputs = sets[i % len(sets)]
        for key, call in calls.items():
            times[key].append(event_ms(lambda c=call, x=inputs: c(*x)))
            host[key].append(host_ms(lambda c=call, x=inputs: c(*x)))
    rows = {}
    for key, call in calls.items():
        rows[key] = {
            "ms": statistics.median(times[key]),
            "host_ms": statistics.median(host[key]),
            "speedup": statistics.median(times["eager"]) / statistics.median(times[key]),
            "kernels": kernels_of(lambda c=call: c(*sets[1])),
            "max_rel_err": relative_error(call(*sets[0]), reference),
            "peak_mb": peak_mb(lambda c=call: c(*sets[2])),
            "compile_s": compile_s[key],
        }
    triton, extern = count_kernels(ours.graph.program)
    return {
        "dtype": name,
        "rows": rows,
        "compile_cli": {
            "triton": triton,
            "extern": extern,
            "compile_s": ours.graph.record.seconds,
            "fused": list(fused_groups(ours.graph)),
            "matmuls": {name: c.explain() for name, c in ours.graph.matmuls.items()},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "f32"], choices=list(DTYPES))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--no-inductor", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    with tempfile.TemporaryDirectory() as caches:
        for name in ("COMPILE_CLI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[name] = f"{caches}/{name.lower()}"
        results = [bench(name, args) for name in args.dtypes]
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch {args.batch} x "
        f"{args.length}, hidden 768, {args.layers} layers"
    )
    print(
        f"{'':17}{'ms':>9}{'speedup':>9}{'host ms':>9}{'kernels':>9}{'rel err':>10}"
        f"{'peak MB':>9}{'compile s':>11}"
    )
    for result in results:
        for key, row in result["rows"].items():
            print(
                f"{result['dtype']:5}{key:12}{row['ms']:9.3f}{row['speedup']:8.2f}x"
                f"{row['host_ms']:9.3f}{row['kernels']:9}{row['max_rel_err']:10.2e}"
                f"{row['peak_mb']:9.0f}{row['compile_s']:11.1f}"
            )
    if args.out:
        args.out.write_text(
            json.dumps(
                {
                    "device": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                    "results": results,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
