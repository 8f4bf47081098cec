/* The recurrent kernels: one step of an LSTM or MinGRU layer (program.h has the formulas) for many rows. */
#ifndef HEADRACE_POLICY_RECURRENT_H
#define HEADRACE_POLICY_RECURRENT_H

#include <stddef.h>
#include <stdint.h>

/* A layer's sizes: hr_op_kind, inputs, units. */
typedef struct recurrent_layer {
    uint32_t kind;
    size_t in, units;
} recurrent_layer;

/* Each gate is a linear kernel of its own over the inputs, for the LSTM those of the layer and then its last
 * output; `weight`: the operation's weights in their order. */
size_t recurrent_packed_floats(const recurrent_layer *layer);
void recurrent_pack(const recurrent_layer *layer, const float *const *weight, float *packed);

/* Floats of scratch memory that each row needs, padding rows included. */
size_t recurrent_scratch_floats(const recurrent_layer *layer);

/* Steps `rows` rows. Input, output and scratch have as many rows as linear_rows wants; `y_stride` is at least
 * linear_padded_columns(units).
 *   state  [rows] rows of `state_stride` floats: h and for the LSTM c, each [units]; read and written */
void recurrent_rows(const recurrent_layer *layer, const float *x, size_t x_stride, const float *packed,
                    float *state, size_t state_stride, float *y, size_t y_stride, float *scratch, size_t rows);

#endif
