"""The shelf of a run's checkpoints: folders that appear whole or not at all, and show when they are damaged.

    checkpoints/version-000000123/    its files, their SHA256SUMS, and COMPLETE
    checkpoints/latest                leads to the newest
    checkpoints/best                  leads to the one with the highest score
    checkpoints/damaged-version-...   set aside, since its sums were wrong

A folder is written under a name of its own, flushed file by file, summed, marked, renamed, and only then
linked, so `latest` leads to a whole checkpoint after a kill at any instruction and after a loss of power.
What lies in the files is not known here (consumers/checkpoint.py). No torch: the supervisor reads it too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLICY, LEARNER, STATE = FILES = ("policy.pt", "learner.pt", "state.json")
WORLDS = "worlds-"  # one file a ring, with the ring's number
NAME = re.compile(r"version-(\d{9,})(?:-again)?")
SUMS = "SHA256SUMS"
COMPLETE = "COMPLETE"  # written last; holds the sum of SHA256SUMS
PARTIAL = ".partial-"  # what is under way or half deleted; never matches version-*
DAMAGED = "damaged-"
KEEP_DAMAGED = 2
ROOM = 2  # times the last checkpoint's size that must be free: the new one, and what else is being written


class CheckpointError(Exception):
    """A checkpoint is missing or damaged. The message is one line that names it."""


def put(checkpoints: Path, version: int, write: Callable[[Path], None], *, keep: int) -> int:
    """Shelves one checkpoint: `write` fills the folder that it is given. Links it as `latest`, the one with
    the best score as `best`, and deletes the oldest so that `keep` remain beside the best. Returns its size
    in bytes. Raises OSError where the disk refuses, or whatever `write` raises; what was there before is then
    untouched. One process at a time."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    for left in checkpoints.glob(PARTIAL + "*"):  # of a writer that died
        _delete(left)
    _require_room(checkpoints)
    partial = checkpoints / f"{PARTIAL}{_name(version)}"
    partial.mkdir()
    try:
        write(partial)
        size = _seal(partial)
        # The same version comes once more after a roll-back: then beside the one in use, which goes
        # afterwards.
        final, other = (checkpoints / (_name(version) + end) for end in ("", "-again"))
        if (checkpoints / "latest").resolve().name == final.name:
            final, other = other, final
        _delete(final)
        partial.rename(final)
    except Exception:
        _delete(partial)
        raise
    _flush(checkpoints)
    _link(checkpoints, "latest", final)
    _delete(other)
    best = _link_best(checkpoints)
    for old in versions(checkpoints)[:-keep]:
        if old not in (final, best):
            _delete(old)
    return size


def versions(checkpoints: Path) -> list[Path]:
    """The checkpoints there are, oldest version first."""
    found = ((NAME.fullmatch(path.name), path) for path in checkpoints.glob("version-*") if path.is_dir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def latest(checkpoints: Path) -> Path:
    """Where `latest` leads; the newest version where the link is missing or leads nowhere. Raises
    CheckpointError where there is none. Not verified."""
    link = checkpoints / "latest"
    if link.is_dir():
        return link.resolve()
    found = versions(checkpoints)
    if not found:
        raise CheckpointError(f"{checkpoints}: no checkpoint")
    return found[-1]


def verify(folder: Path) -> None:
    """Raises CheckpointError where a file is missing or not what was written."""
    try:
        sums = (folder / SUMS).read_bytes()
        if (folder / COMPLETE).read_text().strip() != hashlib.sha256(sums).hexdigest():
            raise CheckpointError(f"{folder / SUMS}: damaged, its SHA-256 is not the one noted in {COMPLETE}")
        noted = [line.split(maxsplit=1) for line in sums.decode().splitlines()]
        if missing := set(FILES) - {name for _, name in noted}:
            raise CheckpointError(f"{folder / min(missing)}: missing")
        for digest, name in noted:
            if _sha256(folder / name) != digest:
                raise CheckpointError(f"{folder / name}: damaged, its SHA-256 is not the one noted beside it")
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename}: missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({type(error).__name__}: {error})") from error


def newest_good(checkpoints: Path, report: Callable[[str], None] = lambda text: None) -> Path | None:
    """The newest checkpoint that is whole, its files verified; None: there is none. A damaged one is set
    aside as damaged-<name>, told to `report` in one line, and the one before is tried; the links then lead
    to what is left. Only where nobody is putting one meanwhile."""
    good = None
    for folder in reversed(versions(checkpoints)):
        try:
            verify(folder)
        except CheckpointError as error:
            report(f"{error}; set aside as {DAMAGED}{folder.name}, using the one before")
            _set_aside(folder)
        else:
            good = folder
            break
    with contextlib.suppress(OSError):  # a shelf that cannot be written can be read nevertheless
        if good is not None and (checkpoints / "latest").resolve() != good.resolve():
            _link(checkpoints, "latest", good)
        _link_best(checkpoints)
    return good


def state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint. Raises CheckpointError where it cannot be read."""
    try:
        value = json.loads((folder / STATE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / STATE}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{folder / STATE}: holds no object")
    return value


def worlds(folder: Path) -> list[Path]:
    """The files with the producers' saved states, in the order of their rings; [] where there are none."""
    return sorted(folder.glob(f"{WORLDS}*.bin"))


def worlds_name(ring: int) -> str:
    return f"{WORLDS}{ring:03d}.bin"


def size(folder: Path) -> int:
    """Bytes of a checkpoint's files."""
    return sum(file.stat().st_size for file in folder.iterdir())


def complain(text: str) -> None:
    """On stderr, a log that may lie on the same full disk."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _name(version: int) -> str:
    return f"version-{version:09d}"


def _require_room(checkpoints: Path) -> None:
    """Fails before anything is written where the disk will not hold it."""
    found = versions(checkpoints)
    facts = os.statvfs(checkpoints)
    needed, free = ROOM * size(found[-1]) if found else 0, facts.f_bavail * facts.f_frsize
    if free < needed:
        text = f"{needed} bytes wanted ({ROOM} times the last checkpoint), {free} free"
        raise OSError(errno.ENOSPC, f"no room for a checkpoint: {text}", str(checkpoints))


def _seal(folder: Path) -> int:
    """Sums, flushes and marks what a folder holds; returns its size."""
    files = sorted(folder.iterdir())
    for file in files:
        _flush(file)
    sums = "".join(f"{_sha256(file)}  {file.name}\n" for file in files)
    for name, text in ((SUMS, sums), (COMPLETE, hashlib.sha256(sums.encode()).hexdigest() + "\n")):
        (folder / name).write_text(text)
        _flush(folder / name)
    _flush(folder)
    return size(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _link(checkpoints: Path, name: str, target: Path) -> None:
    new = checkpoints / f"{PARTIAL}{name}"
    new.unlink(missing_ok=True)
    new.symlink_to(target.name)
    new.replace(checkpoints / name)
    _flush(checkpoints)


def _link_best(checkpoints: Path) -> Path | None:
    """Links the checkpoint with the highest mean score, the newest of equals; returns it."""
    scores = []
    for folder in versions(checkpoints):
        with contextlib.suppress(CheckpointError, AttributeError):
            mean = state(folder).get("score", {}).get("mean")
            if isinstance(mean, int | float):
                scores.append((mean, folder))
    best = max(scores, default=(0.0, None))[1]
    link = checkpoints / "best"
    if best is None:
        link.unlink(missing_ok=True)
    elif not (link.is_symlink() and os.readlink(link) == best.name):
        _link(checkpoints, "best", best)
    return best


def _set_aside(folder: Path) -> None:
    """Keeps the last damaged ones for whoever wants to know what happened to them."""
    aside = folder.with_name(DAMAGED + folder.name)
    _delete(aside)
    with contextlib.suppress(OSError):
        folder.rename(aside)
    kept = sorted(folder.parent.glob(DAMAGED + "*"), key=lambda path: path.stat().st_ctime_ns)
    for old in kept[:-KEEP_DAMAGED]:
        _delete(old)


def _delete(path: Path) -> None:
    """Deletes what no longer counts. What cannot be deleted stays: it must not cost the run its
    checkpoints."""
    try:
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            hidden = path.parent / f"{PARTIAL}old-{path.name}"
            if not path.name.startswith(PARTIAL):  # first out of sight, so that no half of it is ever seen
                path.rename(hidden)
                path = hidden
            shutil.rmtree(path)
    except OSError as error:
        complain(f"{path}: not deleted: {error}")
