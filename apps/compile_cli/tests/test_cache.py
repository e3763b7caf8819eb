"""Damaged files in the cache are said to be, dropped, and built again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import compile_cli
import triton_rt
from compile_cli.runtime import expected_variants, kernel_source


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x) * 2


def test_damaged_kernel(tmp_path: Path) -> None:
    compiled = compile_cli.compile(f, (torch.randn(64),), options={"cache_dir": str(tmp_path)})
    ((define, alignment),) = expected_variants(compiled.graph.program)
    cache = triton_rt.Cache(tmp_path / "kernels")

    def build(cache: triton_rt.Cache) -> triton_rt.Binary:
        return triton_rt.compile(
            kernel_source(define), triton_rt.Target(90), alignment=alignment, cache=cache
        )

    good = build(cache)
    (entry,) = (tmp_path / "kernels").glob("??/*.bin")
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 0xFF
    entry.write_bytes(data)
    with pytest.warns(UserWarning, match="dropped and is built again"):
        again = build(triton_rt.Cache(tmp_path / "kernels"))
    assert again.cubin == good.cubin
    assert build(triton_rt.Cache(tmp_path / "kernels")).cubin == good.cubin


def test_damaged_library(tmp_path: Path) -> None:
    """A C++ library that was cut short or overwritten; another process finds it."""
    import subprocess
    import sys

    code = (
        "import torch, compile_cli\n"
        "f = lambda x: torch.nn.functional.gelu(x) * 2\n"
        f"c = compile_cli.compile(f, (torch.ones(64),), options={{'cache_dir': {str(tmp_path)!r},"
        " 'emit': 'cpp'})\n"
        "x = torch.randn(64)\n"
        "torch.testing.assert_close(c(x), f(x))\n"
    )

    def run() -> Any:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
        )

    assert run().returncode == 0
    (library,) = (tmp_path / "cpp").glob("*.so")
    library.write_bytes(b"not a library")
    second = run()
    assert second.returncode == 0, second.stderr
    assert "built again" in second.stderr
    third = run()
    assert third.returncode == 0
    assert "built again" not in third.stderr
