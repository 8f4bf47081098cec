"""`mode: lagged`: every step is trained on exactly so many versions after it was acted, whatever the machine
does, and so a run repeats to the last bit, however many producers simulate."""

import contextlib
import json
import os
import random
import signal
import threading

import pytest
from liverun import RUN, LiveRun, equal

from consumers import shelf

AGENTS, SLOTS = 16, 2  # agents of all producers; slots of a ring in a batch
LAGS = [0, 1, 4, *(pytest.param(lag, marks=pytest.mark.soak) for lag in (2, 8, 16, 32))]
MEMORY = RUN.replace("{name: cartpole, max_steps: 30}", "{name: memory, corridor: 3, patience: 2}")


@pytest.fixture
def live(live):
    """Makes runs of a lag, of any number of producers with equally many agents in all."""

    def make(lag, *overrides, producers=1, versions=6, **options):
        size = (
            f"producers.count={producers}", f"producers.agents={AGENTS // producers}",
            f"learner.batch_slots={SLOTS * producers}", f"stop.versions={lag + versions}",
        )  # fmt: skip
        return live("mode=lagged", f"staleness.exact={lag}", *size, *overrides, **options)

    return make


def to_its_end(run, **options):
    run.start(**options)
    assert run.finish() == 0
    run.check_books()
    return run.weights()


def lines(run):
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def check_lags(told, lag, base=0):
    """Of batches trained since version `base` was there, of which the first `lag` are the warm-up."""
    assert told
    for line in told:
        n = line["version"] - 1 - base
        assert (line["lag_mean"], line["lag_max"], line["lag_spread"]) == (min(n, lag), min(n, lag), 0)
        assert line["warm_up"] == (n < lag)


@pytest.mark.parametrize("lag", LAGS)
def test_runs_of_one_seed_are_equal_bit_for_bit_with_one_producer_or_two_of_half_its_agents(live, lag):
    runs = [live(lag), live(lag), live(lag, producers=2)]
    first, *others = [to_its_end(run) for run in runs]
    for weights in others:
        assert equal(weights, first)
    for run in runs:
        check_lags(lines(run), lag)
        assert len(lines(run)) == lag + 6


def test_another_lag_or_another_seed_is_another_run(live):
    first, *others = [
        to_its_end(live(lag, "stop.versions=5", f"run.seed={seed}")) for lag, seed in ((1, 7), (2, 7), (1, 8))
    ]
    assert not any(equal(weights, first) for weights in others)


def test_a_lag_of_0_is_sync_bit_for_bit(live):
    """And so equals the independent implementation that test_sync_equals_reference.py compares sync with."""
    lagged, sync = live(0, producers=2), live(0, "mode=sync", producers=2)
    assert equal(to_its_end(lagged), to_its_end(sync))
    assert [line["lag_max"] for line in lines(sync)] == [0] * 6


@pytest.mark.parametrize("kind", ["lstm", "mingru"])
def test_recurrent_runs_are_equal_bit_for_bit_with_any_number_of_producers(live, kind):
    policy = f"policy.recurrent={kind}", "policy.recurrent_width=8"
    one, four = [to_its_end(live(2, *policy, producers=producers, text=MEMORY)) for producers in (1, 4)]
    assert equal(one, four)


@contextlib.contextmanager
def stopped_now_and_then(pids):
    """Stops the processes for up to 50 ms, lets them run for a few, and so on."""
    done, dice = threading.Event(), random.Random(4)

    def send(sign):
        for pid in pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def disturb():
        while not done.is_set():
            send(signal.SIGSTOP)
            done.wait(dice.uniform(0.0, 0.05))
            send(signal.SIGCONT)
            done.wait(dice.uniform(0.0, 0.005))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, zygote):
    """Final weights of the run that the tests below disturb."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = LiveRun(folder, zygote, "mode=lagged", "staleness.exact=2", "producers.count=2", "stop.versions=12")
    try:
        yield to_its_end(run)
    finally:
        run.close()


SLOW = {
    "learner": lambda run: [run.pid],
    "producer": lambda run: [run.producers[0].pid],
    "producers": lambda run: [producer.pid for producer in run.producers],
}


@pytest.mark.parametrize("slow", SLOW)
def test_the_lag_is_the_same_at_every_step_whoever_is_slow(live, undisturbed, slow):
    run = live(2, producers=2, versions=10)
    run.start()
    with stopped_now_and_then(lambda: SLOW[slow](run)):
        run.until(lambda: run.counters()["stop_request"])
    assert run.finish() == 0
    run.check_books()
    check_lags(lines(run), 2)
    assert equal(run.weights(), undisturbed)


def test_the_lag_is_the_same_when_one_producer_stands_still_and_a_learner_dies_meanwhile(live, undisturbed):
    run = live(2, producers=2, versions=10)
    run.start("train:5")
    assert not run.until(lambda: False)
    os.kill(run.producers[1].pid, signal.SIGSTOP)
    run.bury()
    run.learner()
    assert run.until(lambda: run.phase() == "wait_data")
    os.kill(run.producers[1].pid, signal.SIGCONT)
    assert run.finish() == 0
    check_lags(lines(run), 2)
    assert equal(run.weights(), undisturbed)


def test_from_a_checkpoint_the_lag_grows_anew(live):
    """The weights of earlier versions are gone with the memory of the run that made them."""
    first = live(2, producers=2, versions=4)
    to_its_end(first)
    again = live(2, producers=2, versions=10, after=first)
    to_its_end(again, resume=shelf.latest(first.folder / "checkpoints"))
    told = lines(again)
    check_lags(told[:6], 2)
    check_lags(told[6:], 2, base=6)


def test_behind_a_roll_back_nothing_is_acted_by_the_abandoned_policy(live):
    run = live(2, "learner.nonfinite_steps=3", producers=2, versions=9)
    run.start("nan:5")
    assert run.until(lambda: any(event["event"] == "rolled_back" for event in run.events()))
    run.kill()  # the next one has no fault
    run.learner()
    assert run.finish() == 0
    (event,) = [event for event in run.events() if event["event"] == "rolled_back"]
    assert event["version"] == 6
    behind = [line for line in lines(run) if line["version"] > 6]
    assert behind[-1]["version"] == 11
    check_lags(behind, 2, base=6)
    counts, _ = run.control.bins(run.table.learner)
    assert counts[3:] == [0] * len(counts[3:])
