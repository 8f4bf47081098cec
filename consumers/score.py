"""The score of training: means over windows of finished episodes, and whether the goal is met."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike


class ScoreWindow:
    """Mean raw score of the last `window` finished episodes, its best, and whether `goal` was met.

    The goal is met when two windows that share no episode have a mean of at least `goal`. Every episode
    ends a window, so best and goal do not depend on how many episodes arrive at once. Use a window no
    smaller than the number of agents that play side by side: of many, the first to finish are those with
    the shortest episodes.
    """

    def __init__(self, window: int, goal: float | None = None):
        if window < 1:
            raise ValueError(f"a window of {window} episodes")
        self.window = window
        self.goal = goal
        self.episodes = 0
        self.best: float | None = None
        self.solved = False
        self._recent = np.zeros(0)  # the last `window` scores, oldest first
        self._first_met: int | None = None  # episodes finished when the goal was met for the first time

    @property
    def mean(self) -> float | None:
        """None before `window` episodes have finished."""
        return float(self._recent.mean()) if len(self._recent) == self.window else None

    def add(self, scores: ArrayLike) -> None:
        """Takes the scores [n] of newly finished episodes, in order."""
        scores = np.asarray(scores, np.float64)
        known = np.concatenate([self._recent, scores])
        before_known = self.episodes - len(self._recent)
        self.episodes += len(scores)
        self._recent = known[-self.window :]
        if len(known) < self.window:
            return
        sums = np.concatenate([[0.0], np.cumsum(known)])
        ends = np.arange(self.window, len(known) + 1)
        means = (sums[ends] - sums[ends - self.window]) / self.window
        ends, means = ends[np.isfinite(means)], means[np.isfinite(means)]  # a NaN would stay the best
        if not len(means):
            return
        self.best = float(means.max() if self.best is None else max(self.best, means.max()))
        if self.goal is None or self.solved:
            return
        met = before_known + ends[means >= self.goal]
        if self._first_met is None and len(met):
            self._first_met = int(met[0])
        self.solved = self._first_met is not None and bool(np.any(met >= self._first_met + self.window))

    def retarget(self, window: int, goal: float | None) -> None:
        """Goes on with another window or goal: both are judged anew from the episodes that are known."""
        if (window, goal) == (self.window, self.goal):
            return
        if window < 1:
            raise ValueError(f"a window of {window} episodes")
        known, self._recent = self._recent, np.zeros(0)
        if window != self.window:
            self.best = None  # means over fewer episodes scatter more: they do not compare
        self.window, self.goal, self.solved, self._first_met = window, goal, False, None
        self.episodes -= len(known)
        self.add(known)

    def state_dict(self) -> dict:
        return {
            "window": self.window,
            "goal": self.goal,
            "episodes": self.episodes,
            "best": self.best,
            "solved": self.solved,
            "recent": torch.from_numpy(self._recent.copy()),
            "first_met": self._first_met,
        }

    def load_state_dict(self, state: dict) -> None:
        """Goes on where the state was taken, with the window and goal that it has here."""
        window, goal = self.window, self.goal
        self.window, self.goal, self.episodes = state["window"], state["goal"], state["episodes"]
        self.best, self.solved, self._first_met = state["best"], state["solved"], state["first_met"]
        self._recent = state["recent"].numpy().copy()
        self.retarget(window, goal)
