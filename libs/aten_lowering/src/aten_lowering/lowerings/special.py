"""Functions of mathematics that eager computes by formulas of its own (ATen/native/Math.h)."""

import math

import sympy
import torch

from aten_lowering.builder import Operand, Value
from aten_lowering.call import Call
from aten_lowering.elementwise import elementwise, function, load_as, promoted, rows
from aten_lowering.errors import require
from aten_lowering.lowerings.arithmetic import repeated
from aten_lowering.lowerings.chebyshev import floats, horner, series
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# Of the series of digamma in 1/x^2 (cephes, `psi`), the highest power first.
_PSI = (1 / 12, -2.10927960927960927961e-2, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


# Of the quantile of the normal distribution (cephes, `ndtri`), the highest powers first: in the
# middle (of the squared distance from 1/2), and of 1/z with z = sqrt(-2 log p), up to 8 and above.
# Numerators and denominators, one below the other.
_NDTRI = """\
-59.9633501014107895267 98.0010754185999661536 -56.6762857469070293439 13.9312609387279679503
-1.23916583867381258016

1 1.95448858338141759834 4.67627912898881538453 86.3602421390890590575 -225.462687854119370527
200.260212380060660359 -82.0372256168333339912 15.9056225126211695515 -1.18331621121330003142

4.05544892305962419923 31.5251094599893866154 57.1628192246421288162 44.0805073893200834700
14.6849561928858024014 2.18663306850790267539 -0.140256079171354495875 -0.0350424626827848203418
-8.57456785154685413611e-4

1 15.7799883256466749731 45.3907635128879210584 41.3172038254672030440 15.0425385692907503408
2.50464946208309415979 -0.142182922854787788574 -0.0380806407691578277194 -9.33259480895457427372e-4

3.23774891776946035970 6.91522889068984211695 3.93881025292474443415 1.33303460815807542389
0.201485389549179081538 0.0123716634817820021358 3.01581553508235416007e-4 2.65806974686737550832e-6
6.23974539184983293730e-9

1 6.02427039364742014255 3.67983563856160859403 1.37702099489081330271 0.216236993594496635890
0.0134204006088543189037 3.28014464682127739104e-4 2.89247864745380683936e-6
6.79019408009981274425e-9
"""


@function(table, aten.polygamma.default)
def polygamma(x: Value, *, n: int) -> Value:
    """The derivative of order n of digamma, up to 10."""
    require(n <= 10, f"polygamma of order {n}")
    return (_digamma, _trigamma)[n](x) if n < 2 else _polygamma(x, n)


def _polygamma(x: Value, n: int) -> Value:
    """`(-1)^(n+1) n! zeta(n + 1, x)`: the first terms of the sum, Euler and Maclaurin's formula for
    the rest; below 0 reflected by the derivative of the cotangent."""
    negative = x < 0
    a = negative.choose(1 - x, x)
    count = n + 6
    z = a + count
    inverse = 1 / z
    terms = [
        sympy.bernoulli(2 * j) * sympy.rf(n + 1, 2 * j - 1) / sympy.factorial(2 * j)
        for j in range(1, 8)
    ]
    rest = horner(inverse * inverse, tuple(float(t) for t in reversed(terms)))
    total = repeated(1 / (a + count - 1), n + 1)
    for i in reversed(range(count - 1)):
        total = total + repeated(1 / (a + i), n + 1)
    tail = inverse * (1 + n * inverse * (0.5 + inverse * rest))
    for i in range(1, n):
        tail = i * inverse * tail
    total = tail + math.factorial(n) * total
    powers = [0, 1]  # of the cotangent c, whose derivative is -(1 + c^2)
    for _ in range(n):
        slope = [i * p for i, p in enumerate(powers)][1:]
        powers = [-p - q for p, q in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    scaled = (math.pi ** (n + 1 - i) * p for i, p in reversed([*enumerate(powers)]))
    turned = horner(_cotangent(x), tuple(scaled))
    value = negative.choose(-turned - total, total if n % 2 else -total)
    pole = (x <= 0) & x("eq", x("floor"))
    value = pole.choose(math.inf if n % 2 else -math.inf, value)
    return x("eq", math.inf).choose(math.nan, value)


def _cotangent(x: Value) -> Value:
    """`pi cot(pi x)`, of the exact distance r to an integer, by g(r^2) / r; where that is more than
    a quarter, of the distance u to a half, by pi^2 u / g(u^2). g(t) = 1 - 2 (zeta(2) t + zeta(4)
    t^2 + ...)."""
    r = x - x("round")
    far = abs(r) > 0.25
    u = 0.5 - abs(r)
    r = far.choose((r < 0).choose(-u, u), r)
    terms = range(14 if x.dtype is DType.f64 else 7, 0, -1)
    g = horner(r * r, (*(-2 * float(sympy.zeta(2 * k)) for k in terms), 1.0))
    return far.choose(math.pi**2 * r, g) / far.choose(g, r)


def _digamma(x: Value) -> Value:
    """The derivative of the logarithm of the gamma function: the series, before which the
    recurrence leads; reflected below 0."""
    negative = x < 0
    a = negative.choose(1 - x, x)
    result = x.number(0)
    start = 10 if x.dtype is DType.f64 else 4
    for quotient in ("div", *["near_div"] * (start - 1)):  # the largest one exactly
        small = a < start
        result = result - small.choose(x.number(1)(quotient, a), 0)
        a = small.choose(a + 1, a)
    inverse = x.number(1).over(a)
    result = result + (a("log") - inverse * (0.5 + inverse * horner(inverse * inverse, _PSI)))
    reflected = x("eq", x("trunc")).choose(math.nan, result - _cotangent(x))
    result = negative.choose(reflected, result)
    at_zero = x("signbit").choose(x.number(math.inf), -math.inf)
    return x("eq", 0).choose(at_zero, result)


function(table, aten.digamma.default)(_digamma)


def _trigamma(x: Value) -> Value:
    low = x < 0.5
    sine = (x * math.pi)("sin")
    a = low.choose(1 - x, x)
    result = low.choose(-math.pi * math.pi / (sine * sine), 0)
    for _ in range(6):
        result = result + 1 / (a * a)
        a = a + 1
    inverse = 1 / (a * a)
    series = inverse * horner(inverse, (1 / 42, -1 / 30, 1 / 6)) + 0.5 / a
    result = result + (series + 1) / a
    return low.choose(-result, result)


@function(table, aten.special_erfcx.default)
def erfcx(x: Value) -> Value:
    """`exp(x^2) erfc(x)`; below 0, `2 exp(x^2) - erfcx(-x)`, with the square to twice the bits."""
    a = abs(x)
    above = series()["ERFCX"].at(x.number(1).over(a + 3)).over(a + 0.5)
    b = a("minimum", 30)  # the exponential of its square is infinite
    square = b * b
    power = square("exp") * (1 + b("fma", b, -square))
    return (x < 0).choose(2 * power - above, above)


@function(table, aten.special_ndtri.default)
def ndtri(x: Value) -> Value:
    """The quantile of the normal distribution."""
    tables = iter(_NDTRI.split("\n\n"))

    def ratio(z: Value) -> Value:
        """Of the next two tables."""
        return horner(z, floats(next(tables))).over(horner(z, floats(next(tables))))

    y = x - 0.5
    square = y * y
    central = math.sqrt(2 * math.pi) * (y + y * (square * ratio(square)))
    p = x("minimum", 1 - x)
    z = (-2 * p("log"))("sqrt")
    inverse = z.number(1).over(z)
    less = (z < 8).choose(ratio(inverse), ratio(inverse))
    quantile = z - z("log").over(z) - inverse * less
    value = (p > math.exp(-2)).choose(central, (y > 0).choose(quantile, -quantile))
    value = x("eq", 0).choose(-math.inf, value)
    return x("eq", 1).choose(math.inf, value)


_BITS = {DType.bf16: DType.i16, DType.f16: DType.i16, DType.f32: DType.i32, DType.f64: DType.i64}


@elementwise(table, aten.nextafter.default, kind=Promotion.NO_OPMATH)
def nextafter(x: Value, y: Value) -> Value:
    """The next number of the type after `x`, towards `y`."""
    bits = x("bitcast", dtype=_BITS[x.dtype])
    outwards = (x < y)("eq", x > 0)
    moved = outwards.choose(bits + 1, bits - 1)
    least = bits.number(1)("bitcast", dtype=x.dtype)
    from_zero = (y < 0).choose(-least, least)
    result = x("eq", 0).choose(from_zero, moved("bitcast", dtype=x.dtype))
    nan = x("isnan") | y("isnan")
    return nan.choose(x + y, x("eq", y).choose(y, result))


@table.lowers(aten.frexp.Tensor)
def frexp(call: Call, input: Operand) -> None:
    """`x = mantissa * 2^exponent` with a mantissa from 1/2 to 1; the exponent of zeros, infinities
    and NaN is 0."""
    common, compute = promoted(call, ["self"], Promotion.DEFAULT)
    k = call.kernel(input.size)
    x = load_as(k, input, input.size, common, compute)
    kind = _BITS[compute]
    width, bias = (52, 1023) if compute is DType.f64 else (23, 127)
    mask = 2 * bias + 1
    tiny = abs(x) < 2.0 ** (1 - bias)
    bits = tiny.choose(x * 2.0**width, x)("bitcast", dtype=kind)
    field = (bits >> width) & mask
    rest = bits & ~(mask << width)
    mantissa = (rest | ((bias - 1) << width))("bitcast", dtype=compute)
    exponent = field - tiny.choose(bits.number(bias - 1 + width), bias - 1)
    itself = x("eq", 0) | field("eq", mask)
    call.put(0, k, itself.choose(x, mantissa))
    call.put(1, k, itself.choose(0, exponent))
    call.emit_kernel(k)


rows(table, function, angle=lambda x: x("isnan").choose(x, (x < 0).choose(math.pi, x.number(0))))


@elementwise(table, aten.round.decimals)
def round_decimals(x: Value, *, call: Call, decimals: int) -> Value:
    """Rounded to that many decimals, halves to even."""
    require(call.out.dtype in (DType.f32, DType.f64), "decimals of this type")
    scale = 10.0 ** abs(decimals)
    there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
    return x(there, scale)("round")(back, scale)


@elementwise(table, aten.logit_backward.default)
def logit_backward(gradient: Value, x: Value, *, eps: float | None) -> Value:
    """Outside of the range NaN, or 0 where it was clamped to it."""
    low = x.number(0 if eps is None else eps)
    outside = (x < low) | (x > 1 - low)
    return outside.choose(math.nan if eps is None else 0, gradient / (x * (1 - x)))
