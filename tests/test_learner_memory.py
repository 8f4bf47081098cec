"""What memory a learner will need is known before the start, within a factor, and too little is refused."""

import json
import subprocess
import sys

import pytest
from command import ROOT, supervise

from producers import footprint
from producers.footprint import PROCESS_BYTES, Hardware, need
from producers.prepare import Missing, prepare

FACTOR = 1.5  # between the estimate and the measured peak, of all that is not the process itself
NETWORK = """\
run: {name: toy}
sim: {name: breakout}
producers: {count: 1, agents: 256}
rollout: {horizon: 64}
ring: {slots: 6}
learner: {device: cpu, batch_slots: 4, minibatches: 1, precision: float32}
monitor: {port: 0}
"""
WHOLE = [
    ("policy.recurrent=mingru",),
    ("policy.recurrent=lstm", "learner.precision=bf16", "learner.correction=tis"),
]
MORE = [
    ("policy.hidden=[512]",),
    ("sim={name: realm, width: 64, height: 64, agents: 32}", "policy.preset=small"),
    ("policy.recurrent=lstm", "policy.activation=gelu-erf"),
    (
        "policy.recurrent=mingru",
        "learner.minibatch_parts=4",
        "learner.correction=m2po",
        "producers.agents=1024",
    ),
    ("policy.hidden=[2048,2048,2048]", "producers.agents=8"),
    ("policy.recurrent=mingru", "learner.burn_in=8", "learner.loss=torch", "learner.correction=decoupled"),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(NETWORK)
    return str(path)


def estimate(file, *overrides):
    prepared = prepare(file, overrides)
    return need(prepared.config, prepared.program, prepared.hardware, prepared.config.learner.parts)


@pytest.mark.parametrize("options", [*WHOLE, *(pytest.param(one, marks=pytest.mark.soak) for one in MORE)])
def test_the_estimate_is_within_a_factor_of_the_measured_peak(file, options):
    command = [sys.executable, "-m", "peak_memory", file, *options]
    done = subprocess.run(command, cwd=ROOT / "tests", env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    peak = json.loads(done.stdout)["peak"] - PROCESS_BYTES
    assert peak > 100 << 20, "else the process itself would be all there is to see"
    one = estimate(file, *options)
    found = one.total - one.process  # with the process are snapshots, which an update does not make
    assert peak / FACTOR < found < peak * FACTOR


def test_more_parts_need_less_and_everything_else_that_is_larger_needs_more(file):
    plain = estimate(file)
    assert estimate(file, "learner.minibatch_parts=4").activations == pytest.approx(plain.activations / 4)
    assert estimate(file, "learner.minibatches=4").activations == pytest.approx(plain.activations / 4)
    for larger in ("policy.hidden=[256,256]", "policy.recurrent=lstm", "learner.batch_slots=5",
                   "rollout.horizon=96", "learner.correction=impact"):  # fmt: skip
        assert estimate(file, larger).total > plain.total, larger
    assert estimate(file, "learner.precision=bf16").total < plain.total


def test_a_budget_is_kept_with_as_few_parts_as_it_takes(file):
    whole, half = estimate(file), estimate(file, "learner.minibatch_parts=2")
    for budget, parts in ((whole.total, 1), (whole.total - 1, 2), (half.total, 2), (half.total - 1, 4)):
        assert prepare(file, [f"learner.memory={budget}"]).config.learner.parts == parts
    assert prepare(file, []).config.learner.parts == 1


def test_too_small_a_budget_is_refused_with_the_numbers_and_what_would_help(file, tmp_path):
    def check(*settings):
        return supervise(tmp_path, file, "--check", *settings)

    done = check("learner.memory=420MiB", "learner.minibatch_parts=1")
    assert done.returncode == 69
    assert "override 'learner.memory=420MiB': learner.memory: " in done.stderr
    for part in ("a learner is estimated to need", "activations of 66,560 steps", "the budget is 420 MiB",
                 "learner.minibatch_parts: 8 or more"):  # fmt: skip
        assert part in done.stderr
    assert check("learner.memory=420MiB").returncode == 0, "as many parts as it takes"
    done = check("learner.memory=100MiB")
    assert done.returncode == 69
    assert "fewer learner.batch_slots" in done.stderr


def test_a_machine_with_too_little_is_not_started_on(file, monkeypatch):
    from producers.prepare import Layout
    from ringbuf import segments

    prepared = prepare(file, [])
    rings = Layout(prepared).total_bytes
    whole = estimate(file).total
    for limit, missing in ((rings + whole, False), (rings + whole - 1, True)):
        monkeypatch.setattr(segments, "memory_bytes", lambda limit=limit: limit)
        if missing:
            with pytest.raises(Missing, match="this machine has for each"):
                Layout(prepared)
        else:
            Layout(prepared)


def test_with_a_gpu_it_is_the_gpu_that_must_have_room(file):
    prepared = prepare(file, ["learner.device=cuda", "learner.count=1"])
    config, program, parts = prepared.config, prepared.program, 1
    gpu = Hardware((80 << 30,))
    one = need(config, program, gpu, parts)
    on_gpu = one.total - one.process
    assert footprint.shortfall(config, program, gpu, 64 << 30, 0) is None
    small = Hardware((on_gpu - 1,))
    key, problem = footprint.shortfall(config, program, small, 64 << 30, 0)
    assert key == "learner.memory"
    assert "its part of a GPU" in problem
    # the process beside it needs no room for activations
    assert footprint.shortfall(config, program, gpu, one.process, 0) is None
    assert footprint.shortfall(config, program, gpu, one.process - 1, 0) is not None


def test_what_nvidia_smi_says_of_its_gpus_is_believed(tmp_path):
    smi = tmp_path / "smi"
    smi.write_text("#!/bin/sh\necho 24564\necho 24564\n")
    smi.chmod(0o755)
    assert footprint.read_hardware(smi=str(smi)).gpu_bytes == (24564 << 20,) * 2
    assert footprint.read_hardware(smi=str(tmp_path / "none")).gpu_bytes == ()
