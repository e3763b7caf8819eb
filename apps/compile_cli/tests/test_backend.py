"""`torch.compile(..., backend="compile_cli")`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compile_cli.garbage import collected_later
from wrapper_ir.errors import InputMismatch


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


def test_matches_eager() -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="compile_cli")(x), model(x))


@pytest.mark.parametrize("emit", ["hop", "cpp"])
def test_options_reach_the_compiler(emit: str) -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(3, 8)
    compiled = torch.compile(model, backend="compile_cli", options={"emit": emit})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_garbage_is_collected_after_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of either graph of a training step, and of one that fails."""
    import compile_cli.pipeline as pipeline

    collecting = []
    lower = pipeline.lower_with_report

    def noted(*args: Any, **options: Any) -> Any:
        collecting.append(gc.isenabled())
        if len(collecting) == 3:
            raise MemoryError
        return lower(*args, **options)

    monkeypatch.setattr(pipeline, "lower_with_report", noted)
    compiled = torch.compile(Block(), backend="compile_cli")
    compiled(torch.randn(3, 8)).sum().backward()
    assert collecting == [False, False] and gc.isenabled()
    with pytest.raises(Exception, match="MemoryError"), torch.no_grad():
        compiled(torch.randn(3, 8))
    assert collecting == [False] * 3 and gc.isenabled()


def test_garbage_is_collected_after_a_capture() -> None:
    """Dynamo's, which takes longer; from the first on that this backend hears of."""
    collecting = []

    @torch.compiler.assume_constant_result
    def two() -> int:
        collecting.append(gc.isenabled())
        return 2

    for f in (torch.sin, lambda x: x * two()):
        y = torch.compile(f, backend="compile_cli")(torch.ones(3))
    assert y.tolist() == [2.0] * 3
    assert collecting == [False] and gc.isenabled()


def test_what_a_compilation_made_is_looked_at_with_what_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)  # the tests' own
    with collected_later():
        made = [[i] for i in range(5)]
        cycle: Any = nn.Module()
        cycle.itself = [cycle]
        gone = weakref.ref(cycle)
        del cycle
    young = {id(item) for age in (0, 1) for item in gc.get_objects(generation=age)}
    assert young.isdisjoint(map(id, made))
    assert gone() is not None
    gc.collect()
    assert gone() is None
    gc.freeze()


def test_unknown_option_is_refused_by_name() -> None:
    compiled = torch.compile(Block(), backend="compile_cli", options={"fast": True})
    with pytest.raises(Exception, match="unknown option 'fast'"), torch.no_grad():
        compiled(torch.randn(3, 8))


def test_dynamic_batch_compiles_once() -> None:
    torch.manual_seed(0)
    model = Block().eval()
    compiled = torch.compile(model, backend="compile_cli", dynamic=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for n in (2, 7, 5):
            x = torch.randn(n, 8)
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: torch.arange(8) * 0 + n // 3 + x * (n % 5),
        lambda x, n: x + x.new_full((8,), n // 3),
        lambda x, n: x[torch.arange(8) * 0 + (n // 3 + 4)],
        lambda x, n: x.narrow(0, n % -3, 1) * n,
        lambda x, n: x.repeat(2 ** (n + 8)),
    ],
)
def test_integers_of_either_sign_through_one_compilation(f: Callable[..., torch.Tensor]) -> None:
    """An integer input may be negative, where a size may not."""
    compiled = torch.compile(f, backend="compile_cli", dynamic=True)
    x = torch.randn(8)
    for n in (5, -5, -4, 7, -8):
        torch.testing.assert_close(compiled(x, n), f(x, n))


def test_sizes_of_negative_integers() -> None:
    def f(x: torch.Tensor, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(start, end) * 2, torch.nn.functional.pad(x, (start, 1)) + 1

    compiled = torch.compile(f, backend="compile_cli", dynamic=True)
    x = torch.randn(3, 5)
    for start, end in ((-3, 4), (-2, -1), (-1, 5)):
        torch.testing.assert_close(compiled(x, start, end), f(x, start, end))


def test_graph_breaks_and_other_dtypes_recompile() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + 1

    compiled = torch.compile(f, backend="compile_cli")
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(4, dtype=dtype)
        torch.testing.assert_close(compiled(x), f(x))


def test_mutation_of_an_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x, y = torch.ones(3), torch.ones(3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, backend="compile_cli")(x), f(y))
    torch.testing.assert_close(x, y)


def test_gradients() -> None:
    """Training is not a promise yet; what autograd asks for is compiled and right."""
    torch.manual_seed(0)
    model, x = Block(), torch.randn(3, 8)
    torch.compile(model, backend="compile_cli")(x).square().sum().backward()
    got = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_gradients_of_16_bit_norms_with_wide_weights() -> None:
    """The backward graph takes the statistics in the type that eager saves them in."""
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5).bfloat16()
    weight = torch.randn(6).requires_grad_()

    def norms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = nn.functional.batch_norm(x, None, None, w, w, training=True)
        return total + nn.functional.group_norm(x, 2, w, w)

    def grads(f: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        y = x.clone().requires_grad_()
        out = f(y, weight)
        wave = torch.arange(out.numel()).cos().reshape(out.shape)
        return torch.autograd.grad((out.float() * wave).sum(), [weight, y])

    got, want = grads(torch.compile(norms, backend="compile_cli")), grads(norms)
    torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)
    # Each norm's gradient is rounded to 16 bits before they are added, where they may cancel.
    torch.testing.assert_close(got[1], want[1], rtol=2e-2, atol=2e-3)


def test_found_after_import() -> None:
    from compile_cli.torch_backend import compile_cli

    assert torch._dynamo.lookup_backend("compile_cli") is compile_cli


def test_a_parameter_whose_data_was_replaced_is_noticed() -> None:
    """Dynamo guards no layouts of parameters, and looks at them as objects."""
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="compile_cli")
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), layer(x))
        kept = layer.weight.data
        for other in (kept.t(), kept.double(), kept[:, :2]):
            layer.weight.data = other
            with pytest.raises(InputMismatch, match=r"expected f32\[4, 4\]"):
                compiled(x)
        layer.weight.data = kept + 1
        torch.testing.assert_close(compiled(x), layer(x))
