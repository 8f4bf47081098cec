"""Where the time of an update goes: wall time, in named parts."""

from __future__ import annotations

import time
from collections.abc import Iterable


class Stopwatch:
    """`spent_ns` by name. Not thread-safe."""

    def __init__(self, names: Iterable[str]):
        self.spent_ns = dict.fromkeys(names, 0)
        self._at = time.perf_counter_ns()

    def reset(self) -> None:
        """Forgets what was spent, in a new dict."""
        self.spent_ns = dict.fromkeys(self.spent_ns, 0)

    def start(self) -> None:
        """What has passed until now is nobody's."""
        self._at = time.perf_counter_ns()

    def lap(self, name: str) -> None:
        """What has passed since the last call is `name`'s."""
        now = time.perf_counter_ns()
        self.spent_ns[name] += now - self._at
        self._at = now
