/* Checks of single operations (policy_shapes.h). Nothing in them is trusted. */
#include "policy_shapes.h"

#include "plan.h"
#include "policy_program.h"

enum { VALUES_MAX = 256 };

static bool weight_is(const hr_weight *w, uint32_t dims, size_t first, size_t second) {
    return w->dims == dims && w->shape[0] == first && (dims < 2 || w->shape[1] == second);
}

/* Whether `count` elements from `start` on are within a buffer's row. */
static bool is_within(const program_tables *t, uint32_t buffer, int64_t start, uint64_t count) {
    return start >= 0 && (uint64_t)start <= t->width[buffer] && count <= t->width[buffer] - (uint64_t)start;
}

/* Whether the operation's state of `floats` an agent begins where that of those before it ends. */
static bool takes_state(const program_tables *t, const hr_op *op, size_t floats, size_t *state) {
    if (op->integer[HR_RECURRENT_STATE] < 0 || (size_t)op->integer[HR_RECURRENT_STATE] != *state) return false;
    *state += floats;
    return *state <= t->head->state_width;
}

/* Whether a convolution over [rows, columns] cells of `channels` has weights and output of its shape. */
static bool is_convolution(const program_tables *t, const hr_op *op, int64_t rows, int64_t columns, int64_t channels,
                           int64_t stride) {
    const hr_buffer *out = t->buffer + op->output;
    const hr_weight *w = t->weight + op->first_weight;
    if (op->n_weights != 2 || w->dims != 4 || out->dims != 3 || stride < 1) return false;
    int64_t kernel_rows = w->shape[2], kernel_columns = w->shape[3];
    if (kernel_rows < 1 || kernel_rows > rows || kernel_columns < 1 || kernel_columns > columns) return false;
    return w->shape[0] == out->shape[2] && w->shape[1] == channels && weight_is(w + 1, 1, w->shape[0], 0) &&
           out->shape[0] == (rows - kernel_rows) / stride + 1 &&
           out->shape[1] == (columns - kernel_columns) / stride + 1;
}

static bool is_multihot(const program_tables *t, const hr_op *op, uint32_t input) {
    int64_t rows = op->integer[HR_MULTIHOT_ROWS], columns = op->integer[HR_MULTIHOT_COLUMNS], channels = 0;
    uint32_t planes = program_planes(op);
    if (t->buffer[input].dtype != HR_UINT8 || planes < 1 || rows < 1 || columns < 1) return false;
    for (uint32_t p = 0; p < HR_PROGRAM_PLANES; p++) {
        int32_t values = op->integer[HR_MULTIHOT_VALUES + p];
        if (values < 0 || values > VALUES_MAX || (values > 0) != (p < planes)) return false;
        channels += values;
    }
    uint64_t width = t->width[input]; /* small enough for the product below */
    if ((uint64_t)rows > width || (uint64_t)columns > width || (uint64_t)(rows * columns) > width) return false;
    return is_within(t, input, op->integer[HR_MULTIHOT_START], (uint64_t)(rows * columns) * planes) &&
           is_convolution(t, op, rows, columns, channels, op->integer[HR_MULTIHOT_STRIDE]);
}

static bool is_head(const program_tables *t, const hr_op *op, size_t in, size_t out) {
    const hr_weight *w = t->weight + op->first_weight;
    int32_t distribution = op->integer[HR_HEAD_DISTRIBUTION];
    if (in != t->head->logits || out != t->head->heads || op->output != t->head->action) return false;
    if (t->head->continuous)
        return distribution == HR_GAUSSIAN && in == out && op->n_weights == 1 && weight_is(w, 1, out, 0);
    return distribution == HR_CATEGORICAL || distribution == HR_MULTI_DISCRETE;
}

bool shapes_fit(const program_tables *t, const hr_op *op, const uint32_t *input, size_t *state) {
    size_t out = t->width[op->output], in = t->width[input[0]], sum = 0;
    const hr_weight *w = t->weight + op->first_weight;
    const hr_buffer *x = t->buffer + input[0];
    bool integers = op->kind == HR_OP_HEAD && !t->head->continuous;
    if (t->buffer[op->output].dtype != (integers ? HR_INT32 : HR_FLOAT32)) return false;
    switch (op->kind) {
    case HR_OP_CAST_AFFINE:
        if (!is_within(t, input[0], op->integer[HR_CAST_START], out)) return false;
        if (!op->integer[HR_CAST_PER_FEATURE]) return op->n_weights == 0;
        return op->n_weights == 2 && weight_is(w, 1, out, 0) && weight_is(w + 1, 1, out, 0);
    case HR_OP_SLICE: return is_within(t, input[0], op->integer[HR_SLICE_START], out);
    case HR_OP_LINEAR: {
        uint32_t bias = op->integer[HR_LINEAR_BIAS] != 0;
        return op->n_weights == 1 + bias && weight_is(w, 2, out, in) && (!bias || weight_is(w + 1, 1, out, 0));
    }
    case HR_OP_CONV2D:
        return x->dims == 3 &&
               is_convolution(t, op, x->shape[0], x->shape[1], x->shape[2], op->integer[HR_CONV_STRIDE]);
    case HR_OP_MULTIHOT_CONV2D: return is_multihot(t, op, input[0]);
    case HR_OP_EMBEDDING:
        if (op->n_weights != 1 || w->dims != 2 || w->shape[0] < 1 || w->shape[1] < 1 || x->dtype != HR_UINT8)
            return false;
        return out % w->shape[1] == 0 && is_within(t, input[0], op->integer[HR_EMBEDDING_START], out / w->shape[1]);
    case HR_OP_ACTIVATION: {
        int32_t function = op->integer[HR_ACTIVATION_FUNCTION];
        return out == in && function >= HR_RELU && function <= HR_SIGMOID;
    }
    case HR_OP_LAYER_NORM:
        return out == in && op->n_weights == 2 && weight_is(w, 1, out, 0) && weight_is(w + 1, 1, out, 0);
    case HR_OP_ADD:
    case HR_OP_MUL: return out == in && t->width[input[1]] == in;
    case HR_OP_CONCAT:
        for (uint32_t i = 0; i < op->n_inputs; i++) sum += t->width[input[i]];
        return sum == out;
    case HR_OP_MASK: return out == in && in == t->head->logits && input[1] == t->head->mask;
    case HR_OP_LSTM:
        return op->n_weights == 3 && weight_is(w, 2, 4 * out, in) && weight_is(w + 1, 2, 4 * out, out) &&
               weight_is(w + 2, 1, 4 * out, 0) && takes_state(t, op, 2 * out, state);
    case HR_OP_MINGRU:
        return op->n_weights == 4 && weight_is(w, 2, out, in) && weight_is(w + 1, 1, out, 0) &&
               weight_is(w + 2, 2, out, in) && weight_is(w + 3, 1, out, 0) && takes_state(t, op, out, state);
    case HR_OP_HEAD: return is_head(t, op, in, out);
    default: return out == in;
    }
}
