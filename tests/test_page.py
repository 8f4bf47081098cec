"""What the exporter serves to the live page: every figure, to everybody who may ask, and nothing else."""

import contextlib
import http.client
import json
import os
import re
import socket
import time

import pytest
from machines import Machine, get, serving

import ringbuf
from monitor import live, pages, rundir, server

DEADLINE_SECONDS = 60


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Looks twenty times a second, so that nobody waits."""
    monkeypatch.setattr(live, "TICK_SECONDS", 0.05)


@pytest.fixture
def address(machine):
    with serving(machine) as served:
        yield served


@contextlib.contextmanager
def viewer(address, path="/events"):
    """An open stream: the answer, to read lines from."""
    connection = http.client.HTTPConnection(*address, timeout=DEADLINE_SECONDS)
    try:
        connection.request("GET", path)
        with connection.getresponse() as answer:
            yield answer
    finally:
        connection.close()


def message(answer):
    """The next one of a stream."""
    line = answer.readline()
    assert line.startswith(b"data: ")
    assert answer.readline() == b"\n"
    return json.loads(line[6:])


def post(address, path, body=b"{}", **headers):
    connection = http.client.HTTPConnection(*address, timeout=DEADLINE_SECONDS)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"} | headers)
        with connection.getresponse() as answer:
            return answer.status
    finally:
        connection.close()


def test_a_message_has_the_figures_of_the_counters(machine, address):
    producer, learner = machine.own(1), machine.own(machine.table.learner)
    rundir.write_json(
        machine.directory / rundir.STATUS, {"state": "running", "bytes": {"packed": str(2**70)}}
    )
    with viewer(address) as answer:
        assert answer.getheader("Content-Type") == "text/event-stream"
        first = message(answer)
        producer.counter_add("steps", 1000)
        producer.counter_add("bytes_packed", 3000)
        producer.counter_add("bytes_unpacked", 9000)
        learner.lag_add(1, 99)
        learner.lag_add(3, 1)
        learner.gauge_set("score_mean", 12.5)
        second = message(answer)
    assert second["time"] > first["time"]
    point = second["point"]
    assert 0 < 3 * point["steps_produced"] == pytest.approx(point["bytes_packed"])
    assert point["bytes_unpacked"] == pytest.approx(3 * point["bytes_packed"])
    assert (point["lag_mean"], point["lag_p99"], point["lag_max"]) == (1.02, 1, 3)
    assert point["score_mean"] == 12.5
    assert second["status"]["bytes"]["packed"] == "1180591620717411303424", "more than JSON numbers hold"
    assert [ring["slots"] for ring in second["rings"]] == [4, 4]
    assert [one["role"] for one in second["processes"]][:3] == ["producer", "producer", "learner"]
    assert second["facts"]["mode"] == "async"


def test_an_alarm_is_in_the_first_message_behind_its_condition(machine, address):
    with viewer(address) as answer:
        assert message(answer)["alarms"] == []
        machine.own(machine.table.learner).counter_set("nonfinite_steps", 1)
        (alarm,) = message(answer)["alarms"]
        assert alarm["kind"] == "not finite"
    assert "not finite" in machine.page(), "also without scripts"


def test_a_reload_shows_the_past_and_the_events(machine, address):
    machine.own(machine.table.learner).gauge_set("score_mean", 12.5)
    event = {"time": 1.0, "role": "producer", "index": 1, "event": "started", "pid": 7}
    (machine.directory / rundir.EVENTS).write_text(json.dumps(event) + "\n")
    with viewer(address) as answer:
        for _ in range(3):
            message(answer)
    status, _, body = get(address, "/history.json?seconds=300")
    past = json.loads(body)
    assert status == 200
    assert past["series"]["score_mean"][-1:] == [12.5]
    assert [event["text"] for event in past["events"]] == ["pid 7"]
    for seconds in live.SPANS:
        assert get(address, f"/history.json?seconds={seconds}")[0] == 200
    for query in ("seconds=301", "seconds=-1", "seconds=a", "seconds=300e9"):
        assert get(address, f"/history.json?{query}")[0] == 400


def test_a_message_is_made_once_whoever_reads_it(machine, address, monkeypatch):
    made, plain = [], live._json
    monkeypatch.setattr(live, "_json", lambda value: made.append(value) or plain(value))
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(viewer(address)) for _ in range(10)]
        times = [{message(answer)["time"] for _ in range(3)} for answer in answers]
    assert set.union(*times) <= {one["time"] for one in made}
    assert len({one["time"] for one in made}) == len(made)


def test_nothing_is_made_while_nobody_looks(machine):
    made = []
    machine.live.stream.publish = made.append
    machine.live.look()
    assert made == []


def test_there_is_room_for_so_many_viewers_and_again_when_one_leaves(machine, address):
    with contextlib.ExitStack() as stack:
        for _ in range(live.MOST_VIEWERS):
            assert stack.enter_context(viewer(address)).status == 200
        with viewer(address) as answer:
            assert answer.status == 503
        assert get(address, "/healthz")[0] == 200
    deadline = time.monotonic() + DEADLINE_SECONDS
    while machine.live.stream.viewers and time.monotonic() < deadline:
        time.sleep(0.05)
    assert machine.live.stream.viewers == 0


def test_a_viewer_that_does_not_read_holds_nobody_up(machine, address, monkeypatch):
    monkeypatch.setattr(server.Handler, "timeout", 0.2)
    big = {"state": "running", "message": "x" * 200_000}
    rundir.write_json(machine.directory / rundir.STATUS, big)
    deaf = socket.create_connection(address)
    deaf.sendall(b"GET /events HTTP/1.0\r\n\r\n")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not machine.live.stream.viewers and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.setattr(server.Handler, "timeout", DEADLINE_SECONDS)
    with viewer(address) as answer:
        before = message(answer)["time"]
        while machine.live.stream.viewers > 1 and time.monotonic() < deadline:
            assert message(answer)["time"] > before
    assert machine.live.stream.viewers <= 1, "it was given up"
    deaf.close()


def test_the_last_look_reaches_the_viewers(machine, address):
    with viewer(address) as answer:
        message(answer)
        rundir.write_json(machine.directory / rundir.STATUS, {"state": "done"})
        machine.live.close()
        last = [line for line in answer.read().split(b"\n\n") if line][-1]
    assert json.loads(last[6:])["status"]["state"] == "done"


def test_only_known_paths_are_served(machine, address):
    for path in pages.FILES:
        status, headers, body = get(address, path)
        assert (status, dict(headers)["Content-Type"]) == (200, pages.FILES[path])
        assert body == (pages.FOLDER / path[1:]).read_bytes()
    for path in (
        "/page/page.js", "/uplot.LICENSE", "/../pages.py", "/..%2fpages.py", "//etc/passwd", "/page.js/",
        "/%70age.js", "/index.html", "/run.yaml", "/events.jsonl", "page.js", "/page.js%00", "/history.bin",
    ):  # fmt: skip
        assert get(address, path)[0] == 404, path


def test_nothing_but_the_page_itself_may_be_loaded_or_enclose_it(machine, address):
    for path in ("/", "/page.js", "/metrics", "/status.json", "/nothing"):
        headers = dict(get(address, path)[1])
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_with_all_that_it_loads_is_small_and_names_no_other_place(machine, address):
    bodies = [get(address, path)[2] for path in ("/", *pages.FILES)]
    assert sum(map(len, bodies)) < 300_000
    loaded = set(re.findall(rb'(?:src|href)="([^"#]+)"', bodies[0]))
    assert all(re.fullmatch(rb"/[a-z.]+", one) for one in loaded)
    sources = b"".join((pages.FOLDER / path[1:]).read_bytes() for path in pages.FILES if "uplot" not in path)
    assert (
        re.findall(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", sources.replace(b"http://www.w3.org/", b""))
        == []
    )
    assert re.findall(rb"innerHTML|insertAdjacentHTML|document\.write|\beval\(", sources) == []


def test_a_wish_is_taken_from_the_page_itself_only(machine, address):
    taken = []

    def wish(handler):
        taken.append(handler.body)
        handler.answer(200, pages.JSON, b"{}")

    machine.pages._routes["POST", "/wish"] = wish
    host = f"{address[0]}:{address[1]}"
    assert post(address, "/wish") == 200
    assert post(address, "/wish", Origin=f"http://{host}") == 200
    assert post(address, "/wish", Origin="http://evil.example") == 403
    assert post(address, "/wish", Origin="null") == 403
    assert post(address, "/wish", Origin="http://evil.example", Host="evil.example") == 403
    assert post(address, "/wish", Host="evil.example") == 403
    assert post(address, "/wish", Origin="http://localhost:80", Host="localhost:80") == 200
    assert post(address, "/wish", Host="a]b") == 403
    assert post(address, "/wish", **{"Sec-Fetch-Site": "cross-site"}) == 403
    assert post(address, "/wish", **{"Content-Type": "text/plain"}) == 403
    assert post(address, "/wish", b"x" * (server.MOST_BODY_BYTES + 1)) == 413
    for length in ("-1", "1e3", "", "٣", "0" * 9 + "9" * 9):
        with socket.create_connection(address, DEADLINE_SECONDS) as connection:
            head = (
                f"POST /wish HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            )
            connection.sendall(head.encode())
            assert b" 413 " in connection.recv(1000)
    assert post(address, "/nothing") == 404
    assert post(address, "/") == 404
    assert taken == [b"{}"] * 3
    for site, status in (("cross-site", 403), ("same-site", 403), ("none", 200), ("same-origin", 200)):
        connection = http.client.HTTPConnection(*address, timeout=DEADLINE_SECONDS)
        connection.request("HEAD", "/events", headers={"Sec-Fetch-Site": site})
        with connection.getresponse() as answer:
            assert answer.status == status
        connection.close()


def test_more_connections_than_there_is_room_for_are_turned_away(machine, address, monkeypatch):
    opened = [socket.create_connection(address) for _ in range(server.MOST_CONNECTIONS)]
    deadline = time.monotonic() + DEADLINE_SECONDS
    with contextlib.suppress(OSError, http.client.HTTPException):
        while get(address, "/healthz")[0] == 200:
            assert time.monotonic() < deadline, "it takes as many as come"
    for one in opened:
        one.close()
    while True:
        assert time.monotonic() < deadline, "there is no room again"
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get(address, "/healthz")[0] == 200:
                break


def test_a_request_that_comes_byte_by_byte_is_given_up(machine, address, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    with socket.create_connection(address, DEADLINE_SECONDS) as slow, viewer(address) as answer:
        slow.sendall(b"GET /healthz HTTP/1.0\r\n")
        deadline = time.monotonic() + DEADLINE_SECONDS
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                slow.sendall(b"x: y\r\n")
                time.sleep(0.02)
        assert time.monotonic() < deadline, "it is listened to for ever"
        message(answer)  # whoever has asked stays


DAMAGED = (
    "", "[]", "{", "[" * 100_000, '{"processes": 5}', '{"processes": [1]}', '{"processes": null}',
    '{"processes": [{"role": [], "index": 0}]}', '{"updated_unix": "x"}', '{"run_dir": 5}',
    '{"run_dir": {"bytes": "x"}}', '{"steps": "x"}', '{"steps": NaN}', '{"state": {}}', '{"message": [5]}',
    '{"name": "\\ud800"}', '{"notes": [{"b": 1}, 2]}',
)  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_report_stops_nobody_who_looks(machine, address, text):
    (machine.directory / rundir.STATUS).write_text(text)
    machine.live.look()
    for path in ("/", "/metrics", "/status.json", "/history.json?seconds=300"):
        assert get(address, path)[0] == 200
    assert machine.collector.errors == 0
    with viewer(address) as answer:
        assert "NaN" not in json.dumps(message(answer))


def test_a_look_is_due_once_a_second_however_often_it_is_asked_for(machine, monkeypatch):
    monkeypatch.undo()
    assert live.TICK_SECONDS == 1.0
    now, looks = [100.0], []
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    machine.live.look = lambda: looks.append(now[0])
    for _ in range(1000):
        now[0] += 0.01
        machine.live.tick()
    assert len(looks) in (10, 11)
    now[0] += 100
    machine.live.tick()
    machine.live.tick()
    assert len(looks) in (11, 12), "what was missed is not made up for"


def test_a_run_directory_that_is_gone_does_not_end_the_exporter(machine, address):
    assert get(address, "/")[0] == 200
    os.rename(machine.directory, machine.directory.with_name("moved"))
    try:
        machine.live.look()
        assert get(address, "/")[0] == 200
        assert get(address, "/history.json?seconds=300")[0] == 200
    finally:
        os.rename(machine.directory.with_name("moved"), machine.directory)


def test_settings_that_change_in_a_run_are_shown_and_judged_by(machine, address):
    with viewer(address) as answer:
        assert message(answer)["facts"]["checkpoint_seconds"] == 300.0
        machine.settings["checkpoint_seconds"] = 60.0
        machine.segments.control.announce_settings()
        message(answer)
        assert message(answer)["facts"]["checkpoint_seconds"] == 60.0


def test_what_the_end_of_a_run_drops_is_no_loss(machine):
    ring = machine.segments.rings[0]
    learner = ringbuf.Ring.attach(ring.fd, machine.own(machine.table.learner), "learner")
    producer = ringbuf.Ring.attach(ring.fd, machine.own(1), "producer")
    ring.set_owner(0)
    learner.grant(3)
    steps = ring.plan.horizon * ring.plan.agents
    for sequence, reason, lost in ((0, "shutdown", 0), (1, "rollback", 0), (2, "lag", steps)):
        producer.claim(0).commit(steps)
        learner.drop(sequence, reason)
        machine.live.look()
        assert [alarm.kind for alarm in machine.live.alarms] == ["samples dropped"] * bool(lost)
