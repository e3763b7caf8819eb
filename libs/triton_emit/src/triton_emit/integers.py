"""Device functions for division, rounding, casts and random words, as text (see `helpers.py`)."""

INTEGERS = """\
def divisor(y):
    return tl.where(y == 0, y + 1, y)

# what a GPU gives for the quotient and the rest of a division by zero: all bits set; of
# 64-bit dividends that fit in 32, which it divides as such, the lower half
def by_zero(x):
    ones = x * 0 - 1
    if x.dtype.primitive_bitwidth == 64:
        ones = tl.where((x >> 32) == 0, ones & 0xFFFFFFFF, ones)
    return ones

def int_div(x, y):
    return tl.where(y == 0, by_zero(x), x // divisor(y))

def int_rem(x, y):
    return tl.where(y == 0, by_zero(x), x % divisor(y))

# as eager rounds down, also by zero
def int_floor_div(x, y):
    return tl.where(y == 0, by_zero(x) - (x < 0).to(x.dtype), floor_div(x, divisor(y)))

def int_floor_mod(x, y):
    return tl.where(y == 0, by_zero(x), floor_mod(x, divisor(y)))

# square and multiply; wraps around as repeated multiplication does
def pow_int(base, exponent):
    power = base + exponent * 0  # of the shape of both
    result = power * 0 + 1
    left = tl.maximum(exponent, exponent * 0)
    for _ in range(exponent.dtype.primitive_bitwidth):
        result = tl.where((left & 1) != 0, result * power, result)
        power = power * power
        left = left >> 1
    unit = tl.where((exponent & 1) != 0, base, base * base)
    below = tl.where(base * base == 1, unit, base * 0)
    return tl.where(exponent < 0, below, result)

# half to even: adding 2**23 leaves no bits for the fraction
def round_f32(x):
    a = tl.abs(x)
    r = tl.where(a < 8388608.0, (a + 8388608.0) - 8388608.0, a)
    sign = x.to(tl.int32, bitcast=True) & -0x80000000
    return (r.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)

# round_f32 and the cast to i8, of |x| < 256, infinities and NaN: the low bits of a sum with
# 1.5 * 2**23
def byte_f32(x):
    near = tl.minimum(tl.maximum(x, -256.0), 255.0) + 12582912.0
    return near.to(tl.int32, bitcast=True).to(tl.int8)

# what 32 bits do not hold is -(2**31 - 256), as NaN is, or 2**31 - 256
def saturated_int(x):
    return tl.minimum(tl.maximum(x, -2147483392.0), 2147483392.0).to(tl.int32)

# half to even: adding 2**52 leaves no bits for the fraction
def round_f64(x):
    a = tl.abs(x)
    r = tl.where(a < 4503599627370496.0, (a + 4503599627370496.0) - 4503599627370496.0, a)
    return tl.where(x < 0.0, -1.0 * r, tl.where(x == 0.0, x, r))

def trunc_float(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))

# r mod b, both positive, r / b finite, b normal. Every step is exact and takes 25 bits off
# the quotient: q, of 26 bits, is below it, and b is split into 27 and 27, so that products
# fit in 53 with or without fused multiply-add.
def fmod_steps(r, b, STEPS: tl.constexpr):
    scale = tl.where((r > 1e300) | (b > 1e300), 1.3552527156068805e-20, 1.0)
    r = r * scale
    b = b * scale
    high = ((b.to(tl.int64, bitcast=True) >> 26) + 1) << 26
    high = high.to(tl.float64, bitcast=True)
    low = b - high
    for _ in range(STEPS):
        q = (((r / b).to(tl.int64, bitcast=True) - 1) >> 27) << 27
        q = tl.floor(q.to(tl.float64, bitcast=True))
        q = tl.where((q > 0.0) & (q < float("inf")), q, 0.0)
        r = (r - q * high) - q * low
    return tl.where(r >= b, r - b, r) / scale

# quotients may overflow: first the remainder by y times a power of two, which is exact
def fmod_f64(x, y):
    a = tl.abs(x)
    b = tl.abs(y)
    far = tl.where(b < 1.0, b * 4.4989137945431964e161, b)
    farther = tl.where(far < 1.0, far * 4.4989137945431964e161, far)
    r = fmod_steps(fmod_steps(a, farther, 42), far, 22)
    up = tl.where(b < 1e-290, 7.378697629483821e19, 1.0)
    r = fmod_steps(r * up, b * up, 22) / up
    r = tl.where(a < b, a, r)
    r = tl.where((b == 0.0) | (b != b) | (a == float("inf")), float("nan"), r)
    return tl.where(signbit_f64(x), -1.0 * r, r)

# libdevice takes subnormal numbers for zero; y: none below 1e-30 but 0
def fmod_by_f32(x, y):
    return tl.where(tl.abs(x) < tl.abs(y), x, tl.extra.cuda.libdevice.fmod(x, y))

# by a tiny y in two steps: first by 2**64 times as much, which is exact
def far_rest_f32(a, b):
    tiny = b < 1e-30
    b = tl.where(tiny, b * 18446744073709551616.0, b)
    r = fmod_by_f32(a, b)
    r = fmod_by_f32(tl.where(tiny, r * 18446744073709551616.0, r), b)
    return tl.where(tiny, r * 5.421010862427522e-20, r)

# a quotient below 2**20, of a divisor that is not tiny, is rounded to the nearest integer or the
# one beside it: what is left is exact. A block that has others calls CUDA's own
def fmod_f32(x, y):
    a = tl.abs(x)
    b = tl.abs(y)
    r = tl.fma(-1.0 * tl.floor(a / b + 0.5), b, a)
    r = tl.where(r < 0.0, r + b, r)
    near = (a <= b * 1048576.0) & (b > 1e-30) & (b < 1e30)
    if tl.min(near.to(tl.int32) + tl.zeros([1], tl.int32)) < 1:
        r = tl.where(near, r, far_rest_f32(a, b))
    return tl.where(x.to(tl.int32, bitcast=True) < 0, -1.0 * r, r)

def mod_f32(x, y):
    r = fmod_f32(x, y)
    return tl.where((r != 0.0) & ((r < 0.0) != (y < 0.0)), r + y, r)

def mod_f64(x, y):
    r = fmod_f64(x, y)
    return tl.where((r != 0.0) & ((r < 0.0) != (y < 0.0)), r + y, r)

# the quotient, rounded, and once more what is left of it: whole numbers below 2**24 are exact,
# larger ones are off by a rounding. Scaled, so that y is neither tiny nor huge
def floordiv_f32(x, y):
    a = tl.abs(x)
    b = tl.abs(y)
    by = tl.where(b < 1e-30, 18446744073709551616.0, 1.0)
    by = tl.where(b > 1e30, 5.421010862427522e-20, by)
    c = a * by
    b = b * by
    first = tl.floor(c / b + 0.5)
    r = tl.where(first == 0.0, c, tl.fma(-1.0 * first, b, c))
    q = first + tl.floor(r / b + 0.5)
    r = tl.where(q == 0.0, a, tl.fma(-1.0 * q, b, c))
    q = tl.where(r < 0.0, q - 1.0, q)
    q = tl.where(first < float("inf"), q, first)
    signs = x.to(tl.int32, bitcast=True) ^ y.to(tl.int32, bitcast=True)
    q = tl.where((signs < 0) & (r != 0.0), q + 1.0, q)
    q = tl.where((a == float("inf")) & (b > 0.0), float("nan"), q)
    return (q.to(tl.int32, bitcast=True) | (signs & -0x80000000)).to(tl.float32, bitcast=True)

def floordiv_f64(x, y):
    m = fmod_f64(x, y)
    return floordiv_rest(x, y, m, (x - m) / y)

# as torch rounds: from the exact remainder, so that no quotient is rounded up first
def floordiv_rest(x, y, m, d):
    d = tl.where((m != 0.0) & ((m < 0.0) != (y < 0.0)), d - 1.0, d)
    f = tl.floor(d)
    f = tl.where(d - f > 0.5, f + 1.0, f)
    ratio = x / y  # of which only the sign, infinities and NaN count
    return tl.where(y == 0.0, ratio, tl.where(d == 0.0, 0.0 * ratio, f))

# rounds half to even; beyond 448 there is no infinity: NaN, as torch casts (a bare cast
# would saturate)
def to_f8e4m3(x):
    return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)

# overflows to infinity as torch casts (a bare cast would saturate)
def to_f8e5m2(x):
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    far = tl.where(x > 0.0, 0x7C, 0xFC).to(tl.uint8)
    return tl.where(tl.abs(x) >= 61440.0, far, bits).to(tl.float8e5, bitcast=True)

# Philox-2x32-10, two words of each block, which a thread computes once for neighbours;
# the seed's high half is part of the block's number
def philox_u32(seed, counter):
    key = seed.to(tl.uint32)
    low = counter.to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    left = (low >> 1) | (high << 31)
    right = (high >> 1) ^ (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        product = left.to(tl.uint64) * 0xD256D193
        left = (product >> 32).to(tl.uint32) ^ key ^ right
        right = product.to(tl.uint32)
        key = key + 0x9E3779B9
    return tl.where((low & 1) != 0, right, left)
"""
