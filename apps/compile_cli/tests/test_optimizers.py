"""Steps of optimizers: kernels that are alike are one launch, whatever the number of parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from wrapper_ir import Allocate, CopyBack, ExternCall, Launch

SIZES = [(3, 16), (16,), (5,), (1,), (2, 2, 8), (3, 1, 7)]


def launches(compiled: compile_cli.CompiledModel) -> int:
    ops = compiled.graph.program.ops
    assert not [o for o in ops if isinstance(o, CopyBack | ExternCall)]
    return sum(isinstance(o, Launch) for o in ops)


def adamw(
    params: list[Tensor], grads: list[Tensor], means: list[Tensor], squares: list[Tensor],
    step: Tensor,
) -> None:  # fmt: skip
    """Decoupled weight decay (Loshchilov and Hutter), step as a tensor."""
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
        p.mul_(1 - 1e-2 * 1e-3).add_(m_hat / (v_hat.sqrt() + 1e-8), alpha=-1e-3)


def state(count: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    params, grads, means = (
        [torch.randn(SIZES[n % len(SIZES)]) for n in range(count)] for _ in range(3)
    )
    return params, grads, means, [m.square() for m in means], torch.tensor(3.0)


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_a_step_of_many_parameters(emit: str) -> None:
    """Sizes that are multiples of 16, and others, are a launch each."""
    given, wanted = state(4), state(4)
    compiled = compile_cli.compile(adamw, copy.deepcopy(given), options={"emit": emit})
    for _ in range(2):
        compiled(*given)
        adamw(*wanted)
        torch.testing.assert_close(given, wanted)
    assert launches(compiled) <= 4 or emit == "hop"


@pytest.mark.slow
def test_a_hundred_parameters() -> None:
    compiled = compile_cli.compile(adamw, state(100))
    assert launches(compiled) <= 4


def steps(params: list[Tensor], counts: list[Tensor]) -> None:
    """Each parameter has a count of its own, of which kernels of several sizes read a number."""
    for p, count in zip(params, counts, strict=True):
        count.add_(1)
        p.mul_(1 / (1 - 0.9**count)).add_(1 / (1 - 0.99**count))


def test_numbers_of_each_parameter_are_parts_of_one_buffer() -> None:
    def make() -> tuple[list[Tensor], list[Tensor]]:
        return state(18)[0], [torch.tensor(float(n)) for n in range(18)]

    given, wanted = make(), make()
    compiled = compile_cli.compile(steps, copy.deepcopy(given))
    for _ in range(2):
        compiled(*given)
        steps(*wanted)
        torch.testing.assert_close(given, wanted)
    made = [o for o in compiled.graph.program.ops if isinstance(o, Allocate)]
    assert launches(compiled) == 2 and len(made) == 2  # the counts, then all that read them


MATRICES = [(48, 32), (64, 128), (32, 48), (128, 64), (64, 64), (16, 112)]
LISTS: dict[str, tuple[Any, int]] = {
    "sums": (lambda xs: [x.sum(0) for x in xs], 1),
    "softmax": (lambda xs: [x.softmax(-1) for x in xs], 1),
    "norms": (lambda xs: torch.stack(torch._foreach_norm(xs)), 3),
    "variances": (lambda xs: [x.var(-1) for x in xs], 1),
}


@pytest.mark.parametrize("name", LISTS)
def test_reductions_of_several_sizes_are_one_launch(name: str) -> None:
    """The lists that have no other reason to be apart, whatever their sizes are."""
    function, most = LISTS[name]
    torch.manual_seed(0)
    xs = [torch.randn(MATRICES[n % 6]) for n in range(9)]
    compiled = compile_cli.compile(function, (xs,))
    wanted = function([x.double() for x in xs])
    torch.testing.assert_close(compiled(xs), wanted, check_dtype=False, rtol=1e-5, atol=1e-6)
    found = sum(isinstance(o, Launch) for o in compiled.graph.program.ops)
    assert found <= most


def adafactor(
    params: list[Tensor], grads: list[Tensor], rows: list[Tensor], columns: list[Tensor]
) -> None:
    """Factored second moments (Shazeer and Stern), the update clipped by its norm."""
    for p, g, r, c in zip(params, grads, rows, columns, strict=True):
        squares = g * g + 1e-30
        r.lerp_(squares.mean(-1), 0.1)
        c.lerp_(squares.mean(-2), 0.1)
        u = g * (r / r.mean(-1, keepdim=True)).rsqrt()[:, None] * c.rsqrt()
        p.add_(u / u.square().mean().sqrt().clamp(min=1.0), alpha=-1e-2)


def test_factored_moments_of_several_sizes() -> None:
    """As many launches as for matrices of one size, where they are cut alike."""

    def make(dtype: torch.dtype) -> tuple[list[Tensor], ...]:
        torch.manual_seed(0)
        sizes = [(48, 32), (32, 48), (32, 32), (16, 16)] * 2
        params, grads = ([torch.randn(s, dtype=dtype) for s in sizes] for _ in range(2))
        return params, grads, *([g.square().mean(d) for g in grads] for d in (-1, -2))

    given, wanted = make(torch.float32), make(torch.float32)
    exact = tuple([t.double() for t in each] for each in wanted)
    compiled = compile_cli.compile(adafactor, given)
    given = make(torch.float32)
    for _ in range(2):
        compiled(*given)
        adafactor(*exact)
    torch.testing.assert_close(given, exact, check_dtype=False, rtol=2e-5, atol=2e-6)
    assert launches(compiled) <= 4


@pytest.mark.parametrize("swapped", [False, True])
def test_readers_of_parts_of_one_buffer_are_unlike_those_of_two(swapped: bool) -> None:
    """They were alike before their operands became parts."""

    def both(
        a: Tensor, b: Tensor, c: Tensor, d: Tensor, v: Tensor, w: Tensor
    ) -> tuple[Tensor, ...]:
        one, other, third, apart = a.sum(0), b.sum(0), c.sum(0), d.amax(0)
        if swapped:
            return (w * one + other).sum(1), (v * third + apart).sum(1)
        return (v * third + apart).sum(1), (w * one + other).sum(1)

    torch.manual_seed(0)
    xs = [torch.randn(n, 64) for n in (700, 700, 700, 300, 50, 70)]
    compiled = compile_cli.compile(both, tuple(xs))
    wanted = both(*(x.double() for x in xs))
    torch.testing.assert_close(compiled(*xs), wanted, check_dtype=False, rtol=1e-5, atol=1e-3)


def parts(parameters: list[Any]) -> list[dict[str, Any]]:
    """Every other parameter decays."""
    return [
        {"params": parameters[::2], "weight_decay": 0.1},
        {"params": parameters[1::2], "weight_decay": 0.0},
    ]


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, foreach=True),
    "adamw of parts": lambda p: torch.optim.AdamW(parts(p), lr=1e-2, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, amsgrad=True, maximize=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, foreach=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2, foreach=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2, foreach=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, foreach=True),
}
QUICK = ("adamw", "sgd")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS]
)
def test_optimizers_of_torch(name: str) -> None:
    """Some parameters have done a step more than others, and a schedule changes the rate."""
    torch._dynamo.reset()
    # Adafactor asks for its counts; Dynamo would leave all of it to eager.
    asked = torch._dynamo.config.patch(capture_scalar_outputs=name == "adafactor")
    counts = torch._dynamo.utils.counters["stats"]
    before = counts["unique_graphs"]
    results = []
    for compile_step in (True, False):
        params = [nn.Parameter(p) for p in state(6)[0]]
        optimizer = OPTIMIZERS[name](params)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
        step = (
            torch.compile(optimizer.step, backend="compile_cli") if compile_step else optimizer.step
        )
        for p, g in zip(params[::2], state(6)[1][::2], strict=True):
            p.grad = g
        optimizer.step()
        for n in range(2 if name in QUICK else 10):
            for p, g in zip(params, state(6)[1], strict=True):
                p.grad = g * (n + 1)
            with asked:
                step()
            schedule.step()
        results.append(params)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert counts["unique_graphs"] > before


def test_a_rate_that_is_a_tensor_compiles_once() -> None:
    torch._dynamo.reset()
    counts = torch._dynamo.utils.counters["stats"]
    before = counts["unique_graphs"]
    params = [nn.Parameter(p) for p in state(3)[0]]
    optimizer = torch.optim.SGD(params, lr=torch.tensor(0.1), foreach=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
    wanted = [p.detach().clone() for p in params]
    step = torch.compile(optimizer.step, backend="compile_cli")
    for _ in range(3):
        for p, w, g in zip(params, wanted, state(3)[1], strict=True):
            p.grad = g
            w -= optimizer.param_groups[0]["lr"] * g
        step()
        schedule.step()
    torch.testing.assert_close([p.detach() for p in params], wanted)
    assert counts["unique_graphs"] == before + 1
