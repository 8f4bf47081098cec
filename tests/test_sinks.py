"""Sinks: what reaches TensorBoard and Weights & Biases is what metrics.jsonl has, and nothing that becomes of
them reaches training."""

import contextlib
import json
import signal
import struct

import pytest
from command import CARTPOLE

import supervisor
from monitor import rundir, sinks
from monitor.lines import Follower
from producers import prepare


def line(version, steps=None, time=None, **figures):
    steps, time = 100 * version if steps is None else steps, float(version if time is None else time)
    known = {"version": version, "steps": steps, "time": time, "score_mean": None, "loss_policy": 1 / version}
    return known | figures


class Kept:
    """A sink that keeps what it gets; `fails_at`: a version that it does not take; `before`: lines that
    others have got."""

    def __init__(self, fails_at=None, before=0):
        self.got, self.closed, self.fails_at, self.before = [], False, fails_at, before

    def log(self, number, line):
        assert number == len(self.got) + self.before
        if line["version"] == self.fails_at:
            raise OSError("no")
        self.got.append(line["version"])

    def close(self):
        self.closed = True


def write(path, lines):
    with path.open("a") as file:
        file.write("".join(json.dumps(one) + "\n" for one in lines))


def pass_on(path, sink, position, *, interval_seconds=1.0, turns=1):
    """What is there by now, as the process does it."""
    asked = iter([False] * turns + [True])
    follower = Follower(path)
    try:
        sinks.pass_on(follower, sink, position, interval_seconds=interval_seconds, kept=lambda: None,
                      over=lambda: next(asked), beat=lambda: None)  # fmt: skip
    finally:
        follower.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(sinks, "POLL_SECONDS", 0.001)


def test_lines_are_passed_on_at_their_interval_and_the_last_one_always(tmp_path):
    write(tmp_path / "x", [line(n, time=100 + n / 10) for n in range(1, 36)])
    sink = Kept()
    pass_on(tmp_path / "x", sink, sinks.Position())
    assert sink.got == [1, 11, 21, 31, 35]
    assert sink.closed


def test_the_next_process_goes_on_behind_the_last_line_that_was_passed_on(tmp_path):
    path, position = tmp_path / "x", sinks.Position()
    write(path, [line(n) for n in range(1, 10)])
    first, second = Kept(fails_at=6), Kept(before=5)
    with pytest.raises(OSError, match="no"):
        pass_on(path, first, position)
    position.save(tmp_path / "position.json")
    pass_on(path, second, sinks.Position.load(tmp_path / "position.json"))
    assert first.got + second.got == list(range(1, 10))


def test_lines_that_are_no_update_are_left_out(tmp_path):
    path = tmp_path / "x"
    damages = [{"time": "x"}, {"time": 10**400}, *({"steps": steps} for steps in (None, 1.5, -1, 2**63))]
    write(path, [line(1), {"version": 2}, *(line(3) | damage for damage in damages), line(6)])
    sink = Kept()
    pass_on(path, sink, sinks.Position())
    assert sink.got == [1, 6]


def test_versions_that_a_resumed_run_makes_again_are_passed_on(tmp_path):
    path, position, first, second = tmp_path / "x", sinks.Position(), Kept(), Kept(before=9)
    write(path, [line(n) for n in range(1, 10)])
    pass_on(path, first, position)
    write(path, [line(n, time=100 + n) for n in range(5, 12)])
    pass_on(path, second, position)
    assert second.got == list(range(5, 12))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sent": "x", "steps": 1, "time": 1, "id": "a"}',
                                  '{"sent": 1e999, "steps": 1, "time": 1, "id": "a"}',
                                  '{"sent": 1, "steps": 1, "time": NaN, "id": "a"}'])  # fmt: skip
def test_a_damaged_position_begins_anew(tmp_path, text):
    (tmp_path / "position.json").write_text(text)
    found = sinks.Position.load(tmp_path / "position.json")
    assert (found.sent, found.steps) == (0, 0)
    assert found.id


def test_figures_are_grouped_by_the_first_word_of_their_names():
    found = sinks.figures(line(4, warm_up=True, note="x", grad_norm=float("inf")))
    assert found == {"run/version": 4.0, "run/steps": 400.0, "run/time": 4.0, "loss/loss_policy": 0.25,
                     "warm/warm_up": 1.0}  # fmt: skip


def scalars(folder):
    """{tag: {steps: value}} of the event files, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: {one.step: one.value for one in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_tensorboard_forgets_what_a_roll_back_took_away(tmp_path):
    path = tmp_path / "x"
    write(path, [line(n, loss_policy=n) for n in range(1, 9)])
    write(path, [line(n, steps=100 * (n - 5), loss_policy=n) for n in range(10, 13)])
    pass_on(path, sinks.TensorBoard(tmp_path / "tb", 0), sinks.Position())
    found = scalars(tmp_path / "tb")["loss/loss_policy"]
    assert found == {100: 1, 200: 2, 300: 3, 400: 4, 500: 10, 600: 11, 700: 12}


def history(folder):
    """The settings and {version: {figure: value}} of the runs that Weights & Biases has written there."""
    from wandb.proto import wandb_internal_pb2 as proto

    settings, found = {}, {}
    for path in sorted(folder.glob("offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = proto.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                settings = {one.key: json.loads(one.value_json) for one in record.run.config.update}
                settings |= {"id": record.run.run_id, "project": record.run.project}
            elif record.WhichOneof("record_type") == "history":
                items = record.history.item
                figures = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in items}
                found[round(figures["run/version"])] = figures
    return settings, found


def records(data):
    """Of a log as LevelDB has them: blocks of 32 KiB of pieces, each with checksum, length and kind."""
    at, begun = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        begun += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole of one, or its end
            yield begun
            begun = b""


def position(run, folder):
    """How many lines were passed on."""
    return (rundir.read_json(run.path / folder / sinks.POSITION) or {"sent": 0})["sent"]


def restarts(run):
    """Of sinks."""
    return run.status().get("restarts", {}).get("sink", 0)


def test_both_have_what_the_lines_of_a_run_say_and_nothing_that_becomes_of_them_reaches_it(start, tmp_path):
    """One fails until what is in its way is gone, and is killed later; the other stands still for a while."""
    folder = tmp_path / "runs" / "toy" / "tb"
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    run = start("sinks.tensorboard=true", "sinks.wandb=offline", "sinks.project=tests",
                "sinks.interval_seconds=0.05", "supervisor.backoff_max_seconds=0.5")  # fmt: skip
    run.when(lambda: restarts(run) >= 1 and position(run, "wandb") > 0)
    run.kill("sink", 1, signal.SIGSTOP)
    reached = run.status()["version"]
    run.until(lambda status: status["version"] > reached + 5)
    run.kill("sink", 1, signal.SIGCONT)
    assert "FileExistsError" in (run.path / "logs" / "sink-0.log").read_text()
    folder.unlink()
    run.when(lambda: position(run, "tb") > 0)
    before = run.kill("sink", 0)
    run.when(lambda: run.pid("sink", 0) not in (0, before))
    reached = {folder: position(run, folder) for folder in ("tb", "wandb")}
    run.when(lambda: all(position(run, folder) > reached[folder] + 10 for folder in reached))
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0
    assert run.summary()["state"] == "stopped"
    assert [run.summary()["restarts"][role] for role in ("learner", "producer")] == [0, 0]
    assert run.summary()["restarts"]["sink"] >= 2

    with contextlib.closing(Follower(run.path / rundir.METRICS)) as follower:
        lines = {one["version"]: one for one in follower.lines()}
    settings, logged = history(run.path / "wandb")
    shown = scalars(run.path / "tb")
    known = rundir.read_json(run.path / "wandb" / sinks.POSITION)["id"]
    assert {name: settings[name] for name in ("project", "id")} == {"project": "tests", "id": known}
    assert settings["sim"]["name"] == "cartpole"
    by_steps = {one["steps"]: one for one in lines.values()}
    for tag in ("loss/loss_value", "lag/lag_mean", "run/seconds"):
        name = tag.partition("/")[2]
        assert shown[tag] == {steps: pytest.approx(by_steps[steps][name]) for steps in shown[tag]}
        assert {version: one[tag] for version, one in logged.items()} == {
            version: pytest.approx(lines[version][name]) for version in logged
        }
    last = max(lines)
    assert (max(shown["run/seconds"]), max(logged)) == (lines[last]["steps"], last)
    assert min(len(logged), len(shown["run/seconds"])) > 10


@pytest.mark.parametrize(("override", "package"), [("sinks.wandb=offline", "wandb"),
                                                   ("sinks.tensorboard=true", "tensorboard")])  # fmt: skip
def test_a_sink_without_its_package_is_said_before_the_start(
    tmp_path, monkeypatch, capsys, override, package
):
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    monkeypatch.chdir(tmp_path)

    def nothing(name):
        raise prepare.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(prepare.importlib.metadata, "distribution", nothing)
    for arguments in (["run.yaml", override], ["run.yaml", override, "--check"]):
        assert supervisor.main(arguments) == 69
        said = capsys.readouterr().err
        assert f"sinks.{package}: needs the package {package}" in said
        assert f"pip install {package}" in said
        assert said.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["run.yaml"]
