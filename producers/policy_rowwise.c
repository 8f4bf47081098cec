/* Kernels that look at one row at a time (policy_rowwise.h). */
#include "policy_rowwise.h"

#include <math.h>
#include <string.h>

#include "plan.h"
#include "vector.h"

/* To float32: one row of `n` elements. */
static void convert(const void *from, uint32_t dtype, float *to, size_t n) {
    switch (dtype) {
    case HR_UINT8:
        for (size_t i = 0; i < n; i++) to[i] = (float)((const uint8_t *)from)[i];
        break;
    case HR_INT8:
        for (size_t i = 0; i < n; i++) to[i] = (float)((const int8_t *)from)[i];
        break;
    case HR_INT32:
        for (size_t i = 0; i < n; i++) to[i] = (float)((const int32_t *)from)[i];
        break;
    default: memcpy(to, from, n * sizeof *to); break;
    }
}

void cast_rows(const cast *c, const uint8_t *obs, size_t stride, view out, size_t n) {
    for (size_t r = 0; r < n; r++) {
        float *y = out.data + r * out.stride;
        convert(obs + r * stride, c->dtype, y, c->width);
        if (c->statistics != NULL)
            for (size_t i = 0; i < c->width; i++) y[i] = (y[i] - c->statistics[i]) * c->statistics[c->width + i];
        else if (c->scale != 1.0f || c->offset != 0.0f)
            for (size_t i = 0; i < c->width; i++) y[i] = y[i] * c->scale + c->offset;
        if (c->clip > 0.0f)
            for (size_t i = 0; i < c->width; i++)
                y[i] = y[i] > c->clip ? c->clip : y[i] < -c->clip ? -c->clip : y[i];
    }
}

void add_rows(view a, view b, view out, size_t width, size_t n) {
    for (size_t r = 0; r < n; r++) {
        const float *x = a.data + r * a.stride, *z = b.data + r * b.stride;
        float *y = out.data + r * out.stride;
        for (size_t i = 0; i < width; i++) y[i] = x[i] + z[i];
    }
}

void multiply_rows(view a, view b, view out, size_t width, size_t n) {
    for (size_t r = 0; r < n; r++) {
        const float *x = a.data + r * a.stride, *z = b.data + r * b.stride;
        float *y = out.data + r * out.stride;
        for (size_t i = 0; i < width; i++) y[i] = x[i] * z[i];
    }
}

void copy_columns(view from, size_t from_column, view to, size_t to_column, size_t width, size_t n) {
    for (size_t r = 0; r < n; r++)
        memcpy(to.data + r * to.stride + to_column, from.data + r * from.stride + from_column,
               width * sizeof(float));
}

void embedding_rows(const uint8_t *bytes, size_t stride, size_t count, const float *table, size_t codes, size_t width,
                    view out, size_t n) {
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < count; i++) {
            size_t code = bytes[r * stride + i];
            memcpy(out.data + r * out.stride + i * width, table + (code < codes ? code : codes - 1) * width,
                   width * sizeof *table);
        }
}

/* The sum of f(x[i] - shift) over the row, f being x or x^2. */
HR_INLINE float sum_row(const float *x, float shift, int squares, size_t width) {
    hr_vec lanes = {0};
    float sum = 0.0f;
    size_t i = 0;
    for (; i + HR_LANES <= width; i += HR_LANES) {
        hr_vec d = vec_load(x + i) - shift;
        lanes += squares ? d * d : d;
    }
    for (int lane = 0; lane < HR_LANES; lane++) sum += lanes[lane];
    for (; i < width; i++) {
        float d = x[i] - shift;
        sum += squares ? d * d : d;
    }
    return sum;
}

void layer_norm_rows(view x, const float *packed, float epsilon, size_t width, view out, size_t n) {
    for (size_t r = 0; r < n; r++) {
        const float *row = x.data + r * x.stride, *scale = packed, *bias = packed + width;
        float *y = out.data + r * out.stride;
        float mean = sum_row(row, 0.0f, 0, width) / (float)width;
        float variance = sum_row(row, mean, 1, width) / (float)width;
        float inverse = 1.0f / sqrtf(variance + epsilon);
        for (size_t i = 0; i < width; i++) y[i] = (row[i] - mean) * inverse * scale[i] + bias[i];
    }
}
