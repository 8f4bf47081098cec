"""Whoever acts, the policy learns equally: two one-sided tests at 5 % with a margin of 15 %.

    HEADRACE_SEEDS   number of training seeds of each placement (default 8)
"""

import json
import math
import os
import statistics

import pytest
from command import supervise

from consumers.evaluate import student_t
from monitor import rundir

MARGIN = 0.15  # of what producers that act themselves come to
STEPS = 120_000

RUN = """\
run: {name: toy}
sim: {name: cartpole}
producers: {count: 2, agents: 32}
rollout: {horizon: 32}
policy: {hidden: [64], activation: tanh}
learner: {batch_slots: 2, minibatches: 4, epochs: 4, learning_rate: 1e-3, correction: vtrace, threads: 1}
monitor: {port: 0, interval_seconds: 5}
evaluate: {episodes: 0}
"""


def learned(folder, placement, seed):
    """The mean score over the training of one run, each step weighing the same: the area under its curve."""
    folder.mkdir()
    (folder / "run.yaml").write_text(RUN)
    finished = supervise(folder, "run.yaml", f"policy.placement={placement}", f"run.seed={seed}",
                         f"stop.steps={STEPS}")  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    path = folder / "runs/toy"
    assert rundir.read_json(path / rundir.SUMMARY)["state"] == "done"
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return statistics.fmean(one["score_mean"] for one in lines if one["score_mean"] is not None)


@pytest.mark.soak
def test_policies_learn_equally_whoever_acts(tmp_path):
    """By pairs of the same seed: the 90 % interval of the mean difference lies within the margin."""
    seeds = range(1, 1 + int(os.environ.get("HEADRACE_SEEDS", 8)))
    scores = {placement: [learned(tmp_path / f"{placement}-{seed}", placement, seed) for seed in seeds]
              for placement in ("producer", "server")}  # fmt: skip
    margin = MARGIN * statistics.fmean(scores["producer"])
    apart = [a - b for a, b in zip(scores["server"], scores["producer"], strict=True)]
    # student_t is for 95 %: wider than the 90 % that two tests at 5 % need.
    half = student_t(len(apart) - 1) * statistics.stdev(apart) / math.sqrt(len(apart))
    mean = statistics.fmean(apart)
    found = f"{mean:+.2f} +- {half:.2f}, margin {margin:.2f}, producer {scores['producer']}"
    print(found)
    assert -margin < mean - half, found
    assert mean + half < margin, found
