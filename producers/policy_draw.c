/* Actions from logits that somebody else computed. The kernels take whole groups of rows: the last ones are copied to
 * scratch memory, whose rows behind them are old and go nowhere. */
#include "policy_draw.h"

#include <string.h>

#include "policy_sample.h"

static size_t width_of(const int32_t *choices, uint32_t heads, size_t *largest) {
    size_t width = 0;
    *largest = 0;
    for (uint32_t h = 0; h < heads; h++) {
        width += (size_t)choices[h];
        if ((size_t)choices[h] > *largest) *largest = (size_t)choices[h];
    }
    return width;
}

size_t hr_policy_draw_floats(const int32_t *choices, uint32_t heads) {
    size_t largest, width = width_of(choices, heads, &largest);
    return (width + 2 * largest) * SAMPLE_ROWS;
}

/* A whole group of rows from row r on. */
static const float *whole(const float *from, size_t width, size_t r, size_t rows, float *scratch) {
    if (rows - r >= SAMPLE_ROWS) return from + r * width;
    memset(scratch, 0, SAMPLE_ROWS * width * sizeof *scratch);
    memcpy(scratch, from + r * width, (rows - r) * width * sizeof *scratch);
    return scratch;
}

static uint32_t count(size_t r, size_t rows) { return rows - r < SAMPLE_ROWS ? (uint32_t)(rows - r) : SAMPLE_ROWS; }

void hr_policy_draw(const float *logits, const uint8_t *mask, const int32_t *choices, uint32_t heads, size_t rows,
                    uint64_t noise_key, uint64_t first_agent, uint64_t step, float *scratch, int32_t *actions,
                    float *logprob) {
    size_t largest, width = width_of(choices, heads, &largest);
    for (size_t r = 0; r < rows; r += SAMPLE_ROWS)
        sample_rows(whole(logits, width, r, rows, scratch), width, mask != NULL ? mask + r * width : NULL, width, choices,
                    heads, count(r, rows), noise_key, first_agent + r, step, 0, scratch + SAMPLE_ROWS * width,
                    actions + r * heads, logprob + r);
}

void hr_policy_draw_gaussian(const float *means, const float *log_std, uint32_t heads, size_t rows, uint64_t noise_key,
                             uint64_t first_agent, uint64_t step, float *scratch, float *actions, float *logprob) {
    gaussian_head gaussian;
    gaussian_set(&gaussian, log_std, heads);
    for (size_t r = 0; r < rows; r += SAMPLE_ROWS)
        sample_gaussian_rows(whole(means, heads, r, rows, scratch), heads, &gaussian, heads, count(r, rows), noise_key,
                             first_agent + r, step, 0, actions + r * heads, logprob + r);
}
