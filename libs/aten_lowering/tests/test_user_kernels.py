"""Launches of the user's Triton kernels: what they become, what is copied, what is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import wrap_triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from aten_lowering import decompositions, lower_with_report
from loop_ir import (
    DType,
    Extern,
    Kernel,
    Ref,
    TensorRef,
    UserKernel,
    fuse,
    interpret_graph,
    parse_graph,
    print_graph,
    verify,
)
from symexpr import symbol


@triton.jit
def scale(x, out, n, by, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n).to(DTYPE) * by, i < n)


@triton.jit
def relu(v):
    return tl.maximum(v, 0.0)


@triton.jit
def apply(x, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, F(tl.load(x + i, i < n)), i < n)


@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) + 1, i < n)


tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"])(add_one)


class TargetOnly:
    """What torch asks of a driver to find out which tensors a kernel writes."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def target():
    before = driver._active
    driver.set_active(TargetOnly())
    yield
    driver._active = before


def meaning(kernel, grids, args, constants):
    """The kernels above, in numpy."""
    if kernel.startswith("scale"):
        args["out"].reshape(-1)[...] = (args["x"] * np.float32(args["by"])).reshape(-1)
    elif kernel.startswith("apply"):
        args["x"][...] = np.maximum(args["x"], 0)
    else:
        args["x"][...] += 1


def lowered(fn, *inputs, symbolic=False, functional=True):
    body = torch.func.functionalize(fn, remove="mutations") if functional else fn
    gm = make_fx(
        lambda *a: body(*a),
        decomposition_table=decompositions(),
        tracing_mode="symbolic" if symbolic else "fake",
    )(*inputs)
    (result,) = gm.graph.output_node().args
    gm.graph.output_node().args = (list(result) if isinstance(result, tuple) else [result],)
    found = lower_with_report(gm)
    verify(found.graph)
    assert parse_graph(print_graph(found.graph)) == found.graph
    return found


def extern(target, args, kwargs):
    raise AssertionError(f"{target} is called")


def check(fn, expected, *inputs, **options):
    """Lowers and evaluates, before and after fusion; gives what was lowered."""
    found = lowered(fn, *inputs, **options)
    for graph in (found.graph, fuse(found.graph)):
        arrays = [x.numpy().copy() for x in inputs]
        results = interpret_graph(graph, arrays, extern=extern, user_kernel=meaning)
        for got, want in zip([*results, *arrays], expected, strict=False):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
    return found


def kinds(found):
    return [type(n) for n in found.graph.nodes]


def into_empty(x):
    z = x.sin()
    out = torch.empty_like(z)
    n = z.numel()
    wrap_triton(scale)[(triton.cdiv(n, 64),)](z, out, n, 2.5, BLOCK=64, DTYPE=tl.float32)
    return out.exp()


def test_an_empty_tensor_is_made_by_the_launch():
    x = torch.randn(100)
    found = check(into_empty, [(x.sin() * 2.5).exp()], x)
    assert kinds(found) == [Kernel, UserKernel, Kernel]
    node = found.graph.nodes[1]
    assert node.mutates == () and len(node.outs) == 1
    assert dict(node.args)["n"] == 100 and dict(node.args)["by"] == 2.5
    assert dict(node.constants) == {"BLOCK": 64, "DTYPE": DType.f32}
    assert node.origins[0].op == "triton.scale"
    assert found.kernels[node.kernel].function is scale


def test_sizes_are_expressions():
    x = torch.randn(100)
    found = check(into_empty, [(x.sin() * 2.5).exp()], x, symbolic=True)
    node = found.graph.nodes[1]
    (n,) = {s.name for s in found.graph.symbols}
    assert dict(node.args)["n"] == symbol(n)
    assert [int(g.subs(symbol(n), 129)) for g in node.grids[0]] == [3, 1, 1]


def test_what_is_read_later_is_copied():
    def fn(x):
        y = x * 2
        z = y.clone()
        wrap_triton(add_one)[(2,)](z, 100, BLOCK=64)
        return y + z

    x = torch.randn(100)
    found = check(fn, [x * 4 + 1], x)
    assert kinds(found) == [Kernel, Kernel, UserKernel, Kernel]
    assert kinds(lowered(fn, x))[:3] == [Kernel, Kernel, UserKernel]
    assert len(fuse(found.graph).nodes) == 3  # the copy is stored by the kernel that makes y


def test_what_is_not_read_later_is_written_in_place():
    def fn(x):
        y = x * 2
        wrap_triton(add_one)[(2,)](y, 100, BLOCK=64)
        wrap_triton(add_one)[(2,)](y, 100, BLOCK=64)
        return y

    x = torch.randn(100)
    found = check(fn, [x * 2 + 2], x)
    assert kinds(found) == [Kernel, UserKernel, UserKernel]
    assert found.graph.nodes[1].mutates == found.graph.nodes[2].mutates


def test_an_input_is_copied_unless_it_is_overwritten_anyway():
    def functional(x):
        y = x.clone()
        wrap_triton(add_one)[(2,)](y, 100, BLOCK=64)
        return y

    def changed(x):
        wrap_triton(add_one)[(2,)](x.view(10, 10).view(-1), 100, BLOCK=64)
        return x * 3

    x = torch.randn(100)
    assert kinds(check(functional, [x + 1, x], x)) == [Kernel, UserKernel]
    found = check(changed, [x * 3 + 3, x + 1], x)
    assert kinds(found) == [UserKernel, Kernel]
    assert found.graph.nodes[0].mutates == (found.graph.inputs[0].name,)


def test_an_input_that_another_input_gets_is_copied():
    def fn(x, y):
        y.copy_(x)
        wrap_triton(add_one)[(2,)](x, 100, BLOCK=64)
        return x * 1

    x, y = torch.randn(100), torch.randn(100)
    gm = make_fx(
        lambda *a: [torch.func.functionalize(fn, remove="mutations")(*a)],
        decomposition_table=decompositions(),
        tracing_mode="fake",
    )(x, y)
    # As AOTAutograd may leave it: y's new value is x itself.
    copies = [n for n in gm.graph.nodes if n.target is torch.ops.aten.copy_.default]
    into = {n.args[0]: n for n in copies}
    first, second = (n for n in gm.graph.nodes if n.op == "placeholder")
    into[second].args = (second, first)
    into[first].prepend(into[second])  # behind the launch, before x changes
    found = lower_with_report(gm)
    arrays = [x.numpy().copy(), y.numpy().copy()]
    interpret_graph(found.graph, arrays, extern=extern, user_kernel=meaning)
    np.testing.assert_array_equal(arrays[1], x.numpy())
    np.testing.assert_allclose(arrays[0], x.numpy() + 1, rtol=1e-5)


def test_arguments_of_one_memory_stay_of_one_memory():
    def fn(x):
        y = x * 2
        wrap_triton(scale)[(2,)](y, y, 100, 3.0, BLOCK=64, DTYPE=tl.float32)
        return y

    x = torch.randn(100)
    node = check(fn, [x * 6], x).graph.nodes[1]
    args = dict(node.args)
    assert isinstance(args["x"], TensorRef) and args["x"] == args["out"]


def test_a_view_with_gaps_keeps_its_strides():
    def fn(x):
        y = x.exp()
        z = y.clone()
        wrap_triton(add_one)[(2,)](z[:, 1:3], 8, BLOCK=64)
        return y, z

    x = torch.randn(4, 4)
    want = x.exp()
    want[:, 1:3] += 1
    check(fn, [x.exp(), want], x)


def test_configs_have_a_grid_each():
    def fn(x):
        y = x * 2
        n = y.numel()
        wrap_triton(tuned)[lambda m: (triton.cdiv(n, m["BLOCK"]),)](y, n)
        return y

    x = torch.randn(100)
    found = check(fn, [x * 2 + 1], x)
    node = found.graph.nodes[-1]
    assert node.grids == ((2, 1, 1), (1, 1, 1))
    kernel = found.kernels[node.kernel]
    assert kernel.function is add_one and kernel.called is tuned
    assert [c.kwargs["BLOCK"] for c in kernel.configs] == [64, 128]


def test_functions_are_constants_by_reference():
    def fn(x):
        y = x * 2
        wrap_triton(apply)[(2,)](y, 100, F=relu, BLOCK=64)
        return y

    x = torch.randn(100)
    found = check(fn, [(x * 2).relu()], x)
    node = found.graph.nodes[-1]
    name = dict(node.constants)["F"]
    assert isinstance(name, Ref) and found.kernels[node.kernel].objects[name.name] is relu


def test_a_graph_that_is_not_functional_yet():
    def fn(x):
        y = x * 2
        wrap_triton(add_one)[(2,)](y, 100, BLOCK=64)
        return y + 0.5

    x = torch.randn(100)
    found = check(fn, [x * 2 + 1.5], x, functional=False)
    assert kinds(found) == [Kernel, UserKernel, Kernel]
    assert not any(isinstance(n, Extern) for n in found.graph.nodes)
