"""When a process that died is started again: at once, after a delay, or no more. Rules without I/O."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol


class Limits(Protocol):
    """The keys of `supervisor` that decide."""

    @property
    def backoff_seconds(self) -> float: ...

    @property
    def backoff_max_seconds(self) -> float: ...

    @property
    def max_failures(self) -> int: ...

    @property
    def failure_seconds(self) -> float: ...


class Restarts:
    """The deaths of one process.

    A death after progress is the price of weeks: the process starts again at once, and nothing is counted.
    Without progress it would only die again, so the delay doubles with each such death in a row,

        min(backoff_max_seconds, backoff_seconds * 2 ** (n - 1)) * jitter,    jitter in [0.5, 1)

    and more than `max_failures` of them within `failure_seconds` mean that it has failed. Jitter keeps
    processes that died together from starting together. `gives_up=False`: it never counts as failed.
    """

    def __init__(self, *, gives_up: bool = True, uniform: Callable[[float, float], float] = random.uniform):
        self._gives_up = gives_up
        self._uniform = uniform
        self._in_a_row = 0
        self._failures: deque[float] = deque()  # times of deaths without progress

    def died(self, now: float, *, progressed: bool, limits: Limits) -> float | None:
        """Seconds until the restart; None: it has failed. `now`: any clock that only goes forward."""
        if progressed:
            self._in_a_row = 0
            return 0.0
        self._failures.append(now)
        while self._failures[0] < now - limits.failure_seconds:
            self._failures.popleft()
        if self._gives_up and len(self._failures) > limits.max_failures:
            return None
        # The exponent is bounded: after a thousand deaths in a row a float could not hold the power.
        delay = limits.backoff_seconds * 2.0 ** min(self._in_a_row, 64)
        self._in_a_row += 1
        return min(limits.backoff_max_seconds, delay) * self._uniform(0.5, 1.0)

    @property
    def failures(self) -> int:
        """Deaths without progress that still count."""
        return len(self._failures)


def enough(
    left_each: Sequence[int], *, slots: int, least: int, batch_slots: int, exact: bool, producers: int
) -> str | None:
    """Whether a run can do without its failed producers: None, or why not.

    `left_each`: of how many rings, `slots` each, every learner still has the producer, of `producers` in all.
    With fewer slots than its part of a batch has, none would ever be full; in the exact modes every batch
    needs every ring.
    """
    left, share = sum(left_each), batch_slots // len(left_each)
    if exact and left < producers:
        return "a batch of mode sync or lagged needs slots of every producer"
    if left < least:
        return f"{left} of {producers} producers are left; the run needs {least} (supervisor.min_producers)"
    fewest = min(left_each) * slots
    if fewest < share:
        whose, what = ("", "") if len(left_each) == 1 else (" to one learner", " of it")
        return f"the rings left{whose} hold {fewest} slots; a batch needs {share}{what}"
    return None
