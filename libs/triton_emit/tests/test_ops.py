"""Every scalar operation and reduction on every element type, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy

from loop_ir import (
    OPS,
    REDUCTIONS,
    Axis,
    Buffer,
    Compute,
    Const,
    Device,
    DType,
    Kernel,
    Load,
    Phase,
    Reduce,
    Store,
    TensorType,
    contiguous_strides,
    interpret_kernel,
    parse_kernel,
)
from loop_ir.ir import ITERATED
from symexpr import symbol
from triton_emit import Schedule, UnsupportedDType, default_schedule, emit

FLOATS = [DType.f16, DType.bf16, DType.f32, DType.f64]
INTS = [DType.u8, DType.u16, DType.u32, DType.u64, DType.i8, DType.i16, DType.i32, DType.i64]
ARITHMETIC = ["add", "sub", "mul", "neg", "abs", "maximum", "minimum", "floordiv", "truncdiv",
              "mod", "fmod"]  # fmt: skip
FLOAT_ONLY = ["div", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
              "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "erf",
              "sigmoid", "floor", "ceil", "trunc", "round", "pow", "fma", "acosh", "asinh",
              "atanh", "erfc", "erfinv", "lgamma", "hypot", "near_div"]  # fmt: skip
PREDICATES = ["eq", "ne", "lt", "le", "gt", "ge"]
BITS = ["and", "or", "xor", "not", "shl", "shr"]
COUNT = 96


def tensor(dtype: DType, *size: int) -> TensorType:
    return TensorType(dtype, size, contiguous_strides(size), Device("cuda", 0))


def pointwise(results: Sequence[tuple[str, DType]], dtypes: list[DType]) -> Kernel:
    """Several results of the same operands: many operations cost what one does."""
    i = symbol("i0")
    names = [f"a{k}" for k in range(len(dtypes))]
    body: list[Any] = [
        Load(n, f"x{k}", i, d) for k, (n, d) in enumerate(zip(names, dtypes, strict=True))
    ]
    buffers = [Buffer(f"x{k}", tensor(d, COUNT)) for k, d in enumerate(dtypes)]
    for op, out in results:
        value, result = f"v_{op}_{out.value}", f"y_{op}_{out.value}"
        body += [Compute(value, op, tuple(names), out), Store(result, i, value)]
        buffers.append(Buffer(result, tensor(out, COUNT), True))
    return Kernel("k", tuple(buffers), (Axis(i, sympy.Integer(COUNT)),),
                  (Phase((), tuple(body)),))  # fmt: skip


def special(dtype: DType, seed: int) -> Any:
    """Ordinary values, and (floats) zeros of both signs, infinities, NaN, halves."""
    rng = np.random.default_rng(seed)
    if dtype is DType.bool_:
        return rng.random(COUNT) < 0.5
    if dtype.is_float:
        values = rng.standard_normal(COUNT) * np.exp(rng.uniform(-3, 3, COUNT))
        odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 80.0]
        values[: len(odd)] = rng.permutation(odd)
        values[20:34] = odd
        if dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2):
            import torch

            kind = {DType.bf16: torch.bfloat16, DType.f8e4m3: torch.float8_e4m3fn,
                    DType.f8e5m2: torch.float8_e5m2}[dtype]  # fmt: skip
            return torch.from_numpy(values).float().to(kind).float().numpy()
        return values.astype(dtype.value.replace("f", "float"))
    name = dtype.value.replace("i", "int").replace("u", "uint")
    info = np.iinfo(name)
    low = max(-60, info.min)
    return rng.integers(low, 60, COUNT).astype(name)


#: Operations whose operands are not any numbers.
PARTIAL = {op: ops[0] for ops in (("floordiv", "truncdiv", "mod", "fmod"), ("shl", "shr"), ("pow",),
                                  ("signbit",)) for op in ops}  # fmt: skip


def arguments(kind: str | None, dtypes: list[DType]) -> dict[str, Any]:
    given = {f"x{k}": special(d, 7 * k + 3) for k, d in enumerate(dtypes)}
    if kind == "floordiv" and dtypes[0].is_int:
        given["x1"][given["x1"] == 0] = 3
    if kind == "shl":
        given["x1"] = np.abs(given["x1"]) % (8 * dtypes[0].itemsize)
    if kind == "pow" and dtypes[0].is_int:
        given["x1"] = np.abs(given["x1"]) % 5
    if kind == "signbit":  # the sign of a NaN is lost on the way to a tensor
        given["x0"] = np.nan_to_num(given["x0"], nan=-1.0, posinf=np.inf, neginf=-np.inf)
    return given


def run(ops: Sequence[str], dtype: DType, out: DType, tools: SimpleNamespace, ulp: float) -> None:
    """Each operation, in as few kernels as their operands allow."""
    alike: dict[tuple[int, str | None], list[str]] = {}
    for op in ops:
        alike.setdefault((OPS[op], PARTIAL.get(op)), []).append(op)
    for (count, kind), group in alike.items():
        kernel = pointwise([(op, out) for op in group], [dtype] * count)
        most = 64.0 if kind == "pow" and dtype is DType.f64 else ulp
        tools.check(kernel, Schedule("flat", 64), arguments(kind, [dtype] * count), ulp=most)


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
def test_floats(dtype: DType, tools: SimpleNamespace) -> None:
    run(ARITHMETIC + FLOAT_ONLY, dtype, dtype, tools, 4.0)


@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.value)
def test_ints(dtype: DType, tools: SimpleNamespace) -> None:
    run([*ARITHMETIC, *BITS, "pow", "gcd"], dtype, dtype, tools, 0.0)


@pytest.mark.parametrize("dtype", [DType.f32, DType.f64], ids=lambda d: d.value)
def test_functions_of_as_many_steps_as_data_says(dtype: DType, tools: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    s, q = rng.uniform(1.2, 6, COUNT), rng.uniform(0.5, 9, COUNT)
    n, least = rng.integers(0, 14, COUNT) * 1.0, np.full(COUNT, np.finfo(dtype.numpy_name).eps / 2)
    given = {
        "zeta": (s, q), "gamma_series": (s, q), "gamma_fraction": (s, 8 + q, least),
        "chebyshev": (s, q, n), "hermite": (s + 6, 0 * s + 2, n), "laguerre": (-q, n),
        "legendre": (s, n),
    }  # fmt: skip
    for op, values in given.items():
        kernel = pointwise([(op, dtype)], [dtype] * len(values))
        arguments = {f"x{k}": v.astype(dtype.numpy_name) for k, v in enumerate(values)}
        tools.check(kernel, Schedule("flat", 64), arguments, ulp=64.0)


@pytest.mark.parametrize("dtype", [DType.i64, DType.i32, DType.i8], ids=lambda d: d.value)
def test_divisors_at_the_ends_of_integers(dtype: DType, tools: SimpleNamespace) -> None:
    ends = np.iinfo(dtype.numpy_name)
    some = [v for v in (2**31 - 1, 2**31, 2**32 - 1, 3 * 2**40) if v < ends.max]
    values = [0, 1, 6, -6, 97, ends.max, ends.max - 1, ends.min, ends.min + 1, *some][: COUNT // 8]
    pairs = np.array([(a, b) for a in values for b in values], dtype.numpy_name).T
    for start in range(0, pairs.shape[1], COUNT):
        x, y = (np.resize(v[start : start + COUNT], COUNT) for v in pairs)
        kernel = pointwise([("gcd", dtype)], [dtype] * 2)
        tools.check(kernel, Schedule("flat", 64), {"x0": x, "x1": y}, ulp=0.0)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, DType.bool_], ids=lambda d: d.value)
def test_predicates(dtype: DType, tools: SimpleNamespace) -> None:
    more = ["isnan", "isinf", "signbit"] if dtype.is_float else []
    run([*PREDICATES, *more], dtype, DType.bool_, tools, 0.0)


def test_logic(tools: SimpleNamespace) -> None:
    run(["and", "or", "xor", "not"], DType.bool_, DType.bool_, tools, 0.0)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, DType.bool_], ids=lambda d: d.value)
def test_where(dtype: DType, tools: SimpleNamespace) -> None:
    dtypes = [DType.bool_, dtype, dtype]
    kernel = pointwise([("where", dtype)], dtypes)
    tools.check(kernel, Schedule("flat", 64), arguments(None, dtypes), ulp=0.0)


@pytest.mark.parametrize("src", [*FLOATS, *INTS, DType.bool_], ids=lambda d: d.value)
def test_casts(src: DType, tools: SimpleNamespace) -> None:
    given = special(src, 5)
    numbers = np.nan_to_num(given, nan=1.0, posinf=2.0, neginf=3.0) if src.is_float else given
    for values, targets in (
        (given, [*FLOATS, DType.bool_]),
        (numbers, INTS[4:]),
        (np.abs(numbers) if src.is_float else given, INTS[:4]),  # unsigned
    ):
        kernel = pointwise([("cast", target) for target in targets], [src])
        tools.check(kernel, Schedule("flat", 64), {"x0": values}, ulp=0.0)


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16], ids=lambda d: d.value)
def test_narrow(dtype: DType, tools: SimpleNamespace) -> None:
    run(["narrow"], DType.f32, dtype, tools, 0.0)


@pytest.mark.parametrize("small", [DType.f8e4m3, DType.f8e5m2], ids=lambda d: d.value)
def test_eight_bit_floats(small: DType, tools: SimpleNamespace) -> None:
    values = np.concatenate([special(DType.f32, 9)[:60], np.linspace(400, 70000, 36)])
    values = values.astype(np.float32)
    values[:4] = [448.0, 464.0, 465.0, -61440.0]
    down, up = pointwise([("cast", small)], [DType.f32]), pointwise([("cast", DType.f32)], [small])
    tools.check(down, Schedule("flat", 64), {"x0": values}, ulp=0)
    tools.check(up, Schedule("flat", 64), {"x0": special(small, 3)}, ulp=0)


@pytest.mark.parametrize("pair", [(DType.f32, DType.i32), (DType.i64, DType.f64),
                                  (DType.bf16, DType.i16)], ids=str)  # fmt: skip
def test_bitcast(pair: tuple[DType, DType], tools: SimpleNamespace) -> None:
    given = {"x0": np.nan_to_num(special(pair[0], 3), nan=1.0)}
    if pair[0] is not DType.i64:  # the bits of a small integer are a subnormal: compare ints only
        tools.check(pointwise([("bitcast", pair[1])], [pair[0]]), Schedule("flat", 64), given)


@pytest.mark.spread(2)
@pytest.mark.parametrize("value", [0.1, -0.0, 1e-300, float("inf"), float("nan"), -2.0])
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64, DType.bf16], ids=lambda d: d.value)
def test_constants(value: float, dtype: DType, tools: SimpleNamespace) -> None:
    i = symbol("i0")
    for ops, ulp in ((("add", "mul", "maximum", "div", "where"), 2), (("pow",), 40)):
        body: list[Any] = [
            Load("a", "x", i, dtype), Const("b", value, dtype), Const("z", 0.0, dtype),
            Compute("c", "gt", ("a", "z"), DType.bool_),
        ]  # fmt: skip
        for op in ops:
            use = ("c", "a", "b") if op == "where" else ("a", "b")
            body += [Compute(f"v_{op}", op, use, dtype), Store(f"y_{op}", i, f"v_{op}")]
        outs = (Buffer(f"y_{op}", tensor(dtype, COUNT), True) for op in ops)
        buffers = (Buffer("x", tensor(dtype, COUNT)), *outs)
        kernel = Kernel("k", buffers, (Axis(i, sympy.Integer(COUNT)),), (Phase((), tuple(body)),))
        tools.check(kernel, Schedule("flat", 64), {"x": special(dtype, 1)}, ulp=ulp)


SCHEDULES = [
    Schedule("persistent", 1, 128), Schedule("persistent", 2, 128),
    Schedule("looped", 1, 32), Schedule("looped", 4, 16),
]  # fmt: skip


def reduced(op: str, dtype: DType) -> Any:
    """What to reduce: numbers of which few are equal, and what is special for `op`."""
    rng = np.random.default_rng(2)
    if dtype is DType.bool_:
        x = rng.random((5, 7, 11)) < 0.02
        x[3] = True
        return x
    if dtype.is_float:
        x = np.round(rng.standard_normal((5, 7, 11)) * 4) / 4
        if op != "prod" and op != "welford":
            x[1, 3, 4] = x[1, 5, 5] = np.nan
            x[2] = -np.inf
        if op == "prod":
            x = np.where(x < 0, -1.25, np.where(x > 0.5, 0.8, 1.0))
        return x.astype(np.float64 if dtype is DType.f64 else np.float32)
    x = rng.integers(0 if dtype is DType.u8 else -4, 5, (5, 7, 11))
    x = x.astype(dtype.value.replace("i", "int").replace("u", "uint"))
    return np.where(x == 0, 1, x).astype(x.dtype) if op == "prod" else x


@pytest.mark.spread(3)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}{s.xblock}")
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, schedule: Schedule, tools: SimpleNamespace) -> None:
    """Of all element types, in one kernel."""
    i, r0, r1 = symbol("i0"), symbol("r0"), symbol("r1")
    dtypes = [DType.f32, DType.f64, DType.bf16, DType.i64, DType.i32, DType.u8]
    if op in ("welford", "softmax"):
        dtypes = [d for d in dtypes if d.is_float]
    if op in ("any", "all"):
        dtypes = [DType.bool_]
    inner = (Axis(r0, sympy.Integer(7)), Axis(r1, sympy.Integer(11)))
    first: list[Any] = []
    stores, buffers, given = [], [], {}
    for dtype in dtypes:
        d, out = dtype.value, DType.i64 if op.startswith("arg") else dtype
        outs = tuple(f"v{k}_{d}" for k in range(REDUCTIONS[op][1]))
        first += [Load(f"a_{d}", f"x_{d}", 77 * i + 11 * r0 + r1, dtype),
                  Reduce(outs, op, (f"a_{d}",), out)]  # fmt: skip
        stores += [Store(f"y_{v}", i, v) for v in outs]
        buffers += [Buffer(f"x_{d}", tensor(dtype, 5, 7, 11)),
                    *(Buffer(f"y_{v}", tensor(out, 5), True) for v in outs)]  # fmt: skip
        given[f"x_{d}"] = reduced(op, dtype)
    kernel = Kernel(f"k_{op}", tuple(buffers), (Axis(i, sympy.Integer(5)),),
                    (Phase(inner, tuple(first)), Phase((), tuple(stores))))  # fmt: skip
    tools.check(kernel, schedule, given, ulp={"welford": 8, "softmax": 8, "prod": 80}.get(op, 4))


def test_every_entry_of_the_grammar_is_tested() -> None:
    named = {*ARITHMETIC, *FLOAT_ONLY, *PREDICATES, *BITS, "isnan", "isinf", "signbit", "where",
             "rarely", "cast", "narrow", "bitcast", "philox", *ITERATED}  # fmt: skip
    assert named == set(OPS)


def test_complex_is_refused() -> None:
    kernel = pointwise([("add", DType.c64)], [DType.c64, DType.c64])
    with pytest.raises(UnsupportedDType, match=r"kernel k: element type c64 of buffer x0"):
        emit(kernel, default_schedule(kernel, {}))


def test_a_division_proves_nothing_of_its_divisor() -> None:
    """`where(y != 0, x // y, -1)`: compilers take an unguarded division for proof of `y != 0`."""
    i0 = symbol("i0")
    body = (
        Load("x", "x", i0, DType.i32), Load("y", "y", i0, DType.i32),
        Compute("q", "floordiv", ("x", "y"), DType.i32), Const("zero", 0, DType.i32),
        Compute("ok", "ne", ("y", "zero"), DType.bool_), Const("none", -1, DType.i32),
        Compute("r", "where", ("ok", "q", "none"), DType.i32), Store("r", i0, "r"),
    )  # fmt: skip
    type_ = TensorType(DType.i32, (sympy.Integer(64),), (sympy.Integer(1),), Device("cuda", 0))
    buffers = tuple(Buffer(n, type_, n == "r") for n in "xyr")
    axes = (Axis(i0, sympy.Integer(64)),)
    kernel = Kernel("guarded", buffers, axes, (Phase((), body),))
    emitted = emit(kernel, Schedule("flat", 64, num_warps=1))
    assert "int_floor_div(x, y)" in emitted.source


@pytest.mark.parametrize("dtype", [DType.i64, DType.i32, DType.i8, DType.u8], ids=lambda d: d.value)
def test_an_integer_by_zero_is_what_a_gpu_gives(dtype: DType, tools: SimpleNamespace) -> None:
    """All bits set, as torch's own tests have it; half of them for 64-bit dividends below 2**32."""
    i0, n = symbol("i0"), sympy.Integer(8)
    ops = ("floordiv", "mod", "truncdiv", "fmod")
    computed = (Compute(op, op, ("x", "y"), dtype) for op in ops)
    stores = (Store(f"out_{op}", i0, op) for op in ops)
    body = (Load("x", "x", i0, dtype), Load("y", "y", i0, dtype), *computed, *stores)
    type_ = TensorType(dtype, (n,), (sympy.Integer(1),), Device("cuda", 0))
    names = ("x", "y", *(f"out_{op}" for op in ops))
    buffers = tuple(Buffer(name, type_, name.startswith("out")) for name in names)
    kernel = Kernel("divided", buffers, (Axis(i0, n),), (Phase((), body),))
    x = np.array([7, -7, 0, 100, 7, -7, 0, -1] if dtype is not DType.u8 else range(8))
    x[3] = {DType.i64: 2**40, DType.i32: 2**30}.get(dtype, 100)
    y = np.array([0, 0, 0, 0, 2, 2, 2, 2])
    kind = dtype.value.replace("i", "int").replace("u", "uint")
    given = {"x": x.astype(kind), "y": y.astype(kind)}
    given |= {name: np.zeros(8, kind) for name in names[2:]}
    tools.check(kernel, tensors=given)
    ones = np.array(-1).astype(kind)
    half = 2**32 - 1 if dtype is DType.i64 else ones
    result = interpret_kernel(kernel, given, {})
    assert result["out_fmod"].tolist()[:4] == [half, half if x[1] >= 0 else ones, half, ones]
    assert result["out_floordiv"].tolist()[1] == (ones if x[1] >= 0 else -2)


RARELY = """
kernel k(
    x: f32[{n}] cuda:0,
    y: f32[{n}] cuda:0,
    out z: f32[{n}] cuda:0,
):
  parallel i0 < {n}:
    once:
      a = load x[i0] : f32
      b = load y[{at}] : f32
      five = const 5.0 : f32
      far = gt({of}, five) : bool
      shared = mul(a, a) : f32
      e = exp(b) : f32
      long = sqrt(e) : f32
      d = rarely(far, long, shared) : f32
      u = add(d, shared) : f32
      store z[i0] = u
"""


@pytest.mark.parametrize(("of", "at"), [("a", "i0"), ("b", "i0"), ("b", "0")])
@pytest.mark.parametrize("high", [1.0, 5.1, 9.0])
def test_what_is_seldom_chosen_is_skipped(
    of: str, at: str, high: float, tools: SimpleNamespace
) -> None:
    """Where no element of a program wants it; in a branch by itself."""
    kernel = parse_kernel(RARELY.format(n=1000, of=of, at=at))
    x = np.linspace(-1, high, 1000, dtype=np.float32)
    given = {"x": x, "y": np.full(1000, 2.5, np.float32) if of == "a" else x}
    emitted = tools.check(kernel, Schedule("flat", 64), given)
    assert ("if tl.max(above.to(tl.int32)) > 0:" in emitted.source) == (at == "i0")


def test_what_others_read_too_is_not_skipped(tools: SimpleNamespace) -> None:
    text = RARELY.format(n=100, of="a", at="i0").replace("add(d, shared)", "add(d, long)")
    emitted = tools.check(parse_kernel(text), Schedule("flat", 64))
    assert "if tl.max" not in emitted.source


@pytest.mark.parametrize("high", [1.0, 5.1, 9.0])
def test_a_branch_in_a_branch(high: float, tools: SimpleNamespace) -> None:
    text = RARELY.format(n=1000, of="a", at="i0").replace(
        "      d = rarely(far, long, shared) : f32\n",
        "      six = const 6.0 : f32\n"
        "      further = gt(a, six) : bool\n"
        "      other = log(e) : f32\n"
        "      both = rarely(further, other, long) : f32\n"
        "      d = rarely(far, both, shared) : f32\n",
    )
    given = {"x": np.linspace(-1, high, 1000, dtype=np.float32)}
    emitted = tools.check(parse_kernel(text), Schedule("flat", 64), given)
    assert emitted.source.count("if tl.max(") == 2
    assert "        if tl.max(" in emitted.source


@pytest.mark.parametrize("least", [float(np.finfo(np.float32).min), 1e-40, -5.0])
def test_a_mask_of_two_constants_is_f32(least: float, tools: SimpleNamespace) -> None:
    """The shortest decimal of f32's largest number is above it, and to Triton an f64."""
    kernel = parse_kernel(f"""\
kernel k(
    x: f32[8] cuda:0,
    out y: f32[8] cuda:0,
):
  parallel i0 < 8:
    once:
      a = load x[i0] : f32
      zero = const 0.0 : f32
      least = const {least!r} : f32
      inside = gt(a, zero) : bool
      mask = where(inside, zero, least) : f32
      total = add(a, mask) : f32
      e = exp(total) : f32
      store y[i0] = e
""")
    tools.check(kernel, Schedule("flat", 8))
