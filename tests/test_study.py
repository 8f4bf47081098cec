"""The study under docs/ is what its cells say."""

import json
import re
from pathlib import Path

import pytest

from stress import packing
from stress.page import page
from stress.records import Records
from stress.report import analyse

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "study"
REPORT = json.loads((FOLDER / "report.json").read_text())


def test_the_page_shows_the_numbers_that_stand_beside_it():
    assert (FOLDER / "report.html").read_text() == page(REPORT)


def test_the_guide_tells_the_numbers_of_the_report():
    guide = (FOLDER.parent / "stability.md").read_text()
    told = guide[guide.index("## What the study of this repository found") :]
    state = REPORT["state"]
    done = state["finished"] + state["tuning"] + state["thrown_out"]
    if state["missing"]:
        assert f"{done:,} of {REPORT['study']['planned_cells']:,} cells" in told
    for task in ("cartpole", "pendulum"):
        table = told[told.index(f"{task.capitalize()}:") :].split("\n\n")[1]
        rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", table, re.M)
        assert len(rows) == 13
        for name, cells in rows:
            for lag, cell in zip((0, 1, 2, 4, 8, 16, 32), cells.split("|"), strict=True):
                areas = {
                    f"{arm['area'][0]:.2f}"
                    for arm in REPORT["arms"]
                    if (arm["task"], arm["mode"], arm["lag"], arm["correction"], arm["epochs"])
                    == (task, "lagged", lag, name, 2)
                }
                assert cell.strip() in areas


def test_it_is_small_enough_to_be_kept():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 6_000_000
    assert (FOLDER / "report.html").stat().st_size < 2_000_000


def test_every_run_of_it_is_among_the_cells():
    kept = {cell["id"] for cell in packing.unpack(FOLDER / packing.FILE)}
    assert {cell["id"] for cell in REPORT["cells"]} <= kept


@pytest.mark.soak
def test_the_report_follows_from_the_cells():
    found = json.loads(json.dumps(analyse(Records.load(FOLDER))))
    for part, value in found.items():
        assert value == REPORT[part], part
