"""What a producer writes into its slots is what happened in its worlds, to the last byte."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from native import DATA, compile_simulator

from bench.rig import Rig
from consumers.models import PolicyModel
from producers import native, program
from ringbuf import Ring
from sims.loader import load, world_seeds

RUN = """
run: {{seed: 7}}
sim: {{name: {sim}{params}}}
producers: {{count: {count}, agents: {agents}, cores: [0]}}
rollout: {{horizon: {horizon}}}
ring: {{slots: 3, full: {full}}}
staleness: {{limit: {limit}}}
policy: {{hidden: [32], activation: tanh}}
learner: {{batch_slots: {count}, minibatches: 1}}
"""


def run_file(tmp_path: Path, **values: object) -> Path:
    defaults = {
        "sim": "cartpole",
        "params": "",
        "count": 1,
        "agents": 16,
        "horizon": 32,
        "full": "block",
        "limit": 1,
    }
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(**defaults | values))
    return path


def random_weights(rig: Rig, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(0, 0.3, rig.weights.count).astype(np.float32)


@pytest.mark.parametrize(("sim", "params"), [("cartpole", ""), ("breakout", ", max_steps: 37")])
def test_slots_hold_what_happened_in_the_worlds(tmp_path: Path, sim: str, params: str) -> None:
    """Replaying the recorded actions from the same seeds gives the same observations, rewards, flags and
    episodes, truncations across slot borders included."""
    slots = 12
    with Rig(run_file(tmp_path, sim=sim, params=params)) as rig:
        plan, simulator = rig.rings[0].plan, load(sim)
        worlds = simulator.create(plan.worlds, rig.prepared.parameters, world_seeds(7, plan.worlds))
        worlds.reset()
        rig.publish(0, random_weights(rig))
        rig.spawn()
        rig.grant()
        ended = invalid = 0
        for count, lease in enumerate(rig.leases(), start=1):
            obs, action = lease.array("obs"), lease.array("action")
            np.testing.assert_array_equal(obs[0], worlds.obs)
            episodes = []
            for t in range(plan.horizon):
                episodes.extend(worlds.step(action[t]).tolist())
                np.testing.assert_array_equal(obs[t + 1], worlds.obs)
                np.testing.assert_array_equal(lease.array("reward")[t], worlds.rewards)
                for flag in ("terminated", "truncated", "valid"):
                    np.testing.assert_array_equal(lease.array(flag)[t], getattr(worlds, flag))
            records = lease.episodes()[["agent", "length", "ret", "statistics"]].tolist()
            assert [(*r[:3], list(r[3])) for r in records] == [(*e[:3], list(e[3])) for e in episodes]
            ended += len(episodes)
            invalid += int((lease.array("valid") == 0).sum())
            assert lease.valid_steps == int(lease.array("valid").sum())
            del obs, action
            lease.ack()
            rig.grant()
            if count == slots:
                break
        assert ended > 0
        assert (invalid > 0) == (sim == "breakout"), "breakout truncates here, cartpole's poles fall first"
        worlds.close()


def test_log_probabilities_and_actions_are_those_of_the_published_weights(tmp_path: Path) -> None:
    with Rig(run_file(tmp_path)) as rig:
        model = PolicyModel(rig.prepared.program)
        flat = random_weights(rig)
        model.load_flat(flat)
        rig.publish(0, flat)
        rig.spawn()
        rig.grant()
        lease = next(rig.leases())
        with torch.no_grad():
            obs = torch.from_numpy(lease.array("obs").copy())
            logits = model(obs[:-1].flatten(0, 1))[0].float()
        expected = torch.log_softmax(logits, -1).gather(
            1, torch.from_numpy(lease.array("action").copy()).long().view(-1, 1)
        )
        found = torch.from_numpy(lease.array("logprob").copy()).view(-1, 1)
        tolerance = 2e-4 + 1e-5 * float(logits.abs().max())
        assert float((expected - found).abs().max()) <= tolerance
        assert set(np.unique(lease.array("version"))) == {0}
        lease.ack()


def test_every_step_bears_the_version_that_acted(tmp_path: Path) -> None:
    """Weights that make one action certain show in the actions which version acted; labels must agree."""
    with Rig(run_file(tmp_path, horizon=8)) as rig:
        bias = next(w for w in rig.prepared.program.weights if w.name.endswith("bias") and w.shape == (2,))
        flats = []
        for favourite in (0, 1):
            flat = np.zeros(rig.weights.count, np.float32)
            flat[bias.offset + favourite] = 100.0
            flats.append(flat)
        rig.publish(0, flats[0])
        rig.spawn()
        rig.grant()
        seen: set[int] = set()
        for version, lease in enumerate(rig.leases(), start=1):
            labels = lease.array("version")[:, 0].copy()
            np.testing.assert_array_equal(
                lease.array("action")[:, :, 0], np.repeat(labels % 2, 16).reshape(8, 16)
            )
            assert lease.version == labels[0]
            assert lease.newest_version == labels[-1]
            assert (np.diff(labels) >= 0).all()
            seen |= set(labels.tolist())
            lease.ack()
            rig.publish(version, flats[version % 2])
            rig.grant()
            if version == 60:
                break
        assert len(seen) > 20


def test_a_dropping_ring_never_makes_a_producer_wait(tmp_path: Path) -> None:
    """Under drop_newest sequences get holes, the worlds go on through them, and the books show each."""
    for full in ("drop_newest", "drop_oldest"):
        with Rig(run_file(tmp_path, full=full, limit="none", horizon=4)) as rig:
            rig.publish(0, random_weights(rig))
            rig.spawn()
            ring = rig.rings[0]
            leases = rig.leases()
            held = next(leases)

            def passed(ring: Ring = ring, full: str = full) -> int:
                books = ring.books()
                return books["not_written"] if full == "drop_newest" else books["dropped"]["overwritten"]

            begin = passed()
            while passed() < begin + 20:
                rig.control.bell_wait(0, rig.control.bell_value(0), 0.01)
            first = held.sequence
            held.ack()
            sequences = [first]
            for lease in leases:
                sequences.append(lease.sequence)
                lease.ack()
                if len(sequences) > 10:
                    break
            assert sequences == sorted(sequences)
            assert sequences[-1] - sequences[0] > len(sequences), f"{full}: there are holes"


def test_describe_tells_a_simulators_shapes_parameters_and_score() -> None:
    spec = native.describe(native.simulator_path("breakout"))
    by_name = subprocess.run([native.PRODUCER, "--describe", "breakout"], capture_output=True, check=True)
    assert json.loads(by_name.stdout) == spec
    assert spec["obs"] == {"dtype": "float32", "shape": [118], "grid": None, "coded": 0}
    assert spec["heads"] == [{"choices": 3}]
    assert spec["statistics"][spec["score"]]["name"] == "score"
    assert {p["name"]: p["default"] for p in spec["params"]}["frameskip"] == 4
    with load("breakout").create(1) as worlds:
        assert spec["state_bytes"] + worlds.obs.nbytes == len(worlds.save(0)), "the loader saves the row too"


def test_describe_tells_what_the_bytes_of_an_observation_mean(tmp_path: Path) -> None:
    library = compile_simulator((DATA / "crop.c").read_text(), tmp_path / "crop.so")
    assert native.describe(library, {"rows": 3})["obs"] == {
        "dtype": "uint8",
        "shape": [3 * 7 * 3 + 3 + 2],
        "grid": {"rows": 3, "columns": 7, "planes": 3, "values": [4, 7, 2]},
        "coded": 3,
    }


def test_describe_tells_that_a_simulator_cannot_be_saved(tmp_path: Path) -> None:
    spec = native.describe(compile_simulator((DATA / "faulty.c").read_text(), tmp_path / "faulty.so"))
    assert (spec["save"], spec["state_bytes"]) == (False, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "usage"),
        (["--role", "producer"], 2, "usage"),
        (["--describe", "no-such.so"], 69, "make build"),
        (["--describe", "{sim}", "frameskip=0"], 64, "frameskip is 0"),
        (["--describe", "{sim}", "frames=1"], 64, "no parameter frames"),
        (["--describe", "{host}"], 69, "not a simulator"),
    ],
)
def test_bad_arguments_get_a_message_and_an_exit_code(arguments: list[str], code: int, said: str) -> None:
    sims = native.ROOT / "sims"
    arguments = [a.format(sim=sims / "breakout/breakout.so", host=sims / "host.so") for a in arguments]
    done = subprocess.run([native.PRODUCER, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_the_program_reaches_the_producer_as_it_was_built(tmp_path: Path) -> None:
    with Rig(run_file(tmp_path)) as rig:
        assert program.Program.decode(rig.weights.program).fingerprint == rig.prepared.program.fingerprint
        assert json.dumps(rig.prepared.spec)
