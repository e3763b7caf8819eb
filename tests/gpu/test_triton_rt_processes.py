"""triton_rt's processes on a real GPU: binaries and caches across them, pools, faults, soaks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import triton_rt as rt
from triton_rt import KernelParam, KernelSource, LazyKernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

ADD = KernelSource(
    "add",
    """
import triton
import triton.language as tl

@triton.jit
def add(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)
""",
    (KernelParam("x", "*f32"), KernelParam("y", "*f32", mutated=True), KernelParam("n", "i32")),
    (("B", 1024),),
)


def test_a_hand_written_function_is_compiled_by_its_signature(tmp_path: Path) -> None:
    """From a jit function to bytes, and from the bytes to a launch in a process without Triton."""
    function = rt.load_jit(ADD)
    binary = rt.compile(
        function, signature={"x": "*f32", "y": "*f32", "n": "i32"}, constants={"B": 1024},
        mutated=("y",), num_warps=8, alignment=0,
    )  # fmt: skip
    assert binary.num_warps == 8 and [p.mutated for p in binary.params] == [False, True, False]
    file = tmp_path / "add.bin"
    file.write_bytes(binary.to_bytes())
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\nfrom triton_rt import Binary, Kernel\n"
        f"kernel = Kernel(Binary.from_bytes(open({str(file)!r}, 'rb').read()))\n"
        "x = torch.arange(3000., device='cuda'); y = torch.zeros_like(x)\n"
        "kernel(3, x, y, 3000)\n"
        "print(torch.equal(y, x + 1))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "True\n", run.stderr[-2000:]


def test_cache_is_shared_by_processes(tmp_path: Path) -> None:
    """A second process launches from the cache, and compiles nothing."""
    script = tmp_path / "script.py"
    source = repr(ADD).replace("KernelSource(", "rt.KernelSource(")
    source = source.replace("KernelParam(", "rt.KernelParam(")
    script.write_text(
        "import sys, torch, triton_rt as rt\n"
        f"kernel = rt.LazyKernel({source}, cache=rt.Cache(sys.argv[1], 1 << 30))\n"
        "x = torch.arange(2048., device='cuda'); y = torch.zeros_like(x)\n"
        "kernel(2, x, y, 2048)\n"
        "assert torch.equal(y, x + 1)\n"
        "print(kernel.cache.hits, kernel.cache.misses)\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, str(script), str(tmp_path / "cache")],
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ),
        )
        for _ in range(2)
    ]
    assert [r.stdout.strip() for r in runs] == ["0 1", "1 0"], [r.stderr[-2000:] for r in runs]


def test_pool_and_prefetch() -> None:
    with rt.CompilePool(2) as pool:
        kernels = [LazyKernel(replace(ADD, constants=(("B", b),)), pool=pool) for b in (256, 512)]
        for kernel in kernels:
            kernel.prefetch(alignment=0b111)
        x = torch.randn(4096, device="cuda")
        for kernel, block in zip(kernels, (256, 512), strict=True):
            y = torch.zeros_like(x)
            kernel(4096 // block, x, y, 4096)
            assert torch.equal(y, x + 1)


def test_memory_faults_are_legible() -> None:
    """In a process of its own, since a fault ends the context."""
    code = (
        "import torch, triton_rt as rt\n"
        "text = 'import triton, triton.language as tl\\n@triton.jit\\ndef k(x):\\n"
        "    tl.store(x + (1 << 40), 1.0)\\n'\n"
        "k = rt.LazyKernel(rt.KernelSource('k', text, (rt.KernelParam('x', '*f32', True),)))\n"
        "x = torch.zeros(4, device='cuda')\n"
        "k(1, x)\n"
        "try: torch.cuda.synchronize()\n"
        "except Exception: pass\n"
        "try: k(1, x)\n"
        "except rt.errors.CudaError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "launch of k" in run.stdout and "CUDA_ERROR" in run.stdout, run.stderr[-2000:]


# -- long runs, shortened (benchmarks/soak.py runs them whole) -----------------------------------


@pytest.fixture(scope="module")
def soak() -> Any:
    path = Path(__file__).parents[2] / "libs/triton_rt/benchmarks/soak.py"
    spec = importlib.util.spec_from_file_location("soak", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("part", "count"),
    [("launches", 300_000), ("loads", 2000), ("threads", 40_000), ("processes", 8)],
)
def test_soak(soak: Any, part: str, count: int) -> None:
    """What leaks grows each time; what other processes take of the GPU meanwhile does not."""
    results = []
    while not results or (not results[-1]["ok"] and len(results) < 6):
        results.append(getattr(soak, part)(count))
    assert results[-1]["ok"], results


def test_a_process_that_imported_the_compiler_forks() -> None:
    """CUDA starts in a call, not with the import: its children may use it."""
    code = (
        "import os, sys\nimport torch\nfrom compile_cli import pipeline\n"
        "child = os.fork()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "torch.ones(4, device='cuda').sum().item()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
