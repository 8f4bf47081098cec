/* The linear kernel (policy_linear.h): an outer-product loop over tiles of rows x columns held in registers.
 *
 * A tile keeps TILE_ROWS x panel columns sums in vector registers; each k loads the panel's few weight
 * vectors and broadcasts one x a row. Panels are outermost, so that one panel stays in cache while all rows
 * of the block pass; where `in` is long, k runs in chunks that keep a panel's part within PANEL_BYTES, and
 * the sums wait in y meanwhile (storing a float32 does not change it, so the chunks do not show in the
 * result). */
#include "policy_linear.h"

#include <string.h>

#include "vector.h"

/* As many sums as the registers hold beside the weights and one broadcast. */
#if HR_LANES == 16 || defined(__aarch64__)
enum { PANEL_VECTORS = 4, TILE_ROWS = 6 };
#else
enum { PANEL_VECTORS = 2, TILE_ROWS = 6 };
#endif
enum { PANEL_COLUMNS = PANEL_VECTORS * HR_LANES, PANEL_BYTES = 128 * 1024 };
_Static_assert(LINEAR_ROWS % TILE_ROWS == 0 && LINEAR_ROWS == 2 * TILE_ROWS, "rows come in whole tiles");
_Static_assert(16 % HR_LANES == 0, "padded to 16 floats, which are whole vectors");

static size_t panel_chunk(void) { return PANEL_BYTES / (PANEL_COLUMNS * sizeof(float)); }

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t linear_padded_columns(size_t out) { return round_up(out, 16); }

size_t linear_packed_floats(size_t in, size_t out) { return linear_padded_columns(out) * (in + 1); }

void linear_pack_part(const float *weight, size_t first, size_t part, size_t in, size_t out, float *packed) {
    size_t padded = linear_padded_columns(out);
    for (size_t column = 0; column < padded; column += PANEL_COLUMNS) {
        size_t columns = padded - column < PANEL_COLUMNS ? padded - column : PANEL_COLUMNS;
        float *panel = packed + column * in + first * columns;
        for (size_t from = 0; from < part; from += 16) /* a cache line of each row at a time */
            for (size_t c = 0; c < columns && column + c < out; c++)
                for (size_t k = from; k < part && k < from + 16; k++)
                    panel[k * columns + c] = weight[(column + c) * part + k];
    }
}

void linear_pack_bias(const float *bias, size_t in, size_t out, float *packed) {
    memcpy(packed + linear_padded_columns(out) * in, bias, out * sizeof *bias);
}

void linear_pack(const float *weight, const float *bias, size_t in, size_t out, float *packed) {
    memset(packed, 0, linear_packed_floats(in, out) * sizeof *packed);
    linear_pack_part(weight, 0, in, in, out, packed);
    if (bias != NULL) linear_pack_bias(bias, in, out, packed);
}

HR_INLINE hr_vec activate(hr_vec x, uint32_t activation) {
    switch (activation) {
    case HR_RELU: return vec_relu(x);
    case HR_GELU_TANH: return vec_gelu_tanh(x);
    case HR_GELU_ERF: return vec_gelu_erf(x);
    case HR_TANH: return vec_tanh(x);
    case HR_SIGMOID: return vec_sigmoid(x);
    default: return x;
    }
}

HR_INLINE void activate_rows(const float *x, size_t x_stride, float *y, size_t y_stride, size_t width,
                             size_t rows, uint32_t activation) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c += HR_LANES)
            vec_store(y + r * y_stride + c, activate(vec_load(x + r * x_stride + c), activation));
}

void activation_rows(const float *x, size_t x_stride, float *y, size_t y_stride, size_t width, size_t rows,
                     uint32_t activation) {
    switch (activation) { /* one loop for each, without a branch inside */
    case HR_RELU: activate_rows(x, x_stride, y, y_stride, width, rows, HR_RELU); break;
    case HR_GELU_TANH: activate_rows(x, x_stride, y, y_stride, width, rows, HR_GELU_TANH); break;
    case HR_GELU_ERF: activate_rows(x, x_stride, y, y_stride, width, rows, HR_GELU_ERF); break;
    case HR_TANH: activate_rows(x, x_stride, y, y_stride, width, rows, HR_TANH); break;
    case HR_SIGMOID: activate_rows(x, x_stride, y, y_stride, width, rows, HR_SIGMOID); break;
    default: break;
    }
}

/* One tile, `vectors` x `rows` sums; both are constants wherever it is inlined. `start`: [columns] bias, or
 * NULL to go on from the sums in y. */
HR_INLINE void tile(int vectors, int rows, const float *x, size_t x_stride, const float *panel,
                    const float *start, size_t in, float *y, size_t y_stride, int relu) {
    hr_vec sum[LINEAR_ROWS][PANEL_VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vec_load(start != NULL ? start + v * HR_LANES : y + r * y_stride + v * HR_LANES);
    for (size_t k = 0; k < in; k++) {
        hr_vec weight[PANEL_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) weight[v] = vec_load(panel + v * HR_LANES);
        panel += vectors * HR_LANES;
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            hr_vec broadcast = vec_all(x[r * x_stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] += broadcast * weight[v];
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            vec_store(y + r * y_stride + v * HR_LANES, relu ? vec_relu(sum[r][v]) : sum[r][v]);
}

/* One run of all rows through one panel of `vectors` vectors; `bias` NULL: behind another run; `ends`: it is the
 * last. Narrow panels take more rows a tile: enough independent sums to hide the latency of an addition. */
HR_INLINE void panel_run(int vectors, const float *x, size_t x_stride, const float *panel, const float *bias,
                         size_t run, float *y, size_t y_stride, size_t rows, int ends, uint32_t activation) {
    const int tile_rows = 2 * vectors <= PANEL_VECTORS ? LINEAR_ROWS : TILE_ROWS;
    const size_t columns = (size_t)vectors * HR_LANES;
    for (size_t from = 0; from < run; from += panel_chunk()) {
        size_t part = run - from < panel_chunk() ? run - from : panel_chunk();
        int last = ends && from + part == run;
        const float *start = from == 0 ? bias : NULL;
        for (size_t r = 0; r < rows; r += (size_t)tile_rows) {
            const float *x_tile = x + r * x_stride + from, *w = panel + from * columns;
            float *y_tile = y + r * y_stride;
            if (last && activation == HR_RELU)
                tile(vectors, tile_rows, x_tile, x_stride, w, start, part, y_tile, y_stride, 1);
            else
                tile(vectors, tile_rows, x_tile, x_stride, w, start, part, y_tile, y_stride, 0);
            if (last && activation > HR_RELU)
                activation_rows(y_tile, y_stride, y_tile, y_stride, columns, (size_t)tile_rows, activation);
        }
    }
}

HR_INLINE void panel_runs(int vectors, const float *x, size_t x_stride, size_t runs, size_t run_stride,
                          const float *panel, const float *bias, size_t run, float *y, size_t y_stride,
                          size_t rows, uint32_t activation) {
    for (size_t i = 0; i < runs; i++)
        panel_run(vectors, x + i * run_stride, x_stride, panel + i * run * (size_t)vectors * HR_LANES,
                  i == 0 ? bias : NULL, run, y, y_stride, rows, i + 1 == runs, activation);
}

void linear_runs(const float *x, size_t x_stride, size_t runs, size_t run_stride, const float *packed, size_t run,
                 size_t out, float *y, size_t y_stride, size_t rows, uint32_t activation) {
    size_t padded = linear_padded_columns(out), in = runs * run;
    const float *bias = packed + padded * in;
    for (size_t first = 0; first < padded; first += PANEL_COLUMNS) {
        const float *panel = packed + first * in, *start = bias + first;
        float *to = y + first;
#if HR_LANES == 16 /* narrower machines' panels divide the padded columns */
        switch ((padded - first) / HR_LANES) {
        case 1: panel_runs(1, x, x_stride, runs, run_stride, panel, start, run, to, y_stride, rows, activation); continue;
        case 2: panel_runs(2, x, x_stride, runs, run_stride, panel, start, run, to, y_stride, rows, activation); continue;
        case 3: panel_runs(3, x, x_stride, runs, run_stride, panel, start, run, to, y_stride, rows, activation); continue;
        }
#endif
        panel_runs(PANEL_VECTORS, x, x_stride, runs, run_stride, panel, start, run, to, y_stride, rows, activation);
    }
}
