"""Files of lines that a learner appends to: whole lines only, set aside when they have grown, and never worth
the training."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from config.rotate import rotate

FLUSH_SECONDS = 1.0


@contextlib.contextmanager
def though_the_disk_is_full() -> Iterator[None]:
    """Lets a line be lost rather than the training."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def append(path: Path, text: str) -> int:
    """Appends whole lines by one write, so that they stay whole beside those of other processes and after a
    kill. Returns the file's size afterwards, 0 where it could not even be begun."""
    size = 0
    with though_the_disk_is_full():
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, text.encode())
        finally:
            size = os.fstat(fd).st_size
            os.close(fd)
    return size


class Journal:
    """One file with one writer, who collects lines and writes them about once a second."""

    def __init__(self, path: Path, limit_bytes: int, files: int):
        """At `limit_bytes` the file is set aside; so many `files` are kept beside it."""
        self.limit_bytes, self.files = limit_bytes, files
        self._path = path
        self._lines: list[str] = []
        self._flushed = time.monotonic()

    def add(self, line: str) -> None:
        self._lines.append(line + "\n")
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what was collected."""
        text, self._lines, self._flushed = "".join(self._lines), [], time.monotonic()
        if text and append(self._path, text) >= self.limit_bytes:
            with though_the_disk_is_full():
                rotate(self._path, self.files)
