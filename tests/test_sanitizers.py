"""The ring's C core under the address and undefined-behaviour sanitizers; planted faults must be found.

Threads at work on one mapping, and attaching to headers in which random bytes are damaged.
"""

import os

import pytest
from ring_copy import compile_with, run

FLAGS = ["-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
         "-pthread"]
FOUND = ("AddressSanitizer", "LeakSanitizer", "runtime error")
PLANTED = {  # what the program does, file, what stands there, what it would be
    "a copy that is too short": (
        "attach", "segment.c", "fixed = malloc(head->fixed_bytes)", "fixed = malloc(head->fixed_bytes - 8)"),
    "a header longer than the file": (
        "attach", "segment.c", "head->fixed_bytes + sizeof(hr_segment) > file_bytes", "0"),
    "offsets that nobody has checked": (
        "attach", "weights.c", "memcmp(&copy, &expected, sizeof copy) != 0", "0"),
    "a shift out of range": (
        "threads", "layout.h", "(uint64_t)(owner & 0xfffu) << 4 ",
        "(uint64_t)((int)(owner & 0xfffu) << 28) "),
    "a copy that is not given back": (
        "attach", "words.c", "hr_ring_fixed f = *copy;\n    free(copy);", "hr_ring_fixed f = *copy;"),
}
TURNS = {"threads": 2000, "attach": 400}


def sanitized(rig, directory, what, change=None):
    program = compile_with(directory, "sanitized", FLAGS, change)
    made = rig(slots=3, horizon=2, worlds=2, obs_shape=(8,))
    fds = [made.control.fd, made.ring.fd, made.channel.fd]
    turns = TURNS[what] * int(os.environ.get("HEADRACE_SANITIZER_FACTOR", "1"))
    return run(program, what, *fds, turns, pass_fds=fds)


@pytest.mark.parametrize("what", list(TURNS))
def test_no_byte_is_touched_that_should_not_be(rig, tmp_path, what):
    done = sanitized(rig, tmp_path, what)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("fault", PLANTED.values(), ids=list(PLANTED))
def test_it_is_found(rig, tmp_path, fault):
    what, *change = fault
    done = sanitized(rig, tmp_path, what, change)
    assert done.returncode != 0
    assert any(name in done.stderr for name in FOUND), done.stderr
