"""Device functions for what `triton.language` lacks, as text.

Each is copied into a kernel's module only when it is used. They use nothing but `tl`, so that
they run on the GPU and under Triton's interpreter, which has no libdevice. Bounds on their error
are stated in ulp of the result and checked in `tests/test_helpers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import dedent

from symexpr import TRITON_PRELUDE
from triton_emit.atomics import ATOMIC_SOURCES
from triton_emit.powers import POWERS

_SOURCES = {
    "exp_f32": """
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
    """,
    "exp2_f32": """
        # 2 ulp; tl.exp2 on f32 flushes results below 2**-126 to zero
        def exp2_f32(x):
            small = x < -120.0
            scale = tl.where(small, 5.421010862427522e-20, 1.0)
            return tl.exp2(tl.where(small, x + 64.0, x)) * scale
    """,
    "expm1_f32": """
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
    """,
    "expm1_f64": """
        # Kahan: (u - 1) / log(u) is smooth, so that the rounding of u cancels
        def expm1_f64(x):
            u = tl.exp(x)
            d = u - 1.0
            tiny = d == 0.0
            plain = (d == -1.0) | (x > 1.0)
            safe = tl.where(tiny | plain, 2.0, u)
            return tl.where(tiny, x, tl.where(plain, d, d * (x / tl.log(safe))))
    """,
    "log1p_f32": """
        # 2 ulp: e * log(2) + log(1 + r), 1 + r = (1 + x) / 2**e in [0.75, 1.5), r rounded once
        def log1p_f32(x):
            e = ((1.0 + x).to(tl.int32, bitcast=True) - 0x3F400000) & -0x800000
            s = (0x40800000 - e).to(tl.float32, bitcast=True)
            p = log1p_near_f32(tl.fma(x * s, 0.25, tl.fma(s, 0.25, -1.0)))
            p = tl.fma(e.to(tl.float32), 8.26295832e-8, p)
            p = tl.where((x == 0.0) | (x == float("inf")), x, p)
            edge = tl.where(x == -1.0, float("-inf"), float("nan"))
            return tl.where(x > -1.0, p, edge)
    """,
    "log1p_near_f32": """
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
    """,
    "log1p_unit_f32": """
        # log1p_f32 of what is known to lie in [0, 1]
        def log1p_unit_f32(x):
            half = x >= 0.5
            p = log1p_near_f32(tl.where(half, tl.fma(x, 0.5, -0.5), x))
            return tl.where(half, p + 0.693147182, p)
    """,
    "log1p_f64": """
        # Kahan: log(u) / (u - 1) is smooth, so that the rounding of u = 1 + x cancels
        def log1p_f64(x):
            u = 1.0 + x
            d = u - 1.0
            tiny = d == 0.0
            plain = u == float("inf")
            safe = tl.where(tiny | plain, 1.0, d)
            return tl.where(tiny, x, tl.where(plain, u, tl.log(u) * (x / safe)))
    """,
    "erf_f32": """
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
    """,
    "erf_fine_f32": """
        # near zero the error function is 2 / sqrt(pi) times its argument, subnormal ones too,
        # which tl.erf flushes to zero
        def erf_fine_f32(x):
            return tl.where(tl.abs(x) < 1e-4, x * 1.1283791670955126, tl.erf(x))
    """,
    "sin_f32": """
        # near zero the sine is its argument, subnormal ones too, which tl.sin flushes to zero
        def sin_f32(x):
            return tl.where(tl.abs(x) < 1e-4, x, tl.sin(x))
    """,
    "floor_f32": """
        # tl.floor flushes subnormal numbers to zero, which is too much for negative ones
        def floor_f32(x):
            r = tl.floor(x)
            return tl.where(r > x, -1.0, r)
    """,
    "ceil_f32": """
        # tl.ceil flushes subnormal numbers to zero, which is too little for positive ones
        def ceil_f32(x):
            r = tl.ceil(x)
            return tl.where(r < x, 1.0, r)
    """,
    "rsqrt_f32": """
        # tl.rsqrt flushes subnormal numbers to zero
        def rsqrt_f32(x):
            small = x < 1.1754943508222875e-38
            r = tl.rsqrt(tl.where(small, x * 16777216.0, x))
            return tl.where(small, r * 4096.0, r)
    """,
    "gelu_f32": """
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
    """,
    "tanh_f32": """
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
    """,
    "tanh_f64": """
        def tanh_f64(x):
            t = expm1_f64(-2.0 * tl.abs(x))
            r = -t / (2.0 + t)
            return tl.where(x < 0.0, -r, tl.where(x == 0.0, x, r))
    """,
    "quotient_f32": """
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
    """,
    "quotient_bounded_f32": """
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
    """,
    "sigmoid_f32": """
        # the reciprocal by a step of Newton's: tl.div_rn would branch for each element
        def sigmoid_f32(x):
            y = 1.0 + exp_f32(-x)
            r = tl.rsqrt(y)
            r = r * r
            return tl.where(y == float("inf"), 0.0, tl.fma(tl.fma(-1.0 * y, r, 1.0), r, r))
    """,
    "sigmoid_near": """
        # 8 ulp: the square of a reciprocal square root costs less than a quotient
        def sigmoid_near(x):
            r = tl.rsqrt(1.0 + tl.exp(-x))
            return r * r
    """,
    "tanh_near": """
        # 1 - 2 / (exp(2|x|) + 1), off by 3e-7; where x is small that is more than x - tanh(x)
        def tanh_near(x):
            a = tl.abs(x)
            r = tl.rsqrt(tl.exp(2.0 * a) + 1.0)
            t = tl.fma(-2.0 * r, r, 1.0)
            return tl.where(a < 0.00390625, x, tl.where(x < 0.0, -t, t))
    """,
    "sigmoid_f64": """
        def sigmoid_f64(x):
            return 1.0 / (1.0 + tl.exp(-x))
    """,
    "sinh_f64": """
        def sinh_f64(x):
            a = tl.abs(x)
            f = expm1_f64(a)
            half = tl.exp(0.5 * a)
            r = tl.where(a < 22.0, 0.5 * (f + f / (f + 1.0)), (0.5 * half) * half)
            return tl.where(x < 0.0, -r, tl.where(x == 0.0, x, r))
    """,
    "cosh_f64": """
        def cosh_f64(x):
            half = tl.exp(0.5 * tl.abs(x))
            return (0.5 * half) * half + 0.5 / half / half
    """,
    "atan_f64": """
        # Cephes atan: argument reduced to |x| < 0.66, then a rational function
        def atan_f64(x):
            a = tl.abs(x)
            big = a > 2.414213562373095
            mid = (a > 0.66) & (a <= 2.414213562373095)
            t = tl.where(big, -1.0 / a, tl.where(mid, (a - 1.0) / (a + 1.0), a))
            steps = tl.where(big, 2.0, tl.where(mid, 1.0, 0.0)).to(tl.float64)
            base = steps * 0.7853981633974483
            more = steps * 3.061616997868383e-17
            z = t * t
            p = z * -8.750608600031904122785e-1 + -1.615753718733365076637e1
            p = p * z + -7.500855792314704667340e1
            p = p * z + -1.228866684490136173410e2
            p = p * z + -6.485021904942025371773e1
            q = z + 2.485846490142306297962e1
            q = q * z + 1.650270098316988542046e2
            q = q * z + 4.328810604912902668951e2
            q = q * z + 4.853903996359136964868e2
            q = q * z + 1.945506571482613964425e2
            r = base + ((t * (z * p / q) + t) + more)
            return tl.where(x < 0.0, -r, tl.where(x == 0.0, x, r))
    """,
    "asin_f64": """
        def asin_f64(x):
            return atan_f64(x / tl.sqrt((1.0 - x) * (1.0 + x)))
    """,
    "acos_f64": """
        def acos_f64(x):
            return 2.0 * atan_f64(tl.sqrt(1.0 - x) / tl.sqrt(1.0 + x))
    """,
    "signbit_f64": """
        def signbit_f64(x):
            return x.to(tl.int64, bitcast=True) < 0
    """,
    "atan2_f64": """
        def atan2_f64(y, x):
            a = tl.abs(y)
            b = tl.abs(x)
            both_zero = (a == 0.0) & (b == 0.0)
            both_inf = (a == float("inf")) & (b == float("inf"))
            ratio = tl.where(both_zero, 0.0, tl.where(both_inf, 1.0, a / b))
            r = atan_f64(ratio)
            r = tl.where(signbit_f64(x), 3.141592653589793 - (r - 1.2246467991473532e-16), r)
            return tl.where(signbit_f64(y), -1.0 * r, r)
    """,
    "tan_f64": """
        def tan_f64(x):
            return tl.sin(x) / tl.cos(x)
    """,
    "asinh_f32": """
        # libdevice takes subnormal numbers for zero
        def asinh_f32(x):
            return tl.where(
                tl.abs(x) < 1.1754943508222875e-38, x, tl.extra.cuda.libdevice.asinh(x)
            )
    """,
    "atanh_f32": """
        # libdevice takes subnormal numbers for zero
        def atanh_f32(x):
            return tl.where(
                tl.abs(x) < 1.1754943508222875e-38, x, tl.extra.cuda.libdevice.atanh(x)
            )
    """,
    "lgamma_f32": """
        # libdevice takes subnormal numbers for zero
        def lgamma_f32(x):
            a = tl.abs(x)
            return tl.where(
                a < 1.1754943508222875e-38, 0.0 - tl.log(a), tl.extra.cuda.libdevice.lgamma(x)
            )
    """,
    **ATOMIC_SOURCES,
    **POWERS,
    "divisor": """
        def divisor(y):
            return tl.where(y == 0, y + 1, y)
    """,
    "by_zero": """
        # what a GPU gives for the quotient and the rest of a division by zero: all bits set; of
        # 64-bit dividends that fit in 32, which it divides as such, the lower half
        def by_zero(x):
            ones = x * 0 - 1
            if x.dtype.primitive_bitwidth == 64:
                ones = tl.where((x >> 32) == 0, ones & 0xFFFFFFFF, ones)
            return ones
    """,
    "int_div": """
        def int_div(x, y):
            return tl.where(y == 0, by_zero(x), x // divisor(y))
    """,
    "int_rem": """
        def int_rem(x, y):
            return tl.where(y == 0, by_zero(x), x % divisor(y))
    """,
    "int_floor_div": """
        # as eager rounds down, also by zero
        def int_floor_div(x, y):
            return tl.where(y == 0, by_zero(x) - (x < 0).to(x.dtype), floor_div(x, divisor(y)))
    """,
    "int_floor_mod": """
        def int_floor_mod(x, y):
            return tl.where(y == 0, by_zero(x), floor_mod(x, divisor(y)))
    """,
    "pow_int": """
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
    """,
    "round_f32": """
        # half to even: adding 2**23 leaves no bits for the fraction
        def round_f32(x):
            a = tl.abs(x)
            r = tl.where(a < 8388608.0, (a + 8388608.0) - 8388608.0, a)
            sign = x.to(tl.int32, bitcast=True) & -0x80000000
            return (r.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    """,
    "byte_f32": """
        # round_f32 and the cast to i8, of |x| < 256, infinities and NaN: the low bits of a sum with
        # 1.5 * 2**23
        def byte_f32(x):
            near = tl.minimum(tl.maximum(x, -256.0), 255.0) + 12582912.0
            return near.to(tl.int32, bitcast=True).to(tl.int8)
    """,
    "round_f64": """
        # half to even: adding 2**52 leaves no bits for the fraction
        def round_f64(x):
            a = tl.abs(x)
            r = tl.where(a < 4503599627370496.0, (a + 4503599627370496.0) - 4503599627370496.0, a)
            return tl.where(x < 0.0, -1.0 * r, tl.where(x == 0.0, x, r))
    """,
    "trunc_float": """
        def trunc_float(x):
            return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
    """,
    "fmod_steps": """
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
    """,
    "fmod_f64": """
        # STEPS cover quotients of 25 bits each; 0 all that f64 has, whose quotients may overflow:
        # first the remainder by y times a power of two, which is exact
        def fmod_f64(x, y, STEPS: tl.constexpr):
            a = tl.abs(x)
            b = tl.abs(y)
            if STEPS > 0:
                r = fmod_steps(a, b, STEPS)
            else:
                far = tl.where(b < 1.0, b * 4.4989137945431964e161, b)
                farther = tl.where(far < 1.0, far * 4.4989137945431964e161, far)
                r = fmod_steps(fmod_steps(a, farther, 42), far, 22)
                up = tl.where(b < 1e-290, 7.378697629483821e19, 1.0)
                r = fmod_steps(r * up, b * up, 22) / up
            r = tl.where(a < b, a, r)
            r = tl.where((b == 0.0) | (b != b) | (a == float("inf")), float("nan"), r)
            return tl.where(signbit_f64(x), -1.0 * r, r)
    """,
    "mod_f64": """
        def mod_f64(x, y, STEPS: tl.constexpr):
            r = fmod_f64(x, y, STEPS)
            return tl.where((r != 0.0) & ((r < 0.0) != (y < 0.0)), r + y, r)
    """,
    "floordiv_f64": """
        # as torch rounds: from the exact remainder, so that no quotient is rounded up first
        def floordiv_f64(x, y, STEPS: tl.constexpr):
            m = fmod_f64(x, y, STEPS)
            d = (x - m) / y
            d = tl.where((m != 0.0) & ((m < 0.0) != (y < 0.0)), d - 1.0, d)
            f = tl.floor(d)
            f = tl.where(d - f > 0.5, f + 1.0, f)
            return tl.where(y == 0.0, x / y, f)
    """,
    "to_f8e4m3": """
        # rounds half to even; beyond 448 there is no infinity: NaN, as torch casts (a bare cast
        # would saturate)
        def to_f8e4m3(x):
            return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)
    """,
    "to_f8e5m2": """
        # overflows to infinity as torch casts (a bare cast would saturate)
        def to_f8e5m2(x):
            bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
            far = tl.where(x > 0.0, 0x7C, 0xFC).to(tl.uint8)
            return tl.where(tl.abs(x) >= 61440.0, far, bits).to(tl.float8e5, bitcast=True)
    """,
    "max_nan": """
        def max_nan(a, b):
            return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    """,
    "min_nan": """
        def min_nan(a, b):
            return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    """,
    "later_max": """
        # the second of equals, which may be zeros of either sign
        def later_max(a, b):
            return tl.where((a > b) | (a != a), a, b)
    """,
    "later_min": """
        # the second of equals, which may be zeros of either sign
        def later_min(a, b):
            return tl.where((a < b) | (a != a), a, b)
    """,
    "plus": """
        def plus(a, b):
            return a + b
    """,
    "put_total": """
        # each 32 bits of a number in a word of their own, with a flag that they are there: one
        # write of 64 bits which no other program sees half of, and which none waits to make
        def put_total(at, value):
            if value.dtype.primitive_bitwidth == 64:
                bits = value.to(tl.int64, bitcast=True)
                high = ((bits >> 32) & 0xFFFFFFFF) | 0x100000000
                tl.atomic_xchg(at + 1, high, sem="relaxed")
            else:
                bits = value.to(tl.int32, bitcast=True).to(tl.int64)
            tl.atomic_xchg(at, (bits & 0xFFFFFFFF) | 0x100000000, sem="relaxed")
    """,
    "wait_word": """
        # A program waits only for those of smaller numbers, which have begun, so that they are on
        # the GPU and stay there: the one of the smallest number waits for none, and so all end.
        def wait_word(at, needed):
            word = tl.load(at, needed, other=0x100000000, volatile=True)
            while tl.min(word) == 0:
                word = tl.load(at, word == 0, other=word, volatile=True)
            return word & 0xFFFFFFFF
    """,
    "take_totals": """
        def take_totals(at, needed, like):
            low = wait_word(at, needed)
            if like.dtype.primitive_bitwidth == 64:
                bits = (wait_word(at + 1, needed) << 32) | low
            else:
                bits = low.to(tl.int32)
            return bits.to(like.dtype, bitcast=True)
    """,
    "tell_1": """
        # What a chunk folds to, for the later ones of its group
        def tell_1(slots, chunk, total, GROUP: tl.constexpr):
            WORDS: tl.constexpr = total.dtype.primitive_bitwidth // 32
            if chunk % GROUP < GROUP - 1:
                put_total(slots + chunk % GROUP * WORDS + tl.arange(0, 1), total)
    """,
    "tell_2": """
        # The same of a pair
        def tell_2(slots, chunk, total, other, GROUP: tl.constexpr):
            OWN: tl.constexpr = total.dtype.primitive_bitwidth // 32
            WORDS: tl.constexpr = OWN + other.dtype.primitive_bitwidth // 32
            if chunk % GROUP < GROUP - 1:
                at = slots + chunk % GROUP * WORDS + tl.arange(0, 1)
                put_total(at, total)
                put_total(at + OWN, other)
    """,
    "leave_zero": """
        # the last program of a group to have read its slots leaves them as they were found
        def leave_zero(group, members, size):
            tl.debug_barrier()
            if tl.atomic_add(group, 1, sem="acq_rel") == members - 1:
                for start in range(0, size, 1024):
                    at = start + tl.arange(0, 1024)
                    tl.store(group + at, tl.zeros([1024], tl.int64), at < size)
    """,
    "product": """
        def product(a, b):
            return a * b
    """,
    "pick_max": """
        # the larger value, NaN counting as the largest; the first of equals
        def pick_max(a, i, b, j):
            better = (b > a) | ((b != b) & (a == a))
            same = (a == b) | ((a != a) & (b != b))
            second = better | (same & (j < i))
            return tl.where(second, b, a), tl.where(second, j, i)
    """,
    "last_max": """
        # as pick_max, but the last of equals
        def last_max(a, i, b, j):
            better = (b > a) | ((b != b) & (a == a))
            same = (a == b) | ((a != a) & (b != b))
            second = better | (same & (j > i))
            return tl.where(second, b, a), tl.where(second, j, i)
    """,
    "last_min": """
        # as pick_min, but the last of equals
        def last_min(a, i, b, j):
            better = (b < a) | ((b != b) & (a == a))
            same = (a == b) | ((a != a) & (b != b))
            second = better | (same & (j > i))
            return tl.where(second, b, a), tl.where(second, j, i)
    """,
    "next_max": """
        # as last_max, for a candidate that comes after all others
        def next_max(a, i, b, j):
            second = (b >= a) | (b != b)
            return tl.where(second, b, a), tl.where(second, j, i)
    """,
    "next_min": """
        # as last_min, for a candidate that comes after all others
        def next_min(a, i, b, j):
            second = (b <= a) | (b != b)
            return tl.where(second, b, a), tl.where(second, j, i)
    """,
    "add_exponentials": """
        # (1 + s) * exp(m) + (1 + t) * exp(n) as such a pair; nothing is (-inf, -1). What is small
        # beside the 1 keeps its digits; differences keep a -0 beside nothing. Infinities of one
        # sign differ by NaN.
        def add_exponentials(m, s, n, t):
            e = tl.where(m == n, 1.0, tl.exp(-tl.abs(m - n)))
            return max_nan(m, n), tl.where(m < n, t - e * (-1.0 - s), s - e * (-1.0 - t))
    """,
    "philox_u32": """
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
    """,
    "take_max": """
        # as pick_max, for a candidate that comes after all others
        def take_max(a, i, b, j):
            better = (b > a) | ((b != b) & (a == a))
            return tl.where(better, b, a), tl.where(better, j, i)
    """,
    "take_min": """
        # as pick_min, for a candidate that comes after all others
        def take_min(a, i, b, j):
            better = (b < a) | ((b != b) & (a == a))
            return tl.where(better, b, a), tl.where(better, j, i)
    """,
    "pick_min": """
        # the smaller value, NaN counting as the smallest; the first of equals
        def pick_min(a, i, b, j):
            better = (b < a) | ((b != b) & (a == a))
            same = (a == b) | ((a != a) & (b != b))
            second = better | (same & (j < i))
            return tl.where(second, b, a), tl.where(second, j, i)
    """,
}

# What comes before an element of a scan, and the element itself: (all but the last, the last) of
# two neighbouring runs
_JOINS = {
    "sum": "a + p + b",
    "product": "a * p * b",
    **{name: f"{name}({name}(a, p), b)" for name in ("later_max", "later_min")},
}
_PAIRS = ("last_max", "last_min", "add_exponentials")
_SOURCES.update(
    (f"before_{name}", f"def before_{name}(a, p, b, q):\n    return {text}, q\n")
    for name, text in _JOINS.items()
)
_SOURCES.update(
    (
        f"before_{name}",
        f"def before_{name}(a, x, p, y, b, z, q, w):\n"
        f"    a, x = {name}(a, x, p, y)\n"
        f"    b, z = {name}(a, x, b, z)\n"
        "    return b, z, q, w\n",
    )
    for name in _PAIRS
)

_EARLIER = """
# What the chunks before this one fold to. A group of them has a slot for each but its last;
# in that of the last is what all groups before fold to, put there by the last chunk of the
# one before: the same sums, whichever program is first. slots: of the group; step: to
# those of the next.
def earlier_JOIN(slots, step, chunk, chunks, total, start, GROUP: tl.constexpr):
    WORDS: tl.constexpr = total.dtype.primitive_bitwidth // 32
    place = chunk % GROUP
    j = tl.arange(0, GROUP)
    needed = (j < place) | ((j == GROUP - 1) & (chunk >= GROUP))
    found = tl.where(needed, take_totals(slots + j * WORDS, needed, total), start)
    before = tl.broadcast_to(tl.reduce(found, 0, JOIN), [1])
    if (place == GROUP - 1) & (chunk + 1 < chunks):
        put_total(slots + step + place * WORDS + tl.arange(0, 1), JOIN(before, total))
    return before
"""
_EARLIER_PAIR = """
# What the chunks before this one fold to, as `earlier_plus` has it, of pairs
def earlier_JOIN(
    slots, step, chunk, chunks, total, other, start, start_other, GROUP: tl.constexpr
):
    OWN: tl.constexpr = total.dtype.primitive_bitwidth // 32
    WORDS: tl.constexpr = OWN + other.dtype.primitive_bitwidth // 32
    place = chunk % GROUP
    j = tl.arange(0, GROUP)
    needed = (j < place) | ((j == GROUP - 1) & (chunk >= GROUP))
    at = slots + j * WORDS
    found = tl.where(needed, take_totals(at, needed, total), start)
    found_other = tl.where(needed, take_totals(at + OWN, needed, other), start_other)
    before, before_other = tl.reduce((found, found_other), 0, JOIN)
    before, before_other = tl.broadcast_to(before, [1]), tl.broadcast_to(before_other, [1])
    if (place == GROUP - 1) & (chunk + 1 < chunks):
        after, after_other = JOIN(before, before_other, total, other)
        there = slots + step + place * WORDS + tl.arange(0, 1)
        put_total(there, after)
        put_total(there + OWN, after_other)
    return before, before_other
"""
_SOURCES.update(
    (f"earlier_{name}", text.replace("JOIN", name))
    for names, text in (
        (("plus", "product", "later_max", "later_min"), _EARLIER),
        (_PAIRS, _EARLIER_PAIR),
    )
    for name in names
)

# `floor_div`, `floor_mod`, `ceil_div`: integer division as symexpr's printed indices call it
_SOURCES.update(
    (text.split("(")[0], f"def {text.rstrip()}")
    for text in TRITON_PRELUDE.split("@triton.jit\ndef ")[1:]
)


def called(text: str) -> list[str]:
    """Helpers that a kernel's text calls."""
    return [name for name in dict.fromkeys(re.findall(r"\b[a-z]\w*", text)) if name in _SOURCES]


def helper_text(names: Iterable[str]) -> str:
    """Source of the named helpers and of those that they call, callees first."""
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        body = dedent(_SOURCES[name]).strip()
        for callee in sorted(set(re.findall(r"\b([a-z]\w*)\(", body)) - {name}):
            if callee in _SOURCES:
                visit(callee)
        comment, _, code = body.rpartition("def " + name)
        done[name] = f"{comment}@triton.jit\ndef {name}{code}"

    for name in names:
        visit(name)
    return "\n\n\n".join(done.values())
