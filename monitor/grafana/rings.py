"""Rings: how full they are, who waits at them, and the books that every slot is in."""

from __future__ import annotations

from monitor.grafana.now import FOR_LEARNER
from monitor.grafana.panels import Row, series
from monitor.grafana.queries import mean, one, per_second, rate, summed, top, waiting


def rows() -> list[Row]:
    return [
        Row(
            "Fill",
            [
                series(
                    "Fill",
                    "Slots committed and neither consumed nor dropped yet, of all there are.",
                    "percentunit",
                    {"all rings": f"{summed(one('ring_fill_slots'))} / {summed(one('ring_capacity_slots'))}"},
                    width=8,
                ),
                series(
                    "Fullest rings",
                    "The ten fullest. One that stays full belongs to a producer that is ahead.",
                    "percentunit",
                    {
                        "ring {{ring}} ({{instance}})": top(
                            10, f"{one('ring_fill_slots')} / {one('ring_capacity_slots')}"
                        )
                    },
                    width=8,
                ),
                series(
                    "In flight",
                    "Slots in the rings, and their places.",
                    "none",
                    {
                        "in flight": summed(one("ring_fill_slots")),
                        "places": summed(one("ring_capacity_slots")),
                    },
                    width=8,
                ),
            ],
        ),
        Row(
            "Waiting",
            [
                series(
                    "Full and empty",
                    "Share of its time that a producer waits for the learner (credit, a full "
                    "ring, a version, an owner), and a learner for data.",
                    "percentunit",
                    {
                        "producers, for the learner": waiting(
                            "producer", "producer_wait_seconds_total", FOR_LEARNER
                        ),
                        "learners, for data": waiting("learner", "learner_wait_seconds_total", "no_data"),
                    },
                    width=8,
                ),
                series(
                    "Producers, by reason",
                    "Share of a producer's time, on average.",
                    "percentunit",
                    {"{{reason}}": mean(rate("producer_wait_seconds_total"), by="reason")},
                    width=8,
                    stacked=True,
                ),
                series(
                    "Producers that wait most",
                    "The ten producers that wait most, for whatever reason.",
                    "percentunit",
                    {
                        "producer {{producer}} ({{instance}})": top(
                            10, per_second("producer_wait_seconds_total", by="instance, producer")
                        )
                    },
                    width=8,
                ),
            ],
        ),
        Row(
            "Books",
            [
                series(
                    "Slots",
                    "Committed, consumed and given to a learner again after a death.",
                    "count:slots/s",
                    {
                        "committed": per_second("ring_committed_slots_total"),
                        "consumed": per_second("ring_consumed_slots_total"),
                        "redelivered": per_second("ring_redelivered_slots_total"),
                    },
                    width=8,
                ),
                series(
                    "Slots lost",
                    "Dropped, and not written where ring.full is drop_newest.",
                    "count:slots/s",
                    {
                        "dropped": per_second("ring_dropped_slots_total"),
                        "not written": per_second("ring_not_written_slots_total"),
                    },
                    width=8,
                ),
                series(
                    "Unaccounted for",
                    "Committed less consumed, dropped and in flight. Anything but 0 is a defect.",
                    "none",
                    {
                        "slots": f"{summed(one('ring_committed_slots_total'))} - "
                        f"{summed(one('ring_consumed_slots_total'))} - "
                        f"{summed(one('ring_dropped_slots_total'))} - "
                        f"{summed(one('ring_fill_slots'))}"
                    },
                    width=8,
                    from_zero=False,
                ),
                series(
                    "Slots of the run",
                    "Over all attempts.",
                    "none",
                    {"{{outcome}}": summed(one("run_slots"), by="outcome")},
                    width=8,
                ),
                series(
                    "Steps given up",
                    "Agent-steps of slots that a producer gave up, by reason.",
                    "count:steps/s",
                    {"{{reason}}": per_second("producer_abandoned_steps_total", by="reason")},
                    width=8,
                ),
                series(
                    "Examined slots",
                    "Slots that a learner looked at alone, since two had died with them.",
                    "count:slots/s",
                    {"examined": per_second("learner_examined_slots_total")},
                    width=8,
                ),
            ],
        ),
    ]
