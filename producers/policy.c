/* Runs a policy program (policy.h): lays out its buffers and weights and walks its steps.
 *
 * The agents pass in blocks of rows, each through all steps, so that activations stay in cache. Where the
 * packed weights would not stay in L2 beside them, a block is large instead: then each panel of weights is read from
 * memory once for hundreds of rows (policy_linear.c has panels outermost), and beyond those the activations cost more
 * than the weights. Which of the two does not show in the results. */
#include "policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan.h"
#include "policy_conv2d.h"
#include "policy_linear.h"
#include "policy_multihot.h"
#include "policy_program.h"
#include "policy_recurrent.h"
#include "policy_rowwise.h"
#include "policy_sample.h"

enum { ROW_UNIT = 48, LARGE_BLOCK_ROWS = 384, BLOCK_BYTES = 256 * 1024, L2_BYTES_UNKNOWN = 1024 * 1024, ALIGNMENT = 64 };
_Static_assert(ROW_UNIT % LINEAR_ROWS == 0 && ROW_UNIT % SAMPLE_ROWS == 0 && LARGE_BLOCK_ROWS % ROW_UNIT == 0,
               "tiles and groups never leave a block");

struct hr_policy {
    program_plan plan;
    uint32_t agents;
    size_t block_rows;
    view *own;      /* [buffers] in the arena; data NULL where never written */
    view *rows;     /* [buffers] of the block at hand: own, or another's memory */
    float **packed; /* [steps] weights as the step's kernel wants them, or NULL */
    float *scratch; /* of whatever step is at hand, and of sample_rows */
    float *gates;   /* scratch of recurrent_rows */
    gaussian_head gaussian;
    float *arena;
    uint64_t bytes;
};

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static const hr_buffer *input_of(const hr_policy *p, const program_step *s) { return p->plan.buffer + s->input[0]; }

static recurrent_layer recurrent_of(const hr_policy *p, const program_step *s) {
    return (recurrent_layer){s->kind, p->plan.width[s->input[0]], p->plan.width[s->output]};
}

static conv2d conv2d_of(const hr_policy *p, const program_step *s) {
    const uint32_t *in = input_of(p, s)->shape, *weight = s->weight[0].shape;
    return (conv2d){in[0], in[1], in[2], weight[2], weight[3], (size_t)s->op->integer[HR_CONV_STRIDE], weight[0]};
}

static multihot multihot_of(const program_step *s) {
    const int32_t *integer = s->op->integer;
    const uint32_t *weight = s->weight[0].shape;
    return multihot_make((size_t)integer[HR_MULTIHOT_ROWS], (size_t)integer[HR_MULTIHOT_COLUMNS],
                         program_planes(s->op), integer + HR_MULTIHOT_VALUES, weight[2], weight[3],
                         (size_t)integer[HR_MULTIHOT_STRIDE], weight[0]);
}

static size_t packed_floats(const hr_policy *p, const program_step *s) {
    size_t in = p->plan.width[s->input[0]], out = p->plan.width[s->output];
    switch (s->kind) {
    case HR_OP_CAST_AFFINE: return s->op->n_weights > 0 ? round_up(2 * out, 16) : 0;
    case HR_OP_LINEAR: return linear_packed_floats(in, out);
    case HR_OP_EMBEDDING: return round_up(s->weight[0].count, 16);
    case HR_OP_LAYER_NORM: return round_up(2 * out, 16);
    case HR_OP_CONV2D: {
        conv2d conv = conv2d_of(p, s);
        return conv2d_packed_floats(&conv);
    }
    case HR_OP_MULTIHOT_CONV2D: {
        multihot hot = multihot_of(s);
        return multihot_packed_floats(&hot);
    }
    case HR_OP_LSTM:
    case HR_OP_MINGRU: {
        recurrent_layer layer = recurrent_of(p, s);
        return recurrent_packed_floats(&layer);
    }
    default: return 0;
    }
}

/* Floats from one row of the step's output to the next. */
static size_t output_floats(const hr_policy *p, const program_step *s) {
    if (s->kind != HR_OP_CONV2D) return round_up(p->plan.width[s->output], 16);
    conv2d conv = conv2d_of(p, s);
    return round_up(conv2d_row_floats(&conv), 16);
}

/* Scratch memory that the step needs for any number of rows, and for each row. */
static size_t scratch_floats(const program_step *s) {
    if (s->kind == HR_OP_CONV2D) return s->weight[0].count;
    if (s->kind != HR_OP_MULTIHOT_CONV2D) return 0;
    multihot hot = multihot_of(s);
    return multihot_scratch_bytes(&hot) / sizeof(float);
}

static size_t row_scratch_floats(const hr_policy *p, const program_step *s) {
    if (recurrent_gates(s->kind) == 0) return 0;
    recurrent_layer layer = recurrent_of(p, s);
    return recurrent_scratch_floats(&layer);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t choose_block_rows(uint32_t agents, size_t row_bytes, size_t weight_bytes) {
    long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    size_t all = round_up(agents, ROW_UNIT), rows = BLOCK_BYTES / (row_bytes + 1) / ROW_UNIT * ROW_UNIT;
    if (weight_bytes > (l2 > 0 ? (size_t)l2 : L2_BYTES_UNKNOWN) / 2) rows = LARGE_BLOCK_ROWS;
    if (rows < ROW_UNIT) rows = ROW_UNIT;
    return rows < all ? rows : all;
}

/* One allocation for all that is written: activations, packed weights, scratch. */
static bool allocate(hr_policy *p) {
    const program_plan *plan = &p->plan;
    size_t row_floats = 0, gate_floats = 0, weight_floats = 0, scratch = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const program_step *s = plan->step + i;
        weight_floats += packed_floats(p, s);
        if (!s->alias || s->kind == HR_OP_CAST_AFFINE) row_floats += output_floats(p, s);
        gate_floats = larger(gate_floats, row_scratch_floats(p, s));
        scratch = larger(scratch, scratch_floats(s));
    }
    row_floats += gate_floats;
    for (uint32_t h = 0; h < plan->head->heads && !plan->head->continuous; h++)
        scratch = larger(scratch, 2 * SAMPLE_ROWS * (size_t)plan->head->choices[h]);
    p->block_rows = choose_block_rows(p->agents, row_floats * sizeof(float), weight_floats * sizeof(float));
    size_t floats = row_floats * p->block_rows + weight_floats + scratch;
    p->bytes = sizeof *p + floats * sizeof(float);
    p->arena = aligned_alloc(ALIGNMENT, round_up(floats * sizeof(float), ALIGNMENT));
    p->own = calloc(plan->head->buffers, sizeof *p->own);
    p->rows = calloc(plan->head->buffers, sizeof *p->rows);
    p->packed = calloc(plan->n_steps + 1u, sizeof *p->packed);
    if (p->arena == NULL || p->own == NULL || p->rows == NULL || p->packed == NULL) return false;
    memset(p->arena, 0, floats * sizeof(float));

    float *next = p->arena;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const program_step *s = plan->step + i;
        size_t stride = output_floats(p, s), packed = packed_floats(p, s);
        if (packed) p->packed[i] = next;
        next += packed;
        if (s->alias && s->kind != HR_OP_CAST_AFFINE) continue;
        p->own[s->output] = (view){next, stride};
        next += stride * p->block_rows;
    }
    p->gates = next;
    p->scratch = next + gate_floats * p->block_rows;
    return true;
}

hr_policy *hr_policy_create(const void *program, uint64_t bytes, uint32_t agents, char *error,
                            size_t capacity) {
    hr_policy *p = calloc(1, sizeof *p);
    if (p != NULL && agents > 0) {
        p->agents = agents;
        if (program_read(&p->plan, program, bytes, error, capacity)) {
            if (allocate(p)) return p;
            snprintf(error, capacity, "policy: no memory for %u agents", agents);
        }
    } else {
        snprintf(error, capacity, p == NULL ? "policy: no memory" : "policy: no agents");
    }
    hr_policy_destroy(p);
    return NULL;
}

void hr_policy_destroy(hr_policy *p) {
    if (p == NULL) return;
    program_free(&p->plan);
    free(p->own);
    free(p->rows);
    free(p->packed);
    free(p->arena);
    free(p);
}

uint64_t hr_policy_count(const hr_policy *p) { return p->plan.head->count; }
uint32_t hr_policy_state_width(const hr_policy *p) { return p->plan.head->state_width; }
uint32_t hr_policy_heads(const hr_policy *p) { return p->plan.head->heads; }
uint32_t hr_policy_logits_width(const hr_policy *p) { return p->plan.head->logits; }
uint64_t hr_policy_bytes(const hr_policy *p) { return p->bytes; }

/* The weights of one step; `weight`: those of its operation, in their order. */
static void load_step(hr_policy *p, const program_step *s, const float *const *weight, float *packed) {
    size_t in = p->plan.width[s->input[0]], out = p->plan.width[s->output];
    switch (s->kind) {
    case HR_OP_LINEAR: linear_pack(weight[0], weight[1], in, out, packed); break;
    case HR_OP_EMBEDDING: memcpy(packed, weight[0], s->weight[0].count * sizeof *packed); break;
    case HR_OP_CONV2D: {
        conv2d conv = conv2d_of(p, s);
        conv2d_pack(&conv, weight[0], weight[1], packed, p->scratch);
        break;
    }
    case HR_OP_MULTIHOT_CONV2D: {
        multihot hot = multihot_of(s);
        multihot_pack(&hot, weight[0], weight[1], packed);
        break;
    }
    case HR_OP_LSTM:
    case HR_OP_MINGRU: {
        recurrent_layer layer = recurrent_of(p, s);
        recurrent_pack(&layer, weight, packed);
        break;
    }
    default: /* statistics of a cast, scale and bias of a layer norm */
        if (packed == NULL) break;
        memcpy(packed, weight[0], out * sizeof *packed);
        memcpy(packed + out, weight[1], out * sizeof *packed);
    }
}

void hr_policy_load(hr_policy *p, const float *flat) {
    for (uint32_t i = 0; i < p->plan.n_steps; i++) {
        const program_step *s = p->plan.step + i;
        const float *weight[4] = {NULL};
        for (uint32_t w = 0; w < s->op->n_weights; w++) weight[w] = flat + s->weight[w].offset;
        load_step(p, s, weight, p->packed[i]);
    }
    if (p->plan.log_std != NULL)
        gaussian_set(&p->gaussian, flat + p->plan.log_std->offset, p->plan.head->heads);
}

static size_t obs_row_bytes(const hr_policy *p) {
    uint32_t obs = p->plan.head->obs;
    return p->plan.width[obs] * program_dtype_bytes(p->plan.buffer[obs].dtype);
}

/* One step on `n` rows, of which `obs` are the observations and `state` the recurrent state. */
static void run_step(hr_policy *p, uint32_t i, const uint8_t *obs, float *state, size_t n) {
    const program_plan *plan = &p->plan;
    const program_step *s = plan->step + i;
    const int32_t *integer = s->op->integer;
    size_t in = plan->width[s->input[0]], width = plan->width[s->output], column = 0, tiles = round_up(n, LINEAR_ROWS);
    size_t obs_bytes = obs_row_bytes(p);
    view x = p->rows[s->input[0]], out = p->own[s->output];
    p->rows[s->output] = out;
    switch (s->kind) {
    case HR_OP_CAST_AFFINE: {
        uint32_t dtype = input_of(p, s)->dtype;
        const uint8_t *from = obs + (size_t)integer[HR_CAST_START] * program_dtype_bytes(dtype);
        cast c = {dtype, width, p->packed[i], s->op->real[HR_CAST_SCALE], s->op->real[HR_CAST_OFFSET],
                  s->op->real[HR_CAST_CLIP]};
        if (s->alias && n == tiles) p->rows[s->output] = (view){(float *)(uintptr_t)from, in};
        else cast_rows(&c, from, obs_bytes, out, n);
        break;
    }
    case HR_OP_EMBEDDING: {
        size_t codes = s->weight[0].shape[0], each = s->weight[0].shape[1];
        embedding_rows(obs + integer[HR_EMBEDDING_START], obs_bytes, width / each, p->packed[i], codes, each, out, n);
        break;
    }
    case HR_OP_MULTIHOT_CONV2D: {
        multihot hot = multihot_of(s);
        multihot_rows(&hot, obs + integer[HR_MULTIHOT_START], obs_bytes, p->packed[i], out.data, out.stride, n,
                      s->activation, p->scratch);
        break;
    }
    case HR_OP_CONV2D: {
        conv2d conv = conv2d_of(p, s);
        conv2d_rows(&conv, x.data, x.stride, p->packed[i], out.data, out.stride, tiles, s->activation);
        break;
    }
    case HR_OP_LINEAR:
        linear_rows(x.data, x.stride, p->packed[i], in, width, out.data, out.stride, tiles, s->activation);
        break;
    case HR_OP_LSTM:
    case HR_OP_MINGRU: {
        recurrent_layer layer = recurrent_of(p, s);
        recurrent_rows(&layer, x.data, x.stride, p->packed[i], state + integer[HR_RECURRENT_STATE],
                       plan->head->state_width, out.data, out.stride, p->gates, n);
        break;
    }
    case HR_OP_LAYER_NORM:
        layer_norm_rows(x, p->packed[i], s->op->real[HR_LAYER_NORM_EPSILON], width, out, n);
        break;
    case HR_OP_ACTIVATION:
        activation_rows(x.data, x.stride, out.data, out.stride, round_up(width, 16), n, s->activation);
        break;
    case HR_OP_RESHAPE: p->rows[s->output] = x; break;
    case HR_OP_SLICE: copy_columns(x, (size_t)integer[HR_SLICE_START], out, 0, width, n); break;
    case HR_OP_CONCAT:
        for (uint32_t k = 0; k < s->n_inputs; k++) {
            copy_columns(p->rows[s->input[k]], 0, out, column, plan->width[s->input[k]], n);
            column += plan->width[s->input[k]];
        }
        break;
    case HR_OP_ADD: add_rows(x, p->rows[s->input[1]], out, width, n); break;
    default: multiply_rows(x, p->rows[s->input[1]], out, width, n); break;
    }
}

/* All steps on the `n` rows from `first` on, in whole tiles: what stands in the rows behind n is old and goes
 * nowhere. */
static void run_block(hr_policy *p, const void *all_obs, float *all_state, const uint8_t *reset_before,
                      size_t first, size_t n) {
    const uint8_t *obs = (const uint8_t *)all_obs + first * obs_row_bytes(p);
    size_t state_width = p->plan.head->state_width;
    float *state = state_width > 0 ? all_state + first * state_width : NULL;
    for (size_t r = 0; state != NULL && reset_before != NULL && r < n; r++)
        if (reset_before[first + r]) memset(state + r * state_width, 0, state_width * sizeof *state);
    for (uint32_t i = 0; i < p->plan.n_steps; i++) run_step(p, i, obs, state, n);
}

static size_t block_size(const hr_policy *p, size_t first) {
    return p->agents - first < p->block_rows ? p->agents - first : p->block_rows;
}

void hr_policy_act(hr_policy *p, const void *obs, const uint8_t *mask, float *state,
                   const uint8_t *reset_before, uint64_t noise_key, uint64_t first_agent, uint64_t step,
                   int argmax, void *actions, float *logprob) {
    const hr_program *head = p->plan.head;
    size_t n;
    for (size_t first = 0; first < p->agents; first += n) {
        n = block_size(p, first);
        run_block(p, obs, state, reset_before, first, n);
        view logits = p->rows[p->plan.logits];
        for (size_t r = 0; r < n; r += SAMPLE_ROWS) {
            size_t row = first + r;
            uint32_t rows = (uint32_t)(n - r < SAMPLE_ROWS ? n - r : SAMPLE_ROWS);
            if (head->continuous)
                sample_gaussian_rows(logits.data + r * logits.stride, logits.stride, &p->gaussian, head->heads,
                                     rows, noise_key, first_agent + row, step, argmax,
                                     (float *)actions + row * head->heads, logprob + row);
            else
                sample_rows(logits.data + r * logits.stride, logits.stride,
                            mask != NULL && p->plan.masked ? mask + row * head->logits : NULL, head->logits,
                            head->choices, head->heads, rows, noise_key, first_agent + row, step, argmax,
                            p->scratch, (int32_t *)actions + row * head->heads, logprob + row);
        }
    }
}

void hr_policy_logits(hr_policy *p, const void *obs, float *state, const uint8_t *reset_before,
                      float *logits) {
    size_t n, width = p->plan.head->logits;
    for (size_t first = 0; first < p->agents; first += n) {
        n = block_size(p, first);
        run_block(p, obs, state, reset_before, first, n);
        view rows = p->rows[p->plan.logits];
        for (size_t r = 0; r < n; r++)
            memcpy(logits + (first + r) * width, rows.data + r * rows.stride, width * sizeof *logits);
    }
}
