"""Rows over their own maximum, sum or norm, and what is clamped: the bits that the forms for any
numbers give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from loop_ir import DType, parse_kernel
from triton_emit import Schedule, emit, idioms

ROWS, WIDTH = 128, 256
LARGEST = "m = abs(a) : f32", "t = reduce max(m) : f32"
SUM = "m = abs(a) : f32", "t = reduce sum(m) : f32"
SQUARES = "m = mul(a, a) : f32", "t = reduce sum(m) : f32"
BY_127 = ("c = const 0.007874015718698502 : f32", "b = mul(t, c) : f32")
BY_448 = ("c = const 0.0022321429569274187 : f32", "b = mul(t, c) : f32")
AT_LEAST = "e = const 1e-10 : f32", "u = maximum(t, e) : f32"
ROUND = ("n = round(q) : f32",)
CLAMP = (
    "n = round(q) : f32", "low = const -128.0 : f32", "high = const 127.0 : f32",
    "p = maximum(n, low) : f32", "o = minimum(p, high) : f32",
)  # fmt: skip
NORM = "r = sqrt(t) : f32", "e = const 1e-10 : f32", "b = maximum(r, e) : f32"


def text(
    folds: tuple[str, ...], divisor: tuple[str, ...], after: tuple[str, ...], small: str,
    dividend: str = "a", wide: str = "f32",
) -> str:  # fmt: skip
    def lines(of: tuple[str, ...]) -> str:
        return "".join(f"\n      {line}" for line in of)

    last = after[-1].split()[0] if after else "q"
    cast = f"\n      z = cast({last}) : {small}" if small != "f32" else ""
    return f"""
kernel k(
    x: {wide}[{ROWS}, {WIDTH}] cpu,
    out s: f32[{ROWS}] cpu,
    out y: {small}[{ROWS}, {WIDTH}] cpu,
):
  parallel i0 < {ROWS}:
    over r0 < {WIDTH}:
      v = load x[i0*{WIDTH} + r0] : {wide}
      {"a = cast(v) : f32" if wide != "f32" else "a = neg(v) : f32"}{lines(folds)}
    once:{lines(divisor)}
      store s[i0] = b
    over r0 < {WIDTH}:
      q = div({dividend}, b) : f32{lines(after)}{cast}
      store y[i0*{WIDTH} + r0] = {"z" if cast else last}
"""


def numbers() -> Any:
    """Rows of all sizes, some of which have zeros, infinities, NaN, the least and the greatest."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    with np.errstate(all="ignore"):
        x *= (2.0 ** rng.integers(-149, 128, (ROWS, 1))).astype(np.float32)
        x[:8] = rng.integers(0, 1 << 32, (8, WIDTH), np.uint32).view(np.float32)
        for row, scale in enumerate((1e-45, 1e-43, 1e-42, 1e-40, 1e-38, 1e-37, 1e-30, 3e38)):
            x[8 + row] = rng.standard_normal(WIDTH) * scale
        x[16:26] = x[:10]
        x[16:26, 1::3] = 0.0
    x[26, :], x[27, :], x[27, 0], x[28, :] = 0.0, 0.0, np.inf, 1e-45
    x[29, :], x[29, 5], x[30, 7] = -0.0, 1.0, np.nan
    x[31, ::2], x[31, 1::2] = 3.4028235e38, -1.0
    x[32:40, 3::5] = np.array([0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, 1e-38, 1e38])[:, None]
    return x


def run(source: str, tools: SimpleNamespace, xblock: int) -> tuple[str, dict[str, torch.Tensor]]:
    kernel = parse_kernel(source)
    wide, _, small = (b.type.dtype for b in kernel.buffers)
    emitted = emit(kernel, Schedule("persistent", xblock, WIDTH))
    tensors = {
        "x": tools.to_torch(numbers(), wide),
        "s": tools.to_torch(np.zeros(ROWS), DType.f32),
        "y": tools.to_torch(np.zeros((ROWS, WIDTH)), small),
    }
    tools.launch(emitted, tensors, {})
    return emitted.source, tensors


@pytest.mark.spread(2)
@pytest.mark.parametrize("xblock", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(
    ("folds", "divisor", "after", "small", "names"),
    [
        (LARGEST, BY_127, ROUND, "i8", ("quotient_bounded_f32", "byte_f32")),
        (LARGEST, BY_127, CLAMP, "i8", ("quotient_bounded_f32", "byte_f32")),
        (LARGEST, (*AT_LEAST, "b = mul(u, c) : f32"), ROUND, "i8", ("byte_f32",)),
        (LARGEST, BY_448, (), "f8e4m3", ("quotient_bounded_f32", "to_f8e4m3")),
        (LARGEST, (*AT_LEAST, "b = mul(u, c) : f32"), (), "f8e4m3", ("quotient_bounded_f32",)),
        (SUM, ("b = add(t, t) : f32",), (), "f32", ("quotient_f32",)),
        (SUM, ("e = const 2.0 : f32", "b = div(t, e) : f32"), (), "f32", ("quotient_bounded_f32",)),
        (SQUARES, NORM, (), "f32", ("quotient_bounded_f32",)),
        (SQUARES, (*NORM[:1], "e = const 1.0 : f32", "b = mul(r, e) : f32"), (), "f32",
         ("quotient_bounded_f32",)),
    ],
)  # fmt: skip
def test_the_same_bits(
    folds: tuple[str, ...], divisor: tuple[str, ...], after: tuple[str, ...], small: str,
    names: tuple[str, ...], xblock: int, tools: SimpleNamespace, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if "c" in divisor[-1].split("(")[-1] and not divisor[0].startswith("c"):
        divisor = (BY_127 if small == "i8" else BY_448)[:1] + divisor
    source = text(folds, divisor, after, small)
    found, got = run(source, tools, xblock)
    for name in names:
        assert f"def {name}(" in found
    for name in {"quotient_f32", "round_f32", "to_f8e4m3"} - set(names):
        assert f"def {name}(" not in found
    monkeypatch.setattr(idioms, "within_bounds", lambda kernel: kernel)
    plain, want = run(source, tools, xblock)
    assert "bounded" not in plain and "byte_f32" not in plain
    assert got["s"].view(torch.int32).equal(want["s"].view(torch.int32))
    a, b = got["y"], want["y"]
    same = a.view(torch.uint8) == b.view(torch.uint8)
    if small == "f32":
        same = (a.view(torch.int32) == b.view(torch.int32)) | (a.isnan() & b.isnan())
    elif small != "i8":
        same |= a.float().isnan() & b.float().isnan()
    assert same.all(), (same.logical_not().nonzero()[:5], a[~same][:5], b[~same][:5])


def test_of_narrow_elements(tools: SimpleNamespace) -> None:
    """Of bf16, as a quantisation of rows has them: the quotients that f64 rounds to f32."""
    found, got = run(text(LARGEST, BY_127, ROUND, "i8", wide="bf16"), tools, 2)
    assert "def byte_f32(" in found
    x, s = got["x"].double(), got["s"].double()[:, None]
    want = (x / s).float().round()
    finite = want.abs() < 1e4
    assert finite.sum() > ROWS * WIDTH // 2
    assert got["y"][finite].equal(want[finite].to(torch.int32).to(torch.int8))
    assert (got["y"][want.isnan()] == 0).all()


@pytest.mark.parametrize(
    ("folds", "divisor", "dividend"),
    [
        (LARGEST, BY_127, "t"),
        (("m = neg(a) : f32", "t = reduce max(m) : f32"), BY_127, "a"),
        (("m = neg(a) : f32", "t = reduce sum(m) : f32"), BY_127, "a"),
        (("m = abs(a) : f32", "t = reduce min(m) : f32"), BY_127, "a"),
        (LARGEST, ("c = const -1.0 : f32", "b = mul(t, c) : f32"), "a"),
        (LARGEST, ("c = const 1e-30 : f32", "b = mul(t, c) : f32"), "a"),
        (LARGEST, ("c = const -1.0 : f32", "b = add(t, c) : f32"), "a"),
        (LARGEST, ("c = const 1.0 : f32", "b = minimum(t, c) : f32"), "a"),
        (("d = mul(a, a) : f32", "m = abs(d) : f32", "t = reduce max(m) : f32"), BY_127, "a"),
        (LARGEST, ("b = sqrt(t) : f32",), "a"),
    ],
)
def test_nothing_is_assumed_of_others(
    folds: tuple[str, ...], divisor: tuple[str, ...], dividend: str
) -> None:
    kernel = parse_kernel(text(folds, divisor, (), "f32", dividend))
    assert "bounded" not in emit(kernel, Schedule("persistent", 1, WIDTH)).source


@pytest.mark.parametrize(
    ("low", "high", "small", "helper"),
    [
        (-448.0, 448.0, "f8e4m3", None),
        (-465.0, 448.0, "f8e4m3", "to_f8e4m3"),
        (-448.0, 1000.0, "f8e4m3", "to_f8e4m3"),
        (-257.0, 127.0, "i8", "round_f32"),
        (-128.0, 256.0, "i8", "round_f32"),
        (-128.5, 127.0, "i8", "round_f32"),
        (-128.0, 127.0, "i8", "byte_f32"),
    ],
)
def test_clamped_values(
    low: float, high: float, small: str, helper: str | None, tools: SimpleNamespace
) -> None:
    """Of any numbers: only what fits is not checked."""
    clamp = (f"low = const {low} : f32", f"high = const {high} : f32",
             "p = maximum(n, low) : f32", "o = minimum(p, high) : f32")  # fmt: skip
    first = "n = round(a) : f32" if small == "i8" else "n = add(a, a) : f32"
    source = text(LARGEST, BY_127, (first, *clamp), small)
    found, got = run(source, tools, 1)
    assert {h for h in ("to_f8e4m3", "round_f32", "byte_f32") if f"def {h}(" in found} == (
        {helper} if helper else set()
    )
    a = -got["x"]
    value = (a.round() if small == "i8" else a + a).clamp(low, high)
    if small == "i8":
        want = value.nan_to_num(0).to(torch.int32).to(torch.int8)
        assert got["y"].equal(want)
        return
    want = value.to(torch.float8_e4m3fn)
    same = got["y"].view(torch.uint8) == want.view(torch.uint8)
    assert (same | (got["y"].float().isnan() & want.float().isnan())).all()


@pytest.mark.parametrize(
    ("first", "low", "high", "way"),
    [
        ("n = round(a) : f32", 0.0, 255.0, "byte_f32"),
        ("n = round(a) : f32", -3.0, 256.0, "int32"),
        ("n = add(a, a) : f32", 0.0, 255.0, "int32"),
        ("n = cast(a) : bf16", 0.0, 15.0, "int32"),
        ("n = cast(a) : bf16", 0.0, 4e9, "int64"),
        ("n = add(a, a) : f32", 0.0, float("inf"), "int64"),
    ],
)
def test_unsigned_bytes(
    first: str, low: float, high: float, way: str, tools: SimpleNamespace
) -> None:
    """By way of 64 bits only where 32 may not be enough."""
    kind = first.split()[-1]
    clamp = (f"low = const {low} : {kind}", f"high = const {high} : {kind}",
             f"p = maximum(n, low) : {kind}", f"o = minimum(p, high) : {kind}")  # fmt: skip
    found, got = run(text(LARGEST, BY_127, (first, *clamp), "u8"), tools, 1)
    assert {w for w in ("def byte_f32(", ".to(tl.int64)") if w in found} == (
        {{"byte_f32": "def byte_f32(", "int64": ".to(tl.int64)"}[way]} if way != "int32" else set()
    )
    a = -got["x"]
    value = {"round": a.round(), "add": a + a, "cast": a.bfloat16()}[first[4:].split("(")[0]]
    value = value.clamp(low, high)
    certain = value < 2**31
    want = value[certain].to(torch.int64).to(torch.uint8)
    assert got["y"][certain].equal(want) and (got["y"][value.isnan()] == 0).all()
