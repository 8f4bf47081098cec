"""The memory orders of the ring, before gcc's race detector; a weaker order must be reported."""

import subprocess
from pathlib import Path

import pytest

import ringbuf

ROOT = Path(ringbuf.__file__).parent.parent
RACE = ROOT / "tests" / "data" / "race.c"
WEAKER = {  # file, what stands there, what it would be
    "the commit": ("ring.c", "hr_word(s, 0, 0, HR_READY), memory_order_seq_cst",
                   "hr_word(s, 0, 0, HR_READY), memory_order_relaxed"),
    "the ack": ("learner.c", "hr_word(sequence + r->slots, 0, 0, HR_FREE), memory_order_seq_cst",
                "hr_word(sequence + r->slots, 0, 0, HR_FREE), memory_order_relaxed")}


def reported(rig, directory, change=None):
    """Races that the detector reports in some thousand turns, with `change` made to a copy of the ring."""
    copy = directory / "ringbuf"
    copy.mkdir()
    for path in (ROOT / "ringbuf").glob("*.[ch]"):
        if not path.name.startswith("_"):
            (copy / path.name).write_text(path.read_text())
    if change is not None:
        name, old, new = change
        text = (copy / name).read_text()
        assert text.count(old) == 1
        (copy / name).write_text(text.replace(old, new))
    # An inlined memset would escape the detector; it does not know stand-alone fences, which only taps need.
    flags = ["-std=gnu11", "-O1", "-g", "-fno-builtin", "-fsanitize=thread", "-Wno-tsan", "-D_GNU_SOURCE"]
    program = directory / "race"
    built = subprocess.run(["gcc", *flags, f"-I{directory}", "-o", program, RACE, *copy.glob("*.c")],
                           capture_output=True, text=True)
    if "cannot find" in built.stderr and "tsan" in built.stderr:
        pytest.skip("this gcc comes without its race detector")
    assert built.returncode == 0, built.stderr
    run = rig(slots=3)
    fds = [run.control.fd, run.ring.fd]
    # Without address randomization, which some kernels give more of than the detector can map.
    command = ["setarch", "-R", program, *map(str, fds), "3000"]
    done = subprocess.run(command, pass_fds=fds, capture_output=True, text=True)
    assert done.returncode in (0, 66), done.stderr  # 66: the detector's
    return done.stderr.count("WARNING: ThreadSanitizer: data race")


def test_nothing_races(rig, tmp_path):
    assert reported(rig, tmp_path) == 0


@pytest.mark.parametrize("change", WEAKER.values(), ids=list(WEAKER))
def test_a_race_is_reported_with_a_weaker_order_of(rig, tmp_path, change):
    assert reported(rig, tmp_path, change) > 0
