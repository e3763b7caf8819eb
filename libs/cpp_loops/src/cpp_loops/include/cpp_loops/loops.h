// What kernels call: operations of loop IR on numbers, types of memory, folds.
// No header of the standard library is read: that would take longer than to compile most kernels.
#pragma once

typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

// Functions of glibc that have vector forms (libmvec), if the build found that library: to 4 ulp, so
// those of `vector::` serve f32 alone, which rounds them once: loops that are no vectors, and what
// a vector leaves of a row, call other forms, and f32 hardly ever tells.
#ifdef CPP_LOOPS_VECTOR_MATH
#define CPP_LOOPS_VECTOR __attribute__((simd("notinbranch"), const, nothrow))
#else
#define CPP_LOOPS_VECTOR __attribute__((const, nothrow))
#endif
namespace vector {
extern "C" {
#define WIDE(name) CPP_LOOPS_VECTOR double name(double) __asm__(#name);
WIDE(expm1) WIDE(log1p) WIDE(sin) WIDE(cos) WIDE(sinh) WIDE(cosh) WIDE(erfc)
WIDE(log) WIDE(log2) WIDE(log10) WIDE(tan) WIDE(asin) WIDE(acos) WIDE(atan) WIDE(asinh)
WIDE(acosh) WIDE(atanh)
CPP_LOOPS_VECTOR double pow(double, double) __asm__("pow");
CPP_LOOPS_VECTOR double atan2(double, double) __asm__("atan2");
#undef WIDE
}
}  // namespace vector

namespace loops {

const float inf = __builtin_inff();
const float nan = __builtin_nanf("");

template <typename To, typename From>
inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "a bitcast keeps the number of bits");
  To out;
  __builtin_memcpy(&out, &x, sizeof(To));
  return out;
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- memory: elements of 8 and 16 bits are held as the f32 of the same value

inline float load_bf16(uint16_t x) { return bits<float>(uint32_t(x) << 16); }

inline float round_bf16(float x) {
  const uint32_t b = bits<uint32_t>(x);
  const uint32_t r = (b + 0x7FFF + ((b >> 16) & 1)) & 0xFFFF0000u;
  return x != x ? nan : bits<float>(r);
}

inline uint16_t store_bf16(float x) { return uint16_t(bits<uint32_t>(x) >> 16); }

// A float of `exponent` and `mantissa` bits as its f32, and the nearest such float, ties to even, as
// bits; past the largest infinity, or NaN where the type has none.
template <int exponent, int mantissa, bool has_inf>
struct Small {
  static constexpr int bias = (1 << (exponent - 1)) - 1, shift = 23 - mantissa;
  static constexpr uint32_t sign = 1u << (exponent + mantissa), all = sign - 1;
  static constexpr uint32_t top = ((1u << exponent) - 1) << mantissa;

  static float load(uint32_t x) {
    const uint32_t b = x & all;
    const float scale = bits<float>(uint32_t(127 + 127 - bias) << 23);  // 2**(127 - bias)
    const float value = bits<float>(b << shift) * scale;
    const bool special = has_inf ? b >= top : b == all;
    const uint32_t beyond = 0x7F800000u | (has_inf ? (b & ~top) << shift : 1u << 22);
    const uint32_t found = special ? beyond : bits<uint32_t>(value);
    return bits<float>(found | (x & sign) << (31 - exponent - mantissa));
  }

  static uint32_t store(float x) {
    const uint32_t b = bits<uint32_t>(x), s = (b >> 31) << (exponent + mantissa);
    const uint32_t a = b & 0x7FFFFFFFu;
    const float least = bits<float>(uint32_t(127 - bias + 1) << 23);  // the least normal number
    // below it a sum with this leaves the bits of a multiple of the least subnormal one
    const float magic = bits<float>(uint32_t(127 - bias + 1 + shift) << 23);
    const float m = bits<float>(a);
    const uint32_t tiny = bits<uint32_t>(m + magic) - bits<uint32_t>(magic);
    const uint32_t odd = (a >> shift) & 1;
    const uint32_t r = ((a - (uint32_t(127 - bias) << 23)) + (1u << (shift - 1)) - 1 + odd) >> shift;
    const uint32_t limit = has_inf ? top : all;
    const uint32_t rounded = m < least ? tiny : (r >= limit ? limit : r);
    const uint32_t not_a_number = has_inf ? top | (1u << (mantissa - 1)) : all;
    const uint32_t plain = a >= 0x7F800000u ? limit : rounded;
    return s | (a > 0x7F800000u ? not_a_number : plain);
  }
};

using F16 = Small<5, 10, true>;
using F8e4m3 = Small<4, 3, false>;
using F8e5m2 = Small<5, 2, true>;
#define SMALL(name, type, kind)                                                   \
  inline float load_##name(type x) { return kind::load(x); }                      \
  inline type store_##name(float x) { return type(kind::store(x)); }              \
  inline float round_##name(float x) { return kind::load(kind::store(x)); }
SMALL(f8e4m3, uint8_t, F8e4m3)
SMALL(f8e5m2, uint8_t, F8e5m2)
SMALL(f16, uint16_t, F16)
#undef SMALL

// Memory of a thread for `count` values of a row.
template <typename T>
struct Row {
  T* const at;
  explicit Row(int64_t count)
      : at(static_cast<T*>(__builtin_malloc(sizeof(T) * (count > 0 ? count : 1)))) {
    if (at == nullptr) __builtin_trap();
  }
  ~Row() { __builtin_free(at); }
  Row(const Row&) = delete;
  T& operator[](int64_t i) const { return at[i]; }
};

// ---- floats

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <typename T>
inline T fma(T a, T b, T c) { return T(a * b + c); }

#ifdef __FMA__
#define STEP(p, x, c) fma(p, x, c)
#else
#define STEP(p, x, c) ((p) * (x) + (c))
#endif
// exp(r), |r| at most log(2) / 2: within 1 ulp.
inline float exp_of_rest(float r) {
  float p = 0.000198527617612853646f;
  p = STEP(p, r, 0.00139304355252534151f);
  p = STEP(p, r, 0.00833336077630519867f);
  p = STEP(p, r, 0.0416664853692054749f);
  p = STEP(p, r, 0.166666671633720398f);
  p = STEP(p, r, 0.5f);
  return STEP(r * r, p, r) + 1.0f;
}

// x less n times log(2), which are two numbers (Cody and Waite).
inline float rest_of(float x, float n) {
#ifdef __FMA__
  return fma(n, -1.4286068203094172e-06f, fma(n, -0.693145751953125f, x));
#else
  return (x - n * 0.693145751953125f) - n * 1.4286068203094172e-06f;
#endif
}

// p * 2^n, n from -151 to 129: the power may be no float.
inline float scaled(float p, float n) {
  const int32_t k = n != n ? 0 : int32_t(n), half = k >> 1;
  return p * bits<float>((half + 127) << 23) * bits<float>((k - half + 127) << 23);
}

inline float exp(float x) {
  float a = x < -104.0f ? -104.0f : x;
  a = a > 89.0f ? 89.0f : a;
  const float n = __builtin_rintf(a * 1.442695040888963f);
  return scaled(exp_of_rest(rest_of(a, n)), n);
}

inline float exp2(float x) {
  float a = x < -151.0f ? -151.0f : x;
  a = a > 129.0f ? 129.0f : a;
  const float n = __builtin_rintf(a);
  return scaled(exp_of_rest((a - n) * 0.6931471805599453f), n);
}

// Near 0 a polynomial of x^2, beyond it exp of one, each fitted to the relative error.
inline __attribute__((always_inline)) float erf(float x) {
  const float t = __builtin_fabsf(x), s = x * x, u = t > 4.0f ? 4.0f : t;
  float p = 8.34522492e-05f;
  p = STEP(p, s, -0.000813743757f);
  p = STEP(p, s, 0.00520063431f);
  p = STEP(p, s, -0.0268592708f);
  p = STEP(p, s, 0.112836939f);
  p = STEP(p, s, -0.376126337f);
  p = STEP(p, s, 0.128379167f);
  float q = 0.000194778648f;  // log(erfc(u))
  q = STEP(q, u, -0.00303182876f);
  q = STEP(q, u, 0.0221814194f);
  q = STEP(q, u, -0.103836972f);
  q = STEP(q, u, -0.637290351f);
  q = STEP(q, u, -1.12761125f);
  q = STEP(q, u, -0.000211304032f);
  const float n = __builtin_rintf(q * 1.442695040888963f);
  const float power = bits<float>((int32_t(n == n ? n : 0.0f) + 127) << 23);
  const float near = STEP(p, t, t), far = 1.0f - exp_of_rest(rest_of(q, n)) * power;
  return __builtin_copysignf(t < 0.93f ? near : far, x);
}

inline float tanh(float x) {
  const float t = __builtin_fabsf(x), s = x * x;
  float p = -0.00571703656f;
  p = STEP(p, s, 0.020650579f);
  p = STEP(p, s, -0.0537434953f);
  p = STEP(p, s, 0.133314912f);
  p = STEP(p, s, -0.333332839f);
  const float near = STEP(p * s, t, t), far = 1.0f - 2.0f / (exp(2.0f * t) + 1.0f);
  return __builtin_copysignf(t < 0.625f ? near : far, x);
}
#undef STEP

#define UNARY(name, narrow, wide)                     \
  inline float name(float x) { return narrow; }       \
  inline double name(double x) { return wide; }
#define WIDE(name) UNARY(name, float(vector::name(double(x))), __builtin_##name(x))
inline double exp(double x) { return __builtin_exp(x); }
inline double exp2(double x) { return __builtin_exp2(x); }
inline double erf(double x) { return __builtin_erf(x); }
inline double tanh(double x) { return __builtin_tanh(x); }
WIDE(expm1) WIDE(log1p) WIDE(sin) WIDE(cos) WIDE(sinh) WIDE(cosh) WIDE(erfc)
WIDE(log) WIDE(log2) WIDE(log10) WIDE(tan) WIDE(asin) WIDE(acos) WIDE(atan) WIDE(asinh)
WIDE(acosh) WIDE(atanh)
UNARY(sqrt, __builtin_sqrtf(x), __builtin_sqrt(x))
UNARY(rsqrt, 1.0f / __builtin_sqrtf(x), 1.0 / __builtin_sqrt(x))
UNARY(sigmoid, 1.0f / (1.0f + exp(-x)), 1.0 / (1.0 + exp(-x)))
UNARY(floor, __builtin_floorf(x), __builtin_floor(x))
UNARY(ceil, __builtin_ceilf(x), __builtin_ceil(x))
UNARY(trunc, __builtin_truncf(x), __builtin_trunc(x))
UNARY(round, __builtin_rintf(x), __builtin_rint(x))
#undef UNARY
#undef WIDE

inline float pow(float a, float b) { return float(vector::pow(double(a), double(b))); }
inline double pow(double a, double b) { return __builtin_pow(a, b); }
inline float atan2(float a, float b) { return float(vector::atan2(double(a), double(b))); }
inline double atan2(double a, double b) { return __builtin_atan2(a, b); }
inline float hypot(float a, float b) {
  const double x = a, y = b;
  const float h = float(__builtin_sqrt(x * x + y * y));
  return __builtin_fabsf(a) == inf || __builtin_fabsf(b) == inf ? inf : h;
}
inline double hypot(double a, double b) { return __builtin_hypot(a, b); }
inline float fmod(float a, float b) { return __builtin_fmodf(a, b); }
inline double fmod(double a, double b) { return __builtin_fmod(a, b); }

inline double lgamma(double x) {
  int sign;
  const bool pole = x == -__builtin_inf() || (x <= 0 && x == __builtin_floor(x));
  return pole ? __builtin_inf() : __builtin_lgamma_r(x, &sign);
}
inline float lgamma(float x) { return float(lgamma(double(x))); }

// Giles' approximation ("Approximating the erfinv function", 2010), then Newton's steps.
inline double erfinv(double y) {
  const double a = __builtin_fabs(y);
  if (!(a <= 1.0)) return __builtin_nan("");
  if (a == 1.0) return __builtin_copysign(__builtin_inf(), y);
  if (y == 0.0) return y;
  const double w = -__builtin_log((1.0 - a) * (1.0 + a));
  double x = w < 5 ? 1.50140941 + (w - 2.5) * 0.246640727
                   : 2.83297682 + (__builtin_sqrt(w) - 3) * 1.00167406;
  x *= a;
  for (int i = 0; i < 5; ++i) {
    const double rest = a > 0.5 ? (1.0 - a) - __builtin_erfc(x) : __builtin_erf(x) - a;
    const double step = rest * 0.88622692545275801 * __builtin_exp(x * x);
    x -= step / (1.0 + x * step);
  }
  return __builtin_copysign(x, y);
}
inline float erfinv(float y) { return float(erfinv(double(y))); }

inline bool isnan(float x) { return x != x; }
inline bool isnan(double x) { return x != x; }
inline bool isinf(float x) { return __builtin_fabsf(x) == inf; }
inline bool isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }
inline bool signbit(float x) { return bits<int32_t>(x) < 0; }
inline bool signbit(double x) { return bits<int64_t>(x) < 0; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
template <typename T>
inline T abs(T x) { return T(x < 0 ? -x : x); }

template <typename T>
inline T square(T x) { return T(x * x); }
template <typename T>
inline T cube(T x) { return T(x * x * x); }
template <typename T>
inline T fourth_power(T x) { return square(square(x)); }

// NaN wins.
template <typename T>
inline T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <typename T>
inline T minimum(T a, T b) { return a < b || a != a ? a : b; }

template <typename T>
inline T mod_float(T a, T b) {
  const T r = fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
inline float mod(float a, float b) { return mod_float(a, b); }
inline double mod(double a, double b) { return mod_float(a, b); }
// As torch rounds: from the exact remainder, so that no quotient is rounded up first.
template <typename T>
inline T floordiv_float(T a, T b) {
  const T m = fmod(a, b);
  T d = (a - m) / b;
  d = m != 0 && (m < 0) != (b < 0) ? d - 1 : d;
  const T f = floor(d);
  const T ratio = a / b;  // of which only the sign, infinities and NaN count
  return b == 0 ? ratio : d == 0 ? 0 * ratio : d - f > T(0.5) ? f + 1 : f;
}
inline float floordiv(float a, float b) { return floordiv_float(a, b); }
inline double floordiv(double a, double b) { return floordiv_float(a, b); }
inline float truncdiv(float a, float b) { return trunc(a / b); }
inline double truncdiv(double a, double b) { return trunc(a / b); }

inline double log_add_exp(double a, double b) {
  const double high = maximum(a, b), low = minimum(a, b);
  if (a != a || b != b) return a + b;
  return low == high && isinf(high) ? high : high + __builtin_log1p(__builtin_exp(low - high));
}

// ---- integers: a division by zero gives what a GPU gives, all bits set, of 64-bit dividends that
// fit in 32 the lower half

template <typename T>
inline T by_zero(T a) { return sizeof(T) == 8 && (uint64_t(a) >> 32) == 0 ? T(0xFFFFFFFFll) : T(-1); }
template <typename T>
inline T truncdiv(T a, T b) { return b == 0 ? by_zero(a) : b == T(-1) && T(-1) < 0 ? T(-a) : T(a / b); }
template <typename T>
inline T fmod(T a, T b) { return b == 0 ? by_zero(a) : b == T(-1) && T(-1) < 0 ? T(0) : T(a % b); }
template <typename T>
inline T floordiv(T a, T b) {
  if (b == 0) return T(by_zero(a) - (a < 0));
  return T(truncdiv(a, b) - (fmod(a, b) != 0 && (a < 0) != (b < 0)));
}
template <typename T>
inline T mod(T a, T b) {
  const T r = fmod(a, b);
  return b != 0 && r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;
}
template <typename T>
inline T pow(T base, T exponent) {
  if (exponent < 0) return base == 1 ? T(1) : base == T(-1) ? (exponent & 1 ? base : T(1)) : T(0);
  T result = 1;
  for (; exponent > 0; exponent = T(exponent >> 1), base = T(base * base))
    if (exponent & 1) result = T(result * base);
  return result;
}
// By the width or more: 0, or the sign of what is shifted right.
template <typename T>
inline T shl(T a, T n) { return n < 0 || n >= T(8 * sizeof(T)) ? T(0) : T(a << n); }
template <typename T>
inline T shr(T a, T n) { return n < 0 || n >= T(8 * sizeof(T)) ? T(a < 0 ? -1 : 0) : T(a >> n); }

// ---- functions of as many steps as their arguments ask for

// Euclid's, with C's remainders: of the least integer, whose magnitude is itself, maybe negative.
template <typename T>
inline T gcd(T x, T y) {
  T a = abs(x), b = abs(y);
  while (a != 0) {
    const T rest = fmod(b, a);
    b = a;
    a = rest;
  }
  return b;
}

// Hurwitz's zeta: q + k up to 9 one by one, the rest by Euler and Maclaurin (cephes); NaN where it
// has no value.
inline double zeta(double x, double q) {
  const double least = 1.11022302462515654042e-16;
  if (!(x > 1) || (q <= 0 && (q == floor(q) || x != floor(x))) || q != q) return __builtin_nan("");
  double s = pow(q, -x), a = q, b = 0;
  for (int i = 0; i < 9 || a <= 9; ++i) {
    a += 1;
    b = pow(a, -x);
    s += b;
    if (abs(b) < least * abs(s) || (b == 0 && !isinf(x))) return s;
  }
  s += b * a / (x - 1) - 0.5 * b;
  const double scales[] = {12, -720, 30240, -1209600, 47900160, -1.8924375803183791606e9,
                           7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14,
                           -4.5979787224074726105e15, 1.8152105401943546773e17,
                           -7.1661652561756670113e18};
  double f = 1, k = 0;
  for (const double scale : scales) {
    f *= x + k;
    b /= a;
    const double t = f * b / scale;
    s += t;
    if (abs(t / s) < least) return s;
    f *= x + (k + 1);
    b /= a;
    k += 2;
  }
  return s;
}
inline float zeta(float x, float q) { return float(zeta(double(x), double(q))); }

// The sum of x**k / ((a + 1) ... (a + k)), of x no larger than a or a little more than 1.
inline double gamma_series(double a, double x) {
  double term = 1, total = 1;
  while (term > 5.5e-17 * total) {
    a += 1;
    term *= x / a;
    total += term;
  }
  return total;
}
inline float gamma_series(float a, float x) { return float(gamma_series(double(a), double(x))); }

// 1 / (x + 1 - a - (1 - a) / (x + 3 - a - ...)), of x above a and 1, until a few steps change no
// more than this part of it: quotients p / q of what grows, and is made smaller meanwhile (cephes).
inline double gamma_fraction(double a, double x, double part) {
  const double first = x + (1 - a) + 1;
  double p1 = 1, q1 = x, p = x + 1, q = first * x, value = p / q;
  for (double c = 1; c < 2000; ++c) {
    const double z = first + 2 * c, n = (1 - a + c) * c, p2 = p * z - p1 * n, q2 = q * z - q1 * n;
    const double small = abs(q2) > 1e6 ? 1 / q2 : 1;
    p1 = p * small;
    q1 = q * small;
    p = p2 * small;
    q = q2 * small;
    const double now = p / q;
    if (!(abs(now - value) > part * now)) return now;
    value = now;
  }
  return value;
}
inline float gamma_fraction(float a, float x, float part) {
  return float(gamma_fraction(double(a), double(x), double(part)));
}

// p[n] of p[0] = 1, p[1] = q and a recurrence, n a whole number. What has come to NaN stays there.
template <typename T, typename Step>
inline T polynomial(T q, T n, Step step) {
  T p = 1;
  if (n <= 0) return p;
  for (T k = 1; k < n && q == q; ++k) {
    const T r = step(k, q, p);
    p = q;
    q = r;
  }
  return q;
}
template <typename T>
inline T chebyshev(T x, T first, T n) {
  return polynomial(first, n, [x](T, T q, T p) { return (x + x) * q - p; });
}
template <typename T>
inline T hermite(T x, T scale, T n) {
  return polynomial(x, n, [x, scale](T k, T q, T p) { return x * q - k * scale * p; });
}
template <typename T>
inline T laguerre(T x, T n) {
  return polynomial(T(1 - x), n, [x](T k, T q, T p) {
    return ((k + k + (1 - x)) * q - k * p) / (k + 1);
  });
}
template <typename T>
inline T legendre(T x, T n) {
  return polynomial(x, n, [x](T k, T q, T p) {
    return ((k + k + 1) * x * q - k * p) / (k + 1);
  });
}

// ---- random numbers and folds

// Philox-2x32-10 (Salmon et al., SC11), two words of each block.
inline uint32_t philox(int64_t seed, int64_t counter) {
  uint32_t key = uint32_t(seed);
  const uint64_t block = uint64_t(counter) >> 1;
  uint32_t left = uint32_t(block), right = uint32_t(block >> 32) ^ uint32_t(uint64_t(seed) >> 32);
  for (int i = 0; i < 10; ++i) {
    const uint64_t product = uint64_t(left) * 0xD256D193u;
    left = uint32_t(product >> 32) ^ key ^ right;
    right = uint32_t(product);
    key += 0x9E3779B9u;
  }
  return counter & 1 ? right : left;
}

#pragma omp declare reduction(maximum : float : omp_out = maximum(omp_out, omp_in)) \
    initializer(omp_priv = -__builtin_inff())
#pragma omp declare reduction(maximum : double : omp_out = maximum(omp_out, omp_in)) \
    initializer(omp_priv = -__builtin_inf())
#pragma omp declare reduction(minimum : float : omp_out = minimum(omp_out, omp_in)) \
    initializer(omp_priv = __builtin_inff())
#pragma omp declare reduction(minimum : double : omp_out = minimum(omp_out, omp_in)) \
    initializer(omp_priv = __builtin_inf())

}  // namespace loops
