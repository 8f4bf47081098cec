"""Running `supervisor.py` as a user does, for tests."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHM = Path("/dev/shm")
SETTLE_SECONDS = 10  # another run may be between its last process and its last unlink
DEADLINE_SECONDS = 300  # against hanging only

CARTPOLE = """\
run: {name: toy}
sim: {name: cartpole}
producers: {count: 2, agents: 16}
rollout: {horizon: 16}
policy: {hidden: [16]}
learner: {batch_slots: 2, minibatches: 2, epochs: 1, threads: 1}
monitor: {port: 0, interval_seconds: 0.5}
evaluate: {episodes: 8, worlds: 8, seconds: 60}
watch: {enabled: false}
"""


def command(*arguments, root=ROOT):
    return [sys.executable, str(root / "supervisor.py"), *arguments]


def supervise(folder, *arguments, root=ROOT, prefix=(), **options):
    """Runs the supervisor to its end in `folder`, which holds run.yaml; returns the completed process."""
    return subprocess.run(
        [*prefix, *command(*arguments, root=root)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )


def segments():
    """Names of our user's segments in shared memory."""
    return {path.name for path in SHM.glob(f"headrace-{os.getuid()}-*")}


def left_since(before):
    """New segments that no process has open: another run on this machine holds its own."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        left = segments() - before
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                maps = (process / "maps").read_text()
                links = {os.readlink(link) for link in (process / "fd").iterdir()}
                left -= {name for name in left if f"{SHM}/{name}" in maps or f"{SHM}/{name}" in links}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)
