"""Cheaper forms where few bits are stored: found, and as near to the exact ones as they say."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from loop_ir import (
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
    parse_kernel,
)  # fmt: skip
from symexpr import symbol
from triton_emit import Schedule, emit

I0 = symbol("i0")
F32 = DType.f32
POINTS = 4096


def gelu(dtype: DType, swap: bool = False, factor: float = math.sqrt(0.5)) -> Kernel:
    def args(a: str, b: str) -> tuple[str, str]:
        return (b, a) if swap else (a, b)

    body = (
        Load("v", "x", I0, dtype), Compute("f", "cast", ("v",), F32),
        Const("h", 0.5, F32), Compute("half", "mul", args("f", "h"), F32),
        Const("r", factor, F32), Compute("scaled", "mul", args("f", "r"), F32),
        Compute("e", "erf", ("scaled",), F32), Const("one", 1.0, F32),
        Compute("sum", "add", args("e", "one"), F32),
        Compute("g", "mul", args("half", "sum"), F32), Compute("out", "cast", ("g",), dtype),
        Store("y", I0, "out"),
    )  # fmt: skip
    type_ = TensorType(dtype, (POINTS,), (1,), Device("cpu"))
    buffers = (Buffer("x", type_), Buffer("y", type_, True))
    return Kernel("gelu", buffers, (Axis(I0, POINTS),), (Phase((), body),))


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16])
@pytest.mark.parametrize("swap", [False, True])
def test_found_and_near(dtype: DType, swap: bool, tools: SimpleNamespace) -> None:
    emitted = emit(gelu(dtype, swap), Schedule("flat", 1024))
    assert "gelu_f32(" in emitted.source
    assert "erf" not in emitted.source
    x = np.linspace(-14, 14, POINTS).astype(np.float32)
    tensors = {"x": tools.to_torch(x, dtype), "y": tools.to_torch(x * 0, dtype)}
    tools.launch(emitted, tensors, {})
    given = tensors["x"].double().numpy()
    exact = np.array([0.5 * v * math.erfc(-v * math.sqrt(0.5)) for v in given])
    got = tensors["y"].double().numpy()
    # half a unit in the last place of the type, and the function's own error; in the far tail
    # what eager loses when it adds 1 to an erf near -1
    unit = 2.0**-8 if dtype is DType.bf16 else 2.0**-11
    tiny = 2.0**-126 if dtype is DType.bf16 else 2.0**-25
    tail = np.where(given < -5.5, 6e-8 * np.abs(given), tiny)
    worst = np.abs(got - exact) - (unit + 2e-4) * np.abs(exact) - tail
    assert worst.max() <= 0, given[worst.argmax()]


def test_values_that_are_no_numbers(tools: SimpleNamespace) -> None:
    x, zeros = np.full(POINTS, 1.0, np.float32), np.zeros(POINTS, np.float32)
    x[:5] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    tensors = {"x": tools.to_torch(x, DType.bf16), "y": tools.to_torch(zeros, DType.bf16)}
    tools.launch(emit(gelu(DType.bf16), Schedule("flat", 1024)), tensors, {})
    got = tensors["y"].double().numpy()[:5]
    with np.errstate(invalid="ignore"):
        want = [0.5 * float(v) * (1 + math.erf(float(v) * math.sqrt(0.5))) for v in x[:5]]
    np.testing.assert_array_equal(got, want)


def test_other_formulas_and_wider_results_keep_erf() -> None:
    schedule = Schedule("flat", 1024)
    assert "gelu_f32" not in emit(gelu(F32), schedule).source
    assert "gelu_f32" not in emit(gelu(DType.bf16, factor=0.7), schedule).source
    kernel = gelu(DType.bf16)
    wide = TensorType(F32, (POINTS,), (1,), Device("cpu"))
    body = (*kernel.phases[0].body, Store("z", I0, "g"))
    both = replace(
        kernel, buffers=(*kernel.buffers, Buffer("z", wide, True)), phases=(Phase((), body),)
    )
    assert "gelu_f32" not in emit(both, schedule).source


def quotient(*after: Compute, result: DType = DType.bf16, op: str = "div") -> Kernel:
    """`y = x / w` in f32, then what is said, rounded to the result."""
    last = after[-1].out if after else "v2"
    body = (
        Load("v0", "x", I0, DType.f32),
        Load("v1", "w", I0, DType.f32),
        Compute("v2", op, ("v0", "v1"), DType.f32),
        *after,
        Compute("v9", "cast", (last,), result),
        Store("y", I0, "v9"),
    )
    types = {"x": DType.f32, "w": DType.f32, "y": result}
    layouts = {n: TensorType(d, (POINTS,), (1,), Device("cpu")) for n, d in types.items()}
    buffers = tuple(Buffer(n, layout, n == "y") for n, layout in layouts.items())
    return Kernel("quotient", buffers, (Axis(I0, POINTS),), (Phase((), body),))


def rounded_to(dtype: DType) -> tuple[Compute, ...]:
    """The quotient in fewer bits, and back."""
    return (
        Compute("v3", "cast", ("v2",), dtype),
        Compute("v4", "cast", ("v3",), F32),
        Compute("v5", "mul", ("v4", "v1"), F32),
    )


@pytest.mark.parametrize(
    ("kernel", "fast"),
    [
        (quotient(), True),
        (quotient(Compute("v3", "sqrt", ("v2",), DType.f32)), True),
        (quotient(*rounded_to(DType.bf16), result=DType.f32), True),
        (quotient(*rounded_to(DType.bf16), result=DType.f8e4m3), False),
        (quotient(result=DType.f32), False),
        (quotient(result=DType.f8e4m3), False),
        (quotient(result=DType.i16), False),
        (quotient(Compute("v3", "floor", ("v2",), DType.f32)), False),
        (quotient(Compute("v3", "eq", ("v2", "v0"), DType.bool_)), False),
        (quotient(op="truncdiv"), False),
    ],
)
def test_quotients_are_exact_where_an_ulp_could_show(kernel: Kernel, fast: bool) -> None:
    source = emit(kernel, Schedule("flat", 128)).source
    assert ("x0 / x1" in source) == fast
    assert ("tl.div_rn(x0, x1)" in source) != fast


def test_not_where_the_value_reaches_a_step() -> None:
    kernel = gelu(DType.bf16)
    (phase,) = kernel.phases
    steps = (Compute("low", "floor", ("g",), F32), Compute("out", "cast", ("low",), DType.bf16))
    body = (*phase.body[:-2], *steps, phase.body[-1])
    source = emit(replace(kernel, phases=(Phase((), body),)), Schedule("flat", 1024)).source
    assert "gelu_f32(" not in source and "erf_fine_f32(" in source


@pytest.mark.parametrize("op", ["sigmoid", "tanh"])
@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16])
def test_near_forms_over_all_numbers(op: str, dtype: DType, tools: SimpleNamespace) -> None:
    """Within a tenth of a unit in the last place of the nearest."""
    body = (
        Load("v0", "x", I0, dtype),
        Compute("v1", "cast", ("v0",), F32),
        Compute("v2", op, ("v1",), F32),
        Compute("v3", "cast", ("v2",), dtype),
        Store("y", I0, "v3"),
    )
    layout = TensorType(dtype, (65536,), (1,), Device("cpu"))
    buffers = (Buffer("x", layout, False), Buffer("y", layout, True))
    kernel = Kernel("near", buffers, (Axis(I0, 65536),), (Phase((), body),))
    bits = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    x = bits.view(torch.bfloat16 if dtype is DType.bf16 else torch.float16)
    emitted = emit(kernel, Schedule("flat", 65536))
    assert f"{op}_near(" in emitted.source
    tensors = {"x": x, "y": torch.zeros_like(x)}
    tools.launch(emitted, tensors, {})
    exact = getattr(torch, op)(x.double())
    assert tensors["y"].isnan().equal(exact.isnan())
    rounded = exact.to(x.dtype).double()
    unit = 2.0**-7 if dtype is DType.bf16 else 2.0**-10
    more = (tensors["y"].double() - exact).abs() - (rounded - exact).abs()
    assert (more.nan_to_num() <= 0.1 * unit * exact.abs().nan_to_num() + 2.0**-126).all()


def rows_by_scale(*after: str, small: str = "f8e4m3", wide: str = "f32") -> Kernel:
    """`y = x / s` of rows by their scales, then what is said, as floats of 8 bits."""
    lines = "".join(f"\n      {line}" for line in after)
    return parse_kernel(f"""
kernel k(
    x: {wide}[{SCALES}, {POINTS}] cpu,
    s: {wide}[{SCALES}] cpu,
    out y: {small}[{SCALES}, {POINTS}] cpu,
    out z: f32[{SCALES}, {POINTS}] cpu,
):
  parallel i0 < {SCALES}:
    over r0 < {POINTS}:
      a = load x[i0*{POINTS} + r0] : {wide}
      b = load s[i0] : {wide}
      low = const -448.0 : f32
      high = const 448.0 : f32
      q = div(a, b) : {wide}{lines}
      e = cast({"c" if after else "q"}) : {small}
      store y[i0*{POINTS} + r0] = e
      store z[i0*{POINTS} + r0] = low
""")


SCALES = 128
CHOSEN = (
    "below = lt(q, low) : bool", "m = where(below, low, q) : f32",
    "above = gt(m, high) : bool", "c = where(above, high, m) : f32",
)  # fmt: skip
CLAMP = "m = maximum(q, low) : f32", "c = minimum(m, high) : f32"


@pytest.mark.parametrize(
    ("after", "small", "wide", "xblock"),
    [
        ((), DType.f8e4m3, DType.f32, 1),
        ((), DType.f8e5m2, DType.f32, 2),
        (CLAMP, DType.f8e4m3, DType.f32, 2),
        (CHOSEN, DType.f8e5m2, DType.f32, 1),
        (("c = cast(q) : bf16",), DType.f8e5m2, DType.f32, 1),
        ((), DType.f8e4m3, DType.bf16, 2),
    ],
)
def test_quotients_of_rows_for_floats_of_8_bits(
    after: tuple[str, ...], small: DType, wide: DType, xblock: int, tools: SimpleNamespace
) -> None:
    """The bits of a quotient that is rounded to f32: of any numbers, of such that lie beside the
    middle of two floats of 8 bits, of the greatest, the least, infinities and zeros."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, SCALES, np.uint32)
    s = bits.view(np.float32).copy()
    s[::2] = rng.uniform(0.001, 3, SCALES // 2)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38]
    s[: len(ends)] = ends
    x = rng.integers(0, 1 << 32, (SCALES, POINTS), np.uint32).view(np.float32).copy()
    with np.errstate(all="ignore"):
        middles = rng.integers(-256, 256, (SCALES, 500)) * 2.0 ** rng.integers(
            -18, 8, (SCALES, 500)
        )
        near = (middles * s[:, None].astype(np.float64)).astype(np.float32)
        near = (near.view(np.int32) + rng.integers(-2, 3, near.shape, np.int32)).view(np.float32)
    x[:, :500] = near
    x[:, 500 : 500 + len(ends)] = ends
    given = {"x": tools.to_torch(x, wide), "s": tools.to_torch(s, wide)}
    zeros = np.zeros_like(x)
    given |= {"y": tools.to_torch(zeros, small), "z": tools.to_torch(zeros, DType.f32)}
    kernel = rows_by_scale(*after, small=small.value, wide=wide.value)
    emitted = emit(kernel, Schedule("persistent", xblock, POINTS))
    assert "= quotient_f32(" in emitted.source or "(quotient_f32(" in emitted.source
    tools.launch(emitted, given, {})
    q = given["x"] / given["s"][:, None]
    if after in (CLAMP, CHOSEN):
        q = q.clamp(-448.0, 448.0)
    elif after:
        q = q.bfloat16()
    want = q.to(given["y"].dtype)
    same = (want.view(torch.uint8) == given["y"].view(torch.uint8)) | want.float().isnan()
    assert same.all(), (given["x"][~same][:5], q[~same][:5])
    assert (given["y"].float().isnan() == want.float().isnan()).all()


LOG1P = f"""
kernel k(
    x: f32[{POINTS}] cpu,
    out y: f32[{POINTS}] cpu,
):
  parallel i0 < {POINTS}:
    once:
      a = load x[i0] : f32
      b = abs(a) : f32
      c = neg(b) : f32
      e = exp(c) : f32
      z = log1p(e) : f32
      store y[i0] = z
"""


def test_log1p_of_exponentials_below_1(tools: SimpleNamespace) -> None:
    """As exact as of any number, zeros, infinities and NaN with it; of others the full one."""
    x = np.linspace(-20, 20, POINTS).astype(np.float32)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.69314718, 0.6931472, 104.5]
    given = {"x": tools.to_torch(x, DType.f32), "y": tools.to_torch(np.zeros(POINTS), DType.f32)}
    emitted = emit(parse_kernel(LOG1P), Schedule("flat", 1024))
    assert "log1p_unit_f32(" in emitted.source and "log1p_f32(" not in emitted.source
    tools.launch(emitted, given, {})
    want = np.log1p(np.exp(-np.abs(x.astype(np.float64))))
    np.testing.assert_allclose(given["y"].double().numpy(), want, rtol=5e-7, atol=1e-45)
    for other, name in (("exp(a)", "positive_"), ("exp(b)", "positive_"), ("abs(c)", "")):
        source = emit(parse_kernel(LOG1P.replace("exp(c)", other)), Schedule("flat", 1024)).source
        assert f"log1p_{name}f32(" in source and "log1p_unit_f32(" not in source


def test_log1p_of_exponentials(tools: SimpleNamespace) -> None:
    x = np.linspace(-30, 88, POINTS).astype(np.float32)
    x[:6] = [0.0, np.inf, -np.inf, np.nan, -104.5, 90.0]
    given = {"x": tools.to_torch(x, DType.f32), "y": tools.to_torch(np.zeros(POINTS), DType.f32)}
    tools.launch(
        emit(parse_kernel(LOG1P.replace("exp(c)", "exp(a)")), Schedule("flat", 1024)), given, {}
    )
    want = np.log1p(np.exp(x.astype(np.float64)))
    want[5] = np.inf  # its exponential is
    np.testing.assert_allclose(given["y"].double().numpy(), want, rtol=5e-7, atol=1e-45)


def test_near_forms_of_what_is_stored_in_16_bits_beside_numbers_of_rows(
    tools: SimpleNamespace,
) -> None:
    """A softmax that keeps its sums in f32: they are of exact exponentials, the quotients are not.
    A gate that is stored in f32, too, is exact; so is one that is compared."""
    text = """
kernel k(
    x: f32[8, 64] cpu,
    out s: f32[8] cpu,
    out y: bf16[8, 64] cpu,
    out z: bf16[8, 64] cpu,
):
  parallel i0 < 8:
    over r0 < 64:
      a = load x[i0*64 + r0] : f32
      m = reduce max(a) : f32
    over r0 < 64:
      b = sub(a, m) : f32
      e = exp(b) : f32
      t = reduce sum(e) : f32
    once:
      store s[i0] = t
    over r0 < 64:
      q = div(e, t) : f32
      c = cast(q) : bf16
      store y[i0*64 + r0] = c
      g = sigmoid(a) : f32
      h = mul(g, a) : f32
      d = cast(h) : bf16
      store z[i0*64 + r0] = d
"""
    source = tools.check(parse_kernel(text)).source
    assert all(f in source for f in ("exp_f32(", "near_quotient_f32(e, row_sum)", "sigmoid_near("))
    kept = text.replace("out z: bf16", "out z: f32").replace("d = cast(h) : bf16\n", "")
    source = tools.check(parse_kernel(kept.replace("] = d", "] = h"))).source
    assert "sigmoid_f32(" in source and "near_quotient_f32(e, row_sum)" in source
    compared = text.replace("mul(g, a) : f32", "gt(g, a) : bool")
    assert "sigmoid_f32(" in tools.check(parse_kernel(compared)).source
