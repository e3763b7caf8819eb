"""What a dispatch costs over a direct call, and what a table costs to build.

    python dispatch.py [--json FILE] [--quick]

Arguments are torch tensors where torch is installed (reading a tensor's shape is part of the
cost), else objects with a shape. Prints two tables; times are the best of several runs. `key_ns`
is what reading the sizes costs alone, a part of `dispatch_ns`.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from multikernel import (
    Measurement,
    MultiKernel,
    TableStore,
    compare_chain,
    follow,
    sample_hints,
    shape_of_first,
    sizes_of,
)

KEYS: dict[str, Callable[[int], Any]] = {
    "one size": lambda count: [(0, 0)],
    "shape of the first": lambda count: None,
    "a size of each": lambda count: [(i, 0) for i in range(count)],
}


class Array:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


def arrays(count: int) -> tuple[str, list[Any]]:
    try:
        import torch
    except ImportError:
        return "objects with a shape", [Array(30, 768) for _ in range(count)]
    return f"torch {torch.__version__} tensors", [torch.empty(30, 768) for _ in range(count)]


def best_ns(call: Callable[[], Any], number: int, repeat: int) -> float:
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e9


def dispatch(select: str, count: int, variants: int, key: str, number: int) -> dict[str, Any]:
    args = arrays(count)[1]
    rank = {"one size": 1, "shape of the first": 2, "a size of each": count}[key]

    def run(*args: Any) -> None:
        return None

    table = {(2**i, *[768] * (rank - 1)): run for i in range(variants)}
    timer = Measurement(timer=lambda call: 1.0)
    kernel = MultiKernel(
        table,  # type: ignore[arg-type]
        select,  # type: ignore[arg-type]
        key=KEYS[key](count),
        measurement=timer if select == "measured" else None,
    )
    kernel(*args)
    direct = best_ns(lambda: run(*args), number, 9)
    through = best_ns(lambda: kernel(*args), number, 9)
    read = sizes_of(*KEYS[key](count)) if KEYS[key](count) else shape_of_first
    return {
        "select": select,
        "key": key,
        "arguments": count,
        "variants": variants,
        "direct_ns": round(direct),
        "key_ns": round(best_ns(lambda: read(*args), number, 9)),
        "dispatch_ns": round(through - direct),
    }


def build(rank: int, count: int, variants: int, disk: bool) -> dict[str, Any]:
    """A table over sampled sizes, with times that cross over between variants; the timer costs
    nothing, so this is the library's own share."""
    hints = sample_hints([(1, 8192)] * rank, variants)
    box = sample_hints([(1, 8192)] * rank, count)
    now: list[tuple[int, ...]] = [()]

    def variant(hint: tuple[int, ...]) -> Callable[..., float]:
        def run(*sizes: int) -> float:
            return 1.0 + sum(max(s, h) / min(s, h) for s, h in zip(now[0], hint, strict=True))

        return run

    def arguments(*sizes: int) -> tuple[int, ...]:
        now[0] = sizes
        return sizes

    with tempfile.TemporaryDirectory() as folder:

        def make() -> MultiKernel:
            return MultiKernel(
                {hint: variant(hint) for hint in hints},
                "measured",
                key=lambda *sizes: sizes,
                measurement=Measurement(timer=lambda call: call(), buckets=4096, seconds=60.0),
                store=TableStore(folder) if disk else None,
            )

        kernel = make()
        start = perf_counter()
        table = kernel.explore(box, arguments)
        learned = perf_counter() - start
        start = perf_counter()
        chain = compare_chain(table)
        listed = perf_counter() - start
        start = perf_counter()
        make()
        loaded = perf_counter() - start
    at = box[-1]
    return {
        "dimensions": rank,
        "variants": variants,
        "on_disk": disk,
        "cells": len(table.cells),
        "measured": sum(bool(d.seconds) for d in table.cells.values()),
        "branches": len(chain),
        "learn_us_a_cell": round(learned / len(table.cells) * 1e6, 1),
        "chain_ms": round(listed * 1e3, 2),
        "load_ms": round(loaded * 1e3, 2),
        "lookup_us": round(best_ns(lambda: table.lookup(at), 2000, 3) / 1e3, 2),
        "chain_us": round(best_ns(lambda: follow(chain, at), 2000, 3) / 1e3, 2),
    }


def show(rows: list[dict[str, Any]]) -> None:
    widths = {k: max(len(k), *(len(str(r[k])) for r in rows)) for k in rows[0]}
    print("  ".join(k.rjust(w) for k, w in widths.items()))
    for row in rows:
        print("  ".join(str(row[k]).rjust(w) for k, w in widths.items()))
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    options = parser.parse_args()
    number = 100 if options.quick else 50000
    dispatches = [
        dispatch(select, count, variants, key, number)
        for select, key in (
            ("nearest", "one size"),
            ("nearest", "shape of the first"),
            ("nearest", "a size of each"),
            ("measured", "shape of the first"),
        )
        for count in (1, 2, 8)
        for variants in (2, 4, 16)
    ]
    builds = [
        build(rank, count, variants, disk)
        for rank, count, variants, disk in (
            (1, 40, 4, False),
            (1, 40, 4, True),
            (2, 200, 8, False),
            (2, 200, 8, True),
            (3, 60 if options.quick else 1000, 16, False),
        )
    ]
    show(dispatches)
    show(builds)
    figures = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "arguments": arrays(1)[0],
        "dispatch": dispatches,
        "table": builds,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
