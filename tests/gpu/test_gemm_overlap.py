"""Launches that overlap, on a real GPU: each reads what the one before it wrote."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from gemm_templates import Inputs, Problem, bind, device_info
from gemm_templates.epilogues import SILU
from gemm_templates.model import is_legal
from gemm_templates.registry import FAMILIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs Hopper or later",
    ),
]
SIZE, DEPTH, ROUNDS = 512, 64, 5
SQUARE = Problem(SIZE, SIZE, SIZE, aligned=frozenset({"a", "b", "b2", "out"}))
BATCH = replace(SQUARE, batch=3)
FP8 = replace(SQUARE, a_dtype="f8e4m3", b_dtype="f8e4m3", out_dtype="f8e4m3", b_stride=(1, SIZE))
PROBLEMS = {
    "tiled": SQUARE, "tma": SQUARE, "gluon": SQUARE, "split_k": SQUARE, "decompose_k": SQUARE,
    "gated": replace(SQUARE, gate=SILU), "gated_gluon": replace(SQUARE, gate=SILU),
    "batched_tma": BATCH, "gluon_batched": BATCH, "gluon_scaled": FP8,
}  # fmt: skip


@pytest.mark.parametrize("template", list(PROBLEMS))
def test_a_chain_gives_the_same_digits(template, pool):
    """x1 = x0 @ w, x2 = x1 @ w, ...: 64 launches with nothing between them, each of which would
    read half of what it needs if it did not wait; against launches that follow each other.
    Each fourth begins anew, so that numbers stay in range."""
    problem, info = PROBLEMS[template], device_info("cuda")
    found = FAMILIES[template].configs(problem, info)
    config = replace(next(c for c in found if is_legal(problem, c, info)), overlap=True)
    runs = [bind(problem, replace(config, overlap=o), pool=pool) for o in (True, False)]
    assert all(step.source.pdl for step in runs[0].plan.steps)
    torch.manual_seed(0)
    shape = (problem.batch, SIZE, SIZE) if problem.batch > 1 else (SIZE, SIZE)
    dtype = torch.float8_e4m3fn if template == "gluon_scaled" else torch.bfloat16

    def random(scale):
        return (torch.randn(shape, device="cuda") * scale).to(dtype)

    w, w2 = random(SIZE**-0.5), random(SIZE**-0.5)
    w = w.t() if template == "gluon_scaled" else w

    def chain(run, first):
        xs = [first, *(torch.full_like(first, float("nan")) for _ in range(DEPTH))]
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # all launches are queued by then
        for i, (a, out) in enumerate(itertools.pairwise(xs)):
            a = a if i % 4 else first
            run(Inputs(a, w, out, b2=w2 if problem.gate else None))
        torch.cuda.synchronize()
        return torch.stack([x.float() for x in xs[1:]])

    for _ in range(ROUNDS):
        first = random(1.0)
        overlapping, apart = (chain(run, first) for run in runs)
        assert overlapping.isfinite().all() and overlapping[0].std() > 0.05
        torch.testing.assert_close(overlapping, apart, rtol=0, atol=0)
