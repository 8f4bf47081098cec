"""`make observe`: a Prometheus on loopback that scrapes runs, a Grafana beside it, and nothing left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from command import DEADLINE_SECONDS, ROOT
from machines import Machine, serving
from prom import needs_prometheus

from config import exits
from monitor import alert_files, observe, rundir

# Tells what it was started with, and is healthy.
GRAFANA = f"""#!{sys.executable}
import http.server, json, os, sys
with open("grafana.json", "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, file)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(os.environ["GF_SERVER_HTTP_PORT"])), Handler).serve_forever()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture(autouse=True)
def handlers():
    """`main` handles signals for good."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.close()


def children(parent):
    """Pids of its children."""
    tasks = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in tasks.read_text().split()]


def until(process, wanted):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := wanted()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@needs_prometheus
def test_a_run_is_watched_until_ctrl_c_and_then_nothing_is_left(machine, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "grafana").write_text(GRAFANA)
    (programs / "grafana").chmod(0o755)
    port, other, data = free_port(), free_port(), tmp_path / "data"
    with serving(machine) as (host, exporter):
        run = tmp_path / "run"
        run.mkdir()
        rundir.write_json(run / rundir.STATUS, {"address": f"http://{host}:{exporter}"})
        options = [
            "--port",
            port,
            "--grafana-port",
            other,
            "--data",
            data,
            "--scale",
            "1/60",
            "--scrape",
            "1s",
        ]
        command = [sys.executable, "-m", "monitor.observe", str(run), *map(str, options)]
        environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        with (tmp_path / "out").open("w") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment
            )
        try:
            until(process, lambda: "Ctrl-C ends this" in (tmp_path / "out").read_text())

            def asked(path):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}") as answer:
                    return json.load(answer)["data"]

            up = until(process, lambda: asked("query?query=headrace_run_attempt")["result"])
            assert up[0]["metric"]["instance"] == f"{host}:{exporter}"
            rules = asked("rules")["groups"]
            assert {group["name"] for group in rules} == {"headrace-alerts", "headrace-rules"}
            told = json.loads((data / "grafana.json").read_text())
            assert told["arguments"][0] == "server"
            assert told["environment"]["HEADRACE_PROMETHEUS_URL"] == f"http://127.0.0.1:{port}"
            for name in ("HEADRACE_DASHBOARDS", "GF_PATHS_PROVISIONING"):
                assert os.listdir(told["environment"][name])
            pids = children(process.pid)
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_SECONDS) == exits.DONE, (tmp_path / "out").read_text()
        finally:
            process.kill()
            process.wait()
    assert len(pids) == 2
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
    assert os.listdir(data / "prometheus"), "the metrics stay"


@needs_prometheus
def test_a_prometheus_that_cannot_run_says_why(tmp_path, capsys):
    (tmp_path / "prometheus").write_text("no folder")
    assert observe.main(["--data", str(tmp_path), "--port", str(free_port())]) == exits.INTERNAL
    said = capsys.readouterr().err
    assert "observe: prometheus ended with" in said
    assert f"{tmp_path}/prometheus/queries.active" in said
    assert str(tmp_path / "prometheus.log") in said


def test_without_prometheus_it_says_how_to_get_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(observe.shutil, "which", lambda name: None)
    assert observe.main(["--data", str(tmp_path)]) == exits.MISSING
    assert "apt-get install --no-install-recommends prometheus" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named_with_the_option_that_gives_another(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(observe.shutil, "which", lambda name: "/bin/false")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert observe.main(["--data", str(tmp_path), "--port", str(port)]) == exits.MISSING
    said = capsys.readouterr().err
    assert f"port {port} is taken" in said
    assert "--port" in said


@pytest.mark.parametrize(
    "wrong",
    [
        ["--port", "99999"], ["--port", "0"], ["--grafana-port", "x"], ["--target", "garbage"],
        ["--target", "a:b:c"], ["--target", "1.2.3.4:99999"], ["--scale", "0"], ["--scale", "1/0"],
        ["--scale", "-1"], ["--scrape", "0s"], ["--scrape", "banana"],
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_usage(tmp_path, capsys, wrong):
    with pytest.raises(SystemExit) as caught:
        observe.main(["--data", str(tmp_path), *wrong])
    assert caught.value.code == 2
    assert f"argument {wrong[0]}: invalid" in capsys.readouterr().err


def test_what_is_watched_are_the_runs_and_targets_asked_for(tmp_path):
    rundir.write_json(tmp_path / rundir.STATUS, {"address": "http://127.0.0.1:5"})
    assert observe.targets([tmp_path], ["host:6"]) == ["host:6", "127.0.0.1:5"]
    assert observe.targets([], []) == [alert_files.TARGET]
    with pytest.raises(observe.Cannot, match="must be a run directory"):
        observe.targets([tmp_path / "nothing"], [])


def test_the_containers_are_given_what_observe_gives():
    services = yaml.safe_load((ROOT / "monitor/compose.yaml").read_text())["services"]
    prometheus, grafana = services["prometheus"], services["grafana"]
    assert f"--storage.tsdb.retention.time={observe.RETENTION}" in prometheus["command"]
    assert "--web.listen-address=127.0.0.1:9090" in prometheus["command"]
    given = grafana["environment"]
    assert given["HEADRACE_PROMETHEUS_URL"] == "http://127.0.0.1:9090"
    assert given["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    folder, mounted = grafana["volumes"][0].removesuffix(":ro").split(":")
    for name in ("HEADRACE_DASHBOARDS", "GF_PATHS_PROVISIONING"):
        assert (ROOT / "monitor" / folder / given[name].removeprefix(mounted + "/")).is_dir()
    assert (ROOT / "monitor" / prometheus["volumes"][0].split(":")[0] / "prometheus.yml").is_file()
