"""The run file: what it may say, and what is said of it when it is wrong."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import config

ROOT = Path(__file__).resolve().parent.parent
MINIMAL = "sim: {name: cartpole}\n"


@pytest.fixture
def problems(tmp_path, monkeypatch):
    """Reads a text as run.yaml and returns what is wrong with it."""
    monkeypatch.chdir(tmp_path)

    def check(text, *overrides, cores=2):
        Path("run.yaml").write_text(text)
        with pytest.raises(config.ConfigError) as caught:
            config.read("run.yaml", overrides, cores=cores)
        return caught.value.problems

    return check


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def parse(text=MINIMAL, *overrides, cores=2):
        Path("run.yaml").write_text(text)
        return config.read("run.yaml", overrides, cores=cores)

    return parse


# Places and words


def test_every_problem_is_reported_at_once_with_its_place(problems):
    text = "sim:\n  name: cartpole\nlearner:\n  epochs: many\n  gamma: 1.5\nrollout: {horizon: 0}\n"
    assert problems(text) == [
        "run.yaml:4:11: learner.epochs: found many (a text); needs a whole number (1 or more)",
        "run.yaml:5:10: learner.gamma: found 1.5; needs a number (0 or more and 1 or less)",
        "run.yaml:6:20: rollout.horizon: found 0; needs a whole number (1 or more)",
    ]


@pytest.mark.parametrize(
    ("text", "place", "meant"),
    [
        ("learner: {learning_rat: 1}", "1:11", "learner.learning_rate"),
        ("learner: {lr: 1}", "1:11", "learner.learning_rate"),
        ("horizon: 64", "1:1", "rollout.horizon"),
        ("producer: {count: 1}", "1:1", "producers"),
        ("stop: {max_steps: 1}", "1:8", "stop.steps"),
        ("learner: {learning_rate: {start: 1, end: 0, step: 5}}", "1:45", "learner.learning_rate.steps"),
        ("learner: {batch_slots: 2, batch-slots: 3}", "1:27", "learner.batch_slots"),
    ],
)
def test_an_unknown_key_names_its_place_and_the_nearest_valid_one(problems, text, place, meant):
    (problem,) = problems(f"{text}\n{MINIMAL}")
    key = problem.split(": ")[1]
    assert problem == f"run.yaml:{place}: {key}: unknown key; did you mean {meant}?"


def test_a_missing_key_is_named(problems):
    assert problems("mode: sync\n") == ["run.yaml: sim: missing; needs a section of name"]
    assert problems("sim: {fps: 3}\n") == ["run.yaml:1:6: sim.name: missing; needs a text"]


def test_a_duplicate_key_names_both_lines(problems):
    text = MINIMAL + "learner:\n  epochs: 1\n  epochs: 2\n"
    assert problems(text) == ["run.yaml:4:3: learner.epochs: given a second time, first in line 3"]
    assert problems(MINIMAL * 2) == ["run.yaml:2:1: sim: given a second time, first in line 1"]


def test_a_section_that_is_a_value_is_named(problems):
    (problem,) = problems(MINIMAL + "ring: 5\n")
    assert problem == "run.yaml:2:7: ring: found 5; needs a section of slots, full"


def test_an_empty_limit_does_not_lift_the_bound(problems, read):
    (problem,) = problems(MINIMAL + "staleness:\n  limit:\n")
    assert problem.endswith("staleness.limit: found nothing; needs a whole number (0 or more) or none")
    assert read(MINIMAL + "staleness: {limit: none}\n").config.staleness.limit is None


def test_text_that_is_no_yaml_is_named_with_its_line(problems):
    (problem,) = problems(MINIMAL + "learner: {epochs: 1\nring: ]\n")
    assert re.match(r"run.yaml:\d+:\d+: not readable as YAML: ", problem)


def test_bytes_that_are_no_utf8_are_named_with_their_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"sim:\n  name: \xff\n")
    with pytest.raises(config.ConfigError, match=r"run.yaml:2: byte 0xff is not UTF-8"):
        config.read(path)


def test_a_file_that_is_not_there_is_unreadable_not_wrong(tmp_path):
    with pytest.raises(config.Unreadable, match="no such file"):
        config.read(tmp_path / "absent.yaml")
    with pytest.raises(config.Unreadable, match="is a directory"):
        config.read(tmp_path)


# YAML 1.2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e6", 1e6),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("+5", 5),
        (".5", 0.5),
        ("-1.", -1.0),
        ("1:30", "1:30"),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("1_000", "1_000"),
        ("2001-12-14", "2001-12-14"),
        ("0b11", "0b11"),
        ("e5", "e5"),
        ("=", "="),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("-.inf", float("-inf")),
        ("[a, 1]", ["a", 1]),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    tree = config.parse_yaml(f"key: {text}", "x")
    assert not tree.problems
    assert tree.value["key"] == value
    assert type(tree.value["key"]) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system [ls]",
        "!custom 1",
        "!!int abc",
        "!!set {a}",
        "!!binary aGk=",
        "!!timestamp 1",
    ],
)
def test_tags_beyond_plain_values_are_refused(text):
    tree = config.parse_yaml(f"key: {text}", "x")
    assert tree.problems, tree.value


def test_aliases_are_allowed_but_bounded():
    tree = config.parse_yaml("a: &x {b: 1}\nc: *x\n", "x")
    assert (tree.value, tree.problems) == ({"a": {"b": 1}, "c": {"b": 1}}, [])
    bomb = "a0: &a0 [1, 1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    assert "aliases expand" in config.parse_yaml(bomb, "x").problems[0][1]
    assert config.parse_yaml("a: &a [*a]\n", "x").problems


def test_deep_nesting_long_numbers_and_big_files_are_refused(tmp_path):
    assert "nested deeper" in config.parse_yaml("[" * 5000, "x").problems[0][1]
    assert "digits" in config.parse_yaml("a: " + "9" * 5000, "x").problems[0][1]
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL + "#" * config.MAX_FILE_BYTES)
    with pytest.raises(config.ConfigError, match=r"\d+ bytes; needs"):
        config.read(path)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_but_never_crashes(text):
    config.parse_yaml(text, "x")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(
            exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028\u2029\ufeff\ufffe\uffff"
        )
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{3,8}", fullmatch=True), inner)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_what_is_written_is_read_back_as_it_was(value):
    tree = config.parse_yaml("key: " + config.emit(value), "x")
    assert not tree.problems
    assert tree.value["key"] == value


# Overrides


def test_overrides_go_before_the_file_and_are_parsed_as_yaml(read):
    document = read(
        MINIMAL + "learner: {epochs: 1, learning_rate: 1e-3}\n",
        "learner.epochs=3",
        "run.name=1e5x",
        "policy.hidden=[32, 16]",
        "mode=sync",
        "staleness.limit=none",
        "stop.steps=1e6",
    )
    settings = document.config
    assert (settings.learner.epochs, settings.learner.learning_rate) == (3, 1e-3)
    assert (settings.policy.hidden, settings.mode, settings.staleness.limit) == ((32, 16), "sync", None)
    assert settings.stop.steps == 1_000_000
    assert document.origin(("learner", "epochs")) == "override 'learner.epochs=3'"
    assert document.origin(("learner", "learning_rate")) == "run.yaml:2"
    assert document.origin(("learner", "gamma")) == "default"


def test_an_override_may_reach_into_a_schedule(read):
    settings = read(
        MINIMAL, "learner.learning_rate.start=1", "learner.learning_rate.end=0", "stop.steps=9"
    ).config
    assert settings.learner.learning_rate == config.Schedule(start=1, end=0, steps=9)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("learner.epochs", "needs the form section.key=value"),
        ("=3", "needs the form section.key=value"),
        ("learner..epochs=3", "needs the form section.key=value"),
        ("learner.epochs=many", "learner.epochs: found many (a text); needs a whole number (1 or more)"),
        ("watch.worlds=1e99", "watch.worlds: found 1e+99; needs a whole number (1 or more and 1000 or less)"),
        ("learner.epoch=3", "learner.epoch: unknown key; did you mean learner.epochs?"),
        ("mode.kind=3", "mode is not a section but sync (a text)"),
        ("learner.epochs=[", "not readable as YAML: "),
    ],
)
def test_a_wrong_override_is_named_instead_of_a_line(problems, override, text):
    (problem,) = problems(MINIMAL + "mode: sync\n", override)
    assert problem.startswith(f"override {override!r}: {text}")


# What has to fit together


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["ring.slots=2", "learner.batch_slots=4"],
            "ring.slots: 2 producers x 2 slots = 4 slots, but batch_slots + "
            "producers = 6 are needed, since a batch stays leased while producers write the next; "
            "needs 3 or more",
        ),
        (["ring.full=drop_oldest"], "ring.full: drop_oldest needs staleness.limit: none"),
        (["mode=sync", "ring.full=drop_newest"], "ring.full: mode sync gives every slot its version"),
        (["mode=sync", "weights.pickup=step"], "weights.pickup: mode sync acts every slot with one version"),
        (
            ["mode=lagged", "learner.batch_slots=3"],
            "learner.batch_slots: mode lagged takes equally many slots",
        ),
        (["mode=sync", "staleness.exact=1"], "staleness.exact: belongs to mode lagged, but the mode is sync"),
        (["supervisor.min_producers=3"], "supervisor.min_producers: 3 of 2 producers; needs 2 or less"),
        (
            ["supervisor.min_producers=1", "learner.batch_slots=5"],
            "supervisor.min_producers: 1 producers x 4 slots = 4 "
            "slots, but learner.batch_slots + min_producers = 6 are needed; needs 2 or more",
        ),
        (["learner.targets=minibatch", "learner.epochs=2"], "learner.targets: minibatch takes targets from"),
        (
            ["learner.targets=minibatch", "learner.correction=none"],
            "learner.targets: minibatch has no policy from",
        ),
        (
            ["learner.proximal=ewma"],
            "learner.proximal: ewma belongs to the corrections decoupled, tis, mis, none, but the",
        ),
        (
            ["learner.proximal=ewma", "learner.correction=tis", "learner.loss=native"],
            "learner.loss: native has no form of learner.proximal: ewma",
        ),
        (
            ["learner.targets=minibatch", "learner.ess_learning_rate=true"],
            "learner.ess_learning_rate: takes the ratios of the policy at batch start",
        ),
        (
            ["learner.targets=minibatch", "learner.correction=decoupled"],
            "learner.targets: minibatch has no policy from",
        ),
        (
            ["learner.loss=native", "learner.correction=m2po"],
            "learner.loss: native has no form of correction m2po; needs torch or auto",
        ),
        (
            ["learner.compile=true", "policy.recurrent=lstm"],
            "learner.compile: a recurrent policy (lstm) would be compiled step by step, for minutes; "
            "needs false",
        ),
        (["learner.minibatches=7"], "learner.minibatches: 2 slots x 1024 agents = 2048 segments"),
        (["learner.c_clip=2"], "learner.c_clip: found 2; needs 1 (learner.rho_clip) or less"),
        (
            ["learner.minibatch_parts=3"],
            "learner.minibatch_parts: a minibatch of 256 segments of 64 steps cannot be divided by 3",
        ),
        (["learner.burn_in=4"], "learner.burn_in: warms up the state of a recurrent policy"),
        (
            ["learner.burn_in=64", "policy.recurrent=lstm"],
            "learner.burn_in: 64 of the 64 steps of a segment (rollout.horizon) would leave none to train "
            "on; needs 63 or less",
        ),
        (
            ["learner.count=3", "learner.batch_slots=3"],
            "learner.count: every learner has equally many producers, but 2 cannot be divided by 3",
        ),
        (
            ["learner.count=2", "learner.batch_slots=3"],
            "learner.batch_slots: every learner has an equal part of a batch, but 3 slots cannot be divided",
        ),
        (
            ["learner.count=2", "learner.minibatches=2048"],
            "learner.minibatches: 1 slots x 1024 agents = 1024 segments of 64 steps for each learner cannot",
        ),
        (
            ["learner.count=2", "supervisor.min_producers=1"],
            "supervisor.min_producers: 1 producers for 2 learners (learner.count), of which each needs one; "
            "needs 2 or more",
        ),
        (
            ["policy.placement=server", "ring.full=drop_oldest", "staleness.limit=none"],
            "ring.full: an inference server writes into slots alone",
        ),
        (["policy.placement=server", "server.count=3"], "server.count: every server acts for equally many"),
        (["policy.placement=producer", "policy.module=a.b:C"], "policy.placement: a producer runs no torch"),
        (["policy.module=a.b:C", "policy.normalize_obs=true"], "policy.normalize_obs: is for described"),
        (["policy.module=a.b:C", "learner.normalize_value=true"], "learner.normalize_value: is for"),
        (["policy.module=a.b"], "policy.module: found a.b"),
        (["producers.count=2", "archive.rings=[1,2]"], "archive.rings: 2 producers have the rings 0 to 1"),
        (["archive.total_bytes=1GB"], "archive.total_bytes: 1000000000 bytes; needs two shards"),
        (["learner.max_lag=3"], "learner.max_lag: masks steps that staleness.limit already keeps out"),
        (
            ["learner.learning_rate.start=1", "learner.learning_rate.end=0"],
            "learner.learning_rate: a schedule needs",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(problems, overrides, problem):
    found = problems(MINIMAL, *overrides)
    assert len(found) == 1
    assert found[0].split(": ", 1)[1].startswith(problem)


def test_a_limit_that_the_rings_cannot_reach_is_a_warning(read):
    (warning,) = read(MINIMAL, "staleness.limit=5").warnings
    assert "staleness.limit 5 cannot be reached" in warning
    assert "at most 3 versions' worth" in warning
    assert not read(MINIMAL, "staleness.limit=3").warnings


def test_a_lag_that_full_rings_go_beyond_is_a_warning(read):
    free = MINIMAL, "staleness.limit=none"
    (warning,) = read(*free, "learner.max_lag=2").warnings
    assert "learner.max_lag 2: the 8 slots of full rings are up to 3 versions old" in warning
    assert not read(*free, "learner.max_lag=3").warnings
    assert not read(*free, "learner.max_lag=2", "ring.full=drop_oldest").warnings


def test_what_depends_on_the_machine_or_other_keys_is_filled_in(read):
    settings = read(MINIMAL, "learner.batch_slots=9", "ring.slots=4", cores=5).config
    assert (settings.producers.count, settings.supervisor.min_producers) == (5, 3)
    assert (settings.run.name, settings.weights.pickup, settings.policy.placement) == (
        "run",
        "step",
        "producer",
    )
    exact = read(MINIMAL, "mode=sync", "learner.batch_slots=5", cores=5).config
    assert (exact.supervisor.min_producers, exact.weights.pickup, exact.lag_limit) == (5, "slot", 0)
    assert read(MINIMAL, "mode=lagged", "staleness.exact=2").config.lag_limit == 2


def test_sizes_carry_units(read, problems):
    for text, size in (("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("4096", 4096), ("10B", 10)):
        assert read(MINIMAL, f"monitor.log_bytes={text}").config.monitor.log_bytes == size
    assert (
        "needs a whole number (1 or more) or a size such as 64MiB"
        in problems(MINIMAL, "monitor.log_bytes=64Mb")[0]
    )


# The simulator's own parameters

SPEC = {
    "name": "toy",
    "agents": 4,
    "params": [
        {"name": "frameskip", "help": "frames a step", "kind": "int", "default": 4, "low": 1, "high": 16},
        {"name": "gravity", "help": "m/s²", "kind": "float", "default": 9.8, "low": 0, "high": 100},
        {"name": "hard", "help": "for experts", "kind": "bool", "default": 0, "low": 0, "high": 1},
    ],
}


def test_simulator_parameters_are_checked_with_the_marks_of_the_file(read):
    document = read("sim:\n  name: toy\n  frameskp: 2\n  gravity: 101\n  hard: 1\n", "sim.frameskip=2.5")
    with pytest.raises(config.ConfigError) as caught:
        config.check_sim(document, SPEC)
    assert caught.value.problems == [
        "run.yaml:3:3: sim.frameskp: toy has no such parameter; did you mean sim.frameskip?",
        "run.yaml:4:12: sim.gravity: found 101; needs a number from 0 to 100 (m/s²)",
        "run.yaml:5:9: sim.hard: found 1; needs true or false (for experts)",
        "override 'sim.frameskip=2.5': sim.frameskip: found 2.5; needs a whole number from 1 to 16 "
        "(frames a step)",
    ]


def test_simulator_parameters_have_their_defaults_and_values(read):
    document = read("sim: {name: toy, frameskip: 2, hard: true}\n")
    values = config.check_sim(document, SPEC)
    assert values == {"frameskip": 2, "gravity": 9.8, "hard": True}
    assert [type(value) for value in values.values()] == [int, float, bool]


def test_agents_must_fill_whole_worlds(read):
    assert config.check_agents(read(), SPEC) == 256
    with pytest.raises(
        config.ConfigError, match=r"producers.agents: found 6; needs a multiple of 4, the agents of one"
    ):
        config.check_agents(read(MINIMAL, "producers.agents=6", "learner.minibatches=1"), SPEC)


# Round trips and documents


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**60),
    horizon=st.integers(1, 10**6),
    limit=st.none() | st.integers(0, 9),
    rate=st.floats(0, 10),
    hidden=st.lists(st.integers(1, 999), max_size=4),
    score=st.none() | st.floats(-1e9, 1e9),
    clip=st.none() | st.floats(1e-9, 10),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    directory=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=10),
)
def test_a_resolved_configuration_is_read_back_as_it_was(
    tmp_path_factory, seed, horizon, limit, rate, hidden, score, clip, name, directory
):
    folder = tmp_path_factory.mktemp("resolved")
    (folder / "run.yaml").write_text(MINIMAL)
    plain = config.read(folder / "run.yaml", cores=2).config
    changed = plain.model_copy(
        update={
            "run": config.Run(name=name, seed=seed, dir=directory),
            "rollout": config.Rollout(horizon=horizon),
            "staleness": config.Staleness(limit="none" if limit is None else limit),
            "policy": plain.policy.model_copy(update={"hidden": tuple(hidden)}),
            "learner": plain.learner.model_copy(update={"learning_rate": rate, "value_clip": clip}),
            "stop": config.Stop(score=score),
        }
    )
    (folder / "resolved.yaml").write_text(config.dump_resolved(changed), encoding="utf-8")
    assert config.load_resolved(folder / "resolved.yaml") == changed


def test_a_learner_whose_producers_sleep_takes_the_cores_that_the_run_may_use(read):
    for mode, threads in (("sync", 3), ("lagged", 3), ("async", "auto")):
        assert read(MINIMAL, f"mode={mode}", "producers.count=1", cores=3).config.learner.threads == threads
    assert (
        read(MINIMAL, "mode=sync", "learner.threads=2", "producers.count=1", cores=3).config.learner.threads
        == 2
    )


def test_the_configuration_cannot_be_changed(read):
    with pytest.raises(Exception, match="frozen"):
        read().config.learner.epochs = 2


RUN_FILES = sorted(path for path in ROOT.glob("*.yaml") if "\nstudy:" not in path.read_text())


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.name)
def test_the_run_files_of_this_repository_are_good(path):
    assert not config.read(path, cores=2).warnings


def test_every_key_is_documented():
    whole = config.schema()
    for name, definition in whole["$defs"].items():
        for key, node in definition["properties"].items():
            assert node.get("description"), f"{name}.{key}"


def test_the_reference_in_docs_is_current():
    text = (ROOT / "docs/configuration.md").read_text()
    assert text.partition("<!-- keys -->\n")[2] == config.markdown(), "python -m config --docs"


def test_the_schema_in_docs_is_current():
    assert json.loads((ROOT / "docs/run.schema.json").read_text()) == config.schema(), (
        "python -m config --schema"
    )


def test_a_learner_that_compiles_has_more_time_before_it_counts_as_hung(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("sim: {name: breakout}\n")
    assert config.load(str(file)).supervisor.hung_seconds == 60
    assert config.load(str(file), ["learner.compile=true"]).supervisor.hung_seconds == 300
    assert config.load(str(file), ["supervisor.hung_seconds=7"]).supervisor.hung_seconds == 7
