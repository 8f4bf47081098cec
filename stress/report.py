"""The report of a study: all its numbers as report.json, and report.html, a page that needs nothing else.

python -m stress.report FOLDER                  writes both beside the cells of a study, whatever is finished
python -m stress.report FOLDER --packed TARGET  packs the cells into another folder, and writes them there
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config import exits
from stress import alarms, contrasts, packing, realised, summary, verdict
from stress.contrasts import LEAST_PAIRS, TIME, Contrast, judge, settle_together, signed
from stress.page import page
from stress.records import Arm, Cell, Records
from stress.statistics import RESAMPLES

OUTCOMES = ("better", "equal", "faster", "worse", "slower", "not decided", "no data")
AUDITS = ("label", "ratio", "target", "precision")


def write(folder: Path, *, resamples: int = RESAMPLES) -> Path:
    """Writes report.json and report.html beside the cells of a study, whatever of it is finished; returns the
    page's path. Raises FileNotFoundError where there is no study."""
    found = analyse(Records.load(folder), resamples=resamples)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(part)}" for name, part in found.items())
    for name, text in (("report.json", f"{{\n{lines}\n}}\n"), ("report.html", page(found))):
        new = folder / f"{name}.new"
        new.write_text(text)
        new.replace(folder / name)
    return folder / "report.html"


def analyse(records: Records, *, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Everything that the report says, as JSON can hold it: what is not finite is null."""
    primary = contrasts.primary(records, resamples=resamples)
    verdicts = verdict.verdicts(records, resamples=resamples)
    laid = realised.lay(records)
    clock = _wall_clock(records, resamples)
    found = {
        "study": {key: value for key, value in records.study.items() if key != "cells"},
        "state": _state(records),
        "primary": [contrast.report() for contrast in primary],
        "verdicts": [one.report() for one in verdicts],
        "arms": summary.summarize(records, resamples=resamples),
        "tuned": summary.tuned(records),
        "realised": laid,
        "wall_clock": [contrast.report() for contrast in clock],
        "alarms": alarms.table(records),
        "audits": _audits(records),
        "thrown_out": [_cell(cell) | {"why": why} for cell, why in records.thrown_out],
        "failures": [_cell(cell) | {"why": cell.record.get("why")} for cell in records.cells if cell.failed],
        "cells": [_cell(cell) | _figures(cell) for cell in records.cells],
        "profile_thresholds": list(summary.PROFILE),
        "near_free_margin": verdict.near_free_margin(records),
        "resamples": resamples,
    }
    found["headline"] = headline(records, primary, verdicts, laid, clock)
    cleaned = finite(found)
    assert isinstance(cleaned, dict)
    return cleaned


def headline(
    records: Records,
    primary: Sequence[Contrast],
    verdicts: Sequence[verdict.Verdict],
    laid: Sequence[Mapping[str, Any]],
    clock: Sequence[Contrast],
) -> list[str]:
    """What the study says, in a few sentences."""
    said = []
    if records.missing:
        said.append(f"This is not the whole study: {records.missing} planned cells are not finished.")
    if records.thrown_out:
        said.append(
            f"{len(records.thrown_out)} runs were thrown out, since they tell nothing: see the gates."
        )
    said += _by_outcome("Named beforehand", primary)
    for task in records.tasks:
        if sentence := _of_task(task, verdicts):
            said.append(sentence)
    said += _by_outcome("By the clock, against synchronous training", clock)
    for outcome in ("lag explains it", "something else", "not decided"):
        arms = [f"{one['correction']} on {one['task']}" for one in laid if one["outcome"] == outcome]
        if arms:
            words = {
                "lag explains it": "The lag they really had explains how these asynchronous runs did",
                "something else": "Something else than lag made these asynchronous runs what they are",
                "not decided": "Whether lag explains these asynchronous runs is not decided",
            }[outcome]
            said.append(f"{words}: {', '.join(sorted(set(arms)))}.")
    return said


def _by_outcome(which: str, contrasts: Sequence[Contrast]) -> list[str]:
    """Contrasts by what came of them."""
    said = []
    for outcome in OUTCOMES:
        names = [f"{c.name} ({_number(c)})" for c in contrasts if c.outcome == outcome]
        if names and outcome == "no data":
            said.append(f"{which}, without any pair of runs so far: {len(names)}.")
        elif names:
            said.append(f"{which}, {outcome}: {'; '.join(names)}.")
    return said


def _number(contrast: Contrast) -> str:
    estimate = contrast.estimate.estimate
    if contrast.kind != "ratio":
        return signed(estimate)
    return f"× {estimate:.2f}" if 0 < estimate < math.inf else "not both ever got there"


def _of_task(task: str, verdicts: Sequence[verdict.Verdict]) -> str:
    mine = [
        one
        for one in verdicts
        if one.task == task and any(contrast.seeds >= LEAST_PAIRS for contrast in one.contrasts)
    ]
    parts = []
    for one in mine:
        if one.correction == verdict.UNCONTROLLED and max(one.lags) > 0:
            free = (
                "no lag shown to be nearly free"
                if one.near_free_up_to is None
                else (f"nearly free up to lag {one.near_free_up_to}")
            )
            cost = f", worse than lag 0 at {_lags(one.costs_at)}" if one.costs_at else ""
            parts.append(f"without correction{one.name.removeprefix(one.correction)} {free}{cost}")
    for words, lags in (("helping", "helps_at"), ("doing harm", "hurts_at")):
        arms = [f"{one.name} (lag {_lags(getattr(one, lags))})" for one in mine if getattr(one, lags)]
        if arms:
            parts.append(f"shown as {words}: {', '.join(arms)}")
    undecided = [
        one.name for one in mine
        if one.correction != verdict.UNCONTROLLED and not one.helps_at and not one.hurts_at
        and any(c.name == "control" and c.seeds >= LEAST_PAIRS for c in one.contrasts)
    ]  # fmt: skip
    if undecided:
        parts.append(f"neither shown to help nor to harm: {', '.join(undecided)}")
    return f"On {task}: {'; '.join(parts)}." if parts else ""


def _lags(lags: Sequence[int]) -> str:
    return ", ".join(map(str, lags))


def _wall_clock(records: Records, resamples: int) -> list[Contrast]:
    """Every arm that was run for the wall clock against the synchronous one of its task and correction."""
    found = []
    for arm, cells in records.arms.items():
        if arm.purpose != "wall" or arm.mode == "sync":
            continue
        if (base := _synchronous(records, arm)) is not None:
            name = f"{_name(records, arm)} on {arm.task}"
            contrast = Contrast(name, "ratio", TIME, name, _name(records, base))
            found.append(judge(contrast, cells, records.arms[base], resamples=resamples, alone=False))
    settle_together(found)
    return found


def _synchronous(records: Records, arm: Arm) -> Arm | None:
    """What an arm is compared with by the clock: of several the one of its learning rate."""
    found = [
        base
        for base in records.arms
        if (base.mode, base.purpose) == ("sync", "wall")
        and (base.task, base.correction, base.epochs) == (arm.task, arm.correction, arm.epochs)
    ]
    same = [base for base in found if base.learning_rate == arm.learning_rate]
    return same[0] if same else found[0] if len(found) == 1 else None


def _name(records: Records, arm: Arm) -> str:
    lag = {"async": f" with lag ≤ {arm.lag}", "lagged": f" with lag {arm.lag}"}.get(arm.mode, "")
    learners = f", {arm.learners} learners" if arm.learners > 1 else ""
    rate = "" if records.apart(arm) is None else f", rate {arm.learning_rate:g}"
    return f"{arm.correction} {arm.mode}{lag}{learners}{rate}"


def _state(records: Records) -> dict[str, Any]:
    seeds = sorted({cell.seed for cell in records.cells})
    return {
        "finished": len(records.cells),
        "failed": sum(cell.failed for cell in records.cells),
        "tuning": len(records.tuning),
        "thrown_out": len(records.thrown_out),
        "missing": records.missing,
        "left_out": records.left_out,
        "foreign": records.foreign,
        "hours": records.hours,
        "seeds": seeds,
        "codes": sorted({str(cell.record.get("code")) for cell in records.cells}),
        "single_task": len(records.tasks) == 1,
    }


def _audits(records: Records) -> dict[str, Any]:
    """Alarms in all runs that count, and for how long these ran."""
    healthy = [cell for cell in (*records.cells, *records.tuning) if not cell.failed]
    counts = {
        name: sum(int((cell.record.get("audits") or {}).get(name) or 0) for cell in healthy)
        for name in AUDITS
    }
    alarmed = [
        _cell(cell) | {"audits": cell.record["audits"]}
        for cell in healthy
        if any((cell.record.get("audits") or {}).values())
    ]
    return {
        "runs": len(healthy),
        "hours": sum(cell.seconds for cell in healthy) / 3600,
        "updates": sum(int(cell.record.get("versions") or 0) for cell in healthy),
        "alarms": counts,
        "runs_with_alarms": alarmed,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {"id": cell.record["id"], **cell.arm._asdict(), "seed": cell.seed}


def _figures(cell: Cell) -> dict[str, Any]:
    steps, reached = cell.reached("steps")
    seconds, _ = cell.reached("seconds")
    return {
        "failed": cell.failed, "final": cell.final, "area": cell.area, "best": cell.best,
        "evaluated": cell.evaluated, "collapsed": cell.collapsed,
        "fell_at": cell.fell_at, "drawdown": cell.drawdown,
        "reached": reached, "steps_to_threshold": steps if reached else None,
        "seconds_to_threshold": seconds if reached else None, "lag_mean": cell.lag_mean,
        "seconds": cell.seconds, "steps_per_second": cell.record.get("steps_per_second"),
    }  # fmt: skip


def finite(value: Any) -> Any:
    """With None in place of what JSON cannot hold, and no more digits than anybody reads."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.report", description="Writes a study's report.")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="of the study")
    parser.add_argument(
        "--packed", metavar="TARGET", type=Path, help="folder for packed cells and the report"
    )
    options = parser.parse_args(arguments)
    folder = options.folder
    try:
        if options.packed is not None:
            folder = packing.pack(folder, options.packed).parent
        print(write(folder))
    except OSError as error:
        print(f"stress.report: {folder}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return exits.MISSING
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
