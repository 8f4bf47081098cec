"""What is said when a run file is wrong or cannot be read."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(Exception):
    """Something in run.yaml or in an override is wrong. `problems`: one line each, with its place."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class Unreadable(Exception):
    """The run file cannot be read at all."""
