/* The multi-hot convolution for training on a CPU; consumers/multihot.py calls it. Memory for scratch and packed
 * weights comes from the caller, 64-byte aligned; several threads may run parts of the rows with scratch of their own.
 */
#ifndef HEADRACE_GATHERED_H
#define HEADRACE_GATHERED_H

#include <stdint.h>

#include "../producers/program.h"

#define HR_MULTIHOT_API __attribute__((visibility("default")))

/* Of the grid's bytes [rows, columns, planes] and of the convolution; `values`: categories of each plane. */
typedef struct hr_multihot {
    int32_t rows, columns, planes, kernel_rows, kernel_columns, stride, out, values[HR_PROGRAM_PLANES];
} hr_multihot;

/* Float32 values of the packed weights; bytes of scratch memory that each call below needs. */
HR_MULTIHOT_API int64_t hr_multihot_packed_floats(const hr_multihot *h);
HR_MULTIHOT_API int64_t hr_multihot_scratch_bytes(const hr_multihot *h);

/* Weights W [out, channels, kernel_rows, kernel_columns] and bias [out] as the kernels want them; and W alone back. */
HR_MULTIHOT_API void hr_multihot_pack(const hr_multihot *h, const float *weight, const float *bias, float *packed);
HR_MULTIHOT_API void hr_multihot_unpack(const hr_multihot *h, const float *packed, float *weight);

/* y [n, output rows, output columns, out], of grids that begin `stride` bytes apart; `relu`: 0 or 1. */
HR_MULTIHOT_API void hr_multihot_forward(const hr_multihot *h, const uint8_t *bytes, int64_t stride, const float *packed,
                                         float *y, int64_t n, int32_t relu, void *scratch);

/* Adds to `d_packed` the gradient of the packed weights, not of the bias, for the output's `gradient` [n, output rows,
 * output columns, out]. A few rows are summed up by themselves first, so that a sum over millions of positions keeps
 * its precision. */
HR_MULTIHOT_API void hr_multihot_backward(const hr_multihot *h, const uint8_t *bytes, int64_t stride,
                                          const float *gradient, float *d_packed, int64_t n, void *scratch);

#endif
