"""Places that are known to lie inside of their tensor, and integers for which 32 bits are enough:
what the reference gives, of all sorts of numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loop_ir import DType, parse_kernel
from triton_emit import Schedule, emit

POINTS, LENGTH = 256, 40
LAST = "n = index s0 - 1 : i64"
CLAMPED = (
    LAST, "v = cast(a) : i64", "z = const 0 : i64", "l = maximum(v, z) : i64",
    "p = minimum(l, n) : i64",
)  # fmt: skip
WRAPS = "tl.where", "inside"


def text(lines: tuple[str, ...], kind: str = "f32", place: str = "p") -> str:
    body = "".join(f"\n      {line}" for line in lines)
    return f"""
kernel k(
    x: {kind}[{POINTS}] cuda:0,
    t: f32[s0] cuda:0,
    out y: f32[{POINTS}] cuda:0,
    out o: i64[{POINTS}] cuda:0,
):
  where s0 in [0, *] hint {LENGTH}
  parallel i0 < {POINTS}:
    once:
      a = load x[i0] : {kind}{body}
      t0 = indirect {place} < s0
      w = load t[t0] : f32
      store y[i0] = w
"""


def numbers(kind: str) -> Any:
    rng = np.random.default_rng(0)
    if kind not in ("f16", "bf16", "f32", "f64"):
        dtype = np.dtype(kind.replace("i", "int").replace("u", "uint"))
        x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, POINTS, dtype, endpoint=True)
        x[: POINTS // 2] = np.arange(POINTS // 2) % LENGTH
        return x
    x = rng.uniform(-2 * LENGTH, 2 * LENGTH, POINTS)
    x[:10] = np.nan, 3e9, -3e9, 2.0**31, -(2.0**31), 2.0**31 - 128, 1e10, -1e10, -0.5, 0.999
    x[10:16] = LENGTH - 1, LENGTH, LENGTH - 0.001, -0.0, 2.0**40, -(2.0**40)
    if kind == "f16":
        return np.clip(x, -65504, 65504).astype(np.float16)
    return x.astype(np.float64 if kind == "f64" else np.float32)


def run(
    source: str, tools: SimpleNamespace, kind: str = "f32", bits: Any = 32, nan: bool = False
) -> str:
    """nan: which is no integer, and eager's depends on the machine once something is added."""
    given = {"x": numbers(kind), "t": np.arange(LENGTH, dtype=np.float32) + 1}
    if not nan:
        given["x"][np.isnan(given["x"])] = 0
    if kind in ("f16", "bf16"):
        given["x"] = tools.to_numpy(tools.to_torch(given["x"], DType(kind)), DType(kind))
    schedule = Schedule("flat", 128, num_warps=1, index_bits=bits)
    with np.errstate(all="ignore"):
        made = tools.check(parse_kernel(source), schedule, given, {"s0": LENGTH})
    text: str = made.source[made.source.index("def k(") :]
    return text


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64", "i64", "i32", "u8"])
def test_clamped_places(kind: str, bits: int, tools: SimpleNamespace) -> None:
    lines = tuple(n for n in CLAMPED if n[0] != "v" or kind != "i64")
    if kind == "i64":
        lines = tuple(n.replace("(v,", "(a,") for n in lines)
    found = run(text(lines, kind), tools, kind, bits, True)
    assert not any(name in found for name in WRAPS) and "s0 > 0" in found
    assert bits == 64 or kind == "i64" or "int64" not in found


@pytest.mark.parametrize("by", [1, -1, 255, 256])
def test_places_beside(by: int, tools: SimpleNamespace) -> None:
    """What is moved a little stays where it is far out of reach."""
    lines = (
        CLAMPED[0], CLAMPED[1], f"c = const {by} : i64", "b = add(c, v) : i64", CLAMPED[2],
        "l = maximum(b, z) : i64", "p = minimum(n, l) : i64",
    )  # fmt: skip
    found = run(text(lines), tools)
    assert not any(name in found for name in WRAPS)
    assert ("int64" in found) == (by == 256)


@pytest.mark.parametrize(
    "lines",
    [
        (*CLAMPED[:-1], "m = index s0 : i64", "p = minimum(l, m) : i64"),  # one behind the last
        (*CLAMPED[:-1], "m = const -2 : i64", "q = minimum(v, n) : i64",
         "p = maximum(q, m) : i64"),  # from the end
        (LAST, "v = cast(a) : i64", "z = const 0 : i64", "c = ge(v, z) : bool",
         "q = minimum(v, n) : i64", "p = where(c, q, z) : i64"),  # of another value
    ],
)  # fmt: skip
def test_places_that_are_not_known(lines: tuple[str, ...], tools: SimpleNamespace) -> None:
    source = emit(parse_kernel(text(lines)), Schedule("flat", 128, num_warps=1)).source
    assert "inside" in source


def test_what_is_stored_is_not_cut_off(tools: SimpleNamespace) -> None:
    found = run(text((*CLAMPED, "store o[i0] = v")), tools)
    assert "saturated" not in found and "inside" not in found
    found = run(text((*CLAMPED, "store o[i0] = p")), tools)
    assert "saturated" in found


CHOSEN = (
    "z = const 0.0 : f32", "last = const {last} : f32", "b = ge(a, z) : bool",
    "c = le(a, last) : bool", "d = and(b, c) : bool", "e = where(d, a, z) : f32",
    "p = cast(e) : i32",
)  # fmt: skip


@pytest.mark.parametrize("last", [39.0, 39.5, 40.0])
def test_places_where_they_are_inside(last: float, tools: SimpleNamespace) -> None:
    lines = tuple(n.format(last=last) for n in CHOSEN)
    source = text(lines).replace("< s0", f"< {LENGTH}").replace("f32[s0]", f"f32[{LENGTH}]")
    source = source.replace(f"  where s0 in [0, *] hint {LENGTH}\n", "")
    emitted = emit(parse_kernel(source), Schedule("flat", 128, num_warps=1)).source
    assert ("inside" in emitted) == (last > 39.0)
    given = {"x": numbers("f32"), "t": np.arange(LENGTH, dtype=np.float32) + 1}
    given["x"][given["x"] >= LENGTH] = -1  # which are outside
    with np.errstate(all="ignore"):
        tools.check(parse_kernel(source), Schedule("flat", 128, num_warps=1), given, {})


def test_nothing_is_read_of_an_empty_tensor(tools: SimpleNamespace) -> None:
    source = emit(parse_kernel(text(CLAMPED)), Schedule("flat", 128, num_warps=1))
    tensors = {
        "x": tools.to_torch(numbers("f32"), DType.f32), "t": tools.to_torch([], DType.f32),
        "y": tools.to_torch(np.zeros(POINTS), DType.f32),
        "o": tools.to_torch(np.zeros(POINTS), DType.i64),
    }  # fmt: skip
    tools.launch(source, tensors, {"s0": 0})
    assert tensors["y"].isnan().all()


@pytest.mark.parametrize("op", ["mod", "and"])
def test_remainders_are_places(op: str, tools: SimpleNamespace) -> None:
    size = LENGTH if op == "mod" else 32
    lines = (f"m = const {size - (op == 'and')} : i64", f"p = {op}(a, m) : i64")
    source = text(lines, "i64").replace("< s0", f"< {size}")
    found = run(source, tools, "i64")
    assert "inside" not in found


def test_counts_are_in_32_bits(tools: SimpleNamespace) -> None:
    """Halves of an interval, as a search has them; a product that may be larger is in 64."""
    lines = (
        "f = cast(a) : i64", "k = const 40 : i64", "q = add(f, k) : i64", "one = const 1 : i64",
        "m = shr(q, one) : i64", "r = mul(m, m) : i64", "s = mul(r, r) : i64",
        "u = mul(s, q) : i64", "store o[i0] = u", "l = index s0 - 1 : i64",
        "p = minimum(m, l) : i64",
    )  # fmt: skip
    found = run(text(lines, "u8"), tools, "u8")
    assert found.count("int64") == 2 and "inside" not in found
