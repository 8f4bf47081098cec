"""Which keys may change while a run is under way, and what a run file that was edited changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from config.errors import ConfigError
from config.places import emit
from config.rules import conflicts, fewest_by_default
from config.sections import Config

LIVE_SECTIONS = ("stop", "checkpoint", "supervisor")
LIVE_KEYS = (
    "learner.learning_rate",
    "learner.entropy_coef",
    "monitor.log_bytes",
    "monitor.log_files",
    "monitor.log_level",
)
FOLLOWS = "supervisor.min_producers"


@dataclass(frozen=True)
class Change:
    """One key with another value than before."""

    key: str
    old: Any
    new: Any

    @property
    def live(self) -> bool:
        """Whether a run under way can take it up; the others need a restart."""
        return self.key in LIVE_KEYS or self.key.partition(".")[0] in LIVE_SECTIONS

    def __str__(self) -> str:
        text = f"{self.key}: {_show(self.old)} -> {_show(self.new)}"
        return text if self.live else f"{text} (needs a restart)"


def changes(old: Config, new: Config) -> list[Change]:
    """Keys whose values differ, in the order of the sections, but for what follows from other keys."""
    before, after = _flat(old), _flat(new)
    if _follows(old) and _follows(new):
        after[FOLLOWS] = before[FOLLOWS]
    keys = dict.fromkeys([*before, *after])
    return [
        Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    ]


def take_over(running: Config, new: Config) -> Config:
    """The running configuration with the live keys of another one.

    Raises ConfigError where they do not fit the keys that stay as they are.
    """
    values = running.model_dump(mode="json")
    for change in changes(running, new):
        if change.live:
            section, _, key = change.key.partition(".")
            values[section][key] = change.new
    merged = Config.model_validate(values)
    wrong, _ = conflicts(merged)
    if wrong:
        raise ConfigError([f"{key}: {text}; the run under way keeps its other keys" for key, text in wrong])
    return merged


def _follows(config: Config) -> bool:
    """Whether `FOLLOWS` is what other keys, which stay as they are in a run under way, make of `auto`."""
    return config.supervisor.min_producers == fewest_by_default(config, int(config.producers.count))


def _flat(config: Config) -> dict[str, Any]:
    """`section.key` to value."""
    flat: dict[str, Any] = {}
    for section, value in config.model_dump(mode="json").items():
        if isinstance(value, dict):
            flat |= {f"{section}.{key}": item for key, item in value.items()}
        else:
            flat[section] = value
    return flat


def _show(value: Any) -> str:
    return str(emit(value))
