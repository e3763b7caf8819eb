"""The cost model, and the limits it keeps to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_templates import (
    A100,
    CONFIGS,
    H200,
    Config,
    Epilogue,
    InvalidConfig,
    InvalidProblem,
    Problem,
    UnsupportedProblem,
    candidates,
    explain,
    make_plan,
    source,
    tma_configs,
)
from gemm_templates.epilogues import GELU, residual_of
from gemm_templates.families.dense import shared_memory
from gemm_templates.model import is_legal, predict, worth_measuring

ALIGNED = frozenset({"a", "b", "out"})
SIZES = st.one_of(st.integers(1, 300), st.sampled_from([768, 1024, 3072, 8192, 16384]))
PROBLEMS = st.builds(
    lambda m, n, k, dtype, end, aligned: Problem(
        m, n, k, dtype, dtype, dtype, epilogue=end, aligned=aligned
    ),
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["bf16", "f16", "f32"]),
    st.sampled_from([None, GELU]),
    st.sampled_from([frozenset(), ALIGNED]),
)


@settings(max_examples=20, deadline=None)
@given(PROBLEMS, st.sampled_from([H200, A100]))
def test_candidates_are_few_legal_sorted_and_hold_the_vendor_call(problem, device):
    found = candidates(problem, device)
    assert 1 <= len(found) <= 8
    assert [c.label for c in found].count("extern") == 1
    assert [c.predicted for c in found] == sorted(c.predicted for c in found)
    assert len({c.label for c in found}) == len(found)
    for candidate in found:
        assert candidate.predicted > 0
        if candidate.config is not None:
            assert shared_memory(problem, candidate.config) <= device.smem
            assert is_legal(problem, candidate.config, device)
            assert all(k.source.text for k in make_plan(problem, candidate.config).steps)
            if candidate.config.template == "tma":
                assert device.capability >= (9, 0) and problem.aligned


def test_what_is_close_without_sharing_k_is_measured_too():
    """The model has shares of K ahead here; on an H200 whole tiles were 30 % faster."""
    found = candidates(Problem(16, 3072, 768, epilogue=GELU, aligned=ALIGNED), H200)
    whole = [c for c in found if c.config is not None and c.config.split_k == 1]
    assert len(whole) == 2 and any(c.label.startswith("16x16x128") for c in whole)
    assert len(found) == 6
    # Far from close: eight programs a tile are three times as fast.
    long = candidates(Problem(64, 64, 16384, aligned=ALIGNED), H200)
    assert all(c.config is None or c.config.split_k > 1 for c in long)


@settings(max_examples=20, deadline=None)
@given(PROBLEMS, st.sampled_from(["m", "n", "k"]), st.sampled_from(CONFIGS))
def test_more_work_never_takes_less_time(problem, dim, config):
    larger = replace(problem, **{dim: 2 * getattr(problem, dim)})
    assert predict(larger, config, H200)[0] >= predict(problem, config, H200)[0]


def test_an_epilogue_costs_and_is_charged_to_the_vendor_call_too():
    plain = Problem(16384, 3072, 768)
    fused = replace(plain, epilogue=GELU)

    def extern(problem):
        return next(c.predicted for c in candidates(problem, H200) if c.config is None)

    config = Config(128, 128, 64, 8, 8, 3)
    assert predict(fused, config, H200)[0] > predict(plain, config, H200)[0]
    assert extern(fused) > extern(plain) + 16384 * 3072 * 4 / H200.dram_rate


def test_work_is_counted_in_the_text():
    text = """
@triton.jit
def helper(x):
    return tl.fma(x, x, 1.0) / 2.0


@triton.jit
def end(acc, rm, rn, mask, operands):
    value = tl.load(operands[0] + rm * 8 + rn, mask=mask)
    return helper(acc) + tl.exp2(value) * 3.0
"""
    assert Epilogue("end", text).instructions == 1 + 8 + 2 + 1 + 1
    assert Epilogue("end", text, work=5.0).instructions == 5.0


def test_exact_f32_products_are_left_to_the_vendor():
    problem = Problem(4096, 4096, 4096, "f32", "f32", "f32", aligned=ALIGNED)
    found = candidates(problem, H200)
    assert not any(c.config and c.config.template == "tma" for c in found)
    assert not worth_measuring(found)
    assert worth_measuring(candidates(replace(problem, input_precision="tf32"), H200))


def test_two_programs_a_multiprocessor_hide_an_epilogue():
    problem = Problem(16384, 3072, 768, epilogue=GELU, aligned=ALIGNED)
    found = candidates(problem, H200, configs=tma_configs(H200))
    assert found[0].config.programs == 2 * H200.sms


def test_layouts_that_descriptors_cannot_address_get_no_tma():
    good = Problem(512, 512, 512, aligned=ALIGNED)
    config = tma_configs(H200)[0]
    assert is_legal(good, config, H200)
    assert not is_legal(good, config, A100)
    assert not is_legal(replace(good, aligned=frozenset()), config, H200)
    assert not is_legal(replace(good, a_stride=(1024, 2)), config, H200)
    assert not is_legal(replace(good, a_stride=(516, 1)), config, H200)
    assert not is_legal(replace(good, a_stride=(0, 1)), config, H200)
    assert is_legal(replace(good, b_stride=(1, 512)), config, H200)
    dynamic = replace(good, dynamic=frozenset({"stride_am"}))
    assert not is_legal(dynamic, config, H200)
    assert is_legal(replace(dynamic, divisors=(("stride_am", 8),)), config, H200)
    with pytest.raises(InvalidConfig, match="16-byte aligned"):
        source(replace(good, aligned=frozenset()), config)


def test_a_limit_of_one_leaves_the_vendor_call():
    assert [c.label for c in candidates(Problem(64, 64, 64), H200, limit=1)] == ["extern"]


def test_explain_prints_predicted_and_measured_times():
    problem = Problem(1024, 1024, 1024)
    found = candidates(problem, H200)
    text = explain(problem, found, {"extern": 7e-6})
    assert "[1024, 1024] @ [1024, 1024] bf16->bf16" in text
    assert "extern" in text and "7.0" in text and "307" in text  # TFLOP/s
    assert len(text.splitlines()) == 2 + len(found)


def test_source_has_flat_parameters_and_constants():
    problem = Problem(
        512, 96, 64, bias="f32", dynamic=frozenset({"M", "stride_am"}),
        divisors=(("M", 512),), wide=False,
    )  # fmt: skip
    kernel = source(problem, Config(128, 64, 32, 8, 4, 3), "up")
    assert [(p.name, p.kind, p.mutated, p.aligned) for p in kernel.source.params] == [
        ("a", "*bf16", False, False),
        ("b", "*bf16", False, False),
        ("bias", "*f32", False, False),
        ("out", "*bf16", True, False),
        ("M", "i32", False, True),
        ("stride_am", "i32", False, False),
    ]
    assert dict(kernel.source.constants) == {
        "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8,
    }  # fmt: skip
    assert kernel.grid(1000, 96) == (8 * 2, 1, 1)
    assert kernel.grid_text == ("CeilDiv(M, 128)*CeilDiv(N, 64)", "1", "1")
    assert 'EDGE_M="none", EDGE_N="mask"' in kernel.source.text
    tma = source(Problem(512, 512, 512, aligned=ALIGNED), tma_configs(H200)[0])
    assert tma.grid(512, 512) == (8, 1, 1) and tma.grid(8192, 8192) == (132, 1, 1)
    assert tma.grid_text[0] == "Min(CeilDiv(M, 128)*CeilDiv(N, 256), 132)"


def test_offsets_are_wide_where_they_may_be():
    assert not Problem(1024, 1024, 1024).is_wide
    assert Problem(2**20, 16, 4096).is_wide
    assert Problem(64, 64, 64, dynamic=frozenset({"M"})).is_wide
    assert not Problem(64, 64, 64, dynamic=frozenset({"M"}), wide=False).is_wide


def test_keys_tell_problems_apart():
    base = Problem(64, 64, 64)
    others = [
        replace(base, m=65),
        replace(base, dynamic=frozenset({"M"})),
        replace(base, epilogue=GELU),
        replace(base, epilogue=Epilogue("gelu", "another text")),
        replace(base, bias="bf16"),
    ]
    assert len({p.key for p in [base, *others]}) == len(others) + 1


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Problem(-1, 1, 1), InvalidProblem),
        (lambda: Problem(2**31, 1, 1), InvalidProblem),
        (lambda: Problem(1, 1, 1, "f64", "f64", "f64"), UnsupportedProblem),
        (lambda: Problem(1, 1, 1, "f32"), UnsupportedProblem),
        (lambda: Problem(1, 1, 1, dynamic=frozenset({"X"})), InvalidProblem),
        (lambda: Problem(1, 1, 1, input_precision="fast"), InvalidProblem),
        (lambda: Problem(1, 1, 1, batch=2, epilogue=residual_of("f32", 4)), UnsupportedProblem),
        (lambda: Problem(1, 1, 1, batch=70000), UnsupportedProblem),
        (lambda: Config(100, 64, 64), InvalidConfig),
        (lambda: Config(num_warps=3), InvalidConfig),
        (lambda: source(Problem(64, 64, 64), Config(template="split")), InvalidConfig),
        (lambda: source(Problem(64, 64, 64), Config(template="tma")), InvalidConfig),
        (lambda: source(Problem(1, 1, 1), Config(16, 16, 16, num_warps=16)), InvalidConfig),
        (lambda: source(Problem(1, 1, 1), Config(), "not a name"), InvalidProblem),
        (lambda: source(Problem(1, 1, 1), Config(), "out"), InvalidProblem),
    ],
)
def test_mistakes_are_named(make, error):
    with pytest.raises(error):
        make()
