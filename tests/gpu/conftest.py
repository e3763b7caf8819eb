"""Where there is no GPU, a file of these tests is one skip: no item is made of it. Those that
compile many kernels share processes for it, and all share what is compiled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from planner.matmul import ladder
from triton_rt import CompilePool

CORES = len(os.sched_getaffinity(0))
TESTS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))

if TESTS > 1 and torch.cuda.is_available():  # each process would start a compiler a core
    os.cpu_count = lambda: max(4, 2 * CORES // TESTS)


class Skipped(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip("needs a CUDA GPU", allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if torch.cuda.is_available():
        return None
    return Skipped.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def pool() -> Iterator[CompilePool]:
    """Of a few processes where others test beside this one: each takes seconds to start."""
    with CompilePool(min(16, max(2, 4 * CORES // TESTS))) as pool:
        yield pool


@pytest.fixture
def own_cache(own_cache: Path, cache_of_run: Path) -> Path:
    """With the run's kernels, which are named by what went in: each emitter launches the same."""
    kernels = cache_of_run / "kernels"
    kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
    (own_cache / "kernels").symlink_to(kernels)
    return own_cache


@pytest.fixture
def few_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls of a dynamic number of rows are decided at a few of them."""
    monkeypatch.setattr(ladder, "LADDER", (1, 16, 128, 1024))
