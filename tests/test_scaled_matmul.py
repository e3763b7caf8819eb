"""fp8 products with scales, and products in another element type, through the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

import compile_cli
from compile_cli.cli.measure import relative_error
from wrapper_ir import ExternCall, Launch
from wrapper_ir.analysis import walk

M, N, K = 32, 48, 64
F8 = torch.float8_e4m3fn


def product(x: Any, w: Any, a: Any, b: Any, *bias: Any) -> Any:
    """What eager computes on a GPU; on a CPU it has no factors of rows."""
    if torch.compiler.is_compiling() or isinstance(x, torch._subclasses.FakeTensor):
        return torch._scaled_mm(x, w.t(), a, b, *bias, out_dtype=torch.bfloat16)
    wide = (x.float() @ w.float().t()) * a * b
    return (wide + bias[0].float() if bias else wide).bfloat16()


def activated(x: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
    return F.gelu(product(x, w, a, b, c))


def added(x: Any, w: Any, a: Any, b: Any, r: Any) -> Any:
    return r + product(x, w, a, b)


def narrowed(x: Any, w: Any, a: Any, b: Any, s: Any) -> Any:
    return (F.silu(product(x, w, a, b)).float() / s).clamp(-448, 448).to(F8)


def fp8(*size: int) -> torch.Tensor:
    return torch.randn(size).to(F8)


def operands(rows: int) -> tuple[torch.Tensor, ...]:
    return fp8(rows, K), fp8(N, K), torch.rand(rows, 1), torch.rand(1, N)


LAST: dict[str, tuple[Callable[..., Any], Callable[[], torch.Tensor]]] = {
    "gelu": (activated, lambda: torch.randn(N).bfloat16()),
    "residual": (added, lambda: torch.randn(M, N).bfloat16()),
    "fp8": (narrowed, lambda: torch.tensor(0.25)),
}


@pytest.mark.parametrize("name", LAST)
@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_one_launch_with_all_that_follows(options: dict[str, Any], name: str, emit: str) -> None:
    torch.manual_seed(0)
    fn, last = LAST[name]
    args = (*operands(M), last())
    compiled = compile_cli.compile(
        fn, args, options={**options, "gemm": "template", "emit": emit}
    )  # fmt: skip
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(o, Launch) for o in ops) == 1
    assert not any(isinstance(o, ExternCall) for o in ops)
    got, expected = compiled(*args), fn(*args)
    assert got.dtype == expected.dtype
    # An fp8 result may round to the neighbour where the sums differ in their last bits.
    assert relative_error(got.float(), expected.float()) < (0.02 if name == "fp8" else 8e-3)


def test_rows_that_are_dynamic(options: dict[str, Any]) -> None:
    """Rows of bf16 that are divided by what is the largest of each."""

    def quantized(x: Any, w: Any, b: Any) -> Any:
        a = x.abs().amax(-1, keepdim=True).float() / 448
        return product((x.float() / a).to(F8), w, a, b)

    torch.manual_seed(0)
    _, w, _, b = operands(M)
    compiled = compile_cli.compile(
        quantized, (torch.randn(M, K).bfloat16(), w, b), dynamic={0: {0}},
        options={**options, "gemm": "template"},
    )  # fmt: skip
    assert not any(isinstance(o, ExternCall) for o in walk(compiled.graph.program.ops))
    for rows in (1, 16, 33):
        x = torch.randn(rows, K).bfloat16()
        assert relative_error(compiled(x, w, b), quantized(x, w, b)) < 8e-3


def test_the_vendor_writes_where_a_template_would(options: dict[str, Any], as_on_gpu: Any) -> None:
    """Rungs that templates serve, and others that the vendor's call does: one result for both."""

    def one(x: Any, w: Any, a: Any) -> Any:
        return torch._scaled_mm(x, w.t(), a, a, out_dtype=torch.float32)

    def timer(runs: Any, info: Any) -> list[float]:
        times.append(None)
        return [1.0 if len(times) % 2 else 1e-6, *[0.1] * (len(runs) - 1)]

    times: list[None] = []
    as_on_gpu(timer)
    torch.manual_seed(0)
    args = fp8(M, K), fp8(N, K), torch.rand(())
    compiled = compile_cli.compile(one, args, dynamic={0: {0}}, options=options)
    ops = list(walk(compiled.graph.program.ops))
    assert {o.target for o in ops if isinstance(o, ExternCall)} == {"aten._scaled_mm.out"}
    assert any(isinstance(o, Launch) for o in ops)
    for rows in (16, 48, 96, 400):
        x = fp8(rows, K)
        assert relative_error(compiled(x, *args[1:]), one(x, *args[1:])) < 1e-5


def spread(scale: torch.Tensor, rows: int, size: torch.Size) -> torch.Tensor:
    """Factors of blocks [rows, 128] as one for each element."""
    whole = scale.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)
    return whole[: size[0], : size[1]]


def by_blocks(x: Any, w: Any, a: Any, b: Any, rows: tuple[int, int]) -> torch.Tensor:
    """`w` and its factors by rows of `w`."""
    wide = x.double() * spread(a, rows[0], x.shape)
    return wide @ (w.double() * spread(b, rows[1], w.shape)).t()


def factors(size: tuple[int, ...], rows: int) -> torch.Tensor:
    """Of blocks, those along the rows side by side."""
    return torch.rand(-(-size[1] // 128), -(-size[0] // rows)).t()


@pytest.mark.parametrize("rows", [(1, 128), (1, 1), (128, 1)])
def test_factors_of_blocks_along_k(options: dict[str, Any], rows: tuple[int, int]) -> None:
    def blocks(x: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
        return F.silu(torch._scaled_mm(x, w.t(), a, b.t(), c, out_dtype=torch.bfloat16))

    torch.manual_seed(0)
    x, w, c = fp8(40, 256), fp8(144, 256), torch.randn(144).bfloat16()
    args = x, w, factors((40, 256), rows[0]), factors((144, 256), rows[1]), c
    compiled = compile_cli.compile(blocks, args, options={**options, "gemm": "template"})
    assert not any(isinstance(o, ExternCall) for o in walk(compiled.graph.program.ops))
    expected = F.silu(by_blocks(*args[:4], rows) + c.double())
    assert relative_error(compiled(*args).double(), expected) < 5e-3


@pytest.mark.parametrize("rows", [1, 128])
def test_factors_by_recipe(options: dict[str, Any], rows: int) -> None:
    """Blocks of 128 x 128 are given by their columns, padded to fours."""
    kind = ScalingType.BlockWise1x128 if rows == 1 else ScalingType.BlockWise128x128

    def recipe(x: Any, w: Any, a: Any, b: Any) -> Any:
        return F.scaled_mm(x, w.t(), a, ScalingType.BlockWise1x128, b, kind)

    torch.manual_seed(0)
    x, w = fp8(16, 384), fp8(256, 384)
    a, b = factors((16, 384), 1), factors((256, 384), rows)
    padded = (
        b if rows == 1 else torch.cat([b, torch.full((2, 1), float("nan"))], 1).contiguous().t()
    )
    compiled = compile_cli.compile(
        recipe, (x, w, a, padded), options={**options, "gemm": "template"}
    )  # fmt: skip
    assert not any(isinstance(o, ExternCall) for o in walk(compiled.graph.program.ops))
    got = compiled(x, w, a, padded)
    assert relative_error(got.double(), by_blocks(x, w, a, b, (1, rows))) < 5e-3


def test_factors_of_rows_by_recipe(options: dict[str, Any]) -> None:
    def recipe(x: Any, w: Any, a: Any, b: Any) -> Any:
        rows = ScalingType.RowWise
        return F.scaled_mm(x, w.t(), a, rows, b, rows, output_dtype=torch.float32)

    torch.manual_seed(0)
    x, w, a, b = operands(M)
    compiled = compile_cli.compile(recipe, (x, w, a, b), options={**options, "gemm": "template"})
    assert not any(isinstance(o, ExternCall) for o in walk(compiled.graph.program.ops))
    wide = (x.double() @ w.double().t()) * a * b
    assert relative_error(compiled(x, w, a, b).double(), wide) < 1e-5


def test_blocks_of_dynamic_rows(options: dict[str, Any]) -> None:
    """Rows that are quantised by blocks of 128; their factors lie by columns."""

    def quantised(x: Any) -> tuple[Any, Any]:
        parts = x.unflatten(-1, (-1, 128))
        a = parts.abs().amax(-1) / 448
        return (parts / a[..., None]).flatten(-2).to(F8), a.t().contiguous().t()

    def blocks(x: Any, w: Any, b: Any) -> Any:
        y, a = quantised(x)
        return torch._scaled_mm(y, w.t(), a, b.t(), out_dtype=torch.bfloat16)

    torch.manual_seed(0)
    w, b = fp8(128, 256), factors((128, 256), 128)
    compiled = compile_cli.compile(
        blocks, (torch.randn(M, 256), w, b), dynamic={0: {0}},
        options={**options, "gemm": "template"},
    )  # fmt: skip
    assert not any(isinstance(o, ExternCall) for o in walk(compiled.graph.program.ops))
    for rows in (1, 33):
        x = torch.randn(rows, 256)
        y, a = quantised(x)
        assert relative_error(compiled(x, w, b).double(), by_blocks(y, w, a, b, (1, 128))) < 5e-3
