/* How a producer ends when its simulator is at fault.
 *
 * The handler calls nothing that may allocate or lock: the fault may have come from inside malloc. */
#include "crash.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../ringbuf/layout.h"

enum { STACK_BYTES = 128 * 1024, FRAMES = 64, LINE_BYTES = 512 };

static hr_control *block;
static const rollout *watched;
static const char *log_path;
static unsigned char stack[STACK_BYTES];

static const struct {
    int number;
    const char *name;
} fatal[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};

/* One line, put together without stdio. */
typedef struct line {
    char text[LINE_BYTES];
    size_t length;
} line;

static void put(line *l, const char *text) {
    while (*text != '\0' && l->length < sizeof l->text) l->text[l->length++] = *text++;
}

static void put_number(line *l, uint64_t number) {
    char digits[21];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    put(l, digits + at);
}

static void emit(const line *l) {
    ssize_t written = write(STDERR_FILENO, l->text, l->length);
    (void)written; /* there is nowhere to say that it failed */
}

static uint64_t phase_now(void) {
    return atomic_load_explicit(&hr_control_process(block, block->self)->phase, memory_order_relaxed); /* N1 */
}

static uint64_t seed_of(const rollout *r, int32_t world) {
    return sim_world_seed(r->plan->run_seed, r->plan->first_world + (uint64_t)world, r->restart, HOST_TRAIN);
}

/* `crash_signal` last: who sees it sees the others, since the process is dead or about to be. */
static void count(int number, uint64_t phase, const rollout *r, int32_t world, uint64_t step) {
    hr_control_set(block, HR_P_crash_phase, phase);
    hr_control_set(block, HR_P_crash_world, world < 0 ? 0 : r->plan->first_world + (uint64_t)world + 1);
    hr_control_set(block, HR_P_crash_seed, world < 0 ? 0 : seed_of(r, world));
    hr_control_set(block, HR_P_crash_step, step);
    hr_control_set(block, HR_P_crash_signal, (uint64_t)number);
}

static void put_place(line *l, const rollout *r, int32_t world, uint64_t step) {
    put(l, "world ");
    put_number(l, r->plan->first_world + (uint64_t)world);
    put(l, ", seed ");
    put_number(l, seed_of(r, world));
    put(l, ", step ");
    put_number(l, step);
}

static void on_fatal(int number) {
    const rollout *r = watched;
    int32_t world = r == NULL ? -1 : r->host.inside;
    uint64_t phase = phase_now(), step = r == NULL ? 0 : r->step;
    line l = {.length = 0};
    put(&l, "producer: ");
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        if (fatal[i].number == number) put(&l, fatal[i].name);
    put(&l, " in phase ");
    put(&l, phase <= HR_PHASE_STOPPING ? hr_phase_names[phase] : "?");
    if (world >= 0) {
        put(&l, ", in simulator ");
        put(&l, r->plan->sim);
        put(&l, ": ");
        put_place(&l, r, world, step);
    } else if (r != NULL) {
        put(&l, ", outside the simulator, step ");
        put_number(&l, step);
    }
    put(&l, "\n");
    emit(&l);
    count(number, phase, r, world, step);
    void *frame[FRAMES];
    backtrace_symbols_fd(frame, backtrace(frame, FRAMES), STDERR_FILENO);
    /* The handler is reset (SA_RESETHAND), so this ends the process once we return. */
    raise(number);
}

static void on_reopen(int number) {
    (void)number;
    int saved_errno = errno;
    int fd = log_path == NULL ? -1 : open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) { /* else better the old file than none */
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        close(fd);
    }
    errno = saved_errno;
}

void crash_install(hr_control *control, const char *log) {
    block = control;
    log_path = log;
    for (uint32_t counter = HR_P_crash_signal; counter <= HR_P_crash_step; counter++) hr_control_set(control, counter, 0);
    void *frame[1];
    backtrace(frame, 1); /* the first call loads a library and allocates, which a handler may not */
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL); /* for a stack that has run over */
    struct sigaction action = {.sa_handler = on_fatal, .sa_flags = SA_ONSTACK | (int)SA_RESETHAND};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) sigaction(fatal[i].number, &action, NULL);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_reopen, .sa_flags = SA_RESTART}, NULL);
}

void crash_watch(const rollout *r) { watched = r; }

void crash_found(const rollout *r, int32_t world, uint64_t step, const char *what, ...) {
    char text[LINE_BYTES];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    line l = {.length = 0};
    put(&l, "producer: simulator ");
    put(&l, r->plan->sim);
    put(&l, " ");
    put(&l, text);
    if (world >= 0) {
        put(&l, ": ");
        put_place(&l, r, world, step);
    }
    put(&l, "\n");
    emit(&l);
    count(HR_NO_SIGNAL, phase_now(), r, world, step);
}
