"""Writing a configuration: as YAML for people and processes, and the reference of all keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from config.explain import describe, properties_of
from config.places import KeyPath, emit
from config.sections import Config, Reward, Sim, schema


def dump_resolved(config: Config, origin: Any = None) -> str:
    """The configuration as YAML with every key. `origin(path) -> str`: a comment beside each value."""
    lines = []

    def line(text: str, path: KeyPath) -> None:
        lines.append(text if origin is None else f"{text:<44} # {origin(path)}")

    for section, value in config.model_dump(mode="json").items():
        if not isinstance(value, dict):
            line(f"{section}: {emit(value)}", (section,))
            continue
        lines.append(f"{section}:")
        for key, item in value.items():
            line(f"  {key}: {emit(item)}", (section, key))
    return "\n".join(lines) + "\n"


def markdown() -> str:
    """The reference of all keys, for docs/configuration.md."""
    whole = schema()
    defs = whole["$defs"]
    defaults = Config.model_construct(sim=Sim(name="-")).model_dump(mode="json")
    lines: list[str] = []

    def table(title: str, doc: str, properties: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        lines.extend(
            [f"### `{title}`", "", doc, "", "| key | default | needs | meaning |", "|---|---|---|---|"]
        )
        for name, node in properties.items():
            required = "default" not in node and values.get(name, "-") == "-"
            default = "required" if required else f"`{emit(values[name])}`"
            text = f"| `{name}` | {default} | {describe(node)} | {node['description']} |"
            lines.append(text)
        lines.append("")

    top = {name: node for name, node in whole["properties"].items() if not properties_of(node, defs)}
    table("(top level)", "Keys outside any section.", top, defaults)
    for name, node in whole["properties"].items():
        if name not in top:
            definition = defs[node["$ref"].rsplit("/", 1)[1]]
            table(name, definition["description"], definition["properties"], defaults[name])
    for name in ("Reward", "Schedule"):
        blank = (
            {"start": "-", "end": "-", "kind": "linear", "steps": None}
            if name == "Schedule"
            else Reward().model_dump()
        )
        title = {"Reward": "learner.reward", "Schedule": "learner.learning_rate, learner.entropy_coef"}[name]
        table(title, defs[name]["description"], defs[name]["properties"], blank)
    return "\n".join(lines)
