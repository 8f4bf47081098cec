"""What is wrong with a value and what would be right, in the words of the schema."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from config.places import KeyPath, Mark, Tree, emit
from config.sections import schema

MAX_KEYS_NAMED = 20


def properties_of(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys below a schema node; {} for a plain value."""
    for option in (node, *node.get("anyOf", ()), *node.get("oneOf", ())):
        if "$ref" in option:
            return defs[option["$ref"].rsplit("/", 1)[1]]["properties"]
    return node.get("properties", {})


def walk(
    properties: Mapping[str, Any], defs: Mapping[str, Any], prefix: KeyPath = ()
) -> Iterator[tuple[KeyPath, Any]]:
    for name, node in properties.items():
        yield (*prefix, name), node
        yield from walk(properties_of(node, defs), defs, (*prefix, name))


def describe(node: Mapping[str, Any], defs: Mapping[str, Any] | None = None) -> str:
    """What a value has to be, in words. `defs`: of the schema it is from; None: that of run files."""
    if "anyOf" in node or "oneOf" in node:
        options = [describe(option, defs) for option in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(option for option in options if option))
    if "$ref" in node:
        keys = properties_of(node, schema()["$defs"] if defs is None else defs)
        return "a section of " + ", ".join(keys)
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return " or ".join(filter(None, (", ".join(map(str, node["enum"][:-1])), str(node["enum"][-1]))))
    kind = node.get("type")
    if kind == "array":
        item = describe(node.get("items", {})) or describe(node["prefixItems"][0])
        exact = node.get("minItems") if node.get("minItems") == node.get("maxItems") else None
        return f"a list of {exact} values, each {item}" if exact else f"a list with each {item}"
    if kind == "string" and "pattern" in node:
        if ":" in node["pattern"]:
            return "a class as `package.module:Class`"
        return "a size such as 64MiB" if "KMGT" in node["pattern"] else "letters, digits, `.`, `_` and `-`"
    text = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "a text",
        "null": "null",
        "object": "a section",
    }.get(kind or "", "")
    bounds = [
        f"{node[key]} {words}"
        for key, words in (("minimum", "or more"), ("maximum", "or less"))
        if key in node
    ]
    bounds += [f"above {node[key]}" for key in ("exclusiveMinimum",) if key in node]
    return f"{text} ({' and '.join(bounds)})" if bounds else text


def show(value: Any) -> str:
    if isinstance(value, dict):
        return "a section"
    if value is None:
        return "nothing"
    text = emit(value)
    return (text if len(text) <= 60 else text[:57] + "...") + (" (a text)" if isinstance(value, str) else "")


def near(name: str, path: KeyPath, known: Mapping[KeyPath, Any]) -> str:
    """The nearest valid key: alike or by its initials beside it, then alike elsewhere."""
    beside = {other[-1]: other for other in known if other[:-1] == path[:-1]}
    for other in beside:
        if "".join(word[0] for word in other.split("_")) == name:
            return f"; did you mean {'.'.join(beside[other])}?"
    if close := difflib.get_close_matches(name, beside, 1, 0.6):
        return f"; did you mean {'.'.join(beside[close[0]])}?"
    elsewhere = {other[-1]: other for other in sorted(known, key=len, reverse=True)}
    if close := difflib.get_close_matches(name, elsewhere, 1, 0.75):
        return f"; did you mean {'.'.join(elsewhere[close[0]])}?"
    return f"; known here: {', '.join(beside)}" if 0 < len(beside) <= MAX_KEYS_NAMED else ""


def explain(tree: Tree, source: str, error: ValidationError) -> list[tuple[Mark, str]]:
    """One problem a key, in words of the schema."""
    whole = schema()
    defs = whole["$defs"]
    known = dict(walk(whole["properties"], defs))
    problems: dict[KeyPath, tuple[Mark, str]] = {}
    for item in error.errors():
        path: KeyPath = ()
        for step in item["loc"]:
            unknown = item["type"] == "extra_forbidden" and step == item["loc"][-1]
            if isinstance(step, str) and ((*path, step) in known or unknown):
                path = (*path, step)
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            where = tree.keys.get(path) or tree.at(path) or Mark(source)
            problems[path] = (where, f"{key}: unknown key{near(path[-1], path, known)}")
        elif item["type"] == "missing":
            problems[path] = (tree.at(path) or Mark(source), f"{key}: missing; needs {describe(known[path])}")
        else:
            problems.setdefault(
                path,
                (
                    tree.at(path) or Mark(source),
                    f"{key}: found {show(tree.get(path))}; needs {describe(known[path])}",
                ),
            )
    return list(problems.values())
