/* The convolution kernel (policy_conv2d.h). With channels last, a patch is one run of memory for each row of the
 * kernel, so the linear kernel reads patches in place, one output position of all rows after another. */
#include "policy_conv2d.h"

#include "policy_linear.h"

static size_t inputs(const conv2d *c) { return c->kernel_rows * c->kernel_columns * c->in; }

size_t conv2d_packed_floats(const conv2d *c) { return linear_packed_floats(inputs(c), c->out); }

void conv2d_pack(const conv2d *c, const float *weight, const float *bias, float *packed, float *scratch) {
    size_t cells = c->kernel_rows * c->kernel_columns;
    for (size_t o = 0; o < c->out; o++) /* channels last here too */
        for (size_t i = 0; i < c->in; i++)
            for (size_t cell = 0; cell < cells; cell++)
                scratch[(o * cells + cell) * c->in + i] = weight[(o * c->in + i) * cells + cell];
    linear_pack(scratch, bias, inputs(c), c->out, packed);
}

size_t conv2d_row_floats(const conv2d *c) {
    size_t before_last = conv2d_output_rows(c) * conv2d_output_columns(c) - 1;
    return before_last * c->out + linear_padded_columns(c->out);
}

void conv2d_rows(const conv2d *c, const float *x, size_t x_stride, const float *packed, float *y, size_t y_stride,
                 size_t rows, uint32_t activation) {
    size_t line = c->columns * c->in; /* what a position writes beyond its channels, the next one overwrites */
    for (size_t oy = 0; oy < conv2d_output_rows(c); oy++)
        for (size_t ox = 0; ox < conv2d_output_columns(c); ox++, y += c->out)
            linear_runs(x + (oy * line + ox * c->in) * c->stride, x_stride, c->kernel_rows, line, packed,
                        c->kernel_columns * c->in, c->out, y, y_stride, rows, activation);
}
