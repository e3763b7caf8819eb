"""Dynamic sizes through `compile_cli.compile`: what the model asks of a size is asked of each new
one, and what it was not compiled for is compiled, or refused."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compile_cli
from compile_cli.errors import BadInput
from wrapper_ir import SymbolDef, parse_program, print_program

Shape = tuple[int, ...]


def check(
    folder: Path,
    model: Callable[..., Any],
    dynamic: dict[int | str, set[int]],
    example: tuple[Shape, ...],
    *others: tuple[Shape, ...],
    emit: str = "fx",
) -> Any:
    """Compiles for the example and compares every call with eager."""

    def tensors(shapes: tuple[Shape, ...]) -> list[Tensor]:
        return [torch.arange(torch.Size(s).numel(), dtype=torch.float32).view(s) for s in shapes]

    settings: Any = {"cache_dir": str(folder), "emit": emit}
    run = compile_cli.compile(model, tuple(tensors(example)), dynamic=dynamic, options=settings)
    for shapes in (example, *others):
        got, expected = run(*tensors(shapes)), model(*tensors(shapes))
        torch.testing.assert_close(got, expected, msg=lambda m, s=shapes: f"{s}: {m}")
    return run


def test_a_question_about_one_size(tmp_path: Path) -> None:
    def parity(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] % 2 == 0 else x - 1

    run = check(tmp_path, parity, {0: {0}}, ((8, 3),), ((9, 3),), ((4, 3),), ((1, 3),), ((0, 3),))
    assert len(run.regimes) == 2  # one is odd, and none is even


def test_a_comparison_of_two_sizes(tmp_path: Path) -> None:
    def longer(x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) + 1 if x.shape[0] > y.shape[0] else y.sum(0) - 1

    shapes = [((5, 2), (8, 2)), ((5, 2), (5, 2)), ((9, 2), (3, 2)), ((1, 2), (0, 2))]
    check(tmp_path, longer, {0: {0}, 1: {0}}, ((8, 2), (5, 2)), *shapes)


def test_a_size_computed_in_floats(tmp_path: Path) -> None:
    def half(x: Tensor) -> Tensor:
        return x[: int(x.shape[0] * 0.5)] + 1

    check(tmp_path, half, {0: {0}}, ((8, 2),), ((10, 2),), ((9, 2),), ((1, 2),))


def test_results_that_come_and_go(tmp_path: Path) -> None:
    def pieces(x: Tensor) -> Any:
        return [piece + 1 for piece in x.split(2)]

    check(tmp_path, pieces, {0: {0}}, ((6, 2),), ((8, 2),), ((5, 2),), ((1, 2),))


def test_equal_in_the_example_and_not_later(tmp_path: Path) -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    shapes = [((3, 4), (3, 4)), ((1, 4), (3, 4)), ((1, 4), (1, 4))]
    run = check(tmp_path, add, {0: {0}, 1: {0}}, ((5, 4), (5, 4)), *shapes)
    with pytest.raises(BadInput, match=r"not covered(.|\n)*Attempting to broadcast"):
        run(torch.ones(2, 4), torch.ones(3, 4))
    with pytest.raises(BadInput, match="input"):  # not a dynamic dimension
        run(torch.ones(2, 5), torch.ones(2, 5))


def test_one_and_none_of_two_sizes(tmp_path: Path) -> None:
    shapes = (((1, 3),), ((3, 1),), ((0, 3),), ((3, 0),), ((1, 1),), ((0, 0),))
    run = check(tmp_path, lambda x: x.sum(0) * 2, {0: {0, 1}}, ((5, 4),), *shapes)
    assert len(run.regimes) == 1  # proven, not compiled again


def test_no_end_of_compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compile_cli.result.model.MAX_REGIMES", 3)
    run = check(tmp_path, lambda x: x[: int(x.shape[0] * 0.5)] * 1, {0: {0}}, ((4,),))
    for n in (6, 8, 10):
        assert run(torch.ones(n)).shape == (n // 2,)
    with pytest.raises(BadInput, match="ranges of sizes already"):
        run(torch.ones(100))


class Linear(nn.Module):
    """With a list of modules that is no submodule, and a bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.bound = self.shifted

    def shifted(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1 if x.shape[0] != 1 else self.inner(x) - 1

    def forward(self, x: Tensor) -> Tensor:
        return self.bound(x)


def test_calls_in_threads_leave_the_model_alone(tmp_path: Path) -> None:
    model = Linear().eval()
    x = torch.randn(1, 4)
    settings: Any = {"cache_dir": str(tmp_path)}
    run = compile_cli.compile(model, (torch.randn(6, 4),), dynamic={0: {0}}, options=settings)
    before = dict(model.named_parameters())
    with torch.no_grad():
        expected = model(x)
    seen: list[bool] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append(all(model.get_parameter(n) is p for n, p in before.items()))

    results: list[Tensor] = []
    callers = [threading.Thread(target=lambda: results.append(run(x))) for _ in range(4)]
    watcher = threading.Thread(target=watch)
    watcher.start()
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    stop.set()
    watcher.join()
    assert all(seen) and len(results) == 4
    for result in results:
        torch.testing.assert_close(result, expected)
    with torch.no_grad():
        model.inner.bias += 1  # the new compilation sees it, as the first does
    torch.testing.assert_close(run(x), expected + 1)


def test_a_model_that_cannot_be_copied(tmp_path: Path) -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    run = check(tmp_path, Locked(), {0: {0}}, ((5, 2),), ((7, 2),))
    with pytest.raises(BadInput, match="cannot be copied"):
        run(torch.ones(1, 2))


def test_one_tensor_passed_twice(tmp_path: Path) -> None:
    x = torch.randn(4, 2)
    settings: Any = {"cache_dir": str(tmp_path)}
    run = compile_cli.compile(
        lambda a, b: a - b, (x, x), dynamic={0: {0}, 1: {0}}, options=settings
    )
    a, b = torch.randn(3, 2), torch.randn(3, 2)
    assert torch.equal(run(a, b), a - b)
    assert torch.equal(run(a[:1], b), a[:1] - b)


@pytest.mark.parametrize("low", [0, 1])
def test_an_exported_program_of_one(tmp_path: Path, low: int) -> None:
    batch = torch.export.Dim("batch", min=low, max=64)
    program = torch.export.export(
        nn.Softmax(-1), (torch.randn(4, 3),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, tmp_path / "p.pt2")
    loaded = torch.export.load(tmp_path / "p.pt2")
    settings: Any = {"cache_dir": str(tmp_path)}
    run = compile_cli.compile(loaded, (torch.randn(4, 3),), options=settings)
    for n in (1, 5, 64, 0):
        x = torch.randn(n, 3)
        torch.testing.assert_close(run(x), x.softmax(-1))
    with pytest.raises(BadInput, match="not covered"):
        run(torch.randn(65, 3))


def test_an_exported_program_that_asked(tmp_path: Path) -> None:
    class Parity(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.shape[0] % 2 == 0 else x - 1

    shapes = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(Parity(), (torch.ones(8, 2),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "p.pt2")
    settings: Any = {"cache_dir": str(tmp_path)}
    for each in (program, torch.export.load(tmp_path / "p.pt2")):
        run = compile_cli.compile(each, (torch.ones(8, 2),), options=settings)
        assert torch.equal(run(torch.ones(4, 2)), torch.full((4, 2), 2.0))
        with pytest.raises(BadInput, match="not covered"):
            run(torch.ones(9, 2))


def mean_of_rows(x: Tensor) -> Tensor:
    return x / x.shape[0] ** 0.5 - x * x.shape[0] ** -0.5 + x * (x.shape[0] / x.shape[1])


def rounded(x: Tensor) -> Any:
    return x[: round(x.shape[0] * 0.7)] * 2, torch.full((2,), x.shape[1] / 3), x.shape[0] / 4


def shrunk(x: Tensor, mode: str = "bilinear") -> Tensor:
    image = x.reshape(1, 1, x.shape[0], x.shape[1])
    return F.interpolate(image, scale_factor=0.5, mode=mode) + 1


def bicubic(x: Tensor) -> Tensor:
    return shrunk(x, "bicubic")


FLOATS: list[tuple[Callable[..., Any], tuple[Shape, ...]]] = [
    (mean_of_rows, ((5, 4), (7, 3), (1, 4))),
    (rounded, ((5, 4), (9, 3), (4, 4))),
    (shrunk, ((8, 8), (9, 12), (6, 5))),
    (lambda x: F.interpolate(x[None], scale_factor=0.5) + 1, ((3, 8), (3, 9), (2, 5))),
    (lambda x: x.reshape(-1, 8) + 1, ((16, 3), (8, 3), (24, 2), (0, 3))),
    (lambda x: x.unflatten(0, (-1, 4)).sum(1), ((16, 3), (8, 2), (4, 3))),
    (lambda x: x[1:-1] * 2, ((5, 4), (3, 3), (2, 4), (1, 4))),
]


@pytest.mark.parametrize(
    ("model", "shapes"), [*FLOATS, pytest.param(bicubic, FLOATS[2][1], marks=pytest.mark.slow)]
)
def test_sizes_that_kernels_cannot_compute(
    tmp_path: Path, model: Callable[..., Any], shapes: tuple[Shape, ...]
) -> None:
    check(tmp_path, model, {0: {0, 1}}, *((shape,) for shape in shapes))


def test_floats_of_sizes_in_cpp(own_cache: Path) -> None:
    def both(x: Tensor) -> Any:
        return mean_of_rows(x), rounded(x)

    check(own_cache, both, {0: {0, 1}}, ((5, 4),), ((9, 3),), emit="cpp")


@pytest.mark.parametrize(
    ("model", "shapes"),
    [FLOATS[0], *(pytest.param(*f, marks=pytest.mark.slow) for f in FLOATS[1:])],
)
def test_the_backend_takes_them_too(
    tmp_path: Path, model: Callable[..., Any], shapes: tuple[Shape, ...]
) -> None:
    torch._dynamo.reset()
    options: Any = {"cache_dir": str(tmp_path)}
    run = torch.compile(model, backend="compile_cli", dynamic=True, options=options)
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), model(x))


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_symbols_of_a_stride_and_of_a_multiple(own_cache: Path, emit: str) -> None:
    """No size is the symbol by itself: of `x` it is twice it and one more, of `y` the stride."""

    class Halves(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return x[:-1].view(2, -1, 3) + 1, y * 2

    half = torch.export.Dim("half", min=3, max=50)
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    args = (torch.randn(9, 3), torch.randn(6, 10)[:, :5].detach())
    program = torch.export.export(Halves(), args, dynamic_shapes=({0: 2 * half + 1}, auto))
    settings: Any = {"cache_dir": str(own_cache), "emit": emit}
    run = compile_cli.compile(program, args, options=settings)
    symbols = [op for op in run.graph.program.ops if isinstance(op, SymbolDef)]
    defined = {(op.of, op.factor, op.plus) for op in symbols}
    assert {("size", 2, 1), ("stride", 1, 0)} <= defined
    assert parse_program(print_program(run.graph.program)) == run.graph.program
    for rows, width in ((9, 10), (13, 8)):
        x, y = torch.randn(rows, 3), torch.randn(4, width)[:, :5]
        torch.testing.assert_close(run(x, y), Halves()(x, y))
    assert len(run.regimes) == 1
    with pytest.raises(BadInput, match="not covered"):
        run(torch.randn(8, 3), y)


@pytest.mark.parametrize(
    "view",
    [lambda x: x[-100:2], lambda x: (x * 2).narrow(0, 1, 1), lambda x: (x[0], x.view(torch.int32))],
    ids=["slice", "narrow", "select"],
)
def test_a_view_that_a_small_size_has_no_room_for(
    tmp_path: Path, view: Callable[[Tensor], Any]
) -> None:
    """Kernels serve sizes of 0 and 1 that were captured as 2 and more, except where the graph
    itself then reads past the end."""
    options = {"cache_dir": str(tmp_path)}
    run = torch.compile(view, backend="compile_cli", dynamic=True, options=options)
    for n in (3, 2, 5):
        x = torch.arange(float(n))
        torch.testing.assert_close(run(x), view(x), rtol=0, atol=0)


def test_a_view_that_lies_inside_at_one(tmp_path: Path) -> None:
    check(tmp_path, lambda x: x[:, 0], {0: {1}}, ((2, 5),), ((2, 9),), ((2, 1),))


def test_a_place_among_64_bits_that_is_held_in_32(tmp_path: Path) -> None:
    check(tmp_path, lambda x: torch.arange(1, x.shape[0], 2).argmax(0), {0: {0}}, ((5,),), ((9,),))


def test_a_view_that_divides_by_a_part_of_a_size(tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path)}
    split = torch.compile(lambda x: x.unflatten(-2, (-1, 4)), backend="compile_cli", dynamic=True,
                          options=options)  # fmt: skip
    for n in (4, 12):
        x = torch.arange(n * 2.0)
        assert torch.equal(split(x.view(1, n, 2)), x.view(1, -1, 4, 2))


def places(x: Tensor, i: int) -> tuple[Tensor, ...]:
    return torch.select(x, 1, i), torch.select(x, 0, i) + 1, x[3], x[i : i + 2] * 2


def strided(x: Tensor, i: int) -> tuple[Tensor, ...]:
    """Of a part of a larger tensor: it may begin in front of the part, and end after it."""
    part = x.view(-1)[4:20]
    return part.as_strided((2, i), (i, 1), 3 * i), part.as_strided((i,), (2,), i) + 1


def padded(x: Tensor, i: int) -> tuple[Tensor, ...]:
    return F.pad(x, (i, 1 - i)), F.pad(x, (1, i), mode="reflect"), F.pad(x, (i, 0), "replicate")


@pytest.mark.parametrize(
    ("model", "values"),
    [(places, (3, 2, -1, 5)), (strided, (2, 1, 4, 7)), (padded, (2, 3, -1))],
    ids=["places", "strided", "padded"],
)
def test_layouts_that_hang_on_an_integer_of_the_callers(
    tmp_path: Path, model: Callable[[Tensor, int], Any], values: tuple[int, ...]
) -> None:
    """It has no bounds but those that eager checks: what eager refuses is refused, and nothing
    is read outside of a tensor."""
    torch._dynamo.reset()
    options: Any = {"cache_dir": str(tmp_path)}
    run = torch.compile(model, backend="compile_cli", dynamic=True, options=options)
    for i in values:
        x = torch.randn(6 - max(i, 0) % 3, 6)
        try:
            expected = model(x, i)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error), match=str(error)[:6]):
                run(x, i)
        else:
            torch.testing.assert_close(run(x, i), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x * math.sqrt(x.shape[0]),
        lambda x: x + torch.linspace(0, 1, x.shape[0])[:, None],
        pytest.param(
            lambda x: F.affine_grid(torch.eye(2, 3)[None], [1, 1, *x.shape], align_corners=False),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["sqrt", "linspace", "affine_grid"],
)
def test_a_size_whose_value_the_model_needs(
    tmp_path: Path, model: Callable[[Tensor], Tensor]
) -> None:
    """Capturing makes a constant of it: there is a compilation for each."""
    run = check(tmp_path, model, {0: {0}}, ((5, 4),), ((3, 4),), ((5, 4),), ((2, 4),))
    assert len(run.regimes) == 3
    with pytest.raises(BadInput, match="another size"):
        run(torch.ones(5, 7))


@pytest.mark.parametrize("emit", ["fx", "cpp"])
def test_a_question_about_a_size_as_a_number(emit: str, own_cache: Path) -> None:
    def model(x: Tensor) -> Any:
        large = x.shape[0] > 4
        chosen = torch.where(x > 6, large, x) * (x.shape[0] % 2 == 0)
        filled = torch.full((2,), large), x.gt(x.shape[0] != 3)
        return x + large + bool(x.shape[0]), chosen, *filled

    check(own_cache, model, {0: {0}}, ((8,),), ((3,),), ((5,),), emit=emit)


def test_a_size_that_is_twice_another(tmp_path: Path) -> None:
    def rotary(x: Tensor, c: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b, b * c + a), -1)

    def every_other(x: Tensor, c: Tensor) -> Tensor:
        return x[:, ::2] * c - x[:, 1::2]

    shapes = [((5, 12), (5, 6)), ((2, 4), (2, 2)), ((1, 2), (1, 1)), ((0, 4), (0, 2))]

    def turned(x: Tensor, c: Tensor) -> Tensor:
        y = torch.zeros_like(x).slice_scatter(x[:, ::2] * c, 1, 0, None, 2)
        return y.slice_scatter(x[:, 1::2] - c, 1, 1, None, 2)

    for model in (rotary, every_other, turned):
        check(tmp_path, model, {0: {0, 1}, 1: {0, 1}}, ((3, 8), (3, 4)), *shapes)
