"""What runs a call of an operator: decided for changing numbers of rows, and for odd operands."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_templates import (
    H200,
    Choice,
    Config,
    RangeChoice,
)
from gemm_templates.ops import operation
from gemm_templates.ops import run as run_module
from gemm_templates.ops.matmul import MM


def test_changing_numbers_of_rows_are_decided_together(monkeypatch):
    """The fourth number of rows decides for all; what is measured from then on is nothing."""
    measured, ranged = [], []
    config = Config(16, 16, 16)

    def one(problem, *args, **kwargs):
        measured.append(problem.m)
        return Choice(problem, None, ())

    def many(problem, hints, *args, **kwargs):
        ranged.append(list(hints))
        return RangeChoice(problem, (100,), (config, None), tuple(hints), ())

    monkeypatch.setattr(run_module, "choose", one)
    monkeypatch.setattr(run_module, "choose_range", many)
    run_module.forget()
    b = torch.randn(512, 1024)

    def decide(m):
        call = run_module.Call(MM, (torch.randn(m, 512), b), (None,))
        return run_module.decided(call, planned=True)

    for m in (8, 16, 24, 40, 50, 60, 200):
        decide(m)
    assert measured == [8, 16, 24] and len(ranged) == 1
    assert (ranged[0][0], ranged[0][-1]) == (1, 8192)
    assert decide(77).bound.problem.dynamic == {"M"} and decide(77).ranged
    assert decide(300).bound is None
    decide(16384)
    assert len(ranged) == 1
    decide(16385)  # beyond twice the last hint
    assert len(ranged) == 2 and ranged[1][-1] == 32768
    run_module.forget()


@pytest.mark.parametrize(
    ("vendor", "padded", "right", "taken"),
    [(1.0, 0.5, True, True), (1.0, 0.999, True, False), (1.0, 0.5, False, False)],
)
def test_padded_copies_are_taken_where_faster_and_right(
    monkeypatch, vendor, padded, right, taken, recwarn
):
    monkeypatch.setattr(run_module, "choose", lambda problem, *_, **__: Choice(problem, None, ()))
    monkeypatch.setattr(run_module, "prefetch", lambda problems, **_: [])
    monkeypatch.setattr(run_module, "added_seconds", lambda runs, info: [vendor, padded])
    monkeypatch.setattr(run_module, "device_info", lambda device: H200)
    run_module.forget()
    operation = MM
    if not right:
        operation = replace(MM, padded=lambda tensors, options: 1.5 * torch.mm(*tensors))
    given = tuple(torch.randn(257, 257).bfloat16() for _ in range(2))
    call = run_module.Call(operation, given, (None,))
    decision = run_module.decided(call, planned=True)
    assert decision.padded == taken and decision.bound is None
    assert ["not used" in str(w.message) for w in recwarn] == [True] * (not right)
    run_module.forget()


@pytest.mark.spread(2)
@pytest.mark.parametrize(("copies", "taken"), [(0.4, True), (0.6, False)])
@pytest.mark.parametrize("given", [False, True])
def test_templates_get_copies_of_odd_operands_where_faster(monkeypatch, copies, taken, given):
    """[257, 257] @ [257, 257] on copies whose rows are multiples of 64 elements apart; `out` as it
    is asked for. Kernels for the copies compile before anything is decided."""
    config = Config(64, 64, 64, 2, 4, 2)
    asked = []

    def prefetch(problems, *, pool, cache, store, device):
        asked.extend(problems)

    def choose(problem, *_, **__):
        asked.append(problem)
        aligned = problem.dims()["stride_am"] % 64 == 0
        return Choice(problem, config if aligned else None, ())

    monkeypatch.setattr(run_module, "choose", choose)
    monkeypatch.setattr(run_module, "prefetch", prefetch)
    monkeypatch.setattr(
        run_module,
        "added_seconds",
        lambda runs, info: [1.0, 0.5, copies] if not given else [1.0, copies + 0.5],
    )
    monkeypatch.setattr(run_module, "device_info", lambda device: H200)
    run_module.forget()
    a, b = (torch.randn(257, 257).bfloat16() for _ in range(2))
    out = torch.empty(257, 257, dtype=torch.bfloat16) if given else None
    key = run_module.decided(run_module.Call(MM, (a, b), (None,), out), planned=True)
    assert [p.dims()["stride_am"] for p in asked] == [320, 257, 320] and asked[0] == asked[2]
    if not taken and not given:
        assert key == operation.PADDED
    elif taken:
        assert key.copied and key.bound.problem.dims()["stride_om"] == 257
        monkeypatch.setattr(run_module, "_decide", lambda *_: key)
        found = run_module.run(MM, (a, b), (None,), out)
        assert (found is out) == given
        torch.testing.assert_close(found, a @ b, rtol=2e-2, atol=2e-1)
    else:
        assert key == operation.EXTERN
    run_module.forget()
