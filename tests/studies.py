"""Studies with known truth, for the report: a store is written as the runner writes it, with made-up runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 200_000
POINTS = 40
FLOOR, SOLVED = 20.0, 220.0
DIAGNOSTICS = ("ratio_ess", "ratio_k3", "grad_norm", "explained_variance")


def study(*tasks: str, primary: Iterable[dict[str, Any]] = (), **facts: Any) -> dict[str, Any]:
    """What study.resolved.json holds."""
    task = {"solved": SOLVED, "floor": FLOOR, "threshold": 170.0, "steps": STEPS, "slow_tail": False}
    return {
        "name": "made-up", "tasks": {name: dict(task) for name in tasks or ("cartpole",)},
        "primary": list(primary), "machine": {"cpu": "none", "cores": 2}, **facts,
    }  # fmt: skip


def cell(
    seed: int,
    level: float = 1.0,
    *,
    task: str = "cartpole",
    mode: str = "lagged",
    lag: int = 0,
    correction: str = "ppo",
    purpose: str = "main",
    learners: int = 1,
    noise: float = 0.03,
    collapse_at: float | None = None,
    warned_by: str | None = None,
    seconds: float = 20.0,
    realised_lag: float | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A run that rises to `level` (1: solved) within a third of its steps, give or take `noise`; it falls to
    a tenth after the share `collapse_at`, of which the diagnostic `warned_by` tells a sixth of the steps
    before."""
    facts = {
        "task": task, "mode": mode, "lag": lag, "correction": correction, "learning_rate": 0.001, "epochs": 2,
        "seed": seed, "learners": learners, "purpose": purpose,
    }  # fmt: skip
    facts |= {key: changes.pop(key) for key in ("learning_rate", "epochs") if key in changes}
    name = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(name.encode()).hexdigest()
    random = np.random.default_rng([int(digest[:8], 16)])
    share = (np.arange(POINTS) + 1) / POINTS
    reaches = level + noise * random.normal()
    scores = reaches * np.minimum(1.0, share * 3) + 0.01 * random.normal(size=POINTS)
    diagnostics = {
        one: 1 + 0.05 * random.normal(size=POINTS) + (0.0 if lag == 0 else 0.02) for one in DIAGNOSTICS
    }
    if collapse_at is not None:
        scores[share > collapse_at] *= 0.1
        if warned_by is not None:
            sign = -1 if warned_by in ("ratio_ess", "explained_variance") else 1
            diagnostics[warned_by][share > collapse_at - 1 / 6] += sign * 2.0
    there = np.flatnonzero(scores >= 0.75)
    at = None if not there.size else float(share[there[0]])
    mean_lag = lag if realised_lag is None else realised_lag
    record = facts | {
        "status": "done", "why": None, "steps": STEPS, "versions": 400, "sgd_steps": 1600, "seconds": seconds,
        "steps_per_second": STEPS / seconds, "dropped_steps": 0,
        "evaluated": None,
        "solved_at_steps": None if at is None else round(at * STEPS),
        "solved_at_seconds": None if at is None else at * seconds,
        "curve": {
            "steps": [round(x * STEPS) for x in share], "seconds": (share * seconds).tolist(),
            "score": [None, *(FLOOR + (SOLVED - FLOOR) * scores[1:]).tolist()],
        },
        "diagnostics": {one: values.tolist() for one, values in diagnostics.items()},
        "lag_steps": {
            "mean": mean_lag, "p50": round(mean_lag), "p99": math.ceil(mean_lag), "max": math.ceil(mean_lag),
            "bins": [0] * math.floor(mean_lag) + [STEPS],
        },
        "lag_spread_max": 0,
        "gates": {"grad_norm_max": 1.5, "ratio_apart_max": 0.4 if lag else 1e-7, "weights_sha256": digest},
        "audits": {"label": 0, "ratio": 0, "target": 0, "precision": 0},
        "exclusive": mode != "lagged", "started": 0.0, "finished": seconds, "code": "0123456789abcdef",
    }  # fmt: skip
    record |= changes
    return record | {"id": digest[:16]}


def failed(seed: int, **keys: Any) -> dict[str, Any]:
    """A run of which nothing is known but that it failed."""
    return cell(seed, **keys) | {
        "status": "failed", "why": "the learner died", "steps": 0, "seconds": 0.0, "steps_per_second": 0.0,
        "solved_at_steps": None, "solved_at_seconds": None,
        "curve": {"steps": [], "seconds": [], "score": []}, "diagnostics": {},
        "lag_steps": None, "lag_spread_max": None, "gates": None, "audits": None,
    }  # fmt: skip


def store(folder: Path, facts: dict[str, Any], cells: Iterable[dict[str, Any]]) -> Path:
    """Writes the study's folder."""
    (folder / "cells").mkdir(parents=True)
    (folder / "study.resolved.json").write_text(json.dumps(facts))
    for record in cells:
        (folder / "cells" / f"{record['id']}.json").write_text(json.dumps(record))
    return folder
