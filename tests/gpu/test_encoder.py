"""The encoder on a GPU: every host program, templates, dynamic batches, against float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import compile_cli
from compile_cli.cli.measure import relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", params=DTYPES, ids=["f32", "bf16"])
def model(request: pytest.FixtureRequest, example: Any) -> Any:
    torch.manual_seed(0)
    net = example.Encoder(vocab=1000, hidden=256, heads=4, layers=2, mlp=1024)
    return net.eval().cuda().to(request.param)


def inputs(batch: int, length: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 1000, (batch, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
    return ids.cuda(), (torch.arange(length)[None] < lengths).cuda()


def check(model: Any, compiled: Any, args: tuple[torch.Tensor, torch.Tensor]) -> None:
    """As near to float64 as eager is, to a factor for luck."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*args)
        eager = relative_error(model(*args), exact)
        ours = relative_error(compiled(*args), exact)
    assert ours < 2 * eager + 1e-6, (ours, eager)


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize("gemm", ["extern", "template"])
def test_as_good_as_eager(model: Any, options: dict[str, Any], emit: str, gemm: str) -> None:
    args = inputs(4)
    compiled = compile_cli.compile(model, args, options={**options, "emit": emit, "gemm": gemm})
    for seed in (0, 1):
        check(model, compiled, inputs(4, seed=seed))


@pytest.mark.parametrize("model", [torch.bfloat16], ids=["bf16"], indirect=True)
def test_matmuls_are_chosen_by_measurement(model: Any, options: dict[str, Any]) -> None:
    compiled = compile_cli.compile(model, inputs(8, 256), options={**options, "tune": "max"})
    choices = compiled.graph.matmuls.values()
    assert choices
    assert all(c.candidates for c in choices)
    check(model, compiled, inputs(8, 256))


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
def test_one_compilation_serves_every_batch(
    model: Any, options: dict[str, Any], emit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**options, "emit": emit, "gemm": "extern"}
    compiled = compile_cli.compile(model, inputs(2), dynamic={0: {0}, 1: {0}}, options=settings)

    def again(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("compile_cli.api.compile_graph", again)
    for batch in (1, 2, 7, 64):
        check(model, compiled, inputs(batch))


@pytest.mark.usefixtures("few_rungs")
def test_templates_serve_every_batch(model: Any, options: dict[str, Any]) -> None:
    settings = {**options, "gemm": "template"}
    compiled = compile_cli.compile(model, inputs(2), dynamic={0: {0}, 1: {0}}, options=settings)
    for batch in (1, 2, 7, 64):
        check(model, compiled, inputs(batch))


def test_torch_compile(model: Any, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="compile_cli", options=options)
    check(model, compiled, inputs(4))


def test_misaligned_inputs_and_weights(options: dict[str, Any]) -> None:
    """Tensors that start off a 16-byte boundary: another variant, or a copy for tensor maps."""
    base = torch.randn(64 * 256 + 1, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(256 * 256 + 1, device="cuda", dtype=torch.bfloat16)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w) + 1

    for gemm in ("extern", "template"):
        args = (base[:-1].view(64, 256), weight[:-1].view(256, 256))
        compiled = compile_cli.compile(f, args, options={**options, "gemm": gemm})
        odd = (base[1:].view(64, 256), weight[1:].view(256, 256))
        for given in (args, odd):
            expected = f(given[0].double(), given[1].double())
            assert relative_error(compiled(*given), expected) < 2e-2


def test_inputs_on_another_device_are_refused(model: Any, options: dict[str, Any]) -> None:
    compiled = compile_cli.compile(model, inputs(2), options={**options, "gemm": "extern"})
    ids, mask = inputs(2)
    with pytest.raises(compile_cli.CompileCliError, match="another device"):
        compiled(ids.cpu(), mask)
