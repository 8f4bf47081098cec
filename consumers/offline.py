"""Recorded episodes for torch: an iterable data set of whole episodes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from consumers.archive.blocks import Damaged
from consumers.archive.episodes import Episode, Reader

Tensors = dict[str, Tensor]


class Episodes(IterableDataset[Tensors]):
    """Each whole episode of some archives once an epoch, as tensors.

    Of an episode of L steps: obs [L, ...] in the simulator's dtype, action [L, heads], reward, logprob [L]
    float32, version [L] int64, mask [L, logits] where there is one, terminated [] bool, final_obs [...]
    (zeros where it was terminated), agent, sequence [] int64, ret [] float32. Lengths differ, so a DataLoader
    needs `batch_size=None` or a `collate_fn` of its own.

    Workers of a DataLoader share the episodes by the shards in which they begin; so do `part` of `parts`, for
    several learners. Memory: `shuffle` episodes and those under way, which are bounded by `open_bytes`.
    """

    def __init__(
        self, paths: Sequence[str | Path], *, shuffle: int = 0, seed: int = 0, part: int = 0, parts: int = 1,
        strict: bool = False, open_bytes: int = 1 << 30,
    ):  # fmt: skip
        """`paths`: shards, archives or run directories. `shuffle`: episodes among which the next is drawn; 0:
        in the order in which they ended. `strict`: raise what is damaged; else it is in `damage`, of this
        process, and the rest of that shard is left out."""
        if not 0 <= part < parts:
            raise ValueError(f"part {part} of {parts}")
        self.paths = [Path(path) for path in paths]
        self.shuffle, self.seed, self.part, self.parts = shuffle, seed, part, parts
        self.strict, self.open_bytes = strict, open_bytes
        self.epoch = 0
        self.damage: list[Damaged] = []

    def set_epoch(self, epoch: int) -> None:
        """Another order. To be called before each epoch, and before its workers are started."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        part, parts = self.part * workers + number, self.parts * workers
        reader = Reader(self.paths, strict=self.strict, open_bytes=self.open_bytes)
        self.damage = reader.damage
        draw = random.Random(f"{self.seed} {self.epoch} {part} {parts}")
        held: list[Episode] = []
        for episode in reader.episodes(part, parts):
            held.append(episode)
            if len(held) > self.shuffle:
                yield _tensors(_take(held, draw))
        while held:
            yield _tensors(_take(held, draw) if self.shuffle else held.pop(0))


def _take(held: list[Episode], draw: random.Random) -> Episode:
    chosen = draw.randrange(len(held))
    held[chosen], held[-1] = held[-1], held[chosen]
    return held.pop()


def _tensors(episode: Episode) -> Tensors:
    stepwise = (
        "obs",
        "action",
        "reward",
        "logprob",
        "version",
        *(["mask"] if episode.mask is not None else []),
    )
    found = {name: torch.from_numpy(getattr(episode, name)) for name in stepwise}
    final = found["obs"].new_zeros(found["obs"].shape[1:])
    return found | {
        "terminated": torch.tensor(episode.terminated),
        "final_obs": final if episode.final_obs is None else torch.from_numpy(episode.final_obs),
        "agent": torch.tensor(episode.agent),
        "sequence": torch.tensor(episode.sequence),
        "ret": torch.tensor(episode.ret),
    }
