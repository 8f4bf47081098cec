"""A batch shows each step of each slot once an epoch, where the slots lie and whatever their sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.batch import Batch, pieces

CPU = torch.device("cpu")
HORIZON, FEATURES = 3, 2


class FakeSlot:
    """A slot whose every figure tells its step and segment; read-only, as a lease is."""

    def __init__(self, first, agents, horizon=HORIZON, obs_dtype=np.float32, groups=1):
        t, b = np.arange(horizon + 1)[:, None], np.arange(first, first + agents)[None]
        ident = (t * 1000 + b).astype(np.float32)
        self.fields = {
            "obs": np.repeat(ident[:, :, None], FEATURES, 2).astype(obs_dtype),
            "action": (ident[:-1, :, None] % 3).astype(np.int32),
            "logprob": -ident[:-1] / 1e4,
            "reward": ident[:-1].copy(),
            "terminated": (ident[:-1] % 5 == 0).astype(np.uint8),
            "truncated": (ident[:-1] % 7 == 0).astype(np.uint8),
            "valid": (ident[:-1] % 4 != 0).astype(np.uint8),
            "version": np.arange(horizon * groups, dtype=np.int64).reshape(horizon, groups),
            "mask": np.ones((horizon, agents, 3), np.uint8),
        }
        for field in self.fields.values():
            field.flags.writeable = False

    def array(self, name):
        return self.fields[name]


def batch_of(agents, slots, **options):
    return Batch([FakeSlot(k * agents, agents) for k in range(slots)], device=CPU, **options)


def test_segment_k_b_plus_b_is_agent_b_of_slot_k():
    batch = batch_of(4, 3)
    assert (batch.horizon, batch.agents, batch.segments) == (3, 4, 12)
    expected = torch.arange(3)[:, None] * 1000.0 + torch.arange(12)[None]
    assert torch.equal(batch.rewards, expected)
    assert torch.equal(batch.behaviour, -expected / 1e4)
    assert torch.equal(batch.action, (expected[:, :, None] % 3).long())
    assert torch.equal(batch.valid, expected % 4 != 0)
    assert batch.valid_steps == batch.kept_steps == int((expected % 4 != 0).sum())
    assert torch.equal(batch.terminated, expected % 5 == 0)
    assert torch.equal(batch.truncated, expected % 7 == 0)
    assert batch.mask is None
    assert batch_of(4, 3, has_mask=True).mask.shape == (3, 12, 3)


@settings(max_examples=60, deadline=None)
@given(agents=st.integers(1, 24), slots=st.integers(1, 5), seed=st.integers(0, 100), data=st.data())
def test_every_segment_is_in_exactly_one_minibatch_with_its_own_observations(agents, slots, seed, data):
    segments = agents * slots
    count = data.draw(st.sampled_from([n for n in range(1, segments + 1) if segments % n == 0]))
    batch = batch_of(agents, slots)
    seen = []
    for part in batch.minibatches(count, torch.Generator().manual_seed(seed)):
        assert part.size == len(part.segments) == segments // count
        out = torch.full((HORIZON + 1, segments // count, FEATURES), float("nan"))
        observed = batch.observe(part.runs, HORIZON + 1, out)
        expected = torch.arange(HORIZON + 1)[:, None] * 1000.0 + part.segments[None]
        assert torch.equal(observed, expected[:, :, None].expand(-1, -1, FEATURES))
        seen.extend(part.segments.tolist())
    assert sorted(seen) == list(range(segments))


def test_minibatches_do_not_depend_on_how_segments_lie_in_slots():
    draws = []
    for agents, slots in ((8, 4), (32, 1), (2, 16)):
        batch = batch_of(agents, slots)
        generator = torch.Generator().manual_seed(5)
        parts = [part for _ in range(3) for part in batch.minibatches(4, generator)]
        rewards = [part.take(batch.rewards) for part in parts]
        observed = [
            batch.observe(part.runs, HORIZON, torch.empty(HORIZON, 8, FEATURES)).clone() for part in parts
        ]
        draws.append((parts, rewards, observed))
    for parts, rewards, observed in draws[1:]:
        assert all(torch.equal(a.segments, b.segments) for a, b in zip(parts, draws[0][0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(rewards, draws[0][1], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(observed, draws[0][2], strict=True))


def test_epochs_draw_other_minibatches_and_equal_seeds_the_same():
    batch = batch_of(64, 2)

    def epochs(seed):
        generator = torch.Generator().manual_seed(seed)
        return [[p.segments.tolist() for p in batch.minibatches(8, generator)] for _ in range(2)]

    assert epochs(1) == epochs(1)
    assert epochs(1)[0] != epochs(1)[1]
    assert epochs(1) != epochs(2)


def test_observations_are_cast_as_they_are_copied():
    batch = Batch([FakeSlot(0, 4, obs_dtype=np.uint8)], device=CPU)
    out = torch.empty(HORIZON + 1, 2, FEATURES, dtype=torch.bfloat16)
    observed = batch.observe([(2, 4)], 2, out)
    assert observed.dtype == torch.bfloat16
    assert observed.shape == (2, 2, FEATURES)
    assert torch.equal(observed.float(), batch.observations[0][:2, 2:4].float())


def test_a_whole_slot_in_the_wanted_dtype_is_not_copied():
    batch = batch_of(4, 2)
    out = torch.empty(HORIZON + 1, 4, FEATURES)
    observed = batch.observe([(4, 8)], HORIZON, out)
    assert observed.data_ptr() == batch.observations[1].data_ptr()
    assert batch.observe([(2, 6)], HORIZON, out).data_ptr() == out.data_ptr()


def test_rewards_are_scaled_then_clipped_and_the_slot_keeps_the_raw_ones():
    slot = FakeSlot(0, 4)
    batch = Batch([slot], device=CPU, reward_scale=0.01, reward_clip=10.0)
    raw = torch.from_numpy(slot.array("reward").copy())
    assert torch.equal(batch.rewards, (raw * 0.01).clamp(max=10.0))
    assert slot.array("reward").max() == 2003.0


def test_steps_of_too_old_weights_are_kept_out_of_the_loss():
    slot = FakeSlot(0, 4, groups=2)  # versions 0 1 / 2 3 / 4 5 by step and group
    batch = Batch([slot], device=CPU, oldest_version=3)
    young = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
    assert torch.equal(batch.kept, batch.valid & young)
    assert torch.equal(Batch([slot], device=CPU).kept, batch.valid)


def test_the_acting_version_of_a_segment_is_that_of_its_slot_and_group():
    slots = [FakeSlot(0, 4, groups=2), FakeSlot(4, 4, groups=2)]
    slots[1].fields["version"] = slots[1].fields["version"] + 10
    batch = Batch(slots, device=CPU)
    assert batch.newest_version == 15
    assert batch.acting(torch.tensor([0, 3, 5])).tolist() == [[0, 1, 10], [2, 3, 12], [4, 5, 14]]


def test_a_sample_is_spread_over_the_steps_and_does_not_depend_on_the_slots():
    one = batch_of(8, 1).sample(16)
    assert one.shape == (16, FEATURES)
    assert torch.equal(one[:, 0], torch.tensor([*range(8), *range(1000, 1008)], dtype=torch.float32))
    assert torch.equal(batch_of(2, 4).sample(16), one)
    assert len(batch_of(8, 1).sample(5)) == 5
    assert len(batch_of(2, 1).sample(1000)) == HORIZON * 2


def test_a_closed_batch_holds_no_view_of_a_slot():
    data = bytearray(8 * 4)

    class Leased(FakeSlot):
        def array(self, name):
            if name != "obs":
                return super().array(name)
            return np.frombuffer(data, np.float32).reshape(4, 2, 1)

    batch = Batch([Leased(0, 2)], device=CPU)
    with pytest.raises(BufferError):
        data.append(0)
    batch.close()
    data.append(0)


def test_segments_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="12 segments cannot be divided into 5"):
        list(batch_of(4, 3).minibatches(5, torch.Generator()))


def test_a_continuous_action_that_is_ignored_may_be_anything():
    slot = FakeSlot(0, 4)
    valid = slot.fields["valid"] > 0
    slot.fields["action"] = np.where(valid, 0.5, np.nan).astype(np.float32)[..., None]
    batch = Batch([slot], device=CPU, discrete=False)
    assert torch.equal(batch.action[..., 0], 0.5 * torch.from_numpy(valid))


def test_where_every_step_is_valid_there_is_no_mask():
    slot = FakeSlot(0, 4)
    slot.fields["valid"] = np.ones((HORIZON, 4), np.uint8)
    batch = Batch([slot], device=CPU)
    assert batch.valid is batch.kept is None
    assert batch.valid_steps == batch.kept_steps == 4 * HORIZON


def test_what_is_taken_by_blocks_is_what_the_indices_say():
    part = pieces(torch.tensor([0, 2]), 3, CPU)
    assert part.size == 6
    for x in (torch.rand(4, 9), torch.randint(5, (4, 9, 2)), torch.rand(4, 9, 2, 3) < 0.5):
        assert torch.equal(part.take(x), x.index_select(1, part.segments))


def test_neighbouring_blocks_become_one_run():
    part = pieces(torch.tensor([0, 1, 3]), 2, CPU)
    assert part.runs == [(0, 4), (6, 8)]
    assert part.segments.tolist() == [0, 1, 2, 3, 6, 7]
