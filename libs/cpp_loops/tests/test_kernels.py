"""Operations, types, folds and ways through memory, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cpp_loops
from loop_ir import OPS, REDUCTIONS, SCANS, DType, Kernel, parse_kernel
from loop_ir.ir import ITERATED
from loop_ir.ir.scalars import to_dtype

FLOATS = ("f32", "bf16", "f16", "f64")
INTS = ("i64", "u8", "u64", "i32", "i16")
_BOTH = "add sub mul neg abs maximum minimum floordiv truncdiv mod fmod"
_FLOAT_OPS = """
div near_div exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh
cosh tanh erf erfc erfinv lgamma sigmoid floor ceil trunc round pow fma acosh asinh atanh hypot
"""
_PREDICATES = "eq ne lt le gt ge isnan isinf signbit"
_BITS = "and or xor not shl shr pow fma gcd"
BOTH, FLOAT_OPS = _BOTH.split(), _FLOAT_OPS.split()
PREDICATES, BITS = _PREDICATES.split(), _BITS.split()
OTHERS = ("cast", "narrow", "bitcast", "where", "rarely", "philox")
# What is computed by vectors: elements that are left over have the same bits.
VECTORS = [op for op in FLOAT_OPS if OPS[op] == 1 and op not in ("erfinv", "lgamma")]
COUNT, TWICE = 67, 3
KINDS = [d for d in DType if not d.is_complex]
SOME = ("bool", "i64", "f32", "f8e4m3")


def kernel(text: str) -> Kernel:
    return parse_kernel(f"kernel k{text}".strip())


def operations(dtype: str, ops: list[str]) -> Kernel:
    """Each operation of the same operands, into a buffer of its own."""
    out = {op: "bool" if op in PREDICATES else dtype for op in ops}
    params = "".join(f"    x{n}: {dtype}[{COUNT}] cpu,\n" for n in range(3))
    params += "".join(f"    out y_{op}: {out[op]}[{COUNT}] cpu,\n" for op in ops)
    lines = [f"      a{n} = load x{n}[i0] : {dtype}" for n in range(3)]
    for op in ops:
        args = ", ".join(f"a{n}" for n in range(OPS[op]))
        lines += [f"      v_{op} = {op}({args}) : {out[op]}", f"      store y_{op}[i0] = v_{op}"]
    body = "\n".join(lines)
    return kernel(f"(\n{params}):\n  parallel i0 < {COUNT}:\n    once:\n{body}")


def special(dtype: DType, seed: int) -> Any:
    """Ordinary values, and (floats) zeros of both signs, infinities, NaN, halves."""
    rng = np.random.default_rng(seed)
    if not dtype.is_float:
        low = 0 if dtype.value[0] == "u" else -9
        return to_dtype(rng.integers(low, 9, COUNT), dtype)
    values = rng.standard_normal(COUNT) * np.exp(rng.uniform(-3, 3, COUNT))
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 80.0]
    values[: len(odd)] = rng.permutation(odd)
    values[20:34] = odd
    values[-TWICE:] = values[40 : 40 + TWICE]
    return to_dtype(values, dtype)


@pytest.mark.parametrize(
    "dtypes",
    [
        pytest.param((*FLOATS[:2], *INTS[:2]), id="some"),
        pytest.param((*FLOATS[2:], *INTS[2:]), id="others", marks=pytest.mark.slow),
    ],
)
def test_operations(dtypes: tuple[str, ...], case: Any, check: Callable[..., None]) -> None:
    cases = []
    for dtype in dtypes:
        ops = [*BOTH, *(FLOAT_OPS + PREDICATES if dtype in FLOATS else PREDICATES[:6] + BITS)]
        tensors = {f"x{n}": special(DType(dtype), n) for n in range(3)}
        if dtype in INTS:  # the reference takes a negative power of an integer for none
            tensors["x1"] = np.abs(tensors["x1"].astype(np.int64)).astype(tensors["x1"].dtype)
        cases.append(case(operations(dtype, ops), {}, tensors))
    if "f32" in dtypes:
        x = special(DType.f32, 7)
        cases += [case(operations("f32", [op]), {}, {"x0": x}, TWICE) for op in VECTORS]
    check(cases, ulp=4)


def test_functions_of_as_many_steps_as_data_says(case: Any, check: Callable[..., None]) -> None:
    rng = np.random.default_rng(0)
    s, q = rng.uniform(1.2, 6, COUNT), rng.uniform(0.5, 9, COUNT)
    n, least = rng.integers(0, 14, COUNT) * 1.0, np.full(COUNT, 1e-16)
    given = {
        "zeta": (s, q), "gamma_series": (s, q), "gamma_fraction": (s, 8 + q, least),
        "chebyshev": (s, q, n), "hermite": (s + 6, 0 * s + 2, n), "laguerre": (-q, n),
        "legendre": (s, n),
    }  # fmt: skip
    cases = [
        case(
            operations(dtype.value, [op]), {},
            {f"x{k}": to_dtype(v, dtype) for k, v in enumerate((*values, s, s)[:3])},
        )
        for dtype in (DType.f32, DType.f64) for op, values in given.items()
    ]  # fmt: skip
    check(cases, ulp=64)


def test_every_operation_is_tested() -> None:
    assert {*BOTH, *FLOAT_OPS, *PREDICATES, *BITS, *OTHERS, *ITERATED} == set(OPS)


def conversions(sources: list[DType]) -> Iterator[Kernel]:
    for src in sources:
        made = [d for d in KINDS if d is not src]
        params = f"    x: {src.value}[{COUNT}] cpu,\n"
        params += "".join(f"    out y_{d.value}: {d.value}[{COUNT}] cpu,\n" for d in made)
        lines = [f"      a = load x[i0] : {src.value}"]
        for d in made:
            lines += [f"      v_{d.value} = cast(a) : {d.value}",
                      f"      store y_{d.value}[i0] = v_{d.value}"]  # fmt: skip
        body = "\n".join(lines)
        yield kernel(f"(\n{params}):\n  parallel i0 < {COUNT}:\n    once:\n{body}")
    for src, dtype in (("f32", "i32"), ("bf16", "i16"), ("f8e4m3", "u8"), ("i64", "f64")):
        yield kernel(
            f"(\n    x: {src}[{COUNT}] cpu,\n    out y: {dtype}[{COUNT}] cpu,\n):\n"
            f"  parallel i0 < {COUNT}:\n    once:\n      a = load x[i0] : {src}\n"
            f"      b = bitcast(a) : {dtype}\n      store y[i0] = b"
        )


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param([d for d in KINDS if d.value in SOME], id="some"),
        pytest.param([d for d in KINDS if d.value not in SOME], id="all", marks=pytest.mark.slow),
    ],
)
def test_conversions(sources: list[DType], case: Any, check: Callable[..., None]) -> None:
    check([case(k) for k in conversions(sources)])


# Rows lie along r0, along i0, and their length is not known. Threads share the first two.
LAYOUTS = {
    "rows": ("i0*5000 + r0", "5000", "[45, 5000]", "i0 < 45", ""),
    "columns": ("r0*700 + i0", "370", "[370, 700]", "i0 < 700", ""),
    "dynamic": ("i0*s0 + r0", "s0", "[3, s0]", "i0 < 3", "  where s0 in [1, 4096] hint 64\n"),
}


def folded(op: str, dtype: str, layout: str, scan: bool, tail: str = "") -> Kernel:
    at, extent, size, axis, sizes = LAYOUTS[layout]
    place = op in ("argmax", "argmin")
    kind = "i64" if place else "bool" if op in ("any", "all") else dtype
    rows = axis.split()[-1]
    many = not scan and REDUCTIONS[op][1] == 2
    shape = size if scan else f"[{rows}]"
    outs = "".join(f"    out y{n}: {kind}{shape} cpu,\n" for n in range(1 + many))
    body = f"      v0 = load x[{at}] : {dtype}\n"
    value = "v0"
    if op in ("any", "all"):
        body += f"      zero = const {'0.0' if dtype[0] != 'i' else 0} : {dtype}\n"
        body += "      v1 = gt(v0, zero) : bool\n"
        value = "v1"
    names = ", ".join(f"w{n}" for n in range(1 + many))
    body += f"      {names} = {'scan' if scan else 'reduce'} {op}({value}){tail} : {kind}\n"
    if not scan:
        body += "    once:\n"
    stores = [f"      store y{n}[{at if scan else 'i0'}] = w{n}\n" for n in range(1 + many)]
    return kernel(
        f"(\n    x: {dtype}{size} cpu,\n{outs}):\n{sizes}  parallel {axis}:\n"
        f"    over r0 < {extent}:\n{body}{''.join(stores)}"
    )


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_reductions(every: bool, case: Any, check: Callable[..., None]) -> None:
    cases = []
    for turn, op in enumerate(REDUCTIONS):
        for number, layout in enumerate(LAYOUTS):
            if every or turn % 3 == number:
                dtype = "f32" if op in ("welford", "softmax") else ("f32", "bf16", "i32")[number]
                sizes = {"s0": 41} if layout == "dynamic" else {}
                cases.append(case(folded(op, dtype, layout, False), sizes))
    check(cases, ulp=16)


def test_scans(case: Any, check: Callable[..., None]) -> None:
    cases = []
    for op in sorted(SCANS):
        for layout in ("columns", "dynamic"):
            sizes = {"s0": 41} if layout == "dynamic" else {}
            cases.append(case(folded(op, "f32", layout, True), sizes))
    cases.append(case(folded("sum", "f32", "dynamic", True, " reverse"), {"s0": 41}))
    cases.append(case(kernel(BACKWARDS)))  # with a sum beside the scan
    check(cases, ulp=16)


def test_extremes_of_rows_with_nan(case: Any, check: Callable[..., None]) -> None:
    x = np.random.default_rng(0).standard_normal((3, 41)).astype(np.float32)
    x[1, 7] = x[1, 9] = np.nan
    x[2, 3] = x[2, 30] = 9.0
    ops = ("max", "min", "argmax", "argmin")
    check([case(folded(op, "f32", "dynamic", False), {"s0": 41}, {"x": x}) for op in ops])


BACKWARDS = """(
    x: f32[3, 300] cpu,
    out y0: f32[3, 300] cpu,
    out y1: f32[3] cpu,
):
  parallel i0 < 3:
    over r0 < 300:
      v0 = load x[i0*300 + r0] : f32
      w0 = scan sum(v0) reverse : f32
      store y0[i0*300 + r0] = w0
      w1 = reduce sum(w0) : f32
    once:
      store y1[i0] = w1
"""


WAYS = """
(
    x: f32[270, 190] cpu,
    out y: f32[190, 270] cpu,
):
  parallel i0 < 190, i1 < 270:
    once:
      v0 = load x[i1*190 + i0] : f32
      v1 = tanh(v0) : f32
      store y[i0*270 + i1] = v1

(
    x: f32[5, 9] cpu,
    at: i64[5] cpu,
    out y: f32[5, 9] cpu,
    out z: f32[7] cpu,
):
  parallel i0 < 5:
    once:
      a0 = load at[i0] : i64
      t0 = indirect a0 < 5
    over r0 < 9:
      v0 = load x[t0*9 + r0] : f32
      store y[i0*9 + r0] = v0
      v1 = reduce sum(v0) : f32
    once:
      v2 = const 3 : i64
      m = lt(a0, v2) : bool
      store z[t0] += v1 if m

(
    x: f32[6, 50] cpu,
    out y: f32[6] cpu,
    out z: f32[50] cpu,
):
  parallel i0 < 6:
    over r0 < 50:
      v0 = load x[i0*50 + r0] : f32
      v1 = mul(v0, v0) : f32
      v2 = reduce sum(v0) : f32
      store z[r0] sum= v1
    once:
      store y[i0] = v2

(
    out y: f32[100] cpu,
    seed: i64[1] cpu,
):
  parallel i0 < 100:
    once:
      a = load seed[0] : i64
      b = index i0 : i64
      c = philox(a, b) : u32
      d = cast(c) : f32
      lim = const 90 : i64
      m = lt(b, lim) : bool
      store y[i0] = d if m

(
    out x: f32[3, 64] cpu,
    w: f32[64] cpu,
):
  parallel i0 < 3:
    over r0 < 64:
      v0 = load x[i0*64 + r0] : f32
      v1 = exp(v0) : f32
      v2 = reduce sum(v1) : f32
    over r0 < 64:
      v3 = div(v1, v2) : f32
      v4 = load w[r0] : f32
      v5 = mul(v3, v4) : f32
      store x[i0*64 + r0] = v5

(
    x: bool[4, 3] cpu,
    out y: bool[4] cpu,
    out n: i64[1] cpu,
):
  parallel i0 < 4:
    over r0 < 3:
      v0 = load x[i0*3 + r0] : bool
      v1 = reduce max(v0) : bool
    once:
      store y[i0] = v1
      v2 = cast(v1) : i64
      store n[0] += v2
"""


def test_ways_through_memory(case: Any, check: Callable[..., None]) -> None:
    """A transpose, gathered and scattered rows, sums over rows walked over, random words, a row
    that is changed in place, and bools; places outside of a tensor are NaN, and written nowhere."""
    kernels = [kernel(text) for text in WAYS.strip().split("\n\n")]
    at = np.array([4, -5, 1, 0, 1], np.int64)
    cases = [case(k, {}, {"at": at} if n == 1 else {}) for n, k in enumerate(kernels)]
    check(cases, ulp=16)


def test_places_outside(libraries: Any) -> None:
    text = WAYS.strip().split("\n\n")[1]
    source = cpp_loops.emit(kernel(text)).source
    assert "t0 >= 0 && t0 < 5" in source
    assert "in_t0 ? in0[t0*9 + r0] : nan" in source


def test_what_may_be_beyond_64_bits_is_refused() -> None:
    cube = kernel(
        "(\n    out y: i64[1] cpu,\n):\n  where s0 in [0, 9223372036854775806] hint 4\n"
        "  once:\n      v0 = index s0**3 : i64\n      store y[0] = v0".replace(
            "  once:\n", "  parallel i0 < 1:\n    once:\n"
        )
    )
    with pytest.raises(cpp_loops.UnsupportedKernel, match="beyond 64 bits"):
        cpp_loops.emit(cube)
