/* Noise and heads (policy_sample.h), a row a lane. */
#include "policy_sample.h"

#include <math.h>
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

void gaussian_set(gaussian_head *gaussian, const float *log_std, uint32_t heads) {
    for (uint32_t h = 0; h < heads; h++) {
        gaussian->log_std[h] = log_std[h];
        gaussian->std[h] = expf(log_std[h]);
    }
}

/* Minimax fits of normal / (1 - 2p), which is a smooth function of w = -ln 4p(1-p) near the middle and of its
 * root in the tails. */
HR_INLINE hr_vec normal_quantile(hr_vec p) {
    hr_vec w = -vec_log(4.0f * p * (1.0f - p)), c = w - 2.5f, t = vec_sqrt(vec_at_least(w, 0.0f)) - 3.0f;
    hr_vec middle = c * 0x1.df4a1p-22f - 0x1.2e5c3ep-18f;
    middle = middle * c - 0x1.8490bp-18f;
    middle = middle * c + 0x1.424a34p-12f;
    middle = middle * c - 0x1.d12064p-10f;
    middle = middle * c - 0x1.831048p-8f;
    middle = middle * c + 0x1.652cc8p-2f;
    middle = middle * c + 0x1.0fc8bap+1f;
    hr_vec tail = t * -0x1.f6098ep-13f + 0x1.ad09e2p-10f;
    tail = tail * t - 0x1.37490cp-8f;
    tail = tail * t + 0x1.0c9p-7f;
    tail = tail * t - 0x1.665238p-7f;
    tail = tail * t + 0x1.b511bap-7f;
    tail = tail * t + 0x1.6aa5fap+0f;
    tail = tail * t + 0x1.00696ep+2f;
    return (1.0f - 2.0f * p) * vec_select(w < 5.0f, middle, tail);
}

void noise_normal(const uint32_t word[SAMPLE_ROWS], float normal[SAMPLE_ROWS]) {
    float p[SAMPLE_ROWS];
    for (uint32_t i = 0; i < SAMPLE_ROWS; i++) p[i] = ((float)(word[i] & 0x7fffffffu) + 0.5f) * 0x1p-32f;
    for (int v = 0; v < GROUP_VECTORS; v++)
        vec_store(normal + v * HR_LANES, normal_quantile(vec_load(p + v * HR_LANES)));
    for (uint32_t i = 0; i < SAMPLE_ROWS; i++) normal[i] = word[i] >> 31 ? -normal[i] : normal[i];
}

/* One head of one vector of rows: the action, not yet checked; adds its log-probability. */
HR_INLINE hr_vec draw(hr_vec mean, hr_vec normal, float std, float log_std, hr_vec *logprob) {
    const float half_log_2pi = 0x1.d67f1cp-1f;
    hr_vec action = mean + std * normal, z = (action - mean) / std;
    *logprob += -0.5f * z * z - log_std - half_log_2pi;
    return action;
}

void sample_gaussian_rows(const float *means, size_t stride, const gaussian_head *gaussian, uint32_t heads,
                          uint32_t rows, uint64_t key, uint64_t first_agent, uint64_t step, int argmax,
                          float *actions, float *logprob) {
    uint32_t word[4][SAMPLE_ROWS];
    float normal[SAMPLE_ROWS] = {0}, mean[SAMPLE_ROWS], action[SAMPLE_ROWS], total[SAMPLE_ROWS];
    hr_vec sum[GROUP_VECTORS];
    memset(sum, 0, sizeof sum);
    for (uint32_t head = 0; head < heads; head++) {
        if (!argmax) {
            if (head % 4 == 0) noise_block(key, first_agent, step, head / 4, word);
            noise_normal(word[head % 4], normal);
        }
        for (uint32_t r = 0; r < SAMPLE_ROWS; r++) mean[r] = means[r * stride + head];
        for (int v = 0; v < GROUP_VECTORS; v++)
            vec_store(action + v * HR_LANES,
                      draw(vec_load(mean + v * HR_LANES), vec_load(normal + v * HR_LANES),
                           gaussian->std[head], gaussian->log_std[head], &sum[v]));
        for (uint32_t r = 0; r < rows; r++) actions[r * heads + head] = action[r];
    }
    memcpy(total, sum, sizeof total);
    for (uint32_t r = 0; r < rows; r++) {
        logprob[r] = total[r];
        for (uint32_t head = 0; head < heads; head++)
            if (!isfinite(actions[r * heads + head])) { /* which a simulator must not get */
                actions[r * heads + head] = 0.0f;
                logprob[r] = NAN;
            }
    }
}
