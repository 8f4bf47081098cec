"""What a child of the supervisor does before anything else: it dies with its parent, says where it was when
it is killed for hanging, and opens its log anew when told; and how one with torch ends."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from config.rotate import reopen_when_told

PR_SET_PDEATHSIG = 1


def settle_in(parent: int, log: Path) -> None:
    """Raises SystemExit where the parent is dead already. SIGABRT writes every thread's stack to stderr, then
    ends the process; SIGUSR1: `log` has been set aside."""
    for number in (signal.SIGINT, signal.SIGTERM):  # only the supervisor ends a run
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the supervisor is gone")
    faulthandler.enable(all_threads=True)
    reopen_when_told(log)


def leave(code: int) -> NoReturn:
    """Ends the process, of which everything is written, at once: torch takes most of a second to tear itself
    down, and every stop would wait for it."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
