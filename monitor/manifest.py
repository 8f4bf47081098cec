"""manifest.json: what a run was made of, so that it can be told from another one later."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from monitor import procfs

PACKAGES = ("torch", "numpy", "pydantic", "PyYAML", "posix_ipc", "prometheus_client", "rich")
GIT_SECONDS = 10.0


def git_state(root: Path) -> dict[str, Any]:
    """Commit of the checkout and whether it has changes; nulls where there is no repository or no git."""
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


def build(root: Path, *, name: str, run_id: str, seed: int, config_text: str, **facts: Any) -> dict[str, Any]:
    """The manifest. `config_text`: config.resolved.yaml; `facts`: what else the caller knows of the run."""
    return {
        "name": name,
        "run_id": run_id,
        "seed": seed,
        "created_unix": time.time(),
        "argv": sys.argv,
        "git": git_state(root),
        "config_sha256": hashlib.sha256(config_text.encode()).hexdigest(),
        "packages": {package: _version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "hardware": {
            "cpu": procfs.cpu_model(),
            "cores": os.cpu_count(),
            "memory_bytes": procfs.memory_bytes(),
        },
        **facts,
    }


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
