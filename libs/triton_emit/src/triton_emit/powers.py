"""Device functions for powers of floats, as text (see `helpers.py`)."""

POWERS = """\
def square(x):
    return x * x

def cube(x):
    return x * x * x

def fourth_power(x):
    return (x * x) * (x * x)

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
"""
