/* Noise and categorical heads (policy_sample.h), a row a lane. */
#include "policy_sample.h"

#include <string.h>

#include "vector.h"

enum { GROUP_VECTORS = (int)SAMPLE_ROWS / HR_LANES };
_Static_assert(SAMPLE_ROWS % HR_LANES == 0, "groups are whole vectors");

void noise_block(uint64_t key, uint64_t first_agent, uint64_t step, uint32_t block,
                 uint32_t word[4][SAMPLE_ROWS]) {
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (uint32_t i = 0; i < SAMPLE_ROWS; i++) {
        word[0][i] = (uint32_t)(first_agent + i);
        word[1][i] = (uint32_t)((first_agent + i) >> 32);
        word[2][i] = (uint32_t)step;
        word[3][i] = (uint32_t)(step >> 32) | block << 30;
    }
    for (int round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < SAMPLE_ROWS; i++) {
            uint64_t a = (uint64_t)0xD2511F53u * word[0][i], b = (uint64_t)0xCD9E8D57u * word[2][i];
            word[0][i] = (uint32_t)(b >> 32) ^ word[1][i] ^ key0;
            word[1][i] = (uint32_t)b;
            word[2][i] = (uint32_t)(a >> 32) ^ word[3][i] ^ key1;
            word[3][i] = (uint32_t)a;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* One head of one vector of rows. `logit` and `weight` [choices][SAMPLE_ROWS], of which these are HR_LANES
 * columns; `weight` is scratch. Adds the log-probability of the choice to `logprob`. */
HR_INLINE hr_ivec choose(const float *logit, float *weight, int32_t choices, hr_vec uniform, int argmax,
                         hr_vec *logprob) {
    hr_vec largest = vec_load(logit), total = {0}, taken = {0};
    hr_ivec chosen = {0};
    for (int32_t c = 1; c < choices; c++) {
        hr_vec x = vec_load(logit + (size_t)c * SAMPLE_ROWS);
        hr_ivec above = x > largest;
        largest = vec_select(above, x, largest);
        chosen = (above & c) | (~above & chosen);
    }
    for (int32_t c = 0; c < choices; c++) {
        hr_vec w = vec_exp(vec_load(logit + (size_t)c * SAMPLE_ROWS) - largest);
        vec_store(weight + (size_t)c * SAMPLE_ROWS, w);
        total += w;
    }
    if (argmax) {
        chosen &= total == total;
    } else { /* the number of running sums within the threshold: a comparison that holds is -1 */
        hr_vec threshold = uniform * total, running = {0};
        chosen = (hr_ivec){0};
        for (int32_t c = 0; c < choices; c++) {
            running += vec_load(weight + (size_t)c * SAMPLE_ROWS);
            chosen -= running <= threshold;
        }
    }
    for (int32_t c = 0; c < choices; c++)
        taken = vec_select(chosen == c, vec_load(logit + (size_t)c * SAMPLE_ROWS), taken);
    *logprob += (taken - largest) - vec_log(total);
    return chosen;
}

/* One head's logits, a row a column, with -infinity where masked. */
static void transpose(const float *logits, size_t stride, const uint8_t *mask, size_t mask_stride,
                      int32_t choices, uint32_t rows, float *out) {
    for (int32_t c = 0; c < choices; c++)
        for (uint32_t r = 0; r < SAMPLE_ROWS; r++)
            out[(size_t)c * SAMPLE_ROWS + r] = logits[r * stride + (size_t)c];
    if (mask == NULL) return;
    for (uint32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < choices; c++)
            if (!mask[r * mask_stride + (size_t)c]) out[(size_t)c * SAMPLE_ROWS + r] = -__builtin_inff();
}

void sample_rows(const float *logits, size_t stride, const uint8_t *mask, size_t mask_stride,
                 const int32_t *choices, uint32_t heads, uint32_t rows, uint64_t key, uint64_t first_agent,
                 uint64_t step, int argmax, float *scratch, int32_t *actions, float *logprob) {
    uint32_t word[4][SAMPLE_ROWS];
    hr_vec sum[GROUP_VECTORS];
    memset(word, 0, sizeof word);
    memset(sum, 0, sizeof sum);
    for (uint32_t head = 0; head < heads; head++) {
        int32_t n = choices[head], chosen[SAMPLE_ROWS];
        float *weight = scratch + (size_t)n * SAMPLE_ROWS, uniform[SAMPLE_ROWS];
        if (head % 4 == 0 && !argmax) noise_block(key, first_agent, step, head / 4, word);
        for (uint32_t r = 0; r < SAMPLE_ROWS; r++) uniform[r] = noise_uniform(word[head % 4][r]);
        transpose(logits, stride, mask, mask_stride, n, rows, scratch);
        for (int v = 0; v < GROUP_VECTORS; v++) {
            hr_ivec c = choose(scratch + v * HR_LANES, weight + v * HR_LANES, n,
                               vec_load(uniform + v * HR_LANES), argmax, &sum[v]);
            memcpy(chosen + v * HR_LANES, &c, sizeof c);
        }
        for (uint32_t r = 0; r < rows; r++) {
            int32_t c = chosen[r];
            if (mask != NULL && !mask[r * mask_stride + (size_t)c]) /* NaN logits, whose choice means nothing */
                for (c = 0; c < n - 1 && !mask[r * mask_stride + (size_t)c];) c++;
            actions[r * heads + head] = c;
        }
        logits += n;
        if (mask != NULL) mask += n;
    }
    memcpy(logprob, sum, rows * sizeof *logprob);
}
