"""The archive: what recording costs a core, and how small it becomes, on slots of real producers.

    python -m bench.archive [RUN.yaml ...] [--slots N] [--json FILE]

By default of run.yaml (Breakout) and realm.yaml, with random weights. Of each slot everything is copied, as
with `archive.fraction: 1`, and the columns of one agent in a hundred, as by default. Rates are raw bytes by
CPU time, so that what else the machine does disturbs them little. `look` is what one ring without news costs
the recorder each time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.rig import Rig
from consumers.archive import blocks, choice
from consumers.archive.schema import EPISODES
from consumers.recorder import BLOCK_BYTES, Gathering, Tap
from ringbuf import Control, Ring

ROOT = Path(__file__).resolve().parent.parent
LEVELS = (1, 3)
RECORDER_SLOT = 9  # row of the process table
LOOKS = 2000


@dataclass(frozen=True)
class Figures:
    run: str
    slot_bytes: int  # of the columns that are copied
    copy_mb_per_second: float  # the tap alone
    copy_share_mb_per_second: float  # likewise, of one agent in a hundred
    write_mb_per_second: dict[int, float]  # block by block, compressed, by level
    ratio: dict[int, float]
    obs_ratio: dict[int, float]  # of the observations alone
    read_mb_per_second: float  # decompressed and checked
    look_microseconds: float


def cpu_seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    """How long this process computed, and what came of it."""
    begin = time.process_time()
    result = act()
    return time.process_time() - begin, result


def measure(path: Path, slots: int) -> Figures:
    generator = np.random.default_rng(0)
    with Rig(path, ["monitor.port=0", "producers.count=1", "learner.count=1"]) as rig:
        rig.publish(0, generator.normal(0, 0.05, rig.weights.count).astype(np.float32))
        rig.grant()
        rig.spawn()
        leases = rig.leases()
        for _ in range(slots):  # episodes under way, not only beginnings
            next(leases).ack()
            rig.grant()
        lease = next(leases)
        control = Control.attach(rig.supervisor.fd, RECORDER_SLOT)
        ring = Ring.attach(rig.rings[0].fd, control, role="tap")
        return figures(path.stem, ring, lease.sequence, slots)


def figures(name: str, ring: Ring, sequence: int, rounds: int) -> Figures:
    """Of the slot that stays in the ring under that sequence."""
    plan = ring.plan

    def copies(fraction: float) -> tuple[float, Tap]:
        cuts = list(enumerate(choice.choose([plan], fraction, 1)))
        tap, spent = Tap(ring, cuts, sequence), 0.0
        for _ in range(rounds):
            seconds, got = cpu_seconds(tap.copy)
            assert got is not None, ring.last_failure
            spent += seconds
        return rounds * tap.bytes / spent / 1e6, tap

    share, _ = copies(0.01)
    whole, tap = copies(1.0)
    written = {level: encode(tap, level) for level in LEVELS}
    observations = {level: columns_ratio(tap, "obs", level) for level in LEVELS}
    seconds, raw = cpu_seconds(lambda: decode(written[1][1]))
    tap.sequence = sequence + ring.slots * 1000  # not there for a long time
    tap.copy()  # makes room for what is to come, which the next looks find
    looked, _ = cpu_seconds(lambda: [tap.copy() for _ in range(LOOKS)])
    return Figures(
        run=name,
        slot_bytes=tap.bytes,
        copy_mb_per_second=whole,
        copy_share_mb_per_second=share,
        write_mb_per_second={level: rate for level, (rate, _) in written.items()},
        ratio={level: raw / sum(len(part) for block in made for part in block)
               for level, (_, made) in written.items()},
        obs_ratio=observations,
        read_mb_per_second=raw / seconds / 1e6,
        look_microseconds=looked / LOOKS * 1e6,
    )  # fmt: skip


def gatherings(tap: Tap) -> list[Gathering]:
    """The slot as the recorder makes blocks of it."""
    got = tap.copy()
    assert got is not None
    facts, out = got
    names = [*(column.name for column in choice.columns(tap.ring.plan)), EPISODES]
    made, at = [Gathering(names)], 0
    for number, agents, offsets in tap.cuts:
        ended, records = tap.episodes(facts["episodes"], agents)
        if made[-1].bytes >= BLOCK_BYTES:
            made.append(Gathering(names))
        columns = [out[at + begin : at + end] for begin, end in offsets]
        made[-1].add((number, tap.sequence, 0, 0, 0, 0, ended), [*columns, memoryview(records)])
        at += offsets[-1][1]
    return made


def encode(tap: Tap, level: int) -> tuple[float, list[list[bytes]]]:
    """(raw MB a second, the blocks)."""
    seconds, made = cpu_seconds(lambda: [gathering.encode(level) for gathering in gatherings(tap)])
    return tap.bytes / seconds / 1e6, made


def decode(made: list[list[bytes]]) -> int:
    """Raw bytes of all of them."""
    total = 0
    for header_bytes, *frame in made:
        header, _ = blocks.read_header(header_bytes, "bench", 0)
        total += blocks.decode(header, b"".join(frame), "bench", 0).header.raw
    return total


def columns_ratio(tap: Tap, name: str, level: int) -> float:
    raw = packed = 0
    for gathering in gatherings(tap):
        column = gathering.columns[gathering.names.index(name)]
        block = blocks.encode(blocks.DATA, b"\x80", [column], level)
        raw += sum(buffer.nbytes for buffer in column)
        packed += sum(map(len, block))
    return raw / packed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="*", default=[ROOT / "run.yaml", ROOT / "realm.yaml"])
    parser.add_argument(
        "--slots", type=int, default=3, help="slots that are played first, and rounds of copying"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = [measure(path, options.slots) for path in options.runs]
    for one in found:
        print(f"{one.run}: slots of {one.slot_bytes / 1e6:.1f} MB, a look {one.look_microseconds:.1f} us")
        print(f"  MB/s a core: copied {one.copy_mb_per_second:,.0f}, read {one.read_mb_per_second:,.0f}; "
              f"of an agent in 100 copied {one.copy_share_mb_per_second:,.0f}")  # fmt: skip
        for level, rate in one.write_mb_per_second.items():
            print(f"  level {level}: written {rate:,.0f}, ratio {one.ratio[level]:.1f} "
                  f"(observations {one.obs_ratio[level]:.1f})")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
