"""Archives on the command line.

    python -m consumers.archive ls PATH ...
    python -m consumers.archive verify PATH ...
    python -m consumers.archive export PATH ... --format npz|parquet|minari --out WHERE [--episodes N]

PATH: a shard, an archive, or a run's directory. Exit codes: 0; 1: something is damaged or missing, after all
that could be read; 2: usage; 69: a package is not installed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from config import exits
from consumers.archive import export, reading, shards
from consumers.archive.blocks import DATA, Damaged, Header
from consumers.archive.episodes import Reader
from consumers.archive.store import read_sums

PROBLEMS = 1


def ls(paths: Sequence[Path]) -> int:
    """A line a shard, by its blocks' headers alone."""
    code = exits.DONE
    row = "{:<28} {:>12} {:>8} {:>8} {:>7} {:>19}  {}"
    print(row.format("shard", "bytes", "blocks", "records", "ratio", "versions", "sealed"))
    for path in map(reading.now_at, paths):
        found: list[Header] = []
        try:
            facts = path.stat()
            found.extend(header for _, header, _ in reading.frames_of(path))
        except FileNotFoundError:  # the oldest of a run under way
            continue
        except Damaged as damage:
            code = _complain(damage)
        data = [header for header in found if header.kind == DATA]
        raw, packed = sum(one.raw for one in data), sum(one.compressed for one in data)
        versions = f"{min(one.oldest for one in data)}-{max(one.newest for one in data)}" if data else "-"
        sealed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts.st_mtime))
        print(row.format(
            path.name, facts.st_size, len(data), sum(one.count for one in data),
            f"{raw / packed:.2f}" if data else "-", versions,
            "being written" if path.suffix == ".open" else sealed,
        ))  # fmt: skip
    return code


def verify(paths: Sequence[Path]) -> int:
    """Decompresses and checks everything, and the sums of the folders that the shards lie in."""
    code, steps, episodes = exits.DONE, 0, 0
    for path in map(reading.now_at, paths):
        try:
            for _, record in reading.records_of(path):
                steps += int((record.columns["valid"] != 0).sum())
                episodes += len(record.episodes)
        except FileNotFoundError:  # the oldest of a run under way
            continue
        except Damaged as damage:
            code = _complain(damage)
    for folder in sorted({path.parent for path in paths}):
        for name, sha256 in read_sums(folder).items():
            path = folder / Path(name).name
            if not path.exists():
                code = _complain(f"{path}: is in {folder}/SHA256SUMS and not there")
            elif path in paths and shards.sha256_of(path) != sha256:
                code = _complain(f"{path}: its sha256 is not that of {folder}/SHA256SUMS")
    state = "damaged" if code else "good"
    print(f"{len(paths)} shards, {steps:,} steps, {episodes:,} ends of episodes: {state}")
    return code


def write(paths: Sequence[Path], kind: str, out: str, most: int | None) -> int:
    """Exports the whole episodes."""
    reader = Reader(paths)
    episodes = islice(reader.episodes(), most)
    writers: dict[str, Callable[[], tuple[int, int]]] = {
        "npz": lambda: export.npz(episodes, Path(out)),
        "parquet": lambda: export.parquet(episodes, Path(out)),
        "minari": lambda: export.minari(episodes, out),
    }
    if kind != "minari" and Path(out).exists() and any(Path(out).iterdir()):
        print(f"{out}: is not empty", file=sys.stderr)
        return exits.USAGE
    try:
        count, steps = writers[kind]()
    except export.Missing as missing:
        print(missing, file=sys.stderr)
        return exits.MISSING
    except (export.Mixed, ValueError) as error:
        return _complain(str(error))
    code = exits.DONE
    for damage in reader.damage:
        code = _complain(damage)
    print(f"{count:,} whole episodes of {steps:,} steps; {reader.broken:,} that ended were not whole")
    return code


def _count(text: str) -> int:
    """Of episodes."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found {text!r}; needs a whole number (1 or more)")
    return int(text)


def _complain(problem: Damaged | str) -> int:
    print(problem, file=sys.stderr)
    return PROBLEMS


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m consumers.archive", description="Looks into archives.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, meaning in (
        ("ls", "list the shards"), ("verify", "check every byte"), ("export", "write whole episodes"),
    ):  # fmt: skip
        command = commands.add_parser(name, help=meaning)
        command.add_argument(
            "paths", metavar="PATH", nargs="+", type=Path, help="shard, archive or run directory"
        )
        if name == "export":
            command.add_argument("--format", choices=("npz", "parquet", "minari"), required=True)
            command.add_argument("--out", required=True, help="folder, or the name of a Minari dataset")
            command.add_argument("--episodes", type=_count, help="at most so many")
    options = parser.parse_args(arguments)
    try:
        paths = reading.find(options.paths)
        if options.command == "export":
            return write(paths, options.format, options.out, options.episodes)
        return ls(paths) if options.command == "ls" else verify(paths)
    except OSError as error:
        print(error, file=sys.stderr)
        return exits.USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
