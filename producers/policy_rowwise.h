/* Kernels that look at one row at a time: cast, elementwise operations, embedding, layer norm. */
#ifndef HEADRACE_POLICY_ROWWISE_H
#define HEADRACE_POLICY_ROWWISE_H

#include <stddef.h>
#include <stdint.h>

/* Rows of one buffer, `stride` floats apart. */
typedef struct view {
    float *data;
    size_t stride;
} view;

/* `width` elements of observation rows `stride` bytes apart, of an hr_dtype, to float32: (x - mean) * inv_std, from
 * `statistics` (mean [width], inv_std [width]), or without them x * scale + offset; then within +-clip if clip > 0. */
typedef struct cast {
    uint32_t dtype;
    size_t width;
    const float *statistics;
    float scale, offset, clip;
} cast;
void cast_rows(const cast *c, const uint8_t *obs, size_t stride, view out, size_t n);

void add_rows(view a, view b, view out, size_t width, size_t n);
void multiply_rows(view a, view b, view out, size_t width, size_t n);
void copy_columns(view from, size_t from_column, view to, size_t to_column, size_t width, size_t n);

/* Each of `count` bytes picks a row of `table` [codes, width]; one beyond them picks the last. */
void embedding_rows(const uint8_t *bytes, size_t stride, size_t count, const float *table, size_t codes, size_t width,
                    view out, size_t n);

/* `packed` [2][width]: scale, bias. Sums are over HR_LANES partial ones, in one order on one machine. */
void layer_norm_rows(view x, const float *packed, float epsilon, size_t width, view out, size_t n);

#endif
