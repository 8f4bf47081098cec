"""The row that every dashboard opens with: is it well, how fast, how stale, and what holds it up."""

from __future__ import annotations

from monitor.grafana.panels import Panel, stat
from monitor.grafana.queries import (
    ALERTS,
    age,
    grown,
    histogram_mean,
    largest,
    one,
    per_second,
    quantile,
    summed,
    top,
    waiting,
)

FOR_LEARNER = "credit|ring_full|version|owner"  # reasons for which a producer waits until a learner has moved
FEW = 0.1  # a share of waiting that tells nothing


def held_up_by() -> str:
    """The share of their time that others wait for the part that is waited for most."""
    waits = {
        "the learner": waiting("producer", "producer_wait_seconds_total", FOR_LEARNER),
        "the inference server": waiting("producer", "producer_wait_seconds_total", "answer"),
        "the producers": waiting("learner", "learner_wait_seconds_total", "no_data"),
    }
    named = " or ".join(_named(share, name) for name, share in waits.items())
    nobody = _named(f"0 * {per_second('learner_updates_total')}", "the cores")
    return f"{top(1, f'({named}) > {FEW}')} or on () {nobody}"


def _named(expression: str, name: str) -> str:
    return f'label_replace({expression}, "part", "{name}", "", "")'


def now() -> list[Panel]:
    return [
        stat(
            "State",
            "What the run is doing; with several runs chosen, every state that one of them is in.",
            "none",
            {"{{state}}": f"{largest(one('run_state'), by='state')} == 1"},
            width=2,
            shows="name",
        ),
        stat(
            "Up",
            "Time since this attempt at the run began.",
            "s",
            {"up": age("run_start_timestamp_seconds")},
            width=2,
        ),
        stat(
            "Bandwidth",
            "Trajectories written to the rings. Packed: all their bytes, as they are stored. Unpacked: the "
            "observations as the network's first layer sees them, a multi-hot channel counted as one byte.",
            "Bps",
            {
                "packed": per_second("ring_committed_bytes_total"),
                "unpacked": per_second("ring_committed_unpacked_bytes_total"),
            },
            width=4,
        ),
        stat(
            "Steps",
            "Agent-steps trained on, each counted once.",
            "count:steps/s",
            {"steps": per_second("ring_consumed_samples_total")},
            width=3,
        ),
        stat(
            "Lag",
            "Staleness: version lag of the steps trained on, its mean and what 99 % do not exceed, and the "
            "bound on it. The quantile is interpolated in its bucket and can read up to one version low.",
            "none",
            {
                "mean": histogram_mean("batch_staleness_updates"),
                "p99": quantile(0.99, "batch_staleness_updates"),
                "limit": largest(one("staleness_limit_updates")),
            },
            width=4,
            decimals=1,
        ),
        stat(
            "Held up by",
            "The part that the others wait for most, and the share of their time that they do. "
            "Where nobody waits for a tenth of the time, all are at work: more cores are what would help.",
            "percentunit",
            {"{{part}}": held_up_by()},
            width=3,
            shows="value_and_name",
            decimals=0,
        ),
        stat(
            "Checkpoint",
            "Age of the last checkpoint; before the first, of the run.",
            "s",
            {"age": age("checkpoint_last_success_timestamp_seconds")},
            width=2,
        ),
        stat(
            "Restarts 1 h",
            "Processes started in the last hour in place of ones that died.",
            "none",
            {"restarts": grown("process_restarts_total", window="1h")},
            width=2,
            decimals=0,
            steps={"green": None, "orange": 1, "red": 4},
        ),
        stat(
            "Alerts",
            "Alerts that fire now: docs/runbook.md has a section for each.",
            "none",
            {"firing": f"{summed(ALERTS)} or vector(0)"},
            width=2,
            steps={"green": None, "red": 1},
        ),
    ]
