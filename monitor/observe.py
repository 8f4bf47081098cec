"""Watches runs with a real Prometheus, and a Grafana where one is installed, on loopback, until Ctrl-C.

    python -m monitor.observe [RUN DIRECTORY ...] [--target HOST:PORT ...] [--port 9090] [--grafana-port 3000]
                              [--data FOLDER] [--scale 1/60] [--scrape 1s]

`make observe` is the same. What is watched: the runs of those directories, and those targets; without either
the run on 127.0.0.1:9108. The metrics stay in the data folder, for 180 days.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from config import exits
from monitor import alert_files, endpoint, procfs, rundir

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "runs" / ".observe"
GRAFANA_HOME = Path("/usr/share/grafana")  # of the distributions' packages
RETENTION = "180d"  # Prometheus' own is 15 days, and a run lasts longer
READY_SECONDS = 60.0
ANSWER_SECONDS = 5.0
END_SECONDS = 10.0
POLL_SECONDS = 0.3
LOG_LINES = 5
NO_PROMETHEUS = """\
observe: prometheus is not installed
  Debian, Ubuntu:  apt-get install --no-install-recommends prometheus
                   systemctl disable --now prometheus     (its own service takes port 9090)
  containers:      docker compose -f monitor/compose.yaml up"""
NO_GRAFANA = "Grafana is not installed (https://grafana.com/grafana/download): no dashboards"


class Cannot(Exception):
    """Why nothing can be watched; the message says what to do."""


def targets(runs: Sequence[Path], named: Sequence[str]) -> list[str]:
    """host:port of the exporters. Raises Cannot where a run has not told its own."""
    found = list(named)
    for run in runs:
        address = (rundir.read_json(run / rundir.STATUS) or {}).get("address")
        if not isinstance(address, str):
            raise Cannot(f"{run}: no {rundir.STATUS} that tells an address; it must be a run directory")
        found.append(address.removeprefix("http://"))
    return found or [alert_files.TARGET]


class Service:
    """A program that runs until it is ended, or until this process is gone."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, **environment: str):
        self.name, self.log = name, folder / f"{name}.log"
        bound = functools.partial(procfs.die_with_parent, os.getpid())
        with self.log.open("w") as log:
            # In a session of its own: a Ctrl-C is for us, and we end it in order.
            self.process = subprocess.Popen(
                command, cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=bound,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def last_words(self) -> str:
        """Of its log; errors, where it has told of any."""
        lines = self.log.read_text(errors="replace").splitlines()
        lines = [line for line in lines if "level=error" in line or line.startswith("panic")] or lines
        return "".join(f"  {line}\n" for line in lines[-LOG_LINES:]) + f"  (all of it: {self.log})"

    def end(self) -> None:
        """Lets it put its data away first."""
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prometheus(folder: Path, port: int) -> Service:
    """`folder` holds its files. Raises Cannot."""
    program = shutil.which("prometheus")
    if program is None:
        raise Cannot(NO_PROMETHEUS)
    _require(port, "--port", "a Prometheus that is a service of the machine (systemctl stop prometheus)")
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--storage.tsdb.retention.time={RETENTION}",
        "--log.level=warn",
    ]
    return Service("prometheus", command, folder)


def grafana(folder: Path, port: int, source: str) -> Service | None:
    """`source`: address of Prometheus. None: it is not installed. Raises Cannot."""
    name = shutil.which("grafana")
    program = [name, "server"] if name else [shutil.which("grafana-server") or ""]
    if not program[0]:
        return None
    _require(
        port, "--grafana-port", "a Grafana that is a service of the machine (systemctl stop grafana-server)"
    )
    environment = {
        "HEADRACE_PROMETHEUS_URL": source,
        "HEADRACE_DASHBOARDS": str(ROOT / "monitor/grafana/dashboards"),
        "GF_PATHS_PROVISIONING": str(ROOT / "monitor/grafana/provisioning"),
        "GF_PATHS_DATA": str(folder / "grafana"),
        "GF_PATHS_LOGS": str(folder / "grafana"),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        # Whoever can reach loopback may look, and nobody may change anything.
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    if GRAFANA_HOME.is_dir():
        program.append(f"--homepath={GRAFANA_HOME}")
    return Service("grafana", program, folder, **environment)


def _require(port: int, option: str, holder: str) -> None:
    """Raises Cannot where a port is taken."""
    try:
        endpoint.listen("127.0.0.1", port).close()
    except endpoint.Refused:
        raise Cannot(
            f"observe: port {port} is taken, often by {holder}; stop that, or give another {option}"
        ) from None


def answers(url: str) -> bool:
    """Whether somebody does, with a success."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS):
            return True
    except OSError:
        return False


def watch(services: Mapping[str, Service], notes: Sequence[str], stop: threading.Event) -> int:
    """Says where everything is once it is there, and waits for the end. `services` by their addresses; an
    address answers with success once its service is ready."""
    waiting, until = dict(services), time.monotonic() + READY_SECONDS
    while not stop.is_set():
        for service in services.values():
            if service.ended:
                code = service.process.returncode
                print(f"observe: {service.name} ended with {code}:\n{service.last_words}", file=sys.stderr)
                return exits.INTERNAL
        for address, service in list(waiting.items()):
            path = "/-/ready" if service.name == "prometheus" else "/api/health"
            if answers(address + path):
                del waiting[address]
                print(f"{service.name}: {address}", flush=True)
        if not waiting and notes:
            print("\n".join(notes), flush=True)
            notes = ()
        if waiting and time.monotonic() > until:
            late = ", ".join(service.name for service in waiting.values())
            print(f"observe: not ready after {READY_SECONDS:g} s: {late}", file=sys.stderr)
            return exits.INTERNAL
        stop.wait(POLL_SECONDS)
    return exits.DONE


def observe(options: argparse.Namespace, stop: threading.Event) -> int:
    """Starts everything and ends it again. Raises Cannot."""
    found = targets(options.runs, options.target)
    folder = options.data.absolute()
    alert_files.write(folder, alert_files.files(options.scale, options.scrape, found))
    source = f"http://127.0.0.1:{options.port}"
    services: dict[str, Service] = {}
    notes = [f"watched: {', '.join(found)}; alerts: {source}/alerts; Ctrl-C ends this, not the run"]
    try:
        services[source] = prometheus(folder, options.port)
        shown = grafana(folder, options.grafana_port, source)
        if shown is None:
            notes.append(NO_GRAFANA)
        else:
            services[f"http://127.0.0.1:{options.grafana_port}"] = shown
        silent = [target for target in found if not answers(f"http://{target}/healthz")]
        notes += [f"nobody answers on {target} yet: start a run (make run)" for target in silent]
        return watch(services, notes, stop)
    finally:
        for service in reversed(services.values()):
            service.end()


def port(text: str) -> int:
    """Of the command line. Raises ValueError."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ValueError(text)
    return int(text)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m monitor.observe", description="Watches runs with Prometheus."
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN DIRECTORY")
    parser.add_argument("--target", type=alert_files.target, action="append", default=[],
                        help="host:port of an exporter")  # fmt: skip
    parser.add_argument("--port", type=port, default=9090, help="of Prometheus")
    parser.add_argument("--grafana-port", type=port, default=3000)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Prometheus' data and of the logs")
    parser.add_argument("--scale", type=alert_files.scale, default=Fraction(1), help="of all times, as 1/60")
    parser.add_argument("--scrape", type=alert_files.duration, help="time between scrapes, as 1s")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        return observe(options, stop)
    except (Cannot, OSError) as error:
        print(error, file=sys.stderr)
        return exits.MISSING


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
