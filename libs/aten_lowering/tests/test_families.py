"""Reductions, norms, indexing, creation, rearrangement and matmuls against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import decompositions, lower
from loop_ir import DType, Extern, Kernel, Matmul, Reduce, fuse, print_kernel

aten = torch.ops.aten
FLOATS = [torch.float64, torch.float32, torch.bfloat16]
DIMS: list[Any] = [0, -1, (0, 2), (-1, -2), (0, 1, 2)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_folds(oracle: Any, name: str, keepdim: bool) -> None:
    fn = getattr(torch, name)
    tensors = (torch.randn(3, 4, 5).to(dtype).transpose(0, 2) for dtype in FLOATS)
    oracle.each([lambda a, d=dim: fn(a, dim=d, keepdim=keepdim) for dim in DIMS], *tensors)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", ["var", "std", "var_mean"])
@pytest.mark.parametrize("correction", [0, 1, 0.5])
def test_moments(oracle: Any, name: str, correction: float) -> None:
    fn = getattr(torch, name)
    tensors = ((torch.randn(3, 4, 5) + 100).to(dtype) for dtype in FLOATS)
    oracle.each([lambda a: fn(a, dim=(0, -1), correction=correction, keepdim=True),
                 lambda a: fn(a, correction=correction)], *tensors)  # fmt: skip
    oracle(lambda a: fn(a, dim=0), torch.randn(1, 3))  # no freedom left: NaN


def test_whole_folds(oracle: Any) -> None:
    x, i, b = torch.randn(3, 5), torch.randint(1, 4, (3, 5)), torch.rand(3, 5) > 0.3
    oracle.each([torch.sum, torch.mean, torch.prod, torch.max, torch.min, torch.argmax], x)
    oracle.each([torch.sum, torch.prod, torch.max, torch.argmin, torch.any, torch.all],
                i.to(torch.int32))  # fmt: skip
    oracle.each([torch.sum, torch.any, torch.all, torch.max], b)
    oracle(lambda a: a.sum(0, dtype=torch.float32), x.bfloat16())
    oracle(lambda a: a.sum(0, dtype=torch.bfloat16), x)
    oracle(lambda a: a.mean(1, dtype=torch.float64), x)
    oracle(lambda a: a.prod(1, keepdim=True), i)
    oracle(lambda a: a.any(1), b)
    oracle(lambda a: a.all(0, keepdim=True), i - 1)
    oracle(lambda a: torch.any(a, dim=(0, 1)), b)
    oracle(lambda a: a.sum() + a.mean(), torch.tensor(2.0))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scans(oracle: Any, dim: int) -> None:
    integer = (torch.cumsum, torch.cumprod, torch.cummax, torch.cummin)
    fns = [lambda a, f=f: f(a, dim) for f in (*integer, torch.logcumsumexp)]
    tensors = [torch.randn(3, 4, 5).to(dtype).transpose(0, 2) for dtype in FLOATS]
    oracle.each(fns, *tensors)
    i, b = torch.randint(-9, 9, (3, 4, 2)), torch.rand(3, 4, 2) > 0.5
    oracle.each(fns[:4], i.to(torch.int8), b)
    oracle(lambda a: a.cumsum(dim, dtype=torch.float64), tensors[-1])
    oracle(lambda a: a.cumsum(dim, dtype=torch.int32), i)
    oracle(lambda a: torch.cummax(a, dim)[1], torch.tensor([[1.0, float("nan"), 3.0, 1.0]] * 2))
    oracle(lambda a: torch.cumulative_trapezoid(a, dim=dim), i.float())


def test_scans_of_little(oracle: Any) -> None:
    fns = (torch.cumsum, torch.cumprod, torch.logcumsumexp, torch.cummax)
    both = [lambda a, f=f, d=d: f(a, d) for f in fns for d in (0, -1)]
    oracle.each(both, torch.tensor(2.5), torch.randn(1, 3))


@pytest.mark.parametrize("dim", [0, 1])
def test_the_gradient_of_a_running_sum_is_one_scan(oracle: Any, dim: int) -> None:
    def flipped(a: torch.Tensor) -> torch.Tensor:
        return (a * 2).flip(dim).cumsum(dim).flip(dim) + 1

    graph = fuse(oracle(flipped, torch.randn(20, 21)).graph)
    (kernel,) = graph.nodes
    assert isinstance(kernel, Kernel) and " reverse" in print_kernel(kernel)


def test_scatters_of_one_element_a_row(oracle: Any) -> None:
    x, i = torch.randn(3, 4, 5), torch.randint(0, 4, (3, 1, 5))
    oracle(lambda x, i: x.scatter(1, i, -1.0), x, i)
    oracle(lambda x, i, s: x.scatter(1, i, s), x, i, torch.randn(3, 1, 5))
    oracle(lambda x, i: x.to(torch.bool).scatter(-2, i, True), x.round(), i)
    oracle(lambda x, i: x.scatter(1, i, 2.0), x, torch.zeros(3, 2, 5, dtype=torch.int64))
    oracle(lambda x, i: x.scatter(1, i, 2.0), x, i[:2])


@pytest.mark.parametrize("order", [1, 2, float("inf"), -float("inf"), 3])
def test_vector_norm(oracle: Any, order: float) -> None:
    tensors = (torch.randn(3, 4, 5).to(dtype) for dtype in FLOATS)
    oracle.each([lambda a: torch.linalg.vector_norm(a, order, (0, -1))], *tensors)
    oracle(lambda a: F.normalize(a, order, -1), torch.randn(3, 4))


def test_places(oracle: Any) -> None:
    x = torch.randn(4, 5, 3)
    x[0, 2] = float("nan")
    x[1, :2] = 9.0  # a tie: the first wins
    for dim in (0, 1, -1):
        oracle.each([lambda a, d=dim: torch.max(a, dim=d),
                     lambda a, d=dim: torch.min(a, dim=d, keepdim=True)[1],
                     lambda a, d=dim: torch.argmin(a, dim=d, keepdim=True)],
                    x, x.bfloat16())  # fmt: skip
        oracle(lambda a, d=dim: torch.max(a, dim=d)[0], x)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(oracle: Any, dim: int) -> None:
    tensors = ((torch.randn(4, 5, 6) * 20).to(dtype) for dtype in FLOATS)
    oracle.each([lambda a: a.softmax(dim), lambda a: a.log_softmax(dim),
                 lambda a: torch.logsumexp(a, dim)], *tensors)  # fmt: skip
    oracle(lambda a: a.softmax(dim), torch.full((2, 3, 4), float("-inf")))  # NaN, as eager


def test_norms(oracle: Any) -> None:
    for dtype in FLOATS:
        x, w, b = (torch.randn(*s).to(dtype) for s in ((3, 4, 6), (6,), (6,)))
        y = torch.randn(2, 6, 3, 2).to(dtype)
        oracle(
            lambda a, y, w, b: [
                F.layer_norm(a, (6,), w, b),
                F.layer_norm(a, (6,), w, None, 1e-3),
                F.layer_norm(a.transpose(0, 1), (3, 6)),
                F.group_norm(y, 3, w, b),
                F.batch_norm(y, w * w, b * b + 1, w, b),
            ],
            x, y, w, b,
        )  # fmt: skip
    oracle(lambda a: torch.native_layer_norm(a, (6,), None, None, 1e-5), torch.randn(3, 6))


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("whole", [True, False])
def test_rms_norm_on_cuda_is_one_kernel(
    evaluate_graph: Any, eps: float | None, whole: bool
) -> None:
    """Whole, as torch.export gives it, and in parts, as AOTAutograd does: else its result in f32
    would be saved for a gradient, beside the input and the numbers of rows it is computed of."""
    for dtype in FLOATS:
        x, w = torch.randn(3, 4, 6).to(dtype), torch.randn(6).to(dtype)
        with FakeTensorMode():
            given = [torch.empty(t.shape, dtype=dtype, device="cuda") for t in (x, w)]
            table = {} if whole else decompositions()
            traced = make_fx(lambda x, w: F.rms_norm(x, (6,), w, eps), table)(*given)
        targets = {n.target for n in traced.graph.nodes}
        assert (torch.ops.aten._fused_rms_norm.default in targets) is whole
        graph = fuse(lower(traced))
        assert len(graph.nodes) == 1
        (got,) = evaluate_graph(graph, [x, w], {})
        torch.testing.assert_close(got, F.rms_norm(x, (6,), w, eps))


def test_unused_results_are_not_written(lower_fn: Any) -> None:
    graph = lower_fn(lambda a: F.layer_norm(a, (6,), a[0]), torch.randn(3, 6)).graph
    (kernel,) = graph.nodes
    assert [b.name for b in kernel.buffers if b.written] == ["native_layer_norm_0"]


def test_indexing(oracle: Any) -> None:
    x, i = torch.randn(5, 6, 7), torch.tensor([[0, 4, 2], [1, 1, 3]])
    oracle(F.embedding, i, torch.randn(5, 8))
    oracle(lambda i, w: F.embedding(i, w, padding_idx=1), i.int(), torch.randn(5, 8).bfloat16())
    oracle(lambda a, i: a.index_select(1, i), x, i[0])
    oracle(lambda a, i: a.gather(1, i), x[:, :, 0], i[:, :2])
    oracle(lambda a, i: a[i], x, i)
    oracle(lambda a, i: a[:, i], x, i)
    oracle(lambda a, i: a[:, i - 4, 2:4], x, i)  # negative indices count from the end
    oracle(lambda a, i: a[i, :, i], x, i)
    oracle(lambda a, i: a[:, i, i[0]], x, i)


def test_creation(oracle: Any) -> None:
    x = torch.randn(3, 4)
    oracle(lambda: torch.arange(7))
    oracle(lambda: torch.arange(3, 20, 4))
    oracle(lambda: torch.arange(1.0, 2.0, 0.1))
    oracle(lambda: torch.arange(5, dtype=torch.float64))
    oracle(lambda: torch.full((2, 3), 7, dtype=torch.int32))
    oracle(lambda: torch.full((2,), float("-inf"), dtype=torch.bfloat16))
    oracle(lambda a: torch.zeros_like(a) + torch.ones_like(a) * a.new_full((3,), 2), x.t())
    oracle(lambda a: a + torch.scalar_tensor(2.5) + torch.zeros(3, 4) + a.new_zeros(4), x)
    oracle(lambda a: torch.eye(3) + a[:, :3], x)
    oracle(lambda a: torch.linspace(0, 1, 4) + a, x)


@pytest.mark.parametrize("value", [-0.75, 2, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.bool])
def test_writing_a_number(oracle: Any, dtype: torch.dtype, value: float) -> None:
    x = torch.zeros(2, 2, dtype=dtype)
    oracle(lambda a: a.clone()[0].copy_(value), x)
    if value >= 0 or dtype is not torch.uint8:
        oracle(lambda a: a.clone().fill_(value), x)


def test_rearrange(oracle: Any) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    oracle(lambda a, b: torch.cat([a, b, a], 1), x, y)
    oracle(lambda a, b: torch.cat([a, b.to(torch.bfloat16)], -1), x, y)
    oracle(lambda a: torch.stack([a, a * 2]), x)
    oracle(lambda a, b: torch.cat([a, b]), torch.randn(0), x)
    oracle(lambda a: (torch.cat([a] * 9), torch.cat([a, a[1:]] * 6)), x)
    wide = torch.ones(600, 2)
    oracle(lambda a: (torch.cat([a] * 9), torch.cat([a, a[:, 1:]] * 5, 1)), wide)
    oracle(lambda a: torch.cat([a] * 33), wide, fallbacks=["aten.cat.default"])
    oracle(lambda a: torch.stack([a + n for n in range(16)], -1), x)
    oracle(lambda a: torch.stack([a] * 17, -1), x)
    oracle(lambda: torch.stack((torch.eye(5), torch.eye(5, dtype=torch.bfloat16))))
    oracle(lambda: torch.eye(3, 300, dtype=torch.int32))
    oracle(lambda a: F.pad(a, (1, 2, -1, 3), value=0.5), x)
    oracle(lambda a: F.pad(a, (0, 1)), torch.arange(5))
    oracle(lambda a: a.flip(0, -1).repeat(2, 1, 3), x)
    oracle(lambda a: a[0, 0].flip(0) + a[0, 0].flip(-1), x)
    oracle(lambda a: torch.triu(a, 1) + torch.tril(a, -1), x)
    for offset in (-2, 0, 1):
        oracle(lambda a, o=offset: torch.diag_embed(a, o, 0, 2), x)
    oracle(lambda a: torch.ones(5, 5, dtype=torch.bool).tril() & a, torch.rand(5, 5) > 0.5)
    oracle(lambda a: torch.roll(a, 2, 1), x)
    oracle(lambda a, b: torch.slice_scatter(a, b, 1, 1, 3), x, y)
    oracle(lambda a, b: torch.slice_scatter(a, b, 1, -4, 9, 2), x, y)
    oracle(lambda a, b: torch.select_scatter(a, b, 1, -2), x, y[:, 0])
    oracle(lambda a: a.unflatten(1, (2, 2)).permute(1, 0, 2).reshape(-1), x)
    oracle(lambda a: [t * 2 for t in a.split(2, 1)] + [t + 1 for t in a.unbind(0)], x)
    oracle(lambda a: a.chunk(2, 1)[1].squeeze() + a.diagonal(0)[0], x)


def test_matmuls(oracle: Any) -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    batch = torch.randn(2, 3, 4)
    nodes = (Matmul,)
    assert isinstance(oracle(torch.mm, a, b).graph.nodes[-1], nodes)
    assert isinstance(oracle(lambda x, y, z: torch.addmm(z, x, y), a, b, c).graph.nodes[0], nodes)
    assert isinstance(oracle(lambda x, y: torch.mm(x, y.t()), a, b.t()).graph.nodes[0], nodes)
    assert isinstance(oracle(torch.bmm, batch, batch.transpose(1, 2)).graph.nodes[0], nodes)
    oracle(torch.matmul, batch, b)
    oracle(F.linear, batch, b.t(), c)
    oracle(torch.matmul, batch, torch.randn(4))
    # Extern on purpose.
    assert isinstance(oracle(torch.mm, a.long(), b.long()).graph.nodes[-1], Extern)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "shape", [(), (1,), (5,), (1, 5), (3, 1), (3, 5), (1, 1, 5), (2, 1, 1), (2, 1, 5), (2, 3, 5)]
)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (2, 0.5), (0.125, 1), (1.5, 0)])
def test_sums_of_matmuls(oracle: Any, shape: tuple[int, ...], alpha: float, beta: float) -> None:
    """One node, whatever is added; what broadcasts has strides of 0, and a beta of 0 drops NaN."""
    bias = torch.full(shape, torch.nan) if beta == 0 else torch.randn(shape)
    batched = torch.randn(2, 3, 4), torch.randn(2, 5, 4).transpose(1, 2)
    flat = batched[0][0], batched[1][0]
    ops = [(torch.baddbmm, batched)] + ([(torch.addmm, flat)] if len(shape) < 3 else [])
    for op, (a, b) in ops:
        lowered = oracle(lambda z, x, y, op=op: op(z, x, y, alpha=alpha, beta=beta), bias, a, b)
        (node,) = lowered.graph.nodes
        assert isinstance(node, Matmul)
        assert (node.alpha, node.beta) == (alpha, beta)
        assert node.bias is not None
        assert len(node.bias.type.size) in (1, a.dim())
        assert len(node.bias.type.size) == 1 or set(shape[:-1]) - {1}


def test_externs(oracle: Any) -> None:
    x = torch.randn(3, 4)
    lowered = oracle(lambda a: a.sort(0)[0] * 2, x, fallbacks=["aten.sort.default"])
    assert [type(n) for n in lowered.graph.nodes] == [Extern, Kernel]
    oracle(lambda a: torch.topk(a, 2)[1], x, fallbacks=["aten.topk.default"])
    oracle(lambda a: torch.sort(a, 0), x, fallbacks=["aten.sort.default"])
    oracle(lambda a, w: F.conv2d(a, w, padding=1).relu(), torch.randn(1, 2, 5, 5),
           torch.randn(3, 2, 3, 3))  # fmt: skip
    q = torch.randn(2, 2, 5, 8)
    oracle(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q)


def test_random_numbers_can_be_eagers(lower_fn: Any) -> None:
    lowered = lower_fn(
        lambda a: torch.native_dropout(a, 0.5, True)[0] + torch.rand(3),
        torch.randn(2, 3),
        eager_random=True,
    )
    calls = [n for n in lowered.graph.nodes if isinstance(n, Extern)]
    assert [c.target for c in calls] == ["aten.native_dropout.default", "aten.rand.default"]
    assert not any(c.fallback for c in calls)


def test_mutation(oracle: Any) -> None:
    """In-place ops that functionalisation leaves behind stay calls that return the argument."""

    def fn(a: torch.Tensor) -> torch.Tensor:
        b = a * 2
        aten.index_put_.default(b, [torch.tensor([1])], torch.tensor(5.0))
        return b + 1

    lowered = oracle(fn, torch.randn(4), functional=False,
                     fallbacks=["aten.index_put_.default"])  # fmt: skip
    (call,) = [n for n in lowered.graph.nodes if isinstance(n, Extern)]
    assert call.mutates == ("mul",)
    assert call.outs == (None,)


def test_copy_back(lower_fn: Any) -> None:
    def fn(a: torch.Tensor) -> torch.Tensor:
        b = a + 1
        a.copy_(b)
        return b * 2

    graph = lower_fn(fn, torch.randn(4), functional=False).graph
    assert [type(n).__name__ for n in graph.nodes] == ["Kernel"] * 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16])
def test_counts_are_added_in_32_bits(oracle: Any, dtype: torch.dtype) -> None:
    """The sums of so few are no larger; those of 16 bits take no part."""
    x = torch.tensor([[-128, 127, 255, 1] * 60] * 3).to(dtype)
    lowered = oracle(lambda a: (a.sum(-1), a.sum(), a.sum(0, dtype=torch.float32)), x)
    first = next(iter(lowered.graph.nodes))
    adds = {s.dtype for p in first.phases for s in p.body if isinstance(s, Reduce)}
    assert adds == {DType.i64 if dtype is torch.int16 else DType.i32}
