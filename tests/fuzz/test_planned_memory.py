"""Memory of 200 random programs: what is planned, what must be there, and what eager holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, count
from math import exp, log
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from fuzzer.generate import generate
from fuzzer.program import Loaded
from fuzzer.settings import Setting
from torch import Tensor, fx
from torch.profiler import ProfilerActivity, profile

import compile_cli.torch_backend
from compile_cli import pipeline
from wrapper_ir import Program
from wrapper_ir.memory import peak_bytes
from wrapper_ir.passes import PlanMemory

_PROGRAMS = 200
_SEED = 16  # bytes, of random numbers


def allocated(run: Callable[[], Any]) -> int:
    """The most bytes of torch's memory that a call holds at one time, what operators use inside
    of them with it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = run()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    found = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    found.sort(key=lambda e: e.start_ns())
    del result
    return max(accumulate((e.nbytes() for e in found), initial=0))


class Seen(PlanMemory):
    """The pass, and bytes of programs before and after it."""

    found: ClassVar[list[tuple[int, int]]] = []

    def run(self, program: Program) -> Program:
        """The same."""
        planned = super().run(program)
        self.found.append((peak_bytes(program), peak_bytes(planned)))
        return planned


@dataclass(frozen=True)
class Memory:
    """Of a program that is one graph, the most bytes that are alive at once, with those of its
    arguments that it writes to: of what it makes, as planned, and as eager holds them that lets go
    of each value after its last use."""

    live: int
    planned: int
    eager: int
    written: int


def measured(seed: int, cache_dir: str) -> Memory | None:
    """None where a program is no graph, several, or makes nothing."""
    setting = Setting(elements=20_000)
    loaded = Loaded(generate(seed, setting).source(setting))
    eager: list[tuple[int, int]] = []
    Seen.found.clear()

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        compiled = compile_cli.torch_backend.compile_cli(gm, inputs, {"cache_dir": cache_dir})

        def run(*args: Any) -> Any:
            given = [x.detach().clone() if isinstance(x, Tensor) else x for x in args]
            peak = allocated(lambda: fx.Interpreter(gm).run(*given))
            changed = [x for x in given if isinstance(x, Tensor) and x._version]
            eager.append((peak, sum(x.untyped_storage().nbytes() for x in changed)))
            return compiled(*args)

        return run

    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.compile(loaded.module(), backend=backend)(*loaded.inputs(loaded.calls[0]))
        except Exception:  # whatever eager refuses: other tests look at those
            return None
    if len(Seen.found) != 1 or len(eager) != 1 or 0 in (*Seen.found[0], eager[0][0]):
        return None
    return Memory(*Seen.found[0], *eager[0])


@pytest.mark.slow
def test_two_hundred_programs(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PlanMemory", Seen)
    found: dict[int, Memory] = {}
    for seed in count():
        if (memory := measured(seed, str(own_cache))) is not None:
            found[seed] = memory
        if len(found) == _PROGRAMS:
            break

    def mean(ratios: Iterable[float]) -> float:
        return exp(sum(map(log, ratios)) / len(found))

    assert mean(m.planned / m.live for m in found.values()) <= 1.05
    assert mean(m.planned / m.eager for m in found.values()) <= 0.7
    above = {s: m for s, m in found.items() if m.planned > 1.01 * (m.eager + m.written) + _SEED}
    assert not above, above
