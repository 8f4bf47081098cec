"""A real browser that looks at a run whose counters the test writes, for tests of the live page."""

import contextlib
import os
import shutil
import time

import pytest

from monitor import rundir

CHROMIUM = shutil.which("chromium")
pytest.importorskip("playwright", reason="pip install playwright")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

FLAGS = (
    "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", *(["--no-sandbox"] if os.geteuid() == 0 else []),
)  # fmt: skip
DEADLINE_MS = 60_000
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
BEYOND_THE_EDGE = """[...document.querySelectorAll("body *")]
    .filter((one) => !one.closest(".scroll, .unseen, legend, .u-wrap"))
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5)
    .map((one) => one.outerHTML.slice(0, 80))"""


@contextlib.contextmanager
def chromium():
    """One that is started, with nothing of a user's."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


class View:
    """A run whose counters the test writes, its exporter, and pages that look at it."""

    def __init__(self, machine, address, browser):
        self.machine, self.address, self.browser = machine, address, browser
        self.url = f"http://{address[0]}:{address[1]}/"
        self.complaints = []  # of the console
        self.asked = []  # URLs
        self._contexts = []

    def status(self, **facts):
        report = {"state": "running", "name": "toy", "simulator": "cartpole", "mode": "async", "attempt": 1}
        report |= {"updated_unix": time.time() + 1e6, **facts}
        rundir.write_json(self.machine.directory / rundir.STATUS, report)

    def event(self, **facts):
        directory = rundir.RunDirectory(self.machine.directory, -1)
        directory.event("producer", 1, "crashed", **facts)

    def open(self, *, script=True, **options):
        """A page, once it shows what the exporter says. `options`: of the browser's context."""
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(DEADLINE_MS)
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self.asked.append(asked.url))
        page.goto(self.url)
        if script:
            page.wait_for_selector("#state[data-state]")
        return page

    def close(self):
        for context in self._contexts:
            context.close()
