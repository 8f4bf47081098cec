"""The recorder: copies the trajectories of some agents out of the rings and keeps them in the run's archive.

    python -m consumers.recorder --role recorder --index 0 --run NAME --dir DIR --control FD --weights FD
                                 --rings FD,FD,... --process INDEX --parent PID

Started by the supervisor where `archive.enabled`. It maps the rings read-only and holds nobody up: a slot
that is written again before it was copied is missed, and counted. The main thread looks at the rings and
copies; another compresses and writes, so that a slow disk costs blocks, which are counted too, and no slot of
the rings. SIGTERM: what is still in the rings is copied, the shard is sealed, exit code 0. docs/archive.md
has the format.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack

import config as configuration
from config import exits
from consumers.archive import blocks, choice
from consumers.archive.schema import EPISODES, Schema
from consumers.archive.store import Bounds, Store
from consumers.journal import append
from consumers.process import settle_in
from ringbuf import RECORDER_COUNTERS, Control, Plan, Ring

FOLDER = "archive"
BLOCK_BYTES = 1 << 20  # of a block, from which on it is written
QUEUE_BLOCKS = 16  # that wait to be written, or two slots' where that is more
SHORTEST_SECONDS, LONGEST_SECONDS = 0.001, 0.1  # between two looks at the rings
LOOKS = 4  # in the time that a slot is sure to stay
PULSE_SECONDS = 0.25
SET = ("queue_blocks", "shards", "bytes", "halted")  # counters that tell how things are
EPISODE = struct.Struct("<qi")  # how a record of a finished episode begins: version, agent


class Gathering:
    """A block in the making: records of slots, and the buffers of their columns."""

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.columns: list[list[Any]] = [[] for _ in names]
        self.records: list[tuple[int, ...]] = []
        self.bytes = 0
        self.since = time.monotonic()

    def add(self, record: tuple[int, ...], columns: Sequence[memoryview]) -> None:
        for own, buffer in zip(self.columns, columns, strict=True):
            own.append(buffer)
            self.bytes += buffer.nbytes
        self.records.append(record)

    def encode(self, level: int) -> list[bytes]:
        """As a block of a shard."""
        fields = (
            "cut",
            "sequence",
            "epoch",
            "commit_unix_ns",
            "oldest_version",
            "newest_version",
            "episodes",
        )
        values = dict(zip(fields, map(list, zip(*self.records, strict=True)), strict=True))
        meta = msgpack.packb({**values, "columns": list(self.names)})
        facts = self.records[0][1], min(values["oldest_version"]), max(values["newest_version"])
        return blocks.encode(blocks.DATA, meta, self.columns, level, len(self.records), *facts)


class Tap:
    """One ring: where in it we are, and what is copied of each slot."""

    def __init__(self, ring: Ring, cuts: Sequence[tuple[int, choice.Cut]], begin: int):
        """`cuts`: with their numbers; `begin`: the first sequence of interest."""
        plan = ring.plan
        self.ring, self.sequence = ring, begin
        self.pieces = choice.pieces(plan, [cut for _, cut in cuts])
        self.cuts = [(number, frozenset(cut.agents), _offsets(plan, cut)) for number, cut in cuts]
        self.bytes = sum(self.pieces[1::2])
        self._out: bytearray | None = None
        self.records = bytearray(plan.fields["episodes"].bytes)
        self.gap_ns, self._committed_ns = float("inf"), 0

    def copy(self) -> tuple[dict[str, int], memoryview] | None:
        """The next slot's facts and bytes; None: see ring.last_failure."""
        out = self._out or bytearray(self.bytes)
        facts = self.ring.tap(self.sequence, self.pieces, out, self.records)
        self._out = out if facts is None else None  # a look that found nothing leaves it to the next
        if facts is None:
            return None
        passed_ns = facts["commit_ns"] - self._committed_ns
        if self._committed_ns and passed_ns > 0:
            self.gap_ns = min(1.05 * self.gap_ns, passed_ns)  # the shortest of late
        self._committed_ns = facts["commit_ns"]
        return facts, memoryview(out).toreadonly()

    def episodes(self, count: int, agents: frozenset[int]) -> tuple[int, bytes]:
        """The records of these agents among those of the slot copied last: (how many, one behind the
        other)."""
        size, raw = self.ring.plan.episode_bytes, self.records
        found = [
            raw[at : at + size]
            for at in range(0, count * size, size)
            if EPISODE.unpack_from(raw, at)[1] in agents
        ]
        return len(found), b"".join(found)

    @property
    def stays_seconds(self) -> float:
        """What a slot stays at least where its producer goes on as of late."""
        return max(1, self.ring.slots - 1) * self.gap_ns / 1e9


def _offsets(plan: Plan, cut: choice.Cut) -> list[tuple[int, int]]:
    """(begin, end) of a cut's columns within the cut."""
    found, at = [], 0
    for column in choice.columns(plan):
        size = column.bytes_of(len(cut.agents))
        found.append((at, at + size))
        at += size
    return found


class Recorder:
    """Copies, and hands blocks to the writer."""

    def __init__(self, control: Control, taps: Sequence[Tap], make_store: Callable[[], Store],
                 names: Sequence[str], *, level: int, patience_seconds: float):  # fmt: skip
        """`make_store`: called by the writer's thread. `patience_seconds`: so long a block waits for more."""
        self.control, self.taps, self.level, self.patience_seconds = control, taps, level, patience_seconds
        self.stopping = False
        self._names, self._valid = names, names.index("valid")
        self._gathering: Gathering | None = None
        blocks_a_slot = 1 + max((tap.bytes for tap in taps), default=0) // BLOCK_BYTES
        self._queue: queue.Queue[Gathering | None] = queue.Queue(max(QUEUE_BLOCKS, 2 * blocks_a_slot))
        self._writer = threading.Thread(target=self._write, args=(make_store,), name="writer", daemon=True)
        # Counters go on where the last recorder's stopped. A thread each, since two of them cannot add to
        # one.
        self._count = control.counters(control.self_index) | dict.fromkeys(SET, 0)
        self._written = dict.fromkeys(RECORDER_COUNTERS, 0)
        # What CLOCK_MONOTONIC has to be added for the time of day.
        self._unix_ns = time.time_ns() - time.monotonic_ns()
        self._failed: BaseException | None = None

    def run(self) -> None:
        """Until `stopping`. Raises what went wrong in the writer's thread."""
        self._writer.start()
        looks, pulsed = 0, 0.0
        while not self.stopping and self._failed is None:
            for tap in self.taps:
                self._follow(tap)
            if (
                self._gathering is not None
                and time.monotonic() - self._gathering.since > self.patience_seconds
            ):
                self._hand_over()
            looks += 1
            if time.monotonic() - pulsed > PULSE_SECONDS:
                pulsed = time.monotonic()
                self._show(looks)
            stay = min((tap.stays_seconds for tap in self.taps), default=LONGEST_SECONDS)
            time.sleep(min(LONGEST_SECONDS, max(SHORTEST_SECONDS, stay / LOOKS)))
        for tap in self.taps:
            self._follow(tap)
        self._hand_over()
        self._queue.put(None)
        while self._writer.is_alive():
            self._writer.join(PULSE_SECONDS)
            looks += 1
            self._show(looks)
        if self._failed is not None:
            raise self._failed

    # Copying

    def _follow(self, tap: Tap) -> None:
        """Copies what is there, at most once round the ring, since there are others."""
        copied = 0
        while copied <= tap.ring.slots:
            got = tap.copy()
            if got is not None:
                self._take(tap, *got)
                copied += 1
            elif tap.ring.last_failure == "early":
                return
            else:
                self._count["slots_missed" if tap.ring.last_failure == "missed" else "slots_passed"] += 1
            tap.sequence += 1

    def _take(self, tap: Tap, facts: dict[str, int], out: memoryview) -> None:
        self._count["slots_copied"] += 1
        at = 0
        for number, agents, offsets in tap.cuts:
            ended, records = tap.episodes(facts["episodes"], agents)
            columns = [out[at + begin : at + end] for begin, end in offsets]
            at += offsets[-1][1]
            record = (
                number, tap.sequence, facts["epoch"], facts["commit_ns"] + self._unix_ns,
                facts["oldest_version"], facts["newest_version"], ended,
            )  # fmt: skip
            self._count["steps"] += columns[self._valid].tobytes().count(1)
            gathering = self._gathering = self._gathering or Gathering(self._names)
            gathering.add(record, [*columns, memoryview(records)])
            if gathering.bytes >= BLOCK_BYTES or len(gathering.records) >= blocks.MAX_RECORDS:
                self._hand_over()

    def _hand_over(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        try:
            self._queue.put_nowait(gathering)
        except queue.Full:
            self._count["dropped_blocks"] += 1

    # Writing

    def _write(self, make_store: Callable[[], Store]) -> None:
        """The writer's thread."""
        try:
            store = make_store()
            while True:
                try:
                    gathering = self._queue.get(timeout=1.0)
                except queue.Empty:
                    store.tick()
                    self._look_at(store)
                    continue
                if gathering is None:
                    break
                block = gathering.encode(self.level)
                if store.write(block):
                    header, _ = blocks.read_header(block[0], "", 0)
                    self._written["raw_bytes"] += header.raw
                    self._written["written_bytes"] += sum(map(len, block))
                    self._written["blocks"] += 1
                else:
                    self._written["dropped_blocks"] += 1
                store.tick()
                self._look_at(store)
            store.close()
            self._look_at(store)
        except Exception as error:  # noqa: BLE001 - raised by the main thread
            self._failed = error

    def _look_at(self, store: Store) -> None:
        self._written |= {
            "shards": store.shards,
            "bytes": store.bytes,
            "halted": int(store.halted),
            "errors": store.errors,
            "deleted_shards": store.deleted,
        }

    def _show(self, looks: int) -> None:
        """Into the control block; only this thread writes there."""
        self._count["queue_blocks"] = self._queue.qsize()
        for name in RECORDER_COUNTERS:
            self.control.counter_set(name, self._count[name] + self._written[name])
        self.control.pulse("step", looks)


def begin(control: Control, rings: Sequence[Ring]) -> dict[int, int]:
    """Where a recorder begins in each ring: the first of a run at its beginning, a later one behind all that
    an earlier one may have copied. What nobody looked at in between is counted as missed."""
    counts = control.counters(control.self_index)
    told = sum(counts[name] for name in ("slots_copied", "slots_missed", "slots_passed"))
    if not told:
        return {ring.index: ring.plan.start_sequence for ring in rings}
    heads = {ring.index: ring.books()["head"] for ring in rings}
    offered = sum(heads[ring.index] - ring.plan.start_sequence for ring in rings)
    control.counter_add("slots_missed", max(0, offered - told))
    return heads


def prepare(
    settings: configuration.Config, control: Control, rings: Sequence[Ring], directory: Path, run: str
) -> Recorder:
    """A recorder of these rings, all of the run's, as the section `archive` wants it."""
    archive = settings.archive
    wanted = [ring for ring in rings if archive.rings == "all" or ring.index in archive.rings]
    plans = [ring.plan for ring in wanted]
    cuts = choice.choose(plans, archive.fraction, settings.run.seed)
    tapped = [ring for ring in wanted if any(cut.ring == ring.index for cut in cuts)]
    first = begin(control, tapped)
    taps = [
        Tap(
            ring,
            [(number, cut) for number, cut in enumerate(cuts) if cut.ring == ring.index],
            first[ring.index],
        )
        for ring in tapped
    ]
    schema = Schema.of(
        plans, cuts, run=run, run_id=control.run_id.hex(), fraction=archive.fraction,
        statistics=_statistics(directory, plans[0].statistics),
    )  # fmt: skip
    bounds = Bounds(
        archive.shard_bytes, archive.shard_seconds, archive.total_bytes, archive.keep_seconds,
        archive.free_bytes, archive.sync_seconds,
    )  # fmt: skip

    def tell(event: str, **facts: Any) -> None:
        line = {"time": time.time(), "role": "recorder", "index": 0, "event": event, **facts}
        append(directory / "events.jsonl", json.dumps(line) + "\n")
        print(f"recorder: {event}", *facts.values(), file=sys.stderr, flush=True)

    return Recorder(
        control, taps, lambda: Store(directory / FOLDER, schema.encode(archive.level), bounds, tell),
        [*(column.name for column in schema.columns), EPISODES], level=archive.level,
        patience_seconds=archive.sync_seconds,
    )  # fmt: skip


def _statistics(directory: Path, count: int) -> list[str]:
    """Their names, which the rings do not know; numbers where the run directory does not tell."""
    try:
        told = json.loads((directory / "manifest.json").read_text())["simulator"]["statistics"]
        names = [one["name"] if isinstance(one, dict) else str(one) for one in told]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    return names if len(names) == count else [f"statistic_{number}" for number in range(count)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="consumers.recorder", description="Started by the supervisor.")
    for name in ("role", "run", "rings"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "weights", "process", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    options = parser.parse_args(arguments)
    settle_in(options.parent, options.dir / "logs" / f"{options.role}-{options.index}.log")
    settings = configuration.load_resolved(options.dir / "config.resolved.yaml")
    control = Control.attach(options.control, options.process)
    rings = [Ring.attach(int(fd), control, role="tap") for fd in options.rings.split(",")]
    recorder = prepare(settings, control, rings, options.dir, options.run)

    def stop(*_: object) -> None:
        recorder.stopping = True

    signal.signal(signal.SIGTERM, stop)
    control.pulse("starting", 0)
    recorder.run()
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
