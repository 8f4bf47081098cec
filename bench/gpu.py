"""What a GPU makes of a run, in under six minutes: one script for a machine that is lent for a short while.

    python -m bench.gpu [RUN.yaml] [section.key=value ...] [--minutes N] [--device cuda|cpu] [--json FILE]

Of the run file (default: realm-petabyte.yaml, one GPU's share of it): GB/s from the slots of a ring to the
GPU, as they are and registered with it; the learner alone, in bfloat16; whole runs with an inference server
and with producers that act by themselves, each with the GPU's utilisation and memory as nvidia-smi tells
them. The figure to beat is 372 k steps/s a GPU. What there is no time left for is left out, and the file is
written after each part. With `--device cpu` all of it is tried without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from bench.rig import Rig
from consumers.pinned import Pinned

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "realm-petabyte.yaml"
PRODUCERS_A_GPU = 4  # in that file
START_SECONDS = 45.0  # for a whole run to come up and to end, beside what it is measured for
STOP_SECONDS = 15.0
COPIES = 20
SHARES = {
    "learner alone": 0.2,
    "server": 0.35,
    "producer": 0.25,
}  # of the time, for what is measured over a span
LEAST_SECONDS = 5.0
SAMPLE_MS = 500


class Utilisation:
    """What nvidia-smi sees of the first GPU while the block runs; nothing where there is none."""

    def __init__(self, device: str):
        self.samples: list[tuple[float, float]] = []  # percent, MiB
        self._child: subprocess.Popen[str] | None = None
        self._wanted = device == "cuda"

    def __enter__(self) -> Utilisation:
        if self._wanted:
            question = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu,memory.used"]
            question += ["--format=csv,noheader,nounits", f"-lms={SAMPLE_MS}"]
            self._child = subprocess.Popen(question, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.terminate()
            said, _ = self._child.communicate()
            self.samples = [(float(a), float(b)) for a, b in (line.split(",") for line in said.splitlines())]

    def figures(self) -> dict[str, float | None]:
        """Of the second half of the span, when everything is under way."""
        late = self.samples[len(self.samples) // 2 :]
        return {
            "gpu_percent": statistics.fmean(a for a, _ in late) if late else None,
            "gpu_mib": max((b for _, b in late), default=None),
        }


def transfers(path: Path, overrides: Sequence[str], device: torch.device) -> dict[str, Any]:
    """GB/s of one slot's observations from a ring to the device: from memory as it is, and registered."""

    def speed(source: torch.Tensor) -> float:
        target = torch.empty_like(source, device=device)
        times = []
        for _ in range(COPIES):
            _wait(device)
            begin = time.perf_counter()
            target.copy_(source, non_blocking=True)
            _wait(device)
            times.append(time.perf_counter() - begin)
        return source.nbytes / statistics.median(times) / 1e9

    with Rig(path, [*overrides, "policy.placement=producer"]) as rig:
        rig.publish(0, np.zeros(rig.prepared.program.count, np.float32))
        rig.spawn()
        rig.grant()
        lease = next(rig.leases())
        with warnings.catch_warnings():  # leases are read-only, and torch warns of any such array
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            obs = torch.from_numpy(lease.array("obs"))
        found = {"bytes": obs.nbytes, "pageable_gb_per_second": speed(obs)}
        Pinned(device).pin(lease)
        found["registered_gb_per_second"] = speed(obs)
        del obs
        lease.ack()
    return found


def learner(
    path: Path, overrides: Sequence[str], seconds: float, device: str, limit: float
) -> dict[str, Any]:
    """The learner alone, in bfloat16."""
    settings = [*overrides, f"learner.device={device}", "learner.precision=bf16"]
    with tempfile.TemporaryDirectory() as folder, Utilisation(device) as seen:
        figures = Path(folder) / "figures.json"
        command = ["-m", "bench.learner", str(path), *settings, "--seconds", f"{seconds:.1f}"]
        finish([*command, "--json", str(figures)], limit)
        found = json.loads(figures.read_text())
    return found | seen.figures()


def whole(
    path: Path, overrides: Sequence[str], seconds: float, device: str, placement: str, limit: float
) -> dict[str, Any]:
    """A whole run of `seconds`."""
    more = [f"policy.placement={placement}", f"learner.device={device}", f"stop.seconds={seconds:.1f}"]
    more += ["stop.score=null", "monitor.port=0", "evaluate.episodes=0", "run.name=gpu"]
    if placement == "server":
        more.append(f"server.device={device}")
    with tempfile.TemporaryDirectory() as folder, Utilisation(device) as seen:
        finish(["supervisor.py", str(path), "--plain", *overrides, *more, f"run.dir={folder}"], limit)
        summary = json.loads((Path(folder) / "gpu/summary.json").read_text())
    names = ("steps", "seconds", "steps_per_second", "version", "lag", "bytes", "time")
    return {name: summary.get(name) for name in names} | seen.figures()


def finish(command: Sequence[str], limit: float) -> None:
    """Runs Python to its end. After all but STOP_SECONDS of `limit` it is asked to stop: killed, it would
    leave its shared memory. Raises subprocess.SubprocessError."""
    child = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, errors = child.communicate(timeout=max(1.0, limit - STOP_SECONDS))
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            _, errors = child.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), stderr=errors)


def one_gpu(producers: int) -> list[str]:
    """One GPU's share of the run file."""
    return [
        "learner.count=1",
        "server.count=1",
        f"producers.count={producers}",
        f"learner.batch_slots={producers}",
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures; prints them as they come, and writes them as far as they go."""
    end = time.monotonic() + 60 * options.minutes
    device, path = options.device, options.run
    overrides = [*(one_gpu(PRODUCERS_A_GPU) if path.resolve() == RUN else []), *options.overrides]
    figures: dict[str, Any] = {
        "device": device,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    if device == "cuda":
        figures["gpu"] = torch.cuda.get_device_name(0)

    def part(name: str, run: Callable[[float, float], dict[str, Any]]) -> None:
        """Runs what is measured over a span, which it gets with the limit on all of it."""
        left = end - time.monotonic()
        span = min(SHARES.get(name, 0.0) * 60 * options.minutes, left - START_SECONDS)
        if name in SHARES and span < LEAST_SECONDS:
            figures[name] = "no time left"
        else:
            try:
                figures[name] = run(span, left)
            except (subprocess.SubprocessError, OSError, RuntimeError, TimeoutError) as error:
                told = getattr(error, "stderr", None) or str(error)
                figures[name] = {"failed": (told.decode() if isinstance(told, bytes) else told)[-2000:]}
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")

    part("host to device", lambda *_: transfers(path, overrides, torch.device(device)))
    part("learner alone", lambda span, left: learner(path, overrides, span, device, left))
    for placement in ("server", "producer"):
        part(placement, lambda span, left, how=placement: whole(path, overrides, span, device, how, left))
    return figures


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", default=RUN, type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--minutes", type=float, default=5.5, help="for all of it (default 5.5)")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--json", type=Path, help="write the figures there too")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
