"""What a scrape costs the exporter: /metrics of runs of many producers, whose memory is real and whose
processes are not.

    python -m bench.scrape [--producers N ...] [--repeats N] [--json FILE]

Times are of this process' CPU, so that a loaded machine tells the same, and as they passed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monitor import metrics, procfs
from monitor.collector import Facts, RunCollector
from monitor.live import Live
from monitor.pages import Pages
from monitor.readings import Reader
from monitor.status import Table
from producers.prepare import Segments, prepare
from ringbuf import LEARNER_GAUGES, Control

PRODUCERS = (8, 64, 256)
RUN = """\
sim: {{name: cartpole}}
producers: {{count: {producers}, agents: 1}}
rollout: {{horizon: 1}}
ring: {{slots: 2}}
learner: {{batch_slots: {producers}, minibatches: 1}}
"""


@contextmanager
def pages(producers: int, folder: Path) -> Iterator[Pages]:
    """The exporter's answers for a run of so many producers, every figure of which has a value. Each of its
    processes is this one."""
    run_file = folder / "run.yaml"
    run_file.write_text(RUN.format(producers=producers))
    segments = Segments(prepare(str(run_file), []), uuid.uuid4())
    table, control, own = Table.of(producers), segments.control, procfs.usage(os.getpid())
    live = None
    try:
        assert own is not None
        for number, slot in enumerate(table.all):
            control.set_process(
                slot,
                role="producer" if slot in table.producers else "learner",
                role_index=number,
                pid=os.getpid(),
                start_time=own.start_ticks,
                state="running",
                epoch=1,
            )
        learner = Control.attach(control.fd, table.learner)
        learner.counter_set("ready", 1)
        learner.lag_add(1, 1000)
        for name in LEARNER_GAUGES:
            learner.gauge_set(name, 0.123456789)
        build = dict.fromkeys(metrics.METRICS["build_info"].labels, "x")
        facts = Facts(build, "0f", "ab", 1, 300.0, folder)
        shown = {"lag_limit": 1, "checkpoint_seconds": 300.0}
        live = Live(Reader(control, segments.rings, table, folder), folder, lambda: shown)
        yield Pages(RunCollector(control, segments.rings, table, facts), live)
    finally:
        if live is not None:
            live.close()
        segments.close()


def measure(producers: int, repeats: int) -> dict[str, Any]:
    """Medians over `repeats` scrapes."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-scrape-") as folder,
        pages(producers, Path(folder)) as made,
    ):
        cpu, wall = [], []
        for _ in range(repeats + 1):  # the first one warms up
            begin = time.process_time(), time.perf_counter()
            _, _, body = made.answer("/metrics")
            cpu.append(time.process_time() - begin[0])
            wall.append(time.perf_counter() - begin[1])
    return {
        "producers": producers,
        "series": sum(not line.startswith(b"#") for line in body.splitlines()),
        "bytes": len(body),
        "cpu_seconds": statistics.median(cpu[1:]),
        "seconds": statistics.median(wall[1:]),
        "most_seconds": max(wall[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--producers", type=int, nargs="+", default=PRODUCERS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    figures = []
    for producers in options.producers:
        one = measure(producers, options.repeats)
        figures.append(one)
        print(
            f"{producers:4} producers: {one['series']:6,} series, {one['bytes'] / 1024:6.0f} KiB, "
            f"{one['cpu_seconds'] * 1e3:6.1f} ms of CPU, {one['seconds'] * 1e3:6.1f} ms passed "
            f"(at most {one['most_seconds'] * 1e3:.1f})"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
