"""Cross-compiled for Hopper on a machine without a GPU: the instructions that make it fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget

import gemm_templates
from gemm_templates import H200, Config, Problem, source
from gemm_templates.epilogues import GELU, residual_of
from gemm_templates.families.dense import shared_memory
from gemm_templates.registry import FAMILIES
from triton_rt import load_jit

ALIGNED = frozenset({"a", "b", "out"})


def compile_for_hopper(problem, config):
    kernel = source(problem, config).source
    names = [p.name for p in kernel.params] + [name for name, _ in kernel.constants]
    constants = {(names.index(name),): value for name, value in kernel.constants}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, p in enumerate(kernel.params)
        if p.kind.startswith("*") or p.aligned
    }
    source_of = triton.compiler.ASTSource(load_jit(kernel), kernel.signature(), constants, aligned)
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    return triton.compile(source_of, target=GPUTarget("cuda", 90, 32), options=options)


UP = Problem(16384, 3072, 768, b_stride=(1, 768), bias="bf16", epilogue=GELU, aligned=ALIGNED)
DOWN = Problem(16384, 768, 3072, epilogue=residual_of("bf16", 2), aligned=ALIGNED)
DYNAMIC = Problem(16384, 3072, 768, dynamic=frozenset({"M"}), aligned=ALIGNED)


@pytest.mark.parametrize(
    ("problem", "config", "loads"),
    [
        (DYNAMIC, Config(128, 128, 64, 8, 4, 3), "cp.async.cg"),
        (DYNAMIC, Config(256, 128, 64, 8, 8, 3, "tma", 132), "cp.async.bulk.tensor"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            (DOWN, Config(128, 128, 64, 8, 8, 4), "cp.async.cg"),
            (DOWN, Config(128, 128, 64, 8, 8, 4, "tma", 132), "cp.async.bulk.tensor"),
            (UP, Config(128, 256, 64, 8, 8, 3), "cp.async.cg"),
            (UP, Config(128, 256, 64, 8, 8, 4, "tma", 132, 2), "cp.async.bulk.tensor"),
            (UP, Config(128, 128, 64, 4, 4, 3, "tma", 264, 4), "cp.async.bulk.tensor"),
            (DOWN, Config(128, 256, 64, 8, 8, 4, "tma", 132, 4), "cp.async.bulk.tensor"),
        )),
    ],
)  # fmt: skip
def test_hopper_code_uses_wgmma_and_asynchronous_loads(problem, config, loads):
    binary = compile_for_hopper(problem, config)
    ptx = binary.asm["ptx"]
    assert "wgmma.mma_async" in ptx
    assert loads in ptx
    estimate = shared_memory(problem, config, persistent=config.template == "tma")
    assert binary.metadata.shared <= estimate <= H200.smem
    assert "ld.local" not in ptx


def test_odd_sizes_compile_without_wide_loads():
    ptx = compile_for_hopper(Problem(1001, 1003, 999), Config(64, 64, 32, 8, 4, 3)).asm["ptx"]
    assert "wgmma.mma_async" in ptx


def test_kernels_are_imported_without_torch():
    """Compile workers start in a tenth of the time so."""
    found = sorted(Path(gemm_templates.__file__).parent.glob("families/*/kernel.py"))
    names = [f"gemm_templates.families.{path.parent.name}.kernel" for path in found]
    assert len(names) == len(FAMILIES) - 4  # four families have the kernel of another
    text = "import sys; sys.modules['torch'] = None; import " + ", ".join(names)
    subprocess.run([sys.executable, "-c", text], check=True)
