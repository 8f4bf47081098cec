"""Who counts as hung or stalled, in ticks of the watcher."""

from monitor.watch import Patience, Pulse, Watch

PATIENCE = Patience(start_ticks=20, hung_ticks=5, stalled_ticks=10, abort_ticks=3)


def findings(pulses, patience=PATIENCE):
    """[(tick, finding)] over one pulse a tick, from tick 1 on."""
    watch = Watch(0)
    found = ((tick, watch.look(tick, pulse, patience)) for tick, pulse in enumerate(pulses, 1))
    return [(tick, what) for tick, what in found if what is not None]


def test_a_process_whose_heartbeat_and_progress_move_is_well():
    assert findings(Pulse(tick, tick, "step") for tick in range(100)) == []


def test_a_process_without_a_heartbeat_is_hung():
    assert findings(Pulse(7, 1, "step") for _ in range(30)) == [(6, "hung")]


def test_a_process_that_stops_beating_in_a_named_wait_is_hung_too():
    assert findings(Pulse(7, 1, "wait_credit") for _ in range(30)) == [(6, "hung")]


def test_one_heartbeat_in_time_is_enough():
    assert findings(Pulse(tick // 5, tick, "step") for tick in range(100)) == []


def test_a_process_at_work_without_progress_is_stalled():
    for phase in ("step", "policy", "train"):
        assert findings(Pulse(tick, 1, phase) for tick in range(30)) == [(11, "stalled")]


def test_a_named_wait_may_last_for_ever():
    for phase in ("wait_credit", "wait_full", "wait_version", "wait_owner", "wait_data", "saving"):
        assert findings(Pulse(tick, 1, phase) for tick in range(1000)) == []


def test_a_wait_in_between_starts_the_count_anew():
    pulses = [Pulse(tick, 1, "wait_data" if tick % 9 == 0 else "train") for tick in range(100)]
    assert findings(pulses) == []


def test_a_start_has_a_deadline_of_its_own_and_needs_no_heartbeat():
    assert findings(Pulse(0, 0, "starting") for _ in range(19)) == []
    assert findings(Pulse(0, 0, "starting") for _ in range(30)) == [(20, "slow start")]


def test_after_a_long_start_the_heartbeat_has_its_whole_time():
    pulses = [Pulse(0, 0, "starting")] * 15 + [Pulse(0, 0, "step")] * 5
    assert findings(pulses) == []


def test_a_watcher_that_was_paused_judges_by_its_own_ticks():
    """An hour passes on every clock; the watcher saw one tick of it."""
    watch, pulse = Watch(0), Pulse(7, 1, "step")
    watch.look(1, pulse, PATIENCE)
    assert watch.look(2, pulse, PATIENCE) is None


def test_a_hung_process_is_killed_once_it_had_the_time_to_show_its_stack():
    watch = Watch(0)
    for tick in range(1, 6):
        assert not watch.found
        watch.look(tick, Pulse(7, 1, "step"), PATIENCE)
    assert watch.look(6, Pulse(7, 1, "step"), PATIENCE) == "hung"
    assert watch.found
    assert not watch.kill_due(8, PATIENCE)
    assert watch.kill_due(9, PATIENCE)
    assert watch.silent_ticks(9) == 8


def test_a_process_that_comes_back_after_the_finding_is_killed_nevertheless():
    """It was asked for its stack by a signal that it does not survive."""
    watch = Watch(0)
    for tick in range(1, 7):
        watch.look(tick, Pulse(7, 1, "step"), PATIENCE)
    assert watch.look(7, Pulse(8, 2, "step"), PATIENCE) is None
    assert watch.kill_due(9, PATIENCE)


def test_patience_in_seconds_becomes_one_tick_at_least():
    assert Patience.of(0.1, start=0.001, hung=60, stalled=300, abort=2) == Patience(1, 600, 3000, 20)
    assert Patience.of(0.1, start=1, hung=1e308, stalled=300, abort=2).hung_ticks > 1 << 50
