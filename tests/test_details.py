"""docs/details.md points at code that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "details.md").read_text()
PLACES = sorted(set(re.findall(r"`([\w/]+\.(?:py|c|h)):(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), PLACES, ids=[f"{file}:{name}" for file, name in PLACES])
def test_every_place_named_is_there(file, name):
    text = (ROOT / file).read_text()
    defined = rf"(?m)^\s*(?:def|class) {name}\b|\b{name}\b[:=]|\b{name} [:=]|\b{name}\(.*\) \{{|\*{name};"
    assert re.search(defined, text), f"{file} defines no {name}"


def test_every_row_names_a_place():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| detail")]
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"\| `[\w/]+\.(?:py|c|h):\w+` \|$", row)] == []


def test_every_correction_of_the_learner_is_described():
    from consumers.corrections import CORRECTIONS

    assert [name for name in CORRECTIONS if f"`{name}`:" not in PAGE] == []
