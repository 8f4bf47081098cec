"""Writes rliable_vectors.json and scipy_vectors.json beside it: estimates and tests to compare with.

python tests/data/statistics_vectors.py     (with rliable, scipy, statsmodels and pandas < 3 installed)
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rliable import library, metrics
from scipy import special, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

HERE = Path(__file__).parent
THRESHOLDS = [0.0, 0.25, 0.5, 0.75, 1.0]
random = np.random.default_rng(7)


def rliable() -> dict[str, Any]:
    collapsed = random.random((12, 2)) < 0.3
    cases = {
        "one task": random.normal(0.7, 0.2, (10, 1)).round(4),
        "two tasks, two humps": np.where(
            collapsed, random.normal(0.1, 0.05, (12, 2)), random.normal(0.95, 0.05, (12, 2))
        ).round(4),
        "few seeds": random.normal(0.5, 0.3, (3, 4)).round(4),
        "ties": random.normal(0.6, 0.2, (11, 3)).round(1),
    }
    others = {
        "one task": random.normal(0.6, 0.2, (8, 1)).round(4),
        "ties": random.normal(0.55, 0.2, (9, 3)).round(1),
    }
    estimates, improvements = [], []
    np.random.seed(1)
    for name, scores in cases.items():
        both = lambda x: np.array([metrics.aggregate_iqm(x), metrics.aggregate_optimality_gap(x)])  # noqa: E731
        _, intervals = library.get_interval_estimates({"": scores}, both, reps=50_000)
        estimates.append({
            "name": name,
            "scores": scores.tolist(),
            "iqm": metrics.aggregate_iqm(scores),
            "iqm_interval": intervals[""][:, 0].tolist(),
            "optimality_gap": metrics.aggregate_optimality_gap(scores),
            "optimality_gap_interval": intervals[""][:, 1].tolist(),
            "thresholds": THRESHOLDS,
            "profile": library.score_distributions(scores, THRESHOLDS).tolist(),
        })  # fmt: skip
    for name, y in others.items():
        x = cases[name]
        probability = lambda x, y: np.array([metrics.probability_of_improvement(x, y)])  # noqa: E731
        _, intervals = library.get_interval_estimates({"": [x, y]}, probability, reps=2000)
        improvements.append({
            "x": x.tolist(),
            "y": y.tolist(),
            "probability": metrics.probability_of_improvement(x, y),
            "interval": intervals[""][:, 0].tolist(),
        })  # fmt: skip
    return versions("rliable", "arch", "numpy") | {"estimates": estimates, "improvements": improvements}


def scipy() -> dict[str, Any]:
    tests = []
    for n, mean, spread in ((2, 0.5, 0.2), (5, 0.1, 0.3), (10, 0.2, 0.2), (14, 0.0, 0.1), (10, 3.0, 0.1)):
        x, y = random.normal(mean, spread, n).round(3), random.normal(0, 0.2, n).round(3)
        paired, welch = stats.ttest_rel(x, y), stats.ttest_ind(x, y[: max(2, n - 1)], equal_var=False)
        signs = stats.permutation_test((x - y,), np.mean, permutation_type="samples", n_resamples=np.inf)
        tests.append({
            "x": x.tolist(),
            "y": y.tolist(),
            "paired": [paired.statistic, paired.df, paired.pvalue],
            "welch": [welch.statistic, welch.df, welch.pvalue],
            "sign_flips": signs.pvalue,
            "equivalence": [[margin, ttost_paired(x, y, -margin, margin)[0]] for margin in (0.1, 0.3, 1.0)],
        })  # fmt: skip
    families = ([0.01, 0.04, 0.03, 0.005], [0.5, 0.2, 0.9, 0.001, 0.001], [0.04], [0.049, 0.051, 0.048])
    beta = (
        (0.5, 0.5, 0.3),
        (5, 0.5, 0.9),
        (50, 0.5, 0.999),
        (2, 3, 0.4),
        (4.5, 0.5, 0.1),
        (15.25, 0.5, 0.97),
    )
    t = ((2.0, 9), (0.0, 3), (-1.3, 4), (12.0, 9), (40.0, 30.5), (1.5, 1))
    return versions("scipy", "statsmodels", "numpy") | {
        "tests": tests,
        "holm": [{"p": p, "adjusted": multipletests(p, method="holm")[1].tolist()} for p in families],
        "incomplete_beta": [[*arguments, special.betainc(*arguments)] for arguments in beta],
        "t_tail": [[*arguments, stats.t.sf(*arguments)] for arguments in t],
        "seeds": [
            [effect, TTestPower().solve_power(effect_size=effect, alpha=0.05, power=0.8)]
            for effect in (0.3, 0.5, 1.0, 2.0)
        ],
    }


def versions(*names: str) -> dict[str, Any]:
    return {"versions": {name: version(name) for name in names}}


for name, vectors in (("rliable", rliable()), ("scipy", scipy())):
    (HERE / f"{name}_vectors.json").write_text(json.dumps(vectors, indent=1, default=float) + "\n")
