"""What a study says of each arm, in words with their evidence.

Three questions are asked of every lagged arm beside the study's own contrasts, all about the area under the
learning curve: does it differ from the arm without correction at the same lag; does it differ from itself at
lag 0; is it equal to itself at lag 0 within a margin, so that this lag is nearly free. Each question is one
family of tests for Holm's correction, over all tasks, arms and lags. What the seeds do not decide is called
not decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stress.contrasts import LEAST_PAIRS, Contrast, judge, settle_together, signed
from stress.records import UNCONTROLLED, Arm, Cell, Records
from stress.statistics import RESAMPLES

METRIC = "area"
NEAR_FREE_MARGIN = 0.05  # where the study names none


@dataclass
class Verdict:
    """Of one arm on one task, over its lags."""

    name: str
    """As records.name has it."""
    task: str
    correction: str
    lags: list[int]
    near_free_up_to: int | None = None
    """The largest lag up to which every one that was run is shown to be nearly free."""
    helps_at: list[int] = field(default_factory=list)
    """Lags at which it is shown to be better than the arm without correction."""
    hurts_at: list[int] = field(default_factory=list)
    costs_at: list[int] = field(default_factory=list)
    """Lags at which it is shown to be worse than itself at lag 0."""
    collapsed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By lag: runs that collapsed or failed, of how many; lags without one are not in it."""
    thrown_out: int = 0
    words: str = ""
    contrasts: list[Contrast] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        facts = {**vars(self), "contrasts": [contrast.report() for contrast in self.contrasts]}
        return facts | {"collapsed": {str(lag): counts for lag, counts in self.collapsed.items()}}


def verdicts(records: Records, *, resamples: int = RESAMPLES) -> list[Verdict]:
    """Of every arm that was run with deterministic lag."""
    margin = near_free_margin(records)
    families: dict[tuple[Any, ...], dict[int, Arm]] = {}
    for arm in records.arms:
        if arm.mode == "lagged" and arm.purpose == "main":
            families.setdefault((*_group(arm), records.apart(arm)), {})[arm.lag] = arm
    found: list[Verdict] = []
    asked: dict[str, list[Contrast]] = {"control": [], "cost": [], "free": []}
    for (*group, _), arms in families.items():
        one = next(iter(arms.values()))
        verdict = Verdict(records.name(one), one.task, one.correction, sorted(arms))
        verdict.thrown_out = sum(_group(cell.arm) == tuple(group) for cell, _ in records.thrown_out)
        base = _base(records, arms[min(arms)])
        for lag in verdict.lags:
            cells = records.arms[arms[lag]]
            _count_collapses(verdict, lag, cells)
            if lag == 0:
                continue
            for question, other, kind in (
                ("control", _control(records, arms[lag]), "difference"),
                ("cost", base, "difference"),
                ("free", base, "equivalence"),
            ):
                if other is None or other == arms[lag]:
                    continue
                contrast = Contrast(
                    question, kind, METRIC, f"{verdict.name} at lag {lag}",
                    f"{records.name(other)} at lag {other.lag}",
                    margin if kind == "equivalence" else None, lag,
                )  # fmt: skip
                judge(contrast, cells, records.arms[other], resamples=resamples, alone=False)
                verdict.contrasts.append(contrast)
                asked[question].append(contrast)
        found.append(verdict)
    for contrasts in asked.values():
        settle_together(contrasts)
    for verdict in found:
        _conclude(verdict, margin)
    return found


def near_free_margin(records: Records) -> float:
    """The margin of the study's own equivalence contrasts of the area, the strictest of them."""
    margins = [
        float(given["margin"])
        for given in records.study.get("primary") or ()
        if given["kind"] == "equivalence" and given.get("metric") == METRIC and given.get("margin")
    ]
    return min(margins, default=NEAR_FREE_MARGIN)


def _group(arm: Arm) -> tuple[Any, ...]:
    """What one verdict is about, but for the learning rate."""
    return arm.task, arm.correction, arm.epochs, arm.learners


def _control(records: Records, arm: Arm) -> Arm | None:
    """The arm without correction that is like it in all else."""
    return None if arm.correction == UNCONTROLLED else _like(records, arm, correction=UNCONTROLLED)


def _base(records: Records, arm: Arm) -> Arm | None:
    """The arm at lag 0: of its own correction, else without one, else the only one there is."""
    own = _like(records, arm, lag=0) or _like(records, arm, lag=0, correction=UNCONTROLLED)
    if own is not None:
        return own
    others = [
        a for a in records.arms
        if a.mode == "lagged" and a.lag == 0
        and (a.task, a.epochs, a.learners, a.purpose) == (arm.task, arm.epochs, arm.learners, arm.purpose)
    ]  # fmt: skip
    return others[0] if len(others) == 1 else None


def _like(records: Records, arm: Arm, **changes: Any) -> Arm | None:
    """The arm that differs in nothing but the changes, and perhaps in a learning rate that was tuned."""
    wanted = arm._replace(**changes)
    if wanted in records.arms:
        return wanted
    others = [a for a in records.arms if a._replace(learning_rate=arm.learning_rate) == wanted]
    return others[0] if len(others) == 1 else None


def _count_collapses(verdict: Verdict, lag: int, cells: Sequence[Cell]) -> None:
    lost = sum(cell.failed or cell.collapsed for cell in cells)
    if lost:
        verdict.collapsed[lag] = lost, len(cells)


def _conclude(verdict: Verdict, margin: float) -> None:
    by_lag: dict[str, dict[int, Contrast]] = {}
    for contrast in verdict.contrasts:
        by_lag.setdefault(contrast.name, {})[contrast.lag or 0] = contrast
    free, cost, control = (by_lag.get(name, {}) for name in ("free", "cost", "control"))
    verdict.helps_at = [lag for lag, c in control.items() if c.outcome == "better"]
    verdict.hurts_at = [lag for lag, c in control.items() if c.outcome == "worse"]
    verdict.costs_at = [lag for lag, c in cost.items() if c.outcome == "worse"]
    for lag, contrast in sorted(free.items()):
        if contrast.outcome != "equal":
            break
        verdict.near_free_up_to = lag
    verdict.words = _words(verdict, free, cost, control, margin)


def _words(
    verdict: Verdict,
    free: dict[int, Contrast],
    cost: dict[int, Contrast],
    control: dict[int, Contrast],
    margin: float,
) -> str:
    parts = []
    pairs = max((c.seeds for c in (*free.values(), *control.values())), default=0)
    if pairs == 0:
        parts.append("Nothing to compare with yet.")
    elif pairs < LEAST_PAIRS:
        parts.append(f"At most {pairs} pairs of seeds so far, which decide nothing.")
        free, control = {}, {}
    if any(c.seeds for c in free.values()):
        (start,) = {c.b for c in free.values()}
        start = start.removeprefix(
            f"{verdict.name} at "
        )  # another arm's name stays: it is no arm's own lag 0
        if verdict.near_free_up_to is not None:
            parts.append(
                f"Nearly free up to lag {verdict.near_free_up_to} (equal to {start} within ±{margin:g})."
            )
        else:
            parts.append("At no lag shown to be nearly free.")
        for word in ("worse", "better"):
            lags = [lag for lag, c in cost.items() if c.outcome == word]
            if lags:
                found = ", ".join(f"{lag} ({signed(cost[lag].estimate.estimate)})" for lag in lags)
                parts.append(f"{word.capitalize()} than {start} at lag {found}.")
        open_ = [lag for lag in free if {free[lag].outcome, cost[lag].outcome} == {"not decided"}]
        if open_:
            parts.append(f"Not decided against {start} at lag {_list(open_)}.")
    if control:
        parts.append(_against_control(verdict, control))
    if verdict.collapsed:
        lost = ", ".join(f"{n} of {of} at lag {lag}" for lag, (n, of) in verdict.collapsed.items())
        parts.append(f"Collapsed or failed: {lost}.")
    else:
        parts.append("No run collapsed or failed.")
    if verdict.thrown_out:
        parts.append(f"{verdict.thrown_out} runs were thrown out: they tell nothing.")
    return " ".join(parts)


def _against_control(verdict: Verdict, control: dict[int, Contrast]) -> str:
    parts = []
    for words, lags in (("better", verdict.helps_at), ("worse", verdict.hurts_at)):
        if lags:
            found = ", ".join(f"{lag} ({signed(control[lag].estimate.estimate)})" for lag in lags)
            parts.append(f"{words} at lag {found}")
    open_ = [lag for lag in control if lag not in verdict.helps_at + verdict.hurts_at]
    if open_:
        parts.append(f"not decided at lag {_list(open_)}")
    return f"Against no correction: {'; '.join(parts)}."


def _list(lags: Sequence[int]) -> str:
    return ", ".join(str(lag) for lag in lags)
