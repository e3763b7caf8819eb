"""The same text compiles for a GPU (no GPU needed)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from triton_emit import Schedule, default_schedule, emit
from triton_rt import Target
from triton_rt.compiler import compile_here


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("gelu_bias_dynamic", None),
        ("add_norm", None),
        ("embed_norm", Schedule("looped", 4, 128, index_bits=64)),
        ("softmax", Schedule("persistent", 4, 1024)),
        ("softmax_wide", None),
        ("attention_mask", None),
    ],
)
def test_compiles_for_sm_90(name: str, schedule: Schedule | None, tools: SimpleNamespace) -> None:
    kernel = tools.kernels[name]
    emitted = emit(kernel, schedule or default_schedule(kernel, {"s0": 64}))
    binary = compile_here(tools.kernel_source(emitted), Target(90))
    assert binary.name == name
