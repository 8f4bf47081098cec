/* Runs one operation on a ring in a child and stops it after a given number of machine instructions.
 *
 *     stepper CONTROL_FD RING_FD WEIGHTS_FD OPERATION SEQUENCE
 *
 * Reads one number of instructions a line from standard input and answers "stopped", or "done" if the
 * operation had ended by then. After "stopped" it reads "kill" (SIGKILL) or "go" (run to the end) and answers
 * "done" when the child is reaped. */
#include "ringbuf/channel.h"
#include "ringbuf/learner.h"
#include "ringbuf/serving.h"
#include "ringbuf/state.h"
#include "ringbuf/sweep.h"
#include "ringbuf/tap.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static char error[512];
static int ring_fd;

static void need(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "stepper: %s %s\n", what, error);
        _exit(1);
    }
}

static void operate(const char *operation, hr_ring *ring, hr_weights *weights, uint64_t sequence)
{
    if (strcmp(operation, "produce") == 0) {
        need(hr_ring_announce(ring, weights) != HR_NONE, "announce");
        need(hr_ring_claim(ring, 3) == 0, "claim");
        memset(hr_ring_field(ring, HR_OBS), (int)(ring->sequence % 251), ring->plan.field[HR_OBS].bytes);
        hr_ring_commit(ring, &(hr_facts){.valid_steps = 16});
    } else if (strcmp(operation, "announce") == 0) {
        need(hr_ring_announce(ring, weights) != HR_NONE, "announce");
    } else if (strcmp(operation, "give_up") == 0) {
        need(hr_ring_announce(ring, weights) != HR_NONE, "announce");
        need(hr_ring_claim(ring, 3) == 0, "claim");
        hr_ring_abort(ring);
    } else if (strcmp(operation, "skip") == 0) {
        hr_ring_skip(ring);
    } else if (strcmp(operation, "consume") == 0) {
        need(hr_ring_lease(ring, sequence) == HR_LEASE_GOOD, "lease");
        need(hr_ring_ack(ring, sequence, HR_CONSUMED) == 0, "ack");
    } else if (strcmp(operation, "drop") == 0) {
        need(hr_ring_drop(ring, sequence, HR_ROLLBACK) == 0, "drop");
    } else if (strcmp(operation, "grant") == 0) {
        hr_ring_grant(ring, 1);
    } else if (strcmp(operation, "train") == 0) { /* `sequence` and the next: lease, publish version 1, ack */
        const hr_list_entry list[2] = {{.sequence = sequence}, {.sequence = sequence + 1}};
        static float values[8];
        for (uint64_t s = sequence; s < sequence + 2; s++)
            need(hr_ring_lease(ring, s) == HR_LEASE_GOOD, "lease");
        for (int i = 0; i < 8; i++)
            values[i] = 1;
        hr_weights_publish(weights, 1, values, "snapshot", 8, list, 2, 0);
        for (uint64_t s = sequence; s < sequence + 2; s++)
            need(hr_ring_ack(ring, s, HR_CONSUMED) == 0, "ack");
    } else if (strcmp(operation, "examine") == 0) {
        need(hr_ring_lease(ring, sequence) == HR_LEASE_GOOD, "lease");
        need(hr_ring_examined(ring, sequence) == 0, "examined");
    } else if (strcmp(operation, "read") == 0) {
        static float copy[8];
        need(hr_weights_copy(weights, hr_weights_published(weights), copy) == 1, "copy");
    } else if (strcmp(operation, "lower_granted") == 0) {
        need(hr_ring_lower_granted(ring) == 1, "lower");
    } else if (strcmp(operation, "set_owner") == 0) {
        hr_ring_set_owner(ring, sequence);
    } else if (strcmp(operation, "sweep") == 0) { /* sequence is on the list of the published version */
        hr_sweep_producer(ring);
        hr_sweep_learner(ring, HR_NONE, 0, &sequence, 1);
        hr_ring_lower_granted(ring);
    } else if (strcmp(operation, "free_bad") == 0) {
        need(hr_ring_free_bad(ring, sequence) == 0, "free");
    } else if (strcmp(operation, "request") == 0) {
        hr_state_request(ring, sequence);
    } else if (strcmp(operation, "save") == 0) { /* a state that is `sequence` all over */
        char *area = hr_state_begin(ring);
        memset(area + sizeof(hr_state_head), (int)sequence, ring->plan.state_bytes - sizeof(hr_state_head));
        hr_state_done(ring, sequence, 0);
    } else if (strcmp(operation, "load") == 0) { /* the same, from a copy of what lies there */
        static char copy[1 << 16];
        need(hr_state_copy(ring, copy), "copy");
        ((hr_state_head *)copy)->step = sequence;
        memset(copy + sizeof(hr_state_head), (int)sequence, ring->plan.state_bytes - sizeof(hr_state_head));
        need(hr_state_load(ring, ring_fd, copy, ring->plan.state_bytes, error, sizeof error) == 0, "load");
    } else if (strcmp(operation, "ask") == 0) {
        need(hr_serving_ask(ring, 0, &(hr_question){.life = sequence, .sequence = 7, .t = 1, .step = 9}) > 0, "ask");
    } else if (strcmp(operation, "answer") == 0) {
        hr_question q;
        need(hr_serving_question(ring, 0, sequence, &q), "question");
        hr_serving_answer(ring, 0, q.number, 0);
    } else if (strcmp(operation, "tap") == 0) { /* in pieces; what is accepted must be what produce writes */
        static uint8_t copy[1 << 12], records[1 << 12];
        const uint64_t bytes = ring->plan.field[HR_OBS].bytes;
        hr_piece piece[64];
        size_t pieces = 0;
        hr_tap_facts facts;
        for (uint64_t at = 0; at < bytes && pieces < 64; at += 8)
            piece[pieces++] = (hr_piece){.offset = ring->plan.field[HR_OBS].offset + at, .bytes = 8};
        if (hr_ring_tap_copy(ring, sequence, piece, pieces, copy, records, &facts))
            for (size_t i = 0; i < pieces * 8; i++)
                need(copy[i] == (uint8_t)(sequence % 251), "torn copy accepted");
    } else if (strcmp(operation, "sweep_server") == 0) {
        hr_sweep_server(ring);
    } else if (strcmp(operation, "publish") == 0) {
        static float values[8];
        for (int i = 0; i < 8; i++)
            values[i] = (float)sequence;
        hr_weights_publish(weights, sequence, values, "snapshot", 8,
                           &(hr_list_entry){.sequence = sequence, .epoch = 1, .ring = 0}, 1, 0);
    } else {
        need(0, "operation");
    }
}

static void child(char **argv)
{
    const char *operation = argv[4];
    hr_control control;
    hr_ring ring;
    hr_weights weights;
    const int produces = strcmp(operation, "produce") == 0 || strcmp(operation, "announce") == 0 ||
                         strcmp(operation, "give_up") == 0 || strcmp(operation, "skip") == 0 ||
                         strcmp(operation, "save") == 0 || strcmp(operation, "ask") == 0;
    const int learns = strcmp(operation, "train") == 0 || strcmp(operation, "examine") == 0 ||
                       strcmp(operation, "consume") == 0 || strcmp(operation, "drop") == 0 ||
                       strcmp(operation, "grant") == 0 || strcmp(operation, "load") == 0 ||
                       strcmp(operation, "request") == 0;
    ring_fd = atoi(argv[2]);
    need(hr_control_attach(&control, atoi(argv[1]), produces ? 100 : 1, error, sizeof error) == 0, "control");
    need((produces
              ? hr_ring_attach(&ring, ring_fd, &control, error, sizeof error)
              : hr_ring_map(&ring, ring_fd, &control,
                            learns                               ? HR_ACCESS_LEARNER
                            : strcmp(operation, "answer") == 0 ? HR_ACCESS_SERVER
                            : strcmp(operation, "tap") == 0    ? HR_ACCESS_TAP
                                                                 : HR_ACCESS_SUPERVISOR,
                            error, sizeof error)) == 0,
         "ring");
    need(hr_weights_map(&weights, atoi(argv[3]), HR_WEIGHTS_WRITE, error, sizeof error) == 0, "weights");
    need(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0, "ptrace");
    raise(SIGSTOP);
    operate(operation, &ring, &weights, (uint64_t)strtoull(argv[5], NULL, 10));
    _exit(0);
}

/* 1 if the child ended by itself before `instructions` were over; else it is stopped there. */
static int ended_before(pid_t pid, long instructions)
{
    int status;
    for (long i = 0;; i++) {
        need(waitpid(pid, &status, 0) == pid, "wait");
        if (i == 0 && WIFSTOPPED(status))
            need(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL) == 0, "options");
        if (WIFEXITED(status)) {
            need(WEXITSTATUS(status) == 0, "operation failed");
            return 1;
        }
        if (i == instructions)
            return 0;
        need(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0, "step");
    }
}

static void end(pid_t pid, int by_force)
{
    int status;
    if (by_force) {
        kill(pid, SIGKILL);
        need(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "reap");
    } else {
        need(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0, "go");
        need(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "finish");
    }
}

int main(int argc, char **argv)
{
    long instructions;
    char order[8];
    need(argc == 6, "usage");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* and the child with us: PTRACE_O_EXITKILL */
    while (scanf("%ld", &instructions) == 1) {
        pid_t pid = fork();
        if (pid == 0)
            child(argv);
        need(pid > 0, "fork");
        if (!ended_before(pid, instructions)) {
            puts("stopped");
            fflush(stdout);
            need(scanf("%7s", order) == 1, "order");
            end(pid, strcmp(order, "kill") == 0);
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
