"""Random numbers: Philox of a seed (`aten_lowering.seeds`) and the place of an element among all.

The distributions are eager's, the numbers are not. An element has the same ones wherever it is
computed, and whatever the strides of the result are."""

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Number, Operand, Value
from aten_lowering.call import Call, opmath
from aten_lowering.drawn import DRAWN, below
from aten_lowering.errors import require
from aten_lowering.lowerings.chebyshev import horner
from aten_lowering.lowerings.creation import plain_memory
from aten_lowering.registry import Table, named
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# sin(2 pi s) / s as a polynomial of s * s for |s| <= 1/4, to 2e-7 in f32: a Chebyshev fit.
_SINE = (39.760723, -76.581284, 81.602478, -41.341682, 6.2831855)


class _Source:
    """The kernel of a random operator over the elements of its result, and its random bits."""

    def __init__(
        self, call: Call, generator: Any = None, layout: Any = None, pin_memory: Any = None
    ) -> None:
        require(generator is None, "a generator of its own")
        plain_memory(layout, pin_memory)
        self.call = call
        self.size = call.results[0].size if call.results[0] is not None else ()
        self.k: KernelBuilder = call.kernel(self.size)
        seed = call.arguments.get("seed")
        if seed is None:
            require(call.seeds is not None, "random numbers are torch's own")
            assert call.seeds is not None
            seed = call.seeds.of(call.node)
        self.seed = self.k.load(seed, (sympy.S.Zero,))
        place: sympy.Expr = sympy.S.Zero
        for n, c in zip(self.size, self.k.coords, strict=True):
            place = place * n + c
        self.place = sympy.expand(place)

    @property
    def coords(self) -> Coords:
        """Those of the element that is computed."""
        return self.k.coords

    @property
    def dtype(self) -> DType:
        """The type that the distributions of floats are computed in."""
        dtype = self.call.out.dtype
        require(dtype.is_float, f"random numbers of {dtype.value}")
        return opmath(dtype)

    def bits(self, draw: int = 0, draws: int = 1) -> Value:
        """32 random bits; `draw`: which of the `draws` that an element takes."""
        return self._word(self.k.index(sympy.expand(self.place * draws + draw)))

    def _word(self, counter: Value) -> Value:
        return self.seed("philox", counter, dtype=DType.u32)

    def uniform(self, dtype: DType, draw: int = 0, draws: int = 1) -> Value:
        """Uniform in [0, 1): multiples of 2**-24 in f32, of 2**-53 in f64."""
        if dtype is not DType.f64:
            return self._fraction(self.bits(draw, draws))
        high = self.bits(2 * draw, 2 * draws) >> 5
        low = self.bits(2 * draw + 1, 2 * draws) >> 6
        return (high.to(DType.f64) * 2.0**26 + low.to(DType.f64)) * 2.0**-53

    def _fraction(self, bits: Value) -> Value:
        """32 bits as a multiple of 2**-24 below 1."""
        return (bits >> 8).to(DType.f32) * 2.0**-24

    def positive(self, dtype: DType, draw: int = 0, draws: int = 1) -> Value:
        """Uniform in (0, 1]."""
        return 1 - self.uniform(dtype, draw, draws)

    def normal(self) -> Value:
        """Standard normal, after Box and Muller."""
        if self.dtype is not DType.f64:
            return self._normal_f32()
        square = self.positive(DType.f64, 0, 2)("log") * -2
        angle = self.uniform(DType.f64, 1, 2) * (2 * math.pi)
        return square("sqrt") * angle("cos")

    def _normal_f32(self) -> Value:
        """Two neighbours have a radius in common, which a thread computes once, and angles a
        quarter turn apart. The root and the cosine are right to 2e-7 and without the branches that
        they have for any argument."""
        place = self.k.index(self.place)
        first = place & -2
        unit = 1 - self._fraction(self._word(first))
        square = unit("log") * -2
        quarter = (place & 1) << 30
        second = self._word(first | 1)
        turn = self._fraction(second + quarter.to(DType.u32))
        radius = square * square("maximum", 1e-30)("rsqrt")
        # cos(2 pi u) = sin(2 pi s), s = |u - 1/2| - 1/4
        s = abs(turn - 0.5) - 0.25
        return radius * (s * horner(s * s, _SINE))

    def chance(self, p: float) -> Value:
        """True with the probability `p`, to 2**-32."""
        if p in (0, 1):
            return self.k.const(p == 1, DType.bool_)
        return self.bits() < below(p)

    def store(self, value: Value) -> None:
        """Stores an element of the result and emits the kernel."""
        self.call.store(self.k, value)


def _between(source: _Source, low: Number, high: Number) -> None:
    """Uniform in [low, high); what rounds up to `high` is `low`, as in eager."""
    dtype, out = source.dtype, source.call.out.dtype
    first, last = source.k.number(low, dtype), source.k.number(high, dtype)
    value = source.uniform(dtype)
    if (low, high) != (0, 1):
        value = value("fma", last - first, first)
    elif out is dtype:  # the largest is below 1
        return source.store(value)
    value = value.to(out)
    source.store((value >= last.to(out)).choose(first.to(out), value))


@table.lowers(aten.rand.default, aten.rand_like.default)
def rand(call: Call, layout: Any, pin_memory: Any, **shown: Any) -> None:
    """Uniform in [0, 1)."""
    _between(_Source(call, None, layout, pin_memory), 0, 1)


@table.lowers(aten.randn.default, aten.randn_like.default)
def randn(call: Call, layout: Any, pin_memory: Any, **shown: Any) -> None:
    """Standard normal."""
    source = _Source(call, None, layout, pin_memory)
    source.store(source.normal())


@table.lowers(aten.uniform.default)
def uniform(call: Call, input: Operand, low: Number, to: Number, generator: Any) -> None:
    """Uniform in [low, to)."""
    _between(_Source(call, generator), low, to)


@table.lowers(aten.normal_functional.default)
def normal(call: Call, input: Operand, mean: Number, std: Number, generator: Any) -> None:
    """Normal, of one mean and one deviation."""
    source = _Source(call, generator)
    source.store(source.normal()("fma", std, mean))


@table.lowers(
    *named("normal.Tensor_Tensor normal.Tensor_float", "normal.float_Tensor normal.float_float")
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
    source = _Source(call, generator, layout, pin_memory)

    def parameter(x: Operand | Number) -> Value | Number:
        if not isinstance(x, Operand):
            return x
        return source.k.load_broadcast(x, source.size, source.coords).to(source.dtype)

    shift, scale = parameter(mean), parameter(std)
    source.store(source.normal()("fma", scale, shift))


@table.lowers(aten.log_normal.default)
def log_normal(call: Call, input: Operand, mean: Number, std: Number, generator: Any) -> None:
    """The exponential of normal numbers."""
    source = _Source(call, generator)
    source.store(source.normal()("fma", std, mean)("exp"))


@table.lowers(aten.cauchy.default)
def cauchy(call: Call, input: Operand, median: Number, sigma: Number, generator: Any) -> None:
    """`median + sigma * tan(pi * (u - 1/2))`, never at the ends."""
    source = _Source(call, generator)
    least = 2.0**-53 if source.dtype is DType.f64 else 2.0**-24
    centred = source.uniform(source.dtype)("maximum", least) - 0.5
    source.store((centred * math.pi)("tan")("fma", sigma, median))


@table.lowers(aten.geometric.default)
def geometric(call: Call, input: Operand, p: float, generator: Any) -> None:
    """How many tries until the first of probability `p`: at least one."""
    require(0 < p < 1, f"a probability of {p}")
    source = _Source(call, generator)
    dtype = DType.f64 if call.out.dtype is DType.f64 else DType.f32
    tries = source.positive(dtype)("log") / math.log1p(-p)
    source.store(tries("ceil")("maximum", 1))


@table.lowers(aten.exponential.default)
def exponential(call: Call, input: Operand, lambd: float, generator: Any) -> None:
    """`-log(u) / lambd`, never 0: as in eager, a `u` next to 1 counts as half an epsilon below."""
    source = _Source(call, generator)
    half = (2.0**-52 if source.dtype is DType.f64 else 2.0**-23) / 2
    u = source.positive(source.dtype)
    source.store(-(u >= 1 - half).choose(-half, u("log")) / lambd)


@table.lowers(
    aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype
)
def randint(
    call: Call, high: Number, layout: Any, pin_memory: Any, low: Number = 0, **shown: Any
) -> None:
    """Integers in [low, high)."""
    require(isinstance(low, int) and isinstance(high, int), "bounds that depend on sizes")
    assert isinstance(low, int) and isinstance(high, int)
    require(0 < high - low < 2**31, "a range of 32 bits or more")
    source = _Source(call, None, layout, pin_memory)
    scaled = source.bits().to(DType.i64) * (high - low)
    source.store((scaled >> 32) + low)


@table.lowers(aten.bernoulli.default)
def bernoulli(call: Call, input: Operand, generator: Any) -> None:
    """1 with the probability that each element of the input is, else 0."""
    source = _Source(call, generator)
    p = source.k.load(input, source.coords).to(source.dtype)
    source.store(source.uniform(source.dtype) < p)


@table.lowers(aten.bernoulli.p)
def bernoulli_p(call: Call, input: Operand, p: float, generator: Any) -> None:
    """1 with the probability p, else 0."""
    require(0 <= p <= 1, f"a probability of {p}")
    source = _Source(call, generator)
    source.store(source.chance(p))


@table.lowers(DRAWN)
def drawn(call: Call, seed: Operand, order: Sequence[int], p: float, **shown: Any) -> None:
    """True with the probability p, as a given seed decides."""
    source = _Source(call)
    source.store(source.chance(p))


@table.lowers(aten.native_dropout.default)
def dropout(call: Call, input: Operand, p: float, train: bool | None) -> None:
    """0 with the probability p, else the input over `1 - p`; and the mask of what is kept."""
    require(0 <= p <= 1 and input.dtype.is_float, f"dropout of {input.dtype.value} with {p}")
    source = _Source(call)
    k, kept = source.k, 1 - p if train is not False else 1.0
    mask = source.chance(kept)
    if call.result(0) is not None:
        value = k.load(input, source.coords)
        if kept != 1:
            dtype = opmath(input.dtype)
            value = value.to(dtype) * mask.to(dtype) * (0.0 if kept == 0 else 1 / kept)
        call.put(0, k, value)
    call.put(1, k, mask)
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
    dtype = opmath(input.dtype)
    x = k.load(input, k.coords).to(dtype)
    first, last = k.number(lower, dtype), k.number(upper, dtype)
    if source:
        drawn = source.uniform(dtype)("fma", last - first, first)
        slope = drawn.to(input.dtype, asked=True).to(dtype)
    else:
        slope = (first + last) * 0.5
    slope = (x <= 0).choose(slope, 1)
    call.put(0, k, x * slope)
    if call.result(1) is not None:
        call.put(1, k, slope if source else k.load(noise, k.coords))
    call.emit_kernel(k)
