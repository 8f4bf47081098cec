"""The shared memory of a run without its processes, whose counters a test writes itself, and its exporter."""

import contextlib
import http.client
import math
import os
import socket
import threading
import uuid

from prometheus_client.parser import text_string_to_metric_families

import ringbuf
from monitor import collector, metrics, pages, procfs, server
from monitor.alarms import Thresholds, Watchman
from monitor.live import Live
from monitor.readings import Reader
from monitor.status import Table
from producers.prepare import Segments, prepare


class Machine:
    """The shared memory of a run of two producers, an inference server and a recorder, whose counters the
    test writes itself."""

    def __init__(self, directory, learners=1):
        self.directory = directory
        run_file = directory / "run.yaml"
        run_file.write_text(
            f"sim: {{name: cartpole}}\nproducers: {{agents: 8, count: 2}}\nlearner: {{count: {learners}}}\n"
            "policy: {placement: server}\n"
        )
        self.segments = Segments(prepare(str(run_file), []), uuid.uuid4())
        self.table = Table.of(2, learners, 1, recorder=True)
        control = self.segments.control
        own = procfs.usage(os.getpid())
        rows = [("producer", 0), ("producer", 1), *(("learner", i) for i in range(learners))]
        rows += [("exporter", 0), ("server", 0), ("recorder", 0)]
        for slot, (role, index) in zip(self.table.all, rows, strict=True):
            control.set_process(
                slot,
                role=role,
                role_index=index,
                pid=os.getpid(),
                start_time=own.start_ticks,
                core=None,
                state="starting",
                epoch=1,
            )
        build = dict.fromkeys(metrics.METRICS["build_info"].labels, "x")
        facts = collector.Facts(build, "0f", "ab", 1, 300.0, directory)
        self.collector = collector.RunCollector(control, self.segments.rings, self.table, facts)
        self.settings = {
            "mode": "async", "lag_limit": 1, "checkpoint_seconds": 300.0, "correction": "vtrace",
            "placement": "server", "stop": {"steps": 2_000_000},
        }  # fmt: skip
        reader = Reader(control, self.segments.rings, self.table, directory)
        self.live = Live(reader, directory, lambda: dict(self.settings))
        patience = Thresholds(supervisor_seconds=math.inf, silent_seconds=math.inf)  # nobody beats here
        self.live._watchman = Watchman(patience)
        self.pages = pages.Pages(self.collector, self.live)

    def own(self, slot):
        """The control block as process `slot` sees it."""
        return ringbuf.Control.attach(self.segments.control.fd, slot)

    def scrape(self):
        """{(name, labels): value} of /metrics."""
        status, _, body = self.pages.answer("/metrics")
        assert status == 200
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }

    def page(self):
        """The live page as it is served."""
        status, kind, body = self.pages.answer("/")
        assert (status, kind) == (200, pages.HTML)
        return body.decode()

    def close(self):
        try:
            self.live.close()
        finally:
            self.segments.close()


@contextlib.contextmanager
def serving(machine):
    """Serves it; gives the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    served = server.Server(listening, machine.pages)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield listening.getsockname()
    served.shutdown()
    thread.join()
    served.server_close()


def get(address, path, method="GET"):
    connection = http.client.HTTPConnection(*address, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()
