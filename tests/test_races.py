"""The memory orders of the ring, before gcc's race detector; a weaker order must be reported."""

import pytest
from ring_copy import compile_with, run

# An inlined memset would escape the detector; it does not know stand-alone fences, which only taps need.
FLAGS = ["-O1", "-fno-builtin", "-fsanitize=thread", "-Wno-tsan"]
WEAKER = {  # file, what stands there, what it would be
    "the commit": ("ring.c", "hr_word(s, 0, 0, HR_READY), memory_order_seq_cst",
                   "hr_word(s, 0, 0, HR_READY), memory_order_relaxed"),
    "the ack": ("learner.c", "hr_word(sequence + r->slots, 0, 0, HR_FREE), memory_order_seq_cst",
                "hr_word(sequence + r->slots, 0, 0, HR_FREE), memory_order_relaxed")}


def reported(rig, directory, change=None):
    """Races that the detector reports in some thousand turns, with `change` made to a copy of the ring."""
    program = compile_with(directory, "race", FLAGS, change)
    made = rig(slots=3)
    fds = [made.control.fd, made.ring.fd]
    done = run(program, *fds, 3000, pass_fds=fds)
    assert done.returncode in (0, 66), done.stderr  # 66: the detector's
    return done.stderr.count("WARNING: ThreadSanitizer: data race")


# Copying weights that may be overtaken is a race that is meant: what was overtaken is not used.
MEANT = "race:hr_weights_copy\nrace:hr_weights_publish\n"


def test_nothing_races_with_everybody_at_work(rig, tmp_path):
    """Producer, learner and supervisor with bells, weights, credit and slots that are set aside."""
    program = compile_with(tmp_path, "sanitized", FLAGS)
    (tmp_path / "meant").write_text(MEANT)
    made = rig(slots=3, horizon=2, worlds=2, obs_shape=(8,))
    fds = [made.control.fd, made.ring.fd, made.channel.fd]
    done = run(program, "threads", *fds, 1500, pass_fds=fds,
               environment={"TSAN_OPTIONS": f"suppressions={tmp_path / 'meant'}"})
    assert "data race" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_nothing_races(rig, tmp_path):
    assert reported(rig, tmp_path) == 0


@pytest.mark.parametrize("change", WEAKER.values(), ids=list(WEAKER))
def test_a_race_is_reported_with_a_weaker_order_of(rig, tmp_path, change):
    assert reported(rig, tmp_path, change) > 0
