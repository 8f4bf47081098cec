"""The last events of a run: all of them, in order, in bounded memory, whatever stands in the file."""

import json
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.eventlog import MOST_EVENTS, READ_BYTES, TEXT_CHARACTERS, EventLog


def line(number, **facts):
    event = {"time": 1.7e9 + number, "role": "producer", "index": 0, "event": "started", **facts}
    return json.dumps(event) + "\n"


def test_events_are_read_once_as_they_come(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.look()
    assert log.after(0) == []
    path.write_text(line(0, pid=7) + line(1)[:20])
    log.look()
    (event,) = log.after(0)
    assert event == {
        "number": 1, "time": 1.7e9, "who": "producer 0", "what": "started", "text": "pid 7"
    }  # fmt: skip
    with path.open("a") as file:
        file.write(line(1)[20:] + line(2, message="an answer", code=3))
    log.look()
    log.look()
    assert [event["number"] for event in log.after(1)] == [2, 3]
    assert log.after(2)[0]["text"] == "an answer, code 3"
    assert log.last == 3


def test_a_file_that_is_set_aside_is_followed_by_the_next(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    path.write_text(line(0) + line(1))
    log.look()
    os.rename(path, tmp_path / "events.jsonl.1")
    log.look()
    path.write_text(line(2))
    log.look()
    path.write_text("")
    log.look()
    path.write_text(line(3))
    log.look()
    assert [event["time"] - 1.7e9 for event in log.after(0)] == [0, 1, 2, 3]


def test_only_the_newest_are_kept(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("".join(line(number) for number in range(20_000)))
    log = EventLog(path)
    for _ in range(20):
        log.look()
    kept = log.after(0)
    assert len(kept) == MOST_EVENTS
    assert kept[-1]["time"] == 1.7e9 + 19_999
    assert log.after(log.last - 3) == kept[-3:]


def test_long_texts_are_cut_and_endless_lines_forgotten(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    path.write_text(line(0, message="x" * 10_000))
    log.look()
    with path.open("a") as file:
        file.write("y" * (3 * READ_BYTES) + "\n" + line(1))
    for _ in range(10):
        log.look()
    assert [event["time"] - 1.7e9 for event in log.after(0)] == [0, 1]
    assert len(log.after(0)[0]["text"]) == TEXT_CHARACTERS


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(["time", "role", "index", "event", "message", "pid"])
EVENTS = st.dictionaries(NAMES, JSON | st.just(10**400), max_size=6).map(json.dumps)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        EVENTS.map(str.encode) | st.binary(max_size=60) | JSON.map(json.dumps).map(str.encode), max_size=5
    )
)
def test_whatever_stands_there_what_is_told_is_json(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n" + line(5).encode())
    log = EventLog(path)
    log.look()
    told = log.after(0)
    assert told[-1]["time"] == 1.7e9 + 5
    assert json.loads(json.dumps(told, allow_nan=False)) == told
