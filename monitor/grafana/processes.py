"""Processes and machine: who lives, what it takes of the machine, and what reading all this costs."""

from __future__ import annotations

from monitor.grafana.panels import Row, series, stat
from monitor.grafana.queries import CHOSEN, grown, largest, one, per_second, summed, top


def rows() -> list[Row]:
    return [
        Row(
            "Processes",
            [
                series(
                    "Producers",
                    "Producers by state; the run goes on without those that failed.",
                    "none",
                    {"{{state}}": f"{summed(one('producers'), by='state')} > 0"},
                    width=8,
                    stacked=True,
                ),
                series(
                    "Restarts",
                    "Processes started in the window in place of ones that died.",
                    "none",
                    {"{{role}}": grown("process_restarts_total", by="role")},
                    width=8,
                    events=True,
                ),
                stat(
                    "Attempt",
                    "How often the run was started or gone on with.",
                    "none",
                    {"attempt": largest(one("run_attempt"))},
                    width=3,
                    height=8,
                ),
                stat(
                    "Built from",
                    "Headrace and what it runs on; the commit is a label of headrace_build_info.",
                    "none",
                    {"Headrace {{version}}": one("build_info"), "torch {{torch}}": one("build_info")},
                    width=5,
                    height=8,
                    shows="name",
                ),
            ],
        ),
        Row(
            "CPU",
            [
                series(
                    "Cores in use",
                    "Of this run, by role.",
                    "none",
                    {"{{role}}": per_second("process_cpu_seconds_total", by="role")},
                    width=8,
                    stacked=True,
                ),
                series(
                    "Busiest processes",
                    "The ten that use most of a core.",
                    "percentunit",
                    {
                        "{{role}} {{index}} ({{instance}})": top(
                            10, per_second("process_cpu_seconds_total", by="instance, role, index")
                        )
                    },
                    width=8,
                ),
                series(
                    "Steps a core-second",
                    "Agent-steps trained on over the CPU time of all processes.",
                    "count:steps",
                    {
                        "steps": f"{per_second('ring_consumed_samples_total')} / "
                        f"{per_second('process_cpu_seconds_total')}"
                    },
                    width=8,
                ),
            ],
        ),
        Row(
            "Memory and descriptors",
            [
                series(
                    "Resident memory",
                    "By role; the rings are counted in every process that has touched them.",
                    "bytes",
                    {"{{role}}": summed(one("process_resident_memory_bytes"), by="role")},
                    width=8,
                ),
                series(
                    "Largest process and limit",
                    "The process with most resident memory, and the memory of the container or machine.",
                    "bytes",
                    {
                        "largest": largest(one("process_resident_memory_bytes")),
                        "limit": largest(one("memory_limit_bytes")),
                    },
                    width=8,
                ),
                series(
                    "Growth of memory a day",
                    "Slope of resident memory over six hours, by role: a leak of weeks shows here first.",
                    "bytes",
                    {
                        "{{role}}": summed(f"deriv({one('process_resident_memory_bytes')}[6h])", by="role")
                        + " * 86400"
                    },
                    width=8,
                    from_zero=False,
                ),
                series(
                    "Open descriptors",
                    "By role.",
                    "none",
                    {"{{role}}": summed(one("process_open_fds"), by="role")},
                    width=12,
                ),
                series(
                    "Threads",
                    "By role.",
                    "none",
                    {"{{role}}": summed(one("process_threads"), by="role")},
                    width=12,
                ),
            ],
        ),
        Row(
            "The exporter itself",
            [
                series(
                    "Reachable",
                    "1 where Prometheus reads the run's metrics.",
                    "none",
                    {"{{instance}}": f"up{{{CHOSEN}}}"},
                    width=8,
                ),
                series(
                    "Time of a scrape",
                    "Of collecting the figures, and as Prometheus sees it.",
                    "s",
                    {
                        "collected": largest(one("collector_duration_seconds")),
                        "scraped": largest(f"scrape_duration_seconds{{{CHOSEN}}}"),
                    },
                    width=8,
                ),
                series(
                    "Scrapes that failed in part",
                    "In the window.",
                    "none",
                    {"scrapes": grown("collector_errors_total")},
                    width=8,
                    events=True,
                ),
            ],
        ),
    ]
