/* The multi-hot convolution (policy_multihot.h): gathered sums of weight rows.
 *
 * Kernel cells are the outer loop over a few observations at a time, so that one cell's weights (59 channels x 128
 * columns: 30 kB) stay in the first cache while every output position of them passes, and the sums wait in scratch
 * memory meanwhile. Every sum is the bias, then the cells' weights in the order of the kernel's rows and columns and
 * of the planes, whatever the machine's vectors. */
#include "policy_multihot.h"

#include <string.h>

#include "policy_linear.h"
#include "vector.h"

enum { GROUP_VECTORS = 8, GROUP_COLUMNS = GROUP_VECTORS * HR_LANES, ALIGNMENT = 64 };

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

multihot multihot_make(size_t rows, size_t columns, size_t planes, const int32_t *values, size_t kernel_rows,
                       size_t kernel_columns, size_t stride, size_t out) {
    multihot m = {.rows = rows,
                  .columns = columns,
                  .planes = planes,
                  .kernel_rows = kernel_rows,
                  .kernel_columns = kernel_columns,
                  .stride = stride,
                  .out = out};
    for (size_t p = 0; p < planes; p++) {
        m.first[p] = (uint16_t)m.channels;
        m.last[p] = (uint8_t)(values[p] - 1);
        m.channels += (size_t)values[p];
    }
    return m;
}

static size_t kernel_cells(const multihot *m) { return m->kernel_rows * m->kernel_columns; }

static size_t positions(const multihot *m) { return multihot_output_rows(m) * multihot_output_columns(m); }

size_t multihot_group_columns(const multihot *m, size_t first_column) {
    size_t left = linear_padded_columns(m->out) - first_column;
    return left < GROUP_COLUMNS ? left : GROUP_COLUMNS;
}

size_t multihot_packed_floats(const multihot *m) {
    return linear_padded_columns(m->out) * (kernel_cells(m) * m->channels + 1);
}

void multihot_pack(const multihot *m, const float *weight, const float *bias, float *packed) {
    size_t cells = kernel_cells(m), padded = linear_padded_columns(m->out), columns;
    memset(packed, 0, multihot_packed_floats(m) * sizeof *packed);
    for (size_t first = 0; first < padded; first += columns) {
        columns = multihot_group_columns(m, first);
        float *group = packed + first * cells * m->channels;
        for (size_t c = 0; c < columns && first + c < m->out; c++)
            for (size_t channel = 0; channel < m->channels; channel++)
                for (size_t cell = 0; cell < cells; cell++)
                    group[(cell * m->channels + channel) * columns + c] =
                        weight[((first + c) * m->channels + channel) * cells + cell];
    }
    memcpy(packed + padded * cells * m->channels, bias, m->out * sizeof *bias);
}

/* For each byte of a row: the channel of category 0, then the largest category. */
size_t multihot_plan_bytes(const multihot *m) { return multihot_bytes(m) * (sizeof(uint16_t) + 1); }

void multihot_plan(const multihot *m, void *plan) {
    size_t n = multihot_bytes(m);
    uint16_t *first = plan;
    uint8_t *last = (uint8_t *)(first + n);
    for (size_t i = 0; i < n; i++) {
        first[i] = m->first[i % m->planes];
        last[i] = m->last[i % m->planes];
    }
}

void multihot_index(const multihot *m, const void *plan, const uint8_t *bytes, size_t stride, uint16_t *index,
                    size_t n) {
    size_t width = multihot_bytes(m);
    const uint16_t *first = plan;
    const uint8_t *last = (const uint8_t *)(first + width);
    for (size_t r = 0; r < n; r++, bytes += stride, index += width)
        for (size_t i = 0; i < width; i++)
            index[i] = (uint16_t)(first[i] + (bytes[i] < last[i] ? bytes[i] : last[i]));
}

/* One kernel cell, `vectors` vectors of columns, for `n` rows: adds its weights to the sums, `sum_stride` floats a
 * position. `index`: of the cell under the kernel at the first position. */
HR_INLINE void add_cell(int vectors, const multihot *m, const uint16_t *index, const float *weight, float *sum,
                        size_t sum_stride, size_t n) {
    size_t width = multihot_bytes(m), rows = multihot_output_rows(m), columns = multihot_output_columns(m);
    for (size_t r = 0; r < n; r++, index += width)
        for (size_t y = 0; y < rows; y++)
            for (size_t x = 0; x < columns; x++, sum += sum_stride) {
                const uint16_t *cell = index + (y * m->columns + x) * m->stride * m->planes;
                hr_vec total[GROUP_VECTORS];
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) total[v] = vec_load(sum + v * HR_LANES);
                for (size_t p = 0; p < m->planes; p++) {
                    const float *row = weight + (size_t)cell[p] * (size_t)(vectors * HR_LANES);
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; v++) total[v] += vec_load(row + v * HR_LANES);
                }
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) vec_store(sum + v * HR_LANES, total[v]);
            }
}

static void add_cell_of(size_t vectors, const multihot *m, const uint16_t *index, const float *weight, float *sum,
                        size_t sum_stride, size_t n) {
    switch (vectors) { /* one loop for each, its sums in registers */
    case 1: add_cell(1, m, index, weight, sum, sum_stride, n); break;
    case 2: add_cell(2, m, index, weight, sum, sum_stride, n); break;
    case 3: add_cell(3, m, index, weight, sum, sum_stride, n); break;
    case 4: add_cell(4, m, index, weight, sum, sum_stride, n); break;
    case 5: add_cell(5, m, index, weight, sum, sum_stride, n); break;
    case 6: add_cell(6, m, index, weight, sum, sum_stride, n); break;
    case 7: add_cell(7, m, index, weight, sum, sum_stride, n); break;
    default: add_cell(GROUP_VECTORS, m, index, weight, sum, sum_stride, n); break;
    }
}

/* Sums of MULTIHOT_ROWS rows, then their channels, then the plan. */
static size_t sum_floats(const multihot *m) { return MULTIHOT_ROWS * positions(m) * linear_padded_columns(m->out); }

size_t multihot_scratch_bytes(const multihot *m) {
    size_t index = MULTIHOT_ROWS * multihot_bytes(m) * sizeof(uint16_t);
    return round_up(sum_floats(m) * sizeof(float) + index + multihot_plan_bytes(m), ALIGNMENT);
}

void multihot_rows(const multihot *m, const uint8_t *bytes, size_t stride, const float *packed, float *y,
                   size_t y_stride, size_t n, uint32_t activation, void *scratch) {
    size_t padded = linear_padded_columns(m->out), cells = kernel_cells(m), many = positions(m), columns;
    const float *bias = packed + padded * cells * m->channels;
    float *sum = scratch;
    uint16_t *index = (uint16_t *)(sum + sum_floats(m));
    void *plan = index + MULTIHOT_ROWS * multihot_bytes(m);
    multihot_plan(m, plan);
    for (size_t first = 0, rows; first < n; first += rows, bytes += rows * stride) {
        rows = n - first < MULTIHOT_ROWS ? n - first : MULTIHOT_ROWS;
        multihot_index(m, plan, bytes, stride, index, rows);
        for (size_t i = 0; i < rows * many; i++) memcpy(sum + i * padded, bias, padded * sizeof *bias);
        for (size_t column = 0; column < padded; column += columns) {
            columns = multihot_group_columns(m, column);
            const float *weight = packed + column * cells * m->channels;
            for (size_t ky = 0; ky < m->kernel_rows; ky++)
                for (size_t kx = 0; kx < m->kernel_columns; kx++, weight += m->channels * columns)
                    add_cell_of(columns / HR_LANES, m, index + (ky * m->columns + kx) * m->planes, weight, sum + column,
                                padded, rows);
        }
        if (activation) activation_rows(sum, padded, sum, padded, padded, rows * many, activation);
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < many; i++)
                memcpy(y + (first + r) * y_stride + i * m->out, sum + (r * many + i) * padded, m->out * sizeof *y);
    }
}
