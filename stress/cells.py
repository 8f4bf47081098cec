"""The cells of a study: which runs its matrix asks for, and with which settings each is run."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import config
from config import Document, Mark, Schedule
from config.reading import check
from producers import cores
from producers.prepare import Prepared, fit
from stress.layers import Layers
from stress.reading import StudyFile
from stress.schema import Block, Task

ID_DIGITS = 16


@dataclass(frozen=True, eq=False)
class Kind:
    """What all cells have in common that differ in nothing but seed and learning rate."""

    task: str
    mode: str
    lag: int
    correction: str
    epochs: int
    learners: int
    purpose: str
    document: Document
    """The run file, but for name, place, seed and learning rate."""
    tuning: Kind | None = None
    """Of the runs in which the learning rate is chosen; None: it is given."""

    @property
    def exclusive(self) -> bool:
        """Whether its results depend on what else the machine does."""
        return self.mode != "lagged" or self.purpose == "wall"

    @cached_property
    def identity(self) -> str:
        """Tells kinds apart."""
        names = ("task", "mode", "lag", "correction", "epochs", "learners", "purpose")
        facts = {name: getattr(self, name) for name in names}
        return json.dumps(facts | {"settings": self.document.tree.value}, sort_keys=True)

    def matches(self, selector: Mapping[str, Any]) -> bool:
        """Whether a contrast's selector means cells of this kind."""
        return all(getattr(self, name) == value for name, value in selector.items())


@dataclass(frozen=True, eq=False)
class Cell:
    """One run. `learning_rate`: None where it has yet to be chosen."""

    kind: Kind
    seed: int
    learning_rate: float | None

    @cached_property
    def id(self) -> str:
        """The same whenever everything that defines the run is the same."""
        text = f"{self.kind.identity} {self.seed} {self.learning_rate!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]

    @property
    def facts(self) -> dict[str, Any]:
        """What of the cell's file is known beforehand."""
        kind = self.kind
        return {
            "id": self.id, "task": kind.task, "mode": kind.mode, "lag": kind.lag,
            "correction": kind.correction, "learning_rate": self.learning_rate, "epochs": kind.epochs,
            "seed": self.seed, "learners": kind.learners, "purpose": kind.purpose,
        }  # fmt: skip

    def __str__(self) -> str:
        kind = self.kind
        lag = "" if kind.mode == "sync" else f" {kind.lag}"
        learners = f", {kind.learners} learners" if kind.learners > 1 else ""
        rate = "tuned" if self.learning_rate is None else f"{self.learning_rate:g}"
        return f"{kind.task} {kind.mode}{lag} {kind.correction}{learners} rate {rate} seed {self.seed}"

    def prepare(self, scratch: Path, machine: cores.Machine) -> Prepared:
        """The run, with its directory in `scratch`. Raises config.ConfigError, producers.prepare.Missing."""
        settings = self.kind.document.config
        rate: Any = self.learning_rate
        if isinstance(schedule := settings.learner.learning_rate, Schedule):
            rate = schedule.model_copy(update={"start": rate})
        changed = settings.model_copy(
            update={
                "run": config.Run(name=self.id, dir=str(scratch), seed=self.seed),
                "learner": settings.learner.model_copy(update={"learning_rate": rate}),
            }
        )
        return fit(replace(self.kind.document, config=changed), machine)


class Matrix:
    """All cells of a study, those whose learning rate is chosen after the tuning ones."""

    def __init__(self, file: StudyFile, machine: cores.Machine):
        """Raises config.ConfigError where some run of the study could not be, producers.prepare.Missing."""
        self.file = file
        self._machine = machine
        self._kinds: dict[str, Kind] = {}
        self._blocks = [
            (block, list(self._of_block(name, block))) for name, block in file.study.matrix.items()
        ]
        self._check_contrasts()
        self._check_tasks()

    @property
    def tuning(self) -> list[Cell]:
        """Block by block."""
        return _unique(cell for _, kinds in self._blocks for cell in self._tuning(kinds))

    def main(self, rates: Mapping[str, float]) -> list[Cell]:
        """What the blocks ask for. `rates`: chosen ones, by identity of the tuning kind."""
        return _unique(cell for block, kinds in self._blocks for cell in self._main(block, kinds, rates))

    @property
    def stages(self) -> list[Callable[[Mapping[str, float]], list[Cell]]]:
        """In which order cells are run: block by block, first those in which learning rates are chosen.
        Each gives its cells for the rates that are chosen by then; one may come in several."""
        return [
            stage
            for block, kinds in self._blocks
            for stage in (
                lambda rates, kinds=kinds: self._tuning(kinds),
                lambda rates, block=block, kinds=kinds: self._main(block, kinds, rates),
            )
        ]

    def _tuning(self, kinds: Sequence[Kind]) -> list[Cell]:
        settings = self.file.study.tuning
        tuned = dict.fromkeys(kind.tuning for kind in kinds if kind.tuning is not None)
        if settings is None:
            return []
        return [
            Cell(kind, seed, rate)
            for kind in tuned
            for rate, seed in itertools.product(self._candidates(kind), settings.seeds)
        ]

    def _candidates(self, kind: Kind) -> Sequence[float]:
        """Learning rates to try."""
        assert self.file.study.tuning is not None
        task = self.file.study.tasks[kind.task]
        usual = task.learning_rates or self.file.study.tuning.learning_rates
        return (task.learning_rates_at or {}).get(str(kind.lag), usual)

    def _main(self, block: Block, kinds: Sequence[Kind], rates: Mapping[str, float]) -> list[Cell]:
        """Seed by seed, so that a study that is interrupted has all arms alike."""
        return [
            Cell(kind, seed, rate)
            for seed in block.seeds
            for kind in kinds
            for rate in self._rates(block, kind, rates)
        ]

    @staticmethod
    def _rates(block: Block, kind: Kind, rates: Mapping[str, float]) -> Sequence[float | None]:
        if kind.tuning is not None:
            return [rates.get(kind.tuning.identity)]
        assert not isinstance(block.learning_rates, str)
        return block.learning_rates

    def choose(self, records: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """The best learning rate of each tuning kind all of whose cells are finished, by its identity.
        `records`: finished cells by id. Of equals the smallest; a failed cell counts as a random policy."""
        settings = self.file.study.tuning
        groups: dict[str, list[Cell]] = {}
        for cell in self.tuning:
            groups.setdefault(cell.kind.identity, []).append(cell)
        chosen: dict[str, float] = {}
        for identity, cells in groups.items():
            if settings is None or not all(cell.id in records for cell in cells):
                continue
            floor = self.file.study.tasks[cells[0].kind.task].floor
            means = {
                rate: fmean(
                    worth(records[cell.id], settings.by, floor)
                    for cell in cells
                    if cell.learning_rate == rate
                )
                for rate in sorted(self._candidates(cells[0].kind))
            }
            chosen[identity] = max(means, key=means.__getitem__)
        return chosen

    def steps(self, task: str) -> int:
        """The budget of a task."""
        kinds = (kind for _, kinds in self._blocks for kind in kinds if kind.task == task)
        return next(int(kind.document.config.stop.steps or 0) for kind in kinds)

    # Making kinds

    def _of_block(self, name: str, block: Block) -> Iterator[Kind]:
        study = self.file.study
        axes = ("lags", "corrections", "epochs", "learners")
        marks = {key: self.file.mark("matrix", name, key) for key in axes}
        for task, lag, correction, epochs, learners in itertools.product(
            block.tasks, block.lags, block.corrections, block.epochs or (None,), block.learners
        ):
            lay = _Lay(self.file, name, task, correction, epochs, marks)
            tuning = None
            if block.learning_rates == "tuned" and study.tuning is not None:
                tried = _tried(lag, study.tuning.lags)
                given = lay.document("lagged", tried, 1, self._machine, clock=False)
                tuning = self._same(
                    Kind(task, "lagged", tried, correction, given.config.learner.epochs, 1, "tuning", given)
                )
            document = lay.document(block.mode, lag, learners, self._machine)
            yield self._same(
                Kind(
                    task,
                    block.mode,
                    lag,
                    correction,
                    document.config.learner.epochs,
                    learners,
                    block.purpose,
                    document,
                    tuning,
                )
            )

    def _same(self, kind: Kind) -> Kind:
        """One object for what is the same, so that what is known of it is known once."""
        return self._kinds.setdefault(f"{kind.tuning is None} {kind.identity}", kind)

    def _check_contrasts(self) -> None:
        kinds = [kind for _, kinds in self._blocks for kind in kinds]
        for name, contrast in self.file.study.primary.items():
            for side, selector in (("a", contrast.a), ("b", contrast.b)):
                if not any(kind.matches(selector) for kind in kinds):
                    text = f"primary.{name}.{side}: no cell of the matrix is meant"
                    raise config.ConfigError([f"{self.file.mark('primary', name, side)}: {text}"])

    def _check_tasks(self) -> None:
        """What the simulator and this machine say to one run of each task."""
        seen: set[tuple[str, int]] = set()
        for _, kinds in self._blocks:
            for kind in kinds:
                count = int(kind.document.config.producers.count)
                if kind.document.config.servers:
                    raise kind.document.error(
                        "policy.placement", "a study starts no inference servers; needs producer"
                    )
                if (kind.task, count) not in seen:
                    seen.add((kind.task, count))
                    fit(kind.document, self._machine)


@dataclass(frozen=True)
class _Lay:
    """The layers of one combination: base, task, block, arm, and what the matrix says."""

    file: StudyFile
    block: str
    task: str
    correction: str
    epochs: int | None
    marks: Mapping[str, Mark]
    """Where the block says so."""

    def document(
        self, mode: str, lag: int, learners: int, machine: cores.Machine, *, clock: bool = True
    ) -> Document:
        """`clock`: whether a score may end the run before its steps do. Raises config.ConfigError."""
        study, layers = self.file.study, Layers(self.file.tree)
        if study.base:
            layers.lay(("base",))
        layers.lay(("tasks", self.task, "settings"))
        if study.matrix[self.block].settings:
            layers.lay(("matrix", self.block, "settings"))
        if self.correction in study.arms:
            layers.lay(("arms", self.correction), ("learner",), reserved=False)
        else:
            layers.put(("learner", "correction"), self.correction, self.marks["corrections"])
        layers.put(("mode",), mode, self.file.mark("matrix", self.block, "mode"))
        if mode != "sync":
            layers.put(("staleness", "exact" if mode == "lagged" else "limit"), lag, self.marks["lags"])
        if self.epochs is not None:
            layers.put(("learner", "epochs"), self.epochs, self.marks["epochs"])
        if learners > 1:
            layers.put(("learner", "count"), learners, self.marks["learners"])
        if not clock and "stop" in layers.tree.value:
            layers.tree.value["stop"].pop("score", None)
        document = check(layers.tree, self.file.path, b"", cores=machine.capacity)
        if document.config.stop.steps is None:
            mark = self.file.mark("tasks", self.task, "settings")
            raise config.ConfigError([f"{mark}: tasks.{self.task}.settings: needs stop.steps, the budget"])
        goal, wanted = document.config.stop.score, threshold(study.tasks[self.task])
        if goal not in (None, wanted):
            text = f"found {goal:g}; needs {wanted:g}, the score whose time counts"
            raise document.error("stop.score", text)
        return document


def worth(record: Mapping[str, Any], by: str, floor: float) -> float:
    """What a finished cell came to, in raw score: the area under its curve, or the final score."""
    if record["status"] != "done":
        return floor
    scores = [floor if score is None else float(score) for score in record["curve"]["score"]]
    if by == "final":
        evaluated = record["evaluated"]
        return scores[-1] if evaluated is None or evaluated["mean"] is None else float(evaluated["mean"])
    return fmean(scores)


def threshold(task: Task) -> float:
    """The score whose time counts."""
    return task.solved if task.threshold is None else task.threshold


def _tried(lag: int, lags: Sequence[int] | None) -> int:
    """The lag whose best learning rate `lag` takes: rather one that is too small than one too large."""
    if not lags:
        return lag
    return min((one for one in lags if one >= lag), default=max(lags))


def _unique(cells: Iterator[Cell]) -> list[Cell]:
    return list({cell.id: cell for cell in cells}.values())
