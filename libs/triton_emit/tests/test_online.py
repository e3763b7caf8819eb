"""Softmax of rows that do not fit: one loop for the maximum and the sum."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from loop_ir import Kernel, parse_kernel
from triton_emit import Schedule
from triton_emit.schedule import Kind

SYMBOLS = {"s0": 6}
TEXT = """\
kernel statistics(
    x: {dtype}[s0, 40] cuda:0,
    out m: {dtype}[s0] cuda:0,
    out s: {dtype}[s0] cuda:0,
):
  where s0 in [0, 64] hint 6
  parallel i0 < s0:
    over r0 < 40:
      v0 = load x[{index}] : {dtype}
      v1, v2 = reduce softmax(v0) : {dtype}
    once:
      store m[i0] = v1
      store s[i0] = v2
"""


def values(dtype: str, columns: int = 40) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((6, columns)) * 3
    x[1, 3:] = -np.inf
    x[2] = -np.inf
    x[3, 17] = np.inf
    x[4, 5] = np.nan
    return x.astype(np.float64 if dtype == "f64" else np.float32)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["persistent", "looped"])
@pytest.mark.parametrize("rows", [1, 4])
def test_statistics(dtype: str, kind: Kind, rows: int, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(TEXT.format(dtype=dtype, index="i0*40 + r0"))
    schedule = Schedule(kind, rows, 64 if kind == "persistent" else 16)
    tools.check(kernel, schedule, {"x": values(dtype)}, SYMBOLS, ulp=8.0)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_thread_joins_its_elements_first(dtype: str, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(TEXT.format(dtype=dtype, index="i0*40 + r0").replace("40", "300"))
    schedule = Schedule("looped", 1, 128, num_warps=1)
    emitted = tools.check(kernel, schedule, {"x": values(dtype, 300)}, SYMBOLS, ulp=8.0)
    assert "[RBLOCK // 4, 4]" in emitted.source


def test_rows_of_one_number(tools: SimpleNamespace) -> None:
    text = TEXT.format(dtype="f32", index="i0*40 + r0").replace("40", "s0")
    kernel = parse_kernel(text.replace("load x[i0*s0 + r0]", "const 0.5"))
    schedule = Schedule("looped", 1, 128, num_warps=1)
    tools.check(kernel, schedule, {"x": np.zeros((6, 6), np.float32)}, SYMBOLS, ulp=8.0)


def test_columns(tools: SimpleNamespace) -> None:
    text = TEXT.replace("s0, 40", "40, 6").replace("  where s0 in [0, 64] hint 6\n", "")
    kernel = parse_kernel(text.replace("s0", "6").format(dtype="f32", index="r0*6 + i0"))
    tools.check(kernel, Schedule("looped", 4, 16), {"x": values("f32").T.copy()}, ulp=8.0)


@pytest.mark.parametrize("rows", [1, 4])
def test_softmax(rows: int, tools: SimpleNamespace) -> None:
    kernel: Kernel = tools.kernels["softmax"]
    emitted = tools.check(kernel, Schedule("looped", rows, 128))
    assert emitted.source.count("for start in") == 2


PLACES = """\
kernel places(
    x: {dtype}[6, 40] cuda:0,
    out a: i64[6] cuda:0,
    out b: i64[6] cuda:0,
):
  parallel i0 < 6:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : {dtype}
      v1 = reduce argmax(v0) : i64
      v2 = reduce argmin(v0) : i64
    once:
      store a[i0] = v1
      store b[i0] = v2
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8"])
@pytest.mark.parametrize("kind", ["persistent", "looped"])
@pytest.mark.parametrize("rows", [1, 4])
def test_first_places(dtype: str, kind: Kind, rows: int, tools: SimpleNamespace) -> None:
    """Of equals, of NaN, of rows of infinities."""
    x = values("f32").round()
    if dtype in ("i64", "u8"):
        x = np.nan_to_num(abs(x), nan=5, posinf=9).astype("int64" if dtype == "i64" else "uint8")
    schedule = Schedule(kind, rows, 64 if kind == "persistent" else 16)
    tools.check(parse_kernel(PLACES.format(dtype=dtype)), schedule, {"x": x})
