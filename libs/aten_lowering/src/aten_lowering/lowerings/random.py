"""Random numbers: Philox of a seed (`aten_lowering.seeds`) and the place of an element among all.

The distributions are eager's, the numbers are not. An element has the same ones wherever it is
computed, and whatever the strides of the result are.
"""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number, number, opmath
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# sin(2 pi s) / s as a polynomial of s * s for |s| <= 1/4, to 2e-7 in f32: a Chebyshev fit.
_SINE = (39.760723, -76.581284, 81.602478, -41.341682, 6.2831855)


class _Source:
    """The kernel of a random operator over the elements of its result, and its random bits."""

    def __init__(self, call: Call, generator: Any = None, layout: Any = None) -> None:
        require(call.seeds is not None, "random numbers are torch's own")
        require(generator is None, "a generator of its own")
        require(layout in (None, torch.strided), "layout")
        assert call.seeds is not None
        self.call = call
        self.size = call.results[0].size if call.results[0] is not None else ()
        self.k: KernelBuilder = call.kernel(self.size)
        self.seed = call.seeds.load(self.k, call.node)
        place: sympy.Expr = sympy.S.Zero
        for n, c in zip(self.size, self.k.coords, strict=True):
            place = place * n + c
        self.place = sympy.expand(place)

    @property
    def coords(self) -> Coords:
        """Those of the element that is computed."""
        return self.k.coords

    def bits(self, draw: int = 0, draws: int = 1) -> Value:
        """32 random bits; `draw`: which of the `draws` that an element takes."""
        k = self.k
        return self._word(k.index(sympy.expand(self.place * draws + draw)))

    def _word(self, counter: Value) -> Value:
        return self.k.op("philox", self.seed, counter, dtype=DType.u32)

    def uniform(self, dtype: DType, draw: int = 0, draws: int = 1) -> Value:
        """Uniform in [0, 1): multiples of 2**-24 in f32, of 2**-53 in f64."""
        k = self.k
        if dtype is not DType.f64:
            return self._fraction(self.bits(draw, draws))
        high = k.op("shr", self.bits(2 * draw, 2 * draws), k.const(5, DType.u32))
        low = k.op("shr", self.bits(2 * draw + 1, 2 * draws), k.const(6, DType.u32))
        scaled = k.op("mul", k.cast(high, DType.f64), k.const(2.0**26, DType.f64))
        total = k.op("add", scaled, k.cast(low, DType.f64))
        return k.op("mul", total, k.const(2.0**-53, DType.f64))

    def _fraction(self, bits: Value) -> Value:
        """32 bits as a multiple of 2**-24 below 1."""
        k = self.k
        high = k.op("shr", bits, k.const(8, DType.u32))
        return k.op("mul", k.cast(high, DType.f32), k.const(2.0**-24, DType.f32))

    def positive(self, dtype: DType, draw: int = 0, draws: int = 1) -> Value:
        """Uniform in (0, 1]."""
        return self.k.op("sub", self.k.const(1, dtype), self.uniform(dtype, draw, draws))

    def normal(self, dtype: DType) -> Value:
        """Standard normal, after Box and Muller."""
        if dtype is not DType.f64:
            return self._normal_f32()
        k = self.k
        square = k.op("mul", k.op("log", self.positive(dtype, 0, 2)), k.const(-2, dtype))
        angle = k.op("mul", self.uniform(dtype, 1, 2), k.const(2 * math.pi, dtype))
        return k.op("mul", k.op("sqrt", square), k.op("cos", angle))

    def _normal_f32(self) -> Value:
        """Two neighbours have a radius in common, which a thread computes once, and angles a
        quarter turn apart. The root and the cosine are right to 2e-7 and without the branches that
        they have for any argument."""
        k, dtype, i64 = self.k, DType.f32, DType.i64
        place = k.index(self.place)
        first = k.op("and", place, k.const(-2, i64))
        unit = k.op("sub", k.const(1, dtype), self._fraction(self._word(first)))
        square = k.op("mul", k.op("log", unit), k.const(-2, dtype))
        quarter = k.op("shl", k.op("and", place, k.const(1, i64)), k.const(30, i64))
        second = self._word(k.op("or", first, k.const(1, i64)))
        turn = self._fraction(k.op("add", second, k.cast(quarter, DType.u32)))
        root = k.op("rsqrt", k.op("maximum", square, k.const(1e-30, dtype)))
        radius = k.op("mul", square, root)
        # cos(2 pi u) = sin(2 pi s), s = |u - 1/2| - 1/4
        s = k.op("sub", k.op("abs", k.op("sub", turn, k.const(0.5, dtype))), k.const(0.25, dtype))
        z = k.op("mul", s, s)
        series = k.const(_SINE[0], dtype)
        for coefficient in _SINE[1:]:
            series = k.op("fma", series, z, k.const(coefficient, dtype))
        return k.op("mul", radius, k.op("mul", s, series))

    def chance(self, p: float) -> Value:
        """True with the probability `p`, to 2**-32."""
        k = self.k
        if p in (0, 1):
            return k.const(p == 1, DType.bool_)
        return k.op("lt", self.bits(), k.const(min(round(p * 2**32), 2**32 - 1), DType.u32))

    def store(self, value: Value) -> None:
        """Stores an element of the result and emits the kernel."""
        self.call.store(self.k, value)


def _computed(call: Call) -> DType:
    dtype = call.out.dtype
    require(dtype.is_float, f"random numbers of {dtype.value}")
    return opmath(dtype)


def _between(source: _Source, low: Number, high: Number) -> None:
    """Uniform in [low, high); what rounds up to `high` is `low`, as in eager."""
    call, k = source.call, source.k
    dtype, out = _computed(call), call.out.dtype
    first, last = number(k, low, dtype), number(k, high, dtype)
    value = source.uniform(dtype)
    if (low, high) != (0, 1):
        value = k.op("fma", value, k.op("sub", last, first), first)
    elif out is dtype:  # the largest is below 1
        return source.store(value)
    value = k.cast(value, out)
    at_end = k.op("ge", value, k.cast(last, out))
    source.store(k.where(at_end, k.cast(first, out), value))


@table.lowers(aten.rand.default, aten.rand_like.default)
def rand(call: Call, layout: Any, pin_memory: Any, **shown: Any) -> None:
    """Uniform in [0, 1)."""
    require(not pin_memory, "pinned memory")
    _between(_Source(call, layout=layout), 0, 1)


@table.lowers(aten.randn.default, aten.randn_like.default)
def randn(call: Call, layout: Any, pin_memory: Any, **shown: Any) -> None:
    """Standard normal."""
    require(not pin_memory, "pinned memory")
    source = _Source(call, layout=layout)
    source.store(source.normal(_computed(call)))


@table.lowers(aten.uniform.default)
def uniform(call: Call, input: Operand, low: Number, to: Number, generator: Any) -> None:
    """Uniform in [low, to)."""
    _between(_Source(call, generator), low, to)


@table.lowers(aten.normal_functional.default)
def normal(call: Call, input: Operand, mean: Number, std: Number, generator: Any) -> None:
    """Normal, of one mean and one deviation."""
    source = _Source(call, generator)
    k, dtype = source.k, _computed(call)
    scale, shift = number(k, std, dtype), number(k, mean, dtype)
    source.store(k.op("fma", source.normal(dtype), scale, shift))


@table.lowers(
    aten.normal.Tensor_Tensor,
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.normal.float_float,
)
def normals(
    call: Call,
    mean: Operand | Number,
    std: Operand | Number,
    generator: Any,
    layout: Any = None,
    pin_memory: Any = None,
    **shown: Any,
) -> None:
    """Normal, of a mean and a deviation for each element."""
    require(not pin_memory, "pinned memory")
    source = _Source(call, generator, layout)
    k, dtype = source.k, _computed(call)

    def parameter(x: Operand | Number) -> Value:
        if isinstance(x, Operand):
            return k.cast(k.load_broadcast(x, source.size, source.coords), dtype)
        return number(k, x, dtype)

    shift, scale = parameter(mean), parameter(std)
    source.store(k.op("fma", source.normal(dtype), scale, shift))


@table.lowers(aten.log_normal.default)
def log_normal(call: Call, input: Operand, mean: Number, std: Number, generator: Any) -> None:
    """The exponential of normal numbers."""
    source = _Source(call, generator)
    k, dtype = source.k, _computed(call)
    log = k.op("fma", source.normal(dtype), number(k, std, dtype), number(k, mean, dtype))
    source.store(k.op("exp", log))


@table.lowers(aten.cauchy.default)
def cauchy(call: Call, input: Operand, median: Number, sigma: Number, generator: Any) -> None:
    """`median + sigma * tan(pi * (u - 1/2))`, never at the ends."""
    source = _Source(call, generator)
    k, dtype = source.k, _computed(call)
    least = k.const(2.0**-53 if dtype is DType.f64 else 2.0**-24, dtype)
    centred = k.op("sub", k.op("maximum", source.uniform(dtype), least), k.const(0.5, dtype))
    slope = k.op("tan", k.op("mul", centred, k.const(math.pi, dtype)))
    source.store(k.op("fma", slope, number(k, sigma, dtype), number(k, median, dtype)))


@table.lowers(aten.geometric.default)
def geometric(call: Call, input: Operand, p: float, generator: Any) -> None:
    """How many tries until the first of probability `p`: at least one."""
    require(0 < p < 1, f"a probability of {p}")
    source = _Source(call, generator)
    dtype = DType.f64 if call.out.dtype is DType.f64 else DType.f32
    k = source.k
    tries = k.op("div", k.op("log", source.positive(dtype)), k.const(math.log1p(-p), dtype))
    source.store(k.op("maximum", k.op("ceil", tries), k.const(1, dtype)))


@table.lowers(aten.exponential.default)
def exponential(call: Call, input: Operand, lambd: float, generator: Any) -> None:
    """`-log(u) / lambd`, never 0: as in eager, a `u` next to 1 counts as half an epsilon below."""
    source = _Source(call, generator)
    k, dtype = source.k, _computed(call)
    half = (2.0**-52 if dtype is DType.f64 else 2.0**-23) / 2
    u = source.positive(dtype)
    high = k.op("ge", u, k.const(1 - half, dtype))
    log = k.where(high, k.const(-half, dtype), k.op("log", u))
    source.store(k.op("div", k.op("neg", log), k.const(lambd, dtype)))


@table.lowers(
    aten.randint.default,
    aten.randint.low,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
)
def randint(
    call: Call, high: Number, layout: Any, pin_memory: Any, low: Number = 0, **shown: Any
) -> None:
    """Integers in [low, high)."""
    require(isinstance(low, int) and isinstance(high, int), "bounds that depend on sizes")
    require(not pin_memory, "pinned memory")
    assert isinstance(low, int) and isinstance(high, int)
    require(0 < high - low < 2**31, "a range of 32 bits or more")
    source = _Source(call, layout=layout)
    k, i64 = source.k, DType.i64
    scaled = k.op("mul", k.cast(source.bits(), i64), k.const(high - low, i64))
    place = k.op("shr", scaled, k.const(32, i64))
    source.store(k.op("add", place, k.const(low, i64)))


@table.lowers(aten.bernoulli.default)
def bernoulli(call: Call, input: Operand, generator: Any) -> None:
    """1 with the probability that each element of the input is, else 0."""
    source = _Source(call, generator)
    k, dtype = source.k, _computed(call)
    p = k.cast(k.load(input, source.coords), dtype)
    source.store(k.op("lt", source.uniform(dtype), p))


@table.lowers(aten.bernoulli.p)
def bernoulli_p(call: Call, input: Operand, p: float, generator: Any) -> None:
    """1 with the probability p, else 0."""
    require(0 <= p <= 1, f"a probability of {p}")
    source = _Source(call, generator)
    source.store(source.chance(p))


@table.lowers(aten.native_dropout.default)
def dropout(call: Call, input: Operand, p: float, train: bool | None) -> None:
    """0 with the probability p, else the input over `1 - p`; and the mask of what is kept."""
    require(0 <= p <= 1 and input.dtype.is_float, f"dropout of {input.dtype.value} with {p}")
    source = _Source(call)
    k, kept = source.k, 1 - p if train is not False else 1.0
    mask = source.chance(kept)
    result, places = call.result(0), call.result(1)
    if result is not None:
        value = k.load(input, source.coords)
        if kept != 1:
            dtype = opmath(input.dtype)
            scale = k.const(0.0 if kept == 0 else 1 / kept, dtype)
            value = k.op("mul", k.op("mul", k.cast(value, dtype), k.cast(mask, dtype)), scale)
        k.store(result.operand, source.coords, value)
    if places is not None:
        k.store(places.operand, source.coords, mask)
    call.emit_kernel(k)


@table.lowers(aten.rrelu_with_noise_functional.default)
def rrelu(
    call: Call,
    input: Operand,
    noise: Operand,
    lower: Number,
    upper: Number,
    training: bool,
    generator: Any,
) -> None:
    """What is not above 0 times a slope: in training one for each element, uniform in
    [lower, upper), which the second result keeps."""
    require(input.dtype.is_float, f"slopes of {input.dtype.value}")
    source = _Source(call, generator) if training else None
    k = source.k if source else call.kernel()
    dtype, result, slopes = opmath(input.dtype), call.result(0), call.result(1)
    x = k.cast(k.load(input, k.coords), dtype)
    first, last = number(k, lower, dtype), number(k, upper, dtype)
    if source:
        drawn = k.op("fma", source.uniform(dtype), k.op("sub", last, first), first)
        slope = k.cast(k.cast(drawn, input.dtype, asked=True), dtype)
    else:
        slope = k.op("mul", k.op("add", first, last), k.const(0.5, dtype))
    below = k.op("le", x, k.const(0, dtype))
    slope = k.where(below, slope, k.const(1, dtype))
    if result is not None:
        k.store(result.operand, k.coords, k.op("mul", x, slope))
    if slopes is not None:
        k.store(slopes.operand, k.coords, slope if source else k.load(noise, k.coords))
    call.emit_kernel(k)
