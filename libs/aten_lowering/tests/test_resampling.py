"""Enlarged, reduced and padded images and their gradients, against eager."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from aten_lowering import decompositions, own_composites
from aten_lowering.whole import UPSAMPLING
from loop_ir import Kernel

aten = torch.ops.aten

SHAPES = {1: (2, 3, 5), 2: (2, 2, 6, 4), 3: (1, 2, 3, 4, 2)}
HOW: list[dict[str, Any]] = [
    {"scale_factor": 2}, {"scale_factor": 3}, {"scale_factor": 1.5}, {"scale_factor": 0.5},
    {"scale_factor": 2.7}, {"size": 7}, {"size": 1},
]  # fmt: skip
LAST = {3: torch.channels_last_3d, 2: torch.channels_last}


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    with own_composites():
        yield


def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def kernels(lowered: Any, count: int | None = 1) -> None:
    found = [type(n) for n in lowered.graph.nodes]
    assert found == [Kernel] * (len(found) if count is None else count)


@pytest.mark.spread(2)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("exact", ["", "_exact"])
def test_nearest(oracle: Any, dims: int, exact: str) -> None:
    mode = "nearest-exact" if exact else "nearest"
    name = f"{'_' if exact else ''}upsample_nearest{exact}{dims}d_backward"
    in_all_ways(oracle, image(*SHAPES[dims]), getattr(aten, name), mode, None)


@pytest.mark.parametrize(
    ("dims", "aligned"),
    [
        (1, True),
        (2, True),
        (3, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1, False), (2, False), (3, True))
        ),
    ],
)
def test_linear(oracle: Any, dims: int, aligned: bool) -> None:
    mode = ["linear", "bilinear", "trilinear"][dims - 1]
    backward = getattr(aten, f"upsample_{mode}{dims}d_backward")
    in_all_ways(oracle, image(*SHAPES[dims]), backward, mode, aligned)


@pytest.mark.parametrize(
    ("dims", "mode", "dtype"),
    [
        *((2, mode, torch.float32) for mode in range(3)),
        *((3, mode, torch.float64) for mode in (0, 1)),
    ],
)
def test_a_grid_of_samples(oracle: Any, dims: int, mode: int, dtype: torch.dtype) -> None:
    """Inside of the image, at its edges and far outside, one place twice, of each padding; an image
    of one column. Infinite places, and none, where eager's own gradients do not crash of them."""
    forward = getattr(aten, f"grid_sampler_{dims}d")
    backward = getattr(aten, f"grid_sampler_{dims}d_backward")

    def fn(x: Tensor, grid: Tensor, odd: Tensor, given: Tensor) -> list[Tensor]:
        made, column = [], x[..., :1].contiguous()
        for padding, aligned in itertools.product(range(3), (False, True)):
            how = mode, padding, aligned
            made += forward(x, grid, *how), *backward(given, x, grid, *how, [True, True])
            made += (
                forward(column, grid, *how),
                backward(given, column, grid, *how, [False, True])[1],
            )
            if aligned and padding != 1:  # what is reflected is read as at edges
                made += (forward(x, odd, *how),)
                made += backward(given, x, odd, *how, [True, True]) if mode or not padding else ()
        return made

    x = image(*SHAPES[dims], dtype=dtype)
    grid = image(x.shape[0], *(4, 3, 2)[:dims], dims, dtype=dtype) * 2
    grid[0, 0, 0], grid[0, 1, 1], grid[0, 2, 0] = 1, -1, grid[0, 2, 1]
    grid[0, 3, 2] = torch.tensor([0.0, 7.3, -6.1])[:dims]
    odd = grid.clone()
    for i, place in enumerate((math.inf, -math.inf, math.nan)):
        odd[0, i, 0].view(-1, dims)[0, 0] = odd[0, i, 1].view(-1, dims)[0, -1] = place
    given = image(*x.shape[:2], *grid.shape[1:-1], dtype=dtype)
    kernels(oracle(fn, x, grid, odd, given), 1 + 6 * 6 + 2 + 3 * (2 if mode else 1))


def in_all_ways(oracle: Any, x: Tensor, op: Any, mode: str, aligned: bool | None) -> None:
    """`x` enlarged and reduced, and the gradients, which `op` computes: a kernel each, or one
    a dimension."""
    ways = [
        lambda a, how=how: F.interpolate(a, **how, mode=mode, align_corners=aligned) for how in HOW
    ]
    kernels(oracle.each(ways, x), len(HOW))
    gradients = [image(*way(x).shape) for way in ways]

    def backward(*gradients: Tensor) -> list[Tensor]:
        results = []
        for gradient, how in zip(gradients, HOW, strict=True):
            factor = how.get("scale_factor")
            factors = [None if factor is None else float(factor)] * (x.dim() - 2)
            sizes = list(gradient.shape[2:]), list(x.shape)
            more = () if aligned is None else (aligned,)
            results.append(op(gradient, *sizes, *more, *factors))
        return results

    kernels(oracle(backward, *gradients), len(HOW) if aligned is None else None)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("order", "aligned"), [(torch.channels_last, True), (torch.contiguous_format, False)]
)
def test_antialiased(oracle: Any, order: torch.memory_format, aligned: bool) -> None:
    """Reduced, enlarged, and both; what asks for many places of a point is left to torch."""
    x = image(1, 2, 10, 9).to(memory_format=order)
    sizes = [(4, 5), (13, 9)]
    aten_of, back = aten._upsample_bilinear2d_aa, aten._upsample_bilinear2d_aa_backward

    def reduce(a: Tensor) -> list[Tensor]:
        made = [aten_of(a, size, aligned) for size in sizes]
        return [*made, aten_of(a, [3, 4], aligned, 0.35, 0.45)]

    def spread(*gradients: Tensor) -> list[Tensor]:
        shapes = [list(g.shape[2:]) for g in gradients]
        grads = zip(gradients, shapes, strict=True)
        return [back(g, size, list(x.shape), aligned) for g, size in grads]

    for lowered in (oracle(reduce, x), oracle(spread, *reduce(x)[:2])):
        targets = [n.target for n in lowered.graph.nodes if not isinstance(n, Kernel)]
        assert not any("_aa" in target for target in targets)
    oracle(
        lambda a: aten_of(a, [1, 1], False), image(1, 1, 40, 4), fallbacks=[str(aten_of.default)]
    )
    oracle(lambda a: aten_of(a, [3, 8], aligned), x.double())


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_other_types_layouts_and_sizes(oracle: Any, mode: str) -> None:
    def enlarge(a: Tensor, factor: float = 2) -> Tensor:
        return F.interpolate(a, scale_factor=factor, mode=mode)

    x = image(2, 3, 6, 5)
    oracle(enlarge, x.to(memory_format=torch.channels_last).bfloat16())
    oracle(lambda a: enlarge(a, 2.3), x.double())
    oracle(lambda a: enlarge(a, 1.5 if mode == "bilinear" else 3.5), x, symbolic=True)
    oracle(lambda a: F.interpolate(a, size=(9, 4), mode=mode), x, symbolic=True)
    oracle(lambda a: enlarge(a[:, :, :1, :1]) + 1, x)


@pytest.mark.parametrize("aligned", [False, True])
def test_gradients_that_are_no_numbers(oracle: Any, aligned: bool) -> None:
    """They reach the places that a point reads, those that count 0 for it too, and no others."""
    sides = [(3, 5), (5, 3), (4, 4), (3, 9), (2, 1), (1, 3)]

    def backward(*gradients: Tensor) -> list[Tensor]:
        return [
            op(g, list(g.shape[2:]), [1, 1, *[n] * (g.dim() - 2)], aligned)
            for op, of in zip(
                (aten.upsample_linear1d_backward, aten.upsample_bilinear2d_backward),
                (gradients[: len(sides)], gradients[len(sides) :]),
                strict=True,
            )
            for (n, _), g in zip(sides, of, strict=True)
        ]

    gradients = [image(1, 1, *[m] * dims) for dims in (1, 2) for _, m in sides]
    for i, g in enumerate(gradients):
        g.view(-1)[-1] = math.nan
        if i % len(sides) == 0:
            g.view(-1)[g.numel() // 2] = math.inf
    oracle(backward, *gradients)


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
def test_factors_that_change_no_size_change_nothing(oracle: Any, mode: str) -> None:
    dims = ["linear", "bilinear", "trilinear"].index(mode) + 1
    x = image(1, 2, *[4, 3, 11][-dims:])  # 11 becomes 12
    for a in (x, x[..., :4]):
        oracle(lambda a: F.interpolate(a, scale_factor=1.1, mode=mode), a)
    size, names = [4, 3, 4][-dims:], f"upsample_{mode}{dims}d_backward"
    oracle(lambda g: getattr(aten, names)(g, size, [1, 2, *size], False, *[1.1] * dims), x[..., :4])


@pytest.mark.spread(2)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_factors_of_equal_and_doubled_sizes(oracle: Any, dims: int, mode: str) -> None:
    """Eager has its own places there, of images and of gradients, and of volumes that lie with
    channels last."""
    x = image(1, 4, *[2, 3, 11][-dims:])
    name = f"upsample_nearest{dims}d_backward"
    op = getattr(aten, name if mode == "nearest" else f"_upsample_nearest_exact{dims}d_backward")
    orders = [torch.contiguous_format, *([torch.channels_last_3d] if dims == 3 else [])]
    for factor in (1.1, 2.2):

        def enlarge(a: Tensor, factor: float = factor) -> Tensor:
            return F.interpolate(a, scale_factor=factor, mode=mode)

        for order, channels in itertools.product(orders, (3, 4)):
            a = x[:, :channels]
            for narrow in (a.contiguous(memory_format=order) for a in (a, a[..., :4])):
                oracle(enlarge, narrow)
                sizes, factors = list(enlarge(narrow).shape[2:]), [factor] * dims
                given, shape = image(1, channels, *sizes), list(narrow.shape)

                def back(g: Tensor, how: Any = (sizes, shape, *factors)) -> Tensor:
                    return op(g, *how)

                oracle(back, given)
        # Of an image how large it becomes decides.
        calls = [str(aten.upsample_nearest2d.default)] if (dims, mode) == (2, "nearest") else []
        for size in (11, 4):
            a = x[..., :size].contiguous()
            oracle(enlarge, a, symbolic=True, fallbacks=calls)
    if dims == 2:
        oracle(lambda a: F.interpolate(a, scale_factor=(1.1, 2.2), mode=mode), image(1, 2, 4, 63))


@pytest.mark.spread(2)
@pytest.mark.parametrize("shape", [(1, 2, 4, 11), (1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize(("mode", "antialias"), [("bilinear", True), ("bicubic", False)])
def test_antialiased_and_cubic_lines_of_equal_sizes(
    mode: str, antialias: bool, shape: tuple[int, ...]
) -> None:
    def enlarge(a: Tensor) -> Tensor:
        return F.interpolate(a, scale_factor=1.1, mode=mode, antialias=antialias)

    a, b = (image(*shape).requires_grad_() for _ in range(2))
    want, got = enlarge(a), torch.compile(enlarge, backend="compile_cli", dynamic=False)(b)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    seed = torch.randn_like(want)
    found = [torch.autograd.grad(y, x, seed)[0] for y, x in ((got, b), (want, a))]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("size", [(13, 9), (4, 5), (5, 20)])
def test_gradients_of_cubic_images(oracle: Any, size: tuple[int, int], aligned: bool) -> None:
    """Sums over the points that may have read a place, no scatters."""
    back, shape = aten.upsample_bicubic2d_backward, [1, 3, 5, 7]

    def gradient(g: Tensor) -> Tensor:
        return back(g, size, shape, aligned)

    kernels(oracle(gradient, image(1, 3, *size)), None)
    oracle(gradient, image(1, 3, *size).double())
    if not aligned:  # factors that sizes do not tell
        oracle(lambda g: back(g, (11, 15), shape, False, 2.3, 2.2), image(1, 3, 11, 15))


def test_corners_of_unknown_sizes(oracle: Any) -> None:
    def enlarge(a: Tensor) -> Tensor:
        return F.interpolate(a, size=(9, 1), mode="bilinear", align_corners=True)

    oracle(enlarge, image(2, 3, 6, 5), symbolic=True)


def test_nearest_of_integers_and_of_lines_and_volumes_in_other_orders(oracle: Any) -> None:
    def enlarge(a: Tensor) -> Tensor:
        return F.interpolate(a, scale_factor=2)

    oracle(enlarge, (image(1, 2, 3, 4) * 20).to(torch.uint8))
    oracle(enlarge, image(2, 5, 3).transpose(1, 2))
    oracle(enlarge, image(2, 3, 2, 3, 4).to(memory_format=torch.channels_last_3d))


PADS = [(1, 2), (0, 2), (2, 0), (1, 2, 3, 0), (2, 1, 1, 2), (1, 1, 1, 0, 0, 1)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("pads", PADS, ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding(oracle: Any, mode: str, pads: tuple[int, ...]) -> None:
    dims = len(pads) // 2
    x = image(*{1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (2, 3, 3, 4, 2)}[dims])

    def pad(a: Tensor) -> Tensor:
        return F.pad(a, pads, mode)

    kernels(oracle(pad, x))
    kernels(oracle(pad, x, symbolic=True))
    last = x.to(memory_format=LAST[dims]) if dims > 1 else x
    if mode == "replicate":
        oracle(pad, last)
        return
    backward = getattr(aten, f"reflection_pad{dims}d_backward")
    grad = image(*pad(x).shape)

    def others(g: Tensor, turned: Tensor, a: Tensor, last: Tensor) -> list[Tensor]:
        return [pad(last), backward(g, last, pads), backward(turned, a, pads)]

    kernels(oracle(lambda g, a: backward(g, a, pads), grad, x))
    oracle(others, grad, grad.mT.contiguous().mT, x, last)


@pytest.mark.parametrize(
    "pads", [(-1, -1, 2, 1), (3, -2, -2, 3), (-4, 3, 2, -1), (2, -3, -4, 4)], ids=str
)
def test_negative_padding(oracle: Any, pads: tuple[int, ...]) -> None:
    """Also where what is cut off would have been mirrored."""
    x = image(2, 3, 6, 5)
    for mode in ("reflect", "replicate"):
        kernels(oracle(lambda a, mode=mode: F.pad(a, pads, mode), x))
    grad = image(*F.pad(x, pads, "reflect").shape)
    kernels(oracle(lambda g, a: aten.reflection_pad2d_backward(g, a, pads), grad, x))


@pytest.mark.parametrize(
    ("mode", "dynamic"),
    [
        ("nearest", True),
        ("bilinear", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("nearest-exact", False),
                ("nearest-exact", True),
                ("nearest", False),
                ("bilinear", True),
            )
        ),
    ],
)
def test_tracing_keeps_upsampling_whole(mode: str, dynamic: bool) -> None:
    """Its gradient, too, is then one operator, where sizes are known."""
    found: list[set[str]] = []

    def compiler(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        found.append({str(n.target) for n in graph.graph.nodes})
        return make_boxed_func(graph.forward)

    def enlarge(a: Tensor) -> Tensor:
        return F.interpolate(a, scale_factor=2, mode=mode)

    backend = aot_autograd(fw_compiler=compiler, decompositions=decompositions())
    compiled = torch.compile(enlarge, backend=backend, dynamic=dynamic)
    for x in (image(1, 1, 2, 3), image(1, 1, 2, 3).requires_grad_()):
        torch._dynamo.reset()
        got, want = compiled(x), enlarge(x)
        torch.testing.assert_close(got, want)
        if x.requires_grad:
            got, want = (torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want))
            torch.testing.assert_close(got, want)
    names = [name for graph in (found[:1] if dynamic else found) for name in graph]
    assert any("upsample" in name for name in names)
    assert not any("index" in name for name in names)
    torch._dynamo.reset()


def test_torch_is_left_as_it_was() -> None:
    ops = [op for p in UPSAMPLING for op in (p.vec, p.default)]
    inside = [dict(op.py_kernels) for op in ops]
    with own_composites():
        pass
    assert [op.py_kernels for op in ops] == inside
