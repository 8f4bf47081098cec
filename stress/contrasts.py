"""Comparisons of two sets of cells, paired by seed: what differs, what is equal, what is faster, and what the
seeds do not decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stress.inference import (
    LEVEL,
    equivalence,
    holm,
    paired_t,
    seeds_to_decide,
    seeds_to_equate,
    sign_flips,
    swaps,
)
from stress.records import Arm, Cell, Records
from stress.statistics import (
    NOTHING,
    RESAMPLES,
    Interval,
    bootstrap,
    bootstrap_pair,
    mean,
    ratio_of_times,
)

SIGNS_FROM = 6  # pairs: of fewer all signs together cannot reach the level
LEAST_PAIRS = 5  # fewer decide nothing, however small their p: it rests on a spread that they hardly know
METRICS = {
    "final": "final score",
    "area": "area under the learning curve",
    "time_to_threshold": "time to the threshold",
}
TIME = "time_to_threshold"


@dataclass
class Contrast:
    """A comparison and what came of it. Differences are a - b, in units of a solved task's score; ratios are
    a / b."""

    name: str
    kind: str
    """difference, equivalence or ratio."""
    metric: str
    a: str
    b: str
    """In words."""
    margin: float | None = None
    lag: int | None = None
    """Of a, in contrasts that are asked at every lag."""
    where: str = ""
    """What both have in common."""
    outcome: str = "no data"
    """better, worse, equal, faster, slower, not decided, no data."""
    sentence: str = ""
    seeds: int = 0
    """Pairs."""
    unpaired: int = 0
    """Seeds that only one of the two has."""
    failed: tuple[int, int] = (0, 0)
    """Of the pairs, cells of a and b that failed; for times also those that never reached the threshold."""
    left_out: int = 0
    """Cells of either that were thrown out."""
    estimate: Interval = NOTHING
    """Mean paired difference, or the ratio of expected times."""
    means: tuple[float, float] = (math.nan, math.nan)
    improvement: Interval = NOTHING
    """How often a seed of a beats one of b."""
    p: float = 1.0
    """Of no difference, Student's t on the pairs; of times the p that decides."""
    p_signs: float = 1.0
    """The same, by flipping signs; of times by swapping the runs of a pair."""
    p_equivalence: float = 1.0
    """Of a difference of the margin or more."""
    adjusted: float | None = None
    """The p that decides, after Holm's correction; None: a primary contrast."""
    wanted: int | None = None
    """About how many seeds would decide."""
    shared: bool = False
    """Whether a time was measured while other work ran on the machine."""

    def report(self) -> dict[str, Any]:
        return asdict(self)


def primary(records: Records, *, resamples: int = RESAMPLES) -> list[Contrast]:
    """The study's own, in its order."""
    return [
        of_selectors(
            records, given["name"], given["kind"], given["a"], given["b"], given.get("metric") or "final",
            given.get("margin"), resamples=resamples,
        )
        for given in records.study.get("primary") or ()
    ]  # fmt: skip


def of_selectors(
    records: Records,
    name: str,
    kind: str,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    metric: str,
    margin: float | None,
    *,
    resamples: int,
) -> Contrast:
    """The contrast of the cells that two selectors mean. Of times only runs for the wall clock count, of
    scores only the others, unless the selector says which or there is only one kind."""
    shared = {
        key: value for key, value in a.items() if key not in ("correction", "lag") and b.get(key) == value
    }
    own = [{key: value for key, value in side.items() if key not in shared} for side in (a, b)]
    found = Contrast(name, kind, metric, _words(own[0]), _words(own[1]), margin)
    found.where = _words(shared) if shared else ""
    purpose = "wall" if metric == TIME and kind == "ratio" else "main"
    sides = [_selected(records, selector, purpose) for selector in (a, b)]
    found.left_out = sum(
        any(_means(selector, cell.arm) for selector in (a, b)) for cell, _ in records.thrown_out
    )
    for side, cells in zip("ab", sides):
        if twice := _doubled(cells):
            found.sentence = f"{found.name}: {side} means several cells of {twice}; it is not evaluated."
            return found
    return judge(found, *sides, resamples=resamples)


def judge(
    contrast: Contrast, a: Sequence[Cell], b: Sequence[Cell], *, resamples: int, alone: bool = True
) -> Contrast:
    """Fills the contrast in from the cells of both sides, paired by task and seed. `alone`: it is decided at
    once, without regard to how many others there are."""
    pairs, contrast.unpaired = _paired(a, b)
    contrast.seeds = len({seed for _, seed in pairs})
    if pairs and contrast.kind == "ratio":
        _times(contrast, list(pairs.values()), resamples)
    elif pairs:
        _scores(contrast, pairs, resamples)
    if alone:
        settle(contrast)
    return contrast


def settle(contrast: Contrast, adjusted: float | None = None) -> None:
    """Decides, by the contrast's own p values or by the one `adjusted` for many tests, and puts it into
    words."""
    contrast.adjusted = adjusted
    if contrast.seeds:
        contrast.outcome = "not decided"
    if contrast.seeds >= LEAST_PAIRS:
        contrast.outcome = {"ratio": _outcome_of_times, "equivalence": _equal, "difference": _different}[
            contrast.kind
        ](contrast)
    contrast.sentence = sentence(contrast)


def settle_together(contrasts: Sequence[Contrast]) -> None:
    """Decides one family of contrasts by Holm's correction. Those of too few pairs are not in it."""
    enough = [contrast for contrast in contrasts if contrast.seeds >= LEAST_PAIRS]
    p = [contrast.p_equivalence if contrast.kind == "equivalence" else contrast.p for contrast in enough]
    for contrast, adjusted in zip(enough, holm(p)):
        settle(contrast, adjusted)
    for contrast in contrasts:
        if contrast.seeds < LEAST_PAIRS:
            settle(contrast)


def _scores(contrast: Contrast, pairs: Mapping[tuple[str, int], tuple[Cell, Cell]], resamples: int) -> None:
    """Tasks weigh alike: a seed's difference is the mean of those of its tasks."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for (_, seed), (one, other) in sorted(pairs.items()):
        by_seed.setdefault(seed, []).append((score(one, contrast.metric), score(other, contrast.metric)))
    tasks = {task for task, _ in pairs}
    by_seed = {seed: rows for seed, rows in by_seed.items() if len(rows) == len(tasks)}
    contrast.seeds = len(by_seed)
    if not by_seed:
        return
    x, y = np.moveaxis(np.array([rows for _, rows in sorted(by_seed.items())]), 2, 0)
    d = (x - y).mean(1)
    contrast.means = float(np.sort(x, 0).mean()), float(np.sort(y, 0).mean())
    contrast.estimate = bootstrap(x - y, mean, resamples=resamples)
    contrast.improvement = bootstrap_pair(x, y, resamples=min(resamples, 2000))
    lost = [[cell.failed for cell in pair] for pair in pairs.values()]
    contrast.failed = sum(one for one, _ in lost), sum(other for _, other in lost)
    contrast.p, contrast.p_signs = paired_t(d).p, sign_flips(d)
    if contrast.kind == "equivalence":
        assert contrast.margin is not None
        contrast.p_equivalence = equivalence(d, contrast.margin)
        contrast.wanted = seeds_to_equate(d, contrast.margin)
    else:
        contrast.wanted = seeds_to_decide(d)
    if contrast.wanted is not None:
        contrast.wanted = max(contrast.wanted, LEAST_PAIRS)


def score(cell: Cell, metric: str) -> float:
    """What a contrast of scores compares; of times the steps to the threshold as a share of the budget, all
    of it where it was never reached."""
    if metric == TIME:
        steps, reached = cell.reached("steps")
        return min(1.0, steps / cell.task.steps) if reached else 1.0
    return cell.final if metric == "final" else cell.area


def _times(contrast: Contrast, pairs: list[tuple[Cell, Cell]], resamples: int) -> None:
    """A run that never got there is charged all its time, one that failed the longest of any."""
    longest = max(cell.seconds for pair in pairs for cell in pair)
    columns = []
    for i in (0, 1):
        found = [pair[i].reached("seconds") for pair in pairs]
        reached = np.array([there for _, there in found])
        times = np.array([
            longest if pair[i].failed else time for pair, (time, _) in zip(pairs, found)
        ])  # fmt: skip
        columns += [times, reached]
    contrast.estimate = ratio_of_times(*columns, paired=True, resamples=resamples)
    a, a_reached, b, b_reached = columns
    contrast.p = contrast.p_signs = swaps(*columns)
    if len(pairs) < SIGNS_FROM:  # a run that never got there has no time to take the logarithm of
        all_there = a_reached.all() and b_reached.all()
        contrast.p = paired_t(np.log(a) - np.log(b)).p if all_there else 1.0
    contrast.failed = int((~a_reached).sum()), int((~b_reached).sum())
    contrast.means = float(np.mean(a)), float(np.mean(b))
    contrast.shared = not all(cell.record.get("exclusive") for pair in pairs for cell in pair)


def _outcome_of_times(contrast: Contrast) -> str:
    """An interval alone errs too often with few pairs, and a test alone says nothing of how much."""
    _, low, high = contrast.estimate
    if (contrast.p if contrast.adjusted is None else contrast.adjusted) > LEVEL:
        return "not decided"
    return "faster" if high < 1 else "slower" if low > 1 else "not decided"


def _different(contrast: Contrast) -> str:
    if not (_differs(contrast) if contrast.adjusted is None else contrast.adjusted <= LEVEL):
        return "not decided"
    up = contrast.estimate.estimate > 0
    return "better" if up != (contrast.metric == TIME) else "worse"


def _equal(contrast: Contrast) -> str:
    p = contrast.p_equivalence if contrast.adjusted is None else contrast.adjusted
    if p <= LEVEL:
        return "equal"
    assert contrast.margin is not None
    return _different(contrast) if contrast.adjusted is None else "not decided"


def _differs(contrast: Contrast) -> bool:
    """By the tests of a contrast that stands alone."""
    agreed = contrast.seeds < SIGNS_FROM or contrast.p_signs <= LEVEL
    return contrast.p <= LEVEL and agreed


def sentence(contrast: Contrast) -> str:
    """The contrast in words, with its evidence."""
    c = contrast
    subject = f"{c.a} against {c.b}{f' ({c.where})' if c.where else ''}"
    if not c.seeds:
        lost = f" ({c.left_out} cells were thrown out)" if c.left_out else ""
        return f"{subject}: no seed has both yet{lost}."
    subject = f"{subject}, {METRICS.get(c.metric, c.metric)}"
    notes = []
    if c.kind == "ratio":
        number = _times_in_words(c)
        if any(c.failed):
            notes.append(f"{c.failed[0]} and {c.failed[1]} of them never got there and count as failures")
        if c.shared:
            notes.append("measured while other work ran on the machine")
        notes.append(f"p {p_value(c.p)}")
    else:
        number = (
            f"difference {signed(c.estimate.estimate)} [{signed(c.estimate.low)}, {signed(c.estimate.high)}]"
        )
        if any(c.failed):
            notes.append(f"{c.failed[0]} and {c.failed[1]} of them failed")
        if c.kind == "equivalence":
            notes.append(f"margin ±{c.margin:g}, p of a larger difference {p_value(c.p_equivalence)}")
        else:
            notes.append(f"p {p_value(c.p)}")
    if c.adjusted is not None:
        notes.append(f"after Holm's correction {p_value(c.adjusted)}")
    if c.kind != "ratio" and c.outcome == "not decided":
        wanted = "more than 10,000" if c.wanted is None else f"about {c.wanted}"
        notes.append(f"{wanted} seeds would decide if things are as they look")
    if c.seeds < LEAST_PAIRS:
        notes.append(f"fewer than {LEAST_PAIRS} decide nothing")
    if c.left_out:
        notes.append(f"{c.left_out} cells were thrown out")
    if c.unpaired and c.adjusted is None:
        notes.append(f"{c.unpaired} more have only one of the two")
    evidence = f" ({'; '.join(notes)})" if notes else ""
    return f"{subject}: {_verb(c)}; {number}, {c.seeds} paired seed{'s' if c.seeds > 1 else ''}{evidence}."


def _verb(contrast: Contrast) -> str:
    if contrast.outcome == "equal":
        return f"equal within ±{contrast.margin:g}"
    if contrast.kind == "equivalence" and contrast.outcome in ("better", "worse"):
        return f"not shown to be equal, and {contrast.outcome}"
    return contrast.outcome


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def p_value(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.2f}"


def _times_in_words(contrast: Contrast) -> str:
    never = [lost == contrast.seeds for lost in contrast.failed]
    if any(never):
        return (
            "neither ever got there"
            if all(never)
            else f"the {'first' if never[0] else 'second'} never got there"
        )
    estimate, low, high = (f"{x:.2f}" if math.isfinite(x) else "∞" for x in contrast.estimate)
    return f"ratio of times {estimate} [{low}, {high}]"


def _paired(a: Sequence[Cell], b: Sequence[Cell]) -> tuple[dict[tuple[str, int], tuple[Cell, Cell]], int]:
    """Cells of both sides by task and seed, and how many have no fellow."""
    one, other = ({(cell.task.name, cell.seed): cell for cell in side} for side in (a, b))
    both = {key: (one[key], other[key]) for key in sorted(one.keys() & other.keys())}
    return both, len(one.keys() ^ other.keys())


def _selected(records: Records, selector: Mapping[str, Any], purpose: str) -> list[Cell]:
    found = [cell for arm, cells in records.arms.items() if _means(selector, arm) for cell in cells]
    wanted = [cell for cell in found if cell.arm.purpose == purpose]
    return found if "purpose" in selector or not wanted else wanted


def _means(selector: Mapping[str, Any], arm: Arm) -> bool:
    return all(getattr(arm, name, None) == value for name, value in selector.items())


def _doubled(cells: Sequence[Cell]) -> str | None:
    seen: set[tuple[str, int]] = set()
    for cell in cells:
        key = cell.task.name, cell.seed
        if key in seen:
            return f"task {key[0]}, seed {key[1]}"
        seen.add(key)
    return None


def _words(selector: Mapping[str, Any]) -> str:
    """A selector, read aloud."""
    given = dict(selector)
    words = []
    if "correction" in given:
        words.append(str(given.pop("correction")))
    mode, lag = given.pop("mode", None), given.pop("lag", None)
    if mode in ("async", "sync"):
        words.append(str(mode))
    if lag is not None and mode != "sync":
        words.append(f"with lag ≤ {lag}" if mode == "async" else f"at lag {lag}")
    if "epochs" in given:
        count = given.pop("epochs")
        words.append(f"{count} epoch{'s' if count != 1 else ''}")
    if "learners" in given:
        count = given.pop("learners")
        words.append(f"{count} learner{'s' if count != 1 else ''}")
    task = given.pop("task", None)
    words += [f"{name} {value}" for name, value in given.items()]
    if task is not None:
        words.append(f"on {task}")
    return " ".join(words) or ("exact lag" if mode == "lagged" else "everything")
