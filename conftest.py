"""How the tests of every member run: one process a core, one thread each, bytecode kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# To import torch without its bytecode takes ten seconds, for each process that the tests start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if "PYTEST_XDIST_WORKER" in os.environ:  # the cores are taken by the other processes
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """None, one process a core, for whole folders. All in this process for single files or
    tests, where starting others takes longer, and on a machine with a GPU, which tests that
    measure want for themselves."""
    paths = (arg.partition("::")[0] for arg in config.args)
    if Path("/dev/nvidiactl").exists() or all(Path(path).is_file() for path in paths):
        return 0
    return None
