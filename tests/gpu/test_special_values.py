"""Every pointwise operator at special values, on a GPU, in every element type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import compile_cli
from compile_cli import Options
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
GROUP = 16  # calls in one graph: a kernel of hundreds of results takes ptxas long
PARTS = 4  # of the operators, for as many processes


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", [
    "float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
])  # fmt: skip
def test_every_operator_at_special_values(
    special_values: Any, name: str, part: int, options: dict[str, Any]
) -> None:
    dtype = getattr(torch, name)
    tensors = special_values.tensors(dtype, "cuda")
    some = list(special_values.cases(dtype))[part::PARTS]
    cases = [c for c in some if special_values.runs(c, tensors)]
    found: list[str] = []
    for start in range(0, len(cases), GROUP):
        traced = special_values.trace(cases[start : start + GROUP], tensors)
        graph = compile_graph(traced.graph, Options.from_mapping(options), Record())
        results = graph.run(*(t.clone() for t in tensors.values()))
        found += special_values.faults(traced.cases, results, tensors)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("small", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_rows_by_their_scales_have_eagers_bits(
    wide: torch.dtype, small: torch.dtype, options: dict[str, Any]
) -> None:
    """Any numbers by any scale of a row, among them zeros, infinities, NaN and the least ones."""

    def scaled(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = x / (s + 0 * x.nan_to_num(0, 0, 0).amax(-1, keepdim=True))  # a program a row
        return q.to(small), q.clamp(-448, 448).to(small)

    bits = torch.randint(-(1 << 31), 1 << 31, (512, 4096), device="cuda").to(torch.int32)
    x, s = bits.view(torch.float32).to(wide), bits[:, :1].view(torch.float32).to(wide)
    ends = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 1.2e-38, 3.4e38]
    x[:, : len(ends)] = s[: len(ends), 0] = torch.tensor(ends, device="cuda").to(wide)
    s[100:] = torch.rand_like(s[100:])
    x[256:] = torch.randn_like(x[256:])
    x[400:] = torch.randint(-448, 449, x[400:].shape, device="cuda") * s[400:]
    got = compile_cli.compile(scaled, (x, s), options=options)(x, s)
    for mine, eager in zip(got, scaled(x, s), strict=True):
        nan = eager.float().isnan()
        assert torch.equal(mine.float().isnan(), nan)
        assert torch.equal(mine.view(torch.uint8)[~nan], eager.view(torch.uint8)[~nan])


@pytest.mark.parametrize("least", [0.0, 1e-10])
@pytest.mark.parametrize("width", [128, 4096])
@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_rows_by_their_own_largest_have_eagers_bits(
    wide: torch.dtype, width: int, least: float, options: dict[str, Any]
) -> None:
    """Rows of any size, among them zeros, infinities, NaN and the least numbers, quantised."""

    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        top = x.float().abs().amax(-1, keepdim=True)
        s, b = (top.clamp_min(least) if least else top) / 448.0, top.clamp_min(least) / 127.0
        q = (x / b).round()
        n = x.float() / x.float().norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return (x / s).to(torch.float8_e4m3fn), q.to(torch.int8), q.clamp(-128, 127).char(), n

    x = torch.randn(4096, width, device="cuda", dtype=torch.float64)
    x *= 2.0 ** torch.randint(-149, 128, (4096, 1), device="cuda")
    x[:64, ::2] = 0.0
    ends = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 1.2e-38, 3.4e38]
    x[torch.arange(8), 5] = torch.tensor(ends, device="cuda", dtype=torch.float64)
    x[8:16] = torch.tensor(ends, device="cuda", dtype=torch.float64)[:, None]
    x = x.to(wide)
    got = compile_cli.compile(scaled, (x,), options=options)(x)
    want = scaled(x)
    top = x.float().abs().amax(-1, keepdim=True)
    usual = (top > 1e-30) & (top < 1e30)  # else scales have few bits, or none
    for mine, eager in zip(got, want, strict=True):
        if eager.dtype is torch.float32:
            torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-30, equal_nan=True)
            continue
        nan = eager.float().isnan()
        same = (mine.view(torch.uint8) == eager.view(torch.uint8)) | (nan & mine.float().isnan())
        kept = usual if eager.dtype is torch.int8 else usual | (top == 0) | ~top.isfinite()
        assert (same | ~kept).all(), x[(~same & kept).any(-1)][:3]
