/* Policy loss, value loss and entropy of one minibatch with their gradient: see loss.h.
 *
 * Three passes: log-probabilities and entropy from the logits; targets and advantages, backwards in time; losses and
 * gradient. Within a pass the steps of a row are independent and go through vector registers. */
#include "loss.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "../producers/vector.h"

#define MAX_LOG_RATIO 20.0f /* as in corrections.py */
#define ALL_SET ((hr_ivec){0} - 1)

/* `n` is how many of the lanes exist. */
static hr_vec load(const float *p, int64_t n) {
    if (n >= HR_LANES) return vec_load(p);
    float lanes[HR_LANES] = {0};
    memcpy(lanes, p, (size_t)n * sizeof(float));
    return vec_load(lanes);
}

static void store(float *p, hr_vec v, int64_t n) {
    if (n >= HR_LANES) {
        vec_store(p, v);
        return;
    }
    float lanes[HR_LANES];
    vec_store(lanes, v);
    memcpy(p, lanes, (size_t)n * sizeof(float));
}

static hr_ivec load_int(const int32_t *lanes) {
    hr_ivec v;
    memcpy(&v, lanes, sizeof v);
    return v;
}

/* All ones in the lanes whose flag is set; lanes that do not exist are not. NULL: every flag is set. */
static hr_ivec flags(const uint8_t *p, int64_t stride, int64_t n) {
    int32_t lanes[HR_LANES] = {0};
    int64_t count = n < HR_LANES ? n : HR_LANES;
    if (p == NULL && count == HR_LANES) return ALL_SET;
    for (int64_t l = 0; l < count; l++) lanes[l] = p == NULL || p[l * stride] ? -1 : 0;
    return load_int(lanes);
}

static hr_ivec load_actions(const int64_t *p, int64_t stride, int64_t n) {
    int32_t lanes[HR_LANES] = {0};
    int64_t count = n < HR_LANES ? n : HR_LANES;
    for (int64_t l = 0; l < count; l++) lanes[l] = (int32_t)p[l * stride];
    return load_int(lanes);
}

static hr_vec at_most(hr_vec x, hr_vec high) { return vec_select(x > high, high, x); }

static hr_vec bounded(hr_vec x, float low, float high) { return vec_at_most(vec_at_least(x, low), high); }

static hr_vec ratio(hr_vec log_ratio) { return vec_exp(bounded(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)); }

/* (w - 1) - log w */
static hr_vec k3(hr_vec log_ratio) { return ratio(log_ratio) - 1.0f - log_ratio; }

static double sum(hr_vec v) {
    double total = 0.0;
    for (int l = 0; l < HR_LANES; l++) total += (double)v[l];
    return total;
}

static int32_t logits_of(const hr_objective *o) {
    int32_t total = 0;
    for (int32_t h = 0; h < o->heads; h++) total += o->choices[h];
    return total;
}

/* Scratch: log-probabilities of all choices [logits, n], then entropies of all heads [heads, n], then the errors of
 * the row after [m]. The probabilities wait in d_logits. */
int64_t hr_objective_scratch(const hr_objective *o) {
    int64_t n = (int64_t)o->horizon * o->segments;
    return (logits_of(o) + o->heads) * n + o->segments;
}

/* Pass 1. */
static void distributions(hr_objective *o) {
    int64_t n = (int64_t)o->horizon * o->segments, column = (int64_t)o->rows * o->segments;
    int32_t logits = logits_of(o);
    float *entropies = o->scratch + logits * n;
    for (int64_t i = 0; i < n; i += HR_LANES) {
        int64_t lanes = n - i;
        hr_vec log_prob = {0};
        int32_t first = 0;
        for (int32_t h = 0; h < o->heads; h++) {
            int32_t choices = o->choices[h];
            hr_ivec action = load_actions(o->action + i * o->heads + h, o->heads, lanes);
            hr_vec highest = vec_all(-INFINITY), total = {0}, entropy = {0};
            for (int32_t c = first; c < first + choices; c++) {
                hr_vec x = load(o->logits + c * column + i, lanes);
                if (o->mask) x = vec_select(flags(o->mask + i * logits + c, logits, lanes), x, vec_all(-INFINITY));
                store(o->scratch + c * n + i, x, lanes);
                highest = vec_select(highest > x, highest, x);
            }
            for (int32_t c = first; c < first + choices; c++) {
                hr_vec x = load(o->scratch + c * n + i, lanes) - highest, e = vec_exp(x);
                store(o->scratch + c * n + i, x, lanes);
                store(o->d_logits + c * column + i, e, lanes);
                total += e;
            }
            hr_vec log_total = vec_log(total), share = 1.0f / total;
            for (int32_t c = first; c < first + choices; c++) {
                hr_vec log_p = load(o->scratch + c * n + i, lanes) - log_total;
                hr_vec p = load(o->d_logits + c * column + i, lanes) * share;
                hr_vec possible = vec_select(log_p == -INFINITY, (hr_vec){0}, log_p); /* 0 log 0 = 0 */
                store(o->scratch + c * n + i, possible, lanes);
                store(o->d_logits + c * column + i, p, lanes);
                entropy -= p * possible;
                log_prob = vec_select(action == c - first, log_prob + log_p, log_prob);
            }
            store(entropies + h * n + i, entropy, lanes);
            first += choices;
        }
        store(o->log_prob + i, log_prob, lanes);
    }
}

/* Pass 2: v_t and q_t - V_t by V-trace or GAE. Errors of row t+1 stand in `later`, row by row backwards. */
static void estimate(hr_objective *o) {
    int64_t m = o->segments, n = o->horizon * m;
    float *later = o->scratch + (logits_of(o) + o->heads) * n;
    float mean = o->value_mean, deviation = o->value_deviation;
    memset(later, 0, (size_t)m * sizeof(float));
    for (int64_t t = o->horizon - 1; t >= 0; t--) {
        for (int64_t b = 0; b < m; b += HR_LANES) {
            int64_t i = t * m + b, lanes = m - b;
            hr_vec output = load(o->output + i, lanes), value = output * deviation + mean;
            hr_vec successor = load(o->output + i + m, lanes) * deviation + mean;
            hr_vec traces = load(o->traces + i, lanes), error = load(later + b, lanes);
            hr_vec td = load(o->rewards + i, lanes) + load(o->discounts + i, lanes) * successor - value;
            hr_vec rho = vec_all(1.0f), c = rho;
            hr_ivec valid = flags(o->valid ? o->valid + i : NULL, 1, lanes);
            if (o->corrected) {
                hr_vec w = ratio(load(o->log_prob + i, lanes) - load(o->behaviour + i, lanes));
                rho = at_most(w, vec_all(o->rho_clip));
                c = at_most(w, vec_all(o->c_clip));
            }
            td = vec_select(valid, td, (hr_vec){0});
            store(o->advantage + i, td + traces * error, lanes);
            error = vec_select(valid, rho * td + c * traces * error, (hr_vec){0});
            store(later + b, error, lanes);
            store(o->target + i, (value + error - mean) / deviation, lanes);
        }
    }
}

/* Mean and inverse deviation of the advantages over the kept steps. */
static void advantage_scale(const hr_objective *o, const float *advantage, double count, float *mean, float *inverse) {
    int64_t n = (int64_t)o->horizon * o->segments;
    double total = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n; i += HR_LANES) {
        hr_ivec kept = flags(o->kept ? o->kept + i : NULL, 1, n - i);
        total += sum(vec_select(kept, load(advantage + i, n - i), (hr_vec){0}));
    }
    *mean = (float)(total / count);
    for (int64_t i = 0; i < n; i += HR_LANES) {
        hr_ivec kept = flags(o->kept ? o->kept + i : NULL, 1, n - i);
        hr_vec x = vec_select(kept, load(advantage + i, n - i) - *mean, (hr_vec){0});
        squares += sum(x * x);
    }
    *inverse = 1.0f / (sqrtf((float)(squares / count)) + 1e-8f);
}

static double kept_steps(const hr_objective *o) {
    int64_t n = (int64_t)o->horizon * o->segments, count = 0;
    if (o->kept == NULL) return (double)n;
    for (int64_t i = 0; i < n; i++) count += o->kept[i] != 0;
    return count > 0 ? (double)count : 1.0;
}

/* Pass 3. */
static void losses(hr_objective *o) {
    int64_t n = (int64_t)o->horizon * o->segments, column = (int64_t)o->rows * o->segments;
    int32_t logits = logits_of(o);
    const float *entropies = o->scratch + logits * n;
    const float *target = o->given_target ? o->given_target : o->target;
    const float *advantage = o->given_target ? o->given_advantage : o->advantage;
    const float *proximal = o->given_target ? o->given_log_prob : o->log_prob;
    const float *anchor = o->proximal ? proximal : o->behaviour;
    double count = kept_steps(o);
    float mean = 0.0f, inverse = 1.0f, each = (float)(1.0 / count);
    hr_vec policy = {0}, value = {0}, entropy = {0}, kl = {0}, moved = {0}, clipped = {0}, capped = {0};
    if (o->normalize) advantage_scale(o, advantage, count, &mean, &inverse);
    for (int64_t i = 0; i < n; i += HR_LANES) {
        int64_t lanes = n - i;
        hr_ivec kept = flags(o->kept ? o->kept + i : NULL, 1, lanes);
        hr_vec zero = {0}, log_prob = load(o->log_prob + i, lanes);

        hr_vec a = (load(advantage + i, lanes) - mean) * inverse;
        hr_vec log_ratio = log_prob - load(anchor + i, lanes), w = ratio(log_ratio);
        hr_vec free = w * a, held = bounded(w, 1.0f - o->clip, 1.0f + o->clip) * a;
        hr_vec behind = log_prob - load(o->behaviour + i, lanes), weight = vec_all(1.0f);
        if (o->weighted) {
            hr_vec whole = ratio(load(proximal + i, lanes) - load(o->behaviour + i, lanes));
            weight = at_most(whole, vec_all(o->tis_cap));
            capped += vec_select(kept & (whole > o->tis_cap), vec_all(1.0f), zero);
        }
        policy += vec_select(kept, -weight * vec_select(free > held, held, free), zero);
        /* No gradient where the clip holds, or where the ratio itself was bounded. */
        hr_ivec stuck = (free > held) | (vec_abs(log_ratio) > MAX_LOG_RATIO);
        hr_vec d_log_prob = vec_select(kept & ~stuck, -weight * free * each, zero);
        clipped += vec_select(kept & (vec_abs(w - 1.0f) > o->clip), vec_all(1.0f), zero);

        hr_vec output = load(o->output + i, lanes), goal = load(target + i, lanes), d = output - goal;
        hr_vec loss = 0.5f * d * d;
        if (o->value_clip >= 0.0f) {
            hr_vec old = load((o->given_target ? o->given_output : o->output) + i, lanes);
            hr_vec near = old + bounded(output - old, -o->value_clip, o->value_clip), e = near - goal;
            hr_ivec far = 0.5f * e * e > loss; /* the clipped value is farther off and cannot move */
            loss = vec_select(far, 0.5f * e * e, loss);
            d = vec_select(far & (vec_abs(output - old) > o->value_clip), zero, d);
        }
        value += vec_select(kept, loss, zero);
        store(o->d_output + i, vec_select(kept, d * (o->value_coef * each), zero), lanes);

        kl += vec_select(kept, k3(behind), zero);
        if (o->given_target) moved += vec_select(kept, k3(log_prob - load(proximal + i, lanes)), zero);

        hr_vec bonus = vec_select(kept, vec_all(o->entropy_coef * each), zero);
        int32_t first = 0;
        for (int32_t h = 0; h < o->heads; h++) {
            hr_ivec action = load_actions(o->action + i * o->heads + h, o->heads, lanes);
            hr_vec own = load(entropies + h * n + i, lanes);
            entropy += vec_select(kept, own, zero);
            for (int32_t c = first; c < first + o->choices[h]; c++) {
                hr_vec p = load(o->d_logits + c * column + i, lanes), log_p = load(o->scratch + c * n + i, lanes);
                hr_vec taken = vec_select(action == c - first, vec_all(1.0f), zero);
                hr_vec slope = d_log_prob * (taken - p) + bonus * p * (log_p + own); /* 0 times NaN is no 0 */
                store(o->d_logits + c * column + i, vec_select(kept, slope, zero), lanes);
            }
            first += o->choices[h];
        }
    }
    o->policy = sum(policy) / count;
    o->value = sum(value) / count;
    o->entropy = sum(entropy) / count;
    o->kl = sum(kl) / count;
    o->moved = o->given_target ? sum(moved) / count : o->kl;
    o->clipped = sum(clipped) / count;
    o->capped = sum(capped) / count;
}

int hr_objective_run(hr_objective *o) {
    if (o->abi != HR_LOSS_ABI) return -1;
    int64_t n = (int64_t)o->horizon * o->segments, column = (int64_t)o->rows * o->segments;
    distributions(o);
    if (o->given_target == NULL) estimate(o);
    losses(o);
    for (int32_t c = 0; c < logits_of(o) && column > n; c++) /* nobody acted on the bootstrap row */
        memset(o->d_logits + c * column + n, 0, (size_t)(column - n) * sizeof(float));
    if (column > n) memset(o->d_output + n, 0, (size_t)(column - n) * sizeof(float));
    return 0;
}
