"""Reading a study file: text and overrides to a checked study, all mistakes reported with their places."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from config import Mark, Tree
from config.explain import describe, near, properties_of, show
from config.places import KeyPath
from config.reading import failure, override, read_tree
from stress.schema import Block, Contrast, Study, Task

SELECTOR_KEYS = ("task", "mode", "lag", "correction", "epochs", "learners", "purpose")


@dataclass(frozen=True)
class StudyFile:
    """A study together with where it comes from."""

    study: Study
    path: str
    tree: Tree

    @property
    def folder(self) -> Path:
        """Where its cells are kept."""
        return (Path(self.study.study.dir) / self.study.study.name).absolute()

    def mark(self, *path: str) -> Mark:
        """The place of a value, or of what is around it."""
        return self.tree.at(path) or Mark(self.path)


def read(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> StudyFile:
    """Reads and checks a study file; what its settings are worth as run files is checked by stress.cells.

    `overrides`: `section.key=value`, each value parsed as YAML. Raises config.ConfigError with every problem
    found, config.Unreadable.
    """
    name = os.fspath(path)
    tree, _ = read_tree(path, "sections such as `tasks:`")
    for text in overrides:
        override(tree, text)
    try:
        study = Study.model_validate(tree.value)
    except ValidationError as error:
        tree.problems += explain(tree, name, error)
        raise failure(tree) from None
    if not study.study.name:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem).strip("-._")[:64] or "study"
        study = study.model_copy(update={"study": study.study.model_copy(update={"name": stem})})
    made = StudyFile(study, name, tree)
    tree.problems += contradictions(made)
    if tree.problems:
        raise failure(tree)
    return made


def contradictions(file: StudyFile) -> Iterator[tuple[Mark, str]]:
    """What no single key can know."""
    study = file.study
    for name, task in study.tasks.items():
        yield from _of_task(file, name, task)
    for name, block in study.matrix.items():
        yield from _of_block(file, name, block)
    for name, contrast in study.primary.items():
        yield from _of_contrast(file, name, contrast)


def _of_task(file: StudyFile, name: str, task: Task) -> Iterator[tuple[Mark, str]]:
    tried = None if file.study.tuning is None else file.study.tuning.lags
    for lag in task.learning_rates_at or {}:
        if tried is not None and int(lag) not in tried:
            path = ("tasks", name, "learning_rates_at", lag)
            text = f"nothing is tuned at this lag; tuning.lags: {', '.join(map(str, tried))}"
            yield file.mark(*path), f"{'.'.join(path)}: {text}"


def _of_block(file: StudyFile, name: str, block: Block) -> Iterator[tuple[Mark, str]]:
    study, path = file.study, ("matrix", name)
    for task in block.tasks:
        if task not in study.tasks:
            text = f"no task {task!r}; there are: {', '.join(study.tasks)}"
            yield file.mark(*path, "tasks"), f"{'.'.join(path)}.tasks: {text}"
    if block.mode == "sync" and set(block.lags) != {0}:
        yield file.mark(*path, "lags"), f"{'.'.join(path)}.lags: mode sync has no lag; needs [0]"
    if block.learning_rates == "tuned" and study.tuning is None:
        yield file.mark(*path, "learning_rates"), f"{'.'.join(path)}.learning_rates: tuned needs `tuning:`"
    if study.tuning is not None and (both := sorted(set(block.seeds) & set(study.tuning.seeds))):
        text = f"{both[0]} is a seed of `tuning`, whose choice would then be judged by itself; needs others"
        yield file.mark(*path, "seeds"), f"{'.'.join(path)}.seeds: {text}"


def _of_contrast(file: StudyFile, name: str, contrast: Contrast) -> Iterator[tuple[Mark, str]]:
    path = ("primary", name)
    if (contrast.kind == "equivalence") != (contrast.margin is not None):
        needs = "needs a margin" if contrast.margin is None else "has no use for a margin"
        yield file.mark(*path), f"{'.'.join(path)}: {contrast.kind} {needs}"
    for side, selector in (("a", contrast.a), ("b", contrast.b)):
        for key in selector:
            if key not in SELECTOR_KEYS:
                known: dict[KeyPath, None] = {(*path, side, one): None for one in SELECTOR_KEYS}
                where = (*path, side, key)
                text = f"{'.'.join(where)}: unknown key{near(key, where, known)}"
                yield file.tree.keys.get(where) or file.mark(*where), text


def explain(tree: Tree, source: str, error: ValidationError) -> list[tuple[Mark, str]]:
    """One problem a key, in words of the schema."""
    whole = Study.model_json_schema()
    defs = whole["$defs"]
    problems: dict[KeyPath, tuple[Mark, str]] = {}
    for item in error.errors():
        path, node = _descend(whole, defs, item["loc"])
        if item["type"] == "extra_forbidden":
            key = (*path, str(item["loc"][-1]))
            known = {(*path, name): None for name in properties_of(node, defs)}
            where = tree.keys.get(key) or tree.at(key) or Mark(source)
            problems[key] = (where, f"{'.'.join(key)}: unknown key{near(key[-1], key, known)}")
        elif item["type"] == "missing":
            where = tree.at(path) or Mark(source)
            problems[path] = (where, f"{'.'.join(path)}: missing; needs {describe(node, defs)}")
        else:
            where = tree.at(path) or Mark(source)
            found = show(_found(tree, path))
            text = f"{'.'.join(path)}: found {found}; needs {describe(node, defs)}"
            problems.setdefault(path, (where, text))
    return list(problems.values())


def _descend(
    whole: Mapping[str, Any], defs: Mapping[str, Any], location: Sequence[int | str]
) -> tuple[KeyPath, Any]:
    """The path in the file that a validator's location means, and the schema's node there. A location also
    names the branches of unions, which stand in no file."""
    path: KeyPath = ()
    node: Any = whole
    for step in location:
        below = properties_of(node, defs)
        options = [_resolved(one, defs) for one in _options(node)]
        values = next((value for one in options for value in _values(one)), None)
        items = next((one["items"] for one in options if "items" in one), None)
        if isinstance(step, int) and items is not None:
            path, node = (*path, str(step)), items
        elif isinstance(step, str) and step in below:
            path, node = (*path, step), below[step]
        elif isinstance(step, str) and values is not None and step != "[key]":
            path, node = (*path, step), values
        elif step == "[key]":
            node = {"type": "string", "pattern": "name"}
    return path, node


def _values(node: Mapping[str, Any]) -> list[Any]:
    """What the values of a mapping with names of the user's have to be."""
    others = node.get("additionalProperties")
    return [*node.get("patternProperties", {}).values(), *([others] if isinstance(others, dict) else ())]


def _options(node: Mapping[str, Any]) -> list[Any]:
    return [node, *node.get("anyOf", ()), *node.get("oneOf", ())]


def _resolved(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    return defs[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node


def _found(tree: Tree, path: KeyPath) -> Any:
    value = tree.value
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value
