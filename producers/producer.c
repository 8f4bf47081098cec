/* The producer executable: one process, one core, one ring.
 *
 *   producer --abi
 *   producer --describe SIM [name=value ...]      SIM: a name in sims/, or a path of a .so
 *   producer --role producer --index I --run NAME --dir DIR --sim SIM.so --control FD --weights FD --ring FD
 *            --process N [--core N] [--parent PID]
 *
 * SIGUSR1: opens DIR/logs/producer-I.log again as standard output and error. A stop comes through the control block.
 * Exit codes: 0 done or told to stop, 2 usage, 64 a bad parameter, 69 a resource is missing, 70 internal. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../ringbuf/ring.h"
#include "crash.h"
#include "describe.h"
#include "pin.h"
#include "rollout.h"
#include "simlib.h"

enum { EXIT_USAGE = 2, EXIT_CONFIG = 64, EXIT_MISSING = 69, EXIT_INTERNAL = 70 };

typedef struct options {
    const char *sim, *index, *directory; /* the last two may be absent */
    long control, weights, ring, process, core, parent;
} options;

static int fail(int code, const char *message) {
    fprintf(stderr, "producer: %s\n", message);
    return code;
}

static int usage(void) {
    return fail(EXIT_USAGE, "usage: producer --abi | --describe SIM [name=value ...] | --role producer --index I "
                            "--run NAME --dir DIR --sim SIM.so --control FD --weights FD --ring FD --process N "
                            "[--core N] [--parent PID]");
}

/* A bare name is a folder of sims/, which lies beside the folder of this executable. */
static const char *find_sim(const char *given, char *path, size_t capacity) {
    size_t length = strlen(given);
    if (strchr(given, '/') || (length > 3 && !strcmp(given + length - 3, ".so"))) return given;
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return given;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
    int written = snprintf(path, capacity, "%s/../sims/%s/%s.so", self, given, given);
    return written < 0 || (size_t)written >= capacity ? given : path;
}

static int run_describe(int n, char **arguments) {
    char error[512], path[PATH_MAX];
    const sim_api *api = simlib_load(find_sim(arguments[0], path, sizeof path), error, sizeof error);
    if (api == NULL) return fail(EXIT_MISSING, error);
    double values[SIM_MAX_PARAMS];
    simlib_defaults(api, values);
    for (int i = 1; i < n; i++) {
        char *equals = strchr(arguments[i], '='), *end;
        if (equals == NULL) return usage();
        *equals = '\0';
        double value = strtod(equals + 1, &end);
        if (end == equals + 1 || *end != '\0') return usage();
        if (simlib_set(api, values, arguments[i], value, error, sizeof error) != 0) return fail(EXIT_CONFIG, error);
    }
    if (describe(api, values) < 0) return fail(EXIT_CONFIG, "the simulator refuses these parameters");
    return 0;
}

/* A whole number of at least 0, or -1. */
static long number(const char *text) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return errno || end == text || *end != '\0' || value < 0 ? -1 : value;
}

static int parse(int n, char **arguments, options *o) {
    *o = (options){.control = -1, .weights = -1, .ring = -1, .process = -1, .core = -1, .parent = -1};
    for (int i = 0; i + 1 < n; i += 2) {
        const char *key = arguments[i], *value = arguments[i + 1];
        if (!strcmp(key, "--role") || !strcmp(key, "--run")) continue; /* for whoever reads the process list */
        const char **text = !strcmp(key, "--sim")     ? &o->sim
                            : !strcmp(key, "--index") ? &o->index
                            : !strcmp(key, "--dir")   ? &o->directory
                                                      : NULL;
        if (text != NULL) {
            *text = value;
            continue;
        }
        long *to = !strcmp(key, "--control")   ? &o->control
                   : !strcmp(key, "--weights") ? &o->weights
                   : !strcmp(key, "--ring")    ? &o->ring
                   : !strcmp(key, "--process") ? &o->process
                   : !strcmp(key, "--core")    ? &o->core
                   : !strcmp(key, "--parent")  ? &o->parent
                                               : NULL;
        if (to == NULL || (*to = number(value)) < 0) return -1;
    }
    return n % 2 || !o->sim || o->control < 0 || o->weights < 0 || o->ring < 0 || o->process < 0 ? -1 : 0;
}

/* The parameters of the plan, by name. */
static int read_params(const sim_api *api, const hr_plan *plan, double *values, char *error, size_t capacity) {
    simlib_defaults(api, values);
    for (uint32_t i = 0; i < plan->n_params; i++)
        if (simlib_set(api, values, plan->param[i].name, plan->param[i].value, error, capacity) != 0) return -1;
    return 0;
}

static int run(const options *o) {
    /* Dies with its supervisor. The signal is armed for deaths from now on; one before shows in getppid(). */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (o->parent >= 0 && getppid() != (pid_t)o->parent) return fail(EXIT_INTERNAL, "the supervisor is gone");
    /* A stop comes through the control block, so that the slot under way is given up in order. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    /* Before the first page is touched: memory comes from the node of the core that touches it first. */
    if (o->core >= 0) pin_to_core((int)o->core);

    char error[512];
    hr_control control;
    hr_ring ring;
    hr_weights weights;
    static char log[PATH_MAX];
    if (o->directory && o->index) snprintf(log, sizeof log, "%s/logs/producer-%s.log", o->directory, o->index);
    if (hr_control_attach(&control, (int)o->control, (uint32_t)o->process, error, sizeof error) != 0)
        return fail(EXIT_MISSING, error);
    crash_install(&control, log[0] != '\0' ? log : NULL);
    const sim_api *api = simlib_load(o->sim, error, sizeof error);
    if (api == NULL) return fail(EXIT_MISSING, error);
    if (hr_ring_attach(&ring, (int)o->ring, &control, error, sizeof error) != 0 ||
        hr_weights_attach(&weights, (int)o->weights, error, sizeof error) != 0)
        return fail(EXIT_MISSING, error);
    double params[SIM_MAX_PARAMS];
    if (read_params(api, &ring.plan, params, error, sizeof error) != 0) return fail(EXIT_CONFIG, error);
    return rollout_run(api, params, &control, &ring, &weights);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--abi")) return printf("%u\n", HR_ABI) < 0;
    if (argc >= 3 && !strcmp(argv[1], "--describe")) return run_describe(argc - 2, argv + 2);
    options o;
    if (argc < 2 || parse(argc - 1, argv + 1, &o) != 0) return usage();
    return run(&o);
}
