"""Segments that runs have in shared memory: `python -m ringbuf ls|clean [--json] [--foreign]`.

    ls      lists those of this user's runs, with the run's directory and whether it lives
    clean   removes those of runs that are gone. Exit code 1 if some had to stay that are not a live run's
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ringbuf import stale
from ringbuf.segments import SHM_DIRECTORY

EXIT_STAYED = 1


def facts(run: stale.Run) -> list[dict[str, object]]:
    """A run's segments for `--json`."""
    rest = {"directory": run.directory, "owner": run.owner, "why": run.why}
    return [dataclasses.asdict(segment) | rest for segment in run.segments]


def lines(run: stale.Run) -> list[str]:
    """A run's segments for people."""
    where = run.directory or "run directory not known"
    parts = [f"    {one.name}  {one.bytes:,} bytes" for one in run.segments]
    return [f"{run.segments[0].run_id}  {run.owner}: {run.why}; {where}", *parts]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m ringbuf", description="Segments in shared memory.")
    parser.add_argument("command", choices=("ls", "clean"))
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    foreign = "clean: also those of other pid namespaces whose lock is free as seen from here"
    parser.add_argument("--foreign", action="store_true", help=foreign)
    options = parser.parse_args(arguments)
    folder = Path(SHM_DIRECTORY)
    runs = stale.runs(folder)
    if options.command == "ls":
        if options.json:
            print(json.dumps([row for run in runs for row in facts(run)], indent=1))
        else:
            print("\n".join(line for run in runs for line in lines(run)) or "no segments")
        return 0
    outcome: dict[str, list[stale.Run]] = {"removed": [], "stays": []}
    for run in runs:
        wanted = run.removable or (options.foreign and run.owner == stale.FOREIGN)
        outcome["removed" if wanted and stale.remove(folder, run) else "stays"].append(run)
    if options.json:
        rows = {word: [row for run in some for row in facts(run)] for word, some in outcome.items()}
        print(json.dumps(rows, indent=1))
    else:
        told = [f"{word}: {lines(run)[0]}" for word, some in outcome.items() for run in some]
        print("\n".join(told) or "no segments")
    return EXIT_STAYED if any(run.owner != stale.LIVE for run in outcome["stays"]) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has seen enough
    sys.exit(main(sys.argv[1:]))
