/* Runs a policy program (policy.h): lays out its buffers and weights and walks its steps.
 *
 * The agents pass in blocks of rows, each through all steps, so that activations stay in cache. Where the
 * packed weights would not stay in L2 beside them, one block holds all agents instead: then each panel of
 * weights is read from memory once a step (policy_linear.c has panels outermost). Which of the two does not
 * show in the results. */
#include "policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan.h"
#include "policy_linear.h"
#include "policy_program.h"
#include "policy_recurrent.h"
#include "policy_sample.h"

enum { ROW_UNIT = 48, BLOCK_BYTES = 256 * 1024, L2_BYTES_UNKNOWN = 1024 * 1024, ALIGNMENT = 64 };
_Static_assert(ROW_UNIT % LINEAR_ROWS == 0 && ROW_UNIT % SAMPLE_ROWS == 0,
               "tiles and groups never leave a block");

/* A buffer's rows of the block at hand. */
typedef struct view {
    float *data;
    size_t stride; /* floats */
} view;

struct hr_policy {
    program_plan plan;
    uint32_t agents;
    size_t block_rows;
    view *own;      /* [buffers] in the arena; data NULL where never written */
    view *rows;     /* [buffers] of the block at hand: own, or another's memory */
    float **packed; /* [steps] weights as the step's kernel wants them, or NULL */
    float *scratch; /* of sample_rows */
    float *gates;   /* scratch of recurrent_rows */
    gaussian_head gaussian;
    float *arena;
    uint64_t bytes;
};

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static recurrent_layer layer_of(const hr_policy *p, const program_step *s) {
    return (recurrent_layer){s->kind, p->plan.width[s->input[0]], p->plan.width[s->output]};
}

static size_t packed_floats(const hr_policy *p, const program_step *s) {
    size_t in = p->plan.width[s->input[0]];
    if (recurrent_gates(s->kind) > 0) {
        recurrent_layer layer = layer_of(p, s);
        return recurrent_packed_floats(&layer);
    }
    if (s->kind == HR_OP_LINEAR) return linear_packed_floats(in, p->plan.width[s->output]);
    if (s->kind == HR_OP_CAST_AFFINE) return s->op->n_weights > 0 ? round_up(2 * in, 16) : 0;
    return 0;
}

static size_t choose_block_rows(uint32_t agents, size_t row_bytes, size_t weight_bytes) {
    long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    size_t all = round_up(agents, ROW_UNIT), rows = BLOCK_BYTES / (row_bytes + 1) / ROW_UNIT * ROW_UNIT;
    if (weight_bytes > (l2 > 0 ? (size_t)l2 : L2_BYTES_UNKNOWN) / 2) return all;
    if (rows < ROW_UNIT) rows = ROW_UNIT;
    return rows < all ? rows : all;
}

/* One allocation for all that is written: activations, packed weights, scratch. */
static bool allocate(hr_policy *p) {
    const program_plan *plan = &p->plan;
    size_t row_floats = 0, gate_floats = 0, weight_floats = 0, choices = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        weight_floats += packed_floats(p, plan->step + i);
        if (!plan->step[i].alias || plan->step[i].kind == HR_OP_CAST_AFFINE)
            row_floats += round_up(plan->width[plan->step[i].output], 16);
        if (recurrent_gates(plan->step[i].kind) == 0) continue;
        recurrent_layer layer = layer_of(p, plan->step + i);
        size_t scratch = recurrent_scratch_floats(&layer);
        if (scratch > gate_floats) gate_floats = scratch;
    }
    row_floats += gate_floats;
    for (uint32_t h = 0; h < plan->head->heads && !plan->head->continuous; h++)
        if ((size_t)plan->head->choices[h] > choices) choices = (size_t)plan->head->choices[h];
    p->block_rows = choose_block_rows(p->agents, row_floats * sizeof(float), weight_floats * sizeof(float));
    size_t scratch_floats = 2 * choices * SAMPLE_ROWS;
    size_t floats = row_floats * p->block_rows + weight_floats + scratch_floats;
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
        size_t stride = round_up(plan->width[s->output], 16), packed = packed_floats(p, s);
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

void hr_policy_load(hr_policy *p, const float *flat) {
    for (uint32_t i = 0; i < p->plan.n_steps; i++) {
        const program_step *s = p->plan.step + i;
        size_t in = p->plan.width[s->input[0]];
        if (s->kind == HR_OP_LINEAR) {
            const float *bias = s->op->n_weights > 1 ? flat + s->weight[1].offset : NULL;
            linear_pack(flat + s->weight[0].offset, bias, in, p->plan.width[s->output], p->packed[i]);
        } else if (recurrent_gates(s->kind) > 0) {
            recurrent_layer layer = layer_of(p, s);
            const float *weight[4] = {NULL};
            for (uint32_t w = 0; w < s->op->n_weights; w++) weight[w] = flat + s->weight[w].offset;
            recurrent_pack(&layer, weight, p->packed[i]);
        } else if (s->kind == HR_OP_CAST_AFFINE && s->op->n_weights > 0) {
            memcpy(p->packed[i], flat + s->weight[0].offset, in * sizeof(float));
            memcpy(p->packed[i] + in, flat + s->weight[1].offset, in * sizeof(float));
        }
    }
    if (p->plan.log_std != NULL)
        gaussian_set(&p->gaussian, flat + p->plan.log_std->offset, p->plan.head->heads);
}

/* To float32: one row of `n` elements. */
static void convert(const void *from, uint32_t dtype, float *to, size_t n) {
    switch (dtype) {
    case HR_UINT8:
        for (size_t i = 0; i < n; i++) to[i] = (float)((const uint8_t *)from)[i];
        break;
    case HR_INT8:
        for (size_t i = 0; i < n; i++) to[i] = (float)((const int8_t *)from)[i];
        break;
    case HR_INT32:
        for (size_t i = 0; i < n; i++) to[i] = (float)((const int32_t *)from)[i];
        break;
    default: memcpy(to, from, n * sizeof *to); break;
    }
}

static void cast_affine(const hr_policy *p, const program_step *s, const float *packed, const uint8_t *obs,
                        size_t n) {
    size_t width = p->plan.width[s->output];
    uint32_t dtype = p->plan.buffer[s->input[0]].dtype;
    float scale = s->op->real[HR_CAST_SCALE], offset = s->op->real[HR_CAST_OFFSET],
          clip = s->op->real[HR_CAST_CLIP];
    view out = p->own[s->output];
    for (size_t r = 0; r < n; r++) {
        float *y = out.data + r * out.stride;
        convert(obs + r * width * program_dtype_bytes(dtype), dtype, y, width);
        if (packed != NULL)
            for (size_t i = 0; i < width; i++) y[i] = (y[i] - packed[i]) * packed[width + i];
        else if (scale != 1.0f || offset != 0.0f)
            for (size_t i = 0; i < width; i++) y[i] = y[i] * scale + offset;
        if (clip > 0.0f)
            for (size_t i = 0; i < width; i++) y[i] = y[i] > clip ? clip : y[i] < -clip ? -clip : y[i];
    }
    p->rows[s->output] = out;
}

static void elementwise(const program_step *s, view a, view b, view out, size_t width, size_t n) {
    for (size_t r = 0; r < n; r++) {
        const float *x = a.data + r * a.stride, *z = b.data + r * b.stride;
        float *y = out.data + r * out.stride;
        if (s->kind == HR_OP_ADD)
            for (size_t i = 0; i < width; i++) y[i] = x[i] + z[i];
        else
            for (size_t i = 0; i < width; i++) y[i] = x[i] * z[i];
    }
}

static size_t obs_row_bytes(const hr_policy *p) {
    uint32_t obs = p->plan.head->obs;
    return p->plan.width[obs] * program_dtype_bytes(p->plan.buffer[obs].dtype);
}

static void copy_columns(view from, size_t from_column, view to, size_t to_column, size_t width, size_t n) {
    for (size_t r = 0; r < n; r++)
        memcpy(to.data + r * to.stride + to_column, from.data + r * from.stride + from_column,
               width * sizeof(float));
}

/* All steps on the `n` rows from `first` on, in whole tiles: what stands in the rows behind n is old and goes
 * nowhere. */
static void run_block(hr_policy *p, const void *all_obs, float *all_state, const uint8_t *reset_before,
                      size_t first, size_t n) {
    const program_plan *plan = &p->plan;
    const uint8_t *obs = (const uint8_t *)all_obs + first * obs_row_bytes(p);
    size_t state_width = plan->head->state_width;
    float *state = state_width > 0 ? all_state + first * state_width : NULL;
    for (size_t r = 0; state != NULL && reset_before != NULL && r < n; r++)
        if (reset_before[first + r]) memset(state + r * state_width, 0, state_width * sizeof *state);
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const program_step *s = plan->step + i;
        size_t in = plan->width[s->input[0]], width = plan->width[s->output], column = 0;
        view x = p->rows[s->input[0]], out = p->own[s->output];
        p->rows[s->output] = out;
        switch (s->kind) {
        case HR_OP_CAST_AFFINE:
            if (s->alias && n % LINEAR_ROWS == 0)
                p->rows[s->output] = (view){(float *)(uintptr_t)obs, in};
            else
                cast_affine(p, s, p->packed[i], obs, n);
            break;
        case HR_OP_RESHAPE: p->rows[s->output] = x; break;
        case HR_OP_SLICE: copy_columns(x, (size_t)s->op->integer[HR_SLICE_START], out, 0, width, n); break;
        case HR_OP_CONCAT:
            for (uint32_t k = 0; k < s->n_inputs; k++) {
                copy_columns(p->rows[s->input[k]], 0, out, column, plan->width[s->input[k]], n);
                column += plan->width[s->input[k]];
            }
            break;
        case HR_OP_LINEAR:
            linear_rows(x.data, x.stride, p->packed[i], in, width, out.data, out.stride,
                        round_up(n, LINEAR_ROWS), s->activation);
            break;
        case HR_OP_LSTM:
        case HR_OP_MINGRU: {
            recurrent_layer layer = layer_of(p, s);
            recurrent_rows(&layer, x.data, x.stride, p->packed[i], state + s->op->integer[HR_RECURRENT_STATE],
                           state_width, out.data, out.stride, p->gates, n);
            break;
        }
        case HR_OP_ACTIVATION:
            activation_rows(x.data, x.stride, out.data, out.stride, round_up(width, 16), n, s->activation);
            break;
        default: elementwise(s, x, p->rows[s->input[1]], out, width, n); break;
        }
    }
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
