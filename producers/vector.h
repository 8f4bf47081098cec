/* Vectors of the machine's own width in GCC's vector extensions, and exp, log, tanh, erf on them.
 *
 * One source for AVX-512, AVX2, NEON and plain SSE2. The functions have no branch on data, so a lane's result
 * does not depend on its neighbours. NaN in, NaN out. Polynomials are minimax fits (Remez); the errors are
 * checked against float64 in tests/test_policy_kernels.py. */
#ifndef HEADRACE_VECTOR_H
#define HEADRACE_VECTOR_H

#include <stdint.h>

#if defined(__AVX512F__)
#define HR_LANES 16
#elif defined(__AVX__)
#define HR_LANES 8
#else
#define HR_LANES 4
#endif
#define HR_VECTOR_BYTES (4 * HR_LANES)

typedef float hr_vec __attribute__((vector_size(HR_VECTOR_BYTES)));
typedef int32_t hr_ivec __attribute__((vector_size(HR_VECTOR_BYTES)));
typedef uint32_t hr_uvec __attribute__((vector_size(HR_VECTOR_BYTES)));
/* For loads and stores at any float's address. */
typedef float hr_vec_unaligned __attribute__((vector_size(HR_VECTOR_BYTES), aligned(4), may_alias));

#define HR_INLINE static inline __attribute__((always_inline))

HR_INLINE hr_vec vec_load(const float *p) { return *(const hr_vec_unaligned *)p; }
HR_INLINE void vec_store(float *p, hr_vec v) { *(hr_vec_unaligned *)p = v; }
HR_INLINE hr_vec vec_all(float x) { return x - (hr_vec){0}; }

/* `yes` where the lane of `mask` (all ones or zero) is set, else `no`: a selection, not arithmetic. */
HR_INLINE hr_vec vec_select(hr_ivec mask, hr_vec yes, hr_vec no) {
    return (hr_vec)((mask & (hr_ivec)yes) | (~mask & (hr_ivec)no));
}
/* A NaN in `x` stays. */
HR_INLINE hr_vec vec_at_least(hr_vec x, float low) { return vec_select(x < low, vec_all(low), x); }
HR_INLINE hr_vec vec_at_most(hr_vec x, float high) { return vec_select(x > high, vec_all(high), x); }
HR_INLINE hr_vec vec_sqrt(hr_vec x) {
    for (int i = 0; i < HR_LANES; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
HR_INLINE hr_vec vec_abs(hr_vec x) { return (hr_vec)((hr_ivec)x & 0x7fffffff); }
HR_INLINE hr_vec vec_copysign(hr_vec magnitude, hr_vec sign) {
    return (hr_vec)(((hr_ivec)magnitude & 0x7fffffff) | ((hr_ivec)sign & INT32_MIN));
}

/* 2^n for integers n in [-126, 127] held as float bits' exponent. */
HR_INLINE hr_vec vec_exp2_integer(hr_ivec n) { return (hr_vec)((n + 127) << 23); }

/* e^x within 2 ulp; subnormal results too; 0 below -104, infinity above 88.73. */
HR_INLINE hr_vec vec_exp(hr_vec x) {
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, which lands in the low bits */
    hr_vec bounded = vec_at_most(vec_at_least(x, -104.0f), 89.0f);
    hr_vec shifted = bounded * 0x1.715476p+0f + magic;
    hr_vec n = shifted - magic;
    hr_ivec exponent = (hr_ivec)shifted - (hr_ivec)vec_all(magic);
    hr_vec r = bounded - n * 0x1.62e4p-1f; /* ln 2 in two parts, the first exact times any n here */
    r = r - n * 0x1.7f7d1cp-20f;
    hr_vec p = r * 0x1.6a2352p-10f + 0x1.123a6cp-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.55549p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r * r + r + 1.0f;
    hr_ivec half = exponent >> 1; /* in two steps, so that neither factor leaves the range */
    return p * vec_exp2_integer(half) * vec_exp2_integer(exponent - half);
}

/* ln x within 2 ulp for positive normal x; -infinity at 0 and below 2^-126, infinity at infinity, NaN below
 * 0. */
HR_INLINE hr_vec vec_log(hr_vec x) {
    hr_ivec bits = (hr_ivec)x;
    hr_ivec exponent = (bits - 0x3f3504f3) >> 23; /* mantissa in [sqrt 1/2, sqrt 2) */
    hr_vec f = (hr_vec)(bits - (exponent << 23)) - 1.0f;
    hr_vec n = __builtin_convertvector(exponent, hr_vec);
    hr_vec p = f * 0x1.23078cp-4f - 0x1.e9f7dcp-4f;
    p = p * f + 0x1.e6dddp-4f;
    p = p * f - 0x1.fa3936p-4f;
    p = p * f + 0x1.231764p-3f;
    p = p * f - 0x1.5568a4p-3f;
    p = p * f + 0x1.99a6c4p-3f;
    p = p * f - 0x1.ffffdcp-3f;
    p = p * f + 0x1.555544p-2f;
    hr_vec square = f * f;
    hr_vec low = p * f * square + n * 0x1.7f7d1cp-20f - 0.5f * square;
    hr_vec y = n * 0x1.62e4p-1f + (f + low);
    y = vec_select(x < 0x1p-126f, vec_all(-__builtin_inff()), y);
    y = vec_select(x == __builtin_inff(), x, y);
    y = vec_select(x < 0.0f, vec_all(__builtin_nanf("")), y);
    return vec_select(x == x, y, x);
}

/* tanh x within 3 ulp. */
HR_INLINE hr_vec vec_tanh(hr_vec x) {
    hr_vec a = vec_abs(x), t = x * x;
    hr_vec p = t * -0x1.6e69b2p-8f + 0x1.50820ep-6f;
    p = p * t - 0x1.b7fd5p-5f;
    p = p * t + 0x1.110552p-3f;
    p = p * t - 0x1.55552ap-2f;
    hr_vec small = x + x * t * p;
    hr_vec large = 1.0f - 2.0f / (vec_exp(a + a) + 1.0f);
    return vec_select(a < 0.625f, small, vec_copysign(large, x));
}

/* erf x within 3 ulp. Above 1: 1 - exp(-q(|x|)), q a fit of -ln erfc. */
HR_INLINE hr_vec vec_erf(hr_vec x) {
    hr_vec a = vec_at_most(vec_abs(x), 4.0f), t = a * a;
    hr_vec p = t * 0x1.496a32p-14f - 0x1.a3f7p-11f;
    p = p * t + 0x1.5405b2p-8f;
    p = p * t - 0x1.b7f90ep-6f;
    p = p * t + 0x1.ce2cf8p-4f;
    p = p * t - 0x1.81273ep-2f;
    p = p * t + 0x1.20dd74p+0f;
    hr_vec small = p * x;
    hr_vec q = a * -0x1.896f8p-13f + 0x1.83fceap-9f;
    q = q * a - 0x1.66a3ccp-6f;
    q = q * a + 0x1.a6c82p-4f;
    q = q * a + 0x1.46a98ap-1f;
    q = q * a + 0x1.208e52p+0f;
    q = q * a + 0x1.5025cep-12f;
    hr_vec large = 1.0f - vec_exp(-q);
    return vec_select(a < 1.0f, small, vec_copysign(large, x));
}

HR_INLINE hr_vec vec_relu(hr_vec x) { return vec_at_least(x, 0.0f); }
HR_INLINE hr_vec vec_sigmoid(hr_vec x) { return 1.0f / (1.0f + vec_exp(-x)); }
/* Hendrycks & Gimpel 2016, exact and with their tanh approximation. */
HR_INLINE hr_vec vec_gelu_erf(hr_vec x) { return 0.5f * x * (1.0f + vec_erf(x * 0x1.6a09e6p-1f)); }
HR_INLINE hr_vec vec_gelu_tanh(hr_vec x) {
    return 0.5f * x * (1.0f + vec_tanh(0x1.988454p-1f * (x + 0.044715f * x * x * x)));
}

#endif
