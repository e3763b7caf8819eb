"""Programs for a GPU launch no kernels on the CPU tensors beside."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import decompositions, lower_with_report
from aten_lowering.passes.host_constants import host_constants
from aten_lowering.rules import widened_int4pack
from loop_ir import (
    DType,
    Extern,
    Kernel,
    Matmul,
    interpret_graph,
    interpret_kernel,
    print_graph,
    verify,
)

aten = torch.ops.aten


def test_cpu_tensors_of_a_gpu_program_stay_with_the_operator() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp() + 1, (n + 1) * 2

    with FakeTensorMode(allow_non_fake_inputs=True):
        x, n = torch.empty(8, device="cuda"), torch.empty(3)
        lowered = lower_with_report(make_fx(f)(x, n))
        alone = lower_with_report(make_fx(f)(n, n))
    kernels = [k for k in lowered.graph.nodes if isinstance(k, Kernel)]
    assert {b.type.device.kind for k in kernels for b in k.buffers} == {"cuda"}
    assert sum(isinstance(k, Extern) for k in lowered.graph.nodes) == 2
    assert {f.reason for f in lowered.fallbacks} == {"CPU tensors of a program for a GPU"}
    assert not alone.fallbacks


def test_a_complex_number_on_the_cpu_is_put_into_a_tensor_on_a_gpu() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.index_put((torch.tensor([0, 2], device="cuda"),), torch.tensor(1.0 + 0j))

    with FakeTensorMode(allow_non_fake_inputs=True):
        traced = make_fx(f, decomposition_table=decompositions())(
            torch.empty(3, dtype=torch.complex64, device="cuda")
        )
    assert lower_with_report(traced).graph.nodes


def test_what_has_no_lowering_reads_no_copy_that_one_would_have() -> None:
    """The bytes of booleans, with a number of the CPU put in: the copy was left out, and read."""

    def f(x: torch.Tensor, i: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x.view(torch.uint8).index_put((i,), n)

    with FakeTensorMode():
        x = torch.empty(3, dtype=torch.bool, device="cuda")
        i = torch.empty(2, dtype=torch.int64, device="cuda")
        traced = make_fx(f)(x, i, torch.empty((), dtype=torch.uint8))
    verify(lower_with_report(traced).graph)


def test_conjugates_of_constants_are_known() -> None:
    """In graphs of AOTAutograd nothing resolves a conjugate."""
    root, graph = torch.nn.Module(), fx.Graph()
    root.number = torch.tensor([1 + 2j])
    x, number = graph.placeholder("x"), graph.get_attr("number")
    conjugate = graph.call_function(aten._conj.default, (number,))
    parts = graph.call_function(aten.view_as_real.default, (conjugate,))
    total = graph.call_function(aten.sum.default, (parts,))
    graph.output((result := graph.call_function(aten.mul.Tensor, (x, total)),))
    with FakeTensorMode():
        for node, size in ((number, 1), (conjugate, 1), (parts, (1, 2)), (total, ())):
            kind = torch.complex64 if size == 1 else torch.float32
            node.meta["val"] = torch.empty(size, dtype=kind)
        x.meta["val"] = result.meta["val"] = torch.empty(3, device="cuda")
    host_constants(root, graph)
    assert result.args == (x, -1.0)


def test_numbers_of_constants_are_known() -> None:
    """Those of the CPU, and those that are moved to the GPU: nothing is left to torch."""

    def f(x: torch.Tensor) -> torch.Tensor:
        scale = torch.sqrt(torch.tensor(192.0)).to(x.dtype)
        return x / scale + torch.tensor(2.5) * torch.scalar_tensor(3).to(x.device)

    with FakeTensorMode(allow_non_fake_inputs=True):
        traced = make_fx(f)(torch.empty(8, device="cuda", dtype=torch.bfloat16))
    lowered = lower_with_report(traced)
    assert not lowered.fallbacks and not lowered.graph.constants
    x = torch.linspace(-9, 9, 8).bfloat16()
    (got,) = interpret_graph(lowered.graph, [x.float().numpy()])
    np.testing.assert_allclose(got, f(x).float().numpy(), rtol=8e-3)  # the CPU divides otherwise


def test_a_number_divides_as_cuda_does_it() -> None:
    """By a product with its reciprocal, which may differ in the last place."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        gpu = lower_with_report(make_fx(lambda x: x / 448)(torch.empty(8, device="cuda"))).graph
        cpu = lower_with_report(make_fx(lambda x: x / 448)(torch.empty(8))).graph
    assert "mul(" in print_graph(gpu) and "div(v" not in print_graph(gpu)
    assert "div(v" in print_graph(cpu)


def test_weights_of_8_bits_are_widened_for_a_matmul() -> None:
    """Whose result is f32 until it has its factors."""

    def f(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(x, q, s)

    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(2, 64, device="cuda", dtype=torch.bfloat16)
        q = torch.empty(32, 64, device="cuda", dtype=torch.int8)
        traced = make_fx(f, decompositions())(x, q, torch.empty(32, device="cuda"))
    lowered = lower_with_report(traced)
    (product,) = (n for n in lowered.graph.nodes if isinstance(n, Matmul))
    assert (product.a.type.dtype, product.type.dtype) == (DType.bf16, DType.f32)
    assert not lowered.fallbacks


@pytest.mark.parametrize("rows", [32, 33])
def test_weights_of_4_bits_are_widened_for_more_than_32_rows(rows: int) -> None:
    def f(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm(x, q, 64, s)

    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(rows, 256, device="cuda", dtype=torch.bfloat16)
        q = torch.empty(4, 2, 32, 4, device="cuda", dtype=torch.int32)
        s = torch.empty(4, 32, 2, device="cuda", dtype=torch.bfloat16)
        traced = make_fx(f, decompositions())(x, q, s)
    lowered = lower_with_report(traced)
    assert sum(isinstance(n, Matmul) for n in lowered.graph.nodes) == (rows > 32)
    assert not lowered.fallbacks


@pytest.mark.parametrize("tiles", [2, 4, 8])
def test_what_weights_of_4_bits_hold(tiles: int) -> None:
    """As `_convert_weight_to_int4pack` packs them for the lanes of a warp, 8 x 32 at a time."""
    torch.manual_seed(0)
    n, k, group = 16, 256, 64
    numbers, packed = torch.randint(0, 16, (n, k)), []
    for first in range(0, n, 8):
        for start in range(0, k, 16 * tiles):
            for lane in range(32):
                for at in range(start, start + 16 * tiles, 32):
                    places = [at + lane % 4 * 2 + d for d in (0, 8, 16, 24, 1, 9, 17, 25)]
                    row = numbers[first + lane // 4]
                    packed.append(sum(int(row[p]) << (4 * i) for i, p in enumerate(places)))
    words = torch.tensor(packed).to(torch.uint32).view(torch.int32)
    scales = torch.randn(k // group, n, 2).bfloat16()
    factor, offset = scales.double().transpose(0, 1).unsqueeze(-2).unbind(-1)
    expected = ((numbers.view(n, -1, group) - 8) * factor + offset).view(n, k)
    got = widened_int4pack(words.view(n // 8, -1, 32, tiles // 2), group, scales)
    assert torch.equal(got, expected.bfloat16())


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, [math.nan, math.inf, math.inf, math.nan]),
        ("trunc", [math.nan, math.inf, math.inf, math.nan]),
        ("floor", [math.nan, math.nan, math.inf, math.nan]),
    ],
)
def test_the_reciprocal_of_the_least_number_is_infinite(
    mode: str | None, expected: list[float]
) -> None:
    """As it is to eager: zero times that is NaN."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(4, device="cuda")
        graph = make_fx(lambda x: torch.div(x, 7e-45, rounding_mode=mode))(x)
        lowered = lower_with_report(graph)
    (kernel,) = lowered.graph.nodes
    assert isinstance(kernel, Kernel)
    x = np.array([0.0, 2e-45, 1.0, math.nan], np.float32)
    (got,) = interpret_kernel(kernel, {kernel.buffers[0].name: x}).values()
    np.testing.assert_array_equal(got, np.array(expected, np.float32))


@pytest.mark.parametrize("narrow", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.float16])
def test_8_bit_floats_are_kernels(narrow: torch.dtype, wide: torch.dtype) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(8, dtype=wide, device="cuda")
        lowered = lower_with_report(make_fx(lambda x: x.to(narrow).to(wide))(x))
    assert not lowered.fallbacks and all(isinstance(n, Kernel) for n in lowered.graph.nodes)


def test_a_gpu_copies_the_first_number_of_one_line() -> None:
    """Of running sums and log-sum-exps, with the sign of a zero: what has one line alone is scanned
    there without the number that the scans of several lines begin with."""
    for name, shape in product(("cumsum", "logcumsumexp"), ((1,), (1, 1), (4,), (2, 2))):
        line = torch.full(shape, -0.0)
        with FakeTensorMode(allow_non_fake_inputs=True):
            x = torch.empty(shape, device="cuda")
            graph = make_fx(partial(getattr(torch, name), dim=-1))(x)
            (kernel,) = lower_with_report(graph).graph.nodes
        assert isinstance(kernel, Kernel)
        (got,) = interpret_kernel(kernel, {kernel.buffers[0].name: line.numpy()}).values()
        assert np.signbit(got.flat[0]) == (shape != (2, 2)), (name, shape)


def by_index(x: torch.Tensor, i: torch.Tensor, how: str) -> torch.Tensor:
    return x.index_reduce(0, i, x, how)


def by_place(x: torch.Tensor, i: torch.Tensor, how: str) -> torch.Tensor:
    return x.scatter_reduce(0, i[:, None].expand(x.shape), x, how)


@pytest.mark.parametrize(
    ("combine", "how", "dtype", "ours"),
    [
        (by_index, "mean", torch.float32, True),
        (by_place, "mean", torch.float32, False),
        (by_place, "amax", torch.float32, True),
        (by_place, "amax", torch.bfloat16, False),
        (by_place, "sum", torch.bfloat16, True),
        (by_index, "prod", torch.float32, False),
    ],
)
def test_what_cuda_combines_faster_it_does(
    combine: Any, how: str, dtype: torch.dtype, ours: bool
) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(8, 5, device="cuda", dtype=dtype)
        i = torch.zeros(8, device="cuda", dtype=torch.int64)
        lowered = lower_with_report(make_fx(partial(combine, how=how))(x, i))
    assert bool(lowered.fallbacks) != ours


def test_cuda_gives_gradients_to_the_images_of_samples() -> None:
    """But those of 16-bit numbers, whose places it rounds to 16 bits, and of grids alone."""

    def backward(x: torch.Tensor, grid: torch.Tensor, image: bool) -> torch.Tensor:
        out = torch.ops.aten.grid_sampler_2d(x, grid, 0, 0, False)
        both = torch.ops.aten.grid_sampler_2d_backward(out, x, grid, 0, 0, False, [image, True])
        return both[0 if image else 1]

    for dtype, image, ours in (
        (torch.float32, True, False),
        (torch.float32, False, True),
        (torch.bfloat16, True, True),
    ):
        with FakeTensorMode(allow_non_fake_inputs=True):
            x = torch.empty(2, 3, 8, 5, device="cuda", dtype=dtype)
            grid = torch.empty(2, 8, 5, 2, device="cuda", dtype=dtype)
            lowered = lower_with_report(make_fx(partial(backward, image=image))(x, grid))
        assert bool(lowered.fallbacks) != ours


@pytest.mark.parametrize(
    ("fn", "dtype", "ours"),
    [
        (lambda x: x.cumsum(0), torch.int64, False),
        (lambda x: x.logcumsumexp(0), torch.float32, False),
        (lambda x: x.cumsum(0), torch.float32, True),
        (lambda x: x.cumsum(0) - 1, torch.int64, True),
        (lambda x: (x > 0).cumsum(0), torch.int64, True),
        (lambda x: x[:1000].cumsum(0), torch.int64, True),
    ],
)
def test_cuda_scans_one_long_line_that_stands_alone(
    fn: Any, dtype: torch.dtype, ours: bool
) -> None:
    """It reads each number once: we read it twice."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(1 << 24, device="cuda", dtype=dtype)
        lowered = lower_with_report(make_fx(fn)(x))
    assert bool(lowered.fallbacks) != ours
