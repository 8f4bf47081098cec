"""Setting a file aside that has grown: NAME becomes NAME.1, what was NAME.1 becomes NAME.2, and so on.

By renaming, so that nothing is lost: who has the file open writes on into NAME.1 until it opens NAME anew.
"""

from __future__ import annotations

import contextlib
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
