"""One message for many viewers: made once, written by each viewer's own thread, newest only.

A viewer that is slow misses messages and holds nobody up; one that does not read at all is given up by its
socket's time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Stream:
    """Server-sent events. `most`: viewers at a time."""

    def __init__(self, most: int):
        self._most = most
        self._changed = threading.Condition()
        self._message = b""
        self._number = 0  # of the message; counts up
        self._viewers = 0
        self._closed = False

    @property
    def viewers(self) -> int:
        return self._viewers

    def enter(self) -> bool:
        """Whether there is room for one more viewer, who leaves by `leave`."""
        with self._changed:
            if self._closed or self._viewers >= self._most:
                return False
            self._viewers += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._viewers -= 1
            self._changed.notify_all()

    def publish(self, data: bytes) -> None:
        """`data`: one line, without its end."""
        with self._changed:
            self._message = b"data: " + data + b"\n\n"
            self._number += 1
            self._changed.notify_all()

    def follow(self, write: Callable[[bytes], object]) -> None:
        """Writes the newest message whenever there is one, until the stream is closed. Raises what `write`
        does."""
        seen = self._number  # the last may be of a long time ago, when somebody looked
        while True:
            with self._changed:
                while self._number == seen and not self._closed:
                    self._changed.wait()
                message, number, closed = self._message, self._number, self._closed
            if number != seen:
                write(message)
                seen = number
            if closed:
                return

    def close(self, seconds: float) -> None:
        """Ends every viewer behind the last message, for which it waits at most so long."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._viewers, seconds)
