"""Runs compared: what stands in the page is what the runs did, and whatever is wrong with them is said."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from config.rotate import rotate, set_aside
from consumers import journal
from monitor import compare, compared, comparison, rundir
from monitor.compared import SPEED
from monitor.curves import Curve
from monitor.lines import LINE_BYTES, Follower

ROOT = Path(__file__).resolve().parent.parent


def make(path, *, seed=1, rate=3e-4, lines=50, commit="c0ffee", score=1.0, **facts):
    """A run directory as a run leaves it: `lines` updates of 100 steps and half a second each."""
    path.mkdir(parents=True)
    settings = {"run": {"name": path.name, "seed": seed}, "sim": {"name": "cartpole"}, "mode": "async",
                "learner": {"learning_rate": rate}, "monitor": {"port": 9000 + seed}}  # fmt: skip
    (path / rundir.RESOLVED).write_text(json.dumps(settings))
    manifest = {"git": {"commit": commit, "dirty": False}, "packages": {"torch": "2.13.0"}, "host": "here"}
    rundir.write_json(path / rundir.MANIFEST, manifest)
    summary = {
        "state": "done", "steps": 100 * lines, "seconds": lines / 2, "steps_per_second": 200.0,
        "version": lines, "score": {"mean": score, "best": score, "evaluated": None},
        "lag": {"mean": 0.5, "p99": 1, "max": 1}, "restarts": {"producer": 2, "learner": 1},
        "slots": {"dropped": 0}, "solved_at_seconds": None,
    }  # fmt: skip
    rundir.write_json(path / rundir.SUMMARY, summary | facts)
    (path / rundir.METRICS).write_text("".join(line(i, score=score) for i in range(1, lines + 1)))
    return path


def line(i, *, score=1.0, **figures):
    facts = {"version": i, "steps": 100 * i, "seconds": i / 2, "score_mean": score * i if i > 5 else None,
             "lag_mean": 0.5, "grad_norm": float(i % 7), "learning_rate": 0.1 / i}  # fmt: skip
    return json.dumps(facts | figures) + "\n"


def read(path, *figures):
    return compared.read(path, figures or ("score_mean",))


def points(run, figure):
    return comparison._points(run.by_steps, run.figures, figure)


class Document(HTMLParser):
    """What a page holds."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.rows, self.inside = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag == "tr":
            self.inside = True
            self.rows.append([])

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "tr"

    def handle_data(self, data):
        if self.inside and data.strip():
            self.rows[-1].append(data)


def run(folder, *arguments):
    command = [sys.executable, "-m", "monitor.compare", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


# The page


def test_the_page_needs_nothing_but_itself_and_has_a_table_beside_each_chart(tmp_path):
    runs = [make(tmp_path / "a"), make(tmp_path / "b", rate=1e-3, score=2.0)]
    target = tmp_path / "out.html"
    done = run(tmp_path, *runs, "--output", target)
    assert (done.returncode, done.stderr) == (0, "")
    text = target.read_text()
    found = Document(text)
    assert "script" not in found.tags
    assert all(link.startswith("#") for link in found.links)
    assert "url(" not in text
    assert "@import" not in text
    charts = text.count('class="chart"')
    assert charts == text.count("<desc") == text.count("<summary>Table")
    assert charts == 2 * 4  # score, steps/s, lag, gradients: by steps and by seconds


def test_what_the_table_says_is_what_the_summaries_say(tmp_path):
    runs = [make(tmp_path / "a", lines=40), make(tmp_path / "b", rate=1e-3, score=2.5)]
    rows = Document(compare.compare(runs, None, each=False)).rows
    a = next(row for row in rows if row[0] == "a" and "done" in row)
    b = next(row for row in rows if row[0] == "b" and "done" in row)
    assert a[:5] == ["a", "done", "4\u202f000", "20", "200"]
    assert "2.500" in b
    assert a[-1] == "3"  # restarts of all roles


def test_settings_that_differ_are_named_and_others_are_not(tmp_path):
    runs = [make(tmp_path / "a"), make(tmp_path / "b", rate=1e-3, commit="beef", seed=7)]
    rows = Document(compare.compare(runs, None, each=False)).rows
    assert ["learner.learning_rate", "0.0003", "0.001"] in rows
    assert ["(commit)", "c0ffee", "beef"] in rows
    named = {row[0] for row in rows if row}
    assert not named & {"mode", "sim.name", "run.seed", "run.name", "(torch)"}


def test_a_name_cannot_bring_markup_into_the_page(tmp_path):
    runs = [make(tmp_path / "<script>alert(1)"), make(tmp_path / "b", rate="<b>")]
    text = compare.compare(runs, None, each=False)
    assert "<script" not in text
    assert "<b>" not in text


def test_seeds_of_a_configuration_are_one_curve_of_medians_with_the_middle_half(tmp_path):
    runs = [make(tmp_path / f"s-{seed}", seed=seed, score=float(seed)) for seed in range(1, 6)]
    runs.append(make(tmp_path / "other", rate=1e-3))
    groups = compared.group([read(path) for path in runs])
    assert [(one.label, len(one.runs)) for one in groups] == [("s (5 runs)", 5), ("other", 1)]
    found = comparison.drawn(groups[0], [one.by_steps for one in groups[0].runs], "score_mean")
    assert (found.x[0], found.x[-1]) == (600, 5000)
    np.testing.assert_allclose(found.y, 3 * found.x / 100, rtol=1e-9)
    np.testing.assert_allclose(found.low, 2 * found.x / 100, rtol=1e-9)
    np.testing.assert_allclose(found.high, 4 * found.x / 100, rtol=1e-9)
    rows = Document(compare.compare(runs, None, each=False)).rows
    middle = next(row for row in rows if row[0] == "s (5 runs)" and "[" in row[-1])
    assert "3 [2, 4]" in middle
    assert len(compared.group([read(path) for path in runs], each=True)) == 6


def test_a_group_ends_where_its_first_run_does(tmp_path):
    runs = [read(make(tmp_path / f"{n}", seed=n, lines=n)) for n in (20, 30, 40)]
    (one,) = compared.group(runs)
    assert comparison.drawn(one, [each.by_steps for each in runs], "score_mean").x[-1] == 2000


def test_one_seed_by_two_commits_is_a_comparison_of_these_and_two_seeds_are_none(tmp_path):
    a, b = (read(make(tmp_path / name, commit=name)) for name in ("a", "b"))
    other = read(make(tmp_path / "c", commit="b", seed=2))
    assert [len(one.runs) for one in compared.group([a, b])] == [1, 1]
    assert [len(one.runs) for one in compared.group([a, b, other])] == [1, 2]
    assert [len(one.runs) for one in compared.group([a, other])] == [2]
    assert ("(commit)", ["a, b"]) in compared.differences(compared.group([a, other]))


# Curves


def test_a_curve_stays_small_and_true_however_many_updates_there_are():
    curve = Curve(1, most=64)
    for i in range(1, 100_001):
        curve.add(i, i, i / 1000, [float(i)])
    assert 32 <= len(curve.x) <= 64
    np.testing.assert_allclose(np.diff(curve.x[:-1]), curve.x[0])
    middle = curve.x - np.diff(curve.x, prepend=0) / 2
    np.testing.assert_allclose(curve.figure(0), middle + 0.5)
    np.testing.assert_allclose(curve.steps_per_second(), 1000)
    assert curve.x[-1] == 100_000


def test_what_a_roll_back_took_away_is_in_no_curve():
    curve = Curve(1)
    for steps in (*range(100, 1100, 100), *range(500, 900, 100)):
        curve.add(steps, steps, steps, [float(steps)])
    assert list(curve.x) == list(range(100, 900, 100))


def test_a_figure_that_is_null_is_a_gap_and_no_zero(tmp_path):
    x, y = points(read(make(tmp_path / "a", lines=10)), "score_mean")
    assert list(x) == [600, 700, 800, 900, 1000]
    assert list(y) == [6, 7, 8, 9, 10]


def test_steps_a_second_are_made_of_steps_and_seconds(tmp_path):
    found = read(make(tmp_path / "a"), SPEED)
    _, y = points(found, SPEED)
    np.testing.assert_allclose(y, 200.0)


# Files that are large, damaged, or written meanwhile


def test_files_that_were_set_aside_belong_to_the_run(tmp_path):
    path = make(tmp_path / "a", lines=0)
    for first in (1, 11, 21):
        (path / rundir.METRICS).write_text("".join(line(i) for i in range(first, first + 10)))
        rotate(path / rundir.METRICS, 3)
    found = read(path, "learning_rate")
    assert found.lines == 30
    assert list(points(found, "learning_rate")[0]) == list(range(100, 3100, 100))


def test_what_was_deleted_of_the_lines_is_said(tmp_path):
    path = make(tmp_path / "a", lines=0)
    (path / rundir.METRICS).write_text("".join(line(i) for i in range(1000, 1020)))
    assert "begins at version 1000" in compare.compare([path], None, each=False)


def test_damaged_lines_are_left_out_counted_and_told_of(tmp_path):
    path = make(tmp_path / "a", lines=0)
    wrong = [b"{", b"\0" * 100, b"[1]", b"null", b'{"steps": "x"}', b'{"steps": 1, "seconds": Infinity}',
             b"[" * 100_000, b'{"steps": 1' + b"0" * 400 + b', "seconds": 1}', b"\xff\xfe\xfa",
             b'{"a": "' + b"x" * (2 * LINE_BYTES) + b'"', b"1" * 5000]  # fmt: skip
    good = [line(i).encode().rstrip() for i in range(1, 31)]
    mixed = [text for pair in zip(good, [*wrong, *[b""] * 30]) for text in pair]
    (path / rundir.METRICS).write_bytes(b"\n".join(mixed) + b"\n" + line(31).encode()[:40])
    found = read(path)
    assert found.lines == 30
    assert found.damaged == len(wrong)
    done = run(tmp_path, path, "--output", tmp_path / "out.html")
    assert done.returncode == 0
    assert f"left out {len(wrong)} damaged lines" in done.stderr
    assert f"{len(wrong)} damaged lines" in (tmp_path / "out.html").read_text()


def test_values_of_any_kind_do_no_harm(tmp_path):
    path = make(tmp_path / "a", lines=0, score="?", lag=[1], restarts={"producer": "many"}, steps=10**400)
    odd = ["x", [1], {"a": 1}, True, 10**400, float("inf"), None]
    (path / rundir.METRICS).write_text("".join(line(i, grad_norm=odd[i % 7]) for i in range(1, 50)))
    assert "grad_norm" in compare.compare([path], ["grad_norm"], each=False)


def test_reading_takes_no_more_memory_for_more_lines(tmp_path):
    path = make(tmp_path / "a", lines=0)
    with (path / rundir.METRICS).open("w") as file:
        for start in range(1, 18_001, 1000):
            file.write("".join(line(i, padding="x" * 4000) for i in range(start, start + 1000)))
    code = (
        "import resource, sys, numpy; from pathlib import Path; from monitor import compare, rundir\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20),) * 2)\n"
        "sys.exit(compare.main(sys.argv[1:]))"
    )
    target = tmp_path / "out.html"
    command = [sys.executable, "-c", code, str(path), "--output", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (path / rundir.METRICS).stat().st_size > 3 * (20 << 20)
    assert target.stat().st_size < 300_000


def test_a_follower_gives_each_line_once_while_the_file_is_written_and_set_aside(tmp_path):
    path = tmp_path / "x.jsonl"
    follower, found = Follower(path), []
    assert list(follower.lines()) == []
    written = 0
    for n in (1, 3, 0, 5, 2, 40, 1):
        for _ in range(n):
            with path.open("a") as file:
                file.write(json.dumps({"n": written}) + "\n")
            written += 1
            if written % 4 == 0:
                rotate(path, 9)
        found += [one["n"] for one in follower.lines()]
    follower.close()
    assert found == list(range(written))
    assert follower.damaged == 0


def test_no_line_is_lost_while_a_learner_writes_and_sets_aside_as_fast_as_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FLUSH_SECONDS", 0.0)
    path, count = tmp_path / "x.jsonl", 1500
    made = journal.Journal(path, limit_bytes=600, files=60)

    def write():
        for n in range(count):
            made.add(json.dumps({"n": n}))

    writer = threading.Thread(target=write)
    writer.start()
    follower, found = Follower(path), []
    over = False
    while not over:
        over = not writer.is_alive()  # looked at first: then everything is there
        found += [one["n"] for one in follower.lines()]
    follower.close()
    assert found == list(range(count))
    assert len(list(tmp_path.iterdir())) > 20


@pytest.mark.parametrize("instant", range(8))
def test_a_line_that_comes_at_any_instant_of_reading_is_read_although_the_file_is_set_aside(
    tmp_path, instant
):
    path, passed = tmp_path / "x.jsonl", []

    def pass_instant():
        passed.append(len(passed))
        if passed[-1] == instant:
            with path.open("a") as file:
                file.write('{"n": 1}\n')
            rotate(path, 5)
            path.write_text('{"n": 2}\n')

    class Interrupted(Follower):
        def _newer(self):
            pass_instant()
            found = super()._newer()
            pass_instant()
            return found

        def _rest_of(self, file):
            pass_instant()
            yield from super()._rest_of(file)
            pass_instant()

    path.write_text('{"n": 0}\n')
    follower = Interrupted(path)
    found = [one["n"] for _ in range(4) for one in follower.lines()]
    follower.close()
    assert found == [0, 1, 2]


def test_a_line_that_is_not_whole_yet_is_given_when_it_is(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\n{"n"')
    follower = Follower(path)
    assert list(follower.lines()) == [{"n": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert list(follower.lines()) == [{"n": 2}]
    follower.close()


def test_a_file_that_moves_while_it_is_looked_for_is_not_missed(tmp_path, monkeypatch):
    """A rotation at every instant of the search for files."""
    for instant in range(6):
        path = tmp_path / f"{instant}.jsonl"
        for n in (2, 1, 0):
            (set_aside(path, n) if n else path).write_text(json.dumps({"n": 2 - n}) + "\n")
        opened = 0

        def open_and_rotate(*arguments, instant=instant, path=path, **options):
            nonlocal opened
            if opened == instant:
                rotate(path, 5)
            opened += 1
            return open(*arguments, **options)

        monkeypatch.setattr("monitor.lines.open", open_and_rotate, raising=False)
        follower = Follower(path)
        assert [one["n"] for one in follower.lines()] == [0, 1, 2], instant
        follower.close()


# Runs in any state


def test_a_run_under_way_is_shown_as_it_stands(tmp_path):
    path = make(tmp_path / "a")
    status = rundir.read_json(path / rundir.SUMMARY) | {"state": "running", "updated_unix": time.time()}
    (path / rundir.SUMMARY).rename(path / rundir.STATUS)
    rundir.write_json(path / rundir.STATUS, status)
    assert read(path).state == "running"
    rundir.write_json(path / rundir.STATUS, status | {"updated_unix": time.time() - 3600})
    assert read(path).state == "killed or paused when running"


def test_a_run_without_an_update_is_in_the_table_only(tmp_path):
    runs = [make(tmp_path / "a"), make(tmp_path / "b", lines=0, rate=1e-3)]
    text = compare.compare(runs, None, each=False)
    assert "b: no update so far" in text
    (runs[1] / rundir.METRICS).unlink()
    (runs[1] / rundir.SUMMARY).unlink()
    assert any(row[:2] == ["b", "starting"] for row in Document(compare.compare(runs, None, each=False)).rows)


# Bad input


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda path: ["nowhere"], 2, "nowhere: no such directory"),
        (lambda path: [path / rundir.RESOLVED], 2, "is not a directory"),
        (lambda path: [path.parent], 2, "no config.resolved.yaml in it"),
        (lambda path: [path, path], 2, "given twice"),
        (lambda path: [path, "--figures", "grad_nrom"], 2, "did you mean grad_norm?"),
        (lambda path: [path, "--output", path / "no" / "such" / "x.html"], 69, "no such file"),
        (lambda path: [(path / rundir.RESOLVED).write_text("a: [") and path], 64, "config.resolved.yaml:1:"),
        (lambda path: [(path / rundir.RESOLVED).write_text("7") and path], 64, "needs sections"),
    ],
)
def test_bad_input_gets_one_line_and_its_exit_code(tmp_path, monkeypatch, capsys, spoil, code, said):
    monkeypatch.chdir(tmp_path)
    arguments = spoil(make(tmp_path / "runs" / "a"))
    assert compare.main([str(one) for one in arguments]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert [one.name for one in tmp_path.iterdir()] == ["runs"]


def test_a_directory_is_no_place_for_the_page(tmp_path, capsys):
    path = make(tmp_path / "a")
    with pytest.raises(SystemExit) as caught:
        compare.main([str(path), "--output", str(path)])
    assert caught.value.code == 2
    assert "is a directory; needs a file" in capsys.readouterr().err


def test_what_is_no_plain_file_stays_where_it_is(tmp_path):
    """As root one could lose /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SystemExit) as caught:
        compare.main([str(make(tmp_path / "a")), "--output", str(pipe)])
    assert caught.value.code == 2
    assert pipe.is_fifo()


def test_a_directory_whose_name_is_no_text_is_read(tmp_path):
    run = make(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    assert compare.main([str(run), "--output", str(tmp_path / "page.html")]) == 0
    assert "<table" in (tmp_path / "page.html").read_text()


def test_a_summary_that_is_nested_beyond_all_bounds_is_none(tmp_path):
    run = make(tmp_path / "a")
    (run / rundir.SUMMARY).write_text("[" * 100_000)
    assert read(run).state == "starting"


def test_a_directory_in_the_place_of_the_lines_is_said(tmp_path):
    path = make(tmp_path / "a")
    (path / rundir.METRICS).unlink()
    (path / rundir.METRICS).mkdir()
    with pytest.raises(compared.Unusable, match="is a directory") as caught:
        read(path)
    assert caught.value.code == 69


def test_more_configurations_than_colours_are_refused(tmp_path):
    runs = [make(tmp_path / f"{i}", rate=i) for i in range(8)]
    with pytest.raises(compared.Unusable, match="8 configurations; needs 7 or fewer"):
        compare.compare(runs, None, each=False)


def test_figures_can_be_chosen(tmp_path):
    text = compare.compare([make(tmp_path / "a")], ["learning_rate", SPEED], each=False)
    assert re.findall("<h3>(.*?)</h3>", text) == ["learning_rate", "steps_per_second"]
