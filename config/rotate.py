"""Setting a file aside that has grown: NAME becomes NAME.1, what was NAME.1 becomes NAME.2, and so on.

By renaming, so that nothing is lost: who has the file open writes on into NAME.1 until it opens NAME anew,
which the supervisor asks its children for by SIGUSR1.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from pathlib import Path


def rotate(path: Path, files: int) -> None:
    """Sets `path` aside and keeps `files` files beside it, of which NAME.1 is the newest. Nothing where there
    is none. Raises OSError where the directory refuses."""
    if not path.exists():
        return
    for number in range(files, 0, -1):
        newer = path if number == 1 else set_aside(path, number - 1)
        with contextlib.suppress(FileNotFoundError):
            newer.replace(set_aside(path, number))


def set_aside(path: Path, number: int) -> Path:
    """Where the file lies that was set aside `number` times, 1 the last time."""
    return path.with_name(f"{path.name}.{number}")


def reopen_when_told(log: Path) -> None:
    """Opens `log` for stdout and stderr now, since it may have been set aside while this process was not
    ready to be told, and whenever SIGUSR1 comes."""
    signal.signal(signal.SIGUSR1, lambda *_: reopen(log))
    # Python gives signals back to the kernel's defaults before it ends, and this one's would kill.
    atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
    reopen(log)


def reopen(log: Path) -> None:
    """Makes stdout and stderr go to the file of that name."""
    try:
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:  # then they go on where they went
        return
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)
