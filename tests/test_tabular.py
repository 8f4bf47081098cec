"""tabular is the process that its recipe says, and its values are those of the closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from closed_forms import Process, process, random_policy, sample

from consumers.corrections import Segments, decays, gae, vtrace
from sims.loader import load, world_seeds

ERRORS = 5.5  # standard errors that a mean may be off


class Record:
    """`steps` steps of many worlds under a policy: states [T+1, B] and the rest [T, B]."""

    def __init__(self, policy: np.ndarray, steps: int, worlds: int, seed: int = 1, **params) -> None:
        generator = np.random.default_rng(seed)
        names = ("actions", "rewards", "terminated", "truncated", "valid")
        rows: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self.episodes = []
        with load("tabular").create(worlds, params, world_seeds(seed, worlds)) as played:
            states = [played.reset().argmax(axis=1)]
            for _ in range(steps):
                rows["actions"].append(sample(generator, policy[states[-1]]))
                self.episodes.append(played.step(rows["actions"][-1]))
                states.append(played.obs.argmax(axis=1))
                assert (played.obs.sum(axis=1) == 1).all()
                for name in names[1:]:
                    rows[name].append(getattr(played, name).copy())
        self.states = np.array(states)
        self.actions, self.rewards, self.terminated, self.truncated, self.valid = (
            np.array(rows[name]) for name in names
        )


def test_rewards_endings_and_successors_are_those_of_the_recipe():
    params = {"states": 5, "actions": 3, "task": 7, "ending": 0.2, "max_steps": 12}
    expected = process(**params)
    record = Record(np.full((5, 3), 1 / 3), steps=600, worlds=500, **params)
    valid = record.valid == 1
    seen = 0
    for s in range(5):
        for a in range(3):
            here = valid & (record.states[:-1] == s) & (record.actions == a)
            n = here.sum()
            assert (record.rewards[here] == np.float32(expected.rewards[s, a])).all()
            ends = record.terminated[here].mean()
            assert abs(ends - expected.ending[s, a]) < ERRORS * (expected.ending[s, a] / n) ** 0.5
            goes_on = here & (record.terminated == 0)  # whether truncated or not
            counts = np.bincount(record.states[1:][goes_on], minlength=5)
            chance = expected.successors[s, a]
            error = np.sqrt(chance * (1 - chance) / goes_on.sum())
            assert (np.abs(counts / goes_on.sum() - chance) <= ERRORS * error).all()
            seen += n
    assert seen == valid.sum() > 250_000


def test_a_new_episode_begins_in_a_uniform_state_after_either_end():
    record = Record(np.full((4, 3), 1 / 3), steps=600, worlds=500, ending=0.2, max_steps=5)
    for first in (record.terminated == 1, record.valid == 0):
        share = np.bincount(record.states[1:][first], minlength=4) / first.sum()
        assert first.sum() > 10_000
        assert (np.abs(share - 1 / 4) < ERRORS * (3 / 16 / first.sum()) ** 0.5).all()


def test_the_task_is_the_same_in_all_worlds_and_another_under_another_number():
    tasks = [process(task=task) for task in (1, 2)]
    assert np.abs(tasks[0].rewards - tasks[1].rewards).min() > 1e-6
    for task, expected in enumerate(tasks, start=1):
        record = Record(np.full((4, 3), 1 / 3), steps=50, worlds=200, task=task)
        valid = record.valid == 1
        states, actions = record.states[:-1][valid], record.actions[valid]
        assert (record.rewards[valid] == expected.rewards[states, actions].astype(np.float32)).all()


@pytest.mark.parametrize(("ending", "max_steps"), [(0.05, 100), (0.2, 4), (0.0, 9)])
def test_returns_and_lengths_of_episodes_average_to_the_closed_form(ending, max_steps):
    policy = random_policy(np.random.default_rng(3), 4, 3)
    record = Record(policy, steps=120, worlds=3000, ending=ending, max_steps=max_steps)
    # The first episode of each world: who counts those that ended within a time counts too many short ones.
    episodes = np.concatenate(record.episodes)
    _, first = np.unique(episodes["agent"], return_index=True)
    firsts = episodes[first]
    assert len(firsts) == 3000
    means = process(ending=ending).episode(policy, max_steps)
    for name, mean in zip(("return", "length"), means, strict=True):
        error = firsts[name].std() / len(firsts) ** 0.5
        assert abs(firsts[name].mean() - mean) <= ERRORS * error + 1e-5
    assert np.abs(episodes["statistics"][:, 0] - episodes["return"]).max() < 1e-5
    assert (episodes["statistics"][:, 1] == episodes["length"]).all()


def test_a_time_limit_truncates_and_the_next_step_is_none():
    record = Record(np.full((4, 3), 1 / 3), steps=24, worlds=50, ending=0, max_steps=5)
    assert not record.terminated.any()
    assert (record.truncated.all(axis=1) == ([False] * 4 + [True, False]) * 4).all()
    assert (record.valid.all(axis=1) == ([True] * 5 + [False]) * 4).all()


def test_the_final_observation_is_the_state_that_the_step_led_to():
    record = Record(np.full((4, 3), 1 / 3), steps=100, worlds=4000, ending=0, max_steps=1)
    truncated = record.truncated == 1
    assert truncated.sum() == 50 * 4000
    expected = process(ending=0).successors
    for s in range(4):
        for a in range(3):
            here = truncated & (record.states[:-1] == s) & (record.actions == a)
            share = np.bincount(record.states[1:][here], minlength=4) / here.sum()
            error = np.sqrt(expected[s, a] * (1 - expected[s, a]) / here.sum())
            assert (np.abs(share - expected[s, a]) <= ERRORS * error).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_vtrace_error_vanishes_at_its_fixed_point_and_at_no_other_value(seed):
    generator = np.random.default_rng(seed)
    task = process(task=seed)
    behaviour, policy = (random_policy(generator, 4, 3) for _ in range(2))
    fixed = task.vtrace_value(behaviour, policy, 1.0, 0.9)
    assert np.abs(task.vtrace_error(fixed, behaviour, policy, 1.0, 0.9)).max() < 1e-14
    for other in (task.value(policy, 0.9), task.value(behaviour, 0.9)):
        assert np.abs(task.vtrace_error(other, behaviour, policy, 1.0, 0.9)).max() > 1e-3
    unclipped = task.vtrace_value(behaviour, policy, np.inf, 0.9)
    assert np.abs(unclipped - task.value(policy, 0.9)).max() < 1e-14


GAMMA = 0.9
GROUPS = 24
WORLDS = 2400


def fixed_points(record: Record, log_ratio: np.ndarray | None, states: int) -> np.ndarray:
    """[GROUPS, states] the values that equal the mean of their own targets, by groups of worlds.

    With `log_ratio` [T, B] the targets are V-trace's, without it those of GAE.
    """
    flags = [torch.from_numpy(x) for x in (record.terminated, record.truncated, record.valid)]
    discounts, traces = decays(*flags, gamma=GAMMA, lambda_=0.8)
    at, valid = record.states[:-1], record.valid == 1
    group = np.broadcast_to(np.arange(at.shape[1]) * GROUPS // at.shape[1], at.shape)
    cell = (group * states + at)[valid]
    count = np.bincount(cell, minlength=GROUPS * states)
    assert count.min() > 100
    values = np.zeros((GROUPS, states))
    for _ in range(400):
        rows = torch.from_numpy(values[np.vstack([group, group[:1]]), record.states]).float()
        segments = Segments(rows, torch.from_numpy(record.rewards), discounts, traces, flags[2].bool())
        if log_ratio is None:
            targets = gae(segments).targets
        else:
            targets = vtrace(segments, torch.from_numpy(log_ratio).float(), rho_clip=1, c_clip=1).targets
        means = np.bincount(cell, targets.numpy()[valid], GROUPS * states) / count
        moved = np.abs(means.reshape(values.shape) - values).max()
        values = means.reshape(values.shape)
        if moved < 1e-6:
            return values
    raise AssertionError(f"the values still move by {moved}")


def test_vtrace_settles_at_its_closed_form_from_played_data_and_uncorrected_targets_do_not():
    params = {"ending": 0.1, "max_steps": 7}  # most episodes are truncated, many terminate
    generator = np.random.default_rng(11)
    task: Process = process(**params)
    behaviour, policy = (random_policy(generator, 4, 3, spread=0.7) for _ in range(2))
    record = Record(behaviour, steps=32, worlds=WORLDS, **params)
    taken = record.states[:-1], record.actions
    log_ratio = np.log(policy[taken] / behaviour[taken])
    expected = task.vtrace_value(behaviour, policy, 1.0, GAMMA)

    corrected = fixed_points(record, log_ratio, 4)
    error = corrected.std(axis=0, ddof=1) / GROUPS**0.5
    assert error.max() < 0.02
    assert (np.abs(corrected.mean(axis=0) - expected) < ERRORS * error).all()

    plain = fixed_points(record, None, 4)
    error = plain.std(axis=0, ddof=1) / GROUPS**0.5
    assert (np.abs(plain.mean(axis=0) - task.value(behaviour, GAMMA)) < ERRORS * error).all()
    assert (np.abs(plain.mean(axis=0) - expected) > 2 * ERRORS * error).any()


def test_the_picture_shows_the_state():
    with load("tabular").create(1, {"states": 6}) as worlds:
        worlds.reset()
        for t in range(20):
            assert worlds.render_text(0).splitlines()[1].index("@") == worlds.obs[0].argmax(), t
            worlds.step(np.array([0]))
