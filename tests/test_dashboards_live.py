"""Each panel of the dashboards, asked of a real Prometheus that scraped real runs, shows what the runs say of
themselves."""

import math
import time
from xml.etree import ElementTree

import pytest
from panel_figures import AGREES, SCRAPE_SECONDS, SLACK_SECONDS, WINDOW_SECONDS, Watched
from prom import Prometheus, needs_prometheus
from runs import Run

from monitor.grafana import draw, reading

pytestmark = [pytest.mark.soak, needs_prometheus]

PATIENCE_SECONDS = 60  # a window in which the machine gave us nothing is followed by another
DASHBOARDS = reading.dashboards()
PANELS = [panel for board in DASHBOARDS.values() for panel in reading.panels(board)]
# What has nothing to show, by (run, row or panel, legend or everything), and why.
EMPTY = {
    ("producer", "Inference server (policy.placement: server)", None): "it has no inference server",
    ("producer", "Pickups", "servers"): "it has no inference server",
    ("server", "Archive (archive.enabled)", None): "it keeps no archive",
}


def plausible(panel, values):
    """What any figure of its unit is, whatever the run."""
    if panel.unit == "percentunit":
        return all(-1e-3 <= value <= 1.1 for value in values) or panel.title == "Explained variance"
    if panel.unit in ("s", "Bps", "decbytes") or panel.unit.startswith("count:"):
        return all(value >= 0 for value in values)
    return all(math.isfinite(value) for value in values)


def empty(name, panel, query):
    """Why a panel has nothing to show; None: it must."""
    whys = (
        EMPTY.get((name, which, legend))
        for which in (panel.row, panel.title)
        for legend in (query.legend, None)
    )
    return next((why for why in whys if why), None)


def differing(prometheus, watched, address, name, end):
    """{panel and curve: (shown, wanted)} where the two do not agree."""
    found = {}
    for panel in PANELS:
        for query in panel.queries:
            expression = reading.filled(query.expression, f"{WINDOW_SECONDS}s", instance=address)
            shown = {query.name(labels): value for labels, value in prometheus.query(expression, end)}
            what = f"{name}: {panel}: {query.legend}"
            if empty(name, panel, query):
                if shown:
                    found[what] = (shown, "nothing")
            elif not shown or not plausible(panel, shown.values()):
                found[what] = (shown, panel.unit)
            elif bounds := AGREES.get((panel.title, query.legend)):
                for curve, (low, high) in bounds(watched, end).items():
                    value = shown.get(curve if curve is not None else query.legend, math.nan)
                    room = 1e-6 * max(1, abs(low), abs(high))
                    if not low - room <= value <= high + room:
                        found[f"{what}: {curve}"] = (value, (low, high))
    return found


def marks(prometheus, address, name, end):
    """What a dashboard marks of a run at a moment: the texts and values."""
    for board in DASHBOARDS.values():
        mark = next(mark for mark in board["annotations"]["list"] if mark["name"] == name)
        query = reading.Query(mark["expr"], mark["titleFormat"], instant=True)
        expression = reading.filled(query.expression, f"{WINDOW_SECONDS}s", instance=address)
        yield {query.name(labels): value for labels, value in prometheus.query(expression, end)}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run whose producers act themselves, and one with an inference server, by these names."""
    made = {}
    try:
        for name in ("producer", "server"):
            folder = tmp_path_factory.mktemp("runs") / name
            folder.mkdir()
            run = Run(folder, "evaluate.episodes=0", "monitor.interval_seconds=0.5",
                      f"policy.placement={name}", f"archive.enabled={name == 'producer'}",
                      "archive.fraction=1", "checkpoint.interval_seconds=5")  # fmt: skip
            made[name] = Watched(run)
        yield made
    finally:
        for one in made.values():
            one.close()


@pytest.fixture(scope="module")
def prometheus(watched, tmp_path_factory):
    made = Prometheus(
        tmp_path_factory.mktemp("prometheus"),
        [one.up() for one in watched.values()],
        scrape=f"{SCRAPE_SECONDS}s",
    )
    yield made
    made.close()


def test_every_panel_shows_what_two_runs_say_of_themselves(watched, prometheus):
    addresses = {name: one.up() for name, one in watched.items()}
    prometheus.until(lambda: set(prometheus.targets().values()) == {"up"})
    asked = {(panel.title, query.legend) for panel in PANELS for query in panel.queries}
    assert set(AGREES) <= asked, "no such panels"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        time.sleep(SLACK_SECONDS)
        watched["producer"].run.kill("producer", 1)
        time.sleep(WINDOW_SECONDS - SLACK_SECONDS)
        end = time.time()
        time.sleep(SLACK_SECONDS + 1)  # until status.json has been written after it
        found = {}
        for name, one in watched.items():
            found |= differing(prometheus, one, addresses[name], name, end)
        if not found or time.monotonic() > deadline:
            break
    assert found == {}
    for name, one in watched.items():
        again = {"producer started again"} if name == "producer" else set()
        assert [set(found) for found in marks(prometheus, addresses[name], "Restarts", end)] == 6 * [again]
        saved = one.between(end - SLACK_SECONDS, end, lambda s: s["checkpoint"]["last_unix"])
        for found in marks(prometheus, addresses[name], "Checkpoints", end):
            assert 1e3 * min(saved) - 1 <= found["checkpoint"] <= 1e3 * max(saved) + 1


def test_the_dashboards_can_be_drawn_from_what_was_recorded(watched, prometheus, tmp_path):
    wanted = [prometheus.address, str(tmp_path), "--minutes", "0.25", "--window", f"{WINDOW_SECONDS}s"]
    assert draw.main(wanted) == 0
    drawn = {path.stem: ElementTree.parse(path).getroot() for path in tmp_path.iterdir()}
    assert len(drawn) == len(DASHBOARDS)
    for uid, board in DASHBOARDS.items():
        texts = [element.text for element in drawn[uid.replace("headrace", "grafana")].iter() if element.text]
        assert {panel.title for panel in reading.panels(board)} <= set(texts)
        assert "no data" not in texts, uid
