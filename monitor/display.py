"""The terminal: a live picture on a terminal, one line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from monitor.outlet import Outlet

BAR_CELLS = 12  # so that 80 columns hold the picture
IDLE_STATES = ("backoff", "hung", "failed")


class Display(Protocol):
    """Shows reports, each display those of its own kind; called about once a second."""

    def show(self, report: Any) -> None: ...

    def say(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None: ...


def make(*, plain: bool, interval_seconds: float, stream: TextIO | None = None) -> Display:
    """Of a run's status."""
    return choose(lambda lines: PlainDisplay(interval_seconds, lines), picture, plain=plain, stream=stream)


def choose(
    lines: Callable[[TextIO], Display],
    picture: Callable[[Any], RenderableType],
    *,
    plain: bool,
    stream: TextIO | None = None,
) -> Lasting:
    """The live `picture` of each report if stdout, or `stream`, is a terminal that can draw one, else plain
    `lines`."""
    stream = cast(TextIO, Outlet(sys.stdout)) if stream is None else stream
    if plain or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return Lasting(lines(stream), stream)
    return Lasting(LiveDisplay(stream, picture), stream)


class Lasting:
    """Shows as long as somebody looks: a closed pipe or a lost terminal ends the display and not the run."""

    def __init__(self, display: Display, stream: TextIO):
        self.display = display
        self._stream = stream
        self._gone = False

    def show(self, report: Any) -> None:
        self._try(lambda: self.display.show(report))

    def say(self, text: str) -> None:
        self._try(lambda: self.display.say(text))

    def close(self) -> None:
        self._try(self.display.close)

    def _try(self, action: Callable[[], None]) -> None:
        if self._gone:
            return
        try:
            action()
        except OSError:
            self._gone = True
            # What is still buffered would fail once more at the interpreter's exit, and change the exit code.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class Lines:
    """Lines that stay, one after the other."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to restore."""


class PlainDisplay(Lines):
    """One line of key=value pairs every `interval_seconds`, and at every change of state."""

    def __init__(self, interval_seconds: float, stream: TextIO):
        super().__init__(stream)
        self._interval_seconds = interval_seconds
        self._next = 0.0
        self._state = ""

    def show(self, status: dict[str, Any]) -> None:
        now = time.monotonic()
        if now < self._next and status["state"] == self._state:
            return
        self._next, self._state = now + self._interval_seconds, status["state"]
        self.say(" ".join(f"{key}={value}" for key, value in line_facts(status).items()))


class LiveDisplay:
    """A picture that is redrawn in place."""

    def __init__(self, stream: TextIO, picture: Callable[[Any], RenderableType]):
        self._picture = picture
        self._console = Console(file=stream, no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, report: Any) -> None:
        self._live.update(self._picture(report), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()


def line_facts(status: dict[str, Any]) -> dict[str, str]:
    """What a plain line says, in its order."""
    score, lag, slots, losses = status["score"], status["lag"], status["slots"], status["losses"]
    facts = {
        "state": status["state"],
        "seconds": f"{status['seconds']:.0f}",
        "steps": str(status["steps"]),
        "steps_per_second": f"{status['steps_per_second']:.0f}",
        "gb_per_second": f"{status['bytes']['per_second'] / 1e9:.3f}",
        "version": _show(status["version"], "d"),
        "score": _show(score["mean"], ".2f"),
        "episodes": str(score["episodes"]),
        "lag_mean": _show(lag["mean"], ".2f"),
        "lag_max": _show(lag["max"], "d"),
        "fill": f"{slots['in_flight']}/{slots['capacity']}",
        "loss_policy": _show(losses["loss_policy"], ".4f"),
        "loss_value": _show(losses["loss_value"], ".4f"),
        "entropy": _show(losses["entropy_ratio"], ".3f"),
        "kl": _show(losses["approx_kl"], ".4f"),
    }
    if slots["dropped"]:
        facts["dropped"] = str(slots["dropped"])
    if restarts := sum(status["restarts"].values()):
        facts["restarts"] = str(restarts)
    working, producers = producers_at_work(status)
    if working < producers:
        facts["producers"] = f"{working}/{producers}"
    return facts


def producers_at_work(status: dict[str, Any]) -> tuple[int, int]:
    """(those that run or are about to, all of them): fewer in a run that goes on without some."""
    states = [process["state"] for process in status["processes"] if process["role"] == "producer"]
    return sum(state not in IDLE_STATES for state in states), len(states)


def picture(status: dict[str, Any]) -> Group:
    """The live picture of one report."""
    score, lag, slots, losses = status["score"], status["lag"], status["slots"], status["losses"]
    clock = _clock(status["seconds"])
    title = Text.assemble(
        ("headrace ", "bold"), (status["name"], "bold cyan"), f"  {status['state']}  {clock}"
    )
    working, producers = producers_at_work(status)
    if working < producers:
        title.append(f"  {working} of {producers} producers", "bold yellow")
    if address := status.get("address"):
        title.append(f"  {address}", "dim")
    facts = Table.grid(padding=(0, 2))
    for _ in range(3):
        facts.add_column(style="dim")
        facts.add_column(justify="right")
    rows = {
        "steps": _si(status["steps"]),
        "steps/s": _si(status["steps_per_second"]),
        "GB/s": f"{status['bytes']['per_second'] / 1e9:.3f}",
        "version": _show(status["version"], "d"),
        "updates/s": f"{status['updates_per_second']:.2f}",
        "episodes": _si(score["episodes"]),
        "score": _show(score["mean"], ".2f"),
        "best": _show(score["best"], ".2f"),
        "solved at": _show(status["solved_at_seconds"], ".0f"),
        "lag mean": _show(lag["mean"], ".2f"),
        "lag p99": _show(lag["p99"], "d"),
        "max / limit": f"{_show(lag['max'], 'd')} / {_show(lag['limit'], 'd', 'none')}",
        "policy loss": _show(losses["loss_policy"], ".4f"),
        "value loss": _show(losses["loss_value"], ".4f"),
        "entropy": _show(losses["entropy_ratio"], ".3f"),
        "KL": _show(losses["approx_kl"], ".4f"),
        "clipped": _show(losses["clipped_ratio"], ".3f"),
        "expl. variance": _show(losses["explained_variance"], ".3f"),
        "dropped slots": str(slots["dropped"]),
        "ring fill": _bar(slots["in_flight"], slots["capacity"]),
        "slots": f"{slots['in_flight']} / {slots['capacity']}",
        "restarts": str(sum(status["restarts"].values())),
    }
    cells = [cell for pair in rows.items() for cell in pair]
    for first in range(0, len(cells), 6):
        facts.add_row(*cells[first : first + 6])
    times = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    times.add_column("time of")
    times.add_column("share by phase")
    for role, phases in status["time"].items():
        spent = sorted(((share, name) for name, share in phases.items() if share >= 0.005), reverse=True)
        times.add_row(role, "  ".join(f"{name} {share:.0%}" for share, name in spent) or "-")
    processes = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("process", "state", "doing"):
        processes.add_column(heading)
    for heading in ("pid", "cpu", "core", "memory"):
        processes.add_column(heading, justify="right")
    # A low terminal cuts off the end, and producers may be many.
    for process in sorted(status["processes"], key=lambda process: process["role"] == "producer"):
        processes.add_row(
            f"{process['role']} {process['index']}",
            process["state"],
            process["phase"],
            str(process["pid"]),
            f"{process['cpu']:.0%}",
            _show(process["core"], "d"),
            f"{process['resident_bytes'] / 2**20:.0f} MiB",
        )
    warnings = [Text(f"warning: {warning}", "yellow") for warning in status.get("warnings", ())]
    return Group(title, *warnings, facts, times, processes)


def _show(value: Any, form: str, missing: str = "-") -> str:
    return missing if value is None else format(value, form)


def _si(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f}"


def _bar(value: int, whole: int) -> str:
    cells = round(BAR_CELLS * value / whole) if whole else 0
    return "#" * cells + "." * (BAR_CELLS - cells)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
