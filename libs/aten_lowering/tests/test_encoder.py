"""The example encoder, by both capture paths, static and dynamic, for the CPU and for CUDA."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export

from aten_lowering import Lowered, decompose, decompositions, lower_with_report
from loop_ir import Extern, Graph, Kernel, Matmul, Symbol, TensorRef, fuse, verify

EXAMPLE = Path(__file__).parents[3] / "examples" / "encoder.py"
ATTENTION = "aten.scaled_dot_product_attention.default"


@pytest.fixture(scope="module")
def encoder() -> Any:
    spec = importlib.util.spec_from_file_location("encoder_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exported(model: Any, inputs: Any, dynamic: bool) -> torch.fx.GraphModule:
    batch = {0: Dim("batch", min=2, max=64)}
    shapes = {"ids": batch, "mask": batch} if dynamic else None
    return decompose(export(model, tuple(inputs), dynamic_shapes=shapes))


@pytest.fixture(scope="module")
def model(encoder: Any) -> Any:
    torch.manual_seed(0)
    return encoder.Encoder().eval()


@pytest.fixture(scope="module")
def dynamic(encoder: Any, model: Any) -> Lowered:
    return lower_with_report(exported(model, encoder.get_inputs(), True))


@pytest.fixture
def dynamic_graph(dynamic: Lowered) -> Graph:
    return dynamic.graph


def kinds(graph: Graph) -> Counter[str]:
    return Counter(n.target if isinstance(n, Extern) else type(n).__name__ for n in graph.nodes)


@pytest.mark.parametrize("sizes", [pytest.param("static", marks=pytest.mark.slow), "dynamic"])
def test_export(
    encoder: Any, model: Any, dynamic: Lowered, evaluate_graph: Any, sizes: str
) -> None:
    inputs, lowered = encoder.get_inputs(), dynamic
    if sizes == "static":
        lowered = lower_with_report(exported(model, inputs, False))
    else:
        inputs = [torch.cat([x, x[:1]]) for x in inputs]
    assert lowered.fallbacks == ()
    assert kinds(lowered.graph) == {"Kernel": 15, "Matmul": 12, ATTENTION: 2}
    assert len(lowered.graph.symbols) == (sizes == "dynamic")
    parameters = list(model.state_dict().values())
    for graph in (lowered.graph, fuse(lowered.graph)):
        (got,) = evaluate_graph(graph, [*parameters, *inputs], lowered.constants)
        torch.testing.assert_close(got, model(*inputs), rtol=1e-5, atol=1e-5)


def test_symbols_have_range_and_hint(dynamic_graph: Graph) -> None:
    graph = dynamic_graph
    (symbol,) = graph.symbols
    assert symbol == Symbol(symbol.name, low=2, high=64, hint=2)
    norms = [n for n in graph.nodes if isinstance(n, Kernel) and "layer_norm" in n.origins[0].op]
    assert norms[0].symbols == (symbol,)


def test_origins_cite_the_users_line(dynamic_graph: Graph) -> None:
    graph = dynamic_graph
    lines = EXAMPLE.read_text().splitlines()
    (gelu, *_) = [n for n in graph.nodes if "gelu" in n.origins[0].op]
    file, line = gelu.origins[0].source.split(":")
    assert file == "encoder.py"
    assert "F.gelu" in lines[int(line) - 1]


def test_linear_takes_all_rows_at_once(dynamic_graph: Graph) -> None:
    graph = dynamic_graph
    first = next(n for n in graph.nodes if isinstance(n, Matmul))
    rows = first.a.type.size[0]
    assert str(rows) == f"32*{graph.symbols[0].name}"
    assert first.b.type.stride == (1, 64)  # the weight, transposed, is a view
    assert first.extern.target == "aten.linear.default"
    assert isinstance(first.extern.args[0], TensorRef)
    assert len(first.extern.args[0].type.size) == 3


def test_aot_autograd(encoder: Any, evaluate_graph: Any) -> None:
    """The graph that torch.compile would hand over: parameters first, then inputs."""
    torch.manual_seed(0)
    model = encoder.Encoder(vocab=50, hidden=16, heads=2, mlp=32, max_len=16).eval()
    ids, mask = (x[:, :8] for x in encoder.get_inputs())
    inputs = (ids % 50, mask)
    found: list[Any] = []

    def compiler(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        lowered = lower_with_report(gm)
        found.append(lowered)

        def run(*args: Any) -> Any:
            return evaluate_graph(lowered.graph, args, lowered.constants)

        return run

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return aot_module_simplified(
            gm, example_inputs, fw_compiler=compiler, decompositions=decompositions()
        )

    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    (lowered,) = found
    assert lowered.fallbacks == ()
    # Below composite ops, attention is the CPU's own kernel, still whole.
    attention = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert kinds(lowered.graph)[attention] == 2
    assert kinds(lowered.graph)["Matmul"] == 12


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16]
)
def test_cuda_without_a_gpu(encoder: Any, dtype: torch.dtype) -> None:
    """A graph for CUDA is captured and lowered where there is none; attention stays whole."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        torch.set_default_dtype(dtype)
        try:
            model = encoder.Encoder().eval()
        finally:
            torch.set_default_dtype(torch.float32)
        ids = torch.zeros(2, 32, dtype=torch.int64)
        mask = torch.ones(2, 32, dtype=torch.bool)
        graph = exported(model, (ids, mask), dynamic=True)
    lowered = lower_with_report(graph)
    verify(lowered.graph)
    assert lowered.fallbacks == ()
    assert kinds(lowered.graph)[ATTENTION] == 2
    assert {str(i.type.device) for i in lowered.graph.inputs if i.type} == {"cuda:0"}
    norm = next(n for n in lowered.graph.nodes if "layer_norm" in n.origins[0].op)
    assert isinstance(norm, Kernel)


def test_the_example_is_masked(encoder: Any) -> None:
    """Padding does not change the hidden states of tokens."""
    ids, mask = encoder.get_inputs()
    model = encoder.Encoder().eval()
    other = torch.where(mask, ids, 7)
    a, b = (model(i, mask).detach().numpy()[mask.numpy()] for i in (ids, other))
    np.testing.assert_array_equal(a, b)
    assert mask.any(1).all() and not mask.all()
