"""The terminal display and the summary line, from reports as the supervisor makes them."""

import contextlib
import io
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from monitor import display, status
from monitor.outlet import Outlet

ROOT = Path(__file__).resolve().parent.parent


def report(**changes):
    """A report in which everything has a value."""
    return {
        "state": "running",
        "name": "toy",
        "steps": 12_345_678,
        "seconds": 3725.4,
        "steps_per_second": 123_456.0,
        "version": 42,
        "score": {"mean": 12.5, "best": 13.0, "episodes": 99, "evaluated": None},
        "solved_at_seconds": None,
        "lag": {"mean": 0.5, "p50": 0, "p99": 1, "max": 1, "limit": 1},
        "slots": {
            "committed": 9,
            "consumed": 5,
            "dropped": 0,
            "redelivered": 0,
            "in_flight": 4,
            "capacity": 8,
        },
        "bytes": {"packed": "1", "unpacked": "2", "per_second": 1.5e9},
        "restarts": {"producer": 3, "learner": 1},
        "updates_per_second": 3.0,
        "losses": dict.fromkeys(status.LOSSES, 0.25),
        "warnings": ["cores are shared"],
        "time": {"producer": {"sim": 0.5, "policy": 0.3, "pickup": 0.0}, "learner": {"forward": 0.9}},
        "processes": [
            {
                "role": "producer",
                "index": 0,
                "pid": 7,
                "state": "running",
                "cpu": 0.93,
                "core": 1,
                "phase": "step",
                "resident_bytes": 5 << 20,
            }
        ],
        **changes,
    }


def nothing_yet():
    """A report before the first update: what has no value is null."""
    return report(
        state="starting",
        steps=0,
        seconds=0.0,
        steps_per_second=0.0,
        version=None,
        score={"mean": None, "best": None, "episodes": 0, "evaluated": None},
        lag={"mean": None, "p50": None, "p99": None, "max": None, "limit": None},
        losses=dict.fromkeys(status.LOSSES),
        processes=[],
    )


def test_a_plain_line_is_pairs_that_a_script_can_split():
    stream = io.StringIO()
    plain = display.PlainDisplay(3600, stream)
    plain.show(report())
    facts = dict(pair.split("=") for pair in stream.getvalue().split())
    assert facts["steps"] == "12345678"
    assert (facts["state"], facts["version"], facts["fill"], facts["gb_per_second"]) == (
        "running",
        "42",
        "4/8",
        "1.500",
    )


def test_plain_lines_come_at_the_interval_and_at_every_change_of_state():
    stream = io.StringIO()
    plain = display.PlainDisplay(3600, stream)
    for state in ("starting", "starting", "running", "running", "stopping"):
        plain.show(report(state=state))
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == [
        "state=starting",
        "state=running",
        "state=stopping",
    ]


@pytest.mark.parametrize("made", [report, nothing_yet])
def test_the_picture_fits_a_terminal_and_shows_the_figures(made):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True)
    console.print(display.picture(made()))
    text = console.file.getvalue()
    assert "toy" in text
    assert "…" not in text
    assert "steps/s" in text
    if made is report:
        for figure in (
            "12.35 M",
            "123.46 k",
            "1:02:05",
            "12.50",
            "0.5",
            "sim 50%",
            "producer 0",
            "93%",
            "5 MiB",
            "cores are shared",
            "######......",
        ):
            assert figure in text


def test_a_run_that_goes_on_without_a_producer_shows_it():
    producer = report()["processes"][0]
    failed = {**producer, "index": 1, "state": "failed"}
    degraded = report(processes=[producer, failed])
    assert display.line_facts(degraded)["producers"] == "1/2"
    assert "producers" not in display.line_facts(report())
    assert display.line_facts(degraded)["restarts"] == "4"
    console = Console(file=io.StringIO(), width=100)
    console.print(display.picture(degraded))
    assert "1 of 2 producers" in console.file.getvalue()
    assert "failed" in console.file.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("terminal", "plain", "term", "live"),
    [
        (True, False, "xterm", True),
        (True, True, "xterm", False),
        (True, False, "dumb", False),
        (False, False, "xterm", False),
    ],
)
def test_the_picture_is_drawn_only_on_a_terminal_that_can(monkeypatch, terminal, plain, term, live):
    monkeypatch.setenv("TERM", term)
    made = display.make(plain=plain, interval_seconds=1, stream=Terminal() if terminal else io.StringIO())
    assert isinstance(made.display, display.LiveDisplay) == live
    made.close()


def test_a_display_that_nobody_reads_any_more_ends_in_silence():
    script = """
import sys
from test_display import report
from monitor import display
made = display.make(plain=True, interval_seconds=0)
made.say("first")
sys.stdin.read()
for _ in range(3):
    made.show(report())
made.close()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )
    assert child.stdout.readline() == b"first\n"
    child.stdout.close()
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (0, b"")


def full_pipe():
    """(read end, write end) of a pipe that takes nothing more; a plain write would wait."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"." * 512)
    os.set_blocking(write_end, True)
    return read_end, write_end


def stopped_terminal():
    """The same of a terminal after Ctrl-S, for whose like Ctrl-Q comes later."""
    master, slave = os.openpty()
    os.write(master, b"\x13")
    return master, slave


@pytest.mark.parametrize("watched", [full_pipe, stopped_terminal])
def test_who_watches_and_stops_reading_misses_lines_and_holds_up_nobody(watched):
    read_end, write_end = watched()
    with os.fdopen(write_end, "w") as stream, os.fdopen(read_end, "r+b" if os.isatty(read_end) else "rb",
                                                        buffering=0) as reader:
        outlet = Outlet(stream)
        for _ in range(1000):
            print("missed", file=outlet, flush=True)
        if os.isatty(read_end):
            reader.write(b"\x11")
        else:
            reader.read(1 << 20)
        print("seen", file=outlet, flush=True)
        text = b""
        while b"seen" not in text:
            text += reader.read(1 << 16)
        assert b"missed" not in text


@pytest.mark.parametrize("pair", [os.pipe, os.openpty])
def test_who_reads_sees_all_of_a_picture_larger_than_what_is_held_for_him(pair):
    read_end, write_end = pair()
    picture, seen = "x" * 300_000 + "end", b""

    def read():
        nonlocal seen
        while not seen.endswith(b"end"):
            seen += os.read(read_end, 1 << 12)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(write_end, "w") as stream:
        print(picture, end="", file=Outlet(stream), flush=True)
        reader.join(60)
    assert seen.decode() == picture
    os.close(read_end)


def test_no_color_means_no_color(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    made = display.make(plain=False, interval_seconds=1, stream=stream)
    made.show(report())
    made.close()
    assert "toy" in stream.getvalue()
    assert not any(f"\x1b[{code}m" in stream.getvalue() for code in (31, 33, 36, "1;36"))


def test_the_summary_says_how_the_run_went():
    evaluated = {"mean": 500.0, "low": 499.0, "high": 501.0, "n": 128, "argmax": {"mean": 498.0}}
    line = status.summary_line(
        report(
            state="done",
            solved_at_seconds=61.0,
            score={"mean": 480.0, "best": 490.0, "episodes": 9, "evaluated": evaluated},
        )
    )
    for text in (
        "done: 12,345,678 steps in 3725.4 s",
        "solved at 61.0 s",
        "evaluated 500.00 (499.00 to 501.00, 128",
        "argmax 498.00",
        "max 1 (limit 1)",
    ):
        assert text in line
    assert "score" not in status.summary_line(nothing_yet())


@pytest.mark.parametrize("mean", [7.0, None], ids=["one episode", "none in time"])
def test_the_summary_line_tells_of_an_evaluation_without_an_interval(mean):
    one = {"mean": mean, "low": None, "high": None, "n": 0 if mean is None else 1}
    score = {"mean": None, "best": None, "episodes": 9, "evaluated": {**one, "argmax": one}}
    said = "-" if mean is None else "7.00"
    line = status.summary_line(report(state="done", score=score))
    assert f"evaluated {said} (- to -, {one['n']} episodes), argmax {said}" in line


@pytest.mark.parametrize(
    ("bins", "share", "lag"),
    [
        ([0, 0], 0.5, None),
        ([1, 0, 0], 0.99, 0),
        ([50, 50], 0.5, 0),
        ([50, 50], 0.51, 1),
        ([98, 1, 0, 1], 0.99, 1),
        ([98, 0, 0, 2], 0.99, 3),
    ],
)
def test_quantiles_of_the_lag_are_exact(bins, share, lag):
    assert status.quantile(bins, share) == lag


def test_what_is_no_number_is_null():
    assert status.number(math.nan) is None
    assert status.number(math.inf) is None
    assert status.number(0.0) == 0.0


def test_rates_know_when_the_run_began(monkeypatch):
    """The window is 10 s long and a start takes as long: steps must not be spread over time without any."""
    now = 100.0
    monkeypatch.setattr(status.time, "monotonic", lambda: now)
    reporter = status.Reporter(None, (), status.Table.of(1), None)
    reporter._rates({"steps": 0, "cpu": 0.0}, seconds=0.0)
    now += 9.0
    assert reporter._rates({"steps": 500, "cpu": 4.5}, seconds=1.0) == {"steps": 500.0, "cpu": 0.5}


def test_what_a_low_terminal_cuts_off_is_producers():
    (producer,) = report()["processes"]
    crowd = [producer | {"index": index} for index in range(30)] + [producer | {"role": "learner"}]
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, no_color=True)
    console.print(display.picture(report(processes=crowd)))
    seen = "\n".join(console.file.getvalue().splitlines()[:23])
    assert "learner 0" in seen
    assert "cores are shared" in seen
