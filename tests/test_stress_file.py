"""A study file says where it is wrong, and its matrix is what it asks for."""

import io
import itertools

import pytest
from rich.console import Console

import config
from config import exits
from producers import cores, native
from stress import __main__ as stress
from stress import collect, pool, progress, schema, store
from stress.cells import Matrix
from stress.reading import read

STUDY = """\
study: {name: s}
base:
  producers: {count: 1, agents: 4}
  rollout: {horizon: 16}
  learner: {batch_slots: 1, minibatches: 2}
  stop: {steps: 1000}
tasks:
  cartpole: {settings: {sim: {name: cartpole}}, solved: 475, floor: 20}
  pendulum:
    settings: {sim: {name: pendulum}, learner: {learning_rate: {start: 1e-3, end: 0.0}}}
    solved: -200
    floor: -1200
arms:
  capped: {correction: tis, tis_cap: 8.0}
tuning: {learning_rates: [3e-4, 1e-3], seeds: [101, 102]}
matrix:
  lag:
    tasks: [cartpole, pendulum]
    lags: [0, 4]
    corrections: [none, capped]
    seeds: [1, 2, 3]
    learning_rates: tuned
primary:
  does it help: {kind: difference, a: {correction: capped, lag: 4}, b: {correction: none, lag: 4}}
"""
MACHINE = cores.read_machine()


def write(folder, old="", new=""):
    assert old in STUDY
    path = folder / "s.yaml"
    path.write_text(STUDY.replace(old, new, 1))
    return path


LAGS = "lags: [0, 4]"
STOP = "stop: {steps: 1000}"
WRONG = [
    (LAGS, "lag: [0, 4]", "19:5: matrix.lag.lag: unknown key; did you mean matrix.lag.lags?"),
    (LAGS, "lags: [0, -4]", "19:11: matrix.lag.lags.1: found -4; needs a whole number (0 or more)"),
    (LAGS, "mode: asink", "19:11: matrix.lag.mode: found asink (a text); needs lagged, async or sync"),
    (LAGS, "mode: sync\n    lags: [1]", "20:11: matrix.lag.lags: mode sync has no lag; needs [0]"),
    ("solved: 475, ", "", "8:13: tasks.cartpole.solved: missing; needs a number"),
    ("[cartpole, pendulum]", "[cartpol]", "18:12: matrix.lag.tasks: no task 'cartpol'; there are: cart"),
    ("batch_slots: 1,", "batch_slot: 1,", "5:13: learner.batch_slot: unknown key; did you mean learner."),
    ("horizon: 16", "horizon: no", "4:22: rollout.horizon: found no (a text); needs a whole number"),
    ("tis_cap: 8.0", "tis_cup: 8.0", "14:29: learner.tis_cup: unknown key; did you mean learner.tis"),
    ("[none, capped]", "[nun, capped]", "20:18: learner.correction: found nun (a text); needs vtra"),
    ("{name: cartpole}", "{name: cartpul}", "8:37: sim.name: no simulator 'cartpul'; there are: ban"),
    ("{name: pendulum}", "{name: pendulum, mass: 2}", "10:38: sim.mass: pendulum has no such parameter"),
    (STOP, "mode: sync", "6:3: base.mode: belongs to the matrix"),
    (STOP, "stop: {steps: 1000, score: 99}", "6:30: stop.score: found 99; needs 475, the score whose ti"),
    (STOP, "stop: {}", "8:24: tasks.cartpole.settings: needs stop.steps, the budget"),
    ("tuning: {", "other: {", "15:1: other: unknown key"),
    ("seeds: [1, 2, 3]", "seeds: [1, 101]", "21:12: matrix.lag.seeds: 101 is a seed of `tuning`"),
    ("{kind: difference,", "{kind: ratio, margin: 1.0,", "24:17: primary.does it help: ratio has no use"),
    ("{kind: difference,", "{kind: equivalence,", "24:17: primary.does it help: equivalence needs a ma"),
    ("correction: none, lag", "corection: none, lag", "did you mean primary.does it help.b.correction?"),
    ("none, lag: 4}}", "none, lag: 5}}", "24:72: primary.does it help.b: no cell of the matrix is meant"),
    ("study: {name: s}", "study: [", "s.yaml:3:12: not readable as YAML: "),
]


@pytest.mark.parametrize(("old", "new", "said"), WRONG)
def test_what_is_wrong_is_said_with_its_place_and_what_would_be_right(tmp_path, capsys, old, new, said):
    path = write(tmp_path, old, new)
    assert stress.main([str(path), "--list", f"study.dir={tmp_path}"]) == exits.CONFIG
    found = capsys.readouterr().err
    assert found.startswith(str(path)), found
    assert said in found.splitlines()[0], found
    assert not (tmp_path / "s").exists()


def test_an_override_takes_the_place_of_what_the_file_says(tmp_path, capsys):
    path = write(tmp_path)
    assert stress.main([str(path), "--list", "matrix.lag.lags=[0, 4, no]"]) == exits.CONFIG
    assert "override 'matrix.lag.lags=[0, 4, no]'" in capsys.readouterr().err


def test_a_missing_native_part_is_named_and_so_is_a_file_that_is_not_there(tmp_path, capsys, monkeypatch):
    assert stress.main([str(tmp_path / "none.yaml")]) == exits.USAGE
    assert "none.yaml: no such file or directory" in capsys.readouterr().err

    def missing():
        raise native.NativeError("producers/producer is missing; run: make build")

    monkeypatch.setattr(native, "check_abi", missing)
    assert stress.main([str(write(tmp_path)), "--list"]) == exits.MISSING
    assert capsys.readouterr().err == "stress: producers/producer is missing; run: make build\n"


def test_a_full_disk_stops_the_study_and_blames_no_cell(tmp_path, monkeypatch):
    kept = store.Store(tmp_path)
    kept.require_room()
    monkeypatch.setattr(store, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(store.Unavailable, match=r"bytes of disk are free, needs"):
        kept.require_room()


def test_every_combination_is_one_cell_with_the_settings_of_base_task_and_arm(tmp_path):
    matrix = Matrix(read(write(tmp_path)), MACHINE)
    cells = matrix.main({})
    assert len(cells) == len({cell.id for cell in cells}) == 2 * 2 * 2 * 3
    assert len(matrix.tuning) == 2 * 2 * 2 * 2 * 2
    (cell,) = (one for one in matrix.tuning if str(one) == "pendulum lagged 4 capped rate 0.001 seed 102")
    settings = cell.prepare(tmp_path, MACHINE).config
    assert (settings.mode, settings.staleness.exact) == ("lagged", 4)
    assert (settings.learner.correction, settings.learner.tis_cap) == ("tis", 8.0)
    assert settings.learner.learning_rate == config.Schedule(start=1e-3, end=0.0, steps=1000)
    assert (settings.run.seed, settings.producers.agents, settings.sim.name) == (102, 4, "pendulum")


def test_a_cell_is_the_same_in_two_blocks_and_another_with_any_other_setting(tmp_path):
    again = "tasks: [cartpole], lags: [4], corrections: [none], seeds: [3], learning_rates: tuned"
    twice = f"matrix:\n  again: {{{again}}}"
    ids = {cell.id for cell in Matrix(read(write(tmp_path)), MACHINE).tuning}
    more = {cell.id for cell in Matrix(read(write(tmp_path, "matrix:", twice)), MACHINE).tuning}
    other = {cell.id for cell in Matrix(read(write(tmp_path, "horizon: 16", "horizon: 32")), MACHINE).tuning}
    assert more == ids
    assert ids.isdisjoint(other)


def record(cell, score, status="done"):
    curve = {"steps": [500, 1000], "seconds": [1.0, 2.0], "score": [None, score]}
    return cell.facts | {"status": status, "curve": curve, "evaluated": None}


def test_the_learning_rate_with_the_best_mean_over_the_tuning_seeds_is_chosen(tmp_path):
    matrix = Matrix(read(write(tmp_path)), MACHINE)
    worth = {(3e-4, 101): 100, (3e-4, 102): 120, (1e-3, 101): 400, (1e-3, 102): 500}
    kind = matrix.tuning[0].kind
    cells = [cell for cell in matrix.tuning if cell.kind is kind]

    def chosen(**failed):
        records = {
            cell.id: record(cell, worth[cell.learning_rate, cell.seed], failed.get(f"s{cell.seed}", "done"))
            for cell in cells
        }
        return matrix.choose(records)

    assert chosen() == {kind.identity: 1e-3}
    assert matrix.choose({}) == {}
    assert chosen(s101="failed", s102="failed") == {kind.identity: 3e-4}
    decided = [cell for cell in matrix.main(chosen()) if cell.learning_rate is not None]
    assert [(cell.kind.tuning, cell.learning_rate) for cell in decided] == [(kind, 1e-3)] * 3


def test_an_asynchronous_cell_takes_the_learning_rate_of_the_same_lag_and_the_whole_machine(tmp_path):
    path = write(tmp_path, "    lags: [0, 4]", "    mode: async\n    lags: [1]")
    path.write_text(path.read_text().replace("lag: 4", "lag: 1"))
    matrix = Matrix(read(path), MACHINE)
    assert {(cell.kind.mode, cell.kind.lag) for cell in matrix.tuning} == {("lagged", 1)}
    assert all(cell.kind.exclusive for cell in matrix.main({}))
    assert not any(cell.kind.exclusive for cell in matrix.tuning)


def line(steps, score=None, **figures):
    return {"steps": steps, "seconds": steps / 10, "score_mean": score, "episodes": steps // 10} | figures


def test_a_curve_has_a_point_for_equal_shares_of_the_steps_and_diagnostics_are_means_or_largest_values():
    lines = [line(i + 1, score=float(i), ratio_max=float(i), kl=float(i), version=i) for i in range(1000)]
    found = collect.curves(lines)
    steps = found["curve"]["steps"]
    assert len(steps) == collect.POINTS
    assert steps[-1] == 1000
    assert all(abs(b - a - 1000 / collect.POINTS) <= 1 for a, b in itertools.pairwise(steps))
    first = steps[0]
    assert found["curve"]["score"][0] == first - 1
    assert found["diagnostics"]["ratio_max"][0] == first - 1
    assert found["diagnostics"]["kl"][0] == (first - 1) / 2
    assert "version" not in found["diagnostics"]
    assert collect.curves([])["curve"]["steps"] == []


def test_a_threshold_is_reached_by_two_windows_that_share_no_episode():
    lines = [line(100, 50.0), line(200, 480.0), line(250, 490.0), line(260, 10.0), line(310, 480.0)]
    assert collect.solved_at(lines, 475, 10) == {"solved_at_steps": 310, "solved_at_seconds": 31.0}
    assert collect.solved_at(lines, 475, 5) == {"solved_at_steps": 250, "solved_at_seconds": 25.0}
    lines[1]["solved_at_seconds"] = 19.5
    assert collect.solved_at(lines, 475, 10) == {"solved_at_steps": 200, "solved_at_seconds": 19.5}
    del lines[1]["solved_at_seconds"]
    assert collect.solved_at(lines, 475, 100) == {"solved_at_steps": None, "solved_at_seconds": None}


def test_the_page_names_every_key_of_a_study_file_and_of_a_cell():
    page = (native.ROOT / "docs" / "stress.md").read_text()
    models = (schema.StudySection, schema.Task, schema.Block, schema.Tuning, schema.Contrast, schema.Study)
    keys = {name for model in models for name in model.model_fields}
    keys |= set(collect.NOTHING) | {"status", "why", "exclusive", "started", "finished", "code"}
    assert [key for key in sorted(keys) if f"`{key}" not in page and f"{key}:" not in page] == []


def test_a_learning_rate_that_is_chosen_at_some_lags_serves_the_lags_below_them(tmp_path):
    path = write(tmp_path, "seeds: [101, 102]}", "seeds: [101, 102], lags: [0, 8]}")
    path.write_text(path.read_text().replace("lags: [0, 4]", "lags: [0, 1, 4, 8, 16]"))
    text = path.read_text().replace("solved: 475,", "solved: 475, learning_rates: [5e-3],")
    path.write_text(text)
    matrix = Matrix(read(path), MACHINE)
    tuned = {cell.kind.lag: cell.kind.tuning.lag for cell in matrix.main({}) if cell.kind.tuning}
    assert tuned == {0: 0, 1: 8, 4: 8, 8: 8, 16: 8}
    rates = {(cell.kind.task, cell.learning_rate) for cell in matrix.tuning}
    assert rates == {("cartpole", 5e-3), ("pendulum", 3e-4), ("pendulum", 1e-3)}


def test_a_task_may_have_other_candidates_at_a_lag_at_which_learning_rates_are_chosen(tmp_path):
    path = write(tmp_path, "seeds: [101, 102]}", "seeds: [101, 102], lags: [0, 4]}")
    text = path.read_text().replace("solved: 475,", 'solved: 475, learning_rates_at: {"4": [5e-5]},')
    path.write_text(text)
    tuning = Matrix(read(path), MACHINE).tuning
    rates = {(one.kind.lag, one.learning_rate) for one in tuning if one.kind.task == "cartpole"}
    assert rates == {(0, 3e-4), (0, 1e-3), (4, 5e-5)}

    path.write_text(text.replace('"4": [5e-5]', '"5": [5e-5]'))
    with pytest.raises(config.ConfigError, match=r"learning_rates_at\.5: nothing is tuned .*lags: 0, 4"):
        read(path)


def test_blocks_are_run_in_the_order_of_the_file_and_their_cells_seed_by_seed(tmp_path):
    given = "tasks: [cartpole], lags: [8, 2], corrections: [none], seeds: [9, 7], learning_rates: [1e-3]"
    matrix = Matrix(read(write(tmp_path, "matrix:", f"matrix:\n  first: {{{given}}}")), MACHINE)
    stages = [stage({}) for stage in matrix.stages]
    assert [len(cells) for cells in stages] == [0, 4, 32, 24]
    assert [(cell.seed, cell.kind.lag) for cell in stages[1]] == [(9, 8), (9, 2), (7, 8), (7, 2)]
    assert {cell.kind.purpose for cell in stages[2]} == {"tuning"}
    assert [cell.seed for cell in stages[3]] == [1] * 8 + [2] * 8 + [3] * 8


def test_a_worker_that_died_or_has_not_finished_is_lent_to_no_other_cell(tmp_path, monkeypatch):
    class Worker:
        """One that does as it is told here."""

        def __init__(self, log):
            self.returncode, self.busy, self.killed = None, False, False

        def kill(self):
            self.killed = True

    monkeypatch.setattr(pool, "Worker", Worker)
    workers = pool.Pool(tmp_path / "log")
    first, second = workers.lend(2)
    workers.give_back([first])
    assert workers.lend(1) == [first]
    second.busy = True
    workers.give_back([first, second])
    assert second.killed
    first.returncode = -9
    (third,) = workers.lend(1)
    assert third not in (first, second)
    assert first.killed
    workers.close()
    assert third.killed


def test_a_study_shows_how_far_it_is_and_how_long_it_takes_yet():
    report = progress.Report(
        name="s",
        done=34,
        failed=2,
        planned=504,
        seconds=100.0,
        cell_seconds=3.14,
        left_seconds=3723.0,
        running=[("cartpole lagged 8 vtrace seed 3", 0.45)],
    )
    said = io.StringIO()
    progress.PlainDisplay(said).show(report)
    facts = "cells=34/504 failed=2 seconds=100 seconds_a_cell=3.1 left=1:02:03"
    assert said.getvalue() == facts + "\n"
    drawn = io.StringIO()
    Console(file=drawn, width=100).print(progress.picture(report))
    assert "34 of 504 cells, 2 failed" in drawn.getvalue()
    assert "cartpole lagged 8 vtrace seed 3  #########...........  45%" in drawn.getvalue()
    assert progress.clock(None) == "-"
