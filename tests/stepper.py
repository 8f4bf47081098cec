"""One operation stopped after any number of machine instructions, to be killed there or to go on.

The operations are those of data/stepper.c, which is compiled with the ring's own sources.
"""

import functools
import mmap
import subprocess
import tempfile
from pathlib import Path

import ringbuf

ROOT = Path(ringbuf.__file__).parent.parent


@functools.cache
def program():
    """(its directory, the program), bound when it starts: the dynamic linker's steps are not among ours."""
    directory = tempfile.TemporaryDirectory(prefix="stepper")
    out = Path(directory.name) / "stepper"
    core = [path for path in (ROOT / "ringbuf").glob("*.c") if not path.name.startswith("_")]
    flags = ["-std=gnu11", "-O3", "-march=native", "-D_GNU_SOURCE", "-Wl,-z,now", f"-I{ROOT}"]
    subprocess.run(["gcc", *flags, "-o", out, ROOT / "tests" / "data" / "stepper.c", *core], check=True)
    return directory, out


class Stepper:
    """Stops one operation after 0, `every`, 2 `every` ... instructions, each time from the same memory."""

    def __init__(self, every, run, operation, sequence=0):
        self.every, self.stopped = every, False
        descriptors = [run.control.fd, run.ring.fd, run.channel.fd]
        self.memory = [mmap.mmap(fd, 0) for fd in descriptors]
        self.saved = [bytes(memory) for memory in self.memory]
        self.process = subprocess.Popen(
            [program()[1], *map(str, descriptors), operation, str(sequence)], pass_fds=descriptors,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def _tell(self, order):
        print(order, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer in ("stopped\n", "done\n"), "the stepper died"
        self.stopped = answer == "stopped\n"

    def stops(self):
        """Yields at each stop, and a last time after the operation has ended by itself."""
        instructions, more = 0, True
        while more:
            for memory, saved in zip(self.memory, self.saved):
                memory[:] = saved
            self._tell(instructions)
            more = self.stopped
            yield
            instructions += self.every

    def kills(self):
        """Yields after each death, and a last time after the operation has ended by itself."""
        for _ in self.stops():
            if self.stopped:
                self._tell("kill")
            yield

    def go(self):
        """Lets the operation go to its end."""
        if self.stopped:
            self._tell("go")
