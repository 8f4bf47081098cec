"""Writing to whoever watches a run and may have stopped reading: what is not taken at once is left out.

A terminal after Ctrl-S, a pager, a pipe whose reader stands still: a plain write waits until they go on, and
with it the only thread that restarts what dies and hears signals.
"""

from __future__ import annotations

import io
import os
import select
import stat
from typing import TextIO

PIECE_BYTES = 512  # POSIX's least PIPE_BUF: a pipe that is ready takes so much at once


class Outlet(io.TextIOBase):
    """Stands in for a stream with a descriptor. Raises OSError where nobody is there any more."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.encoding = stream.encoding or "utf-8"
        self._text: list[str] = []
        self._cut = False  # in the middle of a text, so that the next is to begin on a line of its own
        self._fd = _opened_anew(stream.fileno())
        self._waits = self._fd is None
        """Whether a write that finds no room would wait for it."""
        if self._fd is None:
            self._fd = stream.fileno()

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
        while left:
            try:
                left = left[self._write(left) :]
            except BlockingIOError:
                break
        if not left:
            self._cut = False
        elif len(left) < len(whole):
            self._cut = True

    def _write(self, data: memoryview) -> int:
        assert self._fd is not None
        if not self._waits:
            return os.write(self._fd, data)
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        if not poll.poll(0):
            raise BlockingIOError
        return os.write(self._fd, data[:PIECE_BYTES])


def _opened_anew(fd: int) -> int | None:
    """A descriptor whose writes do not wait, and which shares that with nobody. None for what cannot be
    opened anew: a socket, a terminal of another user. A file never makes a writer wait for a reader."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.dup(fd)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
