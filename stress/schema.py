"""The schema of a study file: one frozen model a section, each key with its meaning, unit and default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Discriminator, Field, Tag

from config.sections import Auto, Natural, Positive, PositiveNumber, Section, whole


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Seed = Annotated[int, Ge(0), Le(2**64 - 1), BeforeValidator(whole)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_tuple), Field(min_length=1)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_tuple), Field(min_length=1)]
Naturals = Annotated[tuple[Natural, ...], BeforeValidator(_tuple), Field(min_length=1)]
Positives = Annotated[tuple[Positive, ...], BeforeValidator(_tuple), Field(min_length=1)]
Rates = Annotated[tuple[PositiveNumber, ...], BeforeValidator(_tuple), Field(min_length=1)]
RatesByLag = Annotated[
    dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")], Rates], Field(min_length=1)
]
RatesOrTuned = Annotated[
    Annotated[Literal["tuned"], Tag("tuned")] | Annotated[Rates, Tag("rates")],
    Discriminator(lambda value: "tuned" if isinstance(value, str) else "rates"),
]
Settings = dict[str, Any]


class StudySection(Section):
    """Name and place of the study."""

    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")] = ""
    """Name of the study and of its directory; empty: the file's name without `.yaml`."""
    dir: Annotated[str, Field(min_length=1)] = "runs/stress"
    """Directory that holds the directories of studies, relative to the working directory."""
    workers: Positive | Auto = "auto"
    """Learners that train at once where the wall clock does not count; `auto`: one for each usable core."""
    hung_seconds: PositiveNumber = 120.0
    """A cell in which nothing was stepped or trained for so long has failed."""


class Task(Section):
    """A problem to train on, and what its scores mean."""

    settings: Settings
    """Sections of run.yaml for this task: `sim`, and whatever differs from `base`. `stop.steps` is the
    budget."""
    solved: float
    """Score that counts as 1: the task is solved."""
    floor: float
    """Score that counts as 0: a random policy's."""
    threshold: float | None = None
    """Score to reach for the time to threshold; null: that of a solved task."""
    slow_tail: bool = False
    """Whether step times have a heavy tail."""
    learning_rates: Rates | None = None
    """Candidates of `tuning` for this task; null: those that it names itself."""
    learning_rates_at: RatesByLag | None = None
    """Other candidates for single lags of `tuning`, by lag in quotes: the more lag, the smaller the best."""
    cell_seconds: PositiveNumber = 10.0
    """What one cell is expected to take on one core, for the estimate before any has finished."""


class Block(Section):
    """A part of the matrix: every combination of its lists is one cell."""

    tasks: Names
    """Names from `tasks`."""
    mode: Literal["lagged", "async", "sync"] = "lagged"
    """`lagged`: exactly so many versions of lag, whatever the machine does; `async`: as it comes; `sync`."""
    lags: Naturals = (0,)
    """`lagged`: staleness.exact; `async`: staleness.limit; `sync`: 0."""
    corrections: Names
    """Names from `arms`, or values of learner.correction."""
    epochs: Positives | None = None
    """Values of learner.epochs; null: that of the settings."""
    learners: Positives = (1,)
    """Values of learner.count."""
    seeds: Seeds
    """Values of run.seed. Cells of one seed share initial weights and worlds, whatever else differs."""
    learning_rates: RatesOrTuned
    """Values of learner.learning_rate (or of its `start` where it is a schedule); `tuned`: the best of
    `tuning` for each task, mode, lag and correction."""
    purpose: Literal["main", "wall"] = "main"
    """`wall`: it is the wall clock that counts, so that a cell gets the whole machine."""
    settings: Settings = Field(default_factory=dict)
    """Sections of run.yaml for this block, above those of the task."""


class Tuning(Section):
    """How `learning_rates: tuned` is decided: in lagged runs of other seeds, before anything else."""

    learning_rates: Rates
    """Candidates."""
    seeds: Seeds
    """Seeds that no block of the matrix may use."""
    lags: Naturals | None = None
    """Lags at which the choice is made: every other takes what was best at the next larger of these, or at
    the largest; null: each its own."""
    by: Literal["area", "final"] = "area"
    """What is compared: the mean over these seeds of the area under the curve, or of the final score."""


class Contrast(Section):
    """A comparison that was decided on before the study ran."""

    kind: Literal["difference", "equivalence", "ratio"]
    """`equivalence`: that the difference lies within `margin`; `ratio`: of times."""
    a: dict[str, Any]
    """Which cells: values of `task`, `mode`, `lag`, `correction`, `learners`, `epochs`, `purpose`."""
    b: dict[str, Any]
    """Those that they are compared with, paired by seed."""
    metric: Literal["final", "area", "time_to_threshold"] = "final"
    """`final` and `area` in units of (solved - floor)."""
    margin: PositiveNumber | None = None
    """What still counts as equal; only for `equivalence`, which needs it."""


class Study(Section):
    """A whole study."""

    study: StudySection = StudySection()
    """Name and place."""
    base: Settings = Field(default_factory=dict)
    """Sections of run.yaml that all cells share."""
    tasks: Annotated[dict[Name, Task], Field(min_length=1)]
    """Problems by name."""
    arms: dict[Name, Settings] = Field(default_factory=dict)
    """Corrections with settings of their own, by name: keys of run.yaml's `learner` section."""
    matrix: Annotated[dict[Name, Block], Field(min_length=1)]
    """Blocks by name."""
    tuning: Tuning | None = None
    """Needed where a block says `learning_rates: tuned`."""
    primary: dict[str, Contrast] = Field(default_factory=dict)
    """Contrasts by name."""
