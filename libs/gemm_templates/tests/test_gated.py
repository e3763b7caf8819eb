"""`gate(a @ b) * (a @ b2)`: interpreted, and cross-compiled for Hopper."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import (
    A100,
    H200,
    Config,
    Inputs,
    InvalidConfig,
    Problem,
    UnsupportedProblem,
    bind,
    candidates,
)
from gemm_templates.epilogues import GELU, RELU, SILU, residual_of
from gemm_templates.families.gated import family as gated
from gemm_templates.families.gated_gluon import family as gated_gluon
from gemm_templates.model import is_legal, predict_extern
from gemm_templates.registry import FAMILIES, able, make_plan
from triton_rt import Target, compile

ALIGNED = frozenset({"a", "b", "b2", "out"})
ACTS = {"relu": (RELU, F.relu), "gelu": (GELU, F.gelu), "silu": (SILU, F.silu)}
UP = Problem(4096, 14336, 4096, b_stride=(1, 4096), gate=SILU, aligned=ALIGNED)


@pytest.mark.spread(2)
@pytest.mark.parametrize("act", list(ACTS))
@pytest.mark.parametrize("by_rows", [True, False])
def test_both_products_and_the_gate(act, by_rows):
    m, n, k = 40, 72, 48
    torch.manual_seed(0)
    a = torch.randn(m, k)
    b, b2 = (torch.randn((k, n) if by_rows else (n, k)) for _ in range(2))
    if not by_rows:
        b, b2 = b.t(), b2.t()
    gate, torch_act = ACTS[act]
    problem = Problem(m, n, k, "f32", "f32", "f32", b_stride=b.stride(), gate=gate, aligned=ALIGNED)
    expected = torch_act(a.double() @ b.double()) * (a.double() @ b2.double())
    for split in (0, 2):
        out = torch.full((m, n), float("nan"))
        config = Config(32, 32, 16, 8, 4, 2, "gated", 2, split)
        bind(problem, config)(Inputs(a, b, out, b2=b2))
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


def test_an_epilogue_follows_the_gate():
    m, n, k = 32, 64, 32
    torch.manual_seed(0)
    a, b, b2 = torch.randn(m, k), torch.randn(k, n), torch.randn(k, n)
    rest = torch.randn(m, n)
    problem = Problem(
        m, n, k, "f32", "f32", "f32", gate=SILU, epilogue=residual_of("f32", 4, stride=(n, 1)),
        dynamic=frozenset({"M"}), aligned=ALIGNED,
    )  # fmt: skip
    out = torch.empty(m, n)
    bind(problem, Config(16, 32, 32, 8, 4, 2, "gated", 3))(Inputs(a, b, out, None, (rest,), b2))
    expected = F.silu(a.double() @ b.double()) * (a.double() @ b2.double()) + rest.double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_gated_problems_go_to_gated_templates_only():
    plain = replace(UP, gate=None)
    for found, gated_ones in ((candidates(UP, H200), True), (candidates(plain, H200), False)):
        configs = [c.config for c in found if c.config]
        assert configs and all((c.template in able("gate")) == gated_ones for c in configs)
    assert [c.config for c in candidates(UP, A100)] == [None]
    for name in FAMILIES:
        config = Config(128, 128, 64, 8, 8, 4, name, 132, 2)
        wrong = plain if name in able("gate") else UP
        assert not is_legal(wrong, config, H200)
        with pytest.raises(InvalidConfig):
            make_plan(wrong, config)
    assert UP.flops == 2 * plain.flops and "gated by silu" in str(UP)
    assert predict_extern(UP, H200)[0] > 1.9 * predict_extern(plain, H200)[0]


def test_what_is_no_gate():
    for wrong in ({"bias": "bf16"}, {"gate": residual_of("bf16", 2)}, {"batch": 2}):
        with pytest.raises(UnsupportedProblem, match="gate"):
            replace(UP, **wrong)
    config = gated.configs(UP, H200)[0]
    with pytest.raises(InvalidConfig, match="16-byte aligned"):
        make_plan(replace(UP, aligned=frozenset({"a", "b"})), config)


@pytest.mark.parametrize("family", [gated, gated_gluon])
def test_code_for_hopper(family):
    configs = [c for c in family.configs(UP, H200) if is_legal(UP, c, H200)]
    assert len(configs) >= 4
    kernel = make_plan(UP, configs[0]).steps[0]
    names = [p.name for p in kernel.source.params]
    assert names == ["a", "b", "b2", "out"]
    binary = compile(kernel.source, Target(90), alignment=0b1111, keep_ptx=True)
    assert "wgmma.mma_async" in binary.ptx and "ld.local" not in binary.ptx
    assert binary.shared_bytes <= H200.smem
    if family is gated_gluon:
        assert "m64n256k16" in binary.ptx  # both products at once
