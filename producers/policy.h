/* The policy in C: runs a policy program (program.h) over the observations of a producer's agents.
 *
 * Every row is computed by the same operations in the same order wherever it stands and however many rows
 * there are, so an agent's actions do not depend on how agents are split over producers: bit for bit on one
 * machine. A NaN in an observation or weight gives a NaN log-probability and a valid action. */
#ifndef HEADRACE_POLICY_H
#define HEADRACE_POLICY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hr_policy hr_policy;

#pragma GCC visibility push(default)

/* Reads the encoded program and allocates all that `agents` rows need. NULL with one line in `error` if the
 * program is damaged, or of another version, or uses an operation that this policy does not run. */
hr_policy *hr_policy_create(const void *program, uint64_t bytes, uint32_t agents, char *error,
                            size_t capacity);
void hr_policy_destroy(hr_policy *policy);

/* Float32 values of the flat vector; recurrent floats an agent; action heads; logits; bytes allocated. */
uint64_t hr_policy_count(const hr_policy *policy);
uint32_t hr_policy_state_width(const hr_policy *policy);
uint32_t hr_policy_heads(const hr_policy *policy);
uint32_t hr_policy_logits_width(const hr_policy *policy);
uint64_t hr_policy_bytes(const hr_policy *policy);

/* Takes the weights `flat` [count] in the program's order; later calls act with them. */
void hr_policy_load(hr_policy *policy, const float *flat);

/* One step of all agents.
 *   obs           [agents, *obs_shape] in the simulator's dtype; aligned as its element type
 *   mask          [agents, logits] 1 = allowed, or NULL: all are
 *   state         [agents, state_width] read and written; NULL if state_width is 0
 *   reset_before  [agents] 1 = zero that row of `state` first; or NULL
 *   argmax        1: the likeliest choice of each head (the first of equals, the mean of a Gaussian), 0: a
 *                 sample
 *   actions       [agents, heads] out, int32, or float32 of a Gaussian, not clipped
 *   logprob       [agents] out: log-probability of the actions, summed over the heads
 * The noise is a pure function of (noise_key, first_agent + row, step, head); step < 2^62. */
void hr_policy_act(hr_policy *policy, const void *obs, const uint8_t *mask, float *state,
                   const uint8_t *reset_before, uint64_t noise_key, uint64_t first_agent, uint64_t step,
                   int argmax, void *actions, float *logprob);

/* The logits [agents, logits] before masking, for tests and evaluation; otherwise as hr_policy_act. */
void hr_policy_logits(hr_policy *policy, const void *obs, float *state, const uint8_t *reset_before,
                      float *logits);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
