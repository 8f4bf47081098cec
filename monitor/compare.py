"""Runs side by side, as one HTML file: curves by steps and by the clock, where they stand, what differs.

    python -m monitor.compare runs/a runs/b ... [--output FILE] [--figures NAME,NAME,...] [--each]

Runs may be under way. Seeds of one configuration become one curve, their median with the middle half of them.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from config import exits
from monitor import charts, compared, comparison, rundir
from monitor.compared import SPEED, Run, Unusable

FIGURES = (
    "score_mean", SPEED, "lag_mean", "loss_policy", "loss_value", "loss_entropy", "entropy_ratio",
    "grad_norm", "approx_kl", "ratio_ess", "clipped_ratio", "explained_variance",
)  # fmt: skip
MOST_CURVES = charts.SHADES


def compare(paths: Sequence[Path], figures: Sequence[str] | None, *, each: bool) -> str:
    """The page. `figures`: to be drawn; None: FIGURES, as far as the runs have them. Raises Unusable."""
    wanted = FIGURES if figures is None else tuple(dict.fromkeys(figures))
    runs = [compared.read(path, wanted) for path in compared.look(paths)]
    for run in runs:
        if run.damaged:
            print(
                f"compare: {run.path / rundir.METRICS}: left out {run.damaged} damaged lines", file=sys.stderr
            )
    if figures is not None:
        _check(wanted, runs)
    groups = compared.group(runs, each=each)
    if len(groups) > MOST_CURVES:
        raise Unusable(
            f"{len(groups)} configurations; needs {MOST_CURVES} or fewer, whose curves can be told apart",
            exits.USAGE,
        )
    return comparison.page(groups, wanted)


def _check(figures: Sequence[str], runs: Sequence[Run]) -> None:
    """Whether some run has each of them. Raises Unusable."""
    known = {SPEED}.union(*(run.known for run in runs))
    for name in figures:
        if name not in known and any(run.lines for run in runs):
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean {near[0]}?" if near else "; docs/metrics.md has all of them"
            raise Unusable(f"no figure {name!r} in the lines of these runs{hint}", exits.USAGE)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m monitor.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("runs", metavar="RUN_DIR", type=Path, nargs="+", help="e.g. runs/a runs/b")
    parser.add_argument("--output", metavar="FILE", type=Path, default=Path("compare.html"),
                        help="the page; default compare.html")  # fmt: skip
    parser.add_argument("--figures", metavar="NAME,...", help="of metrics.jsonl, or steps_per_second, "
                        "instead of a selection")  # fmt: skip
    parser.add_argument("--each", action="store_true", help="a curve for every run, seeds too")
    options = parser.parse_args(arguments)
    if options.output.exists() and not options.output.is_file():  # which it would take the place of
        what = "is a directory" if options.output.is_dir() else "is no plain file"
        parser.error(f"--output {options.output}: {what}; needs a file")
    figures = None if options.figures is None else [one.strip() for one in options.figures.split(",")]
    try:
        text = compare(options.runs, figures, each=options.each)
        text = text.encode(errors="replace").decode()  # names of directories may be no text
        rundir.write_text(options.output, text)
    except Unusable as error:
        print(f"compare: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"compare: {options.output}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return exits.MISSING
    except KeyboardInterrupt:
        return exits.SIGNAL + 2
    print(options.output)
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
