"""Kernels shared by the tests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from triton_rt import KernelParam, KernelSource

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
