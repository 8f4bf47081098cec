"""Simulators that break down: the relay of tests/data with a fault before each of its steps."""

from native import DATA, broken, compile_simulator

CRASH = "*(volatile int *)8 = 1;"
HANG = "for (volatile int forever = 1; forever;) {}"
FAIL = "return -7;"
# Whether this process is producer 1: the one that breaks down where the others do not.
UNLUCKY = """
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

static int unlucky(void) {
    static int known = -1;
    if (known < 0) {
        char line[4096];
        int fd = open("/proc/self/cmdline", O_RDONLY);
        ssize_t n = read(fd, line, sizeof line);
        close(fd);
        known = n > 0 && memmem(line, (size_t)n, "--index\\0001", 10) != NULL;
    }
    return known;
}

static void show(const relay *r, const sim_io *io) {
"""


def simulator(folder, condition, fault, place="step"):
    """A library that does `fault` in every step (or reset) where `condition` holds: C, with
    `r->now.steps`, the steps that this world has made, and `unlucky()`."""
    source = (DATA / "relay.c").read_text()
    source = broken(source, "static void show(const relay *r, const sim_io *io) {\n", UNLUCKY)
    if place == "step":
        old = "    if (++r->now.steps == r->fail_at) return -7;\n"
        source = broken(source, old, f"    r->now.steps++;\n    if ({condition}) {{ {fault} }}\n")
    else:
        begin = "static int reset(void *world, const sim_io *io) {\n    relay *r = world;\n"
        source = broken(source, begin, f"{begin}    if ({condition}) {{ {fault} }}\n")
    return compile_simulator(source, folder / "relay.so")
