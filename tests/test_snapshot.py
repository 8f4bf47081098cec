"""A hot snapshot gives back what went in, to the bit, and nothing else."""

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.snapshot import DTYPES, Packer, SnapshotError, unpack

ROOM = 1 << 20


def tensors():
    def make(dtype, shape, seed):
        generator = torch.Generator().manual_seed(seed)
        whole = torch.randint(0, 256, (*shape, 8), dtype=torch.uint8, generator=generator)
        if dtype == torch.bool:
            return whole[..., 0] > 127
        width = torch.empty(0, dtype=dtype).element_size()
        return whole[..., :width].contiguous().view(dtype)[..., 0] if width > 1 else whole[..., 0].view(dtype)

    shapes = st.lists(st.integers(0, 4), max_size=3)
    return st.builds(make, st.sampled_from(list(DTYPES.values())), shapes, st.integers(0, 2**32))


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | tensors()
)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        bits = [x.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=200, deadline=None)
@given(states=st.lists(STATES, min_size=1, max_size=3))
def test_a_state_comes_back_to_the_bit_whatever_lay_in_the_memory_before(states):
    packer = Packer(ROOM)
    for state in states:
        assert same(unpack(packer.pack(state)), state)


@settings(max_examples=50, deadline=None)
@given(state=STATES)
def test_equal_states_make_equal_bytes(state):
    used = Packer(ROOM)
    used.pack([torch.full((999,), 7), "something else"])
    assert bytes(used.pack(state)) == bytes(Packer(ROOM).pack(state))


@settings(max_examples=200, deadline=None)
@given(state=STATES, data=st.data())
def test_a_flipped_bit_anywhere_or_an_end_cut_off_is_refused(state, data):
    packed = bytearray(Packer(ROOM).pack(state))
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 8 * len(packed) - 1))
        packed[bit // 8] ^= 1 << bit % 8
    else:
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    with pytest.raises(SnapshotError):
        unpack(bytes(packed))


@settings(max_examples=200, deadline=None)
@given(junk=st.binary(max_size=200))
def test_what_passes_the_checksum_and_is_nonsense_is_refused_too(junk):
    """As a writer of another program version might leave it."""
    packed = Packer(ROOM).pack(junk)
    tree_bytes = int.from_bytes(packed[16:24], "little")
    forged = bytearray(packed)
    forged[24 : 24 + min(len(junk), tree_bytes)] = junk[:tree_bytes]
    forged[12:16] = zlib.crc32(bytes(forged[16:])).to_bytes(4, "little")
    try:
        unpack(bytes(forged))
    except SnapshotError:
        pass


def test_a_tensor_is_its_own_and_its_snapshot_a_copy():
    x = torch.arange(4.0)
    packer = Packer(ROOM)
    first = unpack(packer.pack({"x": x}))
    x += 1
    second = unpack(packer.pack({"x": x}))
    assert first["x"].tolist() == [0, 1, 2, 3]
    second["x"] += 1
    assert first["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("state", [object(), torch.zeros(2, dtype=torch.complex64), {"x": {1, 2}}, 2**64])
def test_what_no_snapshot_can_hold_is_refused_by_name(state):
    with pytest.raises(SnapshotError, match="cannot hold"):
        Packer(ROOM).pack(state)


def test_a_snapshot_larger_than_its_room_is_refused_with_both_numbers():
    with pytest.raises(SnapshotError, match=r"4\d\d\d bytes does not fit its 4096"):
        Packer(4096).pack(torch.zeros(1024))
