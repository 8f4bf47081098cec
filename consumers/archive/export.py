"""Whole episodes as files of other formats: NumPy's npz, Parquet, Minari.

Each takes an iterator of episodes and holds a bounded number of them. pyarrow and minari are imported when
they are asked for; where they are not installed, Missing says what to install.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consumers.archive.episodes import Episode
from consumers.archive.schema import Schema

EPISODE_BYTES = 2048  # of one in memory, besides its steps
FILE_BYTES = 256 << 20  # of steps in one npz file, or in one row group of a Parquet file
INSTALL = {"pyarrow": "pip install pyarrow", "minari": "pip install 'minari[arrow]' pillow"}


class Missing(Exception):
    """A package that is not installed."""


class Mixed(Exception):
    """Episodes of different shapes, which one file cannot hold."""


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} cannot be imported ({error}): {INSTALL[name.split('.')[0]]}") from None


def _chunks(episodes: Iterator[Episode]) -> Iterator[list[Episode]]:
    """Of some FILE_BYTES each, of one shape all of them."""
    held: list[Episode] = []
    size, shape = 0, None
    for episode in episodes:
        own = (episode.obs.dtype, episode.obs.shape[1:], episode.action.dtype, episode.action.shape[1:],
               episode.schema.statistics, episode.mask is None)  # fmt: skip
        if shape not in (None, own):
            raise Mixed(f"episodes of {shape} and of {own}: export the runs one by one")
        shape = own
        held.append(episode)
        size += EPISODE_BYTES + episode.obs.nbytes + episode.action.nbytes + 32 * episode.length
        if size >= FILE_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _steps(episodes: list[Episode]) -> dict[str, NDArray]:
    """Of all episodes, one behind the other: [N, ...] each."""
    found = {
        "observations": np.concatenate([one.obs for one in episodes]),
        "actions": np.concatenate([one.action for one in episodes]),
        "rewards": np.concatenate([one.reward for one in episodes]),
        "logprobs": np.concatenate([one.logprob for one in episodes]),
        "versions": np.concatenate([one.version for one in episodes]),
    }
    masks = [one.mask for one in episodes if one.mask is not None]
    if masks:
        found["masks"] = np.concatenate(masks)
    last = np.cumsum([one.length for one in episodes]) - 1
    for name, ended in (("terminations", True), ("truncations", False)):
        found[name] = np.zeros(len(found["rewards"]), bool)
        found[name][last] = [one.terminated == ended for one in episodes]
    return found


def npz(episodes: Iterator[Episode], folder: Path) -> tuple[int, int]:
    """episodes-000000.npz, ...: steps as _steps() has them, and by episode `episode_ends` (the step behind
    its last), `returns`, `agents`, `sequences`, `ended_unix_ns`, `statistics` and `final_observations`, which
    are zero for terminated ones. Gives the numbers of episodes and steps."""
    folder.mkdir(parents=True, exist_ok=True)
    count = steps = 0
    for number, some in enumerate(_chunks(episodes)):
        finals = [np.zeros_like(one.obs[0]) if one.final_obs is None else one.final_obs for one in some]
        arrays: dict[str, Any] = _steps(some)
        arrays |= {
            "episode_ends": np.cumsum([one.length for one in some]),
            "returns": np.array([one.ret for one in some], np.float32),
            "agents": np.array([one.agent for one in some]),
            "sequences": np.array([one.sequence for one in some]),
            "ended_unix_ns": np.array([one.ended_unix_ns for one in some]),
            "statistics": np.stack([one.statistics for one in some]),
            "final_observations": np.stack(finals),
            "about": np.array(json.dumps(_about(some[0].schema))),
        }
        np.savez(folder / f"episodes-{number:06d}.npz", **arrays)
        count, steps = count + len(some), steps + sum(one.length for one in some)
    return count, steps


def parquet(episodes: Iterator[Episode], folder: Path) -> tuple[int, int]:
    """steps.parquet, a row a step, and episodes.parquet, a row an episode. Observations and the like are flat
    lists of fixed size; their shape stands in the file's metadata. Gives the numbers of episodes and
    steps."""
    pa, pq = _package("pyarrow"), _package("pyarrow.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    count = steps = 0
    writers: dict[str, Any] = {}
    try:
        for some in _chunks(episodes):
            for name, table in (
                ("steps", _step_table(pa, some, count)), ("episodes", _episode_table(pa, some, count)),
            ):  # fmt: skip
                if name not in writers:
                    about = {"headrace": json.dumps(_about(some[0].schema))}
                    schema = table.schema.with_metadata(about)
                    writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd")
                writers[name].write_table(table.replace_schema_metadata(writers[name].schema.metadata))
            count, steps = count + len(some), steps + sum(one.length for one in some)
    finally:
        for writer in writers.values():
            writer.close()
    return count, steps


def _step_table(pa: Any, episodes: list[Episode], first: int) -> Any:
    lengths = [one.length for one in episodes]
    table = {
        "episode": np.repeat(np.arange(first, first + len(episodes)), lengths),
        "step": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
    }
    return pa.table({name: _column(pa, values) for name, values in {**table, **_steps(episodes)}.items()})


def _column(pa: Any, values: NDArray) -> Any:
    if values.ndim == 1:
        return pa.array(values)
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def _episode_table(pa: Any, episodes: list[Episode], first: int) -> Any:
    size = episodes[0].obs[0].size
    finals = [None if one.final_obs is None else one.final_obs.ravel().tolist() for one in episodes]
    kind = pa.list_(pa.from_numpy_dtype(episodes[0].obs.dtype), size)
    columns: dict[str, Any] = {
        "episode": pa.array(np.arange(first, first + len(episodes))),
        "agent": pa.array([one.agent for one in episodes], pa.int64()),
        "length": pa.array([one.length for one in episodes], pa.int32()),
        "return": pa.array([one.ret for one in episodes], pa.float32()),
        "terminated": pa.array([one.terminated for one in episodes]),
        "sequence": pa.array([one.sequence for one in episodes], pa.int64()),
        "ended_unix_ns": pa.array([one.ended_unix_ns for one in episodes], pa.int64()),
        "final_observation": pa.array(finals, kind),
    }
    for number, name in enumerate(episodes[0].schema.statistics):
        columns[f"statistic_{name}"] = pa.array(
            [float(one.statistics[number]) for one in episodes], pa.float32()
        )
    return pa.table(columns)


def minari(episodes: Iterator[Episode], dataset: str) -> tuple[int, int]:
    """A Minari dataset of that name, e.g. `cartpole/headrace-v0`, among the local ones. Actions are those
    that the simulator got, so continuous ones are clipped. Minari wants an observation behind the last step:
    where the episode was terminated, and there is none, the last one stands there again. Gives the numbers of
    episodes and steps. ValueError where Minari refuses the name."""
    library, spaces = _package("minari"), _package("gymnasium.spaces")
    buffer = _package("minari.data_collector.episode_buffer").EpisodeBuffer
    first = next(episodes, None)
    if first is None:
        return 0, 0
    counts, actions = [0, 0], _actions(spaces, first.schema)

    def buffers() -> Iterator[Any]:
        shape = first.obs.shape[1:]
        for number, one in enumerate(chain([first], episodes)):
            if one.obs.shape[1:] != shape:
                raise Mixed(f"observations of {shape} and of {one.obs.shape[1:]}: export the runs one by one")
            final = one.obs[-1] if one.final_obs is None else one.final_obs
            ends = np.zeros(one.length, bool)
            ends[-1] = True
            counts[:] = number + 1, counts[1] + one.length
            yield buffer(
                id=number,
                observations=np.concatenate([one.obs, final[None]]),
                actions=_played(one).astype(actions.dtype),
                rewards=one.reward,
                terminations=ends & one.terminated,
                truncations=ends & (not one.terminated),
                infos=None,
            )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there is no Gymnasium environment to evaluate in
        library.create_dataset_from_buffers(
            dataset, buffers(), observation_space=_observations(spaces, first),
            action_space=actions, algorithm_name=f"headrace, run {first.schema.run}",
            author="headrace", author_email="-", code_permalink="-", requirements=[], data_format="arrow",
            description=json.dumps(_about(first.schema)),
            jpeg_encoding=False,  # it is lossy, and takes any array of bytes with three axes for a picture
        )  # fmt: skip
    return counts[0], counts[1]


def _played(one: Episode) -> NDArray:
    if one.schema.choices:
        return one.action[:, 0] if len(one.schema.choices) == 1 else one.action
    return np.clip(one.action, *_bounds(one.schema))


def _bounds(schema: Schema) -> tuple[NDArray, NDArray]:
    return np.array(schema.action_low, np.float32), np.array(schema.action_high, np.float32)


def _actions(spaces: Any, schema: Schema) -> Any:
    if not schema.choices:
        return spaces.Box(*_bounds(schema))
    return (
        spaces.Discrete(schema.choices[0])
        if len(schema.choices) == 1
        else spaces.MultiDiscrete(schema.choices)
    )


def _observations(spaces: Any, one: Episode) -> Any:
    dtype = one.obs.dtype
    bounds = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(*bounds, one.obs.shape[1:], dtype)


def _about(schema: Schema) -> dict[str, Any]:
    """Where the data are from, for whoever finds the file."""
    obs = next(column for column in schema.columns if column.name == "obs")
    return {
        "run": schema.run, "run_id": schema.run_id, "simulator": schema.sim, "parameters": schema.params,
        "seed": schema.seed, "observation": {"dtype": obs.dtype, "shape": list(obs.shape[2:])},
        "choices": list(schema.choices), "action_low": list(schema.action_low),
        "action_high": list(schema.action_high), "statistics": list(schema.statistics), "score": schema.score,
    }  # fmt: skip
