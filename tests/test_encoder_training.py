"""A policy that expands the bytes of its observations, from the producer's slots to a solved task."""

import json

import pytest
from command import supervise
from native import DATA, compile_simulator

from monitor import rundir

CROP = """\
run: {{name: toy, seed: 3}}
sim: {{name: {library}, agents: 16}}
mode: sync
producers: {{count: 1, agents: 64, cores: [0]}}
rollout: {{horizon: 10}}
ring: {{slots: 3}}
policy: {{preset: small, channels: 16, hidden: [32], recurrent_width: 32, normalize_obs: {normalize}}}
learner:
  {{batch_slots: 1, epochs: 4, minibatches: 2, learning_rate: 5e-3, precision: {precision}, threads: 1}}
stop: {{score: 4.5, window: 128, versions: 150}}
monitor: {{port: 0, interval_seconds: 0.5}}
evaluate: {{episodes: 64, worlds: 2, seconds: 60}}
"""


@pytest.mark.parametrize(
    ("precision", "normalize"), [("bf16", "false"), pytest.param("float32", "true", marks=pytest.mark.soak)]
)
def test_a_task_whose_answer_is_a_category_in_the_grid_is_solved(tmp_path, precision, normalize):
    """Chance is 1.25 of 5. In sync every batch is acted by the weights that train on it: each audit must find
    actor and learner agreed."""
    library = compile_simulator((DATA / "crop.c").read_text(), tmp_path / "crop.so")
    text = CROP.format(library=library, precision=precision, normalize=normalize)
    (tmp_path / "run.yaml").write_text(text)
    done = supervise(tmp_path, "run.yaml")
    assert done.returncode == 0, done.stderr
    summary = rundir.read_json(tmp_path / "runs/toy" / rundir.SUMMARY)
    assert summary["score"]["best"] >= 4.5
    assert summary["score"]["evaluated"]["mean"] > 4
    assert int(summary["bytes"]["unpacked"]) / int(summary["bytes"]["packed"]) > 2
    updates = [json.loads(line) for line in (tmp_path / "runs/toy/metrics.jsonl").read_text().splitlines()]
    audited = [u for u in updates if u.get("audit_label_error") is not None]
    assert [u for u in audited if not u["audit_label_error"] <= u["audit_label_tolerance"]] == []
