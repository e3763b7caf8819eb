"""Operators that become kernels by a decomposition of ours, and indexing of a few forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import decompositions
from aten_lowering.rules import long_windows, one_row
from loop_ir import Extern

aten = torch.ops.aten

X = torch.arange(24.0).reshape(4, 6) / 4 - 2
ROWS = torch.tensor([2, 0, 2])
INTO = torch.tensor([[5, 0], [1, 1], [2, 3], [0, 0]])
FEW = -torch.arange(1.0, 9).reshape(4, 2)
ONE = torch.tensor(1.5)
AT = torch.tensor(0)
MASK = X.remainder(1.5) > 0.5
SORTED = torch.tensor([-1.5, -0.5, -0.5, 0.25, 2.0])
INF, NAN = torch.inf, torch.nan
Z = torch.tensor([[1 + 2j, 0, -0.5j, 3], [-1, complex(INF, 1), complex(NAN, 0), complex(0, -INF)]])
WITH_NAN = X.masked_fill(X == 1, torch.nan)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "an outer product": (lambda x: x[:, :1] @ x[:1], (X,)),
    "rows filled": (lambda x, i: x.index_fill(0, i, 3), (X, ROWS)),
    "columns filled": (lambda x, i, v: x.t().index_fill(-1, i, v), (X, ROWS, ONE)),
    "one row filled": (lambda x, i: x.index_fill(0, i, 3), (X, AT)),
    "number filled": (lambda x, i: x.index_fill(0, i, 3), (ONE, AT)),
    "number gathered": (lambda x, i: x.gather(0, i), (ONE, AT)),
    "number selected": (lambda x, i: x.index_select(0, i), (ONE, AT[None])),
    "number scattered": (lambda x, i, v: x.scatter(0, i, v), (ONE, AT, ONE * 2)),
    "number added": (lambda x, i, v: x.scatter_add(0, i, v), (ONE, AT, ONE * 2)),
    "one selected": (lambda x, i: x.index_select(1, i), (X, AT)),
    "put": (lambda x, i, v: aten.put(x, i, v[0]), (X, torch.tensor([7, 23]), FEW)),
    "put and added": (lambda x, i, v: aten.put(x, i, v[0], True), (X, torch.tensor([7, 7]), FEW)),
    "by a mask": (lambda x, m: x.masked_scatter(m, x.flip(0)), (X, MASK)),
    "by a row's mask": (lambda x, m: x.masked_scatter(m[0], x.flip(0) * 2), (X, MASK)),
    "a row by a mask": (lambda x, m: x[0].masked_scatter(m, x.flip(0)), (X, MASK)),
    "by a row's mask, its gradient": (lambda x, m: aten.masked_scatter_backward(x, m[0], [4, 6]),
                                      (X, MASK)),
    "by a mask, its gradient": (lambda x, m: aten.masked_scatter_backward(x, m, [5, 4]),
                                (X, MASK)),
    "a diagonal": (lambda x, v: x.diagonal_scatter(v[:, 0]), (X, FEW)),
    "a diagonal of another type": (
        lambda x, v: (x > 0).diagonal_scatter(v[:, 0].to(torch.int64)), (X, FEW)),
    "a diagonal below": (lambda x, v: x.diagonal_scatter(v[:2, 0], -2), (X, FEW)),
    "a diagonal of others": (lambda x, v: x.view(2, 2, 6).diagonal_scatter(v[:2], -1, 2, 0),
                             (X, FEW)),
    "buckets": (lambda x, b: torch.bucketize(x, b), (WITH_NAN, SORTED)),
    "buckets closed on the right": (
        lambda x, b: torch.bucketize(x, b, right=True, out_int32=True), (WITH_NAN, SORTED)),
    "rows searched": (lambda x, b: torch.searchsorted(b.expand(4, 5).contiguous(), x),
                      (X, SORTED)),
    "NaN among what is searched": (
        lambda x, b: (torch.searchsorted(b, x), torch.bucketize(x, b, right=True)),
        (X, torch.tensor([-1.5, 0.25, 2.0, torch.nan, torch.nan]))),
    "searched by a sorter": (
        lambda x, b: torch.searchsorted(b.flip(0), x, sorter=torch.arange(4, -1, -1)), (X, SORTED)),
    "a strided part": (lambda x, v: x.as_strided_scatter(v[:2], (2, 2), (7, 2), 3), (X, FEW)),
    "a strided part of a part": (
        lambda x, v: (x[1:].as_strided_scatter(v[0], (2,), (5,), 8),
                      x.t().as_strided_scatter(v[0], (2,), (5,)),
                      x[:, ::2].as_strided_scatter(v[:0], (0, 2), (7, 2))), (X, FEW)),
    "folds of nothing": (
        lambda x: (x[:0].sum(), x[:0].sum(0), x[:0].prod(0, True), x[:, :0].mean(1),
                   x[:0].any(0), x[:0].all(), x[:, :0].sum(1, dtype=torch.int64)), (X,)),
    "one searched": (lambda x, b: torch.searchsorted(b, x, side="right"), (X, SORTED[:1])),
    "distance": (lambda x, y: torch.dist(x, y[0, 0], 3), (X, FEW)),
    "norm of a number": (lambda x: torch.linalg.vector_norm(x, 0.5, -1), (ONE,)),
    "flags to the power of a flag": (lambda x: (x**True, x**False), (MASK,)),
    "softshrink's gradient": (lambda g, x: aten.softshrink_backward(g, x, 0.5), (X.flip(0), X)),
    "norm of order 0": (lambda x: torch.linalg.vector_norm(x, 0, 1), (X,)),
    "norm of order 1.5": (lambda x: torch.linalg.vector_norm(x, 1.5, [0], True), (X,)),
    "powers of two": (lambda x, i: torch.ldexp(x[:3, 0], i), (X, ROWS)),
    "a copy of a view": (lambda x: torch.view_copy(x, (6, 4)) + torch.permute_copy(x, (1, 0)),
                         (X,)),
    "lists": (
        lambda x, y: (
            *torch._foreach_add([x, y], [y[:, :1], y], alpha=2),
            *torch._foreach_mul([x, y], [2.0, -3.0]),
            *torch._foreach_addcdiv([x, y], [x, y], [x - 9, y - 9], [0.5, 1.5]),
            *torch._foreach_addcmul([x, y], [x, y], [x, y], value=3),
            *torch._foreach_lerp([x, y], [x + 1, y * 2], 0.25),
            *torch._foreach_maximum([x, y], -1.0), *torch._foreach_minimum([x, y], [y[:, :1], y]),
            *torch._foreach_pow(0.5, [x, y]), *torch._foreach_div([x, y], y[0, 0]),
            *aten._foreach_copy([x, y], [y[:, :1], y + 1]), *torch._foreach_exp([x, y])),
        (X, FEW)),
    "complex products": (lambda z: (z * z[:1] * 2, z.t() * 1j, z * z.real, z[..., ::2] * z[1, 1:3]),
                         (Z,)),
    "complex of two widths": (lambda z: z[:, 0] * z[:, 1].to(torch.complex128) - 1, (Z,)),
    "complex sums": (lambda z: (z + 1 - z.conj(), z[:, :3].t().sum(0), z.conj()[0].sum()), (Z,)),
    "conjugates": (lambda z: (z.conj().clone(), z.t().conj_physical(), -z.conj(), z.conj().imag),
                   (Z,)),
    "complex copies of which channels lie last": (
        lambda z: (z.view(1, 2, 2, 2).clone(memory_format=torch.channels_last),
                   z.conj().view(1, 2, 2, 1, 2).contiguous(memory_format=torch.channels_last_3d)),
        (Z,)),
    "complex and bools": (lambda z: (torch.cat([z, z.real > 0]), torch.stack([z.imag > 1, z])),
                          (Z,)),
    "complex sums in the order of the second": (
        lambda z: (torch.rsub(z.t().contiguous().t(), z), torch.rsub(z, 1j, alpha=2)), (Z,)),
    "complex parts": (lambda z: aten.slice_scatter(z.new_zeros(2, 6), z, 1, 1, 5), (Z,)),
    "magnitudes": (lambda z: (z.abs(), z.t().angle(), z[0].sgn(), z.abs() * z), (Z,)),
    "complex of reals": (lambda x: (torch.polar(x, x.cos()).t(), torch.complex(x, x.exp()),
                                    x.t().to(torch.complex64), torch.complex(x, x).to(x.dtype)),
                         (X,)),
    "bags of one size": (
        lambda i, w: (F.embedding_bag(i, w, mode="sum"), F.embedding_bag(i.int(), w.double()),
                      F.embedding_bag(i, w, mode="sum", per_sample_weights=w[: len(i), :2] * 3)),
        (INTO.view(2, 4)[:, :2], X.repeat(2, 1))),
    "bags of one size, with what gradients take": (
        lambda i, w: aten._embedding_bag(w, i.view(-1), torch.arange(0, 8, 2), False, 1)[:2],
        (INTO, X.repeat(2, 1))),
    "corners": (lambda x: (torch.tril_indices(4, 3, 1), torch.triu_indices(4, 3, -1)), (X,)),
}  # fmt: skip


def test_bags_of_other_sizes_are_torchs(oracle: Any) -> None:
    def bags(i: Tensor, w: Tensor) -> Any:
        ends = torch.arange(0, 8, 4)
        return (F.embedding_bag(i.view(-1), w, ends + 1 - 1), F.embedding_bag(i, w, mode="max"),
                F.embedding_bag(i, w, mode="sum", padding_idx=1))  # fmt: skip

    oracle(bags, INTO, X.repeat(2, 1), fallbacks=["aten._embedding_bag_forward_only.default"] * 3)


def test_zeros_of_outer_products_are_positive(oracle: Any) -> None:
    lowered = oracle(lambda x, y: 1 / (x @ y), torch.zeros(3, 1), -torch.ones(1, 1))
    assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)


@pytest.mark.parametrize("name", CASES)
def test_kernels(oracle: Any, name: str) -> None:
    fn, inputs = CASES[name]
    lowered = oracle(fn, *inputs)
    assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "padding", [(2, 1), (1, 0, 3, 2), (0, 1, 2, 2, 1, 3), (-1, 2, 1, 0), (-2, -1)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_replicated_edges(oracle: Any, padding: Any, dtype: torch.dtype) -> None:
    dims = len(padding) // 2
    x = torch.randn(2, 3, *(4, 1, 3)[:dims]).to(dtype)
    op = getattr(aten, f"replication_pad{dims}d_backward")
    gradient = torch.randn_like(F.pad(x, padding, "replicate"))
    lowered = oracle(lambda g, x: op(g, x, padding), gradient, x)
    assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)


@pytest.mark.spread(2)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_of_biases_are_sums(dims: int, transposed: bool) -> None:
    torch.manual_seed(0)
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    args = [
        torch.randn(size).requires_grad_()
        for size in ((2, 4, *[5] * dims), (4, 4, *[3] * dims), (4,))
    ]
    masks: list[Any] = []

    def look(gm: torch.fx.GraphModule, _inputs: Any) -> Any:
        nodes = gm.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
        masks.extend(list(n.args[-1]) for n in nodes)
        return make_boxed_func(gm.forward)

    backend = aot_autograd(fw_compiler=look, decompositions=decompositions())
    torch._dynamo.reset()
    outs = [
        run(*args).sin()
        for run in (torch.compile(getattr(F, name), backend=backend), getattr(F, name))
    ]
    grads = [torch.autograd.grad(out.square().sum(), args) for out in outs]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert masks == [[True, True, False]]


def _steps(x: Tensor) -> list[int]:
    """Strides of the dimensions that have more than one element."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", ["rows", "channels", "columns"])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_points_are_matmuls(dtype: torch.dtype, order: str, bias: bool) -> None:
    """With eager's strides, and so are their gradients."""
    torch.manual_seed(0)
    x, w, b = torch.randn(3, 8, 1, 1), torch.randn(4, 8, 1, 1), torch.randn(4)
    if order == "channels":
        x = x.to(memory_format=torch.channels_last)
    if order == "columns":
        x = torch.randn(8, 3, 1, 1).transpose(0, 1)
    args = [t.to(dtype).requires_grad_() for t in ((x, w, b) if bias else (x, w))]
    seen: list[str] = []

    def look(gm: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        return make_boxed_func(gm.forward)

    backend = aot_autograd(fw_compiler=look, decompositions=decompositions())
    torch._dynamo.reset()
    got = torch.compile(F.conv2d, backend=backend)(*args)
    want = F.conv2d(*args)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    grads = [torch.autograd.grad(out.square().sum(), args) for out in (got, want)]
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(*grads, **near)
    if dtype is torch.float32:  # eager's gradients of 16-bit weights lie otherwise than torch says
        assert [_steps(g) for g in grads[0]] == [_steps(g) for g in grads[1]]
    assert not any("convolution" in t for t in seen)
    assert sum(t in ("aten.mm.default", "aten.addmm.default") for t in seen) == 3


@pytest.mark.parametrize("last", [False, True])
def test_long_windows_in_groups_are_matmuls(last: bool) -> None:
    x, weight, bias = torch.randn(3, 6, 37), torch.randn(4, 3, 9), torch.randn(4)
    want = torch.conv1d(x, weight, bias, padding=4, groups=2)
    got = long_windows(x, weight, bias, 4, 2, last)
    torch.testing.assert_close(got, want)
    assert (got.stride(1) == 1) == last
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.empty(2, 768, 149, dtype=torch.float16)
        weight = torch.empty(768, 48, 128, dtype=torch.float16)
        x = x.transpose(1, 2).contiguous().transpose(1, 2) if last else x
        traced = make_fx(
            lambda x, w: torch.conv1d(x, w, padding=64, groups=16), decompositions()
        )(x, weight)  # fmt: skip
    assert not traced.graph.find_nodes(op="call_function", target=aten.convolution.default)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_products_of_one_row_and_few_numbers_are_sums(dtype: torch.dtype) -> None:
    x, w, bias = torch.randn(1, 300).to(dtype), torch.randn(7, 300).to(dtype), torch.randn(7)
    bias = bias.to(dtype)
    for got, want in (
        (one_row(x, w.t()), x.double() @ w.double().t()),
        (one_row(x, w.t(), bias), F.linear(x.double(), w.double(), bias.double())),
    ):
        assert got.dtype is dtype and got.shape == want.shape
        near = (
            {"rtol": 1e-2, "atol": 1e-2}
            if dtype is torch.bfloat16
            else {"rtol": 1e-5, "atol": 1e-5}
        )
        torch.testing.assert_close(got.double(), want, **near)

    def targets(rows: int, columns: int, device: str = "cuda") -> set[Any]:
        with FakeTensorMode(), torch.device(device):
            given = (torch.empty(n, 64, dtype=dtype) for n in (rows, columns))
            bias = torch.empty(columns, dtype=dtype)
            gm = make_fx(
                lambda x, w, b: (x @ w.t(), F.linear(x, w, b)), decompositions()
            )(*given, bias)  # fmt: skip
        return {n.target for n in gm.graph.nodes}

    products = {aten.mm.default, aten.addmm.default}
    assert not targets(1, 48) & products
    for other in (targets(2, 48), targets(1, 8192), targets(1, 48, "cpu")):
        assert products <= other
