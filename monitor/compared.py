"""Runs that are compared: what is read of each, and which of them are seeds of one configuration."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import config
from config import exits
from monitor import rundir
from monitor.curves import Curve
from monitor.lines import Follower, number

SPEED = "steps_per_second"
"""A figure that no line has: it is made of two of them."""
SILENT_SECONDS = 15.0  # status.json of a live run is a second old

# What a run is called, where it is and who watches it: no part of what it does.
ASIDE = ("run.name", "run.dir", "run.seed", "monitor.port")
WATCHING = ("monitor", "watch", "sinks", "archive")

FINAL: dict[str, tuple[str, ...]] = {
    "steps": ("steps",),
    "seconds": ("seconds",),
    "steps/s": ("steps_per_second",),
    "version": ("version",),
    "score": ("score", "mean"),
    "best score": ("score", "best"),
    "evaluated": ("score", "evaluated", "mean"),
    "evaluated, argmax": ("score", "evaluated", "argmax", "mean"),
    "solved at s": ("solved_at_seconds",),
    "mean lag": ("lag", "mean"),
    "p99 lag": ("lag", "p99"),
    "largest lag": ("lag", "max"),
    "slots dropped": ("slots", "dropped"),
}
"""Figures of summary.json and status.json, by what the table calls them."""


class Unusable(Exception):
    """Nothing that could be compared. `code`: to exit with."""

    def __init__(self, text: str, code: int):
        super().__init__(text)
        self.code = code


@dataclass
class Run:
    """A run directory, of a run that has ended or of one under way."""

    path: Path
    settings: dict[str, Any]
    """`section.key` to value, of config.resolved.yaml."""
    manifest: dict[str, Any]
    report: dict[str, Any]
    """summary.json, or status.json where there is none yet."""
    state: str
    figures: Sequence[str]
    """Those that were asked for."""
    by_steps: Curve
    by_seconds: Curve
    known: set[str] = field(default_factory=set)
    """All figures that some line has."""
    lines: int = 0
    damaged: int = 0
    began: float | None = None
    """Version of the first line that is there."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def restarts(self) -> int | None:
        """Of all roles."""
        found = self.report.get("restarts")
        if not isinstance(found, dict):
            return None
        return sum(int(number(one) or 0) for one in found.values())

    def final(self, name: str) -> float | None:
        """A figure of FINAL."""
        return number(dig(self.report, FINAL[name]))

    @property
    def made_of(self) -> dict[str, str]:
        """Code and machine."""
        git = self.manifest.get("git")
        git = git if isinstance(git, dict) else {}
        commit = str(git.get("commit") or "")[:12] + (" with changes" if git.get("dirty") else "")
        return {
            "(commit)": commit or "unknown",
            "(torch)": str(dig(self.manifest, ("packages", "torch"))),
            "(processor)": str(dig(self.manifest, ("hardware", "cpu"))),
            "(host)": str(self.manifest.get("host")),
        }

    @property
    def does(self) -> str:
        """All settings that decide what it does: without name, seed and who watches."""
        settings = {
            key: value
            for key, value in self.settings.items()
            if key not in ASIDE and key.partition(".")[0] not in WATCHING
        }
        return json.dumps(settings, sort_keys=True, default=str)


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seeds, or a single one."""

    label: str
    runs: Sequence[Run]


def look(paths: Iterable[Path]) -> list[Path]:
    """The run directories, before anything is read of them. Raises Unusable."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            what = "is not a directory" if path.exists() else "no such directory"
            raise Unusable(f"{path}: {what}; needs the directories of runs, e.g. runs/a", exits.USAGE)
        if not (path / rundir.RESOLVED).is_file():
            raise Unusable(f"{path}: no {rundir.RESOLVED} in it, so no directory of a run", exits.USAGE)
        if any(os.path.samefile(path, one) for one in found):
            raise Unusable(f"{path}: given twice", exits.USAGE)
        found.append(path)
    return found


def read(path: Path, figures: Sequence[str]) -> Run:
    """All that is shown of one run, with curves of these figures. Raises Unusable."""
    try:
        settings = _settings(path / rundir.RESOLVED)
        report, state = _report(path)
        run = Run(path, settings, rundir.read_json(path / rundir.MANIFEST) or {}, report, state, figures,
                  Curve(len(figures)), Curve(len(figures)))  # fmt: skip
        _read_lines(run)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise Unusable(f"{error.filename or path}: {why}", exits.MISSING) from None
    return run


def _read_lines(run: Run) -> None:
    follower = Follower(run.path / rundir.METRICS)
    try:
        for line in follower.lines():
            steps, seconds = number(line.get("steps")), number(line.get("seconds"))
            if steps is None or seconds is None:
                follower.damaged += 1
                continue
            run.lines += 1
            run.known |= line.keys()
            if run.began is None:
                run.began = number(line.get("version"))
            values = [number(line.get(name)) for name in run.figures]
            run.by_steps.add(steps, steps, seconds, values)
            run.by_seconds.add(seconds, steps, seconds, values)
    finally:
        follower.close()
    run.damaged = follower.damaged


def _settings(path: Path) -> dict[str, Any]:
    """Whatever version of the schema they were written by."""
    if path.stat().st_size > config.MAX_FILE_BYTES:
        raise Unusable(f"{path}: needs {config.MAX_FILE_BYTES} bytes or fewer", exits.CONFIG)
    tree = config.parse_yaml(path.read_bytes().decode(errors="replace"), str(path))
    if tree.problems or not isinstance(tree.value, dict):
        mark, text = tree.problems[0] if tree.problems else (str(path), "needs sections such as `sim:`")
        raise Unusable(f"{mark}: {text}", exits.CONFIG)
    flat: dict[str, Any] = {}
    for section, value in tree.value.items():
        if isinstance(value, dict):
            flat |= {f"{section}.{key}": item for key, item in value.items()}
        else:
            flat[section] = value
    return flat


def _report(path: Path) -> tuple[dict[str, Any], str]:
    """The last report of a run and its state, which no killed run could write down."""
    summary = rundir.read_json(path / rundir.SUMMARY)
    if summary is not None:
        return summary, str(summary.get("state"))
    status = rundir.read_json(path / rundir.STATUS)
    if status is None:
        return {}, "starting"
    silent = time.time() - (number(status.get("updated_unix")) or 0.0)
    state = str(status.get("state"))
    return status, state if silent < SILENT_SECONDS else f"killed or paused when {state}"


def group(runs: Sequence[Run], *, each: bool = False) -> list[Group]:
    """Seeds of the same configuration together, in the order in which they were given; `each`: all apart.

    Code belongs to the configuration where some seed was run by several commits, which tells that these are
    what is compared.
    """
    same: dict[str, list[Run]] = {}
    for run in runs:
        same.setdefault(run.does, []).append(run)
    together: dict[tuple[str, str], list[Run]] = {}
    for i, run in enumerate(runs):
        seeds = [str(one.settings.get("run.seed")) for one in same[run.does]]
        commit = run.made_of["(commit)"] if len(set(seeds)) < len(seeds) else ""
        together.setdefault((run.does, f"{i}" if each else commit), []).append(run)
    labels = [_label(members) for members in together.values()]
    if len(set(labels)) < len(labels):  # of the same name in several places
        labels = [str(members[0].path) + _count(members) for members in together.values()]
    return [Group(label, members) for label, members in zip(labels, together.values())]


def _label(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return runs[0].name
    common = os.path.commonprefix([run.name for run in runs]).rstrip("-_.0123456789")  # noqa: RUF071 - names
    return (common or runs[0].name) + _count(runs)


def _count(runs: Sequence[Run]) -> str:
    return f" ({len(runs)} runs)" if len(runs) > 1 else ""


def differences(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """(setting, its values in each group) for each that is not the same everywhere; seeds apart, which differ
    by intention. With code and machine in brackets."""
    found = []
    facts = [[run.settings | run.made_of for run in one.runs] for one in groups]
    for key in dict.fromkeys(key for one in facts for each in one for key in each):
        if key in ASIDE:
            continue
        cells = [list(dict.fromkeys(_show(each, key) for each in one)) for one in facts]
        if len({value for cell in cells for value in cell}) > 1:
            found.append((key, [", ".join(cell) for cell in cells]))
    return found


def _show(facts: Mapping[str, Any], key: str) -> str:
    if key not in facts:
        return "–"
    value = facts[key]
    return value if isinstance(value, str) else str(config.emit(value))


def dig(value: Any, keys: Sequence[str]) -> Any:
    """What lies below these keys; None where that is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
