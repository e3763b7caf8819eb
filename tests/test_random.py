"""Random numbers in kernels through the whole compiler: state, gradients, emitters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compile_cli
from compile_cli.errors import UnknownOption
from loop_ir import Extern, Kernel, Matmul
from wrapper_ir import DefineKernel, Launch

EMITS = ("fx", "hop", "cpp")


class Noisy(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.dropout(x, 0.5) + y, torch.randn_like(x), torch.randint(0, 10, (x.shape[0], 3))


@pytest.mark.parametrize(
    "emit", ["fx", *(pytest.param(emit, marks=pytest.mark.slow) for emit in ("hop", "cpp"))]
)
def test_state_and_sizes(options: dict[str, Any], emit: str) -> None:
    """Numbers follow from the generator's state, which moves on; sizes may be 0 and 1."""
    args = (torch.ones(6, 40), torch.zeros(6, 40))
    model = compile_cli.compile(
        Noisy(), args, dynamic={0: {0, 1}, 1: {0, 1}}, options={**options, "emit": emit}
    )
    assert not model.graph.fallbacks
    for rows, columns in ((6, 40), (1, 5), (3, 1), (0, 4), (4, 0)):
        x, y = torch.ones(rows, columns), torch.zeros(rows, columns)
        torch.manual_seed(7)
        state = torch.get_rng_state()
        first, second = model(x, y), model(x, y)
        torch.set_rng_state(state)
        for old, new in zip((*first, *second), (*model(x, y), *model(x, y)), strict=True):
            assert torch.equal(old, new)
        if rows * columns > 30:
            assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
            assert set(first[0].unique().tolist()) == {0.0, 2.0}
            assert abs(float(first[0].mean()) - 1) < 0.4
            assert abs(float(first[1].mean())) < 0.4 and 0.7 < float(first[1].std()) < 1.3
        if rows:
            assert int(first[2].min()) >= 0 and int(first[2].max()) < 10


def test_gradients_have_the_mask_of_the_forward_pass(options: dict[str, Any]) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return F.dropout(F.dropout(x * 2, 0.3) + y, 0.5)

    compiled = torch.compile(fn, backend="compile_cli", options=options)
    x = torch.rand(20, 30, requires_grad=True)
    y = torch.zeros(20, 30, requires_grad=True)
    out = compiled(x, y)
    dx, dy = torch.autograd.grad(out.sum(), (x, y))
    kept = out != 0
    torch.testing.assert_close(dx[kept], torch.full_like(dx[kept], 2 / 0.7 / 0.5))
    torch.testing.assert_close(out.detach(), dx * x.detach())
    assert (dx[~kept] == 0).all() and set(dy.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(compiled(x, y), out)


def test_dropout_and_add_is_one_kernel(options: dict[str, Any]) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return F.dropout(x, 0.1) + y

    model = compile_cli.compile(fn, (torch.ones(8, 8), torch.ones(8, 8)), options=options)
    kernels = [n for n in model.graph.fused.nodes if isinstance(n, Kernel)]
    assert len(kernels) == 1 and len(model.graph.fused.nodes) == 2  # and its seed


def test_alike_layers_share_kernels_and_draw_apart(options: dict[str, Any]) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = F.dropout(x @ w, 0.5)
        return x

    args = torch.ones(16, 16), torch.eye(16)
    model = compile_cli.compile(fn, args, options=options)
    ops = model.graph.program.ops
    made, launches = (sum(isinstance(op, kind) for op in ops) for kind in (DefineKernel, Launch))
    assert made < launches == 3  # the last writes a result of the caller's
    kept = float((model(*args) != 0).float().mean())  # by all three, if each draws for itself
    assert 0.03 < kept < 0.25


def test_dropout_ends_a_matmul(options: dict[str, Any]) -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.dropout(F.linear(x, w, b), 0.5) + 0.0

    args = torch.rand(16, 32) + 1, torch.rand(48, 32) + 1, torch.rand(48)
    model = compile_cli.compile(fn, args, options={**options, "gemm": "template"})
    assert [type(n) for n in model.graph.fused.nodes] == [Extern, Matmul]
    torch.manual_seed(0)
    got = model(*args)
    kept = got != 0
    assert 0.3 < float(kept.float().mean()) < 0.7
    torch.testing.assert_close(got, F.linear(*args) * 2 * kept)
    torch.manual_seed(0)
    assert torch.equal(model(*args), got) and not torch.equal(model(*args), got)


@pytest.mark.parametrize("emit", EMITS)
def test_eagers_own_numbers(options: dict[str, Any], emit: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.dropout(x, 0.3) + 1, torch.rand_like(x), torch.randint(0, 9, (5,))

    x = torch.rand(7, 9)
    model = compile_cli.compile(fn, (x,), options={**options, "emit": emit, "random": "eager"})
    torch.manual_seed(11)
    got = model(x)
    torch.manual_seed(11)
    # by the operator that torch.compile has for dropout
    dropped = torch.native_dropout(x, 0.3, True)[0] + 1
    assert torch.equal(got[0], dropped)
    assert torch.equal(got[1], torch.rand_like(x)) and torch.equal(
        got[2], torch.randint(0, 9, (5,))
    )


def test_other_values_are_refused() -> None:
    with pytest.raises(UnknownOption, match="random"):
        compile_cli.compile(torch.sin, (torch.ones(2),), options={"random": "none"})
