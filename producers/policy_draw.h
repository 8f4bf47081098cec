/* Actions from logits that somebody else computed: as hr_policy_act() draws them, of any number of rows. */
#ifndef HEADRACE_POLICY_DRAW_H
#define HEADRACE_POLICY_DRAW_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

/* Discrete heads.
 *   logits   [rows, sum(choices)], before masking
 *   mask     [rows, sum(choices)] 1 = allowed, or NULL
 *   choices  [heads]
 *   scratch  hr_policy_draw_floats(choices, heads) floats
 *   actions  [rows, heads] out; logprob [rows] out
 * The noise is that of agents first_agent, first_agent + 1, ... */
void hr_policy_draw(const float *logits, const uint8_t *mask, const int32_t *choices, uint32_t heads, size_t rows,
                    uint64_t noise_key, uint64_t first_agent, uint64_t step, float *scratch, int32_t *actions,
                    float *logprob);
size_t hr_policy_draw_floats(const int32_t *choices, uint32_t heads);

/* Normally distributed actions: means [rows, heads], log_std [heads]; scratch of 16 * heads floats. */
void hr_policy_draw_gaussian(const float *means, const float *log_std, uint32_t heads, size_t rows, uint64_t noise_key,
                             uint64_t first_agent, uint64_t step, float *scratch, float *actions, float *logprob);

#pragma GCC visibility pop

#endif
