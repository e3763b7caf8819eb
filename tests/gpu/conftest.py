"""Where there is no GPU, a file of these tests is one skip: no item is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch


class Skipped(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip("needs a CUDA GPU", allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if torch.cuda.is_available():
        return None
    return Skipped.from_parent(parent, path=module_path)
