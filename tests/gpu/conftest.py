"""Where there is no GPU, a file of these tests is one skip: no item is made of it. Those that
compile many kernels share processes for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from triton_rt import CompilePool

CORES = len(os.sched_getaffinity(0))
TESTS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))

if TESTS > 1:  # each process would start as many compilers as the machine has cores
    os.cpu_count = lambda: max(2, 2 * CORES // TESTS)


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
