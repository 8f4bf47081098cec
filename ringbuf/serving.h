/* Asking an inference server for actions, and answering: what lies between a producer and its server.
 *
 * A producer has one slot under way and one or two groups of agents. For each group it asks about one step at a time,
 * and the server writes action, log-probability, version and, at step 0, the recurrent state into the slot itself,
 * then says so:
 *
 *     life = hr_serving_life(ring);                          // of the server, when the slot begins
 *     number = hr_serving_ask(ring, group, &question);       // V0, V1, V3
 *     while (hr_serving_look(ring, group, number, life) == HR_UNANSWERED)
 *         hr_serving_wait(ring, group, number, life, slice); // V4, V5
 *
 * A question names the life of the server that it is put to. A server answers those of its own life only; after its
 * death the sweep raises the life, and every producer gives up the slot it is writing. */
#ifndef HEADRACE_SERVING_H
#define HEADRACE_SERVING_H

#include <stddef.h>
#include <stdint.h>

#include "ring.h"

typedef struct hr_question {
    uint64_t number;   /* filled in by hr_serving_ask() */
    uint64_t life;     /* of the server */
    uint64_t epoch;    /* of the ring: deaths of its producers */
    uint64_t sequence; /* of the slot under way */
    uint64_t t;        /* step in the slot */
    uint64_t step;     /* of the agents, and the noise key: with agent and head they give the action noise */
    uint64_t noise_key;
    uint64_t version;  /* async: weights at least as new; exact modes: exactly these */
    uint64_t carried;  /* 1: a server that does not know the agents yet begins with the state that lies in the ring */
} hr_question;

typedef enum hr_answered {
    HR_UNANSWERED = 0,
    HR_ANSWERED,
    HR_REFUSED,     /* the exact version asked for has left the weights channel */
    HR_SERVER_DIED, /* and will not answer */
    HR_STOP_WAITING /* async: the run is to stop */
} hr_answered;

/* What a served ring has behind its slots, in bytes from serving_offset; all 0 where no server acts. */
typedef struct hr_serving_layout {
    uint64_t reset_before; /* [B] uint8, the producer's: zero the agent's recurrent state before this step */
    uint64_t carry;        /* [B, S] float32, the server's: the state behind the last step of a slot */
    uint64_t bytes;
} hr_serving_layout;

hr_serving_layout hr_serving_layout_of(const hr_plan *plan);
uint8_t *hr_serving_reset_before(const hr_ring *r);
float *hr_serving_carry(const hr_ring *r);

/* The worlds of a group: *count from *first on, as many in each. */
void hr_serving_worlds(const hr_plan *plan, uint32_t group, uint32_t *first, uint32_t *count);

/* ---- producer ---- */

/* Deaths of the server so far. (V6) */
uint64_t hr_serving_life(const hr_ring *r);

/* Puts a question about a group whose last one was answered, or was put by a producer that is dead; wakes the server.
 * Returns its number. */
uint64_t hr_serving_ask(hr_ring *r, uint32_t group, const hr_question *q);

hr_answered hr_serving_look(const hr_ring *r, uint32_t group, uint64_t number, uint64_t life);

/* Sleeps on the ring's bell until hr_serving_look() may say more, or `slice_ns` pass. 1, or 0 if the slice passed
 * without a ring. */
int hr_serving_wait(hr_ring *r, uint32_t group, uint64_t number, uint64_t life, uint64_t slice_ns);

/* ---- server ---- */

/* The group's question, if there is a whole one that was put to this `life` and is not answered. 1, or 0. (V1, V2) */
int hr_serving_question(const hr_ring *r, uint32_t group, uint64_t life, hr_question *q);

/* The answer is in the slot, or there is none (`refused`); wakes the producer. (V2, V3) */
void hr_serving_answer(hr_ring *r, uint32_t group, uint64_t number, int refused);

/* ---- supervisor ---- */

/* The ring's server is dead and reaped: producers learn of it, and the next server has another life. May be
 * repeated. (V6) */
void hr_sweep_server(hr_ring *r);

#endif
