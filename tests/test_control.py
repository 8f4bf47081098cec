"""What the control block promises: everybody's figures, each written by its owner, and the run's flags."""

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import ringbuf
from ringbuf import Control, RingError, segments


def test_a_row_of_the_process_table_is_what_the_supervisor_set(rig):
    run = rig()
    run.control.set_process(5, role="producer", role_index=2, pid=4242, start_time=99, core=3,
                            state="running", epoch=7)
    info = run.process(5).process(5)
    assert info[:7] == ("producer", 2, 4242, 99, 7, "running", 3)
    run.control.set_process(5, state="backoff", core=None)
    info = run.control.process(5)
    assert (info.role, info.pid, info.state, info.core) == ("producer", 4242, "backoff", None)
    assert run.control.process(6)[:7] == ("none", 0, 0, 0, 0, "none", None)


def test_a_pulse_shows_phase_progress_and_time(rig):
    run = rig()
    before = time.monotonic_ns()
    run.process(3).pulse("wait_data", 17)
    info = run.control.process(3)
    assert (info.phase, info.progress) == ("wait_data", 17)
    assert before <= info.heartbeat_ns <= time.monotonic_ns()


@pytest.mark.parametrize(("role", "names"), [("producer", ringbuf.PRODUCER_COUNTERS),
                                             ("learner", ringbuf.LEARNER_COUNTERS)])
def test_counters_go_by_the_names_of_the_role(rig, role, names):
    run = rig()
    run.control.set_process(1, role=role)
    own = run.process(1)
    for i, name in enumerate(names):
        own.counter_set(name, i)
        own.counter_add(name, 2**40)
    own.counter_add(names[0])
    assert run.control.counters(1) == {name: i + 2**40 + (i == 0) for i, name in enumerate(names)}
    assert run.control.counters(2) == {}


def test_gauges_are_nan_until_they_are_set(rig):
    run = rig()
    run.control.set_process(1, role="learner")
    assert all(math.isnan(value) for value in run.control.gauges(1).values())
    run.process(1).gauge_set("grad_norm", -0.25)
    assert run.control.gauges(1)["grad_norm"] == -0.25
    assert tuple(run.control.gauges(1)) == ringbuf.LEARNER_GAUGES
    assert run.control.gauges(9) == {}


def test_lags_and_ages_are_counted_in_bins_of_which_the_last_takes_the_rest(rig):
    run = rig()
    run.control.set_process(1, role="learner")
    own = run.process(1)
    own.counter_set("age_sum_ns", 5)  # the named counter before the bins
    own.lag_add(0, 3)
    own.lag_add(128)
    own.lag_add(1000, 2)
    own.age_add(31, 4)
    own.age_add(99)
    lags, ages = run.control.bins(1)
    assert (lags[0], lags[128], lags[129], sum(lags)) == (3, 1, 2, 6)
    assert (ages[31], sum(ages)) == (5, 5)
    assert run.control.counters(1)["age_sum_ns"] == 5


def test_unknown_names_are_refused_with_those_that_exist(rig):
    run = rig()
    run.control.set_process(1, role="producer")
    own = run.process(1)
    for call in (lambda: own.counter_add("stepz"), lambda: own.gauge_set("loss", 1),
                 lambda: own.pulse("napping", 1), lambda: own.set_stop("bored"),
                 lambda: run.control.set_process(1, role="cook")):
        with pytest.raises(ValueError, match="is none of"):
            call()
    with pytest.raises(ValueError):
        own.request_stop("score")  # a producer does not
    with pytest.raises(IndexError):
        run.control.process(512)
    with pytest.raises(OverflowError):
        own.counter_add("steps", -1)


def test_the_stop_flag_carries_its_reason_to_everybody(rig):
    run = rig()
    assert run.process(9).stop is None
    run.control.set_stop("score")
    assert run.process(9).stop == "score"


def test_a_learner_asks_for_a_stop_through_its_counter(rig):
    run = rig()
    run.control.set_process(1, role="learner")
    run.process(1).request_stop("versions")
    assert ringbuf.STOP_REASONS[run.control.counters(1)["stop_request"]] == "versions"


def test_stop_wakes_learners_and_producers_and_producers_gone_wakes_learners(rig):
    run = rig(grant=1)
    learner, raw = run.process(1), run.raw()
    seen, producer_bell = learner.bell_value(0), raw["bell"] & 0xFFFFFFFF
    run.control.set_producers_gone()
    assert learner.producers_gone
    assert learner.bell_wait(0, seen, 0)
    assert raw["bell"] & 0xFFFFFFFF == producer_bell
    seen = learner.bell_value(0)
    run.control.set_stop("signal")
    assert learner.bell_wait(0, seen, 0)
    assert raw["bell"] & 0xFFFFFFFF != producer_bell


def test_a_wait_ends_at_its_deadline_and_not_before(rig):
    own = rig().process(1)
    seen = own.bell_value(0)
    before = time.monotonic_ns()
    assert not own.bell_wait(0, seen, 0.05)
    assert not own.bell_wait(0, seen, deadline_ns=before + 80_000_000)
    assert time.monotonic_ns() - before >= 80_000_000
    assert not own.bell_wait(0, seen, -1)


def test_signal_handlers_run_during_a_wait_which_then_goes_on(rig):
    own, ran = rig().process(1), threading.Event()
    seen = own.bell_value(0)

    def interrupt_then_ring():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert ran.wait(600)
        own.bell_ring(0)

    previous = signal.signal(signal.SIGUSR1, lambda *_: ran.set())
    timer = threading.Timer(0.05, interrupt_then_ring)
    try:
        timer.start()
        assert own.bell_wait(0, seen, 600)
        assert ran.is_set()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, previous)


def test_an_exception_from_a_signal_handler_ends_a_wait(rig):
    own = rig().process(1)
    seen = own.bell_value(0)

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            own.bell_wait(0, seen, 600)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, previous)


def test_other_threads_run_while_one_waits(rig):
    own = rig().process(1)
    seen = own.bell_value(0)
    thread = threading.Timer(0.05, own.bell_ring, (0,))
    thread.start()
    assert own.bell_wait(0, seen, 600)  # would never end with the interpreter locked
    thread.join()


def test_the_block_knows_its_run_and_its_age(rig):
    run = rig()
    assert run.control.run_id == run.run_id
    assert abs(run.control.created_unix - time.time()) < 600
    assert (run.control.self_index, run.process(8).self_index) == (0, 8)
    assert run.control.name == run.names[0]
    with pytest.raises(RingError, match="process 512"):
        Control.attach(run.control.fd, 512)


def test_the_block_knows_where_its_run_lives(rig):
    name = segments.name(os.urandom(16), "control")
    directory = "/runs/" + "x" * 1017
    created = segments.create_control(name, os.urandom(16), directory)
    try:
        seen = Control.attach(created.fd, 7)
        assert seen.directory == directory
        assert seen.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        assert seen.boot_id.hex() == boot_id
    finally:
        segments.unlink(name)
    assert rig().control.directory == ""
    for impossible in ("runs/here", "/" + "x" * 1023):
        with pytest.raises(RingError, match="absolute path"):
            segments.create_control(name, os.urandom(16), impossible)


def test_a_reset_pulse_is_that_of_a_process_that_has_not_begun(rig):
    run = rig()
    run.process(3).pulse("train", 17)
    run.control.reset_pulse(3)
    info = run.control.process(3)
    assert (info.phase, info.progress, info.heartbeat_ns) == ("starting", 0, 0)
    with pytest.raises(IndexError):
        run.control.reset_pulse(512)


def test_announced_settings_are_counted_and_wake_the_learner(rig):
    run = rig()
    learner = run.process(1)
    assert learner.settings == 0
    seen = learner.bell_value(0)
    run.control.announce_settings()
    assert learner.bell_wait(0, seen, 0)
    assert learner.settings == 1


def test_a_block_stays_mapped_while_rings_are_attached_through_it(rig):
    run = rig()
    with pytest.raises(RingError, match="rings are attached"):
        run.control.close()
