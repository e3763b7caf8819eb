"""Accuracy of the device functions, in ulp of the result, and that each compiles for a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy

from loop_ir import (
    OPS,
    Axis,
    Buffer,
    Compute,
    Const,
    Device,
    DType,
    Kernel,
    Load,
    Phase,
    Store,
    TensorType,
    contiguous_strides,
    parse_kernel,
)  # fmt: skip
from symexpr import symbol
from triton_emit import Schedule, default_schedule, emit
from triton_rt import Target
from triton_rt import compile as compile_kernel

POINTS = 4096
I0 = symbol("i0")

# op: (range of arguments, numpy function on float64 or wider, ulp allowed)
UNARY: dict[str, tuple[float, float, Any, float]] = {
    "exp": (-104.0, 89.0, np.exp, 2.0),
    "exp2": (-150.0, 128.5, np.exp2, 2.0),
    "expm1": (-20.0, 88.0, np.expm1, 3.0),
    "log1p": (-0.999, 50.0, np.log1p, 2.0),
    "tanh": (-12.0, 12.0, np.tanh, 3.0),
    "sigmoid": (-87.0, 40.0, lambda x: 1 / (1 + np.exp(-x)), 4.0),
    "sinh": (-80.0, 80.0, np.sinh, 2.0),
    "cosh": (-80.0, 80.0, np.cosh, 2.0),
    "tan": (-30.0, 30.0, np.tan, 2.0),
    "asin": (-1.0, 1.0, np.arcsin, 2.0),
    "acos": (-1.0, 1.0, np.arccos, 2.0),
    "atan": (-40.0, 40.0, np.arctan, 2.0),
    "log10": (1e-6, 1e6, np.log10, 3.0),
    "round": (-1e7, 1e7, np.round, 0.0),
    "trunc": (-1e7, 1e7, np.trunc, 0.0),
}


def tensor(dtype: DType) -> TensorType:
    size = (sympy.Integer(POINTS),)
    return TensorType(dtype, size, contiguous_strides(size), Device("cuda", 0))


def kernel_of(ops: list[str], dtype: DType) -> Kernel:
    """`y_op = op(x, z, ...)` for each op."""
    names = ("a", "b", "c")
    body: list[Any] = [Load(n, f"x_{n}", I0, dtype) for n in names]
    for op in ops:
        body += [Compute(f"v_{op}", op, names[: OPS[op]], dtype), Store(f"y_{op}", I0, f"v_{op}")]
    buffers = [Buffer(f"x_{n}", tensor(dtype)) for n in names]
    buffers += [Buffer(f"y_{op}", tensor(dtype), True) for op in ops]
    axes = (Axis(I0, sympy.Integer(POINTS)),)
    return Kernel("ops", tuple(buffers), axes, (Phase((), tuple(body)),))


def run(op: str, dtype: DType, given: list[Any], tools: SimpleNamespace) -> Any:
    kernel = kernel_of([op], dtype)
    out = {f"x_{n}": tools.to_torch(g, dtype) for n, g in zip("abc", given, strict=False)}
    for name in ("x_b", "x_c", f"y_{op}"):
        out.setdefault(name, tools.to_torch(np.zeros(POINTS), dtype))
    tools.launch(emit(kernel, Schedule("flat", 1024)), out, {})
    return out[f"y_{op}"].double().numpy()


def ulps(got: Any, want: Any, dtype: DType) -> float:
    eps, least = (2.0**-23, 2.0**-149) if dtype is DType.f32 else (2.0**-52, 2.0**-1074)
    with np.errstate(all="ignore"):
        spacing = np.maximum(2.0 ** np.floor(np.log2(np.abs(want))) * eps, least)
        off = np.abs(got - want) / spacing
    return float(np.max(np.where(got == want, 0.0, off)))


@pytest.mark.parametrize("op", UNARY)
def test_f32(op: str, tools: SimpleNamespace) -> None:
    low, high, exact, allowed = UNARY[op]
    rng = np.random.default_rng(1)
    x = np.concatenate([np.linspace(low, high, POINTS // 2),
                        np.clip(rng.standard_normal(POINTS // 2) * 0.3, low, high)])  # fmt: skip
    x = x.astype(np.float32)
    want = exact(x.astype(np.longdouble)).astype(np.float64)
    with np.errstate(over="ignore"):
        want = np.where(np.abs(want) > np.finfo(np.float32).max, np.float32(want), want)
    assert ulps(run(op, DType.f32, [x], tools), want, DType.f32) <= allowed + 0.5


@pytest.mark.parametrize("op", ["exp", "expm1", "log1p", "tanh"])
def test_special_values(op: str, tools: SimpleNamespace) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1e-30, 3e38, -3e38, 2.0**126,
                  1.5 * 2.0**127, -1.0, -2.0, -0.75, 88.5, -150.0])  # fmt: skip
    x = np.resize(x, POINTS).astype(np.float32)
    with np.errstate(all="ignore"):
        want = getattr(np, op)(x.astype(np.float64)).astype(np.float32)
    got = run(op, DType.f32, [x], tools)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-45)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


def test_quotients_by_one_number_a_row(tools: SimpleNamespace) -> None:
    """Signs of zeros, infinities and NaN as numpy's; all others rounded as numpy's in the range
    where most numbers are, and 1 ulp off at most elsewhere."""
    rng = np.random.default_rng(3)
    odd = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-40,
        1.2e-38,
        3.4e38,
        -3.4e38,
        3.0,
    ]
    a, b = (rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
            for n in (POINTS, POINTS // 32))  # fmt: skip
    a[: len(odd)], b[: len(odd)] = odd, odd
    a[: 13 * 32] = np.tile(np.resize(np.array(odd, np.float32), 32), 13)
    a[2048:], b[64:] = rng.standard_normal(2048), rng.standard_normal(64)
    kernel = parse_kernel("""\
kernel k(
    b: f32[128] cuda:0,
    a: f32[128, 32] cuda:0,
    out y: f32[128, 32] cuda:0,
):
  parallel i0 < 128:
    once:
      v0 = load b[i0] : f32
    over r0 < 32:
      v1 = load a[i0*32 + r0] : f32
      v2 = div(v1, v0) : f32
      store y[i0*32 + r0] = v2
""")
    out = {"a": tools.to_torch(a.reshape(128, 32), DType.f32), "b": tools.to_torch(b, DType.f32)}
    out["y"] = tools.to_torch(np.zeros((128, 32)), DType.f32)
    emitted = emit(kernel, default_schedule(kernel, {}))
    assert "quotient_f32(" in emitted.source
    tools.launch(emitted, out, {})
    got = out["y"].numpy()
    with np.errstate(all="ignore"):
        want = a.reshape(128, 32) / b[:, None]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
    np.testing.assert_array_equal(got[64:], want[64:])
    steps = got.view(np.int32).astype(np.int64) - want.view(np.int32)
    assert np.abs(steps[number]).max() <= 1


def test_quotients_by_whole_numbers(tools: SimpleNamespace) -> None:
    """As numpy's, with the signs of zeros, infinities and NaN."""
    rng = np.random.default_rng(4)
    odd = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-30, 7.0]
    a = np.resize(np.array(odd, np.float32), POINTS)
    b = np.repeat(np.arange(-8, POINTS // 10 - 7, dtype=np.int32), 10)[:POINTS]
    a[2048:], b[4000:] = rng.standard_normal(2048), rng.integers(1, 2**31, 96)
    kernel = parse_kernel(f"""\
kernel k(
    a: f32[{POINTS}] cuda:0,
    b: i32[{POINTS}] cuda:0,
    out y: f32[{POINTS}] cuda:0,
):
  parallel i0 < {POINTS}:
    once:
      v0 = load a[i0] : f32
      v1 = load b[i0] : i32
      v2 = cast(v1) : f32
      v3 = div(v0, v2) : f32
      store y[i0] = v3
""")
    given = {"a": tools.to_torch(a, DType.f32), "b": tools.to_torch(b, DType.i32)}
    given["y"] = tools.to_torch(np.zeros(POINTS), DType.f32)
    emitted = emit(kernel, default_schedule(kernel, {}))
    assert "quotient_of_count_f32(" in emitted.source
    tools.launch(emitted, given, {})
    got = given["y"].numpy()
    with np.errstate(all="ignore"):
        want = a / b.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(got[number], want[number])
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("floor", np.floor),
        ("ceil", np.ceil),
        ("sin", np.sin),
        ("tan", np.tan),
        ("asin", np.arcsin),
        ("atan", np.arctan),
        ("sinh", np.sinh),
        ("asinh", np.arcsinh),
        ("atanh", np.arctanh),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("erf", np.vectorize(math.erf)),
        ("hypot", np.abs),  # of a number and zero
    ],
)
def test_subnormal_numbers_where_the_gpu_functions_flush_them(
    op: str, exact: Any, tools: SimpleNamespace
) -> None:
    """`.ftz` is what Triton's functions of these names compile to; here they are given zeros."""
    tiny = np.finfo(np.float32).tiny
    x = np.array([1e-45, 3e-42, 1e-39, tiny, 2 * tiny, 1e-6, 0.3, 5.75, 0.0, np.inf, np.nan])
    x = np.resize(np.concatenate([x, -x]), POINTS).astype(np.float32)
    emitted = emit(kernel_of([op], DType.f32), Schedule("flat", 1024))
    text = emitted.source
    library = "tl.extra.cuda.libdevice" if "libdevice." in text else "tl"
    assert text.count(f"{library}.{op}(") == 1
    given = "xy"[: OPS[op]]
    zeros = ", ".join(f"tl.where(tl.abs({x}) < {float(tiny)!r}, 0.0 * {x}, {x})" for x in given)
    flushed = f"""
@triton.jit
def flushed({", ".join(given)}):
    return {library}.{op}({zeros})


"""
    text = text.replace(f"{library}.{op}(", "flushed(")
    text = text.replace("@triton.jit", flushed.lstrip() + "@triton.jit", 1)
    out = {n: tools.to_torch(np.zeros(POINTS), DType.f32) for n in ("x_b", "x_c", f"y_{op}")}
    out["x_a"] = tools.to_torch(x, DType.f32)
    tools.launch(replace(emitted, source=text), out, {})
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
    got = out[f"y_{op}"].double().numpy()
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-45)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("op", ["tan", "asin", "acos", "atan", "atan2", "sinh", "cosh"])
def test_functions_of_angles_stay_in_their_type(op: str) -> None:
    """Arithmetic in f64 is half as fast, and its quotients and roots are long: a margin of angles
    took an H200 five times as long so."""
    assert "64" not in emit(kernel_of([op], DType.f32), Schedule("flat", 1024)).source


def test_erf_for_narrow_results(tools: SimpleNamespace) -> None:
    """Where only bf16 is stored, erf takes the fast function; it saturates to 1 exactly."""
    wide, x = kernel_of(["erf"], DType.f32), np.linspace(-5, 5, POINTS).astype(np.float32)
    assert "erf_fine_f32(x0)" in emit(wide, Schedule("flat", 1024)).source
    load, compute = wide.phases[0].body[0], wide.phases[0].body[-2]
    body = (load, compute, Compute("low", "cast", ("v_erf",), DType.bf16),
            Store("y_erf", I0, "low"))  # fmt: skip
    buffers = (wide.buffers[0], Buffer("y_erf", tensor(DType.bf16), True))
    narrow = Kernel("ops", buffers, wide.axes, (Phase((), body),))
    emitted = emit(narrow, Schedule("flat", 1024))
    assert "erf_f32(x0)" in emitted.source
    text = emitted.source.replace(".to(tl.bfloat16)", "")
    x[:4] = [np.inf, -np.inf, np.nan, 1e30]
    out = {"x_a": tools.to_torch(x, DType.f32), "y_erf": tools.to_torch(x * 0, DType.f32)}
    params = tuple((n, "*f32", m) for n, _, m in emitted.params)
    tools.launch(replace(emitted, source=text, params=params), out, {})
    want = np.array([math.erf(v) for v in x.astype(np.float64)])
    got = out["y_erf"].double().numpy()
    assert np.isnan(got[2]) and got[3] == 1.0
    ok = ~np.isnan(want)
    assert ulps(got[ok], want[ok], DType.f32) <= 8.0


@pytest.mark.parametrize("op", [o for o in UNARY if o not in ("exp", "exp2")])
def test_f64(op: str, tools: SimpleNamespace) -> None:
    low, high, exact, allowed = UNARY[op]
    x = np.linspace(low, high, POINTS)
    want = exact(x.astype(np.longdouble)).astype(np.float64)
    assert ulps(run(op, DType.f64, [x], tools), want, DType.f64) <= max(2 * allowed, 1.0)


def test_two_arguments(tools: SimpleNamespace) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(POINTS) * np.exp(rng.uniform(-20, 20, POINTS))).astype(np.float32)
    y = (rng.standard_normal(POINTS) * 3).astype(np.float32)
    wide, other = x.astype(np.longdouble), y.astype(np.longdouble)
    for op, exact in (("fmod", np.fmod), ("mod", np.mod), ("atan2", np.arctan2)):
        want = exact(wide, other).astype(np.float64)
        got = run(op, DType.f32, [x, y], tools)
        assert ulps(got, want, DType.f32) <= (0.5 if op != "atan2" else 2.0), op
    base = np.abs(x) ** np.float32(0.25)
    want = np.power(base.astype(np.longdouble), other).astype(np.float64)
    assert ulps(run("pow", DType.f32, [base, y], tools), want, DType.f32) <= 1.1


@pytest.mark.parametrize("divisor", [6.0, -0.75, 1.0, 3e-10, 1e-30, 1e-40, 0.0, np.inf])
def test_remainders_by_a_number(divisor: float, tools: SimpleNamespace) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(POINTS) * np.exp(rng.uniform(-20, 40, POINTS))
    far = [3.4e38, -3e38]  # whose quotients overflow
    x = np.concatenate([np.float32(BASES + far), x.astype(np.float32)])[:POINTS]
    body = (Load("a", "x_a", I0, DType.f32), Const("d", divisor, DType.f32),
            Compute("p", "fmod", ("a", "d"), DType.f32), Store("y", I0, "p"))  # fmt: skip
    buffers = (Buffer("x_a", tensor(DType.f32)), Buffer("y", tensor(DType.f32), True))
    axes = (Axis(I0, sympy.Integer(POINTS)),)
    emitted = emit(Kernel("k", buffers, axes, (Phase((), body),)), Schedule("flat", 1024))
    out = {"x_a": tools.to_torch(x, DType.f32), "y": tools.to_torch(x, DType.f32)}
    tools.launch(emitted, out, {})
    with np.errstate(invalid="ignore"):
        want = np.fmod(x, np.float32(divisor))
    got, number = out["y"].numpy(), ~np.isnan(want)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


BASES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, -2.5, 0.5, 1e-45, -1e-40, 1.4, -0.7]
EXPONENTS = [0.0, 1.0, 2.0, 7.0, -4.0, -3.0, 2.5, -0.5, 1e-40, 3e38, np.inf, -np.inf, np.nan]


def powers(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.power(x.astype(np.float64), np.float64(y)).astype(np.float32)


def test_special_powers(tools: SimpleNamespace) -> None:
    x, y = np.meshgrid(np.float32(BASES), np.float32(EXPONENTS))
    x, y = (np.resize(a, POINTS) for a in (x, y))
    got, want = run("pow", DType.f32, [x, y], tools), powers(x, y)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-45)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("exponent", [4.0, 7.0, -4.0, -3.0, 2.5, -0.5, 170.0, 0.0, np.inf, np.nan])
def test_powers_of_a_number(exponent: float, tools: SimpleNamespace) -> None:
    x = np.concatenate([np.float32(BASES), np.linspace(0.6, 1.6, 999, dtype=np.float32)])
    x = np.resize(x, POINTS)
    body = (Load("a", "x_a", I0, DType.f32), Const("e", exponent, DType.f32),
            Compute("p", "pow", ("a", "e"), DType.f32), Store("y", I0, "p"))  # fmt: skip
    buffers = (Buffer("x_a", tensor(DType.f32)), Buffer("y", tensor(DType.f32), True))
    axes = (Axis(I0, sympy.Integer(POINTS)),)
    emitted = emit(Kernel("k", buffers, axes, (Phase((), body),)), Schedule("flat", 1024))
    assert "f64" not in emitted.source
    assert ("pow_near" in emitted.source) == (exponent != 4.0)
    out = {"x_a": tools.to_torch(x, DType.f32), "y": tools.to_torch(x, DType.f32)}
    tools.launch(emitted, out, {})
    got, want = out["y"].numpy(), powers(x, exponent)
    np.testing.assert_allclose(got, want, rtol=4e-7, atol=1e-45)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


FLOAT_OPS = [
    "maximum", "minimum", "div", "floordiv", "truncdiv", "mod", "fmod", "pow", "fma", "exp", "exp2",
    "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "tanh", "erf", "sigmoid", "floor", "ceil", "trunc", "round",
    "acosh", "asinh", "atanh", "erfc", "erfinv", "lgamma", "hypot",
]  # fmt: skip
ITERATED = [
    "zeta", "gamma_series", "gamma_fraction", "chebyshev", "hermite", "laguerre", "legendre",
]  # fmt: skip
INT_OPS = [
    "gcd",
    "floordiv",
    "truncdiv",
    "mod",
    "fmod",
    "pow",
    "maximum",
    "shl",
    "shr",
    "abs",
    "not",
]


@pytest.mark.parametrize(
    ("dtype", "ops"),
    [
        (DType.f32, FLOAT_OPS),
        (DType.bf16, ["add", "tanh", "div"]),
        (DType.i64, INT_OPS),
        *(
            pytest.param(dtype, [op], marks=pytest.mark.slow if i % 2 == n % 2 else ())
            for i, op in enumerate(ITERATED)
            for n, dtype in enumerate((DType.f32, DType.f64))
        ),
    ],
)
def test_every_device_function_compiles(
    dtype: DType, ops: list[str], tools: SimpleNamespace
) -> None:
    emitted = emit(kernel_of(ops, dtype), Schedule("flat", 128, num_warps=4))
    assert compile_kernel(tools.kernel_source(emitted), Target(90)).num_warps == 4


def test_quotients_of_elements(tools: SimpleNamespace) -> None:
    """Of many a thread, without a branch for each: special values as numpy's, all others rounded as
    numpy's where most numbers are, and 1 ulp off at most elsewhere."""
    rng = np.random.default_rng(4)
    odd = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38, 3.4e38,
                    -3.4e38, 3.0, 1e-30, 0.5, -(2.0**127)], np.float32)  # fmt: skip
    a, b = (rng.integers(0, 2**32, POINTS, dtype=np.uint64).astype(np.uint32).view(np.float32)
            for _ in range(2))  # fmt: skip
    a[:256], b[:256] = np.repeat(odd, 16), np.tile(odd, 16)
    a[2048:], b[2048:] = rng.standard_normal(2048), rng.standard_normal(2048)
    kernel = kernel_of(["div"], DType.f32)
    twice = (Compute("v_two", "div", ("b", "a"), DType.f32), Store("y_div", I0, "v_two"))
    body = (*kernel.phases[0].body[:-1], *twice, kernel.phases[0].body[-1])
    emitted = emit(replace(kernel, phases=(Phase((), body),)), Schedule("flat", 1024))
    assert "div_rn" not in emitted.source
    given = {n: tools.to_torch(x, DType.f32) for n, x in zip(("x_a", "x_b"), (a, b), strict=True)}
    given |= {n: tools.to_torch(np.zeros(POINTS), DType.f32) for n in ("x_c", "y_div")}
    tools.launch(emitted, given, {})
    got = given["y_div"].numpy()
    with np.errstate(all="ignore"):
        want = a / b
    number = ~np.isnan(want)
    np.testing.assert_array_equal(number, ~np.isnan(got))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_array_equal(got[2048:], want[2048:])
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
    apart = np.abs(got.view(np.int32).astype(np.int64) - want.view(np.int32))
    assert apart[number].max() <= 1


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_sines_of_large_numbers(op: str, tools: SimpleNamespace) -> None:
    x = np.resize(np.array([1e5, 105616, -3e5, 1e7, 123456789, 3e9, -9e11], np.float32), POINTS)
    want = getattr(np, op)(x.astype(np.float64))
    assert ulps(run(op, DType.f32, [x], tools), want, DType.f32) <= 3
