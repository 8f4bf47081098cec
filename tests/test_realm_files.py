"""The run files of the realm are good, and what is said of the large one is what it comes to."""

import re
from pathlib import Path

import pytest

from producers import footprint
from producers.prepare import Layout, prepare

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/petabyte.md").read_text()


@pytest.fixture(scope="module")
def large():
    return prepare(str(ROOT / "realm-petabyte.yaml"), [])


def said(pattern):
    """The number in the page's only line that fits."""
    (found,) = re.findall(pattern, PAGE)
    return float(found.replace(",", ""))


def test_the_small_run_file_is_good_and_fits_a_small_machine():
    prepared = prepare(str(ROOT / "realm.yaml"), [])
    assert (prepared.spec["agents"], prepared.worlds) == (128, 8)
    assert 240_000 < prepared.program.count < 310_000
    needed = footprint.need(prepared.config, prepared.program, prepared.hardware, 1).total
    assert Layout(prepared).total_bytes + needed < 2 << 30


def test_the_large_run_file_is_good_for_six_gpus_and_for_eight(large):
    Layout(large)
    config = large.config
    steps = config.learner.batch_slots * config.producers.agents * config.rollout.horizon
    assert int(config.producers.count) * large.worlds == 48
    assert steps == 2_949_120
    assert steps / config.learner.minibatches == 184_320
    assert Layout(prepare(large.document.path, ["learner.count=8", "server.count=8"]))


def test_a_gpu_of_the_stated_memory_takes_a_minibatch_in_as_many_parts_as_the_page_says(large):
    assert large.config.learner.memory == 16 << 30
    assert large.config.learner.parts == 1
    needed = footprint.need(large.config, large.program, large.hardware, 1)
    assert said(r"by the estimate, ([\d.]+) GiB") == pytest.approx(
        (needed.total - needed.process) / 2**30, abs=0.1
    )
    smaller = prepare(large.document.path, ["learner.memory=3GiB"])
    assert smaller.config.learner.parts == 2


def test_the_bytes_of_a_step_on_the_page_are_those_of_the_plan(large):
    plan = Layout(large).plans[0]
    steps = plan.horizon * plan.agents
    assert said(r"\*\*of a slot, by step\*\* \| \*\*([\d,]+)\*\*") == pytest.approx(
        plan.payload_bytes / steps, abs=1
    )
    assert said(r"as the first layer sees it: .* \| ([\d,]+) \|") == large.program.unpacked_step_bytes(
        large.spec
    )
    assert said(r"a slot: 60 steps × 2048 agents \| (\d+) MB") == round(plan.payload_bytes / 1e6)
    rings = 24 * large.config.ring.slots * plan.payload_bytes / 1e9
    assert said(r"24 × 4 slots \| ([\d.]+) GB") == pytest.approx(rings, abs=0.1)
    assert large.config.stop.steps * large.program.unpacked_step_bytes(large.spec) == pytest.approx(
        6.2e15, rel=1e-3
    )
    assert f"{large.program.count / 1e6:.1f} million parameters" in PAGE
