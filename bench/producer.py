"""A producer alone: simulator + policy + ring on one core, its slots drained and thrown away.

    python bench/producer.py [RUN.yaml] [section.key=value ...] [--seconds N] [--json FILE]

Steps/s of one producer process pinned to one core, with what a step costs where. The consumer touches nothing
of the payload, sits on another core where there is one, and grants all the room there is, so the ring never
makes the producer wait.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.rig import LEARNER_SLOT, Rig


def measure(path: Path, overrides: list[str], seconds: float) -> dict[str, Any]:
    """Figures of `seconds` of streaming, after half a second of warm-up."""
    usable = sorted(os.sched_getaffinity(0))
    overrides = [*overrides, "producers.count=1", "learner.batch_slots=1", f"producers.cores=[{usable[0]}]"]
    with Rig(path, overrides) as rig:
        os.sched_setaffinity(0, {usable[-1]})
        generator = np.random.default_rng(0)
        rig.publish(0, generator.normal(0, 0.1, rig.weights.count).astype(np.float32))
        rig.spawn()
        rig.grant()
        begin, first = time.perf_counter() + 0.5, None
        for lease in rig.leases():
            lease.ack()
            rig.grant()
            now = time.perf_counter()
            if first is None and now > begin:
                first, since = rig.control.counters(LEARNER_SLOT + 1), now
            elif first is not None and now > since + seconds:
                break
        last = rig.control.counters(LEARNER_SLOT + 1)
        os.sched_setaffinity(0, set(usable))
        plan = rig.rings[0].plan
    passed = {name: last[name] - first[name] for name in last}
    steps = passed["steps"]
    wall_ns = (now - since) * 1e9
    waits_ns = sum(passed[name] for name in passed if name.startswith("wait_"))
    return {
        "simulator": plan.sim,
        "agents": plan.agents,
        "parameters": rig.prepared.program.count,
        "steps_per_second": steps / (now - since),
        "busy_steps_per_second": steps / ((wall_ns - waits_ns) / 1e9),
        "ns_per_step": wall_ns / steps,
        "simulator_ns_per_step": passed["sim_ns"] / steps,
        "policy_ns_per_step": passed["policy_ns"] / steps,
        "check_ns_per_step": passed["check_ns"] / steps,
        "check_percent": 100 * passed["check_ns"] / (wall_ns - waits_ns),
        "wait_ns_per_step": waits_ns / steps,
        "payload_bytes_per_second": passed["bytes_packed"] / (now - since),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", default="run.yaml", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.run, options.overrides, options.seconds)
    for name, value in found.items():
        print(f"{name:28} {value:>16,.1f}" if isinstance(value, float) else f"{name:28} {value!s:>16}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
