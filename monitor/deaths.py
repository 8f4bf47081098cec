"""What is said of a process that died: how, where in its work, and of what the kernel knows."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def how(returncode: int) -> str:
    """`returncode`: the exit code, or minus the signal that killed it."""
    if returncode == 0:
        return "ended by itself"
    return f"ended with exit code {returncode}" if returncode > 0 else f"died of {signal_name(-returncode)}"


def signal_name(number: int) -> str:
    """`SIGSEGV`; a real-time signal has no name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Crash:
    """Where in its work a producer stood, as it wrote down itself when it crashed."""

    phase: str
    world: int | None
    """Number of the world over the whole run; None: it was in none."""
    seed: int
    """Of that world."""
    step: int
    """Steps taken since that seed was set."""

    @classmethod
    def of(cls, counters: Mapping[str, int]) -> Crash | None:
        """From a producer's counters; None where it had no time to write anything, as under SIGKILL."""
        from ringbuf import PHASES  # here: this module is imported where nothing was built yet

        if not counters["crash_signal"]:
            return None
        phase, world = counters["crash_phase"], counters["crash_world"]
        return cls(
            PHASES[phase] if phase < len(PHASES) else "?",
            world - 1 if world else None,
            counters["crash_seed"],
            counters["crash_step"],
        )

    def __str__(self) -> str:
        where = "" if self.world is None else f", world {self.world} (seed {self.seed})"
        return f"in phase {self.phase}{where}, step {self.step}"


def last_slot(header: Mapping[str, Any]) -> str:
    """A slot's header in a few words."""
    return f"slot {header['sequence']} ({header['state']}, {header['valid_steps']} valid steps)"


@dataclass(frozen=True)
class Inquest:
    """What is known of one death. `text`: one line, without the process' name; `facts`: for events.jsonl."""

    text: str
    facts: dict[str, Any]

    @classmethod
    def of(
        cls,
        returncode: int,
        *,
        hung: bool,
        out_of_memory: bool,
        crash: Crash | None = None,
        simulator: str | None = None,
        header: Mapping[str, Any] | None = None,
    ) -> Inquest:
        """`hung`: it was killed for that. `out_of_memory`: the kernel has killed somebody for memory since
        the last death. The rest is a producer's; `header`: of the last slot of its ring."""
        text = how(returncode)
        facts: dict[str, Any] = (
            {"exit_code": returncode} if returncode >= 0 else {"signal": signal_name(-returncode)}
        )
        if hung:
            text += ", since it was hung"
        elif out_of_memory and returncode == -signal.SIGKILL:
            facts["out_of_memory"] = True
            text += ", probably killed for memory"
        if header is not None:
            facts |= {"simulator": simulator, "last_slot": dict(header)}
            if crash is not None:
                facts |= vars(crash)
                text += f" {crash}; simulator {simulator}, last {last_slot(header)}"
        return cls(text, facts)
