"""The plan: what a slot looks like, the same in Python and in C, and checked before it is believed."""

import dataclasses
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rings import small_plan

import ringbuf
from ringbuf import Plan, RingError

HEADER = (Path(ringbuf.__file__).parent / "plan.h").read_text()

DISCRETE = st.integers(1, 16).map(lambda heads: {"choices": (3,) * heads})
CONTINUOUS = st.integers(1, 16).map(lambda n: {"action_low": (-1.5,) * n, "action_high": (2.0,) * n})
U64 = st.integers(0, 2**64 - 1)
PLANS = st.builds(
    lambda actions, **settings: Plan.build(**actions, **settings), DISCRETE | CONTINUOUS,
    sim=st.sampled_from(["breakout", "x" * 63]), horizon=st.integers(1, 40), worlds=st.integers(1, 9),
    world_agents=st.integers(1, 3), obs_dtype=st.sampled_from(["uint8", "int8", "float32"]),
    obs_shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), has_mask=st.booleans(),
    state_width=st.integers(0, 3), statistics=st.integers(1, 5), unpacked_step_bytes=U64,
    full=st.sampled_from(["block", "drop_oldest", "drop_newest"]), pickup=st.sampled_from(["step", "slot"]),
    producers=st.just(3), ring=st.integers(0, 2), batch_slots=st.integers(1, 9), run_seed=U64,
    first_world=U64, first_agent=U64, restart_base=U64, start_sequence=st.integers(0, 2**45 - 200),
    params=st.dictionaries(st.text("abc_", min_size=1, max_size=63), st.floats(allow_nan=False)))


@given(PLANS)
def test_a_plan_comes_back_from_c_as_it_was(plan):
    assert Plan.unpack(plan.pack()) == plan
    assert ringbuf.ring_bytes(plan, 4) >= 4 * plan.payload_bytes


@given(PLANS)
def test_fields_are_aligned_and_guarded_and_leave_room_for_the_stamps(plan):
    """At least 64 bytes behind every field belong to nobody."""
    end = 64
    for field in plan.fields.values():
        assert field.offset % 64 == 0
        assert field.offset >= end
        assert field.bytes == np.prod(field.shape) * np.dtype(field.dtype).itemsize
        end = field.offset + field.bytes + 64
    assert end <= plan.payload_bytes - 64
    assert plan.payload_bytes % 64 == 0


def test_shapes_are_as_documented():
    plan = small_plan(horizon=5, worlds=2, world_agents=3, obs_shape=(7, 2), choices=(4, 3), state_width=6,
                      groups=2)
    assert {name: field.shape for name, field in plan.fields.items()} == {
        "obs": (6, 6, 7, 2), "action": (5, 6, 2), "logprob": (5, 6), "mask": (5, 6, 7), "reward": (5, 6),
        "terminated": (5, 6), "truncated": (5, 6), "valid": (5, 6), "version": (5, 2), "state0": (6, 6),
        "episodes": (30, 32)}
    assert plan.packed_step_bytes == 14 + 8 + 4 + 7 + 4 + 3


def test_dtypes_and_fields_have_the_numbers_that_c_gives_them():
    from ringbuf import plan
    for name, (number, _) in plan.DTYPES.items():
        assert re.search(rf"HR_{name.upper()} = {number}\b", HEADER)
    enum = re.search(r"typedef enum hr_field_id \{(.*?)\}", HEADER, re.DOTALL).group(1)
    assert re.findall(r"^\s*HR_(\w+)", enum, re.MULTILINE)[:-1] == [name.upper() for name in plan.FIELDS]
    assert int(re.search(r"#define HR_ABI (\d+)u", HEADER).group(1)) == ringbuf.ABI


IMPOSSIBLE = {
    "a field outside the payload": lambda p: dataclasses.replace(p, payload_bytes=p.payload_bytes - 64),
    "fields over each other": lambda p: dataclasses.replace(p, fields=dict(p.fields) | {
        "action": dataclasses.replace(p.fields["action"], offset=p.fields["obs"].offset)}),
    "a field that is not aligned": lambda p: dataclasses.replace(p, fields=dict(p.fields) | {
        "obs": dataclasses.replace(p.fields["obs"], offset=65)}),
    "a shape that is not its bytes": lambda p: dataclasses.replace(p, fields=dict(p.fields) | {
        "obs": dataclasses.replace(p.fields["obs"], shape=(5, 4, 2**40))}),
    "a missing mask": lambda p: dataclasses.replace(p, has_mask=False),
    "a missing field": lambda p: dataclasses.replace(p, fields={
        name: field for name, field in p.fields.items() if name != "reward"}),
    "another horizon than its fields": lambda p: dataclasses.replace(p, horizon=5),
    "agents that are not worlds": lambda p: dataclasses.replace(p, worlds=3),
    "a ring beyond the producers": lambda p: dataclasses.replace(p, ring=1),
    "fields without a guard between them": lambda p: dataclasses.replace(p, fields=dict(p.fields) | {
        "action": dataclasses.replace(p.fields["action"], offset=p.fields["action"].offset - 64)}),
    "a saved state of another size": lambda p: dataclasses.replace(p, mode="exact", world_state_bytes=8),
    "a saved state without a mode that needs it": lambda p: dataclasses.replace(
        small_plan(mode="exact", world_state_bytes=8), mode="async"),
    "an exact mode that drops": lambda p: dataclasses.replace(p, mode="exact", full="drop_oldest"),
    "an exact batch that does not divide": lambda p: dataclasses.replace(p, mode="exact", producers=3),
    "a start past the last sequence": lambda p: dataclasses.replace(p, start_sequence=2**45 - 7),
}


@pytest.mark.parametrize("change", IMPOSSIBLE.values(), ids=list(IMPOSSIBLE))
def test_an_impossible_plan_is_refused(change):
    plan = small_plan()
    assert ringbuf.ring_bytes(plan, 4) > 0
    with pytest.raises(RingError, match=r"plan|ring"):
        ringbuf.ring_bytes(change(plan), 4)


@given(st.integers(1, 99), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_python_and_c_agree_on_the_size_of_a_saved_state(world_state_bytes, worlds, state_width, has_mask):
    changes = {"worlds": worlds, "state_width": state_width, "has_mask": has_mask, "mode": "exact"}
    bare, plan = small_plan(**changes), small_plan(**changes, world_state_bytes=world_state_bytes)
    assert plan.state_bytes >= 64 + worlds * world_state_bytes
    pages = -(-plan.state_bytes // 4096) * 4096
    assert ringbuf.ring_bytes(plan, 4) == ringbuf.ring_bytes(bare, 4) + pages
    assert Plan.unpack(plan.pack()) == plan


@pytest.mark.parametrize("changes", [
    {"choices": ()}, {"choices": (2,) * 17}, {"obs_dtype": "float64"}, {"obs_shape": ()},
    {"obs_shape": (1,) * 5}, {"sim": "x" * 64}, {"params": {"y" * 64: 1}},
    {"params": {str(i): 0 for i in range(65)}}])
def test_what_the_struct_cannot_hold_is_refused(changes):
    with pytest.raises(ValueError):
        small_plan(**changes)


@pytest.mark.parametrize("changes", [{"horizon": -1}, {"run_seed": 2**64}, {"batch_slots": 2**32}])
def test_numbers_that_do_not_fit_are_named(changes):
    with pytest.raises((ValueError, RingError), match="|".join(changes)):
        small_plan(**changes).pack()


def test_a_plan_of_another_abi_is_refused():
    packed = bytearray(small_plan().pack())
    struct.pack_into("<I", packed, 0, 99)
    with pytest.raises(RingError, match="make build"):
        ringbuf._ring.ring_bytes(bytes(packed), 4)
    with pytest.raises(RingError, match="bytes"):
        Plan.unpack(b"short")
