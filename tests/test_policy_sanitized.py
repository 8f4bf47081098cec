"""The C policy under the address and undefined-behaviour sanitizers: whatever the bytes of an observation or
of a program are, no byte is touched beyond the memory that was given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from kernels import ROOT
from native import broken
from programs import expander, perceptron, programs

from producers.program import Builder, Program

FLAGS = ["-std=gnu11", "-g", "-O1", "-march=native", "-fno-math-errno", "-fno-omit-frame-pointer"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
ROUNDS = 1500 * int(os.environ.get("HEADRACE_SANITIZER_FACTOR", "1"))
FAULTS = {  # file, what stands there, what it would be
    "a grid longer than the observation": (
        "policy_shapes.c", "is_within(t, input, op->integer[HR_MULTIHOT_START]", "is_within(t, input, 0"),
    "numbers beyond the observation": (
        "policy_shapes.c", "is_within(t, input[0], op->integer[HR_CAST_START], out)", "true"),
}  # fmt: skip


def compile_object(source: Path, folder: Path) -> Path:
    out = folder / f"{source.stem}.o"
    folders = [f"-I{ROOT / name}" for name in (".", "ringbuf", "producers", "sims")]
    command = ["gcc", *FLAGS, *SANITIZERS, *folders, "-c", source, "-o", out]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return out


def link(objects: list[Path], program: Path) -> Path:
    """Skips without sanitizers."""
    command = ["gcc", *SANITIZERS, "-o", program, *objects, "-lm"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip("this gcc comes without sanitizers")
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the policy and of tests/data/policy_fuzz.c, by the name of the source."""
    folder = tmp_path_factory.mktemp("objects")
    sources = [*(ROOT / "producers").glob("policy*.c"), ROOT / "tests/data/policy_fuzz.c"]
    return {source.name: compile_object(source, folder) for source in sources}


@pytest.fixture(scope="module")
def fuzz(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(list(objects.values()), tmp_path_factory.mktemp("fuzz") / "fuzz")


def run(fuzz: Path, rounds: int, *codes: bytes) -> subprocess.CompletedProcess[str]:
    """Without address randomization, which some kernels give more of than the sanitizers can map."""
    files = [fuzz.with_name(f"{index}.program") for index in range(len(codes))]
    for file, code in zip(files, codes, strict=True):
        file.write_bytes(code)
    command = ["setarch", "-R", fuzz, rounds, *files]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)


def a_small_lstm() -> Program:
    builder = Builder("float32", (5,), low=[-1.0], high=[1.0])
    x = builder.lstm(builder.cast_affine(normalize="normalize", clip=10.0), 3, "layer")
    builder.gaussian(builder.linear(x, 1, "policy", gain=1.0), "log_std", log_std=0.0)
    return builder.finish()


def test_a_damaged_program_touches_nothing_that_is_not_its_own(fuzz):
    codes = [program.encode() for program in (expander(), perceptron(5, [4], [3]), a_small_lstm())]
    done = run(fuzz, ROUNDS, *codes)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > ROUNDS / 4, "nearly every damaged program was refused"


@settings(deadline=None, max_examples=10, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs(categories=True, recurrent=True))
def test_whatever_the_bytes_of_an_observation_are_no_other_memory_is_touched(fuzz, program):
    done = run(fuzz, 0, program.encode())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_missing_check_is_found(objects, tmp_path, fault):
    name, old, new = fault
    source = tmp_path / name
    source.write_text(broken((ROOT / "producers" / name).read_text(), old, new))
    changed = {**objects, name: compile_object(source, tmp_path)}
    done = run(link(list(changed.values()), tmp_path / "fuzz"), ROUNDS, expander().encode())
    assert done.returncode != 0
    assert "Sanitizer" in done.stderr or "runtime error" in done.stderr
