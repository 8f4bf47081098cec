"""study.resolved.json: what a study asks for and on what it runs, for whoever reads its cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stress import store
from stress.cells import Cell, Matrix, threshold


def described(matrix: Matrix, cells: Sequence[Cell], workers: int) -> dict[str, Any]:
    """The object in study.resolved.json. `cells`: all that are planned, also those whose learning rate has
    yet to be chosen; `workers`: learners at once."""
    file, study = matrix.file, matrix.file.study
    kinds = {cell.kind for cell in cells}
    tasks = {
        name: {
            "solved": task.solved,
            "floor": task.floor,
            "threshold": threshold(task),
            "steps": matrix.steps(name),
            "slow_tail": task.slow_tail,
        }
        for name, task in study.tasks.items()
        if any(kind.task == name for kind in kinds)
    }
    purposes = [cell.kind.purpose for cell in cells]
    return {
        "name": study.study.name,
        "file": file.path,
        "tasks": tasks,
        "arms": list(dict.fromkeys(cell.kind.correction for cell in cells)),
        "lags": sorted({kind.lag for kind in kinds if kind.mode == "lagged"}),
        "seeds": sorted({cell.seed for cell in cells if cell.kind.purpose != "tuning"}),
        "primary": [{"name": name, **contrast.model_dump()} for name, contrast in study.primary.items()],
        "planned_cells": len(cells),
        "cells": [cell.id for cell in cells if cell.learning_rate is not None],
        "planned": {purpose: purposes.count(purpose) for purpose in sorted(set(purposes))},
        "machine": store.machine(),
        "workers": workers,
        "code": store.code_fingerprint(),
        "study": file.tree.value,
    }
