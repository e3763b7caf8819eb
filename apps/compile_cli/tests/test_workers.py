"""Compile workers of the process, as the app uses them: kept, bounded, never for CPU programs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import compile_cli
import triton_rt
from compile_cli.options import Options
from compile_cli.torch_backend import compile_cli as backend
from planner.kernels import Kernels, start_workers
from triton_rt import Workers
from wrapper_ir import Program, parse_program

PROGRAM = """
program p(x: f32[{n}] cuda:0):
  kernel k(x: *f32, y: *f32 mutated) constants (B={n}) warps 4 stages 3:
    import triton, triton.language as tl
    @triton.jit
    def k(x, y, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(y + i, tl.load(x + i) + 1)
  end
  y = alloc f32[{n}] cuda:0
  launch k grid (1, 1, 1) (x, y)
  return (y)
"""


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """In place of the process's."""
    made = Workers(idle=60.0)
    monkeypatch.setattr(triton_rt, "shared_pool", partial(triton_rt.CompilePool, workers=made))
    monkeypatch.setattr(triton_rt.Target, "current", lambda device=0: triton_rt.Target(90))
    yield made
    made.close()


def program(n: int) -> Program:
    return parse_program(PROGRAM.format(n=n))


def build(options: Options, *sizes: int) -> list[Any]:
    kernels = Kernels(options)
    with kernels.compiling():
        for wait in [kernels.start_build(program(n)) for n in sizes]:
            wait()
    return [next(iter(k._binaries.values())).result().cubin for k in kernels.loaded.values()]


def test_compilations_share_workers(workers: Workers, tmp_path: Path) -> None:
    pids = []
    for n in (32, 64, 128):
        assert build(Options(cache_dir=str(tmp_path), jobs=2), n)
        pids.append(workers.pids)
    assert len(pids[0]) == 1 and pids == [pids[0]] * 3


def test_jobs_bound_the_workers(workers: Workers, tmp_path: Path) -> None:
    workers.allow(3)  # somebody else asked for more
    assert len(build(Options(cache_dir=str(tmp_path), jobs=1), 32, 64, 128, 256)) == 4
    assert len(workers.pids) == 1


def test_threads_compile_side_by_side(workers: Workers, tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path), jobs=2)
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda _: build(options, 32, 64, 128), range(2))
    assert one == two and len(set(one)) == 3 and len(workers.pids) <= 2


@pytest.mark.parametrize(
    ("kernels", "jobs", "expected"), [(3, 16, 3), (100, 4, 2), (100, 1, 1), (0, 16, 0)]
)
def test_started_while_a_gpu_model_is_captured(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, kernels: int, jobs: int, expected: int
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu = torch.ones(2, device="cuda")
    started: list[int] = []
    monkeypatch.setattr(workers, "start", started.append)
    monkeypatch.setattr(triton_rt, "build_ahead", lambda: started.append(-1))
    start_workers(Options(jobs=jobs), [3, torch.ones(2)], kernels)
    assert started == []
    start_workers(Options(jobs=jobs), [3, torch.ones(2), on_gpu], kernels)
    assert started == [expected, -1]


def test_cpu_programs_start_none(workers: Workers, tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path)}
    x = torch.ones(4)
    compiled = compile_cli.compile(lambda t: t.sin() + 1, (x,), options=options)
    assert torch.allclose(compiled(x), x.sin() + 1)
    torch._dynamo.reset()
    hooked = torch.compile(lambda t: t.cos() + 1, backend=backend, options=options)
    assert torch.allclose(hooked(x), x.cos() + 1)
    assert workers.pids == [] and not workers._servers


def test_a_compilation_that_fails_leaves_the_workers(workers: Workers, tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path), jobs=2)
    bad = parse_program(PROGRAM.format(n=32).replace("tl.arange(0, B)", "tl.arange(0, 33)"))
    kernels = Kernels(options)
    with pytest.raises(triton_rt.errors.CompileFailed), kernels.compiling():
        kernels.start_build(bad)()
    pids = workers.pids
    assert pids and kernels.pool is None
    assert build(options, 64) and workers.pids == pids


def test_what_triton_launches_is_not_compiled_here(workers: Workers, tmp_path: Path) -> None:
    assert build(Options(cache_dir=str(tmp_path), emit="hop"), 32) == []
    assert workers.pids == []
