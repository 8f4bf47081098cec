/* The objective of a minibatch and its gradient in one pass over memory, for learners on a CPU.
 *
 * The same mathematics as consumers/corrections.py, which explains it and which tests/test_objective.py compares it
 * with: there each operation of torch is a call of its own, and with a small network those calls cost more than the
 * network. Steps are [T, m] row-major, n = T * m of them; `rows` is T or T + 1. */
#ifndef HEADRACE_LOSS_H
#define HEADRACE_LOSS_H

#include <stdint.h>

#define HR_LOSS_ABI 2u

typedef struct hr_objective {
    /* What is to be computed */
    uint32_t abi;
    int32_t horizon, segments, rows; /* T, m */
    int32_t heads;
    const int32_t *choices; /* [heads] */
    int32_t corrected;      /* 1: V-trace, 0: GAE; where there is no `given_target` */
    int32_t proximal;       /* 1: the clipped ratio is against given_log_prob, 0: against behaviour */
    int32_t weighted;       /* 1: by min(tis_cap, given policy over behaviour) */
    int32_t normalize;      /* 1: advantages to mean 0 and deviation 1 over the kept steps */
    float rho_clip, c_clip, tis_cap, clip, value_coef, entropy_coef;
    float value_clip;                  /* < 0: none */
    float value_mean, value_deviation; /* value = output * deviation + mean */

    /* Read */
    const float *logits;    /* [sum of choices, rows * m], column by column */
    const float *output;    /* [rows, m] of the value head; row T is the bootstrap */
    const int64_t *action;  /* [T, m, heads] */
    const uint8_t *mask;    /* [T, m, sum of choices] 1 = allowed; NULL: all are */
    const float *behaviour; /* [T, m] log-probability */
    const float *rewards, *discounts, *traces; /* [T, m]; not read where targets are given */
    const uint8_t *valid, *kept;               /* [T, m]; NULL: all are */
    /* Of the policy at batch start, [T, m], all or none; none: it is this one. */
    const float *given_log_prob, *given_output, *given_target, *given_advantage;

    /* Written */
    float *log_prob;                /* [T, m] */
    float *target, *advantage;      /* [T, m]; untouched where they are given */
    float *d_logits, *d_output;     /* gradients of the loss, shaped as logits and output */
    float *scratch;                 /* hr_objective_scratch() floats */
    double policy, value, entropy;  /* means over the kept steps */
    double kl, moved;               /* k3 against behaviour and against the given policy */
    double clipped, capped;         /* shares of ratios beyond `clip`, and of weights above tis_cap */
} hr_objective;

__attribute__((visibility("default"))) int64_t hr_objective_scratch(const hr_objective *o);

/* 0, or -1 where `abi` is another. */
__attribute__((visibility("default"))) int hr_objective_run(hr_objective *o);

#endif
