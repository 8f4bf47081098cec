"""The lock file pins everything that pyproject.toml asks for, and torch to one release."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def wanted():
    extras = PROJECT["optional-dependencies"].values()
    return sorted({*PROJECT["dependencies"], *(line for extra in extras for line in extra)})


def test_every_line_of_the_lock_pins_one_exact_version():
    assert [line for line in pins() if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line)] == []
    names = [canonical(line.split("==")[0]) for line in pins()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("line", wanted())
def test_the_lock_satisfies_what_the_project_asks_for(line):
    locked = {canonical(name): version for name, version in (pin.split("==") for pin in pins())}
    asked = Requirement(line)
    assert asked.specifier.contains(Version(locked[canonical(asked.name)]))


def test_torch_is_pinned_to_the_exact_release():
    assert "torch==2.13.0" in PROJECT["dependencies"]
    assert "torch==2.13.0" in pins()


def test_what_is_installed_is_what_is_locked():
    import importlib.metadata

    installed = {pin: Version(importlib.metadata.version(pin.split("==")[0])) for pin in pins()}
    wrong = {pin: found for pin, found in installed.items() if found.public != pin.split("==")[1]}
    assert not wrong, "make build"
