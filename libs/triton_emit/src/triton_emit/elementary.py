"""Device functions of mathematics, as text (see `helpers.py`)."""

ELEMENTARY = """\
# 2 ulp over the whole range, where tl.exp loses about |x|/2 ulp: 2**n * 2**(x/log(2) - n).
# Adding 1.5 * 2**23 leaves n in the low bits, rounded down: tl.exp2 is best on [0, 1]. At
# the ends of n the rest goes on alone.
def exp_f32(x):
    z = tl.fma(x, 1.44269502, -0.50001) + 12582912.0
    z = tl.minimum(tl.maximum(z, 12582786.0), 12583039.0)
    r = tl.fma(x, 1.44269502, 12582912.0 - z)
    r = tl.fma(x, 1.925963033500011e-08, r)
    scale = ((z.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    return tl.exp2(r) * scale

# 2 ulp; tl.exp2 on f32 flushes results below 2**-126 to zero
def exp2_f32(x):
    small = x < -120.0
    scale = tl.where(small, 5.421010862427522e-20, 1.0)
    return tl.exp2(tl.where(small, x + 64.0, x)) * scale

# 3 ulp: 2**n * (1 + p(f)) - 1, n whole and |f| at most log(2)/2, in halves so that 2**128
# is none of them
def expm1_f32(x):
    a = tl.maximum(x, -87.0, propagate_nan=tl.PropagateNan.ALL)
    z = tl.fma(a, 1.44269502, 12582912.0)
    z = tl.minimum(z, 12583040.0)
    n = z - 12582912.0
    f = tl.fma(n, -0.693145752, a)
    f = tl.fma(n, -1.42860677e-6, f)
    p = tl.fma(f, 1.98458860e-4, 1.39407441e-3)
    p = tl.fma(p, f, 8.33338965e-3)
    p = tl.fma(p, f, 4.16663587e-2)
    p = tl.fma(p, f, 1.66666657e-1)
    p = tl.fma(p, f, 0.5)
    p = tl.fma(p, f * f, f)
    half = ((z.to(tl.int32, bitcast=True) << 23) + 0x3F000000).to(tl.float32, bitcast=True)
    return tl.where(x == 0.0, x, 2.0 * tl.fma(p, half, half - 0.5))

# 2 ulp: e * log(2) + log(1 + r), 1 + r = (1 + x) / 2**e in [0.75, 1.5), r rounded once
def log1p_f32(x):
    e = ((1.0 + x).to(tl.int32, bitcast=True) - 0x3F400000) & -0x800000
    s = (0x40800000 - e).to(tl.float32, bitcast=True)
    p = log1p_near_f32(tl.fma(x * s, 0.25, tl.fma(s, 0.25, -1.0)))
    p = tl.fma(e.to(tl.float32), 8.26295832e-8, p)
    p = tl.where((x == 0.0) | (x == float("inf")), x, p)
    edge = tl.where(x == -1.0, float("-inf"), float("nan"))
    return tl.where(x > -1.0, p, edge)

# log1p_f32 of what is known to be no less than 0, nor -0
def log1p_positive_f32(x):
    e = ((1.0 + x).to(tl.int32, bitcast=True) - 0x3F400000) & -0x800000
    s = (0x40800000 - e).to(tl.float32, bitcast=True)
    p = log1p_near_f32(tl.fma(x * s, 0.25, tl.fma(s, 0.25, -1.0)))
    return tl.where(x == float("inf"), x, tl.fma(e.to(tl.float32), 8.26295832e-8, p))

# log(1 + r) in [-0.25, 0.5]
def log1p_near_f32(r):
    p = tl.fma(r, -4.50744666e-2, 1.04629956e-1)
    p = tl.fma(p, r, -1.31611958e-1)
    p = tl.fma(p, r, 1.44784004e-1)
    p = tl.fma(p, r, -1.66473120e-1)
    p = tl.fma(p, r, 1.99908614e-1)
    p = tl.fma(p, r, -2.50000954e-1)
    p = tl.fma(p, r, 3.33334506e-1)
    return tl.fma(tl.fma(p, r, -0.5), r * r, r)

# log1p_f32 of what is known to lie in [0, 1]
def log1p_unit_f32(x):
    half = x >= 0.5
    p = log1p_near_f32(tl.where(half, tl.fma(x, 0.5, -0.5), x))
    return tl.where(half, p + 0.693147182, p)

# 8 ulp, without tl.erf's branch (Eigen's rational function, x*p(x*x)/q(x*x));
# q < 0, so that rsqrt(q*q) is -1/q
def erf_f32(x):
    z = x * x
    p = tl.fma(z, -2.72614225801306e-10, 2.77068142495902e-08)
    p = tl.fma(p, z, -2.10102402082508e-06)
    p = tl.fma(p, z, -5.69250639462346e-05)
    p = tl.fma(p, z, -7.34990630326855e-04)
    p = tl.fma(p, z, -2.95459980854025e-03)
    p = tl.fma(p, z, -1.60960333262415e-02)
    q = tl.fma(z, -1.45660718464996e-05, -2.13374055278905e-04)
    q = tl.fma(q, z, -1.68282697438203e-03)
    q = tl.fma(q, z, -7.37332916720468e-03)
    q = tl.fma(q, z, -1.42647390514189e-02)
    r = (x * -p) * tl.rsqrt(q * q)
    return tl.where(tl.abs(x) >= 3.8325069, tl.where(x < 0.0, -1.0, 1.0), r)

# near zero the error function is 2 / sqrt(pi) times its argument, subnormal ones too,
# which tl.erf flushes to zero
def erf_fine_f32(x):
    return tl.where(tl.abs(x) < 1e-4, x * 1.1283791670955126, tl.erf(x))

# 2 ulp; sines and cosines of the same share what is left of whole quarter turns
def sin_f32(x):
    return sine_f32(x, 0)

def cos_f32(x):
    return sine_f32(x, 1)

# the sine a quarter turn on or none: quarter turns are taken off in 64 bits, which are enough
# up to 1e12; tl.sin branches for each element from 1e5 on, and takes subnormal numbers for zero
def sine_f32(x, MORE: tl.constexpr):
    d = x.to(tl.float64)
    magic = tl.full((), 6755399441055744.0, d.dtype)
    t = tl.fma(d, tl.full((), 0.63661977236758134, d.dtype), magic)
    n = t - magic
    r = tl.fma(n, tl.full((), -1.5707963267948966, d.dtype), d)
    r = tl.fma(n, tl.full((), -6.123233995736766e-17, d.dtype), r).to(tl.float32)
    z = r * r
    s = tl.fma(tl.fma(z, -1.9515295891e-4, 8.3321608736e-3), z, -1.6666654611e-1)
    s = tl.where(r == 0.0, r, tl.fma(s, r * z, r))
    c = tl.fma(z, 2.443315711809948e-5, -1.388731625493765e-3)
    c = tl.fma(tl.fma(tl.fma(c, z, 4.166664568298827e-2), z, -0.5), z, 1.0)
    k = t.to(tl.int64, bitcast=True).to(tl.int32) + MORE
    s = tl.where((k & 1) == 0, s, c)
    s = tl.where((k & 2) == 0, s, -1.0 * s)
    far = tl.abs(x) > 1e12
    if any_left(far):
        s = tl.where(far, tl.cos(x) if MORE else tl.sin(x), s)
    return s

# tl.floor flushes subnormal numbers to zero, which is too much for negative ones
def floor_f32(x):
    r = tl.floor(x)
    return tl.where(r > x, -1.0, r)

# tl.ceil flushes subnormal numbers to zero, which is too little for positive ones
def ceil_f32(x):
    r = tl.ceil(x)
    return tl.where(r < x, 1.0, r)

# tl.rsqrt flushes subnormal numbers to zero
def rsqrt_f32(x):
    small = x < 1.1754943508222875e-38
    r = tl.rsqrt(tl.where(small, x * 16777216.0, x))
    return tl.where(small, r * 4096.0, r)

# the exact GELU to 3e-5 (1.5e-4 below -4.2): max(x, 0) - |x| * 2**g(|x|), with g a weighted
# minimax fit of log2(P(X <= -t)) on [0, 6]; at 14 what is left is far below the least f16
def gelu_f32(x):
    t = tl.minimum(tl.abs(x), 14.0)
    g = tl.fma(t, 2.60960289e-05, -0.000661173549)
    g = tl.fma(g, t, 0.00749453363)
    g = tl.fma(g, t, -0.0519975449)
    g = tl.fma(g, t, -0.460287581)
    g = tl.fma(g, t, -1.15060518)
    g = tl.fma(g, t, -1.00003441)
    positive = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    value = tl.fma(-t, tl.exp2(g), positive)
    return tl.where(x == float("-inf"), float("nan"), value)

# 2 ulp: a polynomial near zero (Cephes tanhf), else 1 - 2 / (exp(2|x|) + 1)
def tanh_f32(x):
    z = x * x
    p = tl.fma(z, -5.70498872745e-3, 2.06390887954e-2)
    p = tl.fma(p, z, -5.37397155531e-2)
    p = tl.fma(p, z, 1.33314422036e-1)
    p = tl.fma(p, z, -3.33332819422e-1)
    near = x * tl.fma(p, z, 1.0)
    a = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    return tl.where(a < 0.625, near, tl.where(x < 0.0, -far, far))

# a / b, where b is one number for many of a: a times its reciprocal, corrected by the exact
# remainder (Markstein's). Rounded once, but for one quotient in 6e7, and where numbers
# below 1e-30 are part of it: 1 ulp. The sign of b goes to a, so that zeros keep theirs;
# b whose reciprocal would overflow are scaled; bounds keep what is infinite so.
def quotient_f32(a, b):
    scale = tl.where(tl.abs(b) < 7.888609052210118e-31, 4294967296.0, 1.0)
    scale = tl.where(b.to(tl.int32, bitcast=True) < 0, scale, -scale)
    d = tl.abs(b * scale)
    r = tl.div_rn(-1.0, d)
    n = a * scale
    q = n * r
    rest = tl.clamp(tl.fma(q, tl.minimum(d, 3.4028234663852886e38), n), -3e38, 3e38)
    return tl.fma(rest, tl.maximum(r, -3e38), q)

# a / b, to the bit as quotient_f32 has it, where b is a row's largest |a|, or more: it is
# not negative, and no quotient but that by 0 is infinite
def quotient_bounded_f32(a, b):
    scale = tl.where(b < 7.888609052210118e-31, -4294967296.0, -1.0)
    d = b * -scale
    r = tl.div_rn(-1.0, d)
    n = a * scale
    q = n * r
    rest = tl.fma(q, tl.where(d == 0.0, 1.0, tl.minimum(d, 3.4028234663852886e38)), n)
    return tl.fma(rest, tl.where(d == 0.0, 1.0, r), q)

# a / b, where b is a whole number, as quotient_f32 has it: nothing overflows, and a reciprocal
# that is a few ulp off leaves one quotient in 1e6 that is rounded twice
def quotient_of_count_f32(a, b):
    n = tl.where(b < 0.0, a, -1.0 * a)
    d = tl.abs(b)
    r = -1.0 / d
    q = n * r
    return tl.where(tl.abs(q) < float("inf"), tl.fma(tl.fma(q, d, n), r, q), q)

# a / b without a branch for each element, many of which leave a thread few registers
# (1256 bytes of a thread's numbers in memory, 16 elements of two quotients each). Rounded once,
# but for one quotient in 1e6, and where numbers below 1e-30 are part of it: 1 ulp
def quotient_each_f32(a, b):
    scale = tl.where(tl.abs(b) < 1.1754943508222875e-38, 4294967296.0, 1.0)
    scale = tl.where(b.to(tl.int32, bitcast=True) < 0, -1.0 * scale, scale)
    d = tl.abs(b * scale)
    n = a * scale
    r = tl.rsqrt(d)
    r = r * r
    near = n * (r * 1.0000005)  # too much rather than too little: what is infinite is so here, too
    r = tl.fma(tl.fma(-1.0 * d, r, 1.0), r, r)
    q = n * r
    q = tl.fma(tl.fma(-1.0 * q, d, n), r, q)
    return tl.where(tl.abs(q) > 0.0, q, near)

# a / b to 2 ulp, where b is one number for many of a, each of which tl's would scale and select
def near_quotient_f32(a, b):
    scale = tl.where(tl.abs(b) < 7.888609052210118e-31, 4294967296.0, 1.0)
    return a * scale * (1.0 / (b * scale))

# the reciprocal by a step of Newton's: tl.div_rn would branch for each element
def sigmoid_f32(x):
    y = 1.0 + exp_f32(-x)
    r = tl.rsqrt(y)
    r = r * r
    return tl.where(y == float("inf"), 0.0, tl.fma(tl.fma(-1.0 * y, r, 1.0), r, r))

# 8 ulp: the square of a reciprocal square root costs less than a quotient
def sigmoid_near(x):
    r = tl.rsqrt(1.0 + tl.exp(-x))
    return r * r

# 1 - 2 / (exp(2|x|) + 1), off by 3e-7; where x is small that is more than x - tanh(x)
def tanh_near(x):
    a = tl.abs(x)
    r = tl.rsqrt(tl.exp(2.0 * a) + 1.0)
    t = tl.fma(-2.0 * r, r, 1.0)
    return tl.where(a < 0.00390625, x, tl.where(x < 0.0, -t, t))

def sigmoid_f64(x):
    return 1.0 / (1.0 + tl.exp(-x))

def signbit_f64(x):
    return x.to(tl.int64, bitcast=True) < 0

# libdevice takes subnormal numbers for zero, the quotient among them
def atan2_f32(y, x):
    a = tl.abs(y)
    b = tl.abs(x)
    both_zero = (a == 0.0) & (b == 0.0)
    both_inf = (a == float("inf")) & (b == float("inf"))
    r = atan_f32(tl.where(both_zero, 0.0, tl.where(both_inf, 1.0, tl.div_rn(a, b))))
    behind = x.to(tl.int32, bitcast=True) < 0
    r = tl.where(behind, 3.1415927410125732 - (r + 8.742277657347586e-08), r)
    return tl.where(y.to(tl.int32, bitcast=True) < 0, -1.0 * r, r)

# libdevice takes subnormal numbers for zero: of those it is -log|x|, here of 2**64 times as much
def lgamma_f32(x):
    tiny = tl.abs(x) < 1.1754943508222875e-38
    r = tl.extra.cuda.libdevice.lgamma(tl.where(tiny, x * 18446744073709551616.0, x))
    return tl.where(tiny, r + 44.36141955583650, r)

# libdevice takes subnormal numbers for zero
def hypot_f32(x, y):
    tiny = tl.maximum(tl.abs(x), tl.abs(y)) < 7.888609052210118e-31
    up = tl.where(tiny, 1.2676506002282294e30, 1.0)
    down = tl.where(tiny, 7.888609052210118e-31, 1.0)
    return tl.extra.cuda.libdevice.hypot(x * up, y * up) * down
"""

# Of functions that are their argument near zero.
_THROUGH_ZERO = """
# libdevice takes subnormal numbers for zero
def {name}_f32(x):
    return tl.where(
        tl.abs(x) < 1.1754943508222875e-38, x, tl.extra.cuda.libdevice.{name}(x)
    )
"""
for _name in ("tan", "asin", "atan", "sinh", "asinh", "atanh"):
    ELEMENTARY += _THROUGH_ZERO.format(name=_name)
