"""The build: what is missing is named with the line that installs it; what changed is rebuilt."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOY = '#include "sim.h"\nint toy(void);\nint toy(void) { return TOY; }\n'


def make(checkout, *arguments, **options):
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, check=False, timeout=300, **options
    )


@pytest.fixture
def checkout(tmp_path):
    """A checkout with an environment that counts as installed and one small simulator."""
    for name in ("Makefile", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".venv/.installed").touch()
    (tmp_path / "sims/toy").mkdir(parents=True)
    (tmp_path / "sims/sim.h").write_text("#define TOY 1\n")
    (tmp_path / "sims/toy/toy.c").write_text(TOY)
    return tmp_path


def test_a_second_build_does_nothing(checkout):
    first = make(checkout, "build")
    assert first.returncode == 0, first.stderr
    assert (checkout / "sims/toy/toy.so").exists()
    assert make(checkout, "build").stdout == ""


def test_a_changed_header_rebuilds_what_includes_it(checkout):
    make(checkout, "build")
    before = (checkout / "sims/toy/toy.so").read_bytes()
    (checkout / "sims/sim.h").write_text("#define TOY 2\n")
    os.utime(checkout / "sims/sim.h", (2**31, 2**31))
    assert "toy.c" in make(checkout, "build").stdout
    assert (checkout / "sims/toy/toy.so").read_bytes() != before


def test_changed_flags_rebuild_everything(checkout):
    make(checkout, "build")
    assert "toy.c" in make(checkout, "build", "CFLAGS=-O1 -fPIC").stdout
    assert make(checkout, "build", "CFLAGS=-O1 -fPIC").stdout == ""


def test_the_old_library_is_replaced_and_not_written_into(checkout):
    """Processes of a run have it mapped."""
    make(checkout, "build")
    library = checkout / "sims/toy/toy.so"
    with open(library, "rb") as mapped:
        before = mapped.read()
        make(checkout, "build", "CFLAGS=-O1 -fPIC")
        mapped.seek(0)
        assert mapped.read() == before
    assert library.read_bytes() != before


def test_a_warning_is_an_error_and_leaves_no_library(checkout):
    (checkout / "sims/toy/toy.c").write_text(TOY + "static int unused;\n")
    failed = make(checkout, "build")
    assert failed.returncode != 0
    assert "unused" in failed.stderr
    assert not (checkout / "sims/toy/toy.so").exists()


def test_clean_removes_what_build_made_and_keeps_the_environment(checkout):
    make(checkout, "build")
    assert make(checkout, "clean").returncode == 0
    assert not (checkout / "build").exists()
    assert not (checkout / "sims/toy/toy.so").exists()
    assert (checkout / ".venv/.installed").exists()


def test_every_missing_prerequisite_is_named_with_the_line_that_installs_it(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("make", "sh"):
        (tools / name).symlink_to(shutil.which(name))
    shutil.rmtree(checkout / ".venv")
    failed = make(checkout, "build", env={"PATH": str(tools)})
    assert failed.returncode != 0
    missing, install = [line for line in failed.stderr.splitlines() if line.startswith("headrace: ")]
    for name in ("gcc", "g++", "Python 3.11 or newer"):
        assert name in missing
    assert install == "headrace: install:  apt-get install -y gcc g++ python3 python3-venv python3-dev"


def test_an_old_python_is_named(checkout, tmp_path):
    shutil.rmtree(checkout / ".venv")
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    failed = make(checkout, "build", f"PYTHON={old}")
    assert failed.returncode != 0
    assert f"Python 3.11 or newer ({old} is older" in failed.stderr


@pytest.mark.parametrize("target", ["run", "test", "bench", "check"])
def test_every_target_builds_first(checkout, target):
    planned = make(checkout, "-n", target).stdout
    assert "toy.so" in planned
    assert planned.rindex(".venv/bin/python") > planned.rindex("toy.so")


def test_the_sources_of_every_native_part_are_in_the_plan():
    planned = make(ROOT, "-n", "-B", "build", "-o", ".venv/.installed").stdout
    for part in (
        "ringbuf/_ring.abi3.so",
        "producers/producer",
        "producers/policy.so",
        "sims/host.so",
        "sims/breakout/breakout.so",
        "sims/cartpole/cartpole.so",
    ):
        assert f"-o {part}.new" in planned, part
    for source in [
        *ROOT.glob("ringbuf/*.c"),
        *ROOT.glob("producers/*.c"),
        *ROOT.glob("consumers/*.c"),
        *ROOT.glob("sims/**/*.c"),
    ]:
        assert f"-c {source.relative_to(ROOT)} " in planned, source
