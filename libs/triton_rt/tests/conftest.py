"""Kernels shared by the tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from triton_rt import Cache, KernelParam, KernelSource

Make = Callable[..., KernelSource]

_HEADER = "import triton\nimport triton.language as tl\n"


@pytest.fixture
def make_source() -> Callable[..., KernelSource]:
    """`make_source("x:*f32! n:i32", body, B=64)`: `!` marks a parameter that is mutated."""

    def make(signature: str, body: str, *, header: str = "", **constants: object) -> KernelSource:
        params = []
        for part in signature.split():
            name, kind = part.split(":")
            params.append(KernelParam(name, kind.rstrip("!"), mutated=kind.endswith("!")))
        names = [p.name for p in params] + [f"{n}: tl.constexpr" for n in constants]
        text = (
            _HEADER
            + textwrap.dedent(header)
            + f"\n@triton.jit\ndef kernel({', '.join(names)}):\n"
            + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
            + "\n"
        )
        return KernelSource("kernel", text, tuple(params), tuple(constants.items()))  # type: ignore[arg-type]

    return make


@pytest.fixture
def add_one(make_source: Callable[..., KernelSource]) -> KernelSource:
    return make_source(
        "x:*f32 y:*f32! n:i32",
        """
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)
        """,
        B=128,
    )


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", max_bytes=1 << 30)


@pytest.fixture
def kernel_of(make_source: Make) -> Make:
    """`make_source`, where dotted parameters are elements of one parameter."""

    def make(signature: str, body: str, *, tma: bool = True, **constants: object) -> KernelSource:
        source = make_source(signature, body, **constants)
        names = dict.fromkeys(p.name.partition(".")[0] for p in source.params)
        names |= dict.fromkeys(n.partition(".")[0] for n in constants)
        text = re.sub(r"def kernel\(.*\)", f"def kernel({', '.join(names)})", source.text)
        text = (
            re.sub(r"\b([A-Z])([,)])", r"\1: tl.constexpr\2", text, count=0) if constants else text
        )
        return replace(source, text=text, tma=tma)

    return make


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcuda, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    out = tmp_path_factory.mktemp("fake") / "libfakecuda.so"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(out), str(source)], check=True)
    return out
