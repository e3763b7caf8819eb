"""Decompositions lay out their results as eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aten_lowering import decompositions, own_composites
from aten_lowering.layouts import LAYOUTS, OPERANDS
from aten_lowering.torch_compat import op_implementations_dict

aten = torch.ops.aten
IMAGE = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
WIDE = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
PLACES = torch.arange(36).reshape(6, 6).expand(2, 4, 6, 6)
ONE = torch.tensor(1.0)
MATRIX = torch.rand(5, 4).t()
VOLUME = torch.randn(2, 4, 3, 4, 4).to(memory_format=torch.channels_last_3d)
PADDED = torch.randn(2, 4, 5, 6, 6)
ROWS, ROW = torch.rand(4, 1, 8).half().permute(2, 0, 1), torch.rand(1)
CALLS: dict[Any, tuple[Any, ...]] = {
    aten.huber_loss_backward.default: (ONE, MATRIX, -MATRIX, 1, 1.0),
    aten.smooth_l1_loss_backward.default: (ONE, MATRIX, -MATRIX, 1, 1.0),
    aten.mse_loss_backward.default: (ONE, MATRIX, -MATRIX, 1),
    aten.glu_backward.default: (IMAGE, torch.cat([IMAGE, IMAGE], 3), 3),
    aten.binary_cross_entropy.default: (MATRIX, MATRIX.contiguous(), None, 0),
    aten.channel_shuffle.default: (IMAGE, 2),
    aten.log_sigmoid_forward.default: (MATRIX,),
    aten.xlogy.Tensor: (ROWS, ROW),
    aten.special_xlog1py.default: (MATRIX.contiguous(), MATRIX),
    aten.heaviside.default: (ROWS[0, :, 0].expand(8, 4), MATRIX.new_ones(4, 8).t().half()),
    aten.logaddexp.default: (MATRIX[0].expand(4, 5), MATRIX),
    aten.logaddexp2.default: (MATRIX[0].expand(4, 5), MATRIX),
    aten.max_unpool2d.default: (
        IMAGE, PLACES.contiguous(memory_format=torch.channels_last), [12, 12],
    ),
    aten.roll.default: (IMAGE, [1, 2], [1, 3]),
}  # fmt: skip


@pytest.mark.parametrize("op", LAYOUTS, ids=str)
def test_a_decomposition_lays_out_its_result_as_eager(op: Any) -> None:
    for change in (lambda t: t, torch.Tensor.contiguous):
        args = [change(a) if isinstance(a, torch.Tensor) else a for a in CALLS[op]]
        got, want = decompositions()[op](*args), op(*args)
        results = zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True)
        for mine, eager in results:
            assert mine.stride() == eager.stride()
            torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize(
    ("shape", "shifts", "dims"),
    [((2, 3, 1, 4), [1], [3]), ((2, 3, 1, 4), [1, 4], [1, 3]), ((1, 3, 1, 4), [1], [0])],
)
def test_rolls_of_few_elements(shape: Any, shifts: list[int], dims: list[int]) -> None:
    """Which are channels last by the strides of what has more than one."""
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    got, want = decompositions()[aten.roll.default](x, shifts, dims), x.roll(shifts, dims)
    assert torch.equal(got, want) and got.stride() == want.stride()


def test_unpooled_images_of_one_row() -> None:
    x, at = torch.randn(2, 3, 1, 1), torch.zeros(2, 3, 1, 1, dtype=torch.int64)
    x, at = (t.to(memory_format=torch.channels_last) for t in (x, at))
    got, want = (
        op(x, at, [1, 2])
        for op in (decompositions()[aten.max_unpool2d.default], aten.max_unpool2d.default)
    )
    assert torch.equal(got, want) and got.stride() == want.stride()


def test_shuffled_channels_of_one_element_each_are_a_copy() -> None:
    x = torch.randn(1, 2, 1, 1)
    assert decompositions()[aten.channel_shuffle.default](x, 2).data_ptr() != x.data_ptr()


WEIGHT = torch.rand(4)
NORM: tuple[Any, ...] = (WEIGHT, WEIGHT, WEIGHT, WEIGHT)
TURNED = torch.randn(4, 5, 6, 2).permute(3, 0, 1, 2)
LINES = [
    (torch.randn(3, 4, 5).permute(order), dims)
    for order in ((0, 1, 2), (1, 2, 0))
    for dims in ([0], [1, 2], [2, 1], [0, 2], [2, 0, 1])
]
WHOLE: dict[Any, list[tuple[Any, ...]]] = {
    op: [
        (MATRIX.contiguous(), MATRIX),
        (MATRIX, MATRIX.contiguous()),
        (ROWS, ROW),
        ((MATRIX * 9).long(), ONE.bfloat16()),
        (MATRIX, ONE.double()),
        (ONE.half(), MATRIX),
        (torch.rand(2, 2, 1).transpose(0, -1), torch.tensor(255)),
    ]
    for op in (aten.copysign.Tensor, aten.floor_divide.default, aten.div.Tensor_mode)
} | {
    aten.add.Tensor: [(torch.rand(1, 2, 1), torch.rand(3).unfold(0, 3, 1))],
    aten.sub.Tensor: [(torch.rand(1, 2, 1), torch.rand(3).unfold(0, 3, 1))],
    aten.logical_and.default: [(MATRIX[0].expand(4, 5), MATRIX)],
    aten.logical_or.default: [(MATRIX[0].expand(4, 5), MATRIX)],
    aten.logical_xor.default: [(MATRIX[0].expand(4, 5), MATRIX)],
    aten.pow.Scalar: [(1.5, MATRIX), (2, (MATRIX * 9).long()), (1.0, TURNED)],
    aten.native_batch_norm.default: [(TURNED, *NORM, False, 0.1, 1e-5)],
    aten._native_batch_norm_legit_functional.default: [(TURNED, *NORM, True, 0.1, 1e-5)],
    aten._native_batch_norm_legit_no_training.default: [(TURNED, *NORM, 0.1, 1e-5)],
    aten._native_batch_norm_legit.no_stats: [(TURNED, None, None, True, 0.1, 1e-5)],
    aten.reflection_pad2d.default: [(IMAGE, [1, 1, 1, 1]), (IMAGE.contiguous(), [1, 1, 1, 1])],
    aten.replication_pad2d.default: [(IMAGE, [1, 1, 1, 1])],
    aten.reflection_pad3d.default: [(VOLUME, [1, 1, 1, 1, 1, 1])],
    aten.replication_pad3d.default: [(VOLUME, [1, 1, 1, 1, 1, 1])],
    aten.reflection_pad2d_backward.default: [(WIDE, IMAGE, [1, 1, 1, 1])],
    aten.reflection_pad3d_backward.default: [(PADDED, VOLUME, [1, 1, 1, 1, 1, 1])],
    aten.upsample_bilinear2d.default: [(IMAGE, [9, 9], False)],
    aten.upsample_trilinear3d.default: [(VOLUME, [6, 6, 6], True)],
}


TRANSFORMS: dict[Any, list[tuple[Any, ...]]] = {
    aten._fft_c2c.default: [(x + 0j, dims, 0, True) for x, dims in LINES],
    aten._fft_r2c.default: [(x, dims, 0, side) for x, dims in LINES for side in (True, False)],
    aten._fft_c2r.default: [(x + 0j, dims, 0, 2 * x.size(dims[-1]) - 2) for x, dims in LINES],
}


# With dynamic sizes these make guards; of the others that is slow, and shows no more.
GUARDED = (aten.copysign.Tensor, aten.add.Tensor)


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        *((op, "fake") for op in (*WHOLE, *TRANSFORMS)),
        *(
            pytest.param(op, "symbolic", marks=[] if op in GUARDED else [pytest.mark.slow])
            for op in (*WHOLE, *TRANSFORMS)
        ),
    ],
    ids=str,
)
def test_fake_results_of_whole_operators_lie_as_eager(op: Any, sizes: str) -> None:
    """(Batch norm takes permuted images too, and channels last as they are.)"""
    mode: dict[str, Any] = {"rounding_mode": "floor"} if op is aten.div.Tensor_mode else {}
    if op in (aten.add.Tensor, aten.sub.Tensor):
        mode = {"alpha": -2}
    given = (WHOLE | TRANSFORMS)[op]
    cases = given + [(IMAGE, *c[1:]) for c in given if c[0] is TURNED]
    for args in cases:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]

        def run(*given: torch.Tensor, args: Any = args) -> Any:
            left = list(given)
            result = op(*(left.pop(0) if isinstance(a, torch.Tensor) else a for a in args), **mode)
            return result[0] if isinstance(result, tuple) else result

        with own_composites():
            traced: Any = make_fx(run, decompositions(), tracing_mode=sizes)(*tensors)
        (output,) = traced.graph.find_nodes(op="output")
        want = run(*tensors)
        assert _lie_alike(output.args[0].meta["val"], want)
        torch.testing.assert_close(traced(*tensors), want)


@pytest.mark.parametrize(
    ("f", "shape", "order"),  # of the dimensions, the innermost one last
    [
        (lambda x: torch.fft.fftn(x), (2, 3, 4, 5), (1, 2, 3, 0)),
        (lambda x: torch.fft.ifftn(x, dim=(0, 4, 2, 3)), (2, 3, 4, 5, 6), (1, 2, 3, 4, 0)),
        (lambda x: torch.fft.fft2(x, dim=(2, 0)), (2, 3, 4), (1, 0, 2)),
        (lambda x: torch.fft.irfftn(x.transpose(0, 1)), (2, 3, 4), (1, 0, 2)),
        (lambda x: torch.fft.irfftn(x), (2, 3, 4, 5, 6), (1, 2, 3, 0, 4)),
        (lambda x: torch.fft.rfftn(x.real.transpose(0, 1)), (2, 3, 4, 5), (3, 1, 0, 2)),
    ],
)
def test_transforms_on_a_gpu_run_in_three_dimensions_at_a_time(
    f: Any, shape: tuple[int, ...], order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Already in the first capture of a process. (tests/gpu has the same calls beside eager.)"""
    for op in TRANSFORMS:
        monkeypatch.delitem(op_implementations_dict, op, raising=False)
    with own_composites(), FakeTensorMode(), torch.device("cuda"):
        assert f(torch.empty(shape, dtype=torch.complex64)).permute(order).is_contiguous()


@pytest.mark.spread(4)
@pytest.mark.parametrize(("channels", "side"), [(3, 3), (3, 1), (15, 3), (16, 3)])
@pytest.mark.parametrize("rank", [4, 5])
@pytest.mark.parametrize("tracing", ["real", "symbolic"])
def test_resampled_channels_stay_last_on_a_gpu(
    rank: int, channels: int, side: int, tracing: Any
) -> None:
    """However few: torch's fake tensors say contiguous of less than 16. Unknown sizes of what needs
    gradients are decomposed."""
    lies = (torch.channels_last, torch.channels_last_3d)[rank - 4]

    def run(x: torch.Tensor) -> torch.Tensor:
        mode = ("bilinear", "trilinear")[rank - 4]
        return torch.nn.functional.interpolate(x, scale_factor=2, mode=mode)

    with own_composites(), FakeTensorMode(shape_env=ShapeEnv()) as mode, torch.device("cuda"):
        x = torch.empty([2, channels, side, side, side][:rank]).to(memory_format=lies)
        if tracing == "symbolic":
            with unset_fake_temporarily():
                real = torch.empty(x.shape, device="cpu").to(memory_format=lies)
            x = mode.from_tensor(real).cuda().requires_grad_()
        traced = make_fx(run, decompositions(), tracing_mode=tracing)(x)
    (output,) = traced.graph.find_nodes(op="output")
    made = output.args[0].meta["val"]
    wanted = torch.empty(tuple(map(int, made.shape))).to(memory_format=lies)
    assert tuple(map(int, made.stride())) == wanted.stride()


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_channels_of_volumes_of_unknown_sizes_stay_last(mode: str) -> None:
    """On a CPU, too, where gradients are wanted."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=1.5, mode=mode)

    x = torch.rand(2, 4, 6, 7, 5).to(memory_format=torch.channels_last_3d).requires_grad_()
    with own_composites():
        traced = make_fx(run, decompositions(), tracing_mode="symbolic")(x)
    assert traced(x).stride() == run(x).stride()


def test_every_rule_on_operands_is_tested() -> None:
    assert OPERANDS.keys() == WHOLE.keys() | {aten.index.Tensor}


TURNED_PLACES = torch.tensor([[0, 1, 0], [1, 1, 0]]).t()
TURNED_ROWS = torch.rand(3, 3, 2).permute(1, 2, 0)
GATHERS: dict[str, tuple[torch.Tensor, tuple[torch.Tensor | None, ...]]] = {
    "a dimension of size 1": (
        torch.rand(2, 1, 1).transpose(0, -1)[None], (None, torch.tensor([0, 0]))),
    "a number": (TURNED_ROWS[..., None], (None, torch.tensor(1))),
    "numbers": (TURNED_ROWS.unsqueeze(2).expand(3, 2, 3, 3), (torch.tensor(1), torch.tensor(0))),
    "turned": (torch.rand(4), (TURNED_PLACES,)),
    "turned, behind": (torch.rand(3, 3, 2), (None, None, TURNED_PLACES)),
    "turned and not": (torch.rand(2, 3, 2), (TURNED_PLACES, None, TURNED_PLACES.contiguous())),
    "contiguous by a size of 1": (
        torch.rand(2, 2, 3, 1).movedim(-1, 0), (None, TURNED_PLACES, TURNED_PLACES.contiguous())),
}  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize("sizes", ["fake", "symbolic"])
@pytest.mark.parametrize("name", GATHERS)
def test_what_is_indexed_lies_as_in_eager(name: str, sizes: str) -> None:
    x, indices = GATHERS[name]
    tensors = [i for i in indices if i is not None]

    def run(x: torch.Tensor, *given: torch.Tensor) -> Any:
        left = list(given)
        return aten.index.Tensor(x, [None if i is None else left.pop(0) for i in indices])

    traced: Any = make_fx(run, decomposition_table=decompositions(), tracing_mode=sizes)
    (output,) = traced(x, *tensors).graph.find_nodes(op="output")
    assert _lie_alike(output.args[0].meta["val"], run(x, *tensors))


def _lie_alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    """The stride of a dimension of size 1 says nothing."""
    return all(n == 1 or s == t for n, s, t in zip(y.shape, x.stride(), y.stride(), strict=True))
