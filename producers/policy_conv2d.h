/* The convolution kernel: no padding, channels last, by the linear kernel over the patches where they lie. */
#ifndef HEADRACE_POLICY_CONV2D_H
#define HEADRACE_POLICY_CONV2D_H

#include <stddef.h>
#include <stdint.h>

/* Input [rows, columns, in], kernel at most as large; output [output rows, output columns, out]. */
typedef struct conv2d {
    size_t rows, columns, in;
    size_t kernel_rows, kernel_columns, stride;
    size_t out;
} conv2d;

static inline size_t conv2d_output_rows(const conv2d *c) { return (c->rows - c->kernel_rows) / c->stride + 1; }
static inline size_t conv2d_output_columns(const conv2d *c) {
    return (c->columns - c->kernel_columns) / c->stride + 1;
}

/* Weights [out, in, kernel_rows, kernel_columns] as the linear kernel wants them. `scratch`: as many floats as the
 * weights. */
size_t conv2d_packed_floats(const conv2d *c);
void conv2d_pack(const conv2d *c, const float *weight, const float *bias, float *packed, float *scratch);

/* Floats that a row of the output needs: more than it has where `out` fills no whole vectors. */
size_t conv2d_row_floats(const conv2d *c);

/* `rows` as linear_rows wants them, `y_stride` at least conv2d_row_floats. */
void conv2d_rows(const conv2d *c, const float *x, size_t x_stride, const float *packed, float *y, size_t y_stride,
                 size_t rows, uint32_t activation);

#endif
