"""Runs a study: `python -m stress FILE.yaml [section.key=value ...]`.

    --list          prints the cells and what each came to, runs none
    --report-only   writes the report of what is finished, runs none
    --only WHICH    lagged: cells that no load of the machine changes; wall: those that need it for themselves
    --workers N     learners at once, where the wall clock does not count
    --plain         lines instead of a live picture

Finished cells are never run again: started once more, it goes on with the others. Exit codes: 0 done, 2
usage, 64 bad study file, 69 a needed resource is missing, 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import config
from config import exits
from monitor.display import Lasting
from producers import cores, native
from producers.prepare import Missing
from stress import progress, report, store
from stress.cells import Cell, Matrix
from stress.reading import read
from stress.runner import ONLY, Runner
from stress.store import Store


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stress", description="Runs a study.", allow_abbrev=False)
    parser.add_argument("study", metavar="FILE.yaml", help="the study file")
    parser.add_argument("overrides", metavar="section.key=value", nargs="*", help="instead of the file's")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print the cells, run none")
    what.add_argument("--report-only", action="store_true", help="write the report of what is finished")
    parser.add_argument("--only", choices=sorted(ONLY), help="the cells that need the machine, or the others")
    parser.add_argument("--workers", type=_positive, help="learners at once; default: study.workers")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live picture")
    return parser.parse_intermixed_args(arguments)


def start(options: argparse.Namespace) -> int:
    """Does what the command line says; returns the exit code."""
    file = read(options.study, options.overrides)
    try:
        native.check_abi()
    except native.NativeError as error:
        raise Missing(str(error)) from None
    machine = cores.read_machine()
    matrix = Matrix(file, machine)
    kept = Store(file.folder)
    wanted = options.workers or file.study.study.workers
    workers = machine.capacity if wanted == "auto" else int(wanted)
    if options.list:
        print("\n".join(listed(matrix, kept)))
        return exits.DONE
    if options.report_only:
        if not (file.folder / store.RESOLVED).exists():
            raise store.Unavailable(f"{file.folder} holds no study yet; without --report-only it is begun")
        print(f"report: {report.write(file.folder)}")
        return exits.DONE
    with kept.held():
        display = progress.make(plain=options.plain)
        try:
            return run(matrix, kept, display, workers=workers, only=options.only)
        finally:
            display.close()


def run(matrix: Matrix, kept: Store, display: Lasting, *, workers: int, only: str | None) -> int:
    """Runs what is not finished, and writes the report. Raises store.Unavailable, Missing."""
    runner = Runner(matrix, kept, display, workers=workers, only=only)
    left = runner.left
    alone = sum(cell.kind.exclusive for cell in left)
    display.say(
        f"{matrix.file.study.study.name}: {len(runner.planned)} cells, {len(left)} of them to be run "
        f"({alone} with the machine to themselves, the others {workers} at once), by the file's word in "
        f"{progress.clock(runner.estimate(left))}; in {kept.folder}"
    )
    foreign = sum(
        cell.id in kept.cells and kept.cells[cell.id].get("code") != runner.code for cell in runner.planned
    )
    if foreign:
        display.say(
            f"warning: {foreign} finished cells were made by other code than this; to have them run "
            f"anew, delete their files in {kept.folder / store.CELLS}"
        )
    began = time.monotonic()
    try:
        code = runner.run()
    finally:
        runner.plan()
        display.say(summary(runner, time.monotonic() - began))
    if code == exits.DONE:
        display.say(f"report: {report.write(kept.folder)}")
    return code


def summary(runner: Runner, seconds: float) -> str:
    """One line that says how far the study is."""
    kept, left = runner.store, runner.left
    done = [kept.cells[cell.id] for cell in runner.planned if cell.id in kept.cells]
    failed = sum(record["status"] == "failed" for record in done)
    text = f"{len(done)} of {len(runner.planned)} cells are finished ({failed} failed)"
    text += f", after {progress.clock(seconds)}"
    if not left:
        return text
    others = sum(not runner.wanted(cell) for cell in left)
    text += f"; {len(left)} are left: the same command goes on with them"
    return f"{text}, without --only also with {others} of them" if others else text


def listed(matrix: Matrix, kept: Store) -> list[str]:
    """A line a cell, and a last one for all."""
    cells = [*matrix.tuning, *matrix.main(matrix.choose(kept.cells))]
    lines = [
        f"{cell.id if cell.learning_rate is not None else '-':16}  {state(kept, cell):6}  "
        f"{cell.kind.purpose:6}  {cell}"
        for cell in cells
    ]
    done = sum(cell.id in kept.cells for cell in cells)
    return [*lines, f"{len(cells)} cells, {done} finished"]


def state(kept: Store, cell: Cell) -> str:
    return str(kept.cells[cell.id]["status"]) if cell.id in kept.cells else "-"


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        return start(options)
    except config.ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return exits.CONFIG
    except config.Unreadable as error:
        print(f"stress: {error}", file=sys.stderr)
        return exits.USAGE
    except (Missing, store.Unavailable) as error:
        print(f"stress: {error}", file=sys.stderr)
        return exits.MISSING
    except KeyboardInterrupt:  # before there was anything to end in order
        return exits.SIGNAL + 2


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
