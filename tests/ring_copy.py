"""A copy of the ring's C sources, as they are or with one thing broken, compiled with a sanitizer."""

import os
import subprocess
from pathlib import Path

import pytest

import ringbuf

ROOT = Path(ringbuf.__file__).parent.parent
DATA = ROOT / "tests" / "data"


def compile_with(directory, name, flags, change=None):
    """The program tests/data/NAME.c with the ring's sources. `change`: (file, what stands there once, what it
    shall be). Skips the test where this gcc has no such sanitizer."""
    copy = directory / "ringbuf"
    copy.mkdir()
    for path in (ROOT / "ringbuf").glob("*.[ch]"):
        if not path.name.startswith("_"):
            (copy / path.name).write_text(path.read_text())
    if change is not None:
        file, old, new = change
        text = (copy / file).read_text()
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        (copy / file).write_text(text.replace(old, new))
    program = directory / name
    flags = ["-std=gnu11", "-g", "-D_GNU_SOURCE", f"-I{directory}", *flags]
    built = subprocess.run(["gcc", *flags, "-o", program, DATA / f"{name}.c", *copy.glob("*.c")],
                           capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("this gcc comes without that sanitizer")
    assert built.returncode == 0, built.stderr
    return program


def run(program, *arguments, pass_fds=(), environment=None):
    """Without address randomization, which some kernels give more of than the sanitizers can map."""
    return subprocess.run(["setarch", "-R", program, *map(str, arguments)], pass_fds=pass_fds,
                          env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
