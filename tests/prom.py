"""A real Prometheus for tests: started on loopback over a folder of its own, and asked through its API."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

DEADLINE_SECONDS = 120  # against hanging only
STARTS = 5  # another process may take the port that was free a moment ago

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")


def promtool(*arguments, given="", check=True):
    """Output of `promtool arguments`, both streams; `given`: what it reads."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Refused(Exception):
    """A question that Prometheus did not accept; the message is its own."""


class Prometheus:
    """Scrapes `targets` (host:port) every `scrape` under the job `headrace` and evaluates `rules` (paths) as
    often. `data`: a folder with blocks (promtool tsdb create-blocks-from) to serve. Close it."""

    def __init__(self, folder, targets=(), rules=(), scrape="1s", data=None):
        self.folder = folder
        self._config = folder / "prometheus.yml"
        # JSON is YAML.
        self._config.write_text(json.dumps({
            "global": {"scrape_interval": scrape, "scrape_timeout": scrape, "evaluation_interval": scrape},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [{"job_name": "headrace", "static_configs": [{"targets": list(targets)}]}],
        }, indent=1))  # fmt: skip
        self._data = data or folder / "data"
        self._log = folder / "prometheus.log"
        for _ in range(STARTS):
            if self._start():
                return
        raise AssertionError(f"prometheus did not come up: {self.said()}")

    def _start(self):
        """Whether it came up, on a port that was free before."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self._config}", f"--storage.tsdb.path={self._data}",
                 f"--web.listen-address={self.address.removeprefix('http://')}", "--log.level=warn",
                 "--storage.tsdb.retention.time=100y"],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.address}/-/ready", timeout=DEADLINE_SECONDS):
                    return True
            except OSError:  # refused, or 503 while it reads its data
                time.sleep(0.05)
        self.close()
        return False

    def said(self):
        """Its log: warnings and errors."""
        return self._log.read_text()

    def ask(self, path, **parameters):
        """The `data` of an answer of its API; a list as value gives the parameter several times. Raises
        Refused."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.read().decode()) from None

    def query(self, expression, at=None):
        """[(labels, value)] of an instant query, now or at a Unix time; [({}, value)] of a scalar."""
        moment = {} if at is None else {"time": at}
        found = self.ask("query", query=expression, **moment)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    def query_range(self, expression, start, end, step):
        """[(labels, [(Unix time, value)])] from `start` to `end`, both Unix times; `step`: seconds."""
        found = self.ask("query_range", query=expression, start=start, end=end, step=step)
        return [
            (one["metric"], [(moment, float(value)) for moment, value in one["values"]])
            for one in found["result"]
        ]

    def alerts(self, state="firing"):
        """{name: [labels]} of the alerts in that state: `firing` or `pending`."""
        found = {}
        for alert in self.ask("alerts")["alerts"]:
            if alert["state"] == state:
                labels = dict(alert["labels"])
                found.setdefault(labels.pop("alertname"), []).append(labels)
        return found

    def targets(self):
        """{address: health}: `up`, `down`, or `unknown` before the first scrape."""
        found = self.ask("targets", state="active")["activeTargets"]
        return {one["labels"]["instance"]: one["health"] for one in found}

    def until(self, condition, seconds=DEADLINE_SECONDS):
        """Waits until `condition()`; returns what it gave."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, (self.alerts(), self.alerts("pending"))
            time.sleep(0.2)
        return found

    def close(self):
        self.process.kill()
        self.process.wait()
