/* One step of an LSTM or MinGRU layer (policy_recurrent.h): the gates by the linear kernel, side by side in
 * scratch memory, then the state a row at a time. */
#include "policy_recurrent.h"

#include <string.h>

#include "policy_linear.h"
#include "policy_program.h"
#include "vector.h"

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static size_t gate_inputs(const recurrent_layer *layer) {
    return layer->kind == HR_OP_LSTM ? layer->in + layer->units : layer->in;
}

static size_t gate_floats(const recurrent_layer *layer) {
    return linear_packed_floats(gate_inputs(layer), layer->units);
}

size_t recurrent_packed_floats(const recurrent_layer *layer) {
    return recurrent_gates(layer->kind) * gate_floats(layer);
}

void recurrent_pack(const recurrent_layer *layer, const float *const *weight, float *packed) {
    size_t in = layer->in, units = layer->units, inputs = gate_inputs(layer);
    memset(packed, 0, recurrent_packed_floats(layer) * sizeof *packed);
    for (size_t g = 0; g < recurrent_gates(layer->kind); g++, packed += gate_floats(layer)) {
        if (layer->kind == HR_OP_LSTM) {
            linear_pack_part(weight[0] + g * units * in, 0, in, inputs, units, packed);
            linear_pack_part(weight[1] + g * units * units, in, units, inputs, units, packed);
            linear_pack_bias(weight[2] + g * units, inputs, units, packed);
        } else {
            linear_pack(weight[2 * g], weight[2 * g + 1], in, units, packed);
        }
    }
}

/* Of a row: the gates, then the LSTM's inputs side by side. */
size_t recurrent_scratch_floats(const recurrent_layer *layer) {
    size_t gates = recurrent_gates(layer->kind) * linear_padded_columns(layer->units);
    return gates + (layer->kind == HR_OP_LSTM ? round_up(gate_inputs(layer), 16) : 0);
}

/* `gate` [4][padded]; `y` [padded] holds the cell's state and gets the output, `gate` its new state. */
HR_INLINE void lstm_row(float *gate, size_t padded, float *y) {
    for (size_t u = 0; u < padded; u += HR_LANES) {
        hr_vec i = vec_sigmoid(vec_load(gate + u)), f = vec_sigmoid(vec_load(gate + padded + u)),
               g = vec_tanh(vec_load(gate + 2 * padded + u)),
               o = vec_sigmoid(vec_load(gate + 3 * padded + u));
        hr_vec c = f * vec_load(y + u) + i * g;
        vec_store(gate + u, c);
        vec_store(y + u, o * vec_tanh(c));
    }
}

/* `gate` [2][padded]; `y` [padded] holds the state and gets the new one. */
HR_INLINE void mingru_row(const float *gate, size_t padded, float *y) {
    for (size_t u = 0; u < padded; u += HR_LANES) {
        hr_vec z = vec_sigmoid(vec_load(gate + u));
        vec_store(y + u, (1.0f - z) * vec_load(y + u) + z * vec_load(gate + padded + u));
    }
}

void recurrent_rows(const recurrent_layer *layer, const float *x, size_t x_stride, const float *packed,
                    float *state, size_t state_stride, float *y, size_t y_stride, float *scratch, size_t rows) {
    size_t units = layer->units, padded = linear_padded_columns(units), bytes = units * sizeof(float);
    size_t gates = recurrent_gates(layer->kind), stride = recurrent_scratch_floats(layer);
    size_t inputs = gate_inputs(layer), tiles = round_up(rows, LINEAR_ROWS);
    if (layer->kind == HR_OP_LSTM) {
        float *joined = scratch + gates * padded;
        for (size_t r = 0; r < rows; r++) {
            memcpy(joined + r * stride, x + r * x_stride, layer->in * sizeof(float));
            memcpy(joined + r * stride + layer->in, state + r * state_stride, bytes);
        }
        x = joined;
        x_stride = stride;
    }
    for (size_t g = 0; g < gates; g++)
        linear_rows(x, x_stride, packed + g * gate_floats(layer), inputs, units, scratch + g * padded, stride,
                    tiles, 0);
    for (size_t r = 0; r < rows; r++) {
        float *gate = scratch + r * stride, *h = state + r * state_stride, *out = y + r * y_stride;
        if (layer->kind == HR_OP_LSTM) {
            memcpy(out, h + units, bytes);
            lstm_row(gate, padded, out);
            memcpy(h + units, gate, bytes);
        } else {
            memcpy(out, h, bytes);
            mingru_row(gate, padded, out);
        }
        memcpy(h, out, bytes);
    }
}
