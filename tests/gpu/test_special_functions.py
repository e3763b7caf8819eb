"""Functions that kernels take from CUDA's library, against eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import compile_cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("name", ["acosh", "asinh", "atanh", "erfc", "erfinv", "lgamma", "digamma"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_functions_of_mathematics(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    fn = getattr(torch.special, name, None) or getattr(torch, name)
    x = torch.linspace(-6.3, 9, 4001, device="cuda").to(dtype)
    got = compile_cli.compile(fn, (x,), options=options)(x)
    close = {torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(got, fn(x), rtol=close, atol=close, equal_nan=True)
