"""Who is in the process table of a run, and with which command lines and descriptors they are started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import config
from monitor import restarts
from monitor.children import Member
from monitor.roster import Roster
from monitor.status import Table


@dataclass(frozen=True)
class Places:
    """What the processes of a run are given beside its memory."""

    producer: Path
    """The producers' program."""
    simulator: Path
    """The simulator's library."""
    cores: Sequence[int]
    """Of the producers."""
    port: int
    """Descriptor of the socket that the exporter answers on."""
    meeting: int
    """Descriptor of the file in which learners find each other."""
    watch: tuple[int, int] | None
    """Descriptors of the line on which the agent is watched, the evaluator's end and the exporter's; None:
    there is no evaluator."""


def enlist(roster: Roster, table: Table, settings: config.Config, segments: Any, places: Places) -> None:
    """Fills the table; every row's first process is due at once."""
    for member, program, arguments in _rows(table, settings, segments, places):
        roster.add(member, program, arguments)


def _rows(
    table: Table, settings: config.Config, segments: Any, places: Places
) -> Iterator[tuple[Member, list[str], list[str]]]:
    """Each member with its program and the arguments that are its role's own."""
    channel = ["--control", str(segments.control.fd), "--weights", str(segments.weights.fd)]
    rings = [ring.fd for ring in segments.rings]
    every = [*channel, "--rings", ",".join(map(str, rings))]
    fds = [segments.control.fd, segments.weights.fd]
    all_fds = [*fds, *rings]

    exporter_fds, watched = [*all_fds, places.port], []
    if places.watch is not None:
        exporter_fds.append(places.watch[1])
        watched = ["--watch", str(places.watch[1])]
    exporter = _observer("exporter", 0, table.exporter, exporter_fds)
    yield exporter, _python("monitor.exporter"), [*every, "--socket", str(places.port), *watched]
    together = restarts.Restarts()  # they live and die together
    meeting = ["--learners", str(settings.learner.count), "--meeting", str(places.meeting)]
    for index, slot in enumerate(table.learners):
        learner = Member("learner", index, slot, [*all_fds, places.meeting], restarts=together)
        yield learner, _python("consumers.learner"), [*every, *meeting]
    for index, slot in enumerate(table.servers):
        own = [ring.fd for ring in segments.rings if ring.plan.server == index + 1]
        server = Member("server", index, slot, [*fds, *own])
        yield server, _python("consumers.server"), [*channel, "--rings", ",".join(map(str, own))]
    if table.recorder is not None:
        yield _observer("recorder", 0, table.recorder, all_fds), _python("consumers.recorder"), every
    for index, (kind, slot) in enumerate(zip(settings.sinks.kinds, table.sinks)):
        sink = _observer("sink", index, slot, [segments.control.fd])
        yield sink, _python("monitor.sinks"), ["--control", str(segments.control.fd), "--kind", kind]
    if table.evaluator is not None and places.watch is not None:
        evaluator = _observer("evaluator", 0, table.evaluator, [*fds, places.watch[0]])
        yield evaluator, _python("consumers.player"), [*channel, "--watch", str(places.watch[0])]
    for index, core in enumerate(places.cores):
        producer = Member("producer", index, table.producers[index], [*fds, rings[index]], core)
        arguments = ["--ring", str(rings[index]), "--sim", str(places.simulator), "--core", str(core)]
        yield producer, [str(places.producer)], [*channel, *arguments]


def _observer(role: str, index: int, slot: int, fds: Sequence[int]) -> Member:
    """One that only looks: it is started for ever, since training does without it."""
    return Member(role, index, slot, fds, restarts=restarts.Restarts(gives_up=False))


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", module]
