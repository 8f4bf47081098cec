/* Counter-based noise and the heads: logits, or a Gaussian's means, to actions and log-probabilities. */
#ifndef HEADRACE_POLICY_SAMPLE_H
#define HEADRACE_POLICY_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "program.h"

/* Rows are sampled in groups of this many; what is computed for padding rows is thrown away. */
#define SAMPLE_ROWS 16u

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3") for
 * SAMPLE_ROWS consecutive agents. Counter: agent low, agent high, step low, step high | block << 30; key:
 * noise key low, high. Head h of an agent's step takes word h % 4 of block h / 4. word[w][row]. */
void noise_block(uint64_t key, uint64_t first_agent, uint64_t step, uint32_t block,
                 uint32_t word[4][SAMPLE_ROWS]);

/* Uniform in [0, 1) of a noise word: its 32 bits, rounded to float32, below 1. */
static inline float noise_uniform(uint32_t word) {
    float u = (float)word * 0x1p-32f;
    return u < 0x1.fffffep-1f ? u : 0x1.fffffep-1f;
}

/* Chooses for SAMPLE_ROWS rows, of which `rows` count, one action a head.
 *   logits    [SAMPLE_ROWS] rows of `stride` floats, the heads' logits one after another
 *   mask      [rows, mask_stride] bytes beside the logits, or NULL; a masked choice has probability exactly 0
 *   choices   [heads]
 *   scratch   2 * max(choices) * SAMPLE_ROWS floats
 *   actions   [rows, heads] out; logprob [rows] out, summed over heads in their order
 * Inverse CDF of the softmax: the first choice whose running sum of exp(logit - max) exceeds uniform * total.
 * A NaN among a head's logits, or all choices masked, gives action 0 and log-probability NaN. */
void sample_rows(const float *logits, size_t stride, const uint8_t *mask, size_t mask_stride,
                 const int32_t *choices, uint32_t heads, uint32_t rows, uint64_t key, uint64_t first_agent,
                 uint64_t step, int argmax, float *scratch, int32_t *actions, float *logprob);

/* A Gaussian head's standard deviations and their logarithms. */
typedef struct gaussian_head {
    float std[HR_PROGRAM_HEADS], log_std[HR_PROGRAM_HEADS];
} gaussian_head;

void gaussian_set(gaussian_head *gaussian, const float *log_std, uint32_t heads);

/* A standard normal number of each noise word: the inverse of the normal distribution function at
 * p = (the low 31 bits + 1/2) / 2^32, with the top bit for its sign. Within 4e-6 of it, at most 6.34 in
 * magnitude. */
void noise_normal(const uint32_t word[SAMPLE_ROWS], float normal[SAMPLE_ROWS]);

/* As sample_rows, with float32 actions mean + std * normal, or the mean where `argmax`. The log-probability is
 * that of the action as it is stored. An action that is not finite is 0 instead, with log-probability NaN.
 *   means  [SAMPLE_ROWS] rows of `stride` floats */
void sample_gaussian_rows(const float *means, size_t stride, const gaussian_head *gaussian, uint32_t heads,
                          uint32_t rows, uint64_t key, uint64_t first_agent, uint64_t step, int argmax,
                          float *actions, float *logprob);

#endif
