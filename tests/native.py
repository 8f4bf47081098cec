"""Simulators compiled during a test, from a source or from a source with something broken in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"


def compile_simulator(source: str, library: Path) -> Path:
    """Compiles C text as `library`, e.g. tmp_path / "relay.so"."""
    c_file = library.with_suffix(".c")
    c_file.write_text(source)
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    command = ["gcc", *flags, f"-I{ROOT / 'sims'}", "-o", str(library), str(c_file), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def broken(source: str, old: str, new: str) -> str:
    """The source with one place changed, which must be there."""
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
    return source.replace(old, new)
