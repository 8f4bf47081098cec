"""One learner against several: whole runs of run.yaml by turns, and the ratio of their steps/s.

    python -m bench.learners [--count N] [--seconds S] [--rounds N] [--json FILE] [section.key=value ...]

As many producers as there are learners, and as many slots a batch, in both. Machines are shared and noisy:
the ratio is that of runs side by side in time, and its spread is printed with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from bench.run import whole

SHOWN = ("wait_no_data", "forward", "backward", "allreduce", "optimizer", "publish")


def measure(count: int, seconds: float, rounds: int, overrides: list[str]) -> dict[str, Any]:
    """steps/s of each run by the number of learners, the ratio of each round, and where their time went."""
    same = [f"producers.count={count}", f"learner.batch_slots={count}", *overrides]
    runs: dict[int, list[dict[str, Any]]] = {1: [], count: []}
    for _ in range(rounds):
        for learners, found in runs.items():
            found.append(whole([*same, f"learner.count={learners}"], seconds))
    rates = {learners: [one["steps_per_second"] for one in found] for learners, found in runs.items()}
    return {
        "steps_per_second": rates,
        "ratio": [several / one for one, several in zip(rates[1], rates[count], strict=True)],
        "time": {
            learners: {name: statistics.mean(one["time"]["learner"][name] for one in found) for name in SHOWN}
            for learners, found in runs.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.learners", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--count", type=int, default=2, help="learners")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    found = measure(options.count, options.seconds, options.rounds, options.overrides)
    for learners, rates in found["steps_per_second"].items():
        spent = ", ".join(f"{name} {share:.0%}" for name, share in found["time"][learners].items())
        shown = " ".join(f"{rate:,.0f}" for rate in rates)
        print(f"{learners} learner(s): {shown} steps/s; of its time: {spent}")
    ratios = found["ratio"]
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
