"""What the report says of studies whose truth is known."""

import json
import random
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import studies
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.markup import number
from stress import inference, packing
from stress.markup import interval
from stress.page import page
from stress.records import Records
from stress.report import analyse, main, write

SEEDS = range(10)
FEW = 300  # resamples, where no test is about an interval
LAG = 8

AGAINST_NONE = {
    "name": "better than none", "kind": "difference", "metric": "area", "margin": None,
    "a": {"task": "cartpole", "mode": "lagged", "correction": "ppo", "lag": LAG},
    "b": {"task": "cartpole", "mode": "lagged", "correction": "none", "lag": LAG},
}  # fmt: skip
FREE = {
    "name": "nearly free", "kind": "equivalence", "metric": "area", "margin": 0.05,
    "a": {"correction": "ppo", "lag": LAG}, "b": {"correction": "ppo", "lag": 0},
}  # fmt: skip
CLOCK = {
    "name": "async against sync", "kind": "ratio", "metric": "time_to_threshold", "margin": None,
    "a": {"mode": "async", "learners": 1}, "b": {"mode": "sync"},
}  # fmt: skip


def runs(correction, lag, level, seeds=SEEDS, **keys):
    return [studies.cell(seed, level, correction=correction, lag=lag, **keys) for seed in seeds]


def arms(*, none=0.5, ppo=0.8, start=1.0, seeds=SEEDS, **keys):
    """Two corrections at lag 0 and at LAG, where they reach so much."""
    return [
        *runs("none", 0, start, seeds, **keys), *runs("none", LAG, none, seeds, **keys),
        *runs("ppo", 0, start, seeds, **keys), *runs("ppo", LAG, ppo, seeds, **keys),
    ]  # fmt: skip


def say(found, primary=(AGAINST_NONE, FREE), *, tasks=("cartpole",), resamples=FEW, **facts):
    study = studies.study(*tasks, primary=primary, **facts)
    return analyse(Records.of(json.loads(json.dumps(study)), found), resamples=resamples)


def outcomes(report):
    return {contrast["name"]: contrast["outcome"] for contrast in report["primary"]}


def verdict_on(report, correction):
    return next(one for one in report["verdicts"] if one["correction"] == correction)


def test_an_arm_that_is_better_is_said_to_be_and_one_that_is_worse_too():
    report = say(arms())
    assert outcomes(report)["better than none"] == "better"
    found = report["primary"][0]
    assert (
        found["estimate"][1] < 0.25 < found["estimate"][2] + 0.05
    )  # 0.3 of the height, five sixths of the time
    assert "better" in found["sentence"]
    assert "10 paired seeds" in found["sentence"]
    assert verdict_on(report, "ppo")["helps_at"] == [LAG]
    assert verdict_on(report, "none")["costs_at"] == [LAG]
    assert any("On cartpole" in said and "helping: ppo (lag 8)" in said for said in report["headline"])
    turned = say(arms(none=0.8, ppo=0.5))
    assert outcomes(turned)["better than none"] == "worse"
    assert verdict_on(turned, "ppo")["hurts_at"] == [LAG]


def test_what_the_seeds_do_not_decide_is_called_not_decided_with_the_seeds_that_would():
    report = say(arms(none=0.79, noise=0.15))
    assert outcomes(report)["better than none"] == "not decided"
    assert report["primary"][0]["wanted"] > 10
    assert "seeds would decide" in report["primary"][0]["sentence"]
    assert "not decided at lag 8" in verdict_on(report, "ppo")["words"]
    assert verdict_on(report, "ppo")["helps_at"] == verdict_on(report, "ppo")["hurts_at"] == []


def test_few_seeds_decide_nothing_however_far_they_are_apart():
    three = say(arms(none=0.3, seeds=range(3)))
    assert outcomes(three)["better than none"] == "not decided"
    assert verdict_on(three, "ppo")["helps_at"] == []
    assert "fewer than 5 decide nothing" in three["primary"][0]["sentence"]
    assert outcomes(say(arms(none=0.3, seeds=range(5))))["better than none"] == "better"


def test_the_signs_have_to_agree_where_there_are_enough_of_them():
    cells = [*runs("none", LAG, 0.5, range(6), noise=0.0), *runs("ppo", LAG, 0.8, range(5), noise=0.0),
             studies.cell(5, 0.44, correction="ppo", lag=LAG, noise=0.0)]  # fmt: skip
    (found,) = say(cells, (AGAINST_NONE,))["primary"]
    assert found["p"] < 0.03
    assert found["p_signs"] == 4 / 64
    assert found["outcome"] == "not decided"


def test_a_lag_that_costs_nothing_is_shown_to_be_nearly_free():
    report = say(arms(ppo=1.0, noise=0.02))
    assert outcomes(report)["nearly free"] == "equal"
    assert verdict_on(report, "ppo")["near_free_up_to"] == LAG
    assert "Nearly free up to lag 8" in verdict_on(report, "ppo")["words"]
    assert verdict_on(report, "none")["near_free_up_to"] is None


def test_an_arm_without_runs_at_lag_0_is_compared_with_the_one_without_correction_by_name():
    cells = [*runs("none", 0, 1.0, noise=0.02), *runs("ppo", 4, 1.0, noise=0.02), *runs("ppo", LAG, 0.6)]
    words = verdict_on(say(cells, ()), "ppo")["words"]
    assert "up to lag 4 (equal to none at lag 0 within ±0.05)" in words
    assert "Worse than none at lag 0 at lag 8" in words


def test_a_lag_that_does_better_than_none_at_all_is_said_to():
    words = verdict_on(say(arms(ppo=1.3), ()), "ppo")["words"]
    assert "Better than lag 0 at lag 8 (+0.2" in words
    assert "Not decided" not in words


def test_a_lag_beyond_one_that_is_not_shown_to_be_free_is_not_free_up_to():
    report = say([*arms(ppo=1.0, noise=0.02), *runs("ppo", 1, 1.0, noise=0.02), *runs("ppo", 4, 0.6)])
    found = verdict_on(report, "ppo")
    free = {c["lag"]: c["outcome"] for c in found["contrasts"] if c["name"] == "free"}
    assert free == {1: "equal", 4: "not decided", LAG: "equal"}
    assert found["near_free_up_to"] == 1


def test_no_sign_of_a_difference_is_no_equality():
    report = say(arms(ppo=1.0, noise=0.3))
    assert outcomes(report)["nearly free"] == "not decided"
    assert verdict_on(report, "ppo")["near_free_up_to"] is None


def test_many_tests_are_held_to_a_stricter_level_than_one_that_was_named_beforehand():
    others = [cell for i in range(20) for cell in runs(f"other{i}", LAG, 0.5, noise=0.06)]
    report = say([*arms(none=0.5, ppo=0.58, noise=0.06), *others])
    assert outcomes(report)["better than none"] == "better"
    control = next(c for c in verdict_on(report, "ppo")["contrasts"] if c["name"] == "control")
    assert control["p"] <= 0.05 < control["adjusted"]
    assert control["outcome"] == "not decided"


def test_runs_without_gradients_are_thrown_out_and_said_so():
    cells = arms()
    dead = [
        cell | {"gates": cell["gates"] | {"grad_norm_max": 0.0}}
        for cell in cells if cell["correction"] == "ppo" and cell["lag"] == LAG
    ]  # fmt: skip
    cells = [cell for cell in cells if cell["id"] not in {one["id"] for one in dead}] + dead
    report = say(cells)
    assert outcomes(report)["better than none"] == "no data"
    assert "10 cells were thrown out" in report["primary"][0]["sentence"]
    assert {one["why"] for one in report["thrown_out"]} == {"all its gradients were zero"}
    assert any("10 runs were thrown out" in said for said in report["headline"])


@pytest.mark.parametrize(("mode", "lag", "realised"), [("lagged", 8, 8), ("async", 4, 1.5)])
@pytest.mark.parametrize("apart", [0.0, 2e-5])  # as without lag: actor and learner round differently
def test_runs_whose_ratios_were_one_although_they_lagged_are_thrown_out(mode, lag, realised, apart):
    gates = {"grad_norm_max": 1.0, "ratio_apart_max": apart, "weights_sha256": "a"}
    dead = studies.cell(0, mode=mode, lag=lag, realised_lag=realised, gates=gates)
    alive = studies.cell(1, mode="lagged", lag=0, gates=gates)
    report = say([dead, alive], ())
    assert [one["id"] for one in report["thrown_out"]] == [dead["id"]]
    assert "1 but for rounding although it lagged" in report["thrown_out"][0]["why"]


def test_arms_that_end_with_the_same_weights_under_lag_are_thrown_out_both():
    same = {"grad_norm_max": 1.0, "ratio_apart_max": 0.3, "weights_sha256": "a"}
    at_lag = [studies.cell(0, lag=4, correction=c, gates=same) for c in ("ppo", "tis")]
    at_none = [studies.cell(0, lag=0, correction=c, gates=same) for c in ("ppo", "tis")]
    other_seed = studies.cell(1, lag=4, correction="mis", gates=same)
    report = say([*at_lag, *at_none, other_seed], ())
    assert {one["id"] for one in report["thrown_out"]} == {cell["id"] for cell in at_lag}
    assert "bit for bit those of tis" in next(
        one["why"] for one in report["thrown_out"] if one["correction"] == "ppo"
    )


def test_a_failed_run_counts_as_a_random_policy_and_is_listed():
    cells = arms()
    lost = studies.failed(3, correction="ppo", lag=LAG)
    report = say([lost if cell["id"] == lost["id"] else cell for cell in cells])
    assert report["state"]["failed"] == 1
    assert [(one["seed"], one["why"]) for one in report["failures"]] == [(3, "the learner died")]
    assert report["primary"][0]["seeds"] == 10
    assert report["primary"][0]["failed"] == [1, 0]
    whole = say(cells)
    assert report["primary"][0]["means"][0] == pytest.approx(0.9 * whole["primary"][0]["means"][0], abs=0.02)
    assert verdict_on(report, "ppo")["collapsed"] == {"8": [1, 10]}


def test_a_planted_collapse_is_found_with_what_warned_of_it():
    cells = arms()
    for i, seed in enumerate((1, 2, 3, 4)):
        fell = studies.cell(
            seed, 0.8, correction="none", lag=LAG, collapse_at=0.6 + i / 20, warned_by="ratio_ess"
        )
        cells = [fell if cell["id"] == fell["id"] else cell for cell in cells]
    report = say(cells)
    arm = next(a for a in report["arms"] if a["correction"] == "none" and a["lag"] == LAG)
    assert arm["collapsed"] == 4
    assert arm["worst"] < 0.2
    assert "4 of 10 at lag 8" in verdict_on(report, "none")["words"]
    onsets = [cell["fell_at"] for cell in report["cells"] if cell["collapsed"]]
    assert sorted(onsets) == pytest.approx([0.6 * studies.STEPS + i * 1e4 + 5e3 for i in range(4)], abs=5.1e3)
    found = report["alarms"]["cartpole"]
    assert found["fell"] == 4
    first = found["calm runs"][0]
    assert first["diagnostic"] == "ratio_ess"
    assert first["detected"] == first["first"] == 4
    assert first["lead_median_steps"] == pytest.approx(studies.STEPS / 6 - studies.STEPS / 40, abs=1.1e4)
    assert first["false_alarm_share"] < 0.3
    assert all(row["detected"] == 0 for row in found["calm runs"][1:])


def rows_of(cells, reference="calm runs"):
    return {row["diagnostic"]: row for row in say(cells, ())["alarms"]["cartpole"][reference]}


def test_an_alarm_after_the_fall_is_no_warning():
    cells = arms()
    late = studies.cell(2, 0.8, correction="ppo", lag=LAG, collapse_at=0.5)
    late["diagnostics"]["grad_norm"][-10:] = [9.0] * 10
    cells = [late if cell["id"] == late["id"] else cell for cell in cells]
    assert rows_of(cells)["grad_norm"]["detected"] == 0


def test_a_run_that_did_not_fall_is_judged_by_the_runs_of_other_seeds():
    cells = arms()
    fell = studies.cell(2, 0.8, correction="ppo", lag=LAG, collapse_at=0.5)
    wild = next(cell for cell in cells if cell["correction"] == "none" and cell["lag"] == LAG)
    wild["diagnostics"]["grad_norm"][:20] = [9.0] * 20  # more than one in a hundred of all points
    found = rows_of([fell if cell["id"] == fell["id"] else cell for cell in cells])["grad_norm"]
    assert found["false_alarms"] >= 1


def test_a_low_score_that_was_never_high_is_no_collapse():
    cells = [studies.cell(0, 0.2, lag=4, collapse_at=0.5), studies.cell(1, 0.9, lag=4)]
    report = say(cells, ())
    assert [(cell["collapsed"], cell["fell_at"]) for cell in report["cells"]] == [(False, None)] * 2
    assert report["alarms"]["cartpole"]["fell"] == 0


def test_the_final_score_is_that_at_the_end_of_the_budget_whatever_comes_behind_it():
    run = studies.cell(0, 1.0)
    curve = run["curve"]
    for name, value in (("steps", 1.5 * studies.STEPS), ("seconds", 30.0), ("score", studies.FLOOR)):
        curve[name].append(value)
    assert say([run], ())["cells"][0]["final"] == pytest.approx(1.0, abs=0.1)


def test_a_run_that_fell_and_recovered_has_fallen_and_not_collapsed():
    run = studies.cell(0, 1.0, lag=4)
    run["curve"]["score"][20:25] = [studies.FLOOR] * 5
    cell = say([run], ())["cells"][0]
    assert not cell["collapsed"]
    assert cell["fell_at"] == run["curve"]["steps"][20]
    assert cell["drawdown"] == pytest.approx(1.0, abs=0.1)


def clock(sync_seconds, async_seconds, *, level=1.0, sync_level=1.0, lost=()):
    sync = [studies.cell(s, sync_level, mode="sync", purpose="wall", seconds=sync_seconds) for s in SEEDS]
    fast = [
        studies.cell(
            s, 0.3 if s in lost else level, mode="async", lag=1, purpose="wall", seconds=async_seconds,
            realised_lag=0.5,
        )
        for s in SEEDS
    ]  # fmt: skip
    report = say([*sync, *fast], (CLOCK,), resamples=2000)
    (beside,) = report["wall_clock"]
    assert beside["outcome"] == report["primary"][0]["outcome"]
    assert any(
        f"By the clock, against synchronous training, {beside['outcome']}" in x for x in report["headline"]
    )
    return report["primary"][0]


def test_times_to_the_threshold_are_compared_by_their_ratio():
    found = clock(20.0, 10.0)
    assert found["outcome"] == "faster"
    assert found["estimate"][0] == pytest.approx(0.5, abs=0.05)
    assert clock(10.0, 20.0)["outcome"] == "slower"
    assert "the second never got there" in clock(20.0, 10.0, sync_level=0.4)["sentence"]
    assert clock(20.0, 20.0)["outcome"] == "not decided"
    unsure = clock(20.0, 11.0, lost=(4,))
    assert unsure["estimate"][0] < 1 < unsure["estimate"][2]
    assert unsure["outcome"] == "not decided"


def timed(seconds, **keys):
    return [
        studies.cell(seed, purpose="wall", noise=0.0, seconds=x, **keys) for seed, x in enumerate(seconds)
    ]


def test_a_run_that_failed_is_charged_the_longest_time_of_any():
    cells = [*timed([20.0] * 6, mode="sync"), *timed([10.0] * 5, mode="async", lag=1)]
    lost = studies.failed(5, mode="async", lag=1, purpose="wall")
    (found,) = say([*cells, lost], (CLOCK,))["primary"]
    assert found["failed"] == [1, 0]
    assert found["estimate"][0] == pytest.approx((5 * 2.5 + 20) / 5 / 5, rel=0.05)


def test_fewer_steps_to_the_threshold_are_better():
    steps = AGAINST_NONE | {"metric": "time_to_threshold"}
    (found,) = say(arms(none=0.8, ppo=1.5, noise=0.01), (steps,))["primary"]
    assert found["estimate"][2] < 0
    assert found["outcome"] == "better"


def test_times_are_told_apart_by_a_test_and_not_by_an_interval_alone():
    sync, all_but_one = timed([20.0] * 6, mode="sync"), [10.0] * 5 + [21.0]
    (found,) = say([*sync, *timed(all_but_one, mode="async", lag=1)], (CLOCK,), resamples=2000)["primary"]
    assert found["estimate"][2] < 1
    assert found["p"] == 4 / 64
    assert found["outcome"] == "not decided"
    five = [*timed([20.0, 20.1, 20.2, 20.3, 20.4], mode="sync"), *timed([10.0] * 5, mode="async", lag=1)]
    (found,) = say(five, (CLOCK,), resamples=2000)["primary"]
    assert found["p_signs"] == 2 / 32  # which cannot decide
    assert found["outcome"] == "faster"


def test_comparisons_by_the_clock_that_were_not_named_beforehand_are_corrected_for_their_number():
    cells = timed([20.0] * 6, mode="sync")
    for lag, seconds in ((1, 10.0), (2, 20.0), (4, 20.0)):
        cells += timed([seconds + i / 10 for i in range(6)], mode="async", lag=lag)
    clock = say(cells, ({**CLOCK, "a": {"mode": "async", "lag": 1}},), resamples=2000)
    found = clock["wall_clock"]
    assert found[0]["p"] == 2 / 64
    assert found[0]["adjusted"] > 0.05
    assert (clock["primary"][0]["outcome"], found[0]["outcome"]) == ("faster", "not decided")


def test_a_seed_that_never_reaches_the_threshold_is_a_failure_and_not_left_out():
    found = clock(20.0, 10.0, lost=(2, 5, 7, 8))
    assert found["failed"] == [4, 0]
    assert found["seeds"] == 10
    assert found["estimate"][0] > 1  # six times 2.7 s and four times 10 s, over six
    assert "count as failures" in found["sentence"]


def asynchronous(level, lag=1.5):
    exact = [
        cell for k, height in ((0, 1.0), (1, 0.9), (2, 0.8), (4, 0.6)) for cell in runs("ppo", k, height)
    ]
    free = runs("ppo", 4, level, mode="async", realised_lag=lag)
    return next(one for one in say([*exact, *free], ())["realised"])


def test_lag_explains_asynchronous_runs_that_do_as_exact_lag_does():
    found = asynchronous(0.85)
    assert found["outcome"] == "lag explains it"
    assert found["predicted"] == pytest.approx(0.85 * 5 / 6, abs=0.02)


def test_between_two_exact_lags_the_nearer_one_counts_more():
    assert asynchronous(0.875, lag=1.25)["predicted"] == pytest.approx(0.875 * 5 / 6, abs=0.015)
    assert asynchronous(0.825, lag=1.75)["predicted"] == pytest.approx(0.825 * 5 / 6, abs=0.015)


def test_at_an_exact_lag_realised_lag_is_judged_by_welchs_test():
    exact, free = runs("ppo", 2, 0.8, range(6)), runs("ppo", 4, 0.83, mode="async", realised_lag=2.0)
    report = say([*exact, *free], ())
    x, y = ([c["area"] for c in report["cells"] if c["mode"] == mode] for mode in ("async", "lagged"))
    (found,) = report["realised"]
    test = inference.welch(x, y)
    assert found["difference"] == pytest.approx(np.mean(x) - np.mean(y), rel=1e-3)
    half = inference.t_quantile(0.025, test.freedom) * found["difference"] / test.t
    assert found["high"] - found["low"] == pytest.approx(2 * abs(half), rel=1e-3)
    assert found["p_differ"] == pytest.approx(test.p, rel=1e-3)


def test_something_else_is_at_work_where_exact_lag_does_better():
    found = asynchronous(0.6)
    assert found["outcome"] == "something else"
    assert found["difference"] == pytest.approx(-0.25 * 5 / 6, abs=0.03)
    assert "worse" in found["words"]
    assert asynchronous(0.85, lag=5.0)["outcome"] == "not decided"  # beyond all exact lags


def test_where_lag_does_no_harm_it_is_said_that_there_is_nothing_to_explain():
    exact = [cell for k in (0, 1, 2) for cell in runs("ppo", k, 0.9)]
    (found,) = say([*exact, *runs("ppo", 4, 0.9, mode="async", realised_lag=1.5)], ())["realised"]
    assert found["outcome"] == "lag explains it"
    assert "hardly anything to explain" in found["words"]
    assert "hardly anything" not in asynchronous(0.85)["words"]


def test_learning_rates_that_differ_are_told_beside_realised_lag():
    exact = [cell for k in (1, 2) for cell in runs("ppo", k, 0.9)]
    free = runs("ppo", 4, 0.9, mode="async", realised_lag=1.5, learning_rate=0.0003)
    (found,) = say([*exact, *free], ())["realised"]
    assert "learning rates differ: 0.0003 against 0.001" in found["words"]
    assert "differ" not in asynchronous(0.85)["words"]


def test_runs_that_ended_at_their_score_are_not_laid_beside_runs_of_the_whole_budget():
    exact = [cell for k in (0, 1) for cell in runs("ppo", k, 1.0)]
    short = [
        cell | {"steps": studies.STEPS // 2} for cell in runs("ppo", 1, 1.0, mode="async", realised_lag=0.5)
    ]
    (found,) = say([*exact, *short], ())["realised"]
    assert found["outcome"] == "not decided"
    assert "ended these runs before their budget" in found["words"]


def test_alarms_of_audits_are_counted_over_all_runs_with_their_hours():
    cells = arms()
    cells[0] = cells[0] | {"audits": {"label": 2, "ratio": 0, "target": 1, "precision": 0}}
    audits = say(cells)["audits"]
    assert audits["alarms"] == {"label": 2, "ratio": 0, "target": 1, "precision": 0}
    assert audits["hours"] == pytest.approx(len(cells) * 20 / 3600)
    assert [one["id"] for one in audits["runs_with_alarms"]] == [cells[0]["id"]]


def test_a_selector_that_means_several_runs_of_a_seed_is_refused_in_words():
    loose = AGAINST_NONE | {"a": {"correction": "ppo"}}
    found = say(arms(), (loose,))["primary"][0]
    assert found["outcome"] == "no data"
    assert "several cells of task cartpole, seed 0" in found["sentence"]


def test_tasks_weigh_alike_where_a_contrast_is_about_all_of_them():
    both = AGAINST_NONE | {"a": {"correction": "ppo", "lag": LAG}, "b": {"correction": "none", "lag": LAG}}
    cells = [*arms(), *arms(none=0.8, task="pendulum")]
    found = say(cells, (both,), tasks=("cartpole", "pendulum"))["primary"][0]
    assert found["seeds"] == 10
    assert found["estimate"][0] == pytest.approx(0.15 * 5 / 6, abs=0.04)


def test_it_is_told_how_learning_rates_were_chosen():
    cells = [
        studies.cell(seed, level, purpose="tuning", lag=LAG, learning_rate=rate)
        for seed in (101, 102) for rate, level in ((0.001, 0.5), (0.003, 0.9), (0.01, 0.2))
    ]  # fmt: skip
    report = say(cells, ())
    (choice,) = report["tuned"]
    assert choice["best"] == 0.003
    assert not choice["at_edge"]
    assert [rate for rate, _ in choice["areas"]] == [0.001, 0.003, 0.01]
    assert report["cells"] == report["arms"] == []
    assert "0.003" in page(report)


def test_learning_rates_tuned_for_each_lag_do_not_part_an_arm_from_itself():
    rates = {("none", 0): 0.003, ("none", LAG): 0.0003, ("ppo", 0): 0.003, ("ppo", LAG): 0.001}
    cells = [
        cell | {"learning_rate": rates[cell["correction"], cell["lag"]]} for cell in arms(ppo=1.0, noise=0.02)
    ]
    found = verdict_on(say(cells), "ppo")
    assert found["near_free_up_to"] == LAG
    assert found["helps_at"] == [LAG]


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([0.5, 0.72, 0.8]))
def test_no_verdict_changes_when_the_seeds_change_places(shuffle: random.Random, none):
    cells = [*arms(none=none, seeds=range(6)), *runs("ppo", 1, 1.0, range(6), mode="async", realised_lag=0.4)]
    cells[7] = studies.cell(1, 0.8, correction="none", lag=LAG, collapse_at=0.6, warned_by="grad_norm")
    order = list(range(6))
    shuffle.shuffle(order)
    renamed = [cell | {"seed": order[cell["seed"]]} for cell in cells]
    shuffle.shuffle(renamed)
    one, other = say(cells), say(renamed)
    for part in ("headline", "verdicts", "primary", "realised", "alarms", "audits"):
        assert one[part] == other[part]


# The page


class Page(HTMLParser):
    """Collects cells of tables and whatever would be fetched; all that is opened must be closed."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.fetched, self.open, self.names, self.links = [], [], [], [], []
        self.charts = self.described = 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag not in ("meta", "path", "rect", "circle", "br"):
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")
        if tag == "svg" and found.get("role") == "img":
            self.charts += 1
        self.described += tag == "desc"
        self.fetched += [found[name] for name in ("src", "href") if name in found and found[name][0] != "#"]
        self.links += [found["href"][1:]] if found.get("href", "").startswith("#") else []
        self.names += [found["id"]] if "id" in found else []
        assert not any(name.startswith("on") for name in found)

    def handle_endtag(self, tag):
        if tag not in ("path", "rect", "circle"):
            assert self.open.pop() == tag

    def handle_data(self, text):
        if "td" in self.open:
            self.cells[-1] += text


@pytest.fixture(scope="module")
def whole():
    wall = [studies.cell(s, mode="sync", purpose="wall", seconds=20.0) for s in SEEDS]
    wall += [
        studies.cell(s, mode="async", lag=1, purpose="wall", realised_lag=0.6, seconds=15.0) for s in SEEDS
    ]
    fell = studies.cell(2, 0.8, correction="none", lag=LAG, collapse_at=0.7, warned_by="grad_norm")
    cells = [fell if cell["id"] == fell["id"] else cell for cell in arms()]
    return say([*cells, *wall, studies.failed(4, correction="<b>", lag=2)], (AGAINST_NONE, FREE, CLOCK))


def test_the_page_needs_nothing_from_elsewhere_and_is_well_formed(whole):
    text = page(whole)
    found = Page(text)
    assert found.open == []
    assert found.fetched == []
    assert not re.search(r"<script|@import|url\(|https?://", text)
    assert len(found.names) == len(set(found.names))
    assert set(found.links) <= set(found.names)
    assert found.charts == found.described > 8
    assert "<b>" not in text
    assert len(text) < 2_000_000
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", text.lower())


def test_the_numbers_of_the_page_are_those_of_the_json(whole):
    cells = Page(page(whole)).cells
    for contrast in (*whole["primary"], *(c for one in whole["verdicts"] for c in one["contrasts"])):
        assert interval(contrast["estimate"]) in cells
    for arm in whole["arms"]:
        assert interval(arm["area"], 2) in cells
        assert number(arm["worst"], 2) in cells
    for row in whole["alarms"]["cartpole"]["calm runs"]:
        assert row["diagnostic"] in cells
    for said in whole["headline"]:
        assert said in page(whole)
    for one in whole["verdicts"]:
        assert one["words"] in cells


def test_a_report_is_written_from_whatever_of_a_study_is_there(tmp_path):
    folder = studies.store(
        tmp_path / "none", studies.study(primary=(AGAINST_NONE, CLOCK), planned_cells=44), []
    )
    assert "No" in write(folder, resamples=FEW).read_text()
    folder = studies.store(tmp_path / "half", studies.study(primary=(AGAINST_NONE, CLOCK), planned_cells=44),
                           [*runs("ppo", LAG, 0.8, range(2)), *runs("none", LAG, 0.5, range(1))])  # fmt: skip
    (folder / "cells" / "torn.json").write_text('{"id": "to')
    text = write(folder, resamples=FEW).read_text()
    found = json.loads((folder / "report.json").read_text())
    assert found["state"]["missing"] == 41
    assert found["state"]["left_out"] == ["torn.json"]
    assert found["primary"][0]["seeds"] == 1
    assert found["primary"][0]["outcome"] == "not decided"
    assert found["primary"][1]["outcome"] == "no data"
    assert "41 planned cells are not finished" in text
    assert "torn.json" in text
    assert sorted(path.name for path in folder.iterdir()) == [
        "cells", "report.html", "report.json", "study.resolved.json",
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        write(tmp_path, resamples=FEW)


def test_cells_that_the_study_does_not_ask_for_any_more_do_not_count():
    cells = arms()
    asked = [cell["id"] for cell in cells]
    other = studies.cell(3, 0.1, correction="ppo", lag=LAG, epochs=7)
    report = say([*cells, other], cells=asked)
    assert report["state"]["foreign"] == 1
    assert report["primary"] == say(cells)["primary"]
    assert "1 cells of the store are not of the study" in page(report)


def test_a_packed_study_says_the_same(tmp_path, capsys):
    cells = [*arms(), studies.failed(20, lag=LAG), studies.cell(101, purpose="tuning", lag=LAG)]
    fell = studies.cell(2, 0.8, correction="none", lag=LAG, collapse_at=0.7, warned_by="grad_norm")
    cells = [fell if cell["id"] == fell["id"] else cell for cell in cells]
    folder = studies.store(tmp_path / "study", studies.study(primary=(AGAINST_NONE, FREE)), cells)
    packed = packing.pack(folder, tmp_path / "packed")
    assert packed.stat().st_size < sum(path.stat().st_size for path in folder.glob("cells/*.json")) / 5
    one, other = (analyse(Records.load(place), resamples=FEW) for place in (folder, packed.parent))
    for part in ("headline", "state", "audits", "failures", "thrown_out"):
        assert one[part] == other[part]
    assert outcomes(one) == outcomes(other)
    assert [c["area"] for c in one["cells"]] == pytest.approx([c["area"] for c in other["cells"]], abs=0.005)
    assert one["alarms"]["cartpole"]["fell"] == other["alarms"]["cartpole"]["fell"] == 1
    assert main([str(tmp_path / "nowhere")]) == 69
    assert "no such file" in capsys.readouterr().err
