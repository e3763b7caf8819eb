"""The oracle: lower a function, evaluate the loop IR by its reference interpreter, compare with
eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from aten_lowering import Lowered, decompositions, lower_with_report
from loop_ir import Device, DType, Graph, TensorRef, TorchEnum, interpret_graph, verify

DTYPES = {
    DType.bool_: torch.bool, DType.u8: torch.uint8, DType.i8: torch.int8, DType.i16: torch.int16,
    DType.i32: torch.int32, DType.i64: torch.int64, DType.f16: torch.float16,
    DType.bf16: torch.bfloat16, DType.f32: torch.float32, DType.f64: torch.float64,
    DType.c64: torch.complex64, DType.c128: torch.complex128,
}  # fmt: skip

TABLE = decompositions()


def extern(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the ATen op, as a wrapper program would; tensors are numpy arrays here."""
    op: Any = torch.ops
    for part in target.split("."):
        op = getattr(op, part)
    return to_numpy(op(*(_plain(a) for a in args), **{k: _plain(v) for k, v in kwargs.items()}))


def to_numpy(value: Any) -> Any:
    """The interpreter's arrays hold bf16 as float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    if isinstance(value, list | tuple):
        return tuple(to_numpy(v) for v in value)
    return value


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray():
            return torch.from_numpy(value)
        case DType():
            return DTYPES[value]
        case Device():
            return torch.device(str(value))
        case TorchEnum():
            return getattr(torch, value.name)
        case tuple() | list():
            return [_plain(v) for v in value]
    return value


def trace(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    symbolic: bool = False,
    functional: bool = True,
) -> Any:
    if functional:
        fn = torch.func.functionalize(fn, remove="mutations")
    mode = "symbolic" if symbolic else "fake"
    traced = make_fx(
        lambda *a: fn(*a),
        decomposition_table=TABLE,
        tracing_mode=mode,
        _allow_non_fake_inputs=True,
    )
    gm = traced(*inputs)
    # make_fx keeps a nested output; a graph returns a flat list.
    (result,) = gm.graph.output_node().args
    gm.graph.output_node().args = (tree_leaves(result),)
    gm.recompile()
    return gm


def evaluate(graph: Graph, inputs: Sequence[Any], tensors: Mapping[str, Any]) -> list[Any]:
    verify(graph)
    constants = {name: to_numpy(t) for name, t in tensors.items()}
    copies = [i.clone() if isinstance(i, torch.Tensor) else i for i in inputs]
    results = interpret_graph(graph, to_numpy(copies), constants, extern=extern)
    types = [r.type.dtype if isinstance(r, TensorRef) else None for r in graph.outputs]
    return [
        v if t is None else torch.from_numpy(v).to(DTYPES[t])
        for v, t in zip(results, types, strict=True)
    ]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.is_floating_point or want.dtype.is_complex:
        part = want.dtype.to_real()
        tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}.get(part, 1.6e-2)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        assert torch.equal(got, want), (got, want)


def layout(ref: Any, want: torch.Tensor, symbolic: bool) -> None:
    """The result has eager's strides (those of dimensions of size one do not count)."""
    if symbolic or want.numel() == 0:
        return
    pairs = zip(want.shape, ref.type.stride, want.stride(), strict=True)
    assert all(n == 1 or got == stride for n, got, stride in pairs), (ref, want.stride())


class Oracle:
    """`oracle(fn, *inputs)`: asserts that lowered `fn` does what eager `fn` does."""

    def __call__(
        self,
        fn: Callable[..., Any],
        *inputs: Any,
        symbolic: bool = False,
        functional: bool = True,
        fallbacks: Sequence[str] = (),
    ) -> Lowered:
        want = fn(*(i.clone() if isinstance(i, torch.Tensor) else i for i in inputs))
        lowered = lower_with_report(trace(fn, inputs, symbolic, functional))
        found = [f"{f.op}: {f.reason}" for f in lowered.fallbacks]
        assert [f.op for f in lowered.fallbacks] == list(fallbacks), found
        got = evaluate(lowered.graph, inputs, lowered.constants)
        flat = tree_leaves(want)
        assert len(got) == len(flat)
        for g, w, ref in zip(got, flat, lowered.graph.outputs, strict=True):
            if isinstance(w, torch.Tensor):
                close(g, w)
                layout(ref, w, symbolic)
            else:
                assert g == w
        return lowered

    def each(self, fns: Sequence[Callable[..., Any]], *inputs: Any) -> Lowered:
        """Each function of each input, in one graph, which costs little more than one alone."""
        return self(lambda *given: [fn(x) for x in given for fn in fns], *inputs)


@pytest.fixture
def oracle() -> Oracle:
    torch.manual_seed(0)
    return Oracle()


@pytest.fixture
def evaluate_graph() -> Callable[..., list[Any]]:
    """Runs a graph by the reference interpreter on torch tensors."""
    return evaluate


@pytest.fixture
def lower_fn() -> Callable[..., Lowered]:
    """Lowers without evaluating."""

    def run(
        fn: Callable[..., Any],
        *inputs: Any,
        functional: bool = True,
        symbolic: bool = False,
        **options: Any,
    ) -> Lowered:
        return lower_with_report(trace(fn, inputs, symbolic, functional), **options)

    return run
