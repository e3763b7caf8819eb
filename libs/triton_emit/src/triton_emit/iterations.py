"""Device functions that take as many steps as their elements ask for, as text (see `helpers.py`).

A program goes on until none of its elements has steps left, and looks at that after each few."""

import sympy

ITERATIONS = """\
def any_left(left):
    return most(left.to(tl.int32)) > 0

def most(x):
    r = x
    if len(x.shape) > 0:
        r = tl.max(x)
    return r

# Euclid's, with C's remainders: what is left of the least integer, whose magnitude is
# itself, may be negative. What 31 bits hold, which divide in a third of the time, waits for
# the others.
def gcd_int(x, y):
    a = tl.abs(x) + y * 0
    b = tl.abs(y) + x * 0
    long = (a != 0) & (wide_int(a) | wide_int(b))
    while any_left(long):
        rest = b % divisor(a)
        b = tl.where(long, a, b)
        a = tl.where(long, rest, a)
        long = (a != 0) & (wide_int(a) | wide_int(b))
    # a remainder by what is larger is the dividend: of gcd and 0, 0 and gcd
    u = a.to(tl.uint32)
    v = b.to(tl.uint32)
    largest = tl.full((), 0xFFFFFFFF, tl.uint32)
    while any_left((u != 0) & (v != 0)):
        for _ in tl.static_range(4):
            rest = v % tl.where(u == 0, largest, u)
            v = u
            u = rest
    return tl.where(a == 0, b, (u | v).to(b.dtype))

def wide_int(x):
    if x.dtype.primitive_bitwidth == 64:
        r = (x >> 31) != 0
    else:
        r = x < 0
    return r

def exact_quotient(a, b):
    if a.dtype == tl.float64:
        r = a / b
    else:
        r = tl.div_rn(a, b)
    return r

def any_power(x, y):
    if x.dtype == tl.float64:
        r = tl.extra.cuda.libdevice.pow(x, y)
    else:
        r = pow_f32(x, y)
    return r

# A term of Euler and Maclaurin's sum: f = x (x + 1) ... (x + k - 1), b = w**(-x - k), over
# `scale`; it ends where terms are too small to count.
def zeta_term(s, f, b, done, x, w, K: tl.constexpr, SCALE: tl.constexpr):
    f = f * (x + K)
    b = b / w
    t = f * b / SCALE
    s = tl.where(done, s, s + t)
    done = done | (tl.abs(t / s) < 1.11022302462515654042e-16)
    return s, f * (x + (K + 1)), b / w, done

# Hurwitz's (cephes): the sum of (q + k)**-x, the first terms one by one, at least nine and
# until q + k > 9; NaN where it has none
def zeta(x, q):
    least = 1.11022302462515654042e-16
    counts = (tl.floor(q) != q) & (tl.floor(x) == x)
    done = (x <= 1.0) | ((q <= 0.0) & (counts == 0))
    finite = x < float("inf")
    a = tl.where(done, 1.0, q)
    s = tl.where(done, float("nan"), any_power(a, -x))
    b = s
    for _ in range(9):
        a = a + 1.0
        b = any_power(a, -x)
        s = tl.where(done, s, s + b)
        done = done | (tl.abs(b) < least * tl.abs(s)) | (finite & (b == 0.0))
    left = (a <= 9.0) & (done == 0)
    while any_left(left):
        a = tl.where(left, a + 1.0, a)
        b = tl.where(left, any_power(a, -x), b)
        s = tl.where(left, s + b, s)
        done = done | (left & (tl.abs(b) < least * tl.abs(s)))
        left = (a <= 9.0) & (done == 0)
    s = tl.where(done, s, s + b * a / (x - 1.0) - 0.5 * b)
    f = tl.full(s.shape, 1.0, s.dtype)
"""
for _k in range(0, 24, 2):
    _scale = float(sympy.factorial(_k + 2) / sympy.bernoulli(_k + 2))
    ITERATIONS += f"    s, f, b, done = zeta_term(s, f, b, done, x, a, {_k}, {_scale!r})\n"
ITERATIONS += "    return s\n"

ITERATIONS += """
# The sum of x**k / ((a + 1) ... (a + k)), of x no larger than a or a little more than 1
def gamma_series(a, x):
    n = tl.where(x == x, a, a)
    term = tl.full(n.shape, 1.0, n.dtype)
    total = term
    least = 2.0**-54 if x.dtype == tl.float64 else 2.0**-25
    more = any_left(x > 0.0)
    while more:
        for _ in tl.static_range(4):
            n = n + 1.0
            term = term * exact_quotient(x, n)
            total = total + term
        more = any_left(term > least * total)
    return total

# 1 / (x + 1 - a - (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ...))), of x above a and 1
# (cephes), as quotients p / q of what grows with the steps, and is made smaller meanwhile;
# until a few steps change no more than the part `least` of it
def gamma_fraction(a, x, least):
    below = 1.0 - a
    first = x + below + 1.0
    p1 = tl.full(first.shape, 1.0, first.dtype)
    q1 = p1 * x
    p = q1 + 1.0
    q = first * x
    c = tl.full((), 0.0, first.dtype)
    value = p / q
    off = value
    more = any_left(off > 0.0)
    while more:
        for _ in tl.static_range(4):
            c = c + 1.0
            z = first + (c + c)
            part = (below + c) * c
            p2 = p * z - p1 * part
            q2 = q * z - q1 * part
            p1 = p
            q1 = q
            p = p2
            q = q2
        inverse = 1.0 / q
        now = p * inverse
        small = tl.where(tl.abs(q) > 1e6, inverse, 1.0)
        p = p * small
        q = q * small
        p1 = p1 * small
        q1 = q1 * small
        left = off > least * value
        off = tl.where(left, tl.abs(now - value), off)
        value = tl.where(left, now, value)
        more = any_left((off > least * value) & (c < 2000.0))
    return value
"""

# p[n] of p[0] = 1, p[1] = q and a recurrence, n a whole number as a float. What has come to NaN
# stays there.
_POLYNOMIAL = """
def {name}({arguments}, n):
    q = tl.where(n == n, {first}, {first})
    p = tl.full(q.shape, 1.0, q.dtype)
    count = tl.minimum(tl.maximum(n, 0.0), 2147483520.0).to(tl.int32)
    k = tl.full((), 1, tl.int32)
    last = most(count)
    while k < last:
        for _ in tl.static_range(4):
            f = k.to(q.dtype)
            r = {step}
            p = tl.where(k < count, q, p)
            q = tl.where(k < count, r, q)
            k = k + 1
        last = most(tl.where(q == q, count, 0))
    return tl.where(n <= 0.0, 1.0, q)
"""
for _name, _arguments, _first, _step in (
    ("chebyshev", "x, first", "first", "(x + x) * q - p"),
    ("hermite", "x, scale", "x", "x * q - f * scale * p"),
    ("laguerre", "x", "1.0 - x", "exact_quotient((f + f + (1.0 - x)) * q - f * p, f + 1.0)"),
    ("legendre", "x", "x", "exact_quotient((f + f + 1.0) * x * q - f * p, f + 1.0)"),
):
    ITERATIONS += _POLYNOMIAL.format(name=_name, arguments=_arguments, first=_first, step=_step)
