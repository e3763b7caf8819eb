"""Products of int8, with what makes the operands and what widens the sums, through the compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import compile_cli
from compile_cli.cli.measure import relative_error
from wrapper_ir import ExternCall, Launch
from wrapper_ir.analysis import walk

M, N, K = 40, 48, 96


def int8(*size: int) -> torch.Tensor:
    return torch.randint(-128, 128, size, dtype=torch.int8)


def widened(q: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
    """Sums of int32 times factors of rows and columns, and a bias, as torchao has it."""
    return (torch._int_mm(q, w.t()) * a * b + c).bfloat16()


def quantized(x: Any, w: Any, b: Any, c: Any) -> Any:
    """`widened` for rows of bf16 that are divided by what is the largest of each."""
    a = x.abs().amax(-1, keepdim=True).float() / 127
    return widened((x.float() / a).round().clamp(-128, 127).to(torch.int8), w, a, b, c)


def operands(rows: int = M) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return int8(rows, K), int8(N, K), torch.rand(rows, 1), torch.rand(N), torch.randn(N)


def calls(compiled: Any) -> tuple[int, set[str]]:
    """How many launches, and which extern calls."""
    ops = list(walk(compiled.graph.program.ops))
    targets = {o.target for o in ops if isinstance(o, ExternCall)}
    return sum(isinstance(o, Launch) for o in ops), targets


@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_one_launch_with_what_widens_the_sums(options: dict[str, Any], emit: str) -> None:
    given = {**options, "gemm": "template", "emit": emit}
    compiled = compile_cli.compile(widened, args := operands(), options=given)
    assert calls(compiled) == (1, set())
    q, w, a, b, c = (x.double() for x in args)
    assert relative_error(compiled(*args).double(), (q @ w.t()) * a * b + c) < 4e-3


def test_sums_are_exact(options: dict[str, Any]) -> None:
    """Also beyond what f32 holds: 2055 * 127**2 + 1 is even, and larger than 2**25."""
    q = torch.full((32, 2056), 127, dtype=torch.int8)
    q[:, 0] = 1
    compiled = compile_cli.compile(
        torch._int_mm, (q, q.t()), options={**options, "gemm": "template"}
    )  # fmt: skip
    assert not calls(compiled)[1]
    assert torch.equal(compiled(q, q.t()), torch._int_mm(q, q.t()))


def test_rows_that_are_dynamic(options: dict[str, Any]) -> None:
    _, w, _, b, c = operands()
    compiled = compile_cli.compile(
        quantized, (torch.randn(M, K).bfloat16(), w, b, c), dynamic={0: {0}},
        options={**options, "gemm": "template"},
    )  # fmt: skip
    assert not calls(compiled)[1]
    for rows in (17, 33, 80):
        x = torch.randn(rows, K).bfloat16()
        assert relative_error(compiled(x, w, b, c), quantized(x, w, b, c)) < 8e-3


def test_rows_that_eager_refuses(options: dict[str, Any], as_on_gpu: Any) -> None:
    """Up to 16 on a GPU: templates run them, and none is measured there."""
    choices = as_on_gpu(lambda runs, info: [1.0, *[2.0] * (len(runs) - 1)])
    _, w, _, b, c = operands()
    x = torch.randn(M, K).bfloat16()
    compiled = compile_cli.compile(quantized, (x, w, b, c), dynamic={0: {0}}, options=options)
    assert {choice.problem.m for choice in choices} == {M}
    (decided,) = compiled.graph.decided.values()
    assert ["extern" in str(d) for d in decided] == [False, False, True]
    for rows in (1, 9, 33):
        x = torch.randn(rows, K).bfloat16()
        assert relative_error(compiled(x, w, b, c), quantized(x, w, b, c)) < 8e-3


def test_what_eager_refuses_is_left_to_it(options: dict[str, Any]) -> None:
    args = int8(32, 100), int8(N, 100).t()
    compiled = compile_cli.compile(torch._int_mm, args, options={**options, "gemm": "template"})
    assert calls(compiled) == (0, {"aten._int_mm.default"})
