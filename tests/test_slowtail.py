"""slowtail's steps take as long as it says, its slow jobs are its long ones, and dropping them shows."""

from __future__ import annotations

import time

import numpy as np
import pytest
from closed_forms import best_tools, pareto_distribution, slow_share, tool_reward

from sims.loader import load, world_seeds

ERRORS = 5.5  # standard errors that a mean may be off
QUICK = {"mean_us": 0.5}  # little work where a test is not about it
# How little a round of mixing can take on any core: nine dependent operations, two of them multiplications.
LEAST_ROUND_SECONDS = 1e-9
ROUNDS_PER_MICROSECOND = 200


class Jobs:
    """What `steps` steps of many worlds came to, [steps, B], where a policy [items] picked the tools; found
    from the records of the jobs, so the rows are known of steps whose job ended in the end."""

    def __init__(self, tools: np.ndarray | None, steps: int, worlds: int, seed: int = 1, **params) -> None:
        generator = np.random.default_rng(seed)
        shape = steps, worlds
        self.items, self.tools = np.empty(shape, np.int32), np.empty(shape, np.int32)
        self.rewards = np.empty(shape, np.float32)
        self.slow = np.full(shape, -1, np.int32)
        self.microseconds = np.full(shape, np.nan)
        episodes = []
        with load("slowtail").create(worlds, params, world_seeds(seed, worlds)) as played:
            played.reset()
            for t in range(steps):
                assert (played.obs.sum(axis=1) == 1).all()
                self.items[t] = played.obs.argmax(axis=1)
                self.tools[t] = generator.integers(0, 2, worlds) if tools is None else tools[self.items[t]]
                ended = played.step(self.tools[t])
                self.rewards[t] = played.rewards
                assert (played.terminated[ended["agent"]] == 1).all()
                assert played.terminated.sum() == len(ended)
                assert played.valid.all()
                for episode in ended:
                    _, _, length, slow, microseconds = episode["statistics"]
                    rows = slice(t + 1 - int(length), t + 1), episode["agent"]
                    self.slow[rows], self.microseconds[rows] = slow, microseconds / length
                episodes.append(ended)
        self.episodes = np.concatenate(episodes)
        _, first = np.unique(self.episodes["agent"], return_index=True)
        self.firsts = self.episodes[first]  # of each world: no job is favoured for being short
        self.skill, returns, steps_of, self.was_slow, self.work = self.firsts["statistics"].T
        assert (steps_of == self.firsts["length"]).all()
        assert np.abs(returns - self.firsts["return"]).max() < 1e-4


def test_tools_pay_by_the_item_in_the_jobs_that_they_suit_and_nothing_in_others():
    jobs = Jobs(None, steps=200, worlds=200, items=5, **QUICK)
    known = jobs.slow >= 0
    quick = (jobs.items + 0.5) / 5
    expected = np.where(jobs.tools == jobs.slow, np.where(jobs.slow == 1, 1 - quick, quick), 0)
    assert known.sum() > 20_000
    assert np.abs(jobs.rewards - expected)[known].max() < 1e-6
    counts = np.bincount(jobs.items.ravel(), minlength=5) / jobs.items.size
    assert np.abs(counts - 1 / 5).max() < ERRORS * (4 / 25 / jobs.items.size) ** 0.5


def test_slow_jobs_are_the_long_ones_and_as_many_as_they_should_be():
    worlds = 6000
    jobs = Jobs(None, steps=24, worlds=worlds, slow=0.2, quick_steps=3, slow_steps=24, **QUICK)
    assert len(jobs.firsts) == worlds
    slow = jobs.was_slow == 1
    assert abs(slow.mean() - 0.2) < ERRORS * (0.16 / worlds) ** 0.5
    assert (jobs.firsts["length"] == np.where(slow, 24, 3)).all()


@pytest.mark.parametrize(
    "law", [{"mean_us": 1.0, "tail": 1.1, "longest": 300}, {"mean_us": 2.0, "tail": 2.5, "longest": 20}]
)
def test_the_times_of_all_steps_are_a_bounded_pareto_and_slow_jobs_have_the_longest(law):
    jobs = Jobs(None, steps=16, worlds=10_000, quick_steps=2, slow_steps=16, **law)
    slow, weight = jobs.was_slow == 1, jobs.firsts["length"].astype(np.float64)
    times = jobs.work.astype(np.float64) / weight
    assert len(times) == 10_000
    assert times[~slow].max() <= times[slow].min() + 1e-6
    assert times.max() <= law["mean_us"] * law["longest"] * (1 + 1e-6)
    assert times.max() > 15 * times.min()

    def error(values: np.ndarray, mean: float) -> float:
        """Of a mean over steps, whose weights are the jobs' lengths."""
        return float(np.sqrt((weight**2 * (values - mean) ** 2).sum()) / weight.sum())

    assert abs(np.average(times, weights=weight) - law["mean_us"]) < ERRORS * error(times, law["mean_us"])
    counts = np.floor(np.quantile(times, [0.2, 0.5, 0.8, 0.9, 0.99, 0.999]) * ROUNDS_PER_MICROSECOND)
    points = (counts + 0.5) / ROUNDS_PER_MICROSECOND  # between two counts of rounds
    for point, expected in zip(points, pareto_distribution(points, **law), strict=True):
        below = (times < point).astype(np.float64)
        assert abs(np.average(below, weights=weight) - expected) < ERRORS * error(below, expected)


def test_a_step_really_takes_its_time_on_the_processor():
    with load("slowtail").create(64, {"mean_us": 200.0, "longest": 20}, world_seeds(1, 64)) as worlds:
        worlds.reset()
        done, spent = 0.0, 0.0
        for _ in range(40):
            per_step = [float(worlds.render_text(w).split("   ")[2].split()[0]) for w in range(64)]
            begin = time.thread_time()
            worlds.step(np.zeros(64, np.int32))
            spent += time.thread_time() - begin
            done += sum(per_step)
        assert done > 50_000, "microseconds"
        assert spent > done * ROUNDS_PER_MICROSECOND * LEAST_ROUND_SECONDS


def test_the_work_depends_on_the_seed_alone():
    """And on nothing measured: two plays of one seed report the same times."""
    one, two, other = (Jobs(None, steps=64, worlds=50, seed=seed, **QUICK) for seed in (1, 1, 2))
    assert (one.episodes == two.episodes).all()
    assert one.work[:40].tolist() != other.work[:40].tolist()


@pytest.mark.parametrize("slow", [0.0, 0.1, 1.0])
def test_the_return_of_a_policy_is_that_of_the_closed_form(slow):
    share = slow_share(slow, 4, 32)
    jobs = Jobs(best_tools(share), steps=32, worlds=6000, slow=slow, quick_steps=4, slow_steps=32, **QUICK)
    got = jobs.firsts["return"]
    assert len(got) == 6000
    expected = tool_reward(np.eye(2)[best_tools(share)], share) * (slow * 32 + (1 - slow) * 4)
    assert abs(got.mean() - expected) < ERRORS * got.std() / len(got) ** 0.5 + 1e-5


@pytest.mark.parametrize("tools", [[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]])
def test_skill_is_the_policys_mean_pay_over_the_best_ones_in_quick_and_slow_jobs_alike(tools):
    jobs = Jobs(np.array(tools), steps=128, worlds=2000, items=4, slow=0.3, **QUICK)
    share = slow_share(0.3)
    best = tool_reward(np.eye(2)[best_tools(share, 4)], share)
    expected = tool_reward(np.eye(2)[tools], share) / best
    for slow in (0, 1):
        skill = jobs.skill[jobs.was_slow == slow]
        error = skill.std() / len(skill) ** 0.5
        assert abs(skill.mean() - expected) < ERRORS * error + 1e-5
    assert best_tools(share, 4).tolist() == [1, 1, 1, 0]
    if tools == [1, 1, 1, 0]:
        assert (jobs.skill == 1).all(), "without noise"


def test_dropping_the_slots_that_come_last_hides_slow_jobs_and_teaches_a_worse_policy():
    """Producers of one world each and slots of 16 steps, of which all are kept or only the quickest."""
    slot, warm_up, slots, longest_job = 16, 256, 64, 128
    jobs = Jobs(None, steps=warm_up + slots * slot + longest_job, worlds=400, mean_us=0.2)
    rows = slice(warm_up, warm_up + slots * slot)  # jobs under way are those of the long run
    assert (jobs.slow[rows] >= 0).all()
    slow, took, item, tool, reward = (
        x[rows].reshape(slots, slot, -1)
        for x in (jobs.slow, jobs.microseconds, jobs.items, jobs.tools, jobs.rewards)
    )
    share = slow_share()
    late = took.sum(axis=1) > np.quantile(took.sum(axis=1), 0.7)

    def learned(kept: np.ndarray) -> np.ndarray:
        """[items] the tool that has earned more in the kept slots."""
        steps = np.broadcast_to(kept[:, None], reward.shape)
        mean = [[reward[steps & (item == i) & (tool == a)].mean() for a in (0, 1)] for i in range(8)]
        return np.argmax(mean, axis=1)

    whole = np.ones_like(late)
    assert slow.mean() == pytest.approx(share, abs=0.03)
    assert slow.mean(axis=1)[~late].mean() < 0.7 * share
    assert (learned(whole) == best_tools(share)).all()
    assert learned(~late).sum() < best_tools(share).sum()
    earned = [tool_reward(np.eye(2)[learned(kept)], share) for kept in (whole, ~late)]
    assert earned[1] < earned[0] == tool_reward(np.eye(2)[best_tools(share)], share)


def test_the_picture_tells_the_job():
    with load("slowtail").create(1, {"slow": 1.0, "slow_steps": 9, **QUICK}) as worlds:
        worlds.reset()
        worlds.step(np.array([0]))
        item = worlds.obs[0].argmax() + 1
        words = worlds.render_text(0)
        assert words.startswith("slow job   step 1 of 9   ")
        assert words.endswith(f" us a step   item {item} of 8\n")
