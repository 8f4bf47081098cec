"""What the loader and the host promise: the rules of ends, in one place for every simulator."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import numpy as np
import pytest
from native import DATA, ROOT, broken, compile_simulator

from sims import _abi
from sims.loader import EVALUATE, TRAIN, Grid, Simulator, SimulatorError, available, load, world_seeds


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    library = tmp_path_factory.mktemp("relay") / "relay.so"
    return load(compile_simulator((DATA / "relay.c").read_text(), library))


def zeros(worlds) -> np.ndarray:
    return np.zeros((worlds.agents, len(worlds.shape.heads)), np.int32)


@pytest.fixture(scope="module")
def crop(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    library = tmp_path_factory.mktemp("crop") / "crop.so"
    return load(compile_simulator((DATA / "crop.c").read_text(), library))


def test_the_simulators_here_are_found_by_name():
    assert {"breakout", "cartpole"} <= set(available())
    assert load("cartpole").name == "cartpole"


def test_a_simulator_describes_itself(relay):
    assert [p.name for p in relay.params] == ["agents", "continuous", "unruly", "fail_at"]
    assert relay.params[0].default == 2
    assert relay.params[1].default is False
    assert (relay.score, relay.score_index) == ("twice", 1)
    shape = relay.shape()
    assert (shape.agents, shape.obs_dtype, shape.obs_shape) == (2, np.int32, (2, 2))
    assert [head.choices for head in shape.heads] == [3, 2]
    assert shape.has_mask


def test_parameters_may_change_the_shape(relay):
    shape = relay.shape({"agents": 5, "continuous": True})
    assert shape.agents == 5
    assert not shape.discrete
    assert (shape.heads[0].low, shape.heads[0].high) == (-1, 2)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"agents": 9}, "agents = 9 is outside 1 to 8"),
        ({"agents": float("nan")}, "outside"),
        ({"agents": 1.5}, "not a whole number"),
        ({"agents": "2"}, "not a number"),
        ({"agents": True}, "not a number"),
        ({"continuous": 1}, "not true or false"),
        ({"agent": 2}, "no parameter 'agent'; there are: agents, continuous, unruly, fail_at"),
    ],
)
def test_a_wrong_parameter_is_named(relay, params, message):
    with pytest.raises(SimulatorError, match=message):
        relay.create(1, params)


def test_an_unknown_simulator_lists_those_that_exist():
    with pytest.raises(SimulatorError, match=r"'pong'.*breakout, cartpole"):
        load("pong")


def test_a_missing_library_names_the_file_and_the_command(monkeypatch, tmp_path):
    (tmp_path / "sims" / "pong").mkdir(parents=True)
    (tmp_path / "sims" / "pong" / "pong.c").touch()
    monkeypatch.setattr("sims.loader.FOLDER", tmp_path / "sims")
    monkeypatch.setattr("sims._abi.FOLDER", tmp_path / "sims")
    with pytest.raises(SimulatorError, match=r"sims/pong/pong\.so is missing: run `make build`"):
        load("pong")


def test_a_simulator_may_say_what_the_bytes_of_its_observation_mean(crop, relay):
    shape = crop.shape({"rows": 3})
    assert shape.grid == Grid(rows=3, columns=7, values=(4, 7, 2))
    assert (shape.grid.width, shape.coded, shape.obs_shape) == (63, 3, (68,))
    assert (relay.shape().grid, relay.shape().coded) == (None, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        "out->grid_planes = 17;",
        "out->grid_planes = -1;",
        "out->grid_planes = 0;",
        "out->grid_rows = 0;",
        "out->grid_columns = -7;",
        "out->grid_rows = out->grid_columns = 1 << 30;",
        "out->grid_values[1] = 0;",
        "out->grid_values[1] = 257;",
        "out->coded = CODED + PLAIN + 1;",
        "out->coded = -1;",
        "out->obs_dtype = SIM_INT8;",
        "out->obs_dims = 2, out->obs_shape[1] = 1;",
    ],
)
def test_a_meaning_that_the_observation_cannot_have_is_refused(tmp_path, wrong):
    source = broken((DATA / "crop.c").read_text(), "out->coded = CODED;", f"out->coded = CODED; {wrong}")
    with pytest.raises(SimulatorError, match="breaks a limit"):
        load(compile_simulator(source, tmp_path / "crop.so")).shape()


def test_a_library_of_another_abi_is_refused(tmp_path):
    source = broken((DATA / "relay.c").read_text(), ".abi = SIM_ABI", ".abi = SIM_ABI + 1")
    with pytest.raises(SimulatorError, match="built for ABI 4"):
        load(compile_simulator(source, tmp_path / "relay.so"))


def test_a_library_that_is_no_simulator_is_refused(tmp_path):
    with pytest.raises(SimulatorError, match="exports no sim_entry"):
        load(compile_simulator("int nothing;", tmp_path / "nothing.so"))
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(SimulatorError, match="cannot load"):
        load(tmp_path / "text.so")


def test_python_and_c_agree_on_the_layout_of_every_struct(tmp_path):
    structs = {
        "sim_param": _abi.SimParam,
        "sim_statistic": _abi.SimStatistic,
        "sim_head": _abi.SimHead,
        "sim_shape": _abi.SimShape,
        "sim_io": _abi.SimIo,
        "sim_api": _abi.SimApi,
        "host_rows": _abi.HostRows,
    }
    expected, lines = [], []
    for name, struct in structs.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            expected.append(f"{name}.{field} {getattr(struct, field).offset}")
    source = tmp_path / "layout.c"
    source.write_text('#include <stdio.h>\n#include "host.h"\nint main(void) {' + "\n".join(lines) + "}")
    program = tmp_path / "layout"
    subprocess.run(["gcc", f"-I{ROOT / 'sims'}", "-o", str(program), str(source)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


def test_worlds_of_one_seed_repeat_and_of_another_differ():
    simulator = load("breakout")
    seeds = [11, 11, 12]
    with simulator.create(3, seeds=seeds) as worlds:
        worlds.reset()
        generator = np.random.default_rng(0)
        for _ in range(300):
            worlds.step(np.repeat(generator.integers(0, 3), 3))
            assert (worlds.obs[0] == worlds.obs[1]).all()
        assert (worlds.obs[0] != worlds.obs[2]).any()


def test_a_world_has_one_seed_however_worlds_are_spread():
    whole = world_seeds(run_seed=5, worlds=10)
    assert (np.concatenate([world_seeds(5, 4), world_seeds(5, 6, first=4)]) == whole).all()


def test_seeds_of_runs_restarts_and_domains_are_disjoint():
    seeds = np.concatenate(
        [
            world_seeds(run, 1000, restart=restart, domain=domain)
            for run in (0, 1, 2)
            for restart in (0, 1)
            for domain in (TRAIN, EVALUATE)
        ]
    )
    assert len(np.unique(seeds)) == len(seeds)


# Agent 0 of relay: episodes of 3 steps; 0 terminates, 1 is truncated, 2 is both, and so on.
SCRIPT = [
    # step, (episode, step) that the observation shows, reward, terminated, truncated, valid
    (1, (0, 1), 1, 0, 0, 1),
    (2, (0, 2), 1, 0, 0, 1),
    (3, (1, 0), 1, 1, 0, 1),  # terminated: the first observation of the next episode
    (4, (1, 1), 1, 0, 0, 1),
    (5, (1, 2), 1, 0, 0, 1),
    (6, (1, 3), 1, 0, 1, 1),  # truncated: the final observation of the old one
    (7, (2, 0), 0, 0, 0, 0),  # no experience: only the first observation of the next
    (8, (2, 1), 1, 0, 0, 1),
    (9, (2, 2), 1, 0, 0, 1),
    (10, (3, 0), 1, 1, 0, 1),  # both: terminated wins
]


@pytest.mark.parametrize("unruly", [False, True])
def test_ends_follow_the_rules_whatever_the_simulator_writes(relay, unruly):
    with relay.create(1, {"agents": 1, "unruly": unruly}) as worlds:
        worlds.reset()
        for step, shown, reward, terminated, truncated, valid in SCRIPT:
            worlds.step(zeros(worlds))
            got = (
                tuple(worlds.obs[0].ravel()[1:3]),
                worlds.rewards[0],
                worlds.terminated[0],
                worlds.truncated[0],
                worlds.valid[0],
            )
            assert got == (shown, reward, terminated, truncated, valid), f"step {step}"


def test_each_finished_episode_is_recorded_once_with_return_length_and_statistics(relay):
    with relay.create(3, {"agents": 2}) as worlds:
        worlds.reset()
        actions = zeros(worlds)
        actions[:, 0] = np.arange(worlds.agents) % 3
        records = np.concatenate([worlds.step(actions) for _ in range(40)])
    for agent in range(6):
        mine = records[records["agent"] == agent]
        length = 3 + agent % 2
        # An episode takes its length, and one step more after a truncation (every third, from the second on).
        ends = np.cumsum([length + (episode % 3 == 2) for episode in range(len(mine) + 1)])
        assert ends[len(mine) - 1] <= 40 < ends[len(mine)]
        assert (mine["length"] == length).all()
        assert (mine["return"] == length * (1 + 10 * (agent % 3))).all()
        assert (mine["statistics"] == np.outer(np.arange(len(mine)), [1, 2])).all()


def test_reset_forgets_the_episodes_under_way(relay):
    with relay.create(1, {"agents": 1}) as worlds:
        worlds.reset()
        for _ in range(6):
            worlds.step(zeros(worlds))
        assert worlds.truncated[0] == 1
        worlds.reset()
        assert worlds.truncated[0] == 0
        lengths = [worlds.step(zeros(worlds))["length"].tolist() for _ in range(3)]
        assert worlds.valid[0] == 1
        assert lengths == [[], [], [3]]


def test_masks_are_ones_but_for_what_the_simulator_forbids(relay):
    with relay.create(4, {"agents": 2}) as worlds:
        worlds.reset()
        for _ in range(20):
            steps = worlds.obs[:, 1, 0]
            expected = np.ones((8, 5))
            expected[np.arange(8), steps % 3] = 0
            assert (worlds.mask == expected).all()
            worlds.step(zeros(worlds))


def test_continuous_actions_reach_the_simulator(relay):
    with relay.create(2, {"agents": 1, "continuous": True}) as worlds:
        worlds.reset()
        assert worlds.mask is None
        worlds.step(np.array([[0.5], [-0.25]]))
        assert worlds.rewards.tolist() == [1.5, 0.75]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((2, 3), np.int32), "shape"),
        (np.zeros(2, np.int32), "shape"),
        (np.zeros((2, 2)), "whole numbers"),
        (np.array([[0, 0], [3, 0]]), "outside 0 to 2, 1"),
        (np.array([[0, 0], [0, -1]]), "outside"),
    ],
)
def test_actions_that_do_not_fit_are_refused(relay, actions, message):
    with relay.create(1) as worlds:
        worlds.reset()
        with pytest.raises(ValueError, match=message):
            worlds.step(actions)


def test_a_simulator_s_own_error_value_is_named(relay):
    with relay.create(1, {"fail_at": 2}) as worlds:
        worlds.reset()
        worlds.step(zeros(worlds))
        with pytest.raises(SimulatorError, match="step returned -7"):
            worlds.step(zeros(worlds))


def test_playing_many_steps_is_stepping_one_by_one():
    simulator = load("cartpole")
    actions = np.random.default_rng(3).integers(0, 2, (400, 5, 1))
    with simulator.create(5) as one, simulator.create(5) as other:
        one.reset()
        other.reset()
        ended = sum(len(one.step(row)) for row in actions)
        assert other.play(actions) == ended > 0
        assert (one.obs == other.obs).all()


@pytest.mark.parametrize(
    ("name", "params", "actions"),
    [
        ("breakout", {"max_steps": 60}, 3),
        ("cartpole", {"max_steps": 15}, 2),
        ("memory", {"corridor": 4, "patience": 2}, 3),
        ("pendulum", {"max_steps": 15}, 2),
        ("tabular", {"max_steps": 15}, 3),
    ],
)
def test_a_saved_world_goes_on_exactly_even_between_a_truncation_and_the_next_episode(name, params, actions):
    simulator = load(name)
    generator = np.random.default_rng(4)
    with (
        simulator.create(2, params, [1, 2]) as original,
        simulator.create(1, params, [9]) as copy,
    ):
        original.reset()
        copy.reset()
        while not original.truncated[1]:
            original.step(generator.integers(0, actions, 2))
        copy.load(0, original.save(1))
        assert (copy.obs[0] == original.obs[1]).all()
        for _ in range(300):
            action = generator.integers(0, actions)
            expected = original.step(np.repeat(action, 2))
            expected = expected[expected["agent"] == 1]
            got = copy.step(np.array([action]))
            assert got[["length", "return"]].tolist() == expected[["length", "return"]].tolist()
            assert (got["statistics"] == expected["statistics"]).all()
            for array in ("obs", "rewards", "terminated", "truncated", "valid"):
                assert (getattr(copy, array)[0] == getattr(original, array)[1]).all()


def test_bytes_that_are_no_saved_world_are_refused():
    with load("cartpole").create(1) as worlds:
        worlds.reset()
        saved = worlds.save(0)
        with pytest.raises(SimulatorError, match="no saved world"):
            worlds.load(0, saved[:-1])
        with pytest.raises(SimulatorError, match="load returned"):
            worlds.load(0, b"\xff" * len(saved))


def test_closed_worlds_say_so():
    worlds = load("cartpole").create(1)
    worlds.close()
    worlds.close()
    with pytest.raises(SimulatorError, match="closed"):
        worlds.reset()


def test_what_a_simulator_lacks_is_named(relay):
    with relay.create(1) as worlds:
        with pytest.raises(SimulatorError, match="no render_text"):
            worlds.render_text(0)
        with pytest.raises(SimulatorError, match="no render_rgb"):
            worlds.render_rgb(0)
        with pytest.raises(IndexError):
            worlds.save(1)


def test_the_host_steps_a_range_of_worlds_and_leaves_the_others_alone(relay):
    with relay.create(4, {"agents": 2}) as worlds:
        worlds.reset()
        before = worlds.obs.copy()
        actions = zeros(worlds)
        worlds._rows.actions = actions.ctypes.data
        host = _abi.host()
        ended = host.host_step_range(
            worlds._self, 1, 2, ctypes.byref(worlds._rows), worlds._episodes.ctypes.data
        )
        assert ended == 0
        assert (worlds.obs[[0, 1, 6, 7]] == before[[0, 1, 6, 7]]).all()
        assert (worlds.obs[2:6, 1, 0] == 1).all()


def test_the_loader_needs_no_torch():
    code = "import sys, sims.loader, sims.check; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_benchmark_reports_every_simulator():
    command = [sys.executable, "bench/simulators.py", "--worlds", "16", "--seconds", "0.05", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    results = json.loads(done.stdout)
    assert [result["simulator"] for result in results] == available()
    for result in results:
        assert result["steps_per_second"] > 0
        assert result["obs_bytes_per_second"] == pytest.approx(
            result["obs_bytes"] * result["steps_per_second"]
        )
