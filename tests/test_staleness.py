"""The lag never exceeds its limit, the run never deadlocks and the books balance, whoever is slow.

Each test runs the whole system and disturbs one party for as long as it lasts: processes are stopped and
continued by signals, and a producer is built that pauses between loading a version and announcing it.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 180
VERSIONS = 40
SOAK = pytest.mark.soak

RUN = """
run: {name: disturbed, seed: 3}
sim: {name: cartpole}
producers: {count: 2, agents: 32}
rollout: {horizon: 16}
ring: {slots: 4}
policy: {hidden: [16]}
learner: {batch_slots: 3, minibatches: 2}
weights: {pickup: slot}
monitor: {port: 0}
evaluate: {episodes: 0}
"""


def pids(directory: Path, role: str) -> list[int]:
    """Children of the run in that role, by their argv."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            if str(directory).encode() in argv and role.encode() in argv:
                found.append(int(entry.name))
    return sorted(found)


def running(directory: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((directory / "status.json").read_text())["state"] == "running"
    return False


@contextlib.contextmanager
def stop_and_continue(directory: Path, role: str, only_first: bool) -> Iterator[None]:
    """Stops processes of `role` for up to 0.2 s, again and again, from the first update to the end."""
    done = threading.Event()
    dice = random.Random(11)

    def disturb() -> None:
        while not running(directory) and not done.wait(0.1):
            pass
        while not done.is_set():
            chosen = pids(directory, role)[: 1 if only_first else None]
            for sign in (signal.SIGSTOP, signal.SIGCONT):
                for pid in chosen:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sign)
                done.wait(dice.uniform(0.0, 0.2) if sign == signal.SIGSTOP else dice.uniform(0.0, 0.02))
            # A process stopped at the very end must be let go.
            for pid in chosen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run(tree: Path, tmp_path: Path, limit: int, disturbed: str = "", only_first: bool = False) -> dict:
    """Runs to the end and returns summary.json."""
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    command = [sys.executable, str(tree / "supervisor.py"), str(path), "--plain", f"run.dir={tmp_path}/runs"]
    command += [f"staleness.limit={limit}", f"stop.versions={VERSIONS}"]
    directory = tmp_path / "runs" / "disturbed"
    process = subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    disturbance = (
        stop_and_continue(directory, disturbed, only_first) if disturbed else contextlib.nullcontext()
    )
    try:
        with disturbance:
            output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"no end after {DEADLINE_SECONDS} s: {(directory / 'status.json').read_text()}")
    assert process.returncode == 0, output
    summary = json.loads((directory / "summary.json").read_text())
    summary["updates_logged"] = len((directory / "metrics.jsonl").read_text().splitlines())
    return summary


def check(summary: dict, limit: int) -> None:
    assert summary["version"] == VERSIONS
    assert summary["lag"]["max"] <= limit == summary["lag"]["limit"]
    slots = summary["slots"]
    assert slots["in_flight"] == 0
    assert slots["committed"] == slots["consumed"] + slots["dropped"]
    # Counted apart from the slot words: by the learner batch for batch, and by the producers themselves.
    assert slots["consumed"] == 3 * VERSIONS
    assert summary["updates_logged"] == VERSIONS
    producers = summary["producers"]
    assert sum(one["slots"] for one in producers) == slots["committed"]
    assert sum(one["steps"] for one in producers) == summary["steps"] + summary["steps_dropped"]


@pytest.mark.parametrize("limit", [pytest.param(0, marks=SOAK), 1, pytest.param(4, marks=SOAK)])
def test_the_lag_stays_within_its_limit_with_a_slow_learner(tmp_path: Path, limit: int) -> None:
    check(run(ROOT, tmp_path, limit, "learner"), limit)


@pytest.mark.parametrize("limit", [0, pytest.param(1, marks=SOAK), pytest.param(4, marks=SOAK)])
def test_the_lag_stays_within_its_limit_with_one_slow_producer(tmp_path: Path, limit: int) -> None:
    check(run(ROOT, tmp_path, limit, "producer", only_first=True), limit)


@pytest.fixture(scope="module")
def pausing_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a producer that pauses between loading and announcing its version."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.so.new")
    for name in ("config", "producers", "ringbuf", "consumers", "monitor", "sims"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    shutil.copy(ROOT / "supervisor.py", tree / "supervisor.py")
    objects = [*ROOT.glob("build/producers/*.o"), *ROOT.glob("build/sims/host.o")]
    objects += [one for one in ROOT.glob("build/ringbuf/*.o") if not one.name.startswith("_ring")]
    command = ["gcc", "-O1", "-D_GNU_SOURCE", f"-I{ROOT}/ringbuf", str(ROOT / "tests/data/pause.c")]
    command += [*map(str, objects), "-Wl,--wrap=hr_weights_published", "-o", str(tree / "producers/producer")]
    subprocess.run([*command, "-ldl", "-lm", "-pthread"], check=True)
    return tree


@pytest.mark.parametrize("limit", [0, 1, pytest.param(4, marks=SOAK)])
def test_the_lag_stays_within_its_limit_when_producers_are_overtaken_while_announcing(
    pausing_tree: Path, tmp_path: Path, limit: int
) -> None:
    check(run(pausing_tree, tmp_path, limit), limit)
