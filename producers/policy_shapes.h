/* Whether one operation of a policy program fits its buffers, attributes and weights. */
#ifndef HEADRACE_POLICY_SHAPES_H
#define HEADRACE_POLICY_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "program.h"

/* What operations refer to, each in range by itself. */
typedef struct program_tables {
    const hr_program *head;
    const hr_buffer *buffer;
    const size_t *width; /* [buffers] elements a row */
    const hr_weight *weight;
} program_tables;

/* `op`, with inputs, output and weights that exist, of a kind that is known; `input`: its buffers. `state`: floats an
 * agent that the recurrent operations so far carry, to which it adds its own. */
bool shapes_fit(const program_tables *t, const hr_op *op, const uint32_t *input, size_t *state);

#endif
