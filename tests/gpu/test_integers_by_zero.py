"""Integers divided by zero: eager's kernels and ours give what the GPU does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]

DIVISIONS: dict[str, Callable[..., Any]] = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_as_eager(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    divide = DIVISIONS[name]
    ends = torch.iinfo(dtype)
    values = [0, 1, 7, 100, ends.max, ends.min]
    values += [-1, -7] if ends.min < 0 else []
    values += [2**32 - 1, 2**32, -(2**33)] if dtype is torch.int64 else []
    x = torch.tensor(values, dtype=dtype, device="cuda")
    options: Any = {"cache_dir": str(tmp_path)}
    run = torch.compile(divide, backend="compile_cli", dynamic=False, options=options)
    for divisor in (0, 3):
        y = torch.full_like(x, divisor)
        assert run(x, y).tolist() == divide(x, y).tolist()
