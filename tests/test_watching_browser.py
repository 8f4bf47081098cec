"""Watching the agent in a real browser: by mouse and by keyboard, alone and together, on any screen."""

import threading

import numpy as np
import pytest
from browsing import BEYOND_THE_EDGE, View, chromium, needs_browser
from machines import Machine, serving
from programs import random_weights

from consumers.player import Player
from consumers.stage import Stage
from monitor import pages
from monitor.endpoint import watch_line
from monitor.watching import Watching
from producers import native
from producers.program import build
from sims.loader import load

pytestmark = needs_browser
COLOURS = """(canvas) => new Set(new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""
PARAMETERS = {"width": 64, "height": 64, "agents": 6, "view_width": 32, "view_height": 16}


class Weights:
    published = 3

    def __init__(self, program):
        self._flat = random_weights(program, np.random.default_rng(1))

    def read(self):
        return self.published, self._flat


class Evaluator:
    """A real one, in a thread."""

    def __init__(self, control):
        theirs, self.channel = watch_line()
        program = build({"hidden": [16]}, native.describe(native.simulator_path("realm"), PARAMETERS))
        self._player = Player(
            control, Weights(program), theirs,
            lambda world: Stage(load("realm"), PARAMETERS, program, 1, world),
        )  # fmt: skip
        self._ends, self._over = (theirs, self.channel), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._over.is_set():
            self._player.turn()

    def close(self, watching):
        self._over.set()
        self._thread.join()
        self._ends[0].shutdown(1)
        watching.reader.join()
        for end in self._ends:
            end.close()


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def view(tmp_path, browser):
    machine = Machine(tmp_path)
    evaluator = Evaluator(machine.own(0))
    watching = Watching(evaluator.channel, 4, lambda: "running")
    machine.pages = pages.Pages(machine.collector, machine.live, watching.routes)
    with serving(machine) as address:
        made = View(machine, address, browser)
        made.status()
        yield made
        made.close()
        while watching.viewers:
            pass
    evaluator.close(watching)
    machine.close()


def watch(page):
    page.locator("#watch").get_by_role("button", name="Watch", exact=True).click()
    page.locator(".stage-of-agent").wait_for()


def step(page):
    return int(page.locator(".figures dd").nth(3).inner_text().split()[1])


def test_the_agent_is_seen_and_what_it_thinks_is_in_words(view):
    page = view.open()
    assert page.locator("#watch canvas").is_hidden(), "nobody plays before somebody asks"
    watch(page)
    page.locator("#watch tr.taken").wait_for(state="attached")
    said = page.locator(".figures").inner_text()
    assert all(name in said for name in ("Reward", "Return", "Value", "Version"))
    assert page.locator(".heads tbody tr").count() == 26
    picture = page.get_by_role("img", name="around agent 0")
    picture.wait_for()
    assert picture.evaluate("(canvas) => [canvas.width, canvas.height]") == [256, 128]
    assert picture.evaluate(COLOURS) > 3, "it is drawn"
    page.get_by_role("combobox", name="show").select_option("text")
    page.locator("#watch pre", has_text="agent 0: level").wait_for()
    page.get_by_role("spinbutton", name="agent").fill("4")
    page.get_by_role("spinbutton", name="agent").press("Enter")
    page.locator("#watch pre", has_text="agent 4: level").wait_for()
    assert view.complaints == []
    page.get_by_role("button", name="Stop watching").click()
    page.locator("#watch canvas").wait_for(state="hidden")


def test_the_keyboard_alone_does_it_and_all_who_watch_see_the_same(view):
    page, other = view.open(), view.open()
    watch(other)
    button = page.locator("#watch").get_by_role("button", name="Watch", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    page.locator(".stage-of-agent").wait_for()
    page.keyboard.press("p")
    for one in (page, other):
        one.get_by_role("button", name="Play").wait_for()
    page.wait_for_timeout(700)  # what was on its way has come
    begun = step(page)
    for _ in range(3):
        page.keyboard.press(".")
    for one in (page, other):
        one.locator(".figures", has_text=f"in {begun + 3} steps").wait_for()
    world = page.get_by_role("combobox", name="world")
    world.focus()
    page.keyboard.press("3")
    other.get_by_role("img", name="World 3").wait_for()
    assert other.get_by_role("combobox", name="world").input_value() == "3"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_axe_finds_nothing_and_a_phone_has_room(view, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = view.open(color_scheme=scheme, viewport={"width": 320, "height": 640}, reduced_motion="reduce")
    watch(page)
    page.get_by_role("combobox", name="show").select_option("text")
    page.locator("#watch pre").wait_for()
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []
    assert page.evaluate(BEYOND_THE_EDGE) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_an_evaluator_that_cannot_play_is_told_of(view, monkeypatch):
    def broken(*_):
        raise ValueError("<b>no</b> realm")

    monkeypatch.setattr(Stage, "frame", broken)
    page = view.open()
    page.locator("#watch").get_by_role("button", name="Watch", exact=True).click()
    page.get_by_text("ValueError: <b>no</b> realm").wait_for()
