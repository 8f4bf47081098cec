"""What is said of a death."""

import signal

import pytest

from monitor import deaths, procfs


def counters(**changes):
    known = {"crash_signal": 0, "crash_phase": 1, "crash_world": 0, "crash_seed": 9, "crash_step": 40}
    return known | changes


HEADER = {"sequence": 6, "state": "ready", "valid_steps": 256}


@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (0, "ended by itself"),
        (70, "ended with exit code 70"),
        (-signal.SIGSEGV, "died of SIGSEGV"),
        (-40, "died of signal 40"),
    ],
)
def test_an_end_is_told_by_its_name(returncode, text):
    assert deaths.how(returncode) == text


def test_a_producer_that_wrote_nothing_down_has_no_crash():
    assert deaths.Crash.of(counters()) is None


def test_a_crash_names_world_seed_and_step():
    crash = deaths.Crash.of(counters(crash_signal=11, crash_world=4))
    assert str(crash) == "in phase step, world 3 (seed 9), step 40"
    inquest = deaths.Inquest.of(
        -11, hung=False, out_of_memory=False, crash=crash, simulator="toy", header=HEADER
    )
    where = "in phase step, world 3 (seed 9), step 40"
    assert inquest.text == f"died of SIGSEGV {where}; simulator toy, last slot 6 (ready, 256 valid steps)"
    assert inquest.facts == {
        "signal": "SIGSEGV", "simulator": "toy", "last_slot": HEADER,
        "phase": "step", "world": 3, "seed": 9, "step": 40,
    }


def test_a_crash_outside_any_world_names_none():
    assert str(deaths.Crash.of(counters(crash_signal=6))) == "in phase step, step 40"


def test_a_kill_is_put_down_to_memory_only_where_the_kernel_counted_one():
    cases = ((-9, True, False), (-9, False, False), (-11, True, False), (-9, True, True))
    for returncode, counted, hung in cases:
        inquest = deaths.Inquest.of(returncode, hung=hung, out_of_memory=counted)
        wanted = (returncode, counted, hung) == (-9, True, False)
        assert ("killed for memory" in inquest.text) == wanted
        assert ("out_of_memory" in inquest.facts) == wanted


def test_a_hung_process_is_told_from_one_that_somebody_killed():
    assert deaths.Inquest.of(-9, hung=True, out_of_memory=False).text == "died of SIGKILL, since it was hung"


def test_kills_for_memory_are_counted_by_cgroup_or_by_machine(tmp_path):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    assert procfs.oom_kills(proc, cgroups) == 0
    (proc / "vmstat").write_text("pgfault 7\noom_kill 3\n")
    assert procfs.oom_kills(proc, cgroups) == 3
    (proc / "self/cgroup").write_text("1:memory:/old\n0::/mine\n")
    assert procfs.oom_kills(proc, cgroups) == 3
    (cgroups / "mine").mkdir(parents=True)
    (cgroups / "mine/memory.events").write_text("low 0\noom 9\noom_kill 2\noom_group_kill 0\n")
    assert procfs.oom_kills(proc, cgroups) == 2
