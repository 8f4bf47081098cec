/* Runs the C policy in memory of exactly the size that it may touch, for the sanitizers: policy programs as they are
 * with random bytes as observations, then with random bytes of the program itself damaged.
 *
 *   policy_fuzz ROUNDS FILE ...    a file: an encoded program
 *
 * Prints how many damaged programs ran. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy.h"
#include "policy_program.h"
#include "rng.h"

enum { AGENTS_MAX = 61, WIDTH_MAX = 1 << 14, COUNT_MAX = 1 << 22 };

static void *exactly(size_t bytes) { return malloc(bytes > 0 ? bytes : 1); }

static void fill(rng *random, void *out, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)out)[i] = (uint8_t)rng_u32(random);
}

/* 1 if the program ran. What is too large for a quick test does not. */
static int act(rng *random, const uint8_t *code, size_t bytes) {
    uint32_t agents = 1 + rng_below(random, AGENTS_MAX);
    char error[256];
    program_plan plan;
    if (!program_read(&plan, code, bytes, error, sizeof error)) return 0;
    size_t width = plan.width[plan.head->obs], dtype = program_dtype_bytes(plan.buffer[plan.head->obs].dtype);
    int small = width <= WIDTH_MAX && plan.head->count <= COUNT_MAX;
    for (uint32_t i = 0; i < plan.n_steps; i++) small = small && plan.width[plan.step[i].output] <= WIDTH_MAX;
    program_free(&plan);
    hr_policy *policy = small ? hr_policy_create(code, bytes, agents, error, sizeof error) : NULL;
    if (policy == NULL) return 0;

    size_t count = hr_policy_count(policy), states = hr_policy_state_width(policy), heads = hr_policy_heads(policy);
    float *flat = exactly(count * sizeof *flat), *state = exactly(agents * states * sizeof *state),
          *logprob = exactly(agents * sizeof *logprob);
    uint8_t *obs = exactly(agents * width * dtype), *mask = exactly(agents * hr_policy_logits_width(policy)),
            *reset = exactly(agents);
    void *actions = exactly(agents * heads * 4);
    for (size_t i = 0; i < count; i++) flat[i] = rng_float(random) - 0.5f;
    memset(state, 0, agents * states * sizeof *state);
    memset(mask, 1, agents * hr_policy_logits_width(policy));
    fill(random, reset, agents);
    hr_policy_load(policy, flat);
    for (int step = 0; step < 2; step++) {
        fill(random, obs, agents * width * dtype);
        hr_policy_act(policy, obs, mask, states > 0 ? state : NULL, reset, 1, 0, (uint64_t)step, 0, actions, logprob);
    }
    free(flat), free(state), free(logprob), free(obs), free(mask), free(reset), free(actions);
    hr_policy_destroy(policy);
    return 1;
}

int main(int n, char **arguments) {
    int rounds = atoi(arguments[1]), ran = 0;
    rng random;
    rng_seed(&random, 1);
    for (int i = 2; i < n; i++) {
        FILE *file = fopen(arguments[i], "rb");
        if (file == NULL) return 2;
        fseek(file, 0, SEEK_END);
        size_t bytes = (size_t)ftell(file);
        rewind(file);
        uint8_t *code = exactly(bytes), *damaged = exactly(bytes);
        if (fread(code, 1, bytes, file) != bytes || !act(&random, code, bytes)) return 3;
        fclose(file);
        for (int round = 0; round < rounds; round++) {
            memcpy(damaged, code, bytes);
            for (uint32_t k = 1 + rng_below(&random, 3); k > 0; k--) {
                static const uint8_t values[] = {0, 1, 2, 127, 128, 255};
                uint32_t choice = rng_below(&random, 7);
                damaged[rng_below(&random, (uint32_t)bytes)] = choice < 6 ? values[choice] : (uint8_t)rng_u32(&random);
            }
            ran += act(&random, damaged, bytes);
        }
        free(code), free(damaged);
    }
    printf("%d\n", ran);
    return 0;
}
