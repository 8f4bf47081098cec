"""What the audits and the diagnostics cost: updates with and without them, in turn, in one process.

    python -m bench.audits [RUN.yaml] [section.key=value ...] [--updates N] [--json FILE]

Shares of the CPU time of an update that has both: medians over N rounds (one update of each kind a round, in
an order that turns) of what is saved, with the 95 % interval of a bootstrap over rounds. They leave out what
is done at every 8th, 50th or 100th version alone: some 0.1 % more. Slots are made up as in bench/learner.py,
acted by the version before.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.learner import Slot
from consumers.allocator import keep_freed_memory
from consumers.batch import Batch
from consumers.machine import choose_bf16, choose_device, choose_threads
from consumers.update import Update
from producers.footprint import kept_versions
from producers.prepare import prepare

WARM_UP_ROUNDS = 3
RESAMPLES = 2000


class NoAudits:
    """In place of consumers.audits.Audits."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.alarms: list[Any] = []

    def begin(self, batch: Batch, version: int, flat: Tensor) -> Tensor:
        return flat.clone()

    def ratios(self, *_: Any) -> None:
        pass

    def sums_up(self, version: int) -> bool:
        return False


class Bare(Update):
    """An update that tells nothing of its ratios, values and changes."""

    def _watch(self, *_: Any) -> Any:
        return dict

    def _explain(self, *_: Any) -> dict[str, float]:
        return {}


def measure(path: Path, overrides: list[str], updates: int) -> dict[str, Any]:
    """Seconds of CPU of an update, and shares of it."""
    keep_freed_memory()
    prepared = prepare(str(path), overrides)
    settings, device = prepared.config.learner, choose_device(prepared.config.learner.device, 0)
    torch.set_num_threads(choose_threads(prepared.config, device))
    options: dict[str, Any] = {"seed": 0, "device": device, "bf16": choose_bf16(settings.precision, device)}
    options["versions"] = kept_versions(prepared.config)
    kinds = {
        kind: made(settings, prepared.program, **options)
        for kind, made in (("both", Update), ("no audits", Update), ("no diagnostics", Bare))
    }
    kinds["no audits"].audits = NoAudits()  # type: ignore[assignment]
    slots = [Slot(prepared, k) for k in range(settings.batch_slots)]
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for version in range(WARM_UP_ROUNDS + updates):
        for slot in slots:
            slot.fields["version"][:] = max(0, version - 1)
        turn = version % len(kinds)
        for kind in [*kinds][turn:] + [*kinds][:turn]:
            begin = time.thread_time()
            batch = Batch(slots, device=device, has_mask=prepared.spec["mask"])
            kinds[kind].train(batch, version, 0)
            batch.close()
            if version >= WARM_UP_ROUNDS:
                spent[kind].append(time.thread_time() - begin)
    rounds = np.array([*spent.values()])  # [kind, round]
    generator = np.random.default_rng(0)
    drawn = generator.integers(updates, size=(RESAMPLES, updates))
    saved = 1.0 - rounds / rounds[0]  # [kind, round]
    resampled = np.median(saved[:, drawn], axis=-1)
    found: dict[str, Any] = {"cpu_seconds": float(np.median(rounds[0])), "parameters": prepared.program.count}
    for i, name in ((1, "audits"), (2, "diagnostics")):
        interval = np.quantile(resampled[i], (0.025, 0.975)).tolist()
        found[name] = {"share": float(np.median(saved[i])), "interval": interval}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", default="run.yaml", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--updates", type=int, default=200, help="of each kind")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.run, options.overrides, options.updates)
    print(f"load {os.getloadavg()[0]:.1f}; an update: {found['cpu_seconds'] * 1e3:.1f} ms of CPU")
    for name in ("audits", "diagnostics"):
        low, high = found[name]["interval"]
        print(f"{name}: {found[name]['share']:.2%} of it ({low:.2%} to {high:.2%})")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
