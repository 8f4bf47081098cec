"""What a learner's books say of the batches it was given."""

import math
import time

import pytest

from consumers.books import Books
from consumers.entries import entry
from consumers.score import ScoreWindow

FIGURES = {"sgd_steps": 1, "samples": 16, "masked": 3, "burn_in": 5, "skipped": 0, "nonfinite": None,
           "alarms": []}  # fmt: skip


@pytest.fixture
def enter(rig, tmp_path):
    """Enters one batch of the learner of version 9, of a slot for each list of the versions of its steps."""

    def entered(*slots):
        ring = rig(slots=4, grant=4)
        ring.control.set_process(1, role="learner")
        producer, learner = ring.producer(), ring.learner()
        books = Books(ring.process(1), tmp_path, 0, ScoreWindow(10))
        for versions in slots:
            claim = producer.claim(versions[0])
            claim.array("version")[:, 0] = versions
            claim.array("valid")[...] = 1
            claim.commit(16, 0, versions[-1])
        leases = [learner.lease(sequence) for sequence in range(len(slots))]
        figures = books.enter(entry(leases, 9, time.monotonic_ns(), FIGURES), {})
        for lease in leases:
            lease.ack()
        return figures

    return entered


def test_lag_is_told_by_its_mean_its_maximum_and_its_spread_inside_a_slot(enter):
    figures = enter([8, 8, 8, 8], [4, 5, 7, 7], [2, 2, 2, 2])
    assert figures["lag_mean"] == pytest.approx((4 * 1 + 5 + 4 + 2 + 2 + 4 * 7) / 12)
    assert figures["lag_max"] == 7
    assert figures["lag_spread"] == 3, "slots apart from each other are not a spread"


def test_lag_is_told_in_optimizer_steps_and_in_steps_of_agents_too(enter):
    figures = enter([8, 8, 8, 8], [6, 6, 6, 6])
    steps = 2 * 16
    assert figures["lag_mean"] == 2.0
    assert figures["lag_sgd_steps"] == 2.0 * FIGURES["sgd_steps"]
    assert figures["age_steps"] == 2.0 * steps
    assert figures["sample_reuse"] == FIGURES["samples"] / steps


def test_slots_of_one_version_each_have_no_spread(enter):
    figures = enter([8, 8, 8, 8], [5, 5, 5, 5])
    assert figures["lag_spread"] == 0
    assert math.isfinite(figures["age_seconds"])
