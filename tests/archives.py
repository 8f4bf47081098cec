"""Archives for tests: trajectories made up by the rules of a slot, and the episodes that they consist of."""

import random
import struct

import numpy as np
from rings import small_plan

from consumers.archive import choice
from consumers.archive.schema import EPISODES, Schema
from consumers.archive.store import Bounds, Store
from consumers.recorder import Gathering

ROOMY = Bounds(
    shard_bytes=1 << 30,
    shard_seconds=1e9,
    total_bytes=1 << 40,
    keep_seconds=None,
    free_bytes=0,
    sync_seconds=1e9,
)


class Trajectories:
    """Slots of one ring, agent by agent: `episodes` lists what a reader should find of each agent."""

    def __init__(self, seed=0, *, ring=0, agents=4, horizon=4, end=0.2, **plan):
        self.random = random.Random(seed)
        self.plan = small_plan(ring=ring, worlds=agents, horizon=horizon, **plan)
        self.end, self.sequence, self.epoch = end, 0, 0
        self.under_way = [[] for _ in range(agents)]  # steps of the episode: (obs, action, reward)
        self.beginning = [False] * agents  # a truncation is pending
        self.now = [self._obs() for _ in range(agents)]
        self.first = [0] * agents  # slot of its first step
        self.episodes = []  # (row, sequence of its last slot, of its first, steps, final observation or None)

    def _obs(self):
        return [self.random.randrange(256) for _ in range(3)]

    def slot(self):
        """{column: array} of the next slot, and the records of its episodes."""
        plan = self.plan
        shapes = {
            column.name: (column.shape_of(plan.agents), column.dtype) for column in choice.columns(plan)
        }
        slot = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
        records = []
        for row in range(plan.agents):
            for t in range(plan.horizon):
                slot["obs"][t, row] = self.now[row]
                if self.beginning[row]:  # the step behind a truncation
                    self.beginning[row], self.now[row] = False, self._obs()
                    continue
                action, reward = self.random.randrange(3), float(self.random.randrange(5))
                slot["valid"][t, row], slot["action"][t, row, 0], slot["reward"][t, row] = 1, action, reward
                slot["version"][t] = self.sequence * 10 + np.arange(plan.groups)
                if not self.under_way[row]:
                    self.first[row] = self.sequence
                self.under_way[row].append((self.now[row], action, reward))
                self.now[row] = self._obs()
                if self.random.random() < self.end:
                    records.append(self._end(slot, row, t))
            slot["obs"][plan.horizon, row] = self.now[row]
        self.random.shuffle(records)
        records.sort(key=lambda record: record[0])  # by step, as a producer writes them
        sequence, self.sequence = self.sequence, self.sequence + 1
        return sequence, slot, [record for _, record in records]

    def _end(self, slot, row, t):
        terminated = self.random.random() < 0.5
        slot["terminated" if terminated else "truncated"][t, row] = 1
        steps, self.under_way[row] = self.under_way[row], []
        self.beginning[row] = not terminated
        final = None if terminated else self.now[row]
        self.episodes.append((row, self.sequence, self.first[row], steps, final))
        total = sum(reward for _, _, reward in steps)
        head = struct.pack("<qiif2f", self.sequence, row, len(steps), total, len(steps), total)
        return t, head.ljust(self.plan.episode_bytes, b"\0")

    def die(self):
        """The producer's death: the slot under way is written again, by worlds that begin anew."""
        self.epoch += 1
        self.under_way = [[] for _ in self.under_way]
        self.beginning = [False] * len(self.beginning)
        self.now = [self._obs() for _ in self.now]


def schema_of(plan, cuts, **changes):
    names = [f"figure_{number}" for number in range(plan.statistics)]
    return Schema.of([plan], cuts, run="toy", run_id="ab" * 16, fraction=1.0, statistics=names, **changes)


def all_of(plan, parts=1):
    """Cuts of all agents, in so many parts."""
    rows = range(plan.agents)
    size = -(-plan.agents // parts)
    return [choice.Cut(plan.ring, tuple(rows[first : first + size])) for first in rows[::size]]


def gather(gathering, cuts, slot, epoch=0):
    """Adds a slot's records."""
    sequence, columns, records = slot
    for number, cut in enumerate(cuts):
        chosen = [
            columns[name] if name in choice.WHOLE
            else columns[name][list(cut.agents)] if name in choice.BATCH_FIRST
            else columns[name][:, list(cut.agents)]
            for name in gathering.names[:-1]
        ]  # fmt: skip
        ended = [record for record in records if struct.unpack_from("<i", record, 8)[0] in cut.agents]
        views = [memoryview(np.ascontiguousarray(array)).cast("B") for array in chosen]
        gathering.add(
            (number, sequence, epoch, 10**18 + sequence, sequence, sequence, len(ended)),
            [*views, memoryview(b"".join(ended))],
        )


def gathering_of(plan):
    return Gathering([*(column.name for column in choice.columns(plan)), EPISODES])


def store_of(folder, schema, bounds=ROOMY, told=None):
    told = [] if told is None else told
    return Store(folder, schema.encode(1), bounds, lambda event, **facts: told.append((event, facts)))


def block_of(plan, cuts, slots):
    """An encoded block of these slots, or (slot, epoch)."""
    gathering = gathering_of(plan)
    for slot in slots:
        gather(gathering, cuts, slot)
    return gathering.encode(1)


def write(folder, slots=6, seed=0, *, blocks=3, parts=1, **options):
    """A sealed archive of one shard; returns (its path, the trajectories)."""
    made = Trajectories(seed, **options)
    cuts = all_of(made.plan, parts)
    store = store_of(folder, schema_of(made.plan, cuts))
    for _ in range(blocks):
        assert store.write(block_of(made.plan, cuts, [made.slot() for _ in range(slots // blocks)]))
    store.close()
    (shard,) = folder.glob("*.zst")
    return shard, made
