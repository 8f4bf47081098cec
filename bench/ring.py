"""The ring alone: payload bytes/s against memcpy of the same sizes, and how long a wake-up takes.

    python bench/ring.py [--rounds N] [--json FILE]

Two pinned processes, eight slots. A C program copies a buffer into each slot, so every payload byte is
written once; this process leases each slot, touches one byte of every page, and acks. The same program,
without the protocol, copies the same buffer into the same slots: that is memcpy. Short rounds of both
alternate, and the best of each counts, since the rest is what else the machine does. `core_ratio` compares
the time on the writer's core alone, system calls included, which a busy machine disturbs less. A wake-up is
the time from a slot's commit to the return of the reader's wait; nobody spins.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ringbuf import Control, Plan, Ring, segments

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 8
MIB = 1 << 20
ROUND_BYTES = 512 * MIB
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
WAKE_UPS = 500
SLICE_SECONDS = 1.0


@dataclass(frozen=True)
class Throughput:
    payload_bytes: int
    ring_gb_per_second: float  # 1e9 bytes, of the best round
    memcpy_gb_per_second: float
    ratio: float
    core_ratio: float


@dataclass(frozen=True)
class WakeUp:
    p50_us: float
    p99_us: float


def build(directory: Path) -> Path:
    """Compiles the producer end."""
    program = directory / "ring_producer"
    core = [str(path) for path in (ROOT / "ringbuf").glob("*.c") if not path.name.startswith("_")]
    subprocess.run(["gcc", "-std=gnu11", "-O3", "-march=native", "-D_GNU_SOURCE", "-o", str(program),
                    str(ROOT / "bench" / "ring_producer.c"), *core], check=True)
    return program


class Bench:
    """One ring whose slots hold `payload_bytes` of observations."""

    def __init__(self, program: Path, payload_bytes: int, slots: int, cores: tuple[int, int]):
        self.program, self.payload_bytes, self.cores = program, payload_bytes, cores
        run_id = os.urandom(16)
        self.names = [segments.name(run_id, "control"), segments.name(run_id, "ring-0")]
        plan = Plan.build(sim="bench", horizon=1, worlds=1, world_agents=1, obs_dtype="uint8",
                          obs_shape=(payload_bytes // 2,), choices=(2,), unpacked_step_bytes=1, batch_slots=1)
        self.control = segments.create_control(self.names[0], run_id)
        self.supervised = segments.create_ring(self.names[1], plan, slots, run_id, self.control)
        self.ring = Ring.attach(self.supervised.fd, Control.attach(self.control.fd, 2))
        self.supervised.set_owner(0)
        self.ring.grant(1 << 40)
        self.sequence = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            segments.unlink(name)
        for thing in (self.ring, self.supervised):
            thing.close()
        self.control.close()

    def run(self, mode: str, count: int) -> tuple[tuple[float, float], list[float]]:
        """Seconds of the producer, by the clock and on its core, and microseconds of each wake-up."""
        descriptors = [self.control.fd, self.supervised.fd]
        command = [str(self.program), mode, *map(str, descriptors), str(self.cores[1]), str(count)]
        producer = subprocess.Popen(command, pass_fds=descriptors, stdout=subprocess.PIPE, text=True)
        wakes = [] if mode == "memcpy" else self.consume(count)
        out, _ = producer.communicate()
        self.supervised.sweep_producer()
        if producer.returncode != 0:
            raise RuntimeError(f"{command} ended with {producer.returncode}")
        wall, core = map(float, out.split())
        return (wall, core), wakes

    def consume(self, count: int) -> list[float]:
        """Leases, touches and acks `count` slots."""
        ring, bell, wakes = self.ring, self.control, []
        for sequence in range(self.sequence, self.sequence + count):
            slept = False
            while (lease := ring.lease(sequence)) is None:
                seen = bell.bell_value(0)
                if (lease := ring.lease(sequence)) is not None:
                    break
                slept = bell.bell_wait(0, seen, SLICE_SECONDS)
                woken_ns = time.monotonic_ns()
            if slept:
                wakes.append((woken_ns - lease.commit_ns) / 1e3)
            np.frombuffer(lease, np.uint8)[::PAGE_BYTES].sum()
            lease.ack()
        self.sequence += count
        return wakes


def throughput(program: Path, payload_bytes: int, cores: tuple[int, int], rounds: int) -> Throughput:
    count = ROUND_BYTES // payload_bytes
    times: dict[str, list[tuple[float, float]]] = {"memcpy": [], "stream": []}
    with Bench(program, payload_bytes, SLOTS, cores) as bench:
        for _ in range(rounds):
            for mode, taken in times.items():
                taken.append(bench.run(mode, count)[0])
    (memcpy, memcpy_core), (ring, ring_core) = (map(min, zip(*times[mode])) for mode in times)
    gigabytes = count * payload_bytes / 1e9
    return Throughput(payload_bytes, gigabytes / ring, gigabytes / memcpy, memcpy / ring,
                      memcpy_core / ring_core)


def wake_up(program: Path, cores: tuple[int, int], mode: str, count: int) -> WakeUp:
    """Of the reader of a ring of one slot, which sleeps before every slot."""
    with Bench(program, 2 * PAGE_BYTES, 1, cores) as bench:
        wakes = sorted(bench.run(mode, count)[1])
    return WakeUp(wakes[len(wakes) // 2], wakes[len(wakes) * 99 // 100])


def main() -> None:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[-1])
    os.sched_setaffinity(0, {cores[0]})
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        flows = [throughput(program, mib * MIB, cores, options.rounds) for mib in (1, 8)]
        busy = wake_up(program, cores, "stream", 20 * WAKE_UPS)
        idle = wake_up(program, cores, "single", WAKE_UPS)
    print(f"cores {cores[1]} -> {cores[0]}, {SLOTS} slots, best of {options.rounds} rounds")
    for flow in flows:
        print(f"payload {flow.payload_bytes // MIB} MiB: {flow.ring_gb_per_second:6.2f} GB/s, "
              f"memcpy {flow.memcpy_gb_per_second:6.2f} GB/s, ratio {flow.ratio:.3f}, on the writer's core "
              f"{flow.core_ratio:.3f}")
    for when, wake in (("both sides asleep in turn", busy), ("after a millisecond of idling", idle)):
        print(f"wake-up, {when}: p50 {wake.p50_us:.1f} us, p99 {wake.p99_us:.1f} us")
    if options.json:
        options.json.write_text(json.dumps({
            "payloads": [asdict(flow) for flow in flows], "wake_up": asdict(busy),
            "wake_up_after_idling": asdict(idle)}, indent=1))


if __name__ == "__main__":
    main()
