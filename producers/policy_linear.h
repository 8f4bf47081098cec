/* The linear kernel: y = act(x W^T + b) for many rows, with weights repacked into column panels. */
#ifndef HEADRACE_POLICY_LINEAR_H
#define HEADRACE_POLICY_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include "program.h"

/* Callers give rows in multiples of this, padding rows included, and output strides of at least
 * linear_padded_columns(out) floats: whole tiles are computed, and what is in excess is garbage or zero. */
#define LINEAR_ROWS 12u

/* W [out, in] in torch's layout becomes panels of a few vectors' columns: for each panel [in][columns],
 * zero-padded, and behind the panels the padded bias. */
size_t linear_padded_columns(size_t out);
size_t linear_packed_floats(size_t in, size_t out);
void linear_pack(const float *weight, const float *bias, size_t in, size_t out, float *packed);

/* The same where the inputs have several matrices: W [out, part] for inputs first to first + part - 1 of `in`.
 * `packed` is zero where nothing was packed yet. */
void linear_pack_part(const float *weight, size_t first, size_t part, size_t in, size_t out, float *packed);
void linear_pack_bias(const float *bias, size_t in, size_t out, float *packed);

/* `activation`: hr_activation, 0 = none. `x` is `runs` runs of `run` floats, `run_stride` apart: inputs side by
 * side that lie apart in memory. Every element is bias, then + x[k] * W[., k] for k ascending, in
 * float32 with fused multiply-adds where the machine has them, whatever row and tile it is in. */
void linear_runs(const float *x, size_t x_stride, size_t runs, size_t run_stride, const float *packed, size_t run,
                 size_t out, float *y, size_t y_stride, size_t rows, uint32_t activation);

/* The same of one run. */
static inline void linear_rows(const float *x, size_t x_stride, const float *packed, size_t in, size_t out, float *y,
                               size_t y_stride, size_t rows, uint32_t activation) {
    linear_runs(x, x_stride, 1, 0, packed, in, out, y, y_stride, rows, activation);
}

/* y = activation(x) for rows of `width` floats, a multiple of 16; in place if y == x. */
void activation_rows(const float *x, size_t x_stride, float *y, size_t y_stride, size_t width, size_t rows,
                     uint32_t activation);

#endif
