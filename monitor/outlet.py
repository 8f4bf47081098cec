"""Writing to whoever watches a run and may have stopped reading: what is not taken at once is left out.

A terminal after Ctrl-S, a pager, a pipe whose reader stands still: a plain write waits until they go on, and
with it the only thread that restarts what dies and hears signals.
"""

from __future__ import annotations

import io
import os
import select
import stat
import time
from typing import TextIO

PATIENCE_SECONDS = 0.2  # with a reader that has kept up until now
PIECE_BYTES = 512  # POSIX's least PIPE_BUF: a pipe that is ready takes so much at once


class Outlet(io.TextIOBase):
    """Stands in for a stream with a descriptor. Raises OSError where nobody is there any more."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.encoding = stream.encoding or "utf-8"
        self._text: list[str] = []
        self._cut = False  # in the middle of a text, so that the next is to begin on a line of its own
        self._stuck = False  # nothing of the last text was taken
        anew = _opened_anew(stream.fileno())
        self._waits = anew is None
        """Whether a write that finds no room would wait for it."""
        self._fd = stream.fileno() if anew is None else anew

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Nothing goes out before `flush`."""
        self._text.append(text)
        return len(text)

    def flush(self) -> None:
        text, self._text = "".join(self._text), []
        data = text.encode(self.encoding, "replace")
        left = whole = memoryview(b"\n" + data if self._cut and data else data)
        until = time.monotonic() + (0.0 if self._stuck else PATIENCE_SECONDS)
        while left and self._has_room(until):
            try:
                left = left[os.write(self._fd, left[:PIECE_BYTES] if self._waits else left) :]
            except BlockingIOError:  # less room than was said
                break
        self._stuck = 0 < len(left) == len(whole)
        if len(left) < len(whole):
            self._cut = len(left) > 0

    def _has_room(self, until: float) -> bool:
        """Waits for it as long as one waits for a reader who is there but busy."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))


def _opened_anew(fd: int) -> int | None:
    """A descriptor whose writes do not wait, and which shares that with nobody. None for what cannot be
    opened anew: a socket, a terminal of another user. A file never makes a writer wait for a reader."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.dup(fd)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
