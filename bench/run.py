"""Everything measured in one run: each part alone, and the whole, with its share of the ideal.

    make bench                     or   python -m bench.run [--seconds N] [--json FILE]

Parts: simulators, ring, producer (simulator + policy + ring), learner; then whole runs of supervisor.py.
Twice, for run.yaml's own network and for one hidden layer of 128 with one epoch. The ideal of a machine
is the sum of its core-times: cores / (1 / producer + 1 / learner) steps/s. Machines are shared and
noisy: compare the figures of one run with one another, not with those of another day.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ONE_LAYER = [
    "policy.hidden=[128]",
    "learner.epochs=1",
    "learner.minibatches=8",
    "learner.correction=vtrace",
    "learner.targets=minibatch",
]
ENDLESS = ["stop.score=null", "stop.steps=null"]


def part(module: str, *arguments: str) -> Any:
    """Runs a benchmark as its user would and returns its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, "-m", f"bench.{module}", *arguments, "--json", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


def whole(overrides: list[str], seconds: float) -> dict[str, Any]:
    """summary.json of a run of run.yaml that lasts `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "supervisor.py",
            "run.yaml",
            "--plain",
            f"run.dir={folder}",
            "run.name=bench",
        ]
        command += [
            *ENDLESS,
            *overrides,
            f"stop.seconds={seconds:g}",
            "monitor.port=0",
            "evaluate.episodes=0",
        ]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return json.loads((Path(folder) / "bench" / "summary.json").read_text())


def million(rate: float) -> str:
    return f"{rate / 1e6:7.3f} M/s"


def measure(seconds: float) -> dict[str, Any]:
    """All figures; prints them as they come."""
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.processor() or platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f}\n")
    figures: dict[str, Any] = {"cores": cores}

    figures["simulators"] = part("simulators")
    for one in figures["simulators"]:
        speed, flow = million(one["steps_per_second"]), one["obs_bytes_per_second"] / 1e9
        print(f"simulator {one['simulator']:10} {speed} a core, {flow:.1f} GB/s observed")

    figures["ring"] = part("ring")
    print(*(f"ring      {line}" for line in ring_lines(figures["ring"])), sep="\n")

    for name, overrides in (("run.yaml", []), ("one layer", ONE_LAYER)):
        producer = part("producer", "run.yaml", *overrides, "--seconds", str(seconds / 5))
        learner = part("learner", "run.yaml", *overrides, "--seconds", str(seconds / 3))
        run = whole(overrides, seconds)
        alone = producer["busy_steps_per_second"], learner["steps_per_second"]
        ideal = cores / (1 / alone[0] + 1 / alone[1])
        figures[name] = {
            "producer": producer,
            "learner": learner,
            "whole": run,
            "ideal_steps_per_second": ideal,
        }
        print(f"\n{name}: {producer['parameters']:,} parameters")
        print(
            f"  producer alone  {million(alone[0])} a core: "
            f"{producer['simulator_ns_per_step']:.0f} ns simulator, "
            f"{producer['policy_ns_per_step']:.0f} ns policy"
        )
        print(f"  learner alone   {million(alone[1])} a core")
        speed = run["steps_per_second"]
        print(
            f"  the whole       {million(speed)} on {cores} cores, {speed / ideal:.2f} of the ideal "
            f"{million(ideal)}, {speed / min(alone):.2f} of the slower part alone"
        )
        print(f"  lag mean {run['lag']['mean']:.2f}, max {run['lag']['max']}")
        print(f"  the learner's time: {times(run)}")
    return figures


def ring_lines(ring: dict[str, Any]) -> list[str]:
    lines = [
        f"{one['payload_bytes'] >> 20} MiB payloads {one['ring_gb_per_second']:6.1f} GB/s, memcpy "
        f"{one['memcpy_gb_per_second']:6.1f} GB/s, ratio {one['ratio']:.2f}"
        for one in ring["payloads"]
    ]
    wake = ring["wake_up"]
    return [*lines, f"wake-up {wake['p50_us']:.1f} us p50, {wake['p99_us']:.1f} us p99, no spinning"]


def times(run: dict[str, Any]) -> str:
    spent = run["time"]["learner"]
    return ", ".join(f"{name} {share:.0%}" for name, share in spent.items() if share >= 0.005)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of each whole run (default 30)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    figures = measure(options.seconds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
