"""Launches of the user's Triton kernels: text, verifier, meaning, order, traffic."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import sympy

import loop_ir
from loop_ir import (
    Buffer,
    Compute,
    Const,
    Device,
    DType,
    Graph,
    GraphInput,
    Kernel,
    Load,
    Origin,
    Phase,
    Ref,
    Store,
    Symbol,
    TensorRef,
    TensorType,
    UserKernel,
    VerifyError,
    bytes_moved,
    explain,
    fuse,
    interpret_graph,
    parse_graph,
    print_graph,
    verify,
)
from loop_ir.errors import (
    DuplicateDefinition,
    LayoutMismatch,
    UndefinedBuffer,
    UndefinedSymbol,
    UserKernelNeeded,
    WriterConflict,
)
from symexpr import CeilDiv, symbol

CPU = Device("cpu")
N = symbol("s0")
ROW = TensorType(DType.f32, (N,), (1,), CPU)


def pointwise(name, op, x, out, *constants):
    """`out = op(x, *constants)`, element by element."""
    i = loop_ir.Axis(symbol("i0"), N)
    body = [Load("v0", x, i.symbol, DType.f32)]
    body += [Const(f"c{n}", c, DType.f32) for n, c in enumerate(constants)]
    args = ("v0", *(f"c{n}" for n in range(len(constants))))
    body += [Compute("v1", op, args, DType.f32), Store(out, i.symbol, "v1")]
    buffers = (Buffer(x, ROW), Buffer(out, ROW, True))
    symbols = (Symbol("s0", 2, 1000, 100),)
    return Kernel(name, buffers, (i,), (Phase((), tuple(body)),), symbols)


def launch(**changes):
    node = UserKernel(
        "scale_0",
        "scale",
        ((CeilDiv(N, 64), 1, 1), (CeilDiv(N, 128), 1, 1)),
        (("x", TensorRef("a", ROW)), ("out", TensorRef("b", ROW)), ("n", N), ("by", 2.5)),
        (("DTYPE", DType.f32), ("ACT", Ref("relu")), ("EVEN", True), ("NAME", "a, b")),
        (("b", ROW),),
        origins=(Origin("triton.scale", "model.py:7"),),
    )
    return dataclasses.replace(node, **changes)


def graph(*nodes, outputs=("d",), constants=()):
    return Graph(
        "g",
        (GraphInput("x", ROW),),
        nodes,
        tuple(TensorRef(o, ROW) for o in outputs),
        (Symbol("s0", 2, 1000, 100),),
        constants,
    )


SAMPLE = graph(pointwise("k0", "exp", "x", "a"), launch(), pointwise("k1", "neg", "b", "d"))


def scale(kernel, grids, args, constants):
    assert kernel == "scale" and constants["DTYPE"] is DType.f32
    assert grids == ((2, 1, 1), (1, 1, 1)) and args["n"] == 100
    args["out"][...] = args["x"] * args["by"]


def test_prints_and_parses_back():
    text = print_graph(SAMPLE)
    assert parse_graph(text) == SAMPLE
    assert "user_kernel scale_0 of scale" in text
    described = launch(
        descriptors=(("x", (sympy.Integer(64),)),),
        args=(("x", TensorRef("a", ROW)), ("y", None), ("z", -3)),
        outs=(),
        mutates=("a",),
    )
    whole = graph(pointwise("k0", "exp", "x", "a"), described, outputs=("a",))
    assert parse_graph(print_graph(whole)) == whole


def test_means_what_the_callable_does():
    verify(SAMPLE)
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    (d,) = interpret_graph(SAMPLE, [x], user_kernel=scale)
    np.testing.assert_allclose(d, -2.5 * np.exp(x), rtol=1e-6)
    with pytest.raises(UserKernelNeeded, match="scale"):
        interpret_graph(SAMPLE, [x])


def test_fusion_stays_on_its_sides():
    """Two kernels on each side of a launch become one on each side."""
    whole = graph(
        pointwise("k0", "exp", "x", "a0"),
        pointwise("k1", "mul", "a0", "a", 3.0),
        launch(),
        pointwise("k2", "neg", "b", "d0"),
        pointwise("k3", "abs", "d0", "d"),
    )
    fused = fuse(whole)
    assert [type(n) for n in fused.nodes] == [Kernel, UserKernel, Kernel]
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    for g in (whole, fused):
        (d,) = interpret_graph(g, [x], user_kernel=scale)
        np.testing.assert_allclose(d, 7.5 * np.exp(x), rtol=1e-6)
    assert bytes_moved(fused) == 400 * 6
    assert "the user's kernel scale" in explain(whole)


def test_readers_of_a_changed_buffer_keep_their_side():
    """What reads a buffer before it is changed in place never moves behind the launch, although
    fusing it with what comes later would save bytes."""
    change = launch(
        args=(("x", TensorRef("a", ROW)), ("out", TensorRef("a", ROW)), ("n", N), ("by", 2.0)),
        outs=(),
        mutates=("a",),
    )
    whole = graph(
        pointwise("k0", "exp", "x", "a"),
        pointwise("k1", "neg", "a", "c"),
        change,
        pointwise("k2", "sqrt", "a", "d"),
        outputs=("c", "d"),
    )
    fused = fuse(whole)
    verify(fused)
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    for g in (whole, fused):
        c, d = interpret_graph(g, [x], user_kernel=scale)
        np.testing.assert_allclose(c, -np.exp(x), rtol=1e-6)
        np.testing.assert_allclose(d, np.sqrt(2 * np.exp(x)), rtol=1e-6)


def test_a_launch_that_nothing_reads_is_dead():
    assert fuse(graph(launch(args=(("o", TensorRef("b", ROW)),)), outputs=("x",))).nodes == ()
    into_input = launch(args=(("o", TensorRef("x", ROW)),), outs=(), mutates=("x",))
    assert fuse(graph(into_input, outputs=("x",))).nodes == (into_input,)


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (LayoutMismatch, {"grids": ()}),
        (UndefinedSymbol, {"grids": ((symbol("s9"), 1, 1),)}),
        (UndefinedBuffer, {"mutates": ("nothing",)}),
        (UndefinedBuffer, {"mutates": ("x",)}),  # no argument
        (WriterConflict, {"mutates": ("w",), "args": (("p", TensorRef("w", ROW)),), "outs": ()}),
        (DuplicateDefinition, {"outs": (("b", ROW), ("b", ROW))}),
        (DuplicateDefinition, {"constants": (("n", 1),)}),
        (UndefinedBuffer, {"descriptors": (("n", (sympy.Integer(8),)),)}),
        (LayoutMismatch, {"descriptors": (("x", (sympy.Integer(8), sympy.Integer(8))),)}),
    ],
)
def test_verifier_names_the_rule(error, changes):
    bad = graph(pointwise("k0", "exp", "x", "a"), launch(**changes), constants=(("w", ROW),))
    bad = dataclasses.replace(bad, outputs=())
    with pytest.raises(error, match="scale_0") as caught:
        verify(bad)
    assert isinstance(caught.value, VerifyError)
