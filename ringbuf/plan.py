"""The plan: what one ring's slots look like and what its producer has to do, in Python.

The C struct `hr_plan` (plan.h) is described once, in C; this module packs and unpacks it by the table that
the extension gives. """

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ringbuf import _ring
from ringbuf.errors import RingError

# Number in hr_dtype, bytes
DTYPES = {"uint8": (1, 1), "int8": (2, 1), "int32": (3, 4), "float32": (4, 4), "int64": (5, 8)}
FIELDS = ("obs", "action", "logprob", "mask", "reward", "terminated", "truncated", "valid", "version",
          "state0", "episodes")  # in the order of hr_field_id
MODES = ("async", "exact")
FULL = ("block", "drop_oldest", "drop_newest")
PICKUP = ("step", "slot")
ALIGN_BYTES = 64  # of every field; a line of that size at either end of the payload holds a stamp
GUARD_BYTES = 64  # at least, behind every field; they belong to nobody
STATE_HEAD_BYTES = 64
EPISODE_BYTES = 20  # hr_episode without its statistics
MAX_HEADS, MAX_PARAMS, MAX_DIMS, NAME_BYTES = 16, 64, 6, 64

_DTYPE_NAMES = {number: name for name, (number, _) in DTYPES.items()}
_TABLE = {name: (offset, form) for name, offset, form in _ring.plan_table()}
_FIELD_BYTES = struct.calcsize("=" + _TABLE["field"][1])
_PARAM_BYTES = struct.calcsize("=" + _TABLE["param"][1])


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


@dataclass(frozen=True)
class Field:
    """One array of a slot; `offset` and `bytes` count from the start of the slot's payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """Mirrors `hr_plan`. T = horizon, B = agents = worlds * world_agents; shapes as in plan.h."""

    sim: str
    horizon: int
    agents: int
    worlds: int
    world_agents: int
    heads: int
    logits: int
    continuous: bool
    choices: tuple[int, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    has_mask: bool
    groups: int
    state_width: int
    statistics: int
    score: int
    episode_bytes: int
    payload_bytes: int
    packed_step_bytes: int
    unpacked_step_bytes: int
    fields: Mapping[str, Field]  # without the absent ones
    mode: str
    full: str
    pickup: str
    lagged_versions: int
    producers: int
    batch_slots: int
    ring: int
    run_seed: int
    first_world: int
    first_agent: int
    start_sequence: int
    restart_base: int
    world_state_bytes: int
    state_bytes: int
    server: int
    params: Mapping[str, float]

    @classmethod
    def build(
        cls, *, sim: str, horizon: int, worlds: int, world_agents: int, obs_dtype: str,
        obs_shape: Sequence[int], choices: Sequence[int] = (), action_low: Sequence[float] = (),
        action_high: Sequence[float] = (), has_mask: bool = False, groups: int = 1, state_width: int = 0,
        statistics: int = 0, score: int = 0, unpacked_step_bytes: int, mode: str = "async",
        full: str = "block", pickup: str = "step", lagged_versions: int = 0, producers: int = 1,
        batch_slots: int, ring: int = 0, run_seed: int = 0, first_world: int = 0, first_agent: int = 0,
        start_sequence: int = 0, restart_base: int = 0, world_state_bytes: int = 0,
        server: int = 0, params: Mapping[str, float] | None = None,
    ) -> Plan:
        """Lays out the slot. Discrete actions have `choices`, one number a head; continuous ones
        `action_low` and `action_high` of equal length instead. `world_state_bytes` is the size of one saved
        world (0: no state is kept), `restart_base` what the ring's epoch is added to, `server` the number of
        the inference server that acts for the `groups` of agents, plus 1 (0: the producer does, for all at
        once). Raises ValueError for what the struct cannot hold; the rest is checked in C when sizes are
        asked for or the ring is created (RingError)."""
        params = dict(params or {})
        continuous = not choices
        heads = len(action_low) if continuous else len(choices)
        if not 1 <= heads <= MAX_HEADS or len(action_low) != len(action_high):
            raise ValueError(f"{heads} action heads ({len(action_high)} upper bounds): need 1 to {MAX_HEADS}")
        if obs_dtype not in DTYPES or not 1 <= len(obs_shape) <= MAX_DIMS - 2:
            raise ValueError(f"observation of dtype {obs_dtype!r} and shape {tuple(obs_shape)}")
        if len(params) > MAX_PARAMS or any(len(text.encode()) >= NAME_BYTES for text in (sim, *params)):
            raise ValueError(
                f"{len(params)} parameters of {sim!r}: room for {MAX_PARAMS}, names under {NAME_BYTES} bytes")
        agents, logits = worlds * world_agents, heads if continuous else sum(choices)
        episode_bytes = _round_up(EPISODE_BYTES + 4 * statistics, 8)
        t_b = (horizon, agents)
        wanted: dict[str, tuple[str, tuple[int, ...]] | None] = {
            "obs": (obs_dtype, (horizon + 1, agents, *obs_shape)),
            "action": ("float32" if continuous else "int32", (*t_b, heads)),
            "logprob": ("float32", t_b),
            "mask": ("uint8", (*t_b, logits)) if has_mask else None,
            "reward": ("float32", t_b),
            "terminated": ("uint8", t_b),
            "truncated": ("uint8", t_b),
            "valid": ("uint8", t_b),
            "version": ("int64", (horizon, groups)),
            "state0": ("float32", (agents, state_width)) if state_width else None,
            "episodes": ("uint8", (horizon * agents, episode_bytes)),
        }
        fields: dict[str, Field] = {}
        offset = ALIGN_BYTES
        for name in FIELDS:
            found = wanted[name]
            if found is not None:
                dtype, shape = found
                size = prod(shape) * DTYPES[dtype][1]
                fields[name] = Field(name, dtype, shape, offset, size)
                offset = _round_up(offset + size, ALIGN_BYTES) + GUARD_BYTES
        step_fields = ("action", "logprob", "mask", "reward", "terminated", "truncated", "valid")
        packed_step_bytes = prod(obs_shape) * DTYPES[obs_dtype][1] + sum(
            fields[name].bytes // (horizon * agents) for name in step_fields if name in fields)
        obs_bytes = agents * prod(obs_shape) * DTYPES[obs_dtype][1]
        state_parts = (obs_bytes, agents * logits if has_mask else 0, agents, 4 * agents * state_width,
                       worlds * _round_up(world_state_bytes, 8))
        state_bytes = STATE_HEAD_BYTES + sum(_round_up(part, ALIGN_BYTES) for part in state_parts)
        return cls(
            sim=sim, horizon=horizon, agents=agents, worlds=worlds, world_agents=world_agents, heads=heads,
            logits=logits, continuous=continuous, choices=tuple(choices), action_low=tuple(action_low),
            action_high=tuple(action_high), has_mask=has_mask, groups=groups, state_width=state_width,
            statistics=statistics, score=score, episode_bytes=episode_bytes,
            payload_bytes=offset + ALIGN_BYTES, packed_step_bytes=packed_step_bytes,
            unpacked_step_bytes=unpacked_step_bytes, fields=fields, mode=mode, full=full, pickup=pickup,
            lagged_versions=lagged_versions, producers=producers, batch_slots=batch_slots, ring=ring,
            run_seed=run_seed, first_world=first_world, first_agent=first_agent,
            start_sequence=start_sequence, restart_base=restart_base, world_state_bytes=world_state_bytes,
            state_bytes=state_bytes if world_state_bytes else 0, server=server, params=params)

    @property
    def obs_dtype(self) -> str:
        """The simulator's dtype."""
        return self.fields["obs"].dtype

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Of one agent's observation."""
        return self.fields["obs"].shape[2:]

    @property
    def group_agents(self) -> tuple[tuple[int, int], ...]:
        """First agent and the one behind the last of each group: whole worlds, as many in each."""
        size = self.agents // self.groups
        return tuple((group * size, (group + 1) * size) for group in range(self.groups))

    def pack(self) -> bytes:
        """The C struct."""
        out = bytearray(_ring.PLAN_BYTES)
        others: dict[str, Any] = {
            "abi": _ring.ABI, "bytes": _ring.PLAN_BYTES, "n_params": len(self.params),
            "sim": self.sim.encode(), "mode": MODES.index(self.mode), "full": FULL.index(self.full),
            "pickup": PICKUP.index(self.pickup)}
        for name in _TABLE:
            if name in ("choices", "action_low", "action_high"):
                values = getattr(self, name)
                _put(out, name, *values, *([0] * (MAX_HEADS - len(values))))
            elif name not in ("field", "param"):
                _put(out, name, others[name] if name in others else int(getattr(self, name)))
        for i, name in enumerate(FIELDS):
            if name in self.fields:
                f = self.fields[name]
                shape = (*f.shape, *([0] * (MAX_DIMS - len(f.shape))))
                _put(out, "field", DTYPES[f.dtype][0], len(f.shape), *shape, f.offset, f.bytes,
                     at=i * _FIELD_BYTES)
        for i, (name, value) in enumerate(self.params.items()):
            _put(out, "param", name.encode(), float(value), at=i * _PARAM_BYTES)
        return bytes(out)

    @classmethod
    def unpack(cls, packed: bytes) -> Plan:
        """From the C struct, e.g. of a ring's header; float32 members come back rounded."""
        if len(packed) != _ring.PLAN_BYTES:
            raise RingError(f"a packed plan has {_ring.PLAN_BYTES} bytes, not {len(packed)}")
        got = {name: _get(packed, name) for name in _TABLE}
        one = {name: values[0] for name, values in got.items()}
        heads, continuous = one["heads"], bool(one["continuous"])
        fields = {}
        for i, name in enumerate(FIELDS):
            dtype, dims, *rest = _get(packed, "field", at=i * _FIELD_BYTES)
            if dtype:
                shape, offset, size = tuple(rest[:dims]), rest[MAX_DIMS], rest[MAX_DIMS + 1]
                fields[name] = Field(name, _DTYPE_NAMES[dtype], shape, offset, size)
        params = {}
        for i in range(one["n_params"]):
            name, value = _get(packed, "param", at=i * _PARAM_BYTES)
            params[name.rstrip(b"\0").decode()] = value
        same = {name: one[name] for name in _TABLE
                if name not in ("abi", "bytes", "n_params", "field", "param")}
        return cls(**same | {
            "sim": one["sim"].rstrip(b"\0").decode(),
            "continuous": continuous, "has_mask": bool(one["has_mask"]),
            "choices": () if continuous else got["choices"][:heads],
            "action_low": got["action_low"][:heads] if continuous else (),
            "action_high": got["action_high"][:heads] if continuous else (),
            "mode": MODES[one["mode"]], "full": FULL[one["full"]], "pickup": PICKUP[one["pickup"]],
            "fields": fields, "params": params})


def _put(out: bytearray, name: str, *values: Any, at: int = 0) -> None:
    offset, form = _TABLE[name]
    try:
        struct.pack_into("=" + form, out, offset + at, *values)
    except struct.error as error:
        raise ValueError(f"plan: {name} = {values}: {error}") from None


def _get(packed: bytes, name: str, at: int = 0) -> tuple[Any, ...]:
    offset, form = _TABLE[name]
    return struct.unpack_from("=" + form, packed, offset + at)
