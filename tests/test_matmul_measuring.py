"""What is done on a GPU to choose, done on a CPU: templates, interpreted, and the vendor's way on
the same inputs, compared and then timed by a clock that is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from planner.matmul.chooser import as_called
from planner.matmul.decide import VENDOR
from planner.tensors import random_tensor
from tuning import MARGINS
from wrapper_ir import Device, DType, ExternCall, Launch, TensorType
from wrapper_ir.analysis import walk

M, N, K = 20, 24, 40


def int8(*size: int) -> torch.Tensor:
    return torch.randint(-127, 128, size, dtype=torch.int8)


def weights(x: Any, q: Any, s: Any) -> Any:
    return F.gelu(F.linear(x, q.to(x.dtype) * s[:, None]))


def gated(x: Any, g: Any, w: Any, r: Any) -> Any:
    return (x[:, 1:].relu() * g) @ (w * r) + g[:, :1]


def scores(q: Any, k: Any, mask: Any) -> Any:
    return torch.where(mask, torch.matmul(q, k.mT) * 0.25, -1e4)


def parts(x: Any) -> Any:
    q, k = x.chunk(2, -1)
    return torch.bmm(q, k.mT) * 0.5 + x[:, :, :1]


def itself(x: Any) -> Any:
    return torch.bmm(x, x.mT) + x.sum(-1, keepdim=True)


def added(c: Any, a: Any, b: Any) -> Any:
    return torch.baddbmm(c, a, b, alpha=0.5, beta=-2).relu()


def scaled(x: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
    y = torch._scaled_mm(x, w.t(), a, b, bias=c, out_dtype=torch.float32, use_fast_accum=True)
    return F.silu(y) + a


def fp8(*size: int) -> torch.Tensor:
    return torch.randn(size).to(torch.float8_e4m3fn)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "weights": (weights, lambda: (torch.randn(M, K), int8(N, K), torch.rand(N))),
    "gated": (gated, lambda: (torch.randn(M, K + 1), torch.randn(M, K), torch.randn(K, N),
                              torch.randn(N))),
    "scores": (scores, lambda: (torch.randn(2, 3, M, K), torch.randn(2, 3, N, K),
                                torch.rand(2, 1, M, N) < 0.8)),
    "parts": (parts, lambda: (torch.randn(3, M, 2 * K),)),
    "itself": (itself, lambda: (torch.randn(3, M, K),)),
    "added": (added, lambda: (torch.randn(M, 1), torch.randn(3, M, K), torch.randn(3, K, N))),
    "scaled": (scaled, lambda: (fp8(32, 64), fp8(48, 64), torch.rand(()), torch.rand(1, 1),
                                torch.randn(48))),
    "added to an operand": (
        lambda x, w: torch.addmm(x, x, w, alpha=2.0).relu(),
        lambda: (torch.randn(M, M), torch.randn(M, M)),
    ),
    "added in place": (
        lambda x, g, total: total.add_(x.t() @ g),
        lambda: (torch.randn(K, M), torch.randn(K, N), torch.randn(M, N)),
    ),
}  # fmt: skip


@pytest.fixture
def measured(as_on_gpu: Any) -> Callable[[bool], list[gemm_templates.Choice]]:
    """`measured(templates)`: choices are made as on a GPU, with templates faster than the vendor's
    way or slower. What was chosen, in order."""

    def start(templates: bool) -> list[gemm_templates.Choice]:
        def timer(runs: Any, info: Any) -> list[float]:
            for run in runs:
                run()
            later = [0.1 + 0.1 * i for i in range(len(runs) - 1)]
            return [1.0, *later] if templates else [0.01, *later]

        choices: list[gemm_templates.Choice] = as_on_gpu(timer)
        return choices

    return start


def agreed(choices: list[gemm_templates.Choice]) -> None:
    """No candidate that ran computed something else; some did run."""
    for choice in choices:
        assert not [why for _, why in choice.failures if "differs" in why or "shape" in why]
        assert len(choice.times) > 1


def close(compiled: Any, fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    copies = [x.clone() for x in args]
    assert relative_error(compiled(*args), fn(*copies)) < 1e-5


# Whichever wins, both sides are computed and compared: the vendor's wins once with a prologue and
# once with a batch.
@pytest.mark.parametrize(
    ("name", "templates"),
    [
        pytest.param(
            name, templates,
            marks=() if templates or name in ("weights", "scores") else pytest.mark.slow,
        )
        for name in CASES
        for templates in (True, False)
    ],
)  # fmt: skip
def test_both_sides_compute_the_same(
    options: dict[str, Any],
    measured: Callable[[bool], list[gemm_templates.Choice]],
    name: str,
    templates: bool,
) -> None:
    torch.manual_seed(0)
    fn, make = CASES[name]
    args = make()
    choices = measured(templates)
    compiled = compile_cli.compile(fn, args, options=options)
    agreed(choices)
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(o, ExternCall) for o in ops) == (0 if templates else 1)
    assert len(choices) == (2 if name in ("weights", "gated") else 1)
    (decided,) = compiled.graph.decided.values()
    assert (str(decided[-1]) == VENDOR) == (not templates)
    close(compiled, fn, args)


@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_a_template_after_kernels(
    options: dict[str, Any], measured: Callable[[bool], list[gemm_templates.Choice]],
    monkeypatch: pytest.MonkeyPatch, emit: str,
) -> None:  # fmt: skip
    """Faster than the vendor's call, and than a template with the prologue."""
    choices = measured(True)
    choose = gemm_templates.choose

    def plain_only(problem: Any, *args: Any, **more: Any) -> Any:
        choice = choose(problem, *args, **more)
        fused = problem.prologue_a or problem.prologue_b
        return replace(choice, config=None) if fused else choice

    monkeypatch.setattr(gemm_templates, "choose", plain_only)
    torch.manual_seed(0)
    fn, make = CASES["gated"]
    args = make()
    compiled = compile_cli.compile(fn, args, options={**options, "emit": emit})
    agreed(choices)
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(o, Launch) for o in ops) == 3
    assert not any(isinstance(o, ExternCall) for o in ops)
    close(compiled, fn, args)


@pytest.mark.parametrize("templates", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_each_rung_is_charged_its_producers(
    options: dict[str, Any],
    measured: Callable[[bool], list[gemm_templates.Choice]],
    templates: bool,
) -> None:
    torch.manual_seed(0)
    choices = measured(templates)
    q, s = int8(N, K), torch.rand(N)
    compiled = compile_cli.compile(
        weights, (torch.randn(M, K), q, s), dynamic={0: {0}}, options=options
    )
    agreed(choices)
    assert len(choices) == 2 * 3  # rungs of 1, 16 and 20 rows; apart and fused
    assert {bool(c.problem.prologue_b) for c in choices} == {True, False}
    for rows in (1, 2, 16, 17, 20, 50):
        close(compiled, weights, (torch.randn(rows, K), q, s))


def test_what_is_measured_leaves_the_random_state() -> None:
    state = torch.get_rng_state()
    for dtype in (DType.bf16, DType.i64, DType.f8e5m2):
        type_ = TensorType(dtype, (4, 3), (3, 1), Device("cpu"))
        assert random_tensor(type_, {}).shape == (4, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_vendors_call_counts_as_what_it_keeps_the_host() -> None:
    problem = gemm_templates.Problem(128, 768, 768, "bf16")
    tiled = gemm_templates.Config(16, 16, 32, 4, 1, 1)
    split = gemm_templates.Config(16, 16, 16, 1, 1, 1, "split_k", split_k=3)
    offered = tuple(gemm_templates.Candidate(config, 1e-5) for config in (tiled, split, None))

    def chosen(vendor: float, seconds: float) -> gemm_templates.Choice:
        times = (("extern", vendor), (str(tiled), seconds), (str(split), 3 * vendor))
        return as_called(gemm_templates.Choice(problem, None, offered, times))

    near = chosen(4e-6, 4.15e-6)
    assert near.config == tiled and dict(near.times)["extern"] == MARGINS.vendor_call
    assert [label for label, _ in near.failures] == [str(split)]
    assert chosen(4e-6, 4.3e-6).config is None, "the GPU would take longer"
    longer = chosen(10e-6, 10.1e-6)
    assert longer.config is None and not longer.failures
