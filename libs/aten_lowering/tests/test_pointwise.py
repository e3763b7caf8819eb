"""Elementwise families against eager: element types, promotion, broadcasting, strides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from aten_lowering import complex_functions
from loop_ir import Extern

aten = torch.ops.aten

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "sigmoid", "neg", "abs", "floor",
    "ceil", "trunc", "round", "reciprocal", "square", "frac", "sign", "sgn", "isnan", "isinf",
    "signbit", "isfinite", "logical_not", "acosh", "asinh", "atanh", "erfc", "erfinv", "lgamma",
    "digamma", "angle",
]  # fmt: skip

BINARY = [
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum", "minimum",
    "atan2", "fmax", "fmin", "copysign", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_xor", "hypot",
]  # fmt: skip

TENSORS_ONLY = {
    "maximum", "minimum", "atan2", "fmax", "fmin", "logical_and", "logical_or", "logical_xor",
    "hypot",
}  # fmt: skip

ACTIVATIONS = [
    F.relu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.softplus,
    lambda x: F.softplus(x, 2.0, 1.0), F.leaky_relu, F.elu, F.selu, F.celu, F.hardtanh, F.relu6,
    F.hardsigmoid, F.hardswish, F.logsigmoid, F.softsign, F.tanhshrink,
    lambda x: F.threshold(x, 0.1, -3.0), F.hardshrink, F.softshrink,
]  # fmt: skip


def special(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(3, 7).to(dtype)
    x[0, :4] = torch.tensor([0.0, -0.0, float("inf"), float("nan")], dtype=dtype)
    x[1, :4] = torch.tensor([-1.5, 0.5, 2.5, -2.0], dtype=dtype)
    return x


@pytest.mark.parametrize("name", UNARY)
def test_unary(oracle: Any, name: str) -> None:
    integers = [] if name in ("frac", "reciprocal") else [torch.arange(-4, 5)]
    oracle.each([getattr(torch, name)], *map(special, FLOATS), *integers)


@pytest.mark.parametrize("index", range(len(ACTIVATIONS)))
def test_activations(oracle: Any, index: int) -> None:
    tensors = [special(dtype) * 4 for dtype in FLOATS]
    for x in tensors:
        x[0, 2] = 60.0  # eager's own gelu(inf) is NaN on the CPU, in f32 only
    oracle.each([ACTIVATIONS[index]], *tensors)


def test_mish_backward(oracle: Any) -> None:
    for dtype in FLOATS:
        x = torch.cat([special(dtype) * 4, torch.tensor([[19.9, 20.1, 90, -90, -1.2, 1e30, -20]])])
        native(oracle(torch.ops.aten.mish_backward, torch.randn(4, 7).to(dtype), x.to(dtype)))


@pytest.mark.parametrize("name", BINARY)
def test_binary_floats(oracle: Any, name: str) -> None:
    fn = getattr(torch, name)
    for dtype in (torch.float64, torch.float32):
        x, y = special(dtype), special(dtype).flip(0)
        numbers = [] if name in TENSORS_ONLY else [2.5]
        oracle(lambda a, b, n=numbers: [fn(a, b), *(fn(a, v) for v in n)], x, y)


PAIRS = [
    (torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16),
    (torch.int32, torch.float16), (torch.int64, torch.int32), (torch.uint8, torch.int8),
    (torch.bool, torch.int64), (torch.float64, torch.bool),
]  # fmt: skip


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "lt", "eq"])
def test_promotion(oracle: Any, name: str) -> None:
    fn = getattr(torch, name)
    # eager has no differences of bool
    pairs = [p for p in PAIRS if name != "sub" or torch.bool not in p]
    left = [(torch.randn(4, 1) * 5).to(a) for a, _ in pairs]
    right = [(torch.randn(3) * 5 + 1).to(b) for _, b in pairs]
    scalars = [y[0].clone() for y in right]  # rank 0 counts less

    def all_pairs(*given: torch.Tensor) -> list[torch.Tensor]:
        n = len(pairs)
        return [fn(x, y) for i, x in enumerate(given[:n]) for y in given[n + i :: n]]

    oracle(all_pairs, *left, *right, *scalars)


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "bitwise_and", "bitwise_or", "ne"])
def test_integers_are_exact(oracle: Any, name: str) -> None:
    fn, dtypes = (
        getattr(torch, name),
        (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
    )
    pairs = [torch.randint(0, 200, (2, 40)).to(dtype) for dtype in dtypes]
    oracle.each([lambda xy: fn(*xy)], *pairs)


def test_integer_division(oracle: Any) -> None:
    x = torch.arange(-7, 8)
    for d in (3, -3):
        oracle(lambda a, d=d: torch.div(a, d, rounding_mode="floor"), x)
        oracle(lambda a, d=d: torch.div(a, d, rounding_mode="trunc"), x)
        oracle(lambda a, d=d: a % d, x)
        oracle(lambda a, d=d: torch.fmod(a, d), x)
    # The divisor may be zero, which raises in eager on the CPU: not a kernel.
    oracle(lambda a: torch.div(a, a * 0 + 2, rounding_mode="floor"), x,
           fallbacks=["aten.div.Tensor_mode"])  # fmt: skip


def test_bits_of_a_number_and_a_tensor(oracle: Any) -> None:
    x = torch.tensor([0, 1, 5, 31, 62, 63])
    native(oracle(lambda x: [1 << x, -9 >> x, 6 & x, 6 | x, 6 ^ x], x))
    native(oracle(lambda x: [1 << x, 200 >> x, 6 & x, 6 | x, 6 ^ x], x[:3].to(torch.int8)))


def test_float_floor_division_is_c10s(oracle: Any) -> None:
    x = torch.tensor([1.0, -1.0, 0.3, 1e30, 5.0, -5.0, 0.0, float("inf")], dtype=torch.float64)
    y = torch.tensor([0.1, 0.1, -0.1, 3.0, 0.0, 0.0, -2.0, 2.0], dtype=torch.float64)
    oracle(lambda a, b: torch.div(a, b, rounding_mode="floor"), x, y)
    oracle(torch.remainder, x, y)


@pytest.mark.parametrize("exponent", [0, 0.5, 1, 2, 3, -0.5, -1, -2, 1.7, 4])
def test_powers(oracle: Any, exponent: float) -> None:
    oracle(lambda x: x**exponent, torch.rand(9) + 0.1)
    if isinstance(exponent, int) and exponent > 0:
        oracle(lambda x: x**exponent, torch.arange(-4, 5))


def test_alpha_and_scalars(oracle: Any) -> None:
    x, y = torch.randn(4, 3), torch.randn(3)
    oracle(lambda a, b: torch.add(a, b, alpha=0.25), x, y)
    oracle(lambda a, b: torch.sub(a, b, alpha=2), x, y)
    oracle(lambda a, b: torch.rsub(a, b, alpha=3), x, y)
    oracle(lambda a: torch.add(a, 1, alpha=5), torch.arange(4))
    oracle(lambda a: 1 / a + 3 - a * 0.1, x.bfloat16())
    oracle(lambda a: a + 2**40, torch.arange(4))
    oracle(lambda a: a + 2.5, torch.arange(4))
    oracle(lambda a, b, c: torch.addcmul(a, b, c, value=0.5), x, y, x)
    oracle(lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), x, y, x)
    oracle(lambda a, b: torch.lerp(a, b, 0.3), x, x.flip(0))
    oracle(torch.lerp, x, x.flip(0), torch.rand(4, 3))


def test_selection(oracle: Any) -> None:
    x, y, m = special(torch.float32), torch.randn(7), torch.rand(3, 7) > 0.5
    oracle(torch.where, m, x, y)
    oracle(lambda m, a: torch.where(m, a, 0.5), m, x.bfloat16())
    oracle(lambda m, a: torch.where(m, a, 1.5), m, torch.arange(7))
    oracle(lambda a, m: a.masked_fill(m, float("-inf")), x, m)
    oracle(lambda a, m, v: a.masked_fill(m, v), x, m, torch.tensor(3))
    oracle(lambda a: a.clamp(-0.5, 0.5), x)
    oracle(lambda a: a.clamp(min=1.5), torch.arange(4))
    oracle(lambda a: a.clamp(max=0), x.half())
    oracle(lambda a, b: a.clamp(min=b), x, y)
    oracle(lambda a, b: torch.clamp_max(a, b), x, y)
    oracle(lambda a: torch.nan_to_num(a), x)


def test_bits(oracle: Any) -> None:
    x, y = torch.randint(-99, 99, (20,)), torch.randint(-99, 99, (20,))
    oracle(torch.bitwise_xor, x, y)
    oracle(torch.bitwise_not, x)
    oracle(lambda a: ~(a > 3), x)
    oracle(lambda a: (a << 3) + (a >> 2), x)
    oracle(lambda a: a << 64, x, fallbacks=["aten.__lshift__.Scalar"])
    b, n = torch.arange(256, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8)[:, None] % 12
    oracle(lambda a, n: (a << n, a >> n), b, n)
    oracle(lambda a, n: (a << n, a >> n), b.view(torch.int8), n.view(torch.int8))


@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.bfloat16, torch.int64,
                                    torch.uint8, torch.bool])  # fmt: skip
def test_conversions(oracle: Any, source: torch.dtype) -> None:
    targets = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
               torch.int8, torch.bool)  # fmt: skip
    x = (torch.randn(64) * 40).to(source)
    oracle(lambda a: [a.to(t) if a.dtype != t else a.clone() for t in targets], x)


def test_double_rounding_is_eagers(oracle: Any) -> None:
    # Half way between two bf16 numbers only after the step through f32.
    x = torch.tensor([1.0 + 2**-8 + 2**-40, 1.0 + 2**-8 - 2**-40], dtype=torch.float64)
    oracle(lambda a: a.to(torch.bfloat16), x)
    oracle(lambda a: a.to(torch.bfloat16), torch.tensor([2**30 + 2**22 + 1, -(2**53) - 1]))


def test_strides_are_kept(oracle: Any) -> None:
    x = torch.randn(4, 6, 5)
    oracle(lambda a: a.permute(2, 0, 1) + 1, x)
    oracle(lambda a: a.transpose(0, 1)[1:, ::2] * 2, x)
    oracle(lambda a: a[:, 2].unsqueeze(1).expand(4, 3, 5) + a[:, :3], x)
    oracle(lambda a: a.contiguous(memory_format=torch.channels_last).clone(),
           torch.randn(2, 3, 4, 5))  # fmt: skip
    oracle(lambda a: torch.relu(a), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    oracle(lambda a: a[2:].view(torch.int32) + 1, torch.randn(8))
    oracle(lambda a: a.as_strided((2, 3), (1, 2), 4) * 2, torch.randn(12))


def test_offset_of_an_input_is_its_own(oracle: Any) -> None:
    base = torch.randn(40)
    oracle(lambda a: a[1:].view(3, 3) + 1, base[5:15])
    oracle(lambda a, b: a + b, base[1:9], base[8:16])


def test_rank_zero_and_empty(oracle: Any) -> None:
    oracle(lambda a: (a * 2 + 1, a.sum(0), a.prod(-1)), torch.tensor(3.0))
    oracle(lambda a: a + a, torch.randn(0, 3), fallbacks=["aten.add.Tensor"])
    native(oracle(lambda a: (a.sum(), a.prod(0), a.sum(0, True)), torch.randn(0, 3)))
    native(oracle(lambda a: a.sum((0, 1), dtype=torch.int64), torch.empty(2, 0, dtype=torch.int32)))


COMPLEX = {
    "quotients": lambda x, y, r: [x / y, x / r, x / 2.5, x / (1 + 2j), 1 / x, (1 - 1j) / x],
    "functions": lambda x, y, r: [x.exp(), torch.exp(1j * r), x.log(), x.sigmoid(), x.square(),
                                  F.silu(x), x**2, x == y, x.mean(), x.mean(1, True), x.norm()],
    "moves": lambda x, y, r: [
        F.pad(x, (1, 2), value=3), x.roll(2, 1), x.flip(1), torch.cat([x, y], 1), x.repeat(2, 2),
        torch.stack([x, y]), x[torch.tensor([2, 0])], x.tril(), x.cumsum(1),
        x.index_select(1, PLACES), torch.diag_embed(x), F.pad(x[None], (1, 1), "reflect"),
        torch.cat([x.t(), r.t()]), x.t().flip(0), x.diagonal_scatter(y[:, 0]), x.ne(y), ~(x == 0),
        x.logical_and(y), x.logical_not(), torch.addcmul(x, x, y, value=2), x.isnan(), 1 - x, x + 1,
        torch.rsub(x, y, alpha=2),
        x.gather(1, PLACES.expand(4, 2)), x.index_add(0, PLACES, y[:2]), torch.where(r > 0, x, y),
        x.flip(-1, 0), (x * 2).flip(-2), x.clone().index_put_((PLACES,), y[:2], accumulate=True),
        aten.index_put(x.conj(), [None, PLACES], y[:, :1]), x.conj().flip(0).resolve_conj(),
        torch.where(r > 0, x, 0), x.masked_fill(r > 0, 1j), x.t().masked_fill(r.t() > 0, 1),
    ],
    "fills": lambda x, y, r: [torch.zeros_like(x), torch.ones_like(x.t()), torch.full_like(x, 2j),
                              torch.zeros_like(x).copy_(y) * x],
}  # fmt: skip
PLACES = torch.tensor([1, 3])


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_in_kernels(oracle: Any, name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 4, 6, dtype=dtype)
    x[0, 0], y[0, :2] = 0, torch.tensor([1e30, 1e-30j])
    native(oracle(COMPLEX[name], x, y, torch.randn(4, 6, dtype=x.real.dtype)))


OF_COMPLEX = [
    torch.sqrt, torch.rsqrt, torch.exp, torch.exp2, torch.log, torch.log2, torch.log10,
    torch.sigmoid, torch.sinh, torch.cosh, torch.tanh, torch.sin, torch.cos, torch.tan, torch.asinh,
    torch.acosh,
    torch.atanh, torch.asin, torch.acos, torch.atan, torch.expm1, torch.log1p,
]  # fmt: skip


@pytest.mark.parametrize("function", OF_COMPLEX, ids=lambda f: f.__name__)
def test_functions_of_complex_numbers(function: Any, oracle: Any) -> None:
    torch.manual_seed(0)
    sizes = torch.logspace(-3, 1.5, 5, dtype=torch.float64)
    x = torch.randn(4, 5, dtype=torch.complex128) * sizes
    native(oracle(function, x))
    close = {"rtol": 4e-6, "atol": 1e-6} if function in (torch.exp2, torch.sigmoid) else {}
    rule = complex_functions.COMPLEX[getattr(torch.ops.aten, function.__name__).default]
    torch.testing.assert_close(
        rule(x.to(torch.complex64)), function(x).to(torch.complex64), **close
    )
    if function in (torch.expm1, torch.log1p):  # where eager is not what C99 says
        return
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    z = torch.complex(special[:, None].expand(7, 7).clone(), special.expand(7, 7).clone()).flatten()
    want = torch.cat([function(number[None]) for number in z])  # vectors differ from numbers
    if function is torch.sigmoid:  # far on the left it is 0, where eager's exponential overflows
        z, want = (x[~(z.real.isneginf() & want.isnan())] for x in (z, want))
    for got, eager in ((rule(z).real, want.real), (rule(z).imag, want.imag)):
        torch.testing.assert_close(got, eager, equal_nan=True)
        zeros = (eager == 0) & z.isfinite()
        assert torch.equal(got.signbit()[zeros], eager.signbit()[zeros])


def test_complex_numbers_at_the_ends_of_the_range() -> None:
    """Whose magnitude, square or exponential is infinite, or 0."""
    rules, f32 = complex_functions.COMPLEX, torch.tensor([3e38 + 3e38j, -3e38 - 3e38j])
    for name in ("sqrt", "log", "log10", "asin", "acos", "asinh", "acosh"):
        want = getattr(torch, name)(f32.to(torch.complex128)).to(torch.complex64)
        torch.testing.assert_close(rules[getattr(aten, name).default](f32), want)
    small = torch.tensor([1e-45 + 0j, -1e-40 + 1e-45j, 3e-42 - 2e-41j, 1e-20j, 0.9 + 1e-30j])
    want = small.to(torch.complex128).sqrt().to(torch.complex64)
    torch.testing.assert_close(rules[aten.sqrt.default](small), want, rtol=1e-6, atol=0)
    ends = torch.tensor([1 + 1e-20j, -1 - 1e-40j])
    torch.testing.assert_close(rules[aten.atanh.default](ends), ends.atanh())
    for name in ("sigmoid", "silu"):  # eager's own are NaN where an exponential is infinite
        for dtype, most in ((torch.complex64, 100.0), (torch.complex128, 800.0)):
            x = torch.tensor([complex(-most, 1), complex(most, -1), complex(-20, 2)], dtype=dtype)
            a = x.to(torch.complex128)
            e = a.real.neg().abs().neg().exp()
            e = torch.complex(e * a.imag.cos(), e * (a.imag * a.real.sign().neg()).sin())
            want = torch.where(a.real < 0, e, 1) / (1 + e) * (a if name == "silu" else 1)
            got = rules[getattr(aten, name).default](x)
            torch.testing.assert_close(got, want.to(dtype), rtol=1e-6, atol=1e-42)
    for x in (1e-42 + 1e-42j, 1e-40j, 3e38 + 3e38j, -1e-45 + 0j):
        for name in ("log", "log1p") if abs(x) > 1 else ("log",):
            a = torch.tensor([x, x, x])
            want = getattr(torch, name)(a.to(torch.complex128)).to(torch.complex64)
            torch.testing.assert_close(rules[getattr(aten, name).default](a), want)
    a = torch.tensor([1e10 + 1j, -3e9 + 0j, 1e20j, complex(math.inf, 2)], dtype=torch.complex128)
    want = torch.atan(a.real) + a.imag / abs(a) ** 2 * 1j
    want[2] = complex(math.pi / 2, 1e-20)
    want[3] = complex(math.pi / 2, 0)
    got = rules[aten.atan.default](a)
    torch.testing.assert_close(got, want, rtol=1e-15, atol=0)
    for dtype, x in ((torch.complex64, 100), (torch.complex128, 715)):  # one part is finite
        a = torch.tensor(
            [complex(x, 1e-40), complex(-x, -1e-40), complex(1e30, 1e-40)], dtype=dtype
        )
        for name in ("exp", "sinh", "cosh"):
            got, want = rules[getattr(aten, name).default](a), getattr(torch, name)(a)
            parts = map(torch.view_as_real, (got, want))
            torch.testing.assert_close(*parts, rtol=1e-5, atol=0)
    got = rules[aten.pow.Scalar](1, torch.tensor([complex(math.inf, math.nan), 1j]))
    assert got.tolist() == [1, 1]
    a, other = torch.tensor([complex(-1, -0.0), complex(-2, 0.0), -3 - 1j]), 1 + 2j
    power = rules[aten.pow.Tensor_Scalar](a, other)
    torch.testing.assert_close(power, a**other)
    endless = torch.tensor([complex(30, math.inf), complex(-100, math.nan), complex(30, 1)])
    assert rules[aten.tanh.default](endless).real.isnan().tolist() == [True, True, False]


def test_gradients_of_complex_functions(oracle: Any) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        seeds = [aten.sigmoid_backward(y, x.sigmoid()), aten.tanh_backward(y, x.tanh())]
        return [*seeds, torch.addcdiv(x, y, x, value=2j)]

    native(oracle(run, *torch.randn(2, 3, dtype=torch.complex128)))


def test_powers_of_complex_numbers(oracle: Any) -> None:
    x, y = torch.randn(2, 4, 6, dtype=torch.complex128)
    x[0] = 0

    def run(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        of_numbers = [x**n for n in (0, 1, 3, 0.5, -1, -2, -0.5, 2.5)]
        return [*of_numbers, y**2j, y**x, 2.0**y, (1 + 1j) ** y, y.real**x, x ** y.real.abs()]

    native(oracle(run, x, y))


def test_complex_numbers_are_pairs(oracle: Any) -> None:
    x = torch.randn(3, dtype=torch.complex64)
    oracle(lambda a: a.cumprod(0), x, fallbacks=["aten.cumprod.default"])
    native(oracle(lambda a: torch.view_as_real(a) + 1, x))
    lowered = oracle(lambda a: (torch.view_as_real(a)[1:], a.real.sum(0, dtype=torch.float64)), x)
    assert lowered.graph.outputs[0].buffer == lowered.graph.inputs[0].name
    # A kernel reads elements of another width from a copy.
    oracle(lambda a: a.view(torch.int64) + 1, x, fallbacks=["aten.clone.default"])


def test_lazy_bits_are_seen(oracle: Any) -> None:
    x = torch.randn(3, dtype=torch.complex64)
    graph = oracle(lambda a: a.conj(), x).graph
    (ref,) = graph.outputs
    assert ref.conj and ref.buffer == graph.inputs[0].name
    native(oracle(lambda a: a.conj() * a, x))
    oracle(lambda a: torch._neg_view(a)[1:] * 2, torch.randn(3))  # negated as it is loaded


def test_lifted_constants_are_kept(oracle: Any) -> None:
    weight = torch.randn(3)
    lowered = oracle(lambda a: a + weight * torch.tensor(0.5), torch.randn(2, 3))
    (kept,) = lowered.constants.values()  # the number went into the kernel
    assert kept is weight


def test_numbers_wrap_as_integers_do(oracle: Any) -> None:
    oracle(lambda a: a + 300, torch.arange(5, dtype=torch.uint8))
    oracle(lambda a: a.to(torch.float64).add(0.9999999999).to(torch.int8), torch.arange(5))
    oracle(lambda a: a * -1, torch.tensor([-128, 127], dtype=torch.int8))


def native(lowered: Any) -> None:
    assert not any(isinstance(n, Extern) for n in lowered.graph.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_mathematics(oracle: Any, dtype: torch.dtype) -> None:
    # in whole kernels: `tests/test_special_functions.py`
    x = torch.cat([torch.linspace(-6.3, 30, 40, dtype=dtype), special(dtype).flatten()])
    x = torch.cat([x, torch.tensor([-math.inf, -3, 10, 1e20, 1e-20], dtype=dtype)])
    native(oracle(lambda x: torch.digamma(x), x))
    native(oracle(lambda x: torch.polygamma(1, x), x.abs() + 0.1))
    for decimals in (0, 2, -1):
        native(oracle(lambda x, n=decimals: torch.round(x, decimals=n), x))
    share = torch.tensor([0.0, 1.0, 0.3, -0.1, 1.2, math.nan, 0.04], dtype=dtype)
    for eps in (None, 0.1):
        native(oracle(lambda g, x, eps=eps: aten.logit_backward(g, x, eps), share + 1, share))
    below = torch.full((64,), -0.0, dtype=dtype)  # where eager's vectors and CUDA have -inf
    native(oracle(lambda g, x: aten.logit_backward(g, x), below + 1, below))
    oracle(lambda x: torch.polygamma(11, x), x.abs() + 1, fallbacks=["aten.polygamma.default"])
    native(oracle(lambda x: (torch.nextafter(x, x.flip(0)), *torch.frexp(x)), x))


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, math.inf])
def test_distances_of_rows(oracle: Any, p: float) -> None:
    x, y = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    x[0, 1] = x[0, 3] = y[0]
    distance = torch.cdist(x, y, p)
    native(oracle(lambda x, y: torch.cdist(x, y, p), x, y))
    g, y = torch.randn(2, 5, 4, dtype=torch.float64), y.expand(2, 4, 3)
    native(oracle(lambda g, x, y, d: aten._cdist_backward(g, x, y, p, d), g, x, y, distance))
    g, x, distance = torch.randn(10, dtype=torch.float64), x[0], F.pdist(x[0], p)
    native(oracle(lambda x: F.pdist(x, p), x))
    native(oracle(lambda g, x, d: aten._pdist_backward(g, x, p, d), g, x, distance))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_integers(oracle: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([-3, -2, -1, 0, 1, 2, 3], dtype=dtype)[:, None]
    n = torch.tensor([-2, -1, 0, 1, 2, 3, 4, 31, 63, 64], dtype=dtype)
    native(oracle(lambda x, n: (x << n, x >> n), x, n))
    native(oracle(torch.pow, x, n[:6]))
    native(oracle(lambda x: (F.hardtanh(x, -2, 1), F.threshold(x, 1, 7)), x))
