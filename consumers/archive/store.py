"""The archive of one run on disk: the shard that is written, those that are sealed, and the bounds on all of
them.

`SHA256SUMS` lists the sealed shards, in the format of sha256sum. The oldest are deleted when all together
outgrow `total_bytes`, or when they were sealed `keep_seconds` ago. Where the disk has less than `free_bytes`
left, or refuses, nothing is written until it is better: what comes meanwhile is counted and thrown away,
since the run's checkpoints need the room more.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from consumers.archive import shards
from consumers.archive.shards import Shard

SUMS = "SHA256SUMS"
RETRY_SECONDS = 10.0
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Bounds:
    """As in the run file's section `archive`."""

    shard_bytes: int
    shard_seconds: float
    total_bytes: int
    keep_seconds: float | None
    free_bytes: int
    sync_seconds: float


class Store:
    """Writes blocks. One thread's; nothing raises for what a disk does."""

    def __init__(self, folder: Path, schema: Sequence[bytes], bounds: Bounds, tell: Callable[..., None]):
        """`schema`: the block that every shard begins with. `tell(event, **facts)`: of what a person should
        know."""
        self.folder, self.bounds = folder, bounds
        self._schema, self._tell = list(schema), tell
        self._shard: Shard | None = None
        self._sealed: dict[Path, tuple[str, int, float]] = {}  # sha256, bytes, unix time of its end
        self._number = 0
        self._retry = self._synced = 0.0
        self.halted = False
        self.errors = self.deleted = 0
        self._ready = self._does(self._take_up)

    # Starting

    def _take_up(self) -> None:
        """Goes on in what earlier recorders left."""
        if self._shard is not None:  # of an attempt at this that failed
            self._shard.abandon()
            self._shard = None
        self._sealed.clear()
        self.folder.mkdir(exist_ok=True)
        known = read_sums(self.folder)
        for path in shards.find(self.folder):
            self._number = max(self._number, (shards.number_of(path) or 0) + 1)
            if path.suffix == ".open":
                self._seal_shard()
                self._shard = Shard.recover(path)
            else:
                facts = path.stat()
                sha256 = known.get(path.name) or shards.sha256_of(path)
                self._sealed[path] = sha256, facts.st_size, facts.st_mtime
        if self._shard is not None and self._shard.schema != b"".join(self._schema):
            self._seal_shard()
        self._write_sums()
        self._delete_old()

    # Writing

    def write(self, block: Sequence[bytes]) -> bool:
        """Appends a block; False: it is lost."""
        now = time.monotonic()
        if self.halted and now < self._retry:
            return False
        size = sum(map(len, block))
        self._ready = self._ready or self._does(self._take_up)
        written = self._ready and self._roomy(size) and self._does(lambda: self._append(block, size))
        if written and self.halted:
            self.halted = False
            self._tell("archive goes on")
        return written

    def _roomy(self, size: int) -> bool:
        try:
            disk = os.statvfs(self.folder)
        except OSError as error:
            self._trouble(error)
            return False
        free = disk.f_bavail * disk.f_frsize
        if free < self.bounds.free_bytes + size:
            self._halt(f"{free} bytes are free, and archive.free_bytes is {self.bounds.free_bytes}")
            return False
        return True

    def _append(self, block: Sequence[bytes], size: int) -> None:
        if (
            self._shard is not None
            and self._shard.bytes + size > self.bounds.shard_bytes
            and self._shard.blocks > 1
        ):
            self._close_shard()
        if self._shard is None:
            self.folder.mkdir(exist_ok=True)
            self._shard = Shard(shards.path_of(self.folder, self._number, "open"), self._schema)
            self._number += 1
        self._shard.append(block)
        self._delete_old()

    def tick(self) -> None:
        """What is due by the clock; to be called about once a second."""
        now = time.monotonic()
        if self._shard is not None and now - self._shard.opened > self.bounds.shard_seconds:
            self._does(self._close_shard)
        if self._shard is not None and now - self._synced > self.bounds.sync_seconds:
            self._synced = now
            self._does(self._shard.sync)
        self._does(self._delete_old)

    def close(self) -> None:
        """Seals the shard."""
        if self._shard is not None:
            self._does(self._close_shard)

    def _close_shard(self) -> None:
        self._seal_shard()
        self._write_sums()
        self._delete_old()

    def _seal_shard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is None:
            return
        try:
            path, sha256 = shard.seal()
        except OSError:
            shard.abandon()  # whole blocks without a seek table
            self._ready = False  # it is taken up again before the next block
            raise
        self._sealed[path] = sha256, shard.bytes, time.time()

    # Bounds

    @property
    def bytes(self) -> int:
        """Of all shards."""
        return sum(size for _, size, _ in self._sealed.values()) + (self._shard.bytes if self._shard else 0)

    @property
    def shards(self) -> int:
        return len(self._sealed) + (self._shard is not None)

    def _delete_old(self) -> None:
        """The oldest, until the rest is within its bounds."""
        bounds, total, gone = self.bounds, self.bytes, []
        for path, (_, size, ended) in self._sealed.items():
            aged = bounds.keep_seconds is not None and time.time() - ended > bounds.keep_seconds
            if not aged and total <= bounds.total_bytes:
                break
            gone.append(path)
            total -= size
        for path in gone:
            path.unlink(missing_ok=True)
            del self._sealed[path]
            self.deleted += 1
        if gone:
            self._write_sums()

    def _write_sums(self) -> None:
        new = self.folder / f".{SUMS}.new"
        lines = "".join(f"{sha256}  {path.name}\n" for path, (sha256, _, _) in self._sealed.items())
        with open(new, "w") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / SUMS)

    # Trouble

    def _does(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except OSError as error:
            self._trouble(error)
            return False
        return True

    def _trouble(self, error: OSError) -> None:
        self.errors += 1
        if error.errno not in FULL and self._shard is not None:  # what became of this file is anybody's guess
            self._shard.abandon()
            self._shard, self._ready = None, False
        self._halt((error.strerror or str(error)).lower())

    def _halt(self, why: str) -> None:
        """Nothing is written for a while. Told once, until it goes on."""
        self._retry = time.monotonic() + RETRY_SECONDS
        if not self.halted:
            self.halted = True
            self._tell("archive halted", message=why)


def read_sums(folder: Path) -> dict[str, str]:
    """{name: sha256} of what the list has; {} where there is none."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: sha256 for sha256, _, name in (line.partition("  ") for line in lines) if len(sha256) == 64}
