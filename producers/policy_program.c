/* Reads a policy program (policy_program.h). The encoding comes from shared memory: nothing in it is trusted.
 */
#include "policy_program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "policy_shapes.h"

enum { COUNT_MAX = 1 << 16, WIDTH_MAX = 1 << 24 };

typedef struct reader {
    const hr_program *head;
    const hr_buffer *buffer;
    const hr_op *op;
    const hr_weight *weight;
    const uint32_t *input;
    program_plan *plan;
    uint32_t *readers;  /* [buffers] operations of the actor that read it */
    uint32_t *producer; /* [buffers] 1 + index of the step that writes it; 0: not written */
    size_t state;       /* floats an agent that the recurrent operations so far carry */
    char *error;
    size_t capacity;
} reader;

__attribute__((format(printf, 2, 3))) static bool fail(reader *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = snprintf(r->error, r->capacity, "policy program: ");
    if (n > 0 && (size_t)n < r->capacity) vsnprintf(r->error + n, r->capacity - (size_t)n, format, arguments);
    va_end(arguments);
    return false;
}

uint32_t program_planes(const hr_op *op) {
    uint32_t planes = 0;
    while (planes < HR_PROGRAM_PLANES && op->integer[HR_MULTIHOT_VALUES + planes] > 0) planes++;
    return planes;
}

size_t program_dtype_bytes(uint32_t dtype) {
    switch (dtype) {
    case HR_UINT8:
    case HR_INT8: return 1;
    case HR_INT32:
    case HR_FLOAT32: return 4;
    default: return 0;
    }
}

static const char *kind_name(uint32_t kind) {
    static const char *const names[] = {
        [HR_OP_CAST_AFFINE] = "cast_affine",
        [HR_OP_SLICE] = "slice",
        [HR_OP_RESHAPE] = "reshape",
        [HR_OP_LINEAR] = "linear",
        [HR_OP_CONV2D] = "conv2d",
        [HR_OP_MULTIHOT_CONV2D] = "multihot_conv2d",
        [HR_OP_EMBEDDING] = "embedding",
        [HR_OP_ADD] = "add",
        [HR_OP_MUL] = "mul",
        [HR_OP_ACTIVATION] = "activation",
        [HR_OP_LAYER_NORM] = "layer_norm",
        [HR_OP_LSTM] = "lstm",
        [HR_OP_MINGRU] = "mingru",
        [HR_OP_CONCAT] = "concat",
        [HR_OP_MASK] = "mask",
        [HR_OP_HEAD] = "head",
    };
    return kind >= 1 && kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

static bool read_header(reader *r, uint64_t bytes) {
    const hr_program *h = r->head;
    if (h->magic != HR_PROGRAM_MAGIC) return fail(r, "not a policy program (magic %#x)", h->magic);
    if (h->version != HR_PROGRAM_VERSION)
        return fail(r, "format %u, this policy reads %u: run make build", h->version, HR_PROGRAM_VERSION);
    if (h->buffers > COUNT_MAX || h->ops > COUNT_MAX || h->weights > COUNT_MAX || h->inputs > COUNT_MAX)
        return fail(r, "damaged: more than %d entries", COUNT_MAX);
    uint64_t need = sizeof *h + h->buffers * sizeof(hr_buffer) + h->ops * sizeof(hr_op) +
                    h->weights * sizeof(hr_weight) + h->inputs * sizeof(uint32_t);
    if (h->bytes != need || bytes < need)
        return fail(r, "damaged: %llu bytes where %llu are needed", (unsigned long long)bytes,
                    (unsigned long long)need);
    if (h->obs >= h->buffers || h->action >= h->buffers || (h->mask != HR_NO_BUFFER && h->mask >= h->buffers))
        return fail(r, "damaged: no such buffer");
    if (h->heads < 1 || h->heads > HR_PROGRAM_HEADS)
        return fail(r, "%u heads, 1 to %d can be", h->heads, HR_PROGRAM_HEADS);
    if (h->continuous && h->mask != HR_NO_BUFFER) return fail(r, "damaged: a mask of continuous actions");
    uint64_t logits = h->continuous ? h->heads : 0;
    for (uint32_t i = 0; i < h->heads && !h->continuous; i++) {
        if (h->choices[i] < 1 || h->choices[i] > COUNT_MAX)
            return fail(r, "head %u has %d choices", i, h->choices[i]);
        logits += (uint64_t)h->choices[i];
    }
    if (logits != h->logits) return fail(r, "damaged: %u logits, the heads have another number", h->logits);
    return true;
}

static bool read_buffers(reader *r) {
    for (uint32_t b = 0; b < r->head->buffers; b++) {
        uint64_t width = 1;
        if (r->buffer[b].dims > HR_PROGRAM_DIMS || program_dtype_bytes(r->buffer[b].dtype) == 0)
            return fail(r, "damaged: buffer %u", b);
        for (uint32_t d = 0; d < r->buffer[b].dims; d++) {
            width *= r->buffer[b].shape[d];
            if (width < 1 || width > WIDTH_MAX)
                return fail(r, "damaged: buffer %u has a width out of range", b);
        }
        r->plan->width[b] = width;
    }
    return true;
}

static bool read_weights(reader *r) {
    uint64_t next = 0;
    for (uint32_t w = 0; w < r->head->weights; w++) {
        uint64_t count = 1;
        if (r->weight[w].dims > HR_PROGRAM_DIMS) return fail(r, "damaged: weight %u", w);
        for (uint32_t d = 0; d < r->weight[w].dims; d++) {
            if (r->weight[w].shape[d] > WIDTH_MAX) return fail(r, "damaged: weight %u", w);
            count *= r->weight[w].shape[d];
            if (count > UINT32_MAX) return fail(r, "damaged: weight %u", w);
        }
        if (r->weight[w].offset != next || r->weight[w].count != count)
            return fail(r, "damaged: weight %u", w);
        next += count;
    }
    if (next != r->head->count) return fail(r, "damaged: %llu weights", (unsigned long long)r->head->count);
    return true;
}

/* The number of inputs an operation takes, 0 = any from 1 up, or -1 for one that this policy does not run. */
static int input_count(uint32_t kind) {
    switch (kind) {
    case HR_OP_CAST_AFFINE:
    case HR_OP_SLICE:
    case HR_OP_RESHAPE:
    case HR_OP_LINEAR:
    case HR_OP_CONV2D:
    case HR_OP_MULTIHOT_CONV2D:
    case HR_OP_EMBEDDING:
    case HR_OP_ACTIVATION:
    case HR_OP_LAYER_NORM:
    case HR_OP_LSTM:
    case HR_OP_MINGRU:
    case HR_OP_HEAD: return 1;
    case HR_OP_ADD:
    case HR_OP_MUL:
    case HR_OP_MASK: return 2;
    case HR_OP_CONCAT: return 0;
    default: return -1;
    }
}

static bool is_source(const reader *r, uint32_t buffer) {
    return buffer == r->head->obs || buffer == r->head->mask;
}

static bool reads_observation(uint32_t kind) {
    return kind == HR_OP_CAST_AFFINE || kind == HR_OP_MULTIHOT_CONV2D || kind == HR_OP_EMBEDDING;
}

/* References of the operation: in range, inputs written before, output written once. */
static bool check_references(reader *r, const hr_op *op) {
    const hr_program *h = r->head;
    const char *name = kind_name(op->kind);
    int inputs = input_count(op->kind);
    if (inputs < 0) return fail(r, "the operation %s (%u) is not implemented in this policy", name, op->kind);
    if (op->first_input > h->inputs || op->n_inputs > h->inputs - op->first_input || op->n_inputs < 1 ||
        (inputs > 0 && op->n_inputs != (uint32_t)inputs) || op->first_weight > h->weights ||
        op->n_weights > h->weights - op->first_weight || op->output >= h->buffers)
        return fail(r, "damaged: %s", name);
    if (is_source(r, op->output) || r->producer[op->output])
        return fail(r, "%s writes buffer %u a second time", name, op->output);
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        uint32_t b = r->input[op->first_input + i];
        if (b >= h->buffers || b == h->action || (!is_source(r, b) && !r->producer[b]))
            return fail(r, "%s reads buffer %u, which no operation of the actor wrote", name, b);
        if ((b == h->obs) != reads_observation(op->kind) || (b == h->mask) != (op->kind == HR_OP_MASK && i == 1))
            return fail(r, "%s reads observation or mask, or something else in their place", name);
        r->readers[b]++;
    }
    const program_tables tables = {h, r->buffer, r->plan->width, r->weight};
    return shapes_fit(&tables, op, r->input + op->first_input, &r->state) ||
           fail(r, "%s does not fit its buffers or weights", name);
}

static bool read_ops(reader *r) {
    program_plan *plan = r->plan;
    bool head = false;
    for (uint32_t i = 0; i < r->head->ops; i++) {
        const hr_op *op = r->op + i;
        if (op->flags & HR_OP_LEARNER_ONLY) continue;
        if (!check_references(r, op)) return false;
        const uint32_t *input = r->input + op->first_input;
        program_step *s = plan->step + plan->n_steps++;
        *s = (program_step){op->kind, 0, op->output, op->n_inputs, input, op, r->weight + op->first_weight,
                            false};
        if (op->kind == HR_OP_ACTIVATION) s->activation = (uint32_t)op->integer[HR_ACTIVATION_FUNCTION];
        r->producer[op->output] = plan->n_steps;
        if (op->kind != HR_OP_HEAD) continue;
        head = true;
        plan->logits = input[0];
        plan->log_std = r->head->continuous ? r->weight + op->first_weight : NULL;
        const program_step *before = plan->step + r->producer[input[0]] - 1;
        if (before->kind == HR_OP_MASK) {
            plan->masked = true;
            plan->logits = before->input[0];
        }
    }
    if (!head) return fail(r, "no head");
    if (r->state != r->head->state_width)
        return fail(r, "damaged: %u floats of state for operations with %zu", r->head->state_width, r->state);
    return true;
}

/* Kernels that apply an activation to what they write. */
static bool ends_in_activation(uint32_t kind) {
    return kind == HR_OP_LINEAR || kind == HR_OP_CONV2D || kind == HR_OP_MULTIHOT_CONV2D;
}

/* Drops the steps that another does on its way: activations behind such a kernel, the mask and the head. */
static bool fuse(reader *r) {
    program_plan *plan = r->plan;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        program_step s = plan->step[i];
        if (s.kind == HR_OP_HEAD) continue;
        if (s.kind == HR_OP_MASK) {
            if (r->readers[s.output] != 1 || !plan->masked)
                return fail(r, "only the head can read the mask's output");
            continue;
        }
        uint32_t producer = s.kind == HR_OP_ACTIVATION ? r->producer[s.input[0]] : 0;
        if (producer != 0 && r->readers[s.input[0]] == 1) {
            program_step *before = plan->step + producer - 1;
            if (ends_in_activation(before->kind) && before->activation == 0) {
                before->activation = s.activation;
                before->output = s.output;
                r->producer[s.output] = producer;
                continue;
            }
        }
        plan->step[kept++] = s;
        r->producer[s.output] = kept;
    }
    plan->n_steps = kept;
    return true;
}

/* A cast that changes nothing costs nothing, where all readers stay within the width: rows of the simulator's
 * array lie without padding. */
static void find_aliases(reader *r) {
    program_plan *plan = r->plan;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        program_step *s = plan->step + i;
        const hr_op *op = s->op;
        s->alias = s->kind == HR_OP_RESHAPE ||
                   (s->kind == HR_OP_CAST_AFFINE && r->buffer[s->input[0]].dtype == HR_FLOAT32 &&
                    !op->integer[HR_CAST_PER_FEATURE] && op->real[HR_CAST_SCALE] == 1.0f &&
                    op->real[HR_CAST_OFFSET] == 0.0f && op->real[HR_CAST_CLIP] == 0.0f);
        for (uint32_t k = i + 1; s->kind == HR_OP_CAST_AFFINE && s->alias && k < plan->n_steps; k++)
            for (uint32_t j = 0; j < plan->step[k].n_inputs; j++)
                if (plan->step[k].input[j] == s->output && plan->step[k].kind != HR_OP_LINEAR &&
                    plan->step[k].kind != HR_OP_SLICE && plan->step[k].kind != HR_OP_CONCAT &&
                    recurrent_gates(plan->step[k].kind) == 0)
                    s->alias = false;
        if (plan->logits == s->output) s->alias = s->kind == HR_OP_RESHAPE;
    }
}

bool program_read(program_plan *plan, const void *program, uint64_t bytes, char *error, size_t capacity) {
    memset(plan, 0, sizeof *plan);
    reader r = {.plan = plan, .error = error, .capacity = capacity};
    hr_program head;
    if (bytes < sizeof head) return fail(&r, "damaged: only %llu bytes", (unsigned long long)bytes);
    memcpy(&head, program, sizeof head);
    r.head = &head;
    if (!read_header(&r, bytes)) return false;

    size_t words = (size_t)head.buffers * 2,
           tables = head.buffers * sizeof(size_t) + head.ops * sizeof(program_step);
    plan->memory = calloc(1, head.bytes + 64 + tables + words * sizeof(uint32_t));
    if (plan->memory == NULL) return fail(&r, "no memory");
    plan->width = plan->memory;
    plan->step = (program_step *)(plan->width + head.buffers);
    uint8_t *copy = (uint8_t *)(plan->step + head.ops);
    memcpy(copy, program, head.bytes);
    r.head = plan->head = (const hr_program *)copy;
    r.buffer = plan->buffer = (const hr_buffer *)(r.head + 1);
    r.op = (const hr_op *)(r.buffer + head.buffers);
    r.weight = (const hr_weight *)(r.op + head.ops);
    r.input = (const uint32_t *)(r.weight + head.weights);
    r.readers = (uint32_t *)(copy + ((head.bytes + 7) & ~(uint64_t)7));
    r.producer = r.readers + head.buffers;

    if (read_buffers(&r) && read_weights(&r) && read_ops(&r) && fuse(&r)) {
        find_aliases(&r);
        return true;
    }
    program_free(plan);
    return false;
}

void program_free(program_plan *plan) {
    free(plan->memory);
    memset(plan, 0, sizeof *plan);
}
