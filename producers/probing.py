"""The network of a run, before anything is created: a program, or what a user's module says of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from producers import native, program
from producers.opaque import opaque

PROBE_SECONDS = 120.0


def build(policy: Any, spec: Mapping[str, Any]) -> program.Program:
    """Of the `policy` section and the simulator's spec. Raises ProgramError where there can be none."""
    if not policy.module:
        return program.build(policy, spec)
    settings = policy.model_dump(mode="json")
    sizes = _probe(policy.module, spec, settings)
    return opaque(policy.module, spec, settings, sizes["state_width"], sizes["tensors"])


def _probe(module: str, spec: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Asked in a child: this process imports no torch, and a broken module cannot hurt it."""
    command = [sys.executable, "-m", "consumers.probe", module]
    given = json.dumps({"spec": spec, "settings": settings})
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False,
            cwd=native.ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise program.ProgramError(f"policy.module: no answer within {PROBE_SECONDS:g} s") from None
    if done.returncode < 0:
        raise program.ProgramError(f"policy.module: died of signal {-done.returncode} while it was looked at")
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise program.ProgramError(f"policy.module: {said[-1]}")
    try:
        sizes = json.loads(done.stdout)
    except ValueError:
        raise program.ProgramError("policy.module: ended the process that looked at it") from None
    assert isinstance(sizes, dict)
    return sizes
