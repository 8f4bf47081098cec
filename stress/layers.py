"""Settings of one run put together from several parts of a study file, each value with its place there."""

from __future__ import annotations

from typing import Any

from config import Mark, Tree
from config.places import KeyPath

RESERVED = {
    ("run",): "name, place and seed of a run are the study's",
    ("mode",): "belongs to the matrix",
    ("staleness",): "belongs to the matrix (lags)",
    ("learner", "correction"): "belongs to the matrix (corrections) and to arms",
    ("learner", "count"): "belongs to the matrix (learners)",
}


class Layers:
    """One run's sections, of which later layers replace what earlier ones say key by key."""

    def __init__(self, study: Tree):
        self.tree = Tree(value={})
        self._study = study

    def lay(self, source: KeyPath, target: KeyPath = (), *, reserved: bool = True) -> None:
        """Lays what stands at `source` in the study file over `target`. `reserved`: what only the matrix may
        say is a problem there."""
        self._lay(self._study.get(source), source, target)
        if reserved:
            for path, why in RESERVED.items():
                if mark := self._study.keys.get((*source, *path)):
                    self.tree.problems.append((mark, f"{'.'.join((*source, *path))}: {why}"))

    def put(self, path: KeyPath, value: Any, mark: Mark) -> None:
        """One value that comes from somewhere else in the file."""
        section = self._section(path[:-1], mark)
        self._forget(path)
        section[path[-1]] = value
        self.tree.keys[path] = self.tree.values[path] = mark

    def _lay(self, value: Any, source: KeyPath, target: KeyPath) -> None:
        if isinstance(value, dict):
            section = self._section(target, self._mark(source))
            for name, item in value.items():
                there = section.get(name)
                if not isinstance(item, dict) or not isinstance(there, dict):
                    self._forget((*target, name))
                    section[name] = {} if isinstance(item, dict) else item
                self.tree.keys[(*target, name)] = self._study.keys[(*source, name)]
                self.tree.values[(*target, name)] = self._mark((*source, name))
                self._lay(item, (*source, name), (*target, name))

    def _mark(self, path: KeyPath) -> Mark:
        return self._study.at(path) or Mark("")

    def _section(self, path: KeyPath, mark: Mark) -> dict[str, Any]:
        section = self.tree.value
        for depth, name in enumerate(path, 1):
            if not isinstance(section.get(name), dict):
                self._forget(path[:depth])
                section[name] = {}
                self.tree.keys[path[:depth]] = self.tree.values[path[:depth]] = mark
            section = section[name]
        assert isinstance(section, dict)
        return section

    def _forget(self, path: KeyPath) -> None:
        for marks in (self.tree.keys, self.tree.values):
            for below in [known for known in marks if known[: len(path)] == path]:
                del marks[below]
