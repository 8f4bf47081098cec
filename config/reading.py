"""Reading a run file: text and overrides to a checked configuration, all mistakes reported at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from config.errors import ConfigError, Unreadable
from config.explain import explain, near, show
from config.places import KeyPath, Mark, Tree, parse_yaml
from config.rules import conflicts, resolve
from config.sections import Config, whole

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Document:
    """A configuration together with where it comes from. `warnings`: one line each."""

    config: Config
    path: str
    tree: Tree
    data: bytes
    """The run file as it was read: the file itself may be a pipe, or about to be moved."""
    warnings: tuple[str, ...] = ()

    def origin(self, path: KeyPath) -> str:
        """`file:line` of a value, the override it comes from, or `default`."""
        if mark := self.tree.values.get(path):
            return f"{mark.source}:{mark.line}" if mark.line else mark.source
        return "default"

    def error(self, key: str, text: str) -> ConfigError:
        """A problem with the value of `key` that only somebody else could find."""
        where = self.tree.at(tuple(key.split("."))) or Mark(self.path)
        return ConfigError([f"{where}: {key}: {text}"])


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """`read(...)`'s configuration alone."""
    return read(path, overrides).config


def read(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), *, cores: int | None = None
) -> Document:
    """Reads and checks a run file.

    `overrides`: `section.key=value`, each value parsed as YAML. `cores`: what `producers.count: auto` stands
    for; default: the cores this process may use. The result is resolved: only what needs the simulator or
    torch is left to be worked out.

    Raises ConfigError with every problem found; Unreadable.
    """
    tree, data = read_tree(path, "sections such as `sim:`")
    for text in overrides:
        override(tree, text)
    return check(tree, os.fspath(path), data, cores=cores)


def read_tree(path: str | os.PathLike[str], sections: str) -> tuple[Tree, bytes]:
    """A file of sections, and its bytes; `sections`: what it needs to hold, for the message. What is wrong
    within stands in the tree's problems. Raises ConfigError where there are no sections, Unreadable."""
    name = os.fspath(path)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise Unreadable(f"{name}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError([f"{name}: {len(data)} bytes; needs {MAX_FILE_BYTES} or fewer"])
    try:
        tree = parse_yaml(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8"]) from None
    if not isinstance(tree.value, dict):
        if not tree.problems:
            tree.problems.append((Mark(name, 1, 1), f"needs {sections}"))
        raise failure(tree)
    return tree, data


def check(tree: Tree, name: str, data: bytes, *, cores: int | None = None) -> Document:
    """Checks the sections in `tree`, which come from the file `name`, as `read` does. Raises ConfigError with
    every problem found."""
    try:
        config = Config.model_validate(tree.value)
    except ValidationError as error:
        tree.problems += explain(tree, name, error)
        raise failure(tree) from None
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem).strip("-._")[:64] or "run"
    config = resolve(config, stem, cores or len(os.sched_getaffinity(0)))
    wrong, warnings = conflicts(config)
    for key, text in wrong:
        where = tree.at(tuple(key.split("."))) or Mark(name)
        tree.problems.append((where, f"{key}: {text}"))
    if tree.problems:
        raise failure(tree)
    return Document(config, name, tree, data, tuple(warnings))


def failure(tree: Tree) -> ConfigError:
    """All of a tree's problems, in the order of their places."""
    order = sorted(
        tree.problems, key=lambda problem: (problem[0].line == 0, problem[0].line, problem[0].column)
    )
    return ConfigError(list(dict.fromkeys(f"{mark}: {text}" for mark, text in order)))


def override(tree: Tree, text: str) -> None:
    """Puts `section.key=value` in the place of what the file says."""
    key, equals, value_text = text.partition("=")
    source = f"override {text!r}"
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        tree.problems.append((Mark(source), "needs the form section.key=value"))
        return
    value = parse_yaml(value_text, source, place=False)
    tree.problems += value.problems
    if value.problems:
        return
    section = tree.value
    for depth, name in enumerate(path[:-1], 1):
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            tree.problems.append(
                (Mark(source), f"{'.'.join(path[:depth])} is not a section but {show(section)}")
            )
            return
        tree.keys.setdefault(path[:depth], Mark(source))
        tree.values.setdefault(path[:depth], Mark(source))
    section[path[-1]] = value.value if value_text.strip() else None
    for marks in (tree.keys, tree.values):
        for old in [known for known in marks if known[: len(path)] == path]:
            del marks[old]
        marks[path] = Mark(source)
        for below in value.values:
            marks[path + below] = Mark(source)


def check_sim(document: Document, spec: Mapping[str, Any]) -> dict[str, int | float | bool]:
    """Checks `sim:` against the simulator's own spec.

    `spec`: what `producers/producer --describe` prints. Returns every parameter's value in its own type,
    defaults included. Raises ConfigError with every problem, with the marks of the run file.
    """
    types: dict[str, Any] = {"int": int, "float": float, "bool": bool}
    given = document.config.sim.parameters
    table = {parameter["name"]: parameter for parameter in spec["params"]}
    known: dict[KeyPath, Any] = {("sim", name): None for name in ("name", *table)}
    problems = Tree()

    def problem(name: str, text: str, marks: Mapping[KeyPath, Mark]) -> None:
        problems.problems.append((marks.get(("sim", name)) or Mark(document.path), f"sim.{name}: {text}"))

    values = {name: types[parameter["kind"]](parameter["default"]) for name, parameter in table.items()}
    for name, found in given.items():
        parameter = table.get(name)
        if parameter is None:
            problem(
                name,
                f"{spec['name']} has no such parameter{near(name, ('sim', name), known)}",
                document.tree.keys,
            )
            continue
        low, high, kind = parameter["low"], parameter["high"], parameter["kind"]
        needs = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kind]
        needs += "" if kind == "bool" else f" from {low:g} to {high:g}"
        value: Any = whole(found) if kind == "int" else found
        fits = isinstance(value, bool) == (kind == "bool") and isinstance(value, int | types[kind])
        if not fits or not low <= value <= high:
            problem(name, f"found {show(value)}; needs {needs} ({parameter['help']})", document.tree.values)
            continue
        values[name] = types[kind](value)
    if problems.problems:
        raise failure(problems)
    return values


def check_agents(document: Document, spec: Mapping[str, Any]) -> int:
    """Worlds of one producer. Raises ConfigError if the agents of one world do not divide its agents, or if
    their actions cannot be trained on as configured."""
    agents, a_world = document.config.producers.agents, int(spec["agents"])
    if agents % a_world:
        needs = f"needs a multiple of {a_world}, the agents of one world of {spec['name']}"
        raise document.error("producers.agents", f"found {agents}; {needs}")
    if document.config.learner.loss == "native" and any("low" in head for head in spec["heads"]):
        why = f"native has no form for the continuous actions of {spec['name']}; needs torch or auto"
        raise document.error("learner.loss", why)
    return agents // a_world


def load_resolved(path: str | os.PathLike[str]) -> Config:
    """Reads what `dump_resolved` wrote, for the processes of a run. Raises ConfigError or Unreadable."""
    return read(path).config
