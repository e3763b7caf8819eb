"""Matmuls whose rows begin at odd places: the same numbers, from copies whose rows do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import compile_cli
import gemm_templates
from aten_lowering import decompositions, lower_with_report
from aten_lowering.passes import FxPass
from aten_lowering.passes import pad_matmuls as module
from aten_lowering.passes.pad_matmuls import pad_matmuls
from compile_cli.capture import capture, export
from compile_cli.cli.measure import relative_error
from compile_cli.options import Options
from loop_ir import FuseOptions, Matmul, fuse_with_report, serve_one
from planner.kernels import Kernels
from planner.matmul.decide import MatmulPlanner

aten = torch.ops.aten
PADS = {aten.constant_pad_nd.default, aten.clone.default}


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(module, "is_worth_it", lambda *_: True)


def whole(*size: int) -> torch.Tensor:
    """Small integers, whose products and sums are exact in 16 bits."""
    return torch.randint(-1, 2, size).to(torch.bfloat16)


def columns(*size: int) -> torch.Tensor:
    return whole(*reversed(size)).t()


def apart(*size: int) -> torch.Tensor:
    """Rows of a wider matrix, of odd width."""
    return whole(size[0], size[1] + 1 + size[1] % 2)[:, : size[1]]


def rewritten(fn: Any, *args: torch.Tensor) -> torch.fx.GraphModule:
    gm = make_fx(fn, tracing_mode="fake")(*args)
    pad_matmuls(gm.graph)
    gm.recompile()
    return gm


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = aten.mm(a, b)
    return product


def linear(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = aten.linear(x, w, *bias)
    return out


def pads(gm: torch.fx.GraphModule) -> int:
    return sum(node.target in PADS for node in gm.graph.nodes)


@pytest.mark.spread(2)
@pytest.mark.parametrize("second", [whole, columns, apart])
@pytest.mark.parametrize("first", [whole, columns, apart])
@pytest.mark.parametrize("k", [9, 24, pytest.param(1025, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("m", "n"),
    [
        (16, 25),
        (17, 24),
        pytest.param(16, 24, marks=pytest.mark.slow),
        pytest.param(17, 25, marks=pytest.mark.slow),
    ],
)
def test_the_same_digits(anywhere: None, first: Any, second: Any, k: int, m: int, n: int) -> None:
    a, b = first(m, k), second(k, n)
    gm = rewritten(mm, a, b)
    wanted = a.double() @ b.double()
    torch.testing.assert_close(gm(a, b).double(), wanted, rtol=1e-2, atol=0)
    (product,) = (node for node in gm.graph.nodes if node.target == aten.mm.default)
    seen = [operand.meta["val"] for operand in product.args]
    leads = [max(value.stride()) for value in (a, b)]
    assert (pads(gm) > 0) == any(lead % 8 for lead in leads)
    if pads(gm):
        assert all(max(value.stride()) % 8 == 0 and 1 in value.stride() for value in seen)
        assert seen[0].shape[1] == seen[1].shape[0] >= k


@pytest.mark.parametrize("shape", [(16, 9), (2, 8, 9), (2, 3, 4, 9)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(anywhere: None, shape: tuple[int, ...], bias: bool) -> None:
    args = (whole(*shape), whole(24, 9), *([whole(24)] if bias else []))
    with torch.inference_mode():  # the operator itself, not what it is made of
        gm = rewritten(linear, *args)
    assert pads(gm) == 2
    torch.testing.assert_close(gm(*args), F.linear(*args))


def test_what_stays_as_it_is(anywhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pads(rewritten(mm, whole(16, 24), whole(24, 32)))
    assert not pads(rewritten(mm, whole(16, 9).float(), whole(9, 16).float()))
    assert not pads(rewritten(mm, whole(16, 18)[:, ::2], whole(9, 16)))  # neither contiguous
    gm = make_fx(mm, tracing_mode="symbolic")(whole(16, 9), whole(9, 16))
    pad_matmuls(gm.graph)
    assert not pads(gm)
    monkeypatch.setattr(module, "DEVICES", frozenset({"cuda"}))
    assert not pads(rewritten(mm, whole(16, 9), whole(9, 16)))


@pytest.mark.parametrize(
    ("sizes", "worth"),
    [
        ((4096, 4097, 4096), True),
        ((8192, 50257, 768), True),
        ((8192, 30522, 768), True),
        ((512, 770, 512), False),
        ((768, 8193, 768), True),
        ((768, 769, 768), False),  # the launches of copies
        ((64, 4097, 4096), False),
        ((4096, 4097, 64), False),
    ],
)
def test_what_copies_are_worth(sizes: tuple[int, int, int], worth: bool) -> None:
    m, k, n = sizes
    a, b = (torch.empty(rows, k, dtype=torch.bfloat16, device="meta") for rows in (m, n))
    assert module.is_worth_it(a, b, -k % 64) == worth


def test_one_copy_serves_both_products_of_a_gradient(anywhere: None) -> None:
    """Of logits with odd rows: that by the weight reads its rows, that by the input its columns."""

    def both(grad: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.mm(grad, w), aten.mm(grad.t(), x)

    args = whole(16, 25), whole(25, 24), whole(16, 24)
    gm = make_fx(both, tracing_mode="fake", decomposition_table=decompositions())(*args)
    pad_matmuls(gm.graph)
    gm.recompile()
    copied = [n.all_input_nodes[0].name for n in gm.graph.nodes if n.target in PADS]
    assert copied == ["w_1", "grad_1"]
    for got, wanted in zip(gm(*args), both(*(a.double() for a in args)), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-2, atol=0)


class Odd(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(33, 51), torch.nn.Linear(51, 33, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x))) + x


@pytest.mark.parametrize(
    ("gemm", "emit"),
    [
        ("auto", "fx"),
        ("template", "fx"),
        pytest.param("template", "hop", marks=pytest.mark.slow),
        pytest.param("template", "cpp", marks=pytest.mark.slow),
        ("extern", "fx"),
    ],
)
def test_a_model(anywhere: None, options: dict[str, Any], gemm: str, emit: str) -> None:
    torch.manual_seed(0)
    model = Odd().to(torch.bfloat16).eval()
    x = torch.randn(20, 33, dtype=torch.bfloat16)
    compiled = compile_cli.compile(model, (x,), options={**options, "emit": emit, "gemm": gemm})
    wanted = Odd().eval().double()
    wanted.load_state_dict(model.state_dict())
    with torch.no_grad():
        out, eager = compiled(x).double(), model(x).double()
        exact = wanted(x.double())
    assert relative_error(out, exact) <= 2 * relative_error(eager, exact) + 1e-3
    products = [node for node in compiled.graph.loop.nodes if isinstance(node, Matmul)]
    sums = {int(node.a.type.size[-1]) for node in products}
    assert sums == ({33, 51} if gemm == "extern" else {64})


def test_the_sizes_that_it_is_for() -> None:
    """On a GPU: rows of 4160 for sums of 4097, in copies that only the matmul reads; a result with
    odd rows stays, and its template is one that descriptors feed."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        model = torch.nn.Linear(4097, 4097, dtype=torch.bfloat16).eval()
        captured = capture(export(model, (torch.zeros(4096, 4097, dtype=torch.bfloat16),), {}))
    loop = serve_one(lower_with_report(captured.graph, before=(FxPass(pad_matmuls),)).graph)
    fused = fuse_with_report(loop, FuseOptions(epilogue=True, prologue=True))[0]
    (node,) = (node for node in fused.nodes if isinstance(node, Matmul))
    assert [*map(int, node.a.type.stride)] == [4160, 1]
    assert [*map(int, node.b.type.stride)] == [1, 4160]
    assert [*map(int, node.type.size)] == [4096, 4097]
    options = Options(gemm="template")
    planner = MatmulPlanner(options, Kernels(options), fused)
    task = planner._task(node, planner._rungs(node, {})[0])
    assert task is not None
    best = gemm_templates.candidates(task.problem, gemm_templates.H200)[0].config
    assert best is not None
    assert best.template in ("gluon", "tma")
