/* The multi-hot convolution for training on a CPU: its forward pass, which is the actor's own kernel, and the
 * gradient of its weights, which goes the same way backwards: each output position's gradient is added to the rows of
 * weights that the forward pass took. consumers/multihot.py calls it. */
#include "gathered.h"

#include <stddef.h>
#include <string.h>

#include "../producers/policy_multihot.h"
#include "../producers/vector.h"

enum { GRADIENT_ROWS = 4 * MULTIHOT_ROWS, GROUP_VECTORS = 8 };

static multihot read_geometry(const hr_multihot *h) {
    return multihot_make((size_t)h->rows, (size_t)h->columns, (size_t)h->planes, h->values, (size_t)h->kernel_rows,
                         (size_t)h->kernel_columns, (size_t)h->stride, (size_t)h->out);
}

static size_t positions(const multihot *m) { return multihot_output_rows(m) * multihot_output_columns(m); }

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Of the gradient's scratch memory: one kernel cell's rows of one group of columns, padded gradients, channels,
 * plan. */
static size_t panel_floats(const multihot *m) { return m->channels * multihot_group_columns(m, 0); }
static size_t padded_columns(const multihot *m) { return round_up(m->out, 16); }
static size_t gradient_floats(const multihot *m) { return GRADIENT_ROWS * positions(m) * padded_columns(m); }

int64_t hr_multihot_packed_floats(const hr_multihot *h) {
    multihot m = read_geometry(h);
    return (int64_t)multihot_packed_floats(&m);
}

int64_t hr_multihot_scratch_bytes(const hr_multihot *h) {
    multihot m = read_geometry(h);
    size_t forward = multihot_scratch_bytes(&m);
    size_t index = GRADIENT_ROWS * multihot_bytes(&m) * sizeof(uint16_t);
    size_t gradient = (panel_floats(&m) + gradient_floats(&m)) * sizeof(float) + index + multihot_plan_bytes(&m);
    return (int64_t)(forward > gradient ? forward : gradient);
}

void hr_multihot_pack(const hr_multihot *h, const float *weight, const float *bias, float *packed) {
    multihot m = read_geometry(h);
    multihot_pack(&m, weight, bias, packed);
}

void hr_multihot_forward(const hr_multihot *h, const uint8_t *bytes, int64_t stride, const float *packed, float *y,
                             int64_t n, int32_t relu, void *scratch) {
    multihot m = read_geometry(h);
    multihot_rows(&m, bytes, (size_t)stride, packed, y, positions(&m) * m.out, (size_t)n, relu ? HR_RELU : 0, scratch);
}

/* Adds each position's gradient to the rows of its channels under one kernel cell; `vectors` is a constant wherever
 * it is inlined. */
HR_INLINE void scatter_cell(int vectors, const multihot *m, const uint16_t *index, const float *gradient,
                            size_t gradient_stride, float *panel, size_t n) {
    size_t width = multihot_bytes(m), rows = multihot_output_rows(m), columns = multihot_output_columns(m);
    for (size_t r = 0; r < n; r++, index += width)
        for (size_t y = 0; y < rows; y++)
            for (size_t x = 0; x < columns; x++, gradient += gradient_stride) {
                const uint16_t *cell = index + (y * m->columns + x) * m->stride * m->planes;
                hr_vec d[GROUP_VECTORS];
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) d[v] = vec_load(gradient + v * HR_LANES);
                for (size_t p = 0; p < m->planes; p++) {
                    float *row = panel + (size_t)cell[p] * (size_t)(vectors * HR_LANES);
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; v++)
                        vec_store(row + v * HR_LANES, vec_load(row + v * HR_LANES) + d[v]);
                }
            }
}

static void scatter_cell_of(size_t vectors, const multihot *m, const uint16_t *index, const float *gradient,
                            size_t gradient_stride, float *panel, size_t n) {
    switch (vectors) {
    case 1: scatter_cell(1, m, index, gradient, gradient_stride, panel, n); break;
    case 2: scatter_cell(2, m, index, gradient, gradient_stride, panel, n); break;
    case 3: scatter_cell(3, m, index, gradient, gradient_stride, panel, n); break;
    case 4: scatter_cell(4, m, index, gradient, gradient_stride, panel, n); break;
    case 5: scatter_cell(5, m, index, gradient, gradient_stride, panel, n); break;
    case 6: scatter_cell(6, m, index, gradient, gradient_stride, panel, n); break;
    case 7: scatter_cell(7, m, index, gradient, gradient_stride, panel, n); break;
    default: scatter_cell(GROUP_VECTORS, m, index, gradient, gradient_stride, panel, n); break;
    }
}

void hr_multihot_backward(const hr_multihot *h, const uint8_t *bytes, int64_t stride, const float *gradient,
                              float *d_packed, int64_t n, void *scratch) {
    multihot m = read_geometry(h);
    size_t padded = padded_columns(&m), many = positions(&m), cells = m.kernel_rows * m.kernel_columns, columns;
    float *panel = scratch, *d = panel + panel_floats(&m);
    uint16_t *index = (uint16_t *)(d + gradient_floats(&m));
    void *plan = index + GRADIENT_ROWS * multihot_bytes(&m);
    multihot_plan(&m, plan);
    memset(d, 0, gradient_floats(&m) * sizeof *d);
    for (size_t first = 0, rows; first < (size_t)n; first += rows, bytes += rows * (size_t)stride) {
        rows = (size_t)n - first < GRADIENT_ROWS ? (size_t)n - first : GRADIENT_ROWS;
        multihot_index(&m, plan, bytes, (size_t)stride, index, rows);
        for (size_t i = 0; i < rows * many; i++, gradient += m.out) memcpy(d + i * padded, gradient, m.out * sizeof *d);
        for (size_t column = 0; column < padded; column += columns) {
            columns = multihot_group_columns(&m, column);
            size_t floats = m.channels * columns;
            float *total = d_packed + column * cells * m.channels;
            for (size_t ky = 0; ky < m.kernel_rows; ky++)
                for (size_t kx = 0; kx < m.kernel_columns; kx++, total += floats) {
                    memset(panel, 0, floats * sizeof *panel);
                    scatter_cell_of(columns / HR_LANES, &m, index + (ky * m.columns + kx) * m.planes, d + column,
                                    padded, panel, rows);
                    for (size_t i = 0; i < floats; i++) total[i] += panel[i];
                }
        }
    }
}

void hr_multihot_unpack(const hr_multihot *h, const float *packed, float *weight) {
    multihot m = read_geometry(h);
    size_t cells = m.kernel_rows * m.kernel_columns;
    for (size_t o = 0; o < m.out; o++) {
        size_t first = o / multihot_group_columns(&m, 0) * multihot_group_columns(&m, 0);
        size_t columns = multihot_group_columns(&m, first);
        const float *group = packed + first * cells * m.channels;
        for (size_t channel = 0; channel < m.channels; channel++)
            for (size_t cell = 0; cell < cells; cell++)
                weight[(o * m.channels + channel) * cells + cell] =
                    group[(cell * m.channels + channel) * columns + (o - first)];
    }
}
