"""Every pointwise operator at special values, on the CPU through Triton's interpreter: some of the
calls that `tests/gpu/test_special_values.py` makes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import compile_cli
from compile_cli import Options
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record

# What torch's tracing itself refuses: its `lshift` of bool raises, though eager shifts.
_UNTRACEABLE = ("aten.__lshift__.Scalar", "aten.__rshift__.Scalar")


@pytest.mark.usefixtures("large_blocks")
@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (torch.float32, 1),
        (torch.int64, 1),
        *(
            pytest.param(dtype, most, marks=pytest.mark.slow)
            for dtype, most in (
                (torch.float16, 1),
                (torch.float32, 3),
                (torch.float16, 3),
                (torch.int64, 3),
            )
        ),
    ],
    ids=str,
)
def test_every_operator_at_special_values(
    special_values: Any, dtype: torch.dtype, most: int, options: dict[str, Any]
) -> None:
    """With `most` choices of what is no tensor, and 24 calls a graph: fusion looks at all pairs."""
    tensors = special_values.tensors(dtype)
    calls = special_values.cases(dtype, most)
    # mvlgamma sums, and its kernel takes the others into programs of two points each
    cases = [c for c in calls if special_values.runs(c, tensors) and "mvlgamma" not in str(c.op)]
    assert len({c.op for c in cases}) > 80
    for start in range(0, len(cases), 24):
        traced = special_values.trace(cases[start : start + 24], tensors)
        assert not [f for f in traced.failed if not f.startswith(_UNTRACEABLE)]
        graph = compile_graph(traced.graph, Options.from_mapping(options), Record())
        results = graph.run(*(t.clone() for t in tensors.values()))
        found = special_values.faults(traced.cases, results, tensors)
        assert not found, "\n".join(found)


def test_numbers_reach_kernels_unrounded(options: dict[str, Any]) -> None:
    """Where a kernel's text names no type, Triton would take a number for f32."""

    def fn(x: torch.Tensor, small: torch.Tensor) -> list[torch.Tensor]:
        wide = x.double()
        return [
            torch.where(x != 0, 7.3, wide), wide < 7.3, wide == 1e-310, wide * -0.0,
            torch.full((2,), 7.3, dtype=torch.float64),
            torch.constant_pad_nd(wide, (1, 1), 7.3), x.long() + (2**53 + 1),
            torch.where(x != 0, 2**40 + 1, x.long()), x == 1e-40, small == 7.3,
            torch.where(x > 0, 100, x.to(torch.int8)) + 100 > 0, x.bfloat16() == 7.3,
            (x.half() * 4096).floor().int(), x.clamp(min=math.nan), x.clamp(math.nan, 1),
        ]  # fmt: skip

    x = torch.tensor([7.3, 0.0, -1.0, 1e-40, 7.300000190734863, 7.3125, -float("inf")])
    inputs = (x, x.bfloat16())
    for fuse in (False, True):
        compiled = compile_cli.compile(fn, inputs, options={**options, "fuse": fuse})
        for got, want in zip(compiled(*inputs), fn(*inputs), strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(1 / got.double(), 1 / want.double(), equal_nan=True)


def test_roundings_that_the_program_asks_for_stay(options: dict[str, Any]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        part = (x * 3).bfloat16()
        return [
            x.bfloat16().float(), x.half().float() + 1, part.float() - x, part.double(),
            x.double().bfloat16().float(), x.long().half().float(), torch.sub(part, x),
            y.copy_(x).float() * 2, x.bfloat16().softmax(0, dtype=torch.float32),
        ]  # fmt: skip

    x = torch.linspace(-3, 70000, 40)
    compiled = compile_cli.compile(fn, (x, torch.zeros(40).bfloat16()), options=options)
    assert not compiled.graph.fallbacks and len(compiled.graph.fused.nodes) <= 3
    results = compiled(x, torch.zeros(40).bfloat16())
    for got, want in zip(results, fn(x, torch.zeros(40).bfloat16()), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def test_remainders_of_any_two_doubles(special_values: Any, options: dict[str, Any]) -> None:
    tensors = special_values.tensors(torch.float64)
    x, y = tensors["x"], tensors["y"]
    compiled = compile_cli.compile(torch.fmod, (x, y), options=options)
    assert not compiled.graph.fallbacks
    want = torch.tensor([
        math.fmod(a, b) if math.isfinite(a) and b != 0 else math.nan
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ], dtype=torch.float64)  # fmt: skip
    assert torch.equal(compiled(x, y).nan_to_num(9e9), want.nan_to_num(9e9))


def of_zeros(x: torch.Tensor) -> list[torch.Tensor]:
    """What the sign of zero of folds hangs on, along lines of 1, 4 and 5 elements."""
    out = [x[0, 0].cumsum(0), x[0, 0].logcumsumexp(0), x[0, 0].sum(0)]
    out += [x[0].cumsum(0), x[0, :1].logcumsumexp(0), x[1:].logcumsumexp(1)]
    for y in (x[:, :1], x[:, :4], x):
        out += [y.sum(1), y.sum((0, 1)), y.mean(1), y.cumsum(1), y.logcumsumexp(1)]
        out += [torch.cummax(y, 1)[0], torch.cummin(y, 1)[0]]
        out += [torch.nn.functional.batch_norm(y, None, None, x[0, : y.shape[1]], training=True)]
    return out


def test_zeros_of_folds(options: dict[str, Any]) -> None:
    x = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -0.0], [-0.0, -0.0, -0.0, -0.0, -0.0]])
    for got, want in zip(
        compile_cli.compile(of_zeros, (x,), options=options)(x), of_zeros(x), strict=True
    ):
        torch.testing.assert_close(1 / got, 1 / want)
