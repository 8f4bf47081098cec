"""The author's check passes the simulators that are here and names the rule that a bad one breaks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from native import DATA, ROOT, broken, compile_simulator

from sims.check import RULES, Subject, check, main, parse_params
from sims.check import written as written_rule
from sims.loader import SimulatorError, available, load

RELAY = (DATA / "relay.c").read_text()
CARTPOLE = (ROOT / "sims" / "cartpole" / "cartpole.c").read_text()


def verdict(simulator, params, steps=200) -> dict[str, str]:
    """The line of each rule, by the name of the rule's function."""
    lines: list[str] = []
    good = check(Subject(simulator, params, steps), lines.append)
    assert len(lines) == len(RULES)
    assert good == (not any(line.startswith("FAIL") for line in lines))
    return {rule.__name__: line for rule, line in zip(RULES, lines, strict=True)}


def failures(lines: dict[str, str]) -> list[str]:
    return [name for name, line in lines.items() if line.startswith("FAIL")]


# Parameters under which random play meets every rule, and the rules that a simulator has nothing for.
OURS: dict[str, tuple[dict[str, float], list[str]]] = {
    "bandit": ({}, ["meaning", "masks", "after_truncation"]),
    "breakout": ({"max_steps": 25}, ["meaning", "masks"]),
    "cartpole": ({"max_steps": 25}, ["meaning", "masks"]),
    "memory": ({"corridor": 3, "patience": 2}, ["meaning", "masks"]),
    "pendulum": ({"max_steps": 25}, ["meaning", "masks"]),
    "realm": (
        {"width": 48, "height": 40, "agents": 8, "patience": 50, "view_width": 20, "view_height": 9},
        ["masks"],
    ),
    "slowtail": ({"mean_us": 0.5}, ["meaning", "masks", "after_truncation"]),
    "tabular": ({"max_steps": 25}, ["meaning", "masks"]),
}


def test_every_simulator_that_is_here_is_checked():
    assert sorted(OURS) == available()


@pytest.mark.parametrize("name", OURS)
def test_our_simulators_keep_every_rule(name):
    params, not_met = OURS[name]
    lines = verdict(load(name), params, steps=1500)
    assert failures(lines) == []
    assert [name for name, line in lines.items() if "not met" in line] == not_met, "no rule went untested"


@pytest.mark.parametrize("params", [{}, {"agents": 5}, {"agents": 3, "continuous": True}])
def test_many_agents_masks_and_continuous_actions_are_checked(tmp_path, params):
    lines = verdict(load(compile_simulator(RELAY, tmp_path / "relay.so")), params)
    assert failures(lines) == []
    assert ("not met" in lines["masks"]) == bool(params.get("continuous"))
    assert "not met" not in lines["after_truncation"]


def test_rules_that_the_play_never_met_are_named_so():
    lines = verdict(load("cartpole"), {}, steps=50)
    assert "not met, nothing was truncated in 50 steps" in lines["after_truncation"]
    assert "not met, no mask" in lines["masks"]


# What an author may do wrong: (old, new) in cartpole.c, the rule that must fail, and what its line must say.
WRONG = {
    "leaves a byte of the observation": (
        "for (int i = 0; i < VARIABLES; i++) obs[i] = (float)now->s[i];",
        "for (int i = 0; i < VARIABLES - 1; i++) obs[i] = (float)now->s[i];",
        "written",
        "call 0 leaves byte 12 of agent 0",
    ),
    "uses rand()": (
        "(double)rng_float(&now->random)",
        "((double)rand() / RAND_MAX)",
        "repeats",
        "rand()",
    ),
    "writes past its observation": (
        "obs[i] = (float)now->s[i];",
        "obs[i] = (float)now->s[i];\n    obs[VARIABLES] = 0.0f;",
        "written",
        "wrote outside `obs`",
    ),
    "steps on after a truncation": (
        "if (now->pending) return reset(world, io);",
        "if (now->pending) begin_episode(now);",
        "after_truncation",
        "after a truncation",
    ),
    "forgets the statistics": (
        "if (failed || timed_out) io->statistics",
        "if (timed_out) io->statistics",
        "statistics",
        "ends without 'steps'",
    ),
    "flags by another number": (
        "io->terminated[0] = 1;",
        "io->terminated[0] = 2;",
        "statistics",
        "neither 0 nor 1",
    ),
    "gives a reward that is not finite": (
        "io->rewards[0] = 1.0f;",
        "io->rewards[0] = now->steps == 9 ? NAN : 1.0f;",
        "finite",
        "reward that is not finite",
    ),
    "saves without its generator": (
        "((cartpole *)world)->now = loaded;",
        "loaded.random = ((cartpole *)world)->now.random; ((cartpole *)world)->now = loaded;",
        "saves",
        "original and copy part",
    ),
    "saves bytes that it did not set": (
        "memcpy(out, &((const cartpole *)world)->now, sizeof(state));",
        "memcpy(out, &((const cartpole *)world)->now, sizeof(state) - 8);",
        "saves",
        "did not set",
    ),
    "saves more than it says": (
        "return sizeof(state);",
        "return sizeof(state) - 8;",
        "saves",
        "more than state_bytes",
    ),
    "offers save without load": ("    .load = load,\n", "", "saves", "one is missing"),
    "has a default out of bounds": ("SIM_INT, 500, 1, 1e9", "SIM_INT, 500, 501, 1e9", "table", "out"),
    "has another name than its file": ('.name = "cartpole"', '.name = "polecart"', "table", "polecart"),
    "has a statistic without help": ('"steps that the pole stayed up"', '""', "table", "no line of help"),
    "fails": (
        "if (action != 0 && action != 1) return -1;",
        "if (now->steps == 3) return -5;",
        "written",
        "-5",
    ),
    "draws past the end of its text": (
        "    if ((size_t)length + 1 > capacity) return -1;\n    memcpy(out, frame, (size_t)length);",
        "    memset(out, 'x', capacity + 1);",
        "pictures",
        "more than its capacity",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_broken_rule_is_named(tmp_path, mistake):
    old, new, rule, message = WRONG[mistake]
    source = broken(CARTPOLE, old, new)
    source = source.replace(
        "static void begin_episode", "static rng *shared;\n\nstatic void begin_episode", 1
    )
    simulator = load(compile_simulator(source, tmp_path / "cartpole.so"))
    params = {"max_steps": 501} if rule == "table" and message == "out" else {"max_steps": 15}
    lines = verdict(simulator, params)
    assert rule in failures(lines), lines
    assert message in lines[rule]


def test_state_that_worlds_share_is_named_though_one_world_alone_behaves(tmp_path):
    source = broken(CARTPOLE, "now->steps = 0;", "now->steps = shared = 0;")
    source = broken(source, "now->steps++;", "now->steps = ++shared;")
    source = broken(
        source, "static void begin_episode", "static int32_t shared;\n\nstatic void begin_episode"
    )
    lines = verdict(load(compile_simulator(source, tmp_path / "cartpole.so")), {"max_steps": 15})
    assert "independent" in failures(lines)
    assert "repeats" not in failures(lines)
    assert "global state" in lines["independent"]


CROP = (DATA / "crop.c").read_text()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stray": 20}, "writes 2 into byte 104 of agent 0, which stays below 2"),
        ({"stray": 20, "stray_code": True}, "writes 128 into byte 107 of agent 0, which stays below 128"),
    ],
)
def test_a_byte_out_of_its_range_is_named(tmp_path, params, message):
    simulator = load(compile_simulator(CROP, tmp_path / "crop.so"))
    assert failures(verdict(simulator, {})) == []
    lines = verdict(simulator, params)
    assert failures(lines) == ["meaning"]
    assert message in lines["meaning"]


MASK = "io->mask[5 * i + r->now.step[i] % 3] = 0;"


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("for (int j = 0; j < 3; j++) io->mask[5 * i + j] = 0;", "allows no action of head 0"),
        ("io->mask[5 * i + 4] = 3;", "writes 3 into the mask"),
    ],
)
def test_a_bad_mask_is_named(tmp_path, new, message):
    simulator = load(compile_simulator(broken(RELAY, MASK, new), tmp_path / "relay.so"))
    lines = verdict(simulator, {})
    assert "masks" in failures(lines)
    assert message in lines["masks"]


def test_the_command_prints_a_line_a_rule_and_its_exit_status_says_whether_all_hold(tmp_path):
    bad = compile_simulator(
        broken(CARTPOLE, "i < VARIABLES; i++) obs", "i < 3; i++) obs"), tmp_path / "cartpole.so"
    )
    for name, status in (("cartpole", 0), (str(bad), 1)):
        command = [sys.executable, "-m", "sims.check", name, "max_steps=20", "--steps", "200"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert done.returncode == status, done.stderr
        assert len(done.stdout.splitlines()) == 1 + len(RULES)
        assert ("FAIL" in done.stdout) == bool(status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pong"], "no simulator is called 'pong'"),
        (["cartpole", "max_steps"], "not key=value"),
        (["cartpole", "max_steps=many"], "not key=number"),
        (["cartpole", "max_steps=0"], "outside 1 to"),
    ],
)
def test_bad_arguments_are_explained_with_exit_status_2(capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("seed", "status"), [("13", "FAIL"), ("14", " ok ")])
def test_the_world_that_broke_down_in_a_run_can_be_played_alone_by_its_seed(tmp_path, capsys, seed, status):
    """Here only worlds with an odd seed fail, at step 5."""
    library = compile_simulator((DATA / "faulty.c").read_text(), tmp_path / "faulty.so")
    assert main([str(library), "fault=8", "at=5", "odd=true", "--seed", seed, "--steps", "50"]) == 1
    lines = capsys.readouterr().out.splitlines()
    written = next(line for line in lines if (written_rule.__doc__ or "").strip() in line)
    assert written.startswith(status), written
    assert ("step returned -7" in written) == (status == "FAIL")


def test_parameters_are_numbers_or_truth_values():
    assert parse_params(["a=3", "b=3e-4", "c=true", "d=false"]) == {"a": 3, "b": 3e-4, "c": True, "d": False}
    with pytest.raises(SimulatorError):
        parse_params(["=3"])
