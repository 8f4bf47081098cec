/* The policy program as the actor runs it: a checked copy of the encoding and the steps that actions depend
 * on. */
#ifndef HEADRACE_POLICY_PROGRAM_H
#define HEADRACE_POLICY_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "program.h"

/* Gates of a recurrent operation, and vectors of its width that it carries from step to step. */
static inline size_t recurrent_gates(uint32_t kind) {
    return kind == HR_OP_LSTM ? 4 : kind == HR_OP_MINGRU ? 2 : 0;
}
static inline size_t recurrent_states(uint32_t kind) {
    return kind == HR_OP_LSTM ? 2 : kind == HR_OP_MINGRU ? 1 : 0;
}

/* One operation of the actor. An activation right behind a linear operation or a convolution is fused into it, and
 * a mask into the head, which is no step: program_plan names its logits. */
typedef struct program_step {
    uint32_t kind;       /* hr_op_kind */
    uint32_t activation; /* hr_activation or 0 */
    uint32_t output, n_inputs;
    const uint32_t *input; /* [n_inputs] buffers */
    const hr_op *op;
    const hr_weight *weight; /* [op->n_weights] */
    bool alias;              /* the output is the input's memory */
} program_step;

typedef struct program_plan {
    const hr_program *head;
    const hr_buffer *buffer;
    size_t *width; /* [buffers] elements a row */
    program_step *step;
    uint32_t n_steps;
    uint32_t logits; /* buffer of the head's logits before masking, or of its means */
    bool masked;
    const hr_weight *log_std; /* of a Gaussian head; NULL of any other */
    void *memory;
} program_plan;

/* Bytes of one element of an hr_dtype, 0 if unknown. */
size_t program_dtype_bytes(uint32_t dtype);

/* Planes of the grid of a multi-hot operation. */
uint32_t program_planes(const hr_op *op);

/* Checks the encoding and makes the plan from a copy of it. false with one line in `error`. */
bool program_read(program_plan *plan, const void *program, uint64_t bytes, char *error, size_t capacity);
void program_free(program_plan *plan);

#endif
