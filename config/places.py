"""YAML 1.2 with places: plain values, and for each the file, line and column where it stands."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

MAX_DEPTH = 16
MAX_VALUES = 10_000  # after aliases are expanded: a few lines of aliases can describe billions
MAX_NUMBER_DIGITS = 40

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """Where something stands: a file with line and column (from 1), or an override."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass
class Tree:
    """Values as Python objects, where each key and value stands, and what was wrong with the text."""

    value: Any = None
    keys: dict[KeyPath, Mark] = field(default_factory=dict)
    values: dict[KeyPath, Mark] = field(default_factory=dict)
    problems: list[tuple[Mark, str]] = field(default_factory=list)

    def at(self, path: KeyPath) -> Mark | None:
        """The place of the value at `path`, or of the nearest section around it."""
        for length in range(len(path), 0, -1):
            if mark := self.values.get(path[:length]):
                return mark
        return None

    def get(self, path: KeyPath) -> Any:
        value = self.value
        for name in path:
            value = value[name]
        return value


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: `no` is a string, 3e-4 a number, 010 ten, 1:30 a string."""

    yaml_implicit_resolvers: ClassVar[dict] = {}
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_CORE = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
_TAG = "tag:yaml.org,2002:"
for _name, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(
        _TAG + _name, re.compile(rf"^(?:{_pattern})$"), [*_first, *([""] if _name == "null" else [])]
    )


def _scalar(kind: str, text: str) -> Any:
    """The value of a plain scalar that matches the pattern of `kind`. ValueError: it does not."""
    if kind == "str":
        return text
    if kind not in _CORE or not re.fullmatch(_CORE[kind][0], text):
        raise ValueError
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if len(text) > MAX_NUMBER_DIGITS:
        raise ValueError
    if kind == "int":
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def parse_yaml(text: str, source: str, *, place: bool = True) -> Tree:
    """Reads one YAML document of plain values.

    `source` names the file or override in marks; `place`: whether lines and columns go into marks. Never
    raises: what is wrong stands in `problems`. Anchors are allowed while the expanded document stays small.
    """
    tree = Tree()
    left = MAX_VALUES

    def mark(at: Any) -> Mark:
        return Mark(source, at.line + 1, at.column + 1) if place and at else Mark(source)

    def build(node: Any, path: KeyPath) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or len(path) > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"aliases expand to more than {MAX_VALUES} values or {MAX_DEPTH} levels",
                problem_mark=node.start_mark,
            )
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.ScalarNode):
            try:
                return _scalar(kind, node.value)
            except ValueError:
                tree.problems.append((mark(node.start_mark), _not_a(kind, node)))
                return node.value
        if kind not in ("map", "seq"):
            tree.problems.append(
                (mark(node.start_mark), f"tag {node.tag} is not allowed; needs plain values")
            )
        if isinstance(node, yaml.SequenceNode):
            return [build(item, (*path, str(i))) for i, item in enumerate(node.value)]
        return mapping(node, path)

    def mapping(node: Any, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = build(key_node, (*path, "")) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                tree.problems.append((mark(key_node.start_mark), "a key must be a name"))
                continue
            place_of_key = (*path, key)
            if key in result:
                first = tree.keys[place_of_key]
                tree.problems.append(
                    (
                        mark(key_node.start_mark),
                        f"{'.'.join(place_of_key)}: given a second time, first in line {first.line}",
                    )
                )
                continue
            tree.keys[place_of_key] = mark(key_node.start_mark)
            tree.values[place_of_key] = mark(value_node.start_mark)
            result[key] = build(value_node, place_of_key)
        return result

    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        tree.value = {} if node is None else build(node, ())
    except yaml.MarkedYAMLError as error:
        said = error.problem or error.context or "not YAML"
        tree.problems.append(
            (mark(error.problem_mark or error.context_mark), f"not readable as YAML: {said}")
        )
    except yaml.reader.ReaderError as error:
        tree.problems.append(
            (Mark(source), f"not readable as YAML: {error.reason} (character #x{error.character:04x})")
        )
    finally:
        if loader is not None:
            loader.dispose()
    return tree


def _not_a(kind: str, node: Any) -> str:
    if kind not in _CORE:
        return f"tag {node.tag} is not allowed; needs plain values"
    if kind in ("int", "float") and len(node.value) > MAX_NUMBER_DIGITS:
        return f"a number of {len(node.value)} digits; needs {MAX_NUMBER_DIGITS} or fewer"
    return f"found {node.value!r}, which is no {kind}"


def emit(value: Any) -> str:
    """A value in YAML's flow style, readable by `parse_yaml` and by JSON-minded YAML readers alike."""
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z/.][A-Za-z0-9_./-]*", value) and not parse_yaml(value, "").problems
        return (
            value if plain and parse_yaml(value, "").value == value else json.dumps(value, ensure_ascii=False)
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {emit(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(emit, value)) + "]"
    return json.dumps(value)
