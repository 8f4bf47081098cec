/* A small generator for simulators: PCG32 (O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient
 * Statistically Good Algorithms for Random Number Generation"), 16 bytes of state, through SplitMix64. */
#ifndef HEADRACE_RNG_H
#define HEADRACE_RNG_H

#include <stdint.h>

typedef struct rng {
    uint64_t state, increment;
} rng;

/* One round of SplitMix64's finalizer (Steele, Lea, Flood 2014): a bijection that mixes all 64 bits. */
static inline uint64_t rng_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint32_t rng_u32(rng *r) {
    uint64_t old = r->state;
    r->state = old * 6364136223846793005u + r->increment;
    uint32_t xorshifted = (uint32_t)(((old >> 18) ^ old) >> 27);
    uint32_t rotation = (uint32_t)(old >> 59);
    return (xorshifted >> rotation) | (xorshifted << ((32 - rotation) & 31));
}

static inline void rng_seed(rng *r, uint64_t seed) {
    r->state = rng_mix(seed);
    r->increment = rng_mix(seed ^ 0xda3e39cb94b95bdbu) | 1u;
    (void)rng_u32(r);
}

/* Uniform in [0, 1), 24 bits. */
static inline float rng_float(rng *r) { return (float)(rng_u32(r) >> 8) * 0x1p-24f; }

/* Uniform in [0, n), n > 0 (Lemire 2019 without the rejection: bias below n / 2^32). */
static inline uint32_t rng_below(rng *r, uint32_t n) { return (uint32_t)(((uint64_t)rng_u32(r) * n) >> 32); }

#endif
