"""Whether a program zeroes memory for templates that count in it: all its matmuls pay together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
from torch import nn

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from planner.matmul.chooser import MatmulChooser
from planner.matmul.counters import FILL, NOT_PAID, Account, as_called
from planner.matmul.problem import MatmulTask
from symexpr import symbol
from tuning import MARGINS
from wrapper_ir import ExternCall
from wrapper_ir.analysis import walk

Config = gemm_templates.Config
TILED = Config(16, 16, 32, 4, 1, 1)
SPLIT = Config(16, 16, 16, 1, 1, 1, "split_k", split_k=3)


@pytest.fixture
def model() -> nn.Module:
    """Three linears."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(80, 32), nn.ReLU(), nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 16)
    ).eval()


def fills(compiled: Any) -> int:
    found = [o for o in walk(compiled.graph.program.ops) if isinstance(o, ExternCall)]
    return sum(o.target == "aten.zero_.default" for o in found)


def check(compiled: Any, model: nn.Module, rows: int) -> None:
    x = torch.randn(rows, 80)
    with torch.no_grad():
        assert relative_error(compiled(x), model(x)) < 1e-5


def test_matmuls_pay_together() -> None:
    s0 = symbol("s0")
    one = sympy.Eq(s0, 1)
    third = 0.4 * FILL
    assert not Account(((None, third), (None, third))).pays(None)
    assert Account(((None, third),) * 3).pays(None)
    # what serves all sizes is there for each range of them
    assert Account(((None, third),) * 3 + ((one, third),)).pays(one)
    # and a range may pay for itself, but for no other
    alone = Account(((one, third),) * 3 + ((None, third),))
    assert alone.pays(one)
    assert not alone.pays(None)
    assert alone.lines() == (
        "s0 == 1: counters for 3 matmuls: zeroing counts as 1.9 us a call; saves 2.3 us",
        "counters for 1 matmul: zeroing counts as 1.9 us a call; not used, would save 0.8 us",
    )


def test_a_vendors_call_counts_as_what_it_keeps_the_host() -> None:
    problem = gemm_templates.Problem(128, 768, 768, "bf16")
    offered = tuple(gemm_templates.Candidate(config, 1e-5) for config in (TILED, SPLIT, None))

    def chosen(vendor: float, tiled: float) -> gemm_templates.Choice:
        times = (("extern", vendor), (str(TILED), tiled), (str(SPLIT), 3 * vendor))
        return as_called(gemm_templates.Choice(problem, None, offered, times))

    near = chosen(4e-6, 4.15e-6)
    assert near.config == TILED and dict(near.times)["extern"] == MARGINS.vendor_call
    assert [label for label, _ in near.failures] == [str(SPLIT)]
    assert chosen(4e-6, 4.3e-6).config is None, "the GPU would take longer"
    longer = chosen(10e-6, 10.1e-6)
    assert longer.config is None and not longer.failures


Measure = Callable[[float], None]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, as_on_gpu: Any) -> Iterator[Measure]:
    """`measured(gain)`: choices are made as on a GPU, where split-K takes `gain` seconds less than
    another template, and that less than the vendor's call. No candidate fails."""
    seen: list[gemm_templates.Choice] = []

    def candidates(self: MatmulChooser, task: MatmulTask) -> list[gemm_templates.Candidate]:
        configs = (TILED, None) if "M" in task.problem.dynamic else (SPLIT, TILED, None)
        return [gemm_templates.Candidate(config, 1e-5) for config in configs]

    def start(gain: float) -> None:
        def timer(runs: Any, info: Any) -> list[float]:
            for run in runs:
                run()
            return [2e-5, *([1e-5 - gain] if len(runs) == 3 else []), 1e-5]

        nonlocal seen
        seen = as_on_gpu(timer)
        monkeypatch.setattr(MatmulChooser, "candidates", candidates)

    yield start
    assert seen
    assert not [choice.failures for choice in seen if choice.failures]


@pytest.mark.parametrize("pays", [True, False])
@pytest.mark.parametrize("alike", [True, False])
def test_a_program_zeroes_what_pays(
    options: dict[str, Any], measured: Measure, model: nn.Module, pays: bool, alike: bool
) -> None:
    """Three matmuls save three times as much as one, which may be like each other and measured
    once; the fill is one."""
    if alike:
        model = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(80, 80), nn.Tanh())))
    measured((0.4 if pays else 0.2) * FILL)
    compiled = compile_cli.compile(model, (torch.randn(20, 80),), options=options)
    labels = {str(found[0]) for found in compiled.graph.decided.values()}
    assert labels == {str(SPLIT if pays else TILED)}
    assert fills(compiled) == pays
    said = "saves 2.3 us" if pays else "not used, would save 1.1 us"
    assert f"counters for 3 matmuls: zeroing counts as 1.9 us a call; {said}" in (
        compiled.graph.explain()
    )
    whys = [why for choice in compiled.graph.matmuls.values() for _, why in choice.failures]
    assert whys == ([] if pays else [NOT_PAID] * 3)
    assert all(("failed" in c.explain()) != pays for c in compiled.graph.matmuls.values())
    check(compiled, model, 20)


@pytest.mark.parametrize("pays", [True, False])
def test_a_range_of_rows_pays_for_itself(
    options: dict[str, Any], measured: Measure, model: nn.Module, pays: bool
) -> None:
    measured((0.4 if pays else 0.2) * FILL)
    compiled = compile_cli.compile(model, (torch.randn(20, 80),), dynamic={0: {0}}, options=options)
    for found in compiled.graph.decided.values():
        one, *_ = map(str, found)
        assert one.endswith(f"== 1: {SPLIT}") == pays
    assert fills(compiled) == pays
    for rows in (1, 17, 1):
        check(compiled, model, rows)


class Widened(nn.Module):
    """One matmul whose second operand a kernel may make."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-9, 9, (80, 16), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.q.to(x.dtype) * 0.5)


@pytest.mark.parametrize("pays", [True, False])
def test_prologues_come_with_counters_or_do_without(
    options: dict[str, Any], measured: Measure, pays: bool
) -> None:
    """What comes after kernels that make the operands has none in any case."""
    measured(FILL * (2.0 if pays else 0.5))
    model = Widened()
    compiled = compile_cli.compile(model, (torch.randn(20, 80),), options=options)
    ((decided,),) = compiled.graph.decided.values()
    assert decided.label == f"{SPLIT if pays else TILED} with prologue"
    assert fills(compiled) == pays
    plain = compiled.graph.matmuls["mm"]
    assert plain.config == TILED
    assert [label for label, _ in plain.failures] == [str(SPLIT)]
    check(compiled, model, 20)
