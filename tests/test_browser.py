"""The live page in a real browser: what it shows, to whom, by which keys, and that nothing in it can act."""

import time

import pytest
from browsing import BEYOND_THE_EDGE, HOSTILE, View, chromium, needs_browser
from machines import Machine, serving

from monitor import live

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def view(tmp_path, browser, monkeypatch):
    monkeypatch.setattr(live, "TICK_SECONDS", 0.2)
    machine = Machine(tmp_path)
    for slot in machine.table.all:
        machine.segments.control.set_process(slot, state="running")
        machine.own(slot).pulse("step", 1)
    machine.own(0).pulse("step", 1)
    machine.own(machine.table.learner).gauge_set("score_mean", 399.0)
    now = time.time()
    for back in range(200, 0, -1):
        point = {"steps_trained": 1e6 + back, "bytes_packed": 2e9, "lag_mean": 0.5, "lag_max": 1.0}
        machine.live._history.add(now - back, {**point, "score_mean": 400.0 - back})
    with serving(machine) as address:
        made = View(machine, address, browser)
        made.status()
        yield made
        made.close()
    machine.close()


def alarms(page):
    return page.locator("#alarm-list > li")


def test_the_figures_are_there_and_nothing_is_asked_of_anybody_else(view):
    view.status(
        steps=1_234_567, version=12, bytes={"packed": str(2**70), "unpacked": "999"}, attempt=3,
        lag={"mean": 0.5, "p99": 1, "max": 1, "limit": 1}, score={"mean": 12.5, "best": 30.0, "episodes": 7},
        slots={"dropped": 0}, seconds=100.0, restarts={"producer": 2},
    )  # fmt: skip
    page = view.open()
    now = page.locator("#now").inner_text()
    assert all(text in now for text in ("1.23 M", "of 2.00 M", "12.5", "best 30", "p99 1 · max 1 · limit 1"))
    assert "1180.591 EB" in now, "of a total that no number of a browser holds"
    assert "async, lag limit 1" in page.locator("#facts").inner_text()
    assert page.locator("#calm").is_visible()
    assert page.locator("#processes tbody tr").count() == len(view.machine.table.all)
    assert page.locator("#rings tbody tr").count() == 2
    assert page.locator("#rings tbody tr").first.locator(".slot.free").count() == 4
    assert page.title() == "toy: running"
    assert page.locator("#chart-score .value").first.inner_text() == "399"
    assert page.locator("#chart-score canvas").count() == 1
    assert [url for url in view.asked if not url.startswith(view.url)] == []
    assert view.complaints == []


def test_what_a_run_says_is_text_and_never_acts(view):
    view.status(name=HOSTILE, simulator=HOSTILE, state="failed", message=HOSTILE, warnings=[HOSTILE])
    view.event(message=HOSTILE, signal=HOSTILE)
    page = view.open()
    assert page.locator("h1").inner_text() == HOSTILE
    assert HOSTILE in alarms(page).first.inner_text()
    assert HOSTILE in page.locator("#events tbody td").last.inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == view.machine.pages._index.count("<script")
    assert view.complaints == []


def test_an_alarm_comes_and_goes_with_its_condition_and_is_said_aloud(view):
    page = view.open()
    control = view.machine.segments.control
    control.set_process(view.machine.table.producers[1], state="failed")
    alarms(page).first.wait_for()
    assert "producer 1 has failed for good" in alarms(page).inner_text()
    assert "critical" in page.locator("#news").inner_text()
    assert page.title() == "(1) toy: running"
    assert page.locator("#calm").is_hidden()
    assert page.locator("#processes [data-state=failed]").count() == 1
    control.set_process(view.machine.table.producers[1], state="running")
    alarms(page).first.wait_for(state="detached")
    assert page.locator("#news").inner_text() == "Over: process down"
    assert view.complaints == []


def test_a_reload_shows_the_past_in_the_span_that_was_chosen(view):
    page = view.open()
    page.locator("#spans input").first.focus()
    with page.expect_response("**/history.json?seconds=3600"):
        page.keyboard.press("ArrowRight")
    with page.expect_response("**/history.json?seconds=3600") as answer:
        page.reload()
    past = answer.value.json()
    assert past["step"] == 5
    assert len(past["times"]) > 30
    assert page.locator("#spans input:checked").get_attribute("value") == "3600"


def test_every_chart_has_a_table_and_both_can_be_read_by_keyboard(view):
    page = view.open()
    chart = page.locator("#chart-score")
    assert (
        chart.locator("[role=img]")
        .get_attribute("aria-label")
        .startswith("Score over the last 5 minutes: mean is 399")
    )
    for figure in page.locator("figure.chart").all():
        assert figure.locator("details table").count() == 1
        assert figure.locator("[role=img][aria-label]").count() == 1
    frame = chart.locator(".frame")
    frame.focus()
    page.keyboard.press("Home")
    assert chart.locator(".value").first.inner_text() == "200"
    page.keyboard.press("ArrowRight")
    assert chart.locator(".value").first.inner_text() == "201"
    assert chart.locator(".when").inner_text() == page.locator("#chart-bytes .when").inner_text() != ""
    page.keyboard.press("Escape")
    assert chart.locator(".when").inner_text() == ""
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    chart.locator("details[open] tbody tr:nth-child(11)").wait_for()  # it is filled once it is open
    assert chart.locator("tbody tr:nth-child(3) td").first.inner_text().startswith("3")
    assert view.complaints == []


def test_a_phone_shows_it_all_without_scrolling_sideways(view):
    page = view.open(viewport={"width": 320, "height": 640}, is_mobile=True, has_touch=True)
    for figure in page.locator("figure.chart summary").all():
        figure.click()
    assert page.evaluate(BEYOND_THE_EDGE) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    assert view.complaints == []


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_axe_finds_nothing(view, scheme):
    from axe_playwright_python.sync_playwright import Axe

    view.machine.segments.control.set_process(view.machine.table.producers[1], state="hung")
    view.machine.own(view.machine.table.learner).counter_set("nonfinite_steps", 1)
    view.status(state="failed", message="gave up", warnings=["a warning"])
    view.event(message="an event")
    page = view.open(color_scheme=scheme)
    alarms(page).nth(1).wait_for()
    page.locator("#chart-score summary").click()
    page.emulate_media(reduced_motion="reduce")
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == {
        "light": "rgb(244, 246, 248)", "dark": "rgb(13, 18, 23)"
    }[scheme]  # fmt: skip


def test_nothing_moves_for_whoever_wants_no_motion(view):
    view.machine.segments.control.set_process(view.machine.table.producers[1], state="failed")
    page = view.open(reduced_motion="reduce")
    alarms(page).first.wait_for()
    assert page.evaluate("document.getAnimations().length") == 0


def test_without_scripts_there_is_a_table_of_all_figures(view):
    view.status(name=HOSTILE, score={"mean": 12.5})
    page = view.open(script=False, java_script_enabled=False)
    text = page.locator("main noscript").inner_text()
    assert "score.mean" in text
    assert "12.5" in text
    assert HOSTILE in text


def test_a_page_whose_exporter_is_gone_says_so_and_finds_the_next(view):
    page = view.open()
    view.machine.live.stream.close(0)
    page.locator("#connection").wait_for()
    assert "No connection since" in page.locator("#connection").inner_text()
    assert page.locator("body.old").count() == 1
    view.machine.live.stream.__init__(8)
    page.locator("body:not(.old)").wait_for()
    assert page.locator("#connection").is_hidden()
