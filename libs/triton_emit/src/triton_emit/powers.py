"""Device functions for powers of floats, as text (see `helpers.py`)."""

POWERS = """\
def square(x):
    return x * x

def cube(x):
    return x * x * x

def fourth_power(x):
    return (x * x) * (x * x)

# r = |x|**y with the special cases of C's pow
def pow_cases(x, y, r):
    a = tl.abs(x)
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(0.5 * y) * 2.0 != y) & (tl.abs(y) < 9007199254740992.0)
    r = tl.where(odd & signbit_f64(x), -1.0 * r, r)
    r = tl.where((x < 0.0) & ~whole & (a != float("inf")), float("nan"), r)
    unit = (x == 1.0) | (y == 0.0) | ((x == -1.0) & (tl.abs(y) == float("inf")))
    return tl.where(unit, 1.0, r)

# a**y of a >= 0 to 1.1 ulp, 3 where y is past 150: a = m * 2**n, log2(m) = 2 atanh(s)/ln 2,
# s = (m-1)/(m+1), all of it as a sum of two numbers. Products that are rounded are fma's
# with 0: ptxas would make one operation of a product and a sum. Then 2**k * p(r), |r| at
# most 1/2, in halves of k, so that subnormal numbers are rounded once.
def pow_near_f32(a, y):
    tiny = a < 1.1754943508222875e-38
    bits = tl.where(tiny, a * 16777216.0, a).to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) & -0x800000
    m = (bits - e).to(tl.float32, bitcast=True)
    least = tl.where(a == 0.0, float("-inf"), -24.0)
    n = tl.fma(e.to(tl.float32), 1.1920928955078125e-07, tl.where(tiny, least, 0.0))
    f = m - 1.0
    d = m + 1.0
    inverse = tl.rsqrt(d * d)
    s = f * inverse
    s_low = tl.fma(-s, f, tl.fma(s, -2.0, f)) * inverse
    z = tl.fma(s + s, s_low, s * s)
    t = tl.fma(z, 9.56038870e-02, 1.11023755e-01)
    t = tl.fma(t, z, 1.42857665e-01)
    t = tl.fma(t, z, 2.00000003e-01)
    t = tl.fma(t, z, 3.33333333e-01) * z
    h = tl.fma(s, 2.885390043258667, 0.0)
    low = tl.fma(s, 2.885390043258667, -h)
    low = tl.fma(s, 3.8519260e-08, low)
    low = tl.fma(s_low, 2.885390043258667, low)
    low = tl.fma(h, t, tl.fma(low, t, low))
    log = n + h
    low = ((n - log) + h) + low
    log = tl.where(a < float("inf"), log, a)
    w = tl.fma(y, log, 0.0)
    w_low = tl.fma(y, low, tl.fma(y, log, -w))
    near = tl.maximum(w, -152.0, propagate_nan=tl.PropagateNan.ALL)
    near = tl.minimum(near, 130.0, propagate_nan=tl.PropagateNan.ALL)
    w_low = tl.where(w == near, w_low, 0.0)
    z = (near + w_low) + 12582912.0
    r = (near - (z - 12582912.0)) + w_low
    p = tl.fma(r, 0.0001532646274426952, 0.0013390806270763278)
    p = tl.fma(p, r, 0.009618505835533142)
    p = tl.fma(p, r, 0.05550359934568405)
    p = tl.fma(p, r, 0.24022647738456726)
    p = tl.fma(p, r, 0.6931471824645996)
    p = tl.fma(p, r, 1.0)
    bits = z.to(tl.int32, bitcast=True)
    half = bits >> 1
    first = ((half << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    other = (((bits - half) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    return p * first * other

# y: an even number
def pow_even_f32(x, y):
    return pow_near_f32(tl.abs(x), y)

# y: an odd number
def pow_odd_f32(x, y):
    r = pow_near_f32(tl.abs(x), y)
    return tl.where(x.to(tl.int32, bitcast=True) < 0, -1.0 * r, r)

# y: a number that is not whole
def pow_part_f32(x, y):
    r = pow_near_f32(tl.abs(x), y)
    return tl.where((x < 0.0) & (x > float("-inf")), float("nan"), r)

def pow_f32(x, y):
    a = tl.abs(x)
    r = pow_near_f32(a, y)
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(0.5 * y) * 2.0 != y) & (tl.abs(y) < 16777216.0)
    r = tl.where(odd & (x.to(tl.int32, bitcast=True) < 0), -1.0 * r, r)
    r = tl.where((x < 0.0) & ~whole & (a != float("inf")), float("nan"), r)
    unit = (x == 1.0) | (y == 0.0) | ((x == -1.0) & (tl.abs(y) == float("inf")))
    return tl.where(unit, 1.0, r)

# |x| = m * 2**e; log2(m) = 2 atanh(s) / ln 2 as a sum of two numbers, s = (m-1)/(m+1):
# its error is about 2**-60 of y log2 x
def pow_f64(x, y):
    a = tl.abs(x)
    tiny = a < 2.2250738585072014e-308
    bits = tl.where(tiny, a * 18014398509481984.0, a).to(tl.int64, bitcast=True)
    e = (bits >> 52) - tl.where(tiny, 1077, 1023)
    m = ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).to(tl.float64, bitcast=True)
    big = m > 1.4142135623730951
    m = tl.where(big, 0.5 * m, m)
    e = tl.where(big, e + 1, e).to(tl.float64)
    f = m - 1.0
    d = m + 1.0
    s = f / d
    low = (tl.fma(-s, d, f) - s * (m - (d - 1.0))) / d
    z = s * s
    t = z * (2 / 25) + 2 / 23
    t = t * z + 2 / 21
    t = t * z + 2 / 19
    t = t * z + 2 / 17
    t = t * z + 2 / 15
    t = t * z + 2 / 13
    t = t * z + 2 / 11
    t = t * z + 2 / 9
    t = t * z + 2 / 7
    t = t * z + 2 / 5
    t = t * z + 2 / 3
    low = 2.0 * low + s * z * t
    h = 2.0 * s
    one_by_ln2 = tl.full((), 1.4426950408889634, tl.float64)
    # rounded by itself: no multiply-add may be made of it and what follows
    p = tl.fma(h, one_by_ln2, 0.0)
    p_low = tl.fma(h, one_by_ln2, -p) + h * 2.0355273740931033e-17
    p_low = p_low + low * 1.4426950408889634
    log = e + p
    log_low = (p - (log - e)) + p_low
    w = y * log
    n = tl.floor(w + 0.5)
    half = tl.floor(0.5 * n)
    r = tl.exp2(tl.fma(y, log, -n) + y * log_low) * tl.exp2(half) * tl.exp2(n - half)
    plain = (tl.abs(w) < 1100.0) & (a > 0.0) & (a < float("inf"))
    return pow_cases(x, y, tl.where(plain, r, tl.exp2(y * tl.log2(a))))
"""
