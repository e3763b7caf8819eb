"""The interpreter's arithmetic: rounded as torch does it, cast as the hardware does it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_rt import KernelSource, LazyKernel, Target, compile
from triton_rt.interp.floats import narrow, widen

Make = Callable[..., KernelSource]

ELEMENTWISE = {
    "add": ("a + b", lambda a, b: a + b),
    "sub": ("a - b", lambda a, b: a - b),
    "mul": ("a * b", lambda a, b: a * b),
    "max": ("tl.maximum(a, b)", torch.fmax),
    "min": ("tl.minimum(a, b)", torch.fmin),
    "where": ("tl.where(a < b, a, b)", lambda a, b: torch.where(a < b, a, b)),
    "abs": ("tl.abs(a)", lambda a, b: a.abs()),
}


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("op", list(ELEMENTWISE))
def test_arithmetic_rounds_as_torch(make_source: Make, kind: str, op: str) -> None:
    """Element types narrower than f32 are computed in f32 and rounded to nearest even."""
    text, reference = ELEMENTWISE[op]
    source = make_source(
        f"x:*{kind} y:*{kind} z:*{kind}!",
        f"i = tl.arange(0, B)\na = tl.load(x + i)\nb = tl.load(y + i)\ntl.store(z + i, {text})",
        B=256,
    )
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}.get(
        kind, torch.float64
    )
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(256, generator=generator).to(dtype) for _ in range(2))
    a[0], b[1], a[2], a[3] = float("nan"), float("nan"), float("inf"), -0.0
    out = torch.zeros(256, dtype=dtype)
    LazyKernel(source)(1, a, b, out)
    torch.testing.assert_close(out, reference(a, b), rtol=0, atol=0, equal_nan=True)


@given(st.floats(width=32, allow_nan=True))
def test_bfloat16_conversion_is_exact_rounding(value: float) -> None:
    wide = torch.tensor([value], dtype=torch.float32)
    expected = wide.bfloat16()
    bits = narrow(wide.numpy(), tl.bfloat16)
    got = torch.from_numpy(widen(bits, tl.bfloat16))
    torch.testing.assert_close(got, expected.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["f8e4m3", "f8e5m2"])
def test_float8_saturates(make_source: Make, kind: str) -> None:
    source = make_source(
        f"x:*f32 y:*{kind}!",
        "i = tl.arange(0, B)\ntl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))",
        B=8,
    )
    dtype = torch.float8_e4m3fn if kind == "f8e4m3" else torch.float8_e5m2
    x = torch.tensor([0.0, 1.0, -1.5, 3.3, 1e9, -1e9, 0.001, float("inf")])
    y = torch.zeros(8, dtype=dtype)
    LazyKernel(source)(1, x, y)
    largest = torch.finfo(dtype).max
    assert torch.equal(y.float(), x.clamp(-largest, largest).to(dtype).float())


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_dot_accumulates_in_float32(make_source: Make, kind: str) -> None:
    source = make_source(
        f"x:*{kind} y:*{kind} z:*f32!",
        """
        i = tl.arange(0, N)
        a = tl.load(x + i[:, None] * N + i[None, :])
        b = tl.load(y + i[:, None] * N + i[None, :])
        acc = tl.zeros([N, N], tl.float32)
        for _ in range(2):
            acc = tl.dot(a, b, acc)
        tl.store(z + i[:, None] * N + i[None, :], acc)
        """,
        N=32,
    )
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[kind]
    a, b = torch.randn(32, 32).to(dtype), torch.randn(32, 32).to(dtype)
    z = torch.zeros(32, 32)
    LazyKernel(source)(1, a, b, z)
    torch.testing.assert_close(z.double(), 2 * (a.double() @ b.double()), rtol=1e-5, atol=1e-5)
    assert compile(source, Target(90)).cubin


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8),
)
def test_integer_operators_have_c_semantics(a: list[int], b: list[int]) -> None:
    """Division and remainder truncate, sums wrap, shifts of unsigned values are logical."""
    source = KernelSource.from_jit(_integers, {"x": "*i32", "y": "*i32", "z": "*i64"}, {"B": 8})
    b = [v or 1 for v in b]
    b = [7 if p == -(2**31) and q == -1 else q for p, q in zip(a, b, strict=True)]
    z = torch.zeros(5, 8, dtype=torch.int64)
    x, y = torch.tensor(a, dtype=torch.int32), torch.tensor(b, dtype=torch.int32)
    LazyKernel(source)(1, x, y, z)
    quotient = [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in zip(a, b)]  # noqa: B905
    wrap = [(p + q + 2**31) % 2**32 - 2**31 for p, q in zip(a, b)]  # noqa: B905
    assert z[0].tolist() == quotient
    assert z[1].tolist() == [p - q * d for p, q, d in zip(a, b, quotient)]  # noqa: B905
    assert z[2].tolist() == wrap
    assert z[3].tolist() == [(p % 2**32) >> 3 for p in a]
    assert z[4].tolist() == [p >> 3 for p in a]


@triton.jit
def _integers(x, y, z, B: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, B)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(z + i, a // b)
    tl.store(z + B + i, a % b)
    tl.store(z + 2 * B + i, a + b)
    tl.store(z + 3 * B + i, (a.to(tl.uint32, bitcast=True) >> 3).to(tl.int64))
    tl.store(z + 4 * B + i, a >> 3)


def test_booleans_and_bytes(make_source: Make) -> None:
    """Pointers to bool load as i1; unsigned bytes stay unsigned through arithmetic and compares."""
    source = make_source(
        "x:*bool u:*u8 y:*bool! z:*i32! flag:bool half:f16",
        """
        i = tl.arange(0, B)
        b = tl.load(x + i)
        u = tl.load(u + i)
        tl.store(y + i, ~b & (u > 127) | (flag & (half > 1)))
        tl.store(z + i, u.to(tl.int32) + (u // 2).to(tl.int32) + b.to(tl.int32))
        """,
        B=16,
    )
    x = torch.arange(16) % 2 == 0
    u = (torch.arange(16) * 17).to(torch.uint8)
    for flag in (False, True):
        y, z = torch.zeros(16, dtype=torch.bool), torch.zeros(16, dtype=torch.int32)
        LazyKernel(source)(1, x, u, y, z, flag, 1.5)
        assert torch.equal(y, (~x & (u > 127)) | flag)
        assert torch.equal(z, (u.int() + u.int() // 2 + x.int()))
    assert compile(source, Target(90)).cubin


CASTS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=20, deadline=None)
@given(st.lists(CASTS, min_size=8, max_size=8))
def test_float_to_int_saturates_as_the_hardware(values: list[float]) -> None:
    """PTX `cvt.rzi`: toward zero, clamped to the range, NaN to zero."""
    source = KernelSource.from_jit(
        _to_ints, {"x": "*f32", "a": "*i32", "b": "*u32", "c": "*i64"}, {"B": 8}
    )
    x = torch.tensor(values, dtype=torch.float32)
    a = torch.zeros(8, dtype=torch.int32)
    b = torch.zeros(8, dtype=torch.uint32)
    c = torch.zeros(8, dtype=torch.int64)
    LazyKernel(source)(1, x, a, b, c)

    def clamp(value: float, low: int, high: int) -> int:
        if value != value:
            return 0
        if value in (float("inf"), -float("inf")):
            return high if value > 0 else low
        return min(max(int(value), low), high)

    assert a.tolist() == [clamp(v, -(2**31), 2**31 - 1) for v in x.tolist()]
    assert b.tolist() == [clamp(v, 0, 2**32 - 1) for v in x.tolist()]
    assert c.tolist() == [clamp(v, -(2**63), 2**63 - 1) for v in x.tolist()]


@triton.jit
def _to_ints(x, a, b, c, B: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(a + i, v.to(tl.int32))
    tl.store(b + i, v.to(tl.uint32))
    tl.store(c + i, v.to(tl.int64))
