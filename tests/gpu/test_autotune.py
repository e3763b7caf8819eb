"""Tuning on a real GPU: what is timed and restored, what faults do, what is held afterwards."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_rt import KernelParam, KernelSource, LazyKernel, TensorMap, errors
from tuning import (
    Options,
    TuningPool,
    TuningStore,
    autotune,
    saved,
)
from tuning.saved import Saved, spans
from tuning.timer import Timer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def make(body: str, **constants: Any) -> KernelSource:
    """Of (x: *f32, y: *f32 mutated, n: i32)."""
    params = (
        KernelParam("x", "*f32", aligned=True),
        KernelParam("y", "*f32", mutated=True, aligned=True),
        KernelParam("n", "i32", aligned=True),
    )
    names = ", ".join(["x", "y", "n", *(f"{c}: tl.constexpr" for c in constants)])
    text = f"import triton\nimport triton.language as tl\n@triton.jit\ndef kernel({names}):\n"
    text += textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    return KernelSource("kernel", text, params, tuple(constants.items()))


LOAD = "i = tl.program_id(0) * B + tl.arange(0, B)\n"
ADD = make(LOAD + "tl.store(y + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)", B=1024)
COPY = make(LOAD + "tl.store(y + i, tl.load(x + i, i < n), i < n)", B=1024)
N = 1 << 22


def pairs(source: KernelSource, *sizes: int, n: int = N) -> list[tuple[LazyKernel, int]]:
    return [(LazyKernel(replace(source, constants=(("B", b),))), -(-n // b)) for b in sizes]


@pytest.fixture
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(N, device="cuda"), torch.randn(N, device="cuda")


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    """The addresses that tuning took past torch's allocator, and whether it still holds them. The
    free memory of the device does not tell: other processes may use it."""
    held: dict[int, bool] = {}
    allocate, release = saved.allocate, saved.release

    def taken(size: int) -> int:
        if address := allocate(size):
            held[address] = True
        return address

    def given_back(address: int) -> None:
        assert held[address]
        release(address)
        held[address] = False

    monkeypatch.setattr(saved, "allocate", taken)
    monkeypatch.setattr(saved, "release", given_back)
    return held


@pytest.fixture(scope="module")
def pool() -> Iterator[TuningPool]:
    with TuningPool(timeout=10.0) as pool:
        yield pool


# -- what is timed -------------------------------------------------------------------------------


def test_a_slow_host_is_not_timed(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    """What lies between the events is the kernel alone, however long the host takes to queue it."""
    x, y = tensors
    kernel = LazyKernel(COPY)
    timer = Timer(x.device)

    def launch() -> None:
        kernel.launch(N // 1024, x, y, N)

    def slowly() -> None:
        time.sleep(0.001)
        launch()

    launch()
    fast = sorted(timer.run(launch, lambda: None, 15))[7]
    slow = sorted(timer.run(slowly, lambda: None, 15))[7]
    floor = 1e3 * 8 * N / 6e12  # ms, by the memory of no GPU of today's
    timer.close()
    assert slow == pytest.approx(fast, rel=0.15), (fast, slow)
    assert floor < fast < 6 * floor, "cold: the bytes come from device memory, not from L2"


def test_losers_leave_early_and_values_are_restored(
    tensors: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = tensors
    before = y.clone()
    tuned = autotune(pairs(ADD, 32, 1024, 100, 512), (x, y, N))
    assert torch.equal(y, before)
    assert tuned.winner in (1, 3) and tuned.runs[0] <= 3 and max(tuned.runs) == 20
    assert "power of 2" in dict(tuned.failures)[2]


@pytest.mark.parametrize("device_limit", [None, 0])
def test_saved_values_come_back(device_limit: int | None, allocated: dict[int, bool]) -> None:
    whole = torch.arange(float(1 << 20), device="cuda")
    before, parts = whole.clone(), [whole[100:300_000], whole[500_001:900_000:3]]
    for part in parts:  # what torch loads for this is not ours
        part.add_(0)
        part.fill_(0).copy_(part + 1)
    whole.copy_(before)
    kept = Saved(spans(parts), device_limit=device_limit)
    assert (kept.device_bytes > 0) == (device_limit is None) == bool(allocated)
    assert all(allocated.values())
    for part in parts:
        part.fill_(-1)
    kept.restore()
    torch.cuda.synchronize()
    kept.free()
    assert torch.equal(whole, before) and not any(allocated.values())


def test_overwritten_arguments_are_not_saved(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = tensors
    autotune(pairs(COPY, 1024, 512), (x, y, N), options=Options(overwritten=("y",)))
    assert torch.equal(x, y)


def test_no_memory_is_held(
    tensors: tuple[torch.Tensor, torch.Tensor], allocated: dict[int, bool]
) -> None:
    """Of torch's allocator, and past it: the copies of what is mutated, and what fills the L2."""
    x, y = tensors
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    autotune(pairs(ADD, 1024, 512), (x, y, N))
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == held
    assert allocated and not any(allocated.values())


def test_wrong_results_are_found_in_process(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = tensors
    wrong = make(LOAD + "tl.store(y + i, tl.load(x + i, i < n) * 1.1, i < n)", B=1024)
    candidates = [*pairs(COPY, 1024), *pairs(wrong, 1024)]
    tuned = autotune(candidates, (x, y, N), options=Options(verify=True))
    assert tuned.winner == 0 and "WrongResult" in tuned.failures[0][1]


# -- faults in workers ---------------------------------------------------------------------------

FAULTS = {
    "illegal address": ("tl.store(y + (1 << 40) + i, 1.0)", "CandidateCrashed"),
    "misaligned": (
        "p = (x.to(tl.int64) + 2).to(tl.pointer_type(tl.float32))\ntl.store(y + i, tl.load(p + i))",
        "CandidateCrashed",
    ),
    "hang": (
        "v = tl.load(x, volatile=True)\n"
        "while v == v:\n    v = tl.load(x, volatile=True)\n"
        "tl.store(y + i, v)",
        "CandidateHung",
    ),
    "wrong": ("tl.store(y + i, tl.load(x + i, i < n) + 1e-2, i < n)", "WrongResult"),
    "out of bounds": ("tl.store(y + i, tl.load(x + i, i < n), i < n + 64)", "CorruptedMemory"),
    "unmarked": (
        "tl.store(y + i, tl.load(x + i, i < n), i < n)\ntl.store(x + i, 0.0, i < n)",
        "CorruptedMemory",
    ),
}


def test_each_fault_leaves_this_process_alone(
    pool: TuningPool, tensors: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    x, y = (t[: N - 512] for t in tensors)
    n, before = N - 512, (x.clone(), y.clone())
    bodies = {name: make(LOAD + body, B=1024) for name, (body, _) in FAULTS.items()}
    faulty = [pairs(source, 1024, n=n)[0] for source in bodies.values()]
    candidates = [*pairs(COPY, 1024, n=n), *faulty, *pairs(COPY, 32, 2048, n=n)]
    store = TuningStore(tmp_path)
    tuned = autotune(candidates, (x, y, n), pool=pool, store=store)
    kinds = {i: why.partition(":")[0] for i, why in tuned.failures}
    assert kinds == {i: kind for i, (_, kind) in enumerate(FAULTS.values(), 1)}
    assert tuned.winner in (0, len(candidates) - 1)
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])
    kernel, grid = candidates[tuned.winner]
    kernel(grid, x, y, n)
    assert torch.equal(y, x), "this process's context is as it was"
    assert len(store.bad(next(store_queries(store, candidates, (x, y, n))))) == len(FAULTS)


def store_queries(store: TuningStore, candidates: Any, args: Any) -> Iterator[Any]:
    from tuning.store import Query

    source = candidates[0][0].source
    yield Query.of(source.name, torch.cuda.get_device_name(), source.params, args)


def test_workers_measure_what_this_process_measures(
    pool: TuningPool, tensors: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = tensors
    candidates = pairs(COPY, 32, 1024)
    there = autotune(candidates, (x, y, N), pool=pool)
    here = autotune(candidates, (x, y, N))
    assert there.winner == here.winner == 1
    assert there.times[1] == pytest.approx(here.times[1], rel=0.2)


def test_all_candidates_failing_is_an_error(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = tensors
    with pytest.raises(errors.CompileFailed):
        autotune(pairs(COPY, 100, 200), (x, y, N))


def test_tuning_in_a_fresh_thread_and_process() -> None:
    """The driver's context is not current on a new thread: tuning makes it so."""
    code = (
        "import torch, threading\nfrom triton_rt import KernelParam, KernelSource, LazyKernel\n"
        "from tuning import autotune\n"
        "text = '''import triton, triton.language as tl\n@triton.jit\n"
        "def k(y, B: tl.constexpr):\n"
        "    tl.store(y + tl.program_id(0) * B + tl.arange(0, B), 1.0)\n'''\n"
        "make = lambda b: (LazyKernel(KernelSource('k', text, (KernelParam('y', '*f32', True),),\n"
        "                                          (('B', b),))), 1 << 20 // b)\n"
        "y = torch.zeros(1 << 20, device='cuda')\n"
        "found = []\n"
        "tune = lambda: found.append(autotune([make(256), make(512)], (y,)))\n"
        "t = threading.Thread(target=tune); t.start(); t.join()\n"
        "print(len(found))\n"
    )
    code = code.replace("1 << 20 // b", "(1 << 20) // b")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "1\n", run.stderr[-2000:]


@pytest.mark.parametrize("where", ["in process", "in a worker"])
def test_descriptors_and_tuples_are_tuned(pool: TuningPool, where: str) -> None:
    text = (
        "import triton\nimport triton.language as tl\n@triton.jit\n"
        "def kernel(d, t):\n"
        "    y, n = t\n"
        "    row = tl.program_id(0) * 16\n"
        "    i = (row + tl.arange(0, 16))[:, None] * 64 + tl.arange(0, 64)[None, :]\n"
        "    tl.store(y + i, d.load([row, 0]) + 1, i < n)\n"
    )
    params = (
        KernelParam("d", "tensordesc<f32[16,64]>"),
        KernelParam("t.0", "*f32", mutated=True, aligned=True),
        KernelParam("t.1", "i32", aligned=True),
    )
    sources = [KernelSource("kernel", text, params, num_warps=w) for w in (1, 4, 8)]
    candidates = [(LazyKernel(source), 64) for source in sources]
    x, y = torch.randn(1024, 64, device="cuda"), torch.zeros(1024, 64, device="cuda")
    args = TensorMap(x, (16, 64)), (y, x.numel())
    tuned = autotune(candidates, args, pool=pool if where == "in a worker" else None)
    assert tuned.failures == ()
    kernel, grid = candidates[tuned.winner]
    kernel(grid, *args)
    torch.cuda.synchronize()
    assert torch.equal(y, x + 1)


def test_autotune_restores_what_it_mutates() -> None:
    accumulate = make(
        """
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)
        """,
        B=1024,
    )
    n = 1 << 20
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    before = y.clone()
    blocks = (32, 1024, 100)
    candidates = [
        (LazyKernel(replace(accumulate, constants=(("B", b),))), -(-n // b)) for b in blocks
    ]
    tuned = autotune(candidates, (x, y, n))
    assert torch.equal(y, before)
    assert tuned.winner == 1 and tuned.times[1] < tuned.times[0]
    assert tuned.times[2] == float("inf") and "power of 2" in tuned.failures[0][1]
