"""What cannot be lowered: extern calls with their reason, or an error that says what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import UnsupportedGraph, lower, lower_with_report
from loop_ir import Extern, Kernel

aten = torch.ops.aten


def test_the_report_has_op_place_and_reason(lower_fn: Any) -> None:
    (fallback,) = lower_fn(lambda a: a.sort(0)[0], torch.randn(3)).fallbacks
    assert (fallback.op, fallback.reason) == ("aten.sort.default", "no lowering")
    (fallback,) = lower_fn(lambda a, b: a // b, torch.arange(3), torch.arange(3)).fallbacks
    assert fallback.reason == "integer division whose divisor may be zero"


def test_extern_calls_are_exact(lower_fn: Any) -> None:
    """Positional and keyword arguments as in the graph; unused results have no buffer."""
    lowered = lower_fn(lambda a: torch.topk(a, 2, largest=False)[0], torch.randn(3, 4).t())
    (call,) = lowered.graph.nodes
    assert isinstance(call, Extern)
    assert call.target == "aten.topk.default"
    assert call.args[1:] == (2, -1, False)
    assert call.tuple_result
    assert [o is not None for o in call.outs] == [True, False]
    assert call.origins[0].op == "aten.topk.default"


def cuda_graph(fn: Any, *shapes: Any) -> fx.GraphModule:
    with FakeTensorMode(), torch.device("cuda"):
        inputs = [torch.empty(s) if isinstance(s, tuple) else s() for s in shapes]
        return make_fx(lambda *a: [fn(*a)])(*inputs)


def test_devices() -> None:
    """Kernels run on one device: a copy from the CPU is a call on purpose, arithmetic on CPU
    tensors, or with one of rank 0, is eager's."""
    gm = cuda_graph(lambda a: a * 2, (3,))
    assert isinstance(lower(gm).nodes[0], Kernel)
    gm = cuda_graph(lambda a: a.to("cpu") + 1, (3,))
    copy, add = lower(gm).nodes
    assert isinstance(copy, Extern) and not copy.fallback
    assert isinstance(add, Extern)
    gm = cuda_graph(lambda a, b: a + b, (3,), lambda: torch.empty((), device="cpu"))
    (fallback,) = lower_with_report(gm).fallbacks
    assert fallback.reason == "operands on more than one device"


def test_number_tensors_of_the_cpu_join_cuda_kernels() -> None:
    """`torch.tensor(0.5)` in a model on CUDA: its value goes into the kernel."""
    root = torch.nn.Module()
    root.scale = torch.tensor(0.5)
    graph = fx.Graph()
    with FakeTensorMode() as mode:
        x = torch.empty(3, device="cuda")
    a, b = graph.placeholder("a"), graph.get_attr("scale")
    a.meta["val"], b.meta["val"] = x, mode.from_tensor(root.scale)
    c = graph.call_function(aten.mul.Tensor, (a, b))
    with mode:
        c.meta["val"] = torch.empty(3, device="cuda")
    graph.output([c])
    lowered = lower_with_report(fx.GraphModule(root, graph))
    (kernel,) = lowered.graph.nodes
    assert isinstance(kernel, Kernel)
    assert lowered.constants == {}


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_attention_kernels_of_cuda_stay_whole(kind: str) -> None:
    """Their numbers (`max_q`) and seeds need no buffer."""

    def fn(q: torch.Tensor) -> Any:
        op = getattr(aten, f"_scaled_dot_product_{kind}_attention")
        return op(q, q, q)[0] if kind == "flash" else op(q, q, q, None, False)[0]

    gm = cuda_graph(fn, lambda: torch.empty(2, 4, 32, 64, dtype=torch.bfloat16))
    lowered = lower_with_report(gm)
    (call,) = lowered.graph.nodes
    assert isinstance(call, Extern) and not call.fallback
    assert call.outs[0] is not None and not any(call.outs[1:])
    assert lowered.fallbacks == ()


def test_copy_into_an_input_of_another_device() -> None:
    gm = cuda_graph(lambda a, b: a.copy_(b), (3,), lambda: torch.empty(3, device="cpu"))
    (call,) = lower(gm).nodes
    assert isinstance(call, Extern)
    assert call.mutates == (lower(gm).inputs[0].name,)


def test_float8_is_converted_and_not_computed_on() -> None:
    gm = cuda_graph(lambda a: a.to(torch.float8_e4m3fn).t().contiguous().to(torch.float32), (3, 4))
    assert not lower_with_report(gm).fallbacks
    gm = cuda_graph(lambda a: torch.cat([a.to(torch.float8_e4m3fn)] * 2), (3,))
    (fallback,) = lower_with_report(gm).fallbacks
    assert fallback.reason == "kernels do not compute on f8e4m3"


@pytest.mark.parametrize(
    ("fn", "inputs", "message"),
    [
        (lambda a: a.to_sparse() * 1, (torch.eye(3),), "is not strided"),
    ],
)
def test_layouts_without_strides_are_refused(fn: Any, inputs: Any, message: str) -> None:
    with pytest.raises(UnsupportedGraph, match=message):
        lower(make_fx(lambda *a: [fn(*a)], tracing_mode="fake")(*inputs))


def test_submodules_are_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)
    graph.output([graph.call_module("layer", (x,))])
    root = torch.nn.Module()
    root.layer = torch.nn.ReLU()
    with pytest.raises(UnsupportedGraph, match="`call_module` is no ATen call"):
        lower(fx.GraphModule(root, graph))


def test_names_are_identifiers_that_clash_with_nothing(oracle: Any) -> None:
    """FX names such as `i0` or `v1` would be an axis and a value in a kernel."""
    gm = make_fx(lambda i0, v1, s2: [i0 + v1 * s2], tracing_mode="fake")(*torch.ones(3, 2))
    for node, name in zip(gm.graph.nodes, ("i0", "v1", "s2"), strict=False):
        node.name = name
    names = [i.name for i in lower(gm).inputs]
    assert names == ["i0_", "v1_", "s2_"]


def test_integer_inputs_bind_symbols(lower_fn: Any) -> None:
    gm = make_fx(lambda n, a: [a + n], tracing_mode="symbolic")(3, torch.randn(4, 4))
    graph = lower(gm)
    number, tensor = graph.inputs
    assert number.type is None and tensor.type is not None
    assert number.name in {s.name for s in graph.symbols}


def test_the_graph_module_is_not_changed() -> None:
    gm = make_fx(lambda a: [a.clone() * 2 + a.clone() * 2], tracing_mode="fake")(torch.ones(3))
    before = str(gm.graph)
    lower(gm)
    assert str(gm.graph) == before


@pytest.mark.parametrize(
    ("width", "made", "whole"), [(75, 0, True), (76, 0, False), (75, 1, False)]
)
def test_many_odd_inputs_are_joined_by_torch(
    lower_fn: Any, width: int, made: int, whole: bool
) -> None:
    """A kernel would load each element from every part. It need not read what kernels make."""
    parts = [torch.ones(2, width + 4 * i) for i in range(9)]
    lowered = lower_fn(lambda *x: torch.cat([p.sin() if made else p for p in x], 1), *parts)
    assert [f.op for f in lowered.fallbacks] == ["aten.cat.default"] * whole
