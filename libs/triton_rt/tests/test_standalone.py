"""Texts that stand alone: the same kernel, or none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from triton_rt import KernelParam, KernelSource, Target, compile, standalone_text

Modules = Callable[..., ModuleType]
HEAD = "import triton\nimport triton.language as tl\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    """`modules(name=text, ...)` writes modules and imports the last."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(**texts: str) -> ModuleType:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(HEAD + text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return make


KERNEL = """
BLOCK: tl.constexpr = tl.constexpr(32)

@triton.jit
def twice(v):
    return v + v

@triton.jit
def kernel(x, SQUARE: tl.constexpr = False):
    '''Doubles.'''
    i = tl.arange(0, BLOCK)
    v = twice(tl.load(x + i))
    tl.store(x + i, v * v if SQUARE else v)
"""


def test_a_kernel_with_helpers_and_constants(modules: Modules, monkeypatch: object) -> None:
    module = modules(rt_alone="import torch\n" + KERNEL)
    text = standalone_text(module.kernel)
    assert text is not None and "rt_alone" not in text and "torch" not in text
    params = (KernelParam("x", "*f32", True),)
    alone = KernelSource("kernel", text, params, (("SQUARE", True),))
    imported = KernelSource.from_jit(module.kernel, {"x": "*f32"}, {"SQUARE": True}, mutated=("x",))
    assert imported.text.startswith("from rt_alone import")

    def code(source: KernelSource) -> list[str]:
        lines = compile(source, Target(90), keep_ptx=True).ptx.partition(".section")[0].splitlines()
        return [
            s
            for s in map(str.strip, lines)
            if s and not s.startswith((".loc", ".file", "//", "$L"))
        ]

    assert code(alone) == code(imported)


def test_constants_that_have_no_literal(modules: Modules) -> None:
    module = modules(
        rt_endless="LOW = tl.constexpr(float('-inf'))\nNONE = tl.constexpr(float('nan'))\n"
        "@triton.jit\ndef k(x):\n    tl.store(x, tl.where(tl.load(x) > LOW, LOW, NONE))\n"
    )
    text = standalone_text(module.k)
    assert text is not None and 'LOW = tl.constexpr(float("-inf"))' in text
    source = KernelSource("k", text, (KernelParam("x", "*f32", True),))
    assert "0fFF800000" in compile(source, Target(90), keep_ptx=True).ptx


def test_libraries_of_triton(modules: Modules) -> None:
    module = modules(
        rt_math="from triton.language.extra import libdevice\n"
        "@triton.jit\ndef k(x):\n    tl.store(x, libdevice.tanh(tl.load(x)) + tl.cdiv(3, 2))\n"
    )
    text = standalone_text(module.k)
    assert text is not None and "libdevice" in text


SAME_NAME = "@triton.jit\ndef act(v):\n    return v {}\n"
CONSTANT = "C = tl.constexpr({})\n"
ODD = {
    "options": "@triton.jit(noinline=True)\ndef f(v):\n    return v\n"
    "@triton.jit\ndef k(x):\n    tl.store(x, f(1))\n",
    "specialised": "@triton.jit(do_not_specialize=['n'])\ndef k(x, n):\n    tl.store(x, n)\n",
    "another name": "from rt_a import act as other\n"
    "@triton.jit\ndef k(x):\n    tl.store(x, other(tl.load(x)))\n",
    "two of a name": "from rt_a import act\nfrom rt_b import act as act_b, through\n"
    "@triton.jit\ndef k(x):\n    tl.store(x, through(act(tl.load(x))))\n",
    "a constant of a name": CONSTANT.format(5) + "from rt_b import with_constant\n"
    "@triton.jit\ndef k(x):\n    tl.store(x, with_constant(C))\n",
    "a global": "T = tl.float32\n@triton.jit\ndef k(x):\n    tl.store(x, tl.load(x).to(T))\n",
    "an annotation": "C = tl.constexpr\n@triton.jit\ndef k(x, n: C):\n    tl.store(x, n)\n",
    "a default": "N = 7\n@triton.jit\ndef k(x, n: tl.constexpr = N):\n    tl.store(x, n)\n",
    "a compile-time function": "@triton.constexpr_function\ndef f(n):\n    return n + 1\n"
    "@triton.jit\ndef k(x, N: tl.constexpr):\n    tl.store(x, f(N))\n",
    "gluon": "from triton.experimental import gluon\n@gluon.jit\ndef k(x):\n    pass\n",
}


@pytest.mark.parametrize("name", ODD)
def test_none_rather_than_another_kernel(modules: Modules, name: str) -> None:
    module = modules(
        rt_a=SAME_NAME.format("+ 1"),
        rt_b=SAME_NAME.format("* 2") + CONSTANT.format(3)
        + "@triton.jit\ndef through(v):\n    return act(v)\n"
        "@triton.jit\ndef with_constant(v):\n    return v + C\n",
        rt_odd=ODD[name],
    )  # fmt: skip
    assert standalone_text(module.k) is None


def test_a_file_that_was_edited(modules: Modules, tmp_path: Path) -> None:
    module = modules(rt_edit="@triton.jit\ndef k(x):\n    tl.store(x, 1)\n")
    (tmp_path / "rt_edit.py").write_text(HEAD + "@triton.jit\ndef k(x):\n    tl.store(x, 256)\n")
    text = standalone_text(module.k)
    assert text is None or "256" not in text


def test_no_kernel() -> None:
    assert standalone_text(len) is None and standalone_text(lambda x: x) is None
