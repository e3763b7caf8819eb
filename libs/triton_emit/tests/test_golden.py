"""The text of the kernels of an encoder, and that it computes what the loop nest says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from loop_ir import Load, Origin, Store
from loop_ir.ir import map_statements
from triton_emit import Emitter, Schedule, default_schedule, emit

emit_module = sys.modules["triton_emit.emit"]

SYMBOLS = {"s0": 3}

CASES = {
    "gelu_bias": None, "gelu_bias_dynamic": None, "add_norm": None, "embed_norm": None,
    "softmax": None, "softmax_wide": None, "attention_mask": None,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, tools: SimpleNamespace, golden: Callable[[str, str], None]) -> None:
    kernel = tools.kernels[name]
    emitted = emit(kernel, default_schedule(kernel, {"s0": 64}))
    head = f"# {emitted.schedule}\n# grid {emitted.grid}\n# args {emitted.args}\n"
    golden(f"{name}.py.txt", head + emitted.source)


@pytest.mark.parametrize("name", [n for n in CASES if n != "softmax_wide"])
def test_computes_what_the_loop_nest_says(name: str, tools: SimpleNamespace) -> None:
    tools.check(tools.kernels[name], symbols=SYMBOLS)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule("persistent", 1, 1024),
        Schedule("persistent", 4, 2048, index_bits=64),
        Schedule("looped", 1, 256),
        Schedule("looped", 4, 128, index_bits=64),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["add_norm", "embed_norm", "softmax"])
def test_every_schedule_computes_the_same(
    name: str, schedule: Schedule, tools: SimpleNamespace
) -> None:
    tools.check(tools.kernels[name], schedule, symbols={"s0": 1})


def test_wide_rows_are_looped_over(tools: SimpleNamespace) -> None:
    emitted = tools.check(tools.kernels["softmax_wide"])
    assert emitted.schedule.kind == "looped"
    assert emitted.source.count("for start in range(0, 131072, RBLOCK):") == 2


@pytest.mark.parametrize("name", CASES)
def test_alike_kernels_are_emitted_once(name: str, tools: SimpleNamespace) -> None:
    """Another layer's: other buffers, origins and name. Nothing else may come of the first."""
    kernel = tools.kernels[name]
    names = {b.name: f"layer_1_{b.name}" for b in reversed(kernel.buffers)}
    other = replace(
        map_statements(
            kernel,
            lambda s: replace(s, buffer=names[s.buffer]) if isinstance(s, Load | Store) else s,
        ),
        name=f"{name}_again",
        buffers=tuple(replace(b, name=names[b.name]) for b in kernel.buffers),
        origins=(Origin("aten.add.Tensor", "encoder.py:99"),),
    )
    schedule = default_schedule(kernel, {"s0": 64})
    emitter, calls = Emitter(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emit_module, "emit", lambda *a: calls.append(a) or emit(*a))
        for one in (kernel, other, kernel):
            assert emitter(one, schedule) == emit(one, schedule)
    assert len(calls) == 1
