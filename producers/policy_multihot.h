/* The multi-hot convolution: over a grid of cells whose bytes each name one of several categories, without ever
 * writing the ones and zeros down. Where a dense kernel multiplies all channels, most of them zero, this one adds
 * up the weights of the categories that are there: for each output position and each cell under the kernel one row
 * of weights for each plane. */
#ifndef HEADRACE_POLICY_MULTIHOT_H
#define HEADRACE_POLICY_MULTIHOT_H

#include <stddef.h>
#include <stdint.h>

#include "program.h"

#define MULTIHOT_ROWS 16u /* of observations that pass together */

/* Geometry. Channels are the categories of all planes, plane 0's first; a byte that is no category of its plane
 * counts as the last one. */
typedef struct multihot {
    size_t rows, columns, planes; /* of the grid, whose bytes are [rows, columns, planes] */
    size_t kernel_rows, kernel_columns, stride;
    size_t out;                       /* channels */
    uint16_t first[HR_PROGRAM_PLANES]; /* channel of the plane's category 0 */
    uint8_t last[HR_PROGRAM_PLANES];   /* its largest category */
    size_t channels;                   /* categories of all planes */
} multihot;

static inline size_t multihot_output_rows(const multihot *m) { return (m->rows - m->kernel_rows) / m->stride + 1; }
static inline size_t multihot_output_columns(const multihot *m) {
    return (m->columns - m->kernel_columns) / m->stride + 1;
}
static inline size_t multihot_bytes(const multihot *m) { return m->rows * m->columns * m->planes; }

/* Geometry of the grid: `values` [planes], each 1 to 256. The kernel is at most as large as the grid. */
multihot multihot_make(size_t rows, size_t columns, size_t planes, const int32_t *values, size_t kernel_rows,
                       size_t kernel_columns, size_t stride, size_t out);

/* Channels in groups of a few vectors' width: [group][kernel cell][channel][columns of the group], zero-padded,
 * so that one kernel cell's rows of weights are near one another; then the padded bias. From torch's layout,
 * W [out, channels, kernel_rows, kernel_columns]. */
size_t multihot_packed_floats(const multihot *m);
void multihot_pack(const multihot *m, const float *weight, const float *bias, float *packed);
size_t multihot_group_columns(const multihot *m, size_t first_column); /* of the group that begins there */

/* Of each byte of a row the channel that is one: `index` [n, multihot_bytes]. `plan`: multihot_plan_bytes of
 * memory, filled by multihot_plan. */
size_t multihot_plan_bytes(const multihot *m);
void multihot_plan(const multihot *m, void *plan);
void multihot_index(const multihot *m, const void *plan, const uint8_t *bytes, size_t stride, uint16_t *index,
                    size_t n);

/* y = activation(convolution + bias) for `n` rows: y [n] rows of [output rows, output columns, out], `y_stride`
 * floats apart. `activation`: hr_activation, 0 = none. `scratch`: multihot_scratch_bytes, 64-byte aligned. */
size_t multihot_scratch_bytes(const multihot *m);
void multihot_rows(const multihot *m, const uint8_t *bytes, size_t stride, const float *packed, float *y,
                   size_t y_stride, size_t n, uint32_t activation, void *scratch);

#endif
