"""The native parts as the supervisor sees them: are they there, do they fit, what does a simulator say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config import exits

ROOT = Path(__file__).resolve().parent.parent
PRODUCER = ROOT / "producers" / "producer"
SIMULATORS = ROOT / "sims"
BUILD = "make build"
DESCRIBE_SECONDS = 30.0


class NativeError(Exception):
    """A native part is missing, broken or of another ABI; the message says what to run."""


class RefusedParameters(NativeError):
    """The simulator refuses parameters of which each by itself is good."""


class UnknownSimulator(Exception):
    """There is no simulator of that name. `known`: those that there are."""

    def __init__(self, message: str, known: list[str]):
        super().__init__(message)
        self.known = known


def check_abi(root: Path = ROOT) -> None:
    """Compares the ABI number of every native part with that of the source. Raises NativeError."""
    wanted = _source_abi(root)
    module = root / "ringbuf" / "_ring.abi3.so"
    if not module.exists():
        raise NativeError(f"{_short(module, root)} is missing; run: {BUILD}")
    try:
        found = importlib.import_module("ringbuf").ABI
    except ImportError as error:
        raise NativeError(f"{_short(module, root)} does not load ({error}); run: {BUILD}") from error
    _compare(_short(module, root), found, wanted)
    producer = root / "producers" / "producer"
    printed = _run([str(producer), "--abi"], _short(producer, root))
    _compare(_short(producer, root), int(printed) if printed.strip().isdigit() else None, wanted)


def simulator_path(name: str, root: Path = ROOT) -> Path:
    """The library of a simulator given by its name or by the path of its `.so`.

    Raises UnknownSimulator, or NativeError if its source is there but its library is not.
    """
    sims = root / "sims"
    if "/" in name or name.endswith(".so"):
        path = Path(name).absolute()
        if not path.is_file():
            raise UnknownSimulator(f"no such file: {path}", _known(sims))
        return path
    path = sims / name / f"{name}.so"
    if name not in _known(sims):
        raise UnknownSimulator(f"no simulator {name!r}", _known(sims))
    if not path.exists():
        raise NativeError(f"{_short(path, root)} is missing; run: {BUILD}")
    return path


def describe(
    library: Path, parameters: Mapping[str, float] | None = None, root: Path = ROOT
) -> dict[str, Any]:
    """What a simulator says of itself: parameters, statistics, shapes, heads.

    Asked in a child, so that a broken simulator cannot hurt the caller. Raises NativeError; RefusedParameters
    where it is the parameters.
    """
    command = [str(root / "producers" / "producer"), "--describe", str(library)]
    command += [f"{name}={float(value)!r}" for name, value in (parameters or {}).items()]
    spec = json.loads(_run(command, f"simulator {library}"))
    _compare(_short(root / "producers" / "producer", root), spec["hr_abi"], _source_abi(root))
    return spec


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DESCRIBE_SECONDS, check=False)
    except (FileNotFoundError, PermissionError):
        raise NativeError(f"{command[0]} is missing; run: {BUILD}") from None
    except OSError as error:
        raise NativeError(f"{command[0]} does not start ({error.strerror}); run: {BUILD}") from error
    except subprocess.TimeoutExpired:
        raise NativeError(f"{what}: no answer within {DESCRIBE_SECONDS:g} s") from None
    if done.returncode < 0:
        raise NativeError(f"{what}: died of signal {-done.returncode} while it was asked about itself")
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        kind = RefusedParameters if done.returncode == exits.CONFIG else NativeError
        raise kind(f"{what}: {said[-1].removeprefix('producer: ')}")
    return done.stdout


def _source_abi(root: Path) -> int:
    match = re.search(r"^#define HR_ABI (\d+)u?\b", (root / "ringbuf" / "plan.h").read_text(), re.MULTILINE)
    if match is None:
        raise NativeError("ringbuf/plan.h has no HR_ABI")
    return int(match[1])


def _compare(part: str, found: int | None, wanted: int) -> None:
    if found != wanted:
        raise NativeError(f"{part} has ABI {found}, this version needs {wanted}; run: {BUILD}")


def _known(sims: Path) -> list[str]:
    return sorted(
        folder.name
        for folder in sims.iterdir()
        if (folder / f"{folder.name}.c").exists() or (folder / f"{folder.name}.so").exists()
    )


def _short(path: Path, root: Path) -> str:
    return str(path.relative_to(root))
