/* The policy program as it travels: fixed little-endian structs, written by producers/program.py into the
 * header of the weights channel and read by producers/policy.c. The two files and this one change together,
 * with HR_PROGRAM_VERSION.
 *
 * A program is a list of typed, single-assignment operations on named buffers. A buffer is one row an agent;
 * an operation reads its input buffers and weights and writes one output buffer. The weights of all
 * operations lie in one flat float32 vector in program order, each in torch's own layout.
 *
 * Encoded: hr_program, then hr_buffer[buffers], hr_op[ops], hr_weight[weights], uint32 input[inputs]: the
 * inputs of op i are input[first_input .. first_input + n_inputs). */
#ifndef HEADRACE_PROGRAM_H
#define HEADRACE_PROGRAM_H

#include <stdint.h>

#define HR_PROGRAM_MAGIC 0x50475248u /* "HRGP" */
#define HR_PROGRAM_VERSION 2u
#define HR_NO_BUFFER UINT32_MAX
#define HR_PROGRAM_DIMS 4
#define HR_PROGRAM_HEADS 16
#define HR_PROGRAM_PLANES 16 /* of a multi-hot grid */
#define HR_PROGRAM_INTEGERS 24
#define HR_PROGRAM_NAME_BYTES 64

typedef enum hr_op_kind {
    /* x: so many elements of the observation as y has, from `start` on. y = x * scale + offset; with weights mean,
     * inv_std: y = (x - mean) * inv_std. */
    HR_OP_CAST_AFFINE = 1,
    HR_OP_SLICE = 2,       /* y = x[start : start + width of y], flattened */
    HR_OP_RESHAPE = 3,     /* the same elements in the shape of y */
    HR_OP_LINEAR = 4,      /* y = x W^T + b; W [out, in] */
    /* No padding; x [rows, columns, in] to y [rows', columns', out] with channels last, as they lie in memory when
     * the output of one position is a row; W [out, in, kernel rows, kernel columns], b [out]. */
    HR_OP_CONV2D = 5,
    /* The same where x is a grid [rows, columns, planes] of bytes of the observation, from `start` on, and plane p
     * stands for `values[p]` channels of which the one that its byte names is 1 and the others are 0; W [out, sum of
     * values, ...]. A byte beyond the plane's categories counts as the last of them. */
    HR_OP_MULTIHOT_CONV2D = 6,
    /* Each byte of the observation from `start` on picks a row of W [codes, width]; one beyond them, the last. */
    HR_OP_EMBEDDING = 7,
    HR_OP_ADD = 8,
    HR_OP_MUL = 9,
    HR_OP_ACTIVATION = 10,
    HR_OP_LAYER_NORM = 11, /* y = (x - mean x) / sqrt(variance x + epsilon) * scale + bias; scale, bias [width] */
    /* One step of a layer of H units: x [in] and state to h [H]. Gates i, f, g, o of W_ih [4H, in], W_hh [4H, H]
     * and b [4H]; c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'). Its state is h, then c. */
    HR_OP_LSTM = 12,
    /* z = sigmoid(W_z x + b_z), h' = (1 - z) h + z (W_h x + b_h); W_z [H, in], b_z [H], W_h [H, in], b_h [H].
     * Its state is h. */
    HR_OP_MINGRU = 13,
    HR_OP_CONCAT = 14,
    HR_OP_MASK = 15, /* y = logits where mask, else -infinity */
    HR_OP_HEAD = 16  /* logits to actions; gaussian: means, with the weight log_std [heads] */
} hr_op_kind;

typedef enum hr_activation {
    HR_RELU = 1,
    HR_GELU_TANH = 2,
    HR_GELU_ERF = 3,
    HR_TANH = 4,
    HR_SIGMOID = 5
} hr_activation;

typedef enum hr_distribution { HR_CATEGORICAL = 1, HR_MULTI_DISCRETE = 2, HR_GAUSSIAN = 3 } hr_distribution;

/* What of hr_op.integer and hr_op.real means what, by kind; all others are 0. */
enum {
    HR_CAST_PER_FEATURE = 0,    /* integer: 1 = weights mean [width], inv_std [width] */
    HR_CAST_START = 1,          /* integer */
    HR_CAST_SCALE = 0,          /* real */
    HR_CAST_OFFSET = 1,         /* real */
    HR_CAST_CLIP = 2,           /* real: |y| <= clip; 0 = no bound */
    HR_SLICE_START = 0,         /* integer */
    HR_LINEAR_BIAS = 0,         /* integer: 1 = weights W, b; 0 = W alone */
    HR_CONV_STRIDE = 0,         /* integer: between output positions, in cells */
    HR_MULTIHOT_STRIDE = 0,     /* integer, as of conv2d */
    HR_MULTIHOT_START = 1,      /* integer */
    HR_MULTIHOT_ROWS = 2,       /* integer, and columns behind it */
    HR_MULTIHOT_COLUMNS = 3,
    HR_MULTIHOT_VALUES = 4,     /* HR_PROGRAM_PLANES integers: categories of each plane, 1 to 256; 0 behind the last */
    HR_EMBEDDING_START = 0,     /* integer */
    HR_LAYER_NORM_EPSILON = 0,  /* real */
    HR_ACTIVATION_FUNCTION = 0, /* integer: hr_activation */
    HR_RECURRENT_STATE = 0,     /* integer: where its state begins in the agent's; in program order, no gaps */
    HR_HEAD_DISTRIBUTION = 0    /* integer: hr_distribution */
};

/* Flags of an operation and of a weight. */
enum {
    HR_OP_LEARNER_ONLY = 1, /* neither actions nor state depend on it: the actor skips it */
    HR_WEIGHT_FROZEN = 1    /* shipped with each version but not trained (running statistics) */
};

typedef struct hr_program {
    uint32_t magic, version;
    uint64_t bytes; /* of the whole encoding */
    uint64_t count; /* float32 values of the flat vector */
    uint32_t buffers, ops, weights, inputs;
    uint32_t obs, mask;     /* buffers that come from the simulator; mask may be HR_NO_BUFFER */
    uint32_t action, value; /* the head's output; the value's buffer or HR_NO_BUFFER */
    uint32_t heads, logits, state_width, continuous;
    int32_t choices[HR_PROGRAM_HEADS];
    float action_low[HR_PROGRAM_HEADS], action_high[HR_PROGRAM_HEADS];
} hr_program;

typedef struct hr_buffer {
    uint32_t dtype; /* hr_dtype of plan.h */
    uint32_t dims;
    uint32_t shape[HR_PROGRAM_DIMS]; /* of one agent's row */
} hr_buffer;

typedef struct hr_op {
    uint32_t kind, flags;
    uint32_t first_input, n_inputs;
    uint32_t output;
    uint32_t first_weight, n_weights;
    int32_t integer[HR_PROGRAM_INTEGERS];
    float real[4];
    uint32_t reserved;
} hr_op;

typedef struct hr_weight {
    uint64_t offset, count; /* float32 values, in the flat vector */
    uint32_t dims;
    uint32_t shape[HR_PROGRAM_DIMS];
    uint32_t flags;
    float init_gain; /* > 0: orthogonal with this gain; 0: constant init_value */
    float init_value;
    char name[HR_PROGRAM_NAME_BYTES];
} hr_weight;

_Static_assert(sizeof(hr_program) == 264, "written by program.py");
_Static_assert(sizeof(hr_buffer) == 24, "written by program.py");
_Static_assert(sizeof(hr_op) == 144, "written by program.py");
_Static_assert(sizeof(hr_weight) == 112, "written by program.py");

#endif
