"""A process with torch imported that forks learners, so that a test can kill dozens of them; and the ways in
which such a learner kills itself at a chosen point.

    python zygote.py PID

reads orders, one JSON line each, and answers with lines: {"pid"} when a learner runs, {"pid", "code"} when
one ended (negative: by a signal). PID is the process whose descriptors learners get under the same numbers.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Zygote:
    """The test's side."""

    def __init__(self):
        command = [sys.executable, __file__, str(os.getpid())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._process.pid
        self._lines: deque[dict] = deque()
        self._arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            with self._arrived:
                self._lines.append(json.loads(line))
                self._arrived.notify()
        with self._arrived:
            self._arrived.notify()

    def spawn(self, arguments, fds, faults=""):
        """Forks a learner that has `faults`: "publish:3 ..." the third time that it comes to that point."""
        order = {"arguments": list(map(str, arguments)), "fds": list(fds), "faults": faults}
        self._process.stdin.write(json.dumps(order) + "\n")

    def event(self, seconds):
        """The next answer, None: none came in time."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._lines or self._process.poll() is not None, seconds)
            assert self._process.poll() is None, "the zygote is dead"
            return self._lines.popleft() if self._lines else None

    def close(self):
        self._process.kill()  # whoever it has forked dies with it
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner, name, times):
    """Replaces a function: at its `times`-th call it dies."""
    function, left = getattr(owner, name), [times]

    def replaced(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            die()
        return function(*args, **kwargs)

    setattr(owner, name, replaced)


def after(owner, name, times):
    """The same at the end of its `times`-th call."""
    function, left = getattr(owner, name), [times]

    def replaced(*args, **kwargs):
        function(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            die()

    setattr(owner, name, replaced)


def arm(fault, times):
    """Makes this process die where the fault says."""
    import torch

    from consumers import batch, books, checkpoint, intake, lineage, shelf, update

    class Fatal(list):
        """Leases of which all but one are given back."""

        def pop(self):
            if len(self) == 1:
                die()
            return super().pop()

    if fault == "publish":  # everything trained, nothing shown
        before(lineage.Lineage, "publish", times)
    elif fault == "published":  # shown, and neither counted nor given back
        before(books.Books, "post", times)
    elif fault == "counted":  # before the first ack
        after(lineage.Lineage, "publish", times)
    elif fault == "ack":  # between the acks of one batch
        lease, left = intake.Intake.lease, [times]

        def leased(self, version):
            leases = lease(self, version)
            left[0] -= leases is not None
            return Fatal(leases) if leases is not None and left[0] == 0 else leases

        intake.Intake.lease = leased
    elif fault == "train":  # with the whole batch in its hands
        before(update.Update, "train", times)
    elif fault == "poison":  # whenever it looks at the rewards of a certain slot
        init = batch.Batch.__init__

        def looking(self, slots, **options):
            if any((slot.ring, slot.sequence) == (0, times) for slot in slots):
                die()
            init(self, slots, **options)

        batch.Batch.__init__ = looking
    elif fault == "examine":
        before(update.Update, "examine", times)
    elif fault == "saving":  # a checkpoint half written
        save, left = torch.save, [2 * times]

        def half(value, path):
            save(value, path)
            left[0] -= 1
            if left[0] == 0:
                die()

        torch.save = checkpoint.torch.save = half
    elif fault == "saved":  # whole, and not yet linked
        before(shelf, "_link", times)
    elif fault == "rolling_back":  # before anything shows
        before(intake.Intake, "abandon", times)
    elif fault == "rolled_back":  # the version is there, the producers do not know where batches begin
        abandon, left = intake.Intake.abandon, [times]

        def abandoned(self, version):
            abandon(self, version)
            left[0] -= 1
            if left[0] == 0:
                self.announce = die

        intake.Intake.abandon = abandoned
    elif fault == "nan":  # every step from the `times`-th batch on
        train, left = update.Update.train, [times]

        def spoiled(self, given, version, steps):
            left[0] -= 1
            if left[0] <= 0:
                given.rewards.fill_(torch.nan)
            return train(self, given, version, steps)

        update.Update.train = spoiled
    else:
        raise ValueError(fault)


def run_learner(order, owner):
    for fd in order["fds"]:
        opened = os.open(f"/proc/{owner}/fd/{fd}", os.O_RDWR)
        os.dup2(opened, fd)
        if opened != fd:
            os.close(opened)
    from consumers import learner

    for fault in order["faults"].split():
        name, _, times = fault.partition(":")
        arm(name, int(times))
    return learner.main(order["arguments"])


def main(owner):
    import torch
    import torch.distributed

    from consumers import learner  # noqa: F401 - to have it

    weight = torch.nn.Parameter(torch.zeros(1))
    torch.optim.AdamW([weight], fused=True)  # the first optimizer imports as much again as torch itself

    answer = sys.stdout.fileno()
    children = set()
    buffer = b""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([0, read_end], [], [])
        if read_end in ready:
            os.read(read_end, 64)
            for pid in list(children):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    children.remove(pid)
                    code = os.waitstatus_to_exitcode(status)
                    os.write(answer, (json.dumps({"pid": pid, "code": code}) + "\n").encode())
        if 0 in ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    code = 70
                    try:
                        code = run_learner(json.loads(line), owner)
                    finally:
                        os._exit(code)
                children.add(pid)
                os.write(answer, (json.dumps({"pid": pid}) + "\n").encode())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(int(sys.argv[1]))
