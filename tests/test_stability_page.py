"""docs/stability.md names figures, settings and commands that exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import config
from consumers.corrections import CORRECTIONS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "stability.md").read_text()
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.S)
METRICS = (ROOT / "docs" / "metrics.md").read_text()
CODE = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
WORDS = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))
SECTIONS = tuple(config.Config.model_fields)


def keys(model, path=()):
    for name, field in model.model_fields.items():
        yield ".".join((*path, name))
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(inner, "model_fields"):
                yield from keys(inner, (*path, name))


KEYS = set(keys(config.Config))


def test_every_figure_is_one_of_metrics_jsonl_or_of_prometheus():
    figures = [word for word in WORDS if re.fullmatch(r"[a-z0-9]+(?:_[a-z0-9]+)+", word)]
    assert len(figures) > 25
    arms = {"decoupled_ewma", "tis_ess"}  # of stress-full.yaml
    known = (
        arms
        | set(CORRECTIONS)
        | set(re.findall(r"`(\w+)`", METRICS))
        | {name.rsplit(".", 1)[-1] for name in KEYS}
    )
    assert [name for name in figures if name not in known] == []


def test_every_setting_is_one_of_a_run_file():
    settings = [word for word in WORDS if word.partition(".")[0] in SECTIONS and "." in word]
    assert len(settings) > 15
    assert [name for name in settings if name.partition(":")[0] not in KEYS] == []


def test_every_correction_in_the_table_is_one_and_none_is_missing():
    rows = PROSE[PROSE.index("## 5.") : PROSE.index("## 6.")]
    assert [name for name in CORRECTIONS if f"`{name}`" not in rows] == []


@pytest.mark.parametrize("command", [c for block in CODE for c in block.splitlines() if "supervisor.py" in c])
def test_every_run_that_is_shown_is_a_good_one(command):
    _, _, file, *overrides = command.split()
    config.read(ROOT / file, overrides, cores=2)


def test_the_figures_are_printed_by_the_lines_that_are_shown(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"version": i, "ratio_ess": 0.5, "lag_mean": None}) + "\n" for i in range(100))
    )
    script = re.search(r"<<'EOF_'\n(.*?)EOF_\n", CODE[0], re.S)
    assert script is not None
    done = subprocess.run(
        [sys.executable, "-", str(tmp_path / "metrics.jsonl")],
        input=script[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 21
    assert re.search(r"^ +95 .* 0\.5 ", done.stdout, re.M)
    names = re.findall(r"\w+", re.search(r"names = \((.*?)\)", script[1], re.S)[1])
    assert [name for name in names if name not in METRICS and name not in ("version", "score_mean")] == []


def test_the_sections_that_are_linked_are_there():
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in PAGE.splitlines() if line.startswith("#")
    }  # fmt: skip
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings
