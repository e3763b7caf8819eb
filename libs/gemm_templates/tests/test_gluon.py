"""The template whose warps have roles, cross-compiled for Hopper; nothing interprets it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from gemm_templates import B200, H200, Config, Epilogue, InvalidConfig, Param, Problem, candidates
from gemm_templates.epilogues import GELU_NARROW, residual_of
from gemm_templates.families.gluon import family as gluon
from gemm_templates.model import is_legal
from gemm_templates.registry import make_plan
from triton_rt import Target, compile

ALIGNED = frozenset({"a", "b", "bias", "out"})
UP = Problem(
    16384, 3072, 768, b_stride=(1, 768), bias="bf16", epilogue=GELU_NARROW, aligned=ALIGNED
)
DOWN = Problem(16384, 768, 3072, epilogue=residual_of("bf16", 2, stride=(768, 1)), aligned=ALIGNED)
DYNAMIC = Problem(1000, 768, 3072, out_dtype="f16", dynamic=frozenset({"M"}), aligned=ALIGNED)
TURNS = Config(128, 128, 64, 8, 8, 6, "gluon", 132, 2)
SHARED = Config(128, 256, 64, 8, 8, 4, "gluon", 132, 4)


@cache
def compiled(problem, config):
    kernel = make_plan(problem, config).steps[0].source
    everything = (1 << len(kernel.params)) - 1
    return compile(kernel, Target(90), alignment=everything, keep_ptx=True)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (DYNAMIC, TURNS),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((UP, TURNS), (DOWN, TURNS), (UP, SHARED))
        ),
    ],
)
def test_code_for_hopper(problem, config):
    binary = compiled(problem, config)
    rows, columns = ("m64n128k16", 2) if config is TURNS else ("m64n256k16", 1)
    assert binary.ptx.count("wgmma.mma_async") == binary.ptx.count(rows) == 8 * columns
    assert "setmaxnreg.inc.sync.aligned.u32 \t240" in binary.ptx
    assert "cp.async.bulk.tensor.2d.global" in binary.ptx  # the result leaves through TMA, too
    assert "ld.local" not in binary.ptx
    assert binary.num_warps == 12  # two groups, and two loading warps counted as four
    buffers = 2 if f"BUFFERS={2}" in make_plan(problem, config).steps[0].source.text else 1
    assert binary.shared_bytes <= gluon.shared_memory(problem, config, buffers) <= H200.smem


def test_another_matrix_is_read_eight_columns_at_a_time():
    binary = compiled(DOWN, TURNS)
    assert "ld.global.v4.b32" in binary.ptx and "shfl.sync.bfly" in binary.ptx
    assert binary.shared_bytes <= H200.smem  # the exchange takes none
    assert "shfl.sync.bfly" not in compiled(UP, TURNS).ptx


@pytest.mark.slow
def test_what_no_descriptor_may_write_is_stored_from_registers():
    binary = compiled(replace(DYNAMIC, n=767, b_stride=(1, 3072)), TURNS)
    assert "cp.async.bulk.tensor.2d.global" not in binary.ptx and "st.global" in binary.ptx


def test_an_epilogue_has_to_be_elementwise():
    text = "@triton.jit\ndef f(acc, rm, rn, mask, operands):\n    return {}\n"
    for value, good in (
        ("tl.where(acc < 0, 0.0, acc + tl.load(operands[0] + rn, mask=mask))", True),
        ("acc / tl.sum(acc, axis=1)[:, None]", False),
        ("acc + tl.arange(0, 64)", False),
    ):
        epilogue = Epilogue("f", text.format(value), (Param("x", "*f32"),))
        problem = replace(DOWN, epilogue=epilogue)
        assert is_legal(problem, TURNS, H200) == good
        if good:
            make_plan(problem, TURNS)
        else:
            with pytest.raises(InvalidConfig, match="elementwise"):
                make_plan(problem, TURNS)


def test_where_it_is_offered():
    assert not gluon.CAN.runs_on(B200) and not is_legal(UP, TURNS, B200)
    assert candidates(UP, H200)[0].config.template == "gluon"
    for change in (
        {"aligned": frozenset()},
        {"a_dtype": "f32", "b_dtype": "f32", "input_precision": "tf32"},
        {"k": 0},
        {"a_stride": (767, 1)},
    ):
        assert not is_legal(replace(UP, **change), TURNS, H200)


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": 4}, {"programs": 0}, {"block_m": 32}, {"block_n": 32}, {"block_k": 128},
        {"num_stages": 1}, {"block_m": 256, "block_n": 256},
    ],
)  # fmt: skip
def test_schedules_that_it_does_not_have(change):
    config = replace(TURNS, **change)
    assert not is_legal(UP, config, H200)
    with pytest.raises(InvalidConfig):
        make_plan(UP, config)
