"""Matmuls with a dynamic number of rows on a GPU: decided by measuring, right for every size."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from planner.matmul.decide import MatmulPlanner
from planner.matmul.ladder import LADDER
from wrapper_ir import ExternCall, If, Launch
from wrapper_ir.analysis import walk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

Config = gemm_templates.Config
EMITTED = [(True, "fx"), (False, "fx"), (False, "hop"), (True, "cpp")]
SIZES = (0, 1, 2, 15, 16, 17, 31, 33, 64, 100, 129, 300, 513, 1000, 2049, 5000)


class Layer(nn.Module):
    def __init__(self, k: int, n: int, gelu: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(k, n)
        self.gelu = gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        return F.gelu(out) if self.gelu else out


def check(compiled: Any, layer: nn.Module, sizes: tuple[int, ...], k: int) -> None:
    """As near to float64 as eager is, to a factor for luck."""
    exact = copy.deepcopy(layer).double()
    for m in sizes:
        x = torch.randn(m, k, device="cuda", dtype=layer.linear.weight.dtype)
        with torch.no_grad():
            wanted = exact(x.double())
            eager, ours = layer(x), compiled(x)
        assert ours.shape == eager.shape
        if m:
            limit = 2 * relative_error(eager, wanted) + 1e-6
            assert relative_error(ours, wanted) < limit, m


@pytest.mark.parametrize(("gelu", "emit"), EMITTED)
def test_decided_by_measuring_and_right_for_every_size(
    options: dict[str, Any], emit: str, gelu: bool
) -> None:
    torch.manual_seed(0)
    layer = Layer(768, 1000, gelu).cuda().to(torch.bfloat16).eval()
    compiled = compile_cli.compile(
        layer, (torch.randn(64, 768, device="cuda", dtype=torch.bfloat16),),
        dynamic={0: {0}}, options={**options, "emit": emit, "tune": "max"},
    )  # fmt: skip
    (decided,) = compiled.graph.decided.values()
    assert 1 <= len(decided) <= len(LADDER) + 1
    assert len(compiled.graph.matmuls) >= 5
    check(compiled, layer, SIZES, 768)


@pytest.mark.parametrize(("gelu", "emit"), EMITTED)
def test_every_kind_of_choice_in_one_program(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, emit: str, gelu: bool
) -> None:
    """A template of a known row, the vendor's call, two launches over a workspace, a template with
    descriptors: whatever would be measured."""
    split = Config(16, 64, 64, 4, 4, 2, "decompose_k", split_k=4)
    last = gemm_templates.tma_configs(gemm_templates.device_info("cuda"))[0]
    if emit == "hop":  # which gives kernels no memory for descriptors
        last = gemm_templates.CONFIGS[0]

    def times(self: Any, node: Any, rung: Any, task: Any, many: bool) -> Any:
        config = {1: Config(16, 64, 64, 4, 4, 2), 16: None, 64: split}.get(rung.rows, last)
        return {str(config): (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)
    torch.manual_seed(0)
    layer = Layer(768, 1024, gelu).cuda().to(torch.bfloat16).eval()
    compiled = compile_cli.compile(
        layer, (torch.randn(64, 768, device="cuda", dtype=torch.bfloat16),),
        dynamic={0: {0}}, options={**options, "emit": emit},
    )  # fmt: skip
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(op, If) for op in ops) == 4
    assert sum(isinstance(op, ExternCall) for op in ops) == 1
    assert sum(isinstance(op, Launch) for op in ops) >= 5
    check(compiled, layer, SIZES, 768)


def test_torch_compile_with_a_dynamic_batch(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = Layer(768, 1024, True).cuda().to(torch.bfloat16).eval()
    compiled = torch.compile(layer, backend="compile_cli", dynamic=True, options=options)
    check(compiled, layer, (2, 17, 300, 2049), 768)
