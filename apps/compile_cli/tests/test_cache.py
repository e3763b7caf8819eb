"""Damaged files in the cache are said to be, dropped, and built again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import compile_cli
import triton_rt
from planner.kernels import expected_variants, kernel_source


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


def test_damaged_library(tmp_path: Path, share_parts: Callable[[Path], None]) -> None:
    """A C++ library that was cut short or overwritten, found by another compilation."""
    share_parts(tmp_path / "cpp")
    x = torch.randn(64)

    def run() -> None:
        options = {"cache_dir": str(tmp_path), "emit": "cpp"}
        compiled = compile_cli.compile(f, (torch.ones(64),), options=options)
        torch.testing.assert_close(compiled(x), f(x))

    run()
    (library,) = (tmp_path / "cpp").glob("*.so")
    library.unlink()  # this process has it open
    library.write_bytes(b"not a library")
    with pytest.warns(UserWarning, match="built again"):
        run()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*built again")
        run()
