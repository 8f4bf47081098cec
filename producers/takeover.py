"""What earlier attempts of a run left: shared memory to go on in or to count and clear away, and checkpoints.

Whoever is here holds the run's lock, so nobody of the run lives. Every step may be the last one before a
SIGKILL: what is in memory is counted into the attempt's file before it goes, sweeps can be repeated, and
names stand in an attempt's file before what they name is created.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import config
from config.places import emit
from consumers import shelf
from monitor import procfs, rundir
from monitor.status import Table
from monitor.totals import Totals

if TYPE_CHECKING:
    from producers.prepare import Layout, Prepared

RESTARTS_AN_ATTEMPT = 1 << 16  # restart numbers of worlds; what an epoch of a ring stays far below
NOT_COMPARED = ("run.name", "run.dir")
SIMULATOR = ("name", "agents", "obs", "heads", "mask", "statistics", "score")  # of its spec


class StateMisfit(Exception):
    """The producers' saved states are not of this run. The message is one line."""


@dataclass(frozen=True)
class Resume:
    """How this attempt goes on."""

    kind: str = "new"  # or attached: in the memory of the last one; or checkpoint
    attempt: int = 1
    version: int | None = None
    """Goes on from it; None: begins with version 0."""
    checkpoint: Path | None = None
    above: int | None = None
    """The newest version known to have been published: where a run goes on at once, the next is newer."""
    began_ns: int | None = None
    """CLOCK_MONOTONIC at which existing rings were taken over."""
    restart_base: int = 0
    worlds: tuple[Path, ...] = ()
    """States that the producers go on from, one a ring; else they begin from reset."""
    exact: bool = False
    """Whether what comes is, bit for bit, what would have come without the interruption."""
    before: Totals = field(default_factory=Totals)
    """What is to be added to the counts of the rings; seconds and restarts are of all earlier attempts."""
    lineage: Mapping[str, Any] = field(default_factory=dict)
    """state.json of the checkpoint."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""

    def arguments(self) -> list[str]:
        """What every learner of a later attempt is told."""
        told = [] if self.attempt == 1 else ["--seconds-before", repr(self.before.seconds)]
        return told if self.began_ns is None else [*told, "--began", str(self.began_ns)]

    def load_worlds(self, rings: Sequence[Any]) -> None:
        """Gives every ring the state that its producer goes on from. Raises StateMisfit."""
        from ringbuf import RingError

        for ring, path in zip(rings, self.worlds, strict=False):
            try:
                ring.load_state(path.read_bytes())
            except RingError as error:
                raise StateMisfit(f"{path}: {error}") from None

    def without_worlds(self, why: str) -> Resume:
        """The same, but for worlds that begin from reset."""
        first, *rest = self.notes
        notes = (f"{first}; resume: not exact, because {why}", *rest)
        return replace(self, worlds=(), exact=False, notes=notes)

    def report(self) -> dict[str, Any]:
        """For status.json."""
        return {"kind": self.kind, "version": self.version, "exact": self.exact,
                "notes": list(self.notes)}


def resume(prepared: Prepared, layout: Layout, directory: rundir.RunDirectory) -> tuple[Resume, Left | None]:
    """How the run in `directory` goes on, with what is taken over, swept already. What is not taken over is
    counted in the directory and removed. Raises config.ConfigError, before anything has changed, or
    rundir.Unavailable."""
    from ringbuf import segments

    earlier = directory.earlier
    if earlier is None:
        for name in directory.stale_segments():
            segments.unlink(name)
        return Resume(), None
    notes = compare(prepared, directory)
    left, published = _look(prepared, layout, directory, earlier, notes)
    for name in directory.stale_segments():
        if left is None or name not in left.names:
            segments.unlink(name)
    checkpoint = shelf.newest_good(directory.path / "checkpoints", notes.append)
    lineage = {} if checkpoint is None else shelf.state(checkpoint)
    version = lineage.get("version")
    attempt, exact = directory.attempt, prepared.config.exact
    last = earlier.last
    seen = (published, last.get("published"), last.get("above"), earlier.status.get("version"))
    made = Resume(attempt=attempt, checkpoint=checkpoint, lineage=lineage, version=version,
                  above=max((one for one in seen if one is not None), default=None))
    if left is not None:
        before = Totals.from_json(last.get("before"))
        so_far = left.totals(before)
        made = replace(made, kind="attached", began_ns=time.monotonic_ns(),
                       before=replace(before, seconds=so_far.seconds, restarts=so_far.restarts))
        where = "goes on in memory"
        if published is not None:
            made = replace(made, version=published)
            where += f" from version {published} (hot snapshot)"
        return _noted(made, notes, where), left
    made = replace(made, before=Totals.from_json(last.get("totals")),
                   restart_base=(attempt - 1) * RESTARTS_AN_ATTEMPT)
    if checkpoint is None:
        # Nothing was learnt. Where runs repeat, this one is what the first attempt would have been.
        gone = "its checkpoints are gone" if made.above else "no checkpoint yet"
        made = replace(made, restart_base=0 if exact else made.restart_base, exact=exact)
        return _noted(made, notes, f"{gone}, begins at version 0"), None
    worlds, why_not = _worlds(prepared, layout, checkpoint)
    where = f"goes on from version {version} (checkpoint)"
    made = _noted(replace(made, kind="checkpoint", worlds=worlds, exact=bool(worlds)), notes, where)
    if not exact or worlds:
        return made, None
    # At version 0 nothing was learnt either: a stop came before the first worlds were saved.
    return made.without_worlds(why_not) if version else replace(made, restart_base=0, exact=True), None


def _noted(made: Resume, notes: Sequence[str], where: str) -> Resume:
    return replace(made, notes=(f"attempt {made.attempt}: {where}", *notes))


def _look(
    prepared: Prepared,
    layout: Layout,
    directory: rundir.RunDirectory,
    earlier: rundir.Earlier,
    notes: list[str],
) -> tuple[Left | None, int | None]:
    """What a killed attempt left in memory, if the run can go on in it; else what that comes to is written
    down. Also the version it had published."""
    from ringbuf import RingError

    if earlier.last.get("totals") is not None:  # it came to its end, or was counted already
        return None, None
    try:
        left = Left(earlier.last)
    except RingError:
        directory.settle_earlier(totals_without(earlier).to_json(), None)
        return None, None
    published = left.published
    wrong = left.sweep()
    why_not = "; ".join(wrong) or left.misfit(prepared, layout, directory)
    if not why_not:
        return left, published
    exact = prepared.config.exact
    left.drop("rollback" if exact else "shutdown")
    totals = totals_without(earlier) if wrong else left.totals(Totals.from_json(earlier.last.get("before")))
    directory.settle_earlier(totals.settled().to_json(), published)
    left.close()
    if not exact:
        notes.append(f"what attempt {earlier.number} left in memory is dropped: {why_not}")
    return None, published


def _worlds(prepared: Prepared, layout: Layout, checkpoint: Path) -> tuple[tuple[Path, ...], str]:
    """The producers' states in a checkpoint, one a ring; or none, and why."""
    settings = prepared.config
    if settings.staleness.exact:
        return (), "producers are ahead of the learner by staleness.exact versions"
    if not prepared.spec["state_bytes"]:
        return (), f"{prepared.spec['name']} cannot save its worlds"
    worlds = tuple(shelf.worlds(checkpoint))
    if not worlds:
        return (), "the checkpoint holds no worlds"
    plans = layout.plans
    if len(worlds) != len(plans):
        return (), f"producers.count is {len(plans)}, and the checkpoint has the worlds of {len(worlds)}"
    if any(path.stat().st_size != plan.state_bytes for path, plan in zip(worlds, plans, strict=True)):
        return (), "the checkpoint's worlds are of another size"
    return worlds, ""


class Left:
    """The segments of a killed attempt, attached as its supervisor."""

    def __init__(self, record: Mapping[str, Any]):
        """`record`: the attempt's file. Raises ringbuf.RingError where not all are there and sound."""
        import ringbuf
        from ringbuf import RingError, segments

        names = list(record.get("segments", ()))
        if len(names) < 3:
            raise RingError("shared memory: the attempt before names none")
        self.control = segments.attach_control(names[0])
        self.weights = segments.attach_weights(names[1])
        self.rings = [segments.attach_ring(name, self.control) for name in names[2:]]
        self.names = names
        roles = (self.control.process(slot).role for slot in range(ringbuf.MAX_PROCESSES))
        self.learners = sum(role == "learner" for role in roles)
        """None: it was killed before it had written the table."""
        servers = max(ring.plan.server for ring in self.rings)
        self.table = Table.of(len(self.rings), max(1, self.learners), servers)
        self._record = record
        if self.control.run_id.hex() != str(record.get("run_id")):
            raise RingError(f"shared memory: {names[0]} belongs to another run")

    @property
    def published(self) -> int | None:
        return self.weights.published

    def sweep(self) -> list[str]:
        """Repairs what all the dead left half done, a supervisor in its sweep included. Returns what is wrong
        with the books nevertheless."""
        from ringbuf import books

        for index, slot in enumerate(self.table.producers):
            self.control.set_process(slot, role="producer", role_index=index)
        for index, slot in enumerate(self.table.learners):
            self.control.set_process(slot, role="learner", role_index=index)
        for index, slot in enumerate(self.table.servers):
            self.control.set_process(slot, role="server", role_index=index)
        listed = self.weights.consumed_list() if self.weights.published is not None else []
        wrong = []
        for ring in self.rings:
            ring.sweep_producer()
            ring.sweep_learner(None, listed)
            ring.sweep_server()
            ring.set_owner(None)
            ring.lower_granted_to_head()
            wrong += [f"ring {ring.index}: {problem}" for problem in books.at_rest(ring.books())]
        return wrong

    def misfit(self, prepared: Prepared, layout: Layout, directory: rundir.RunDirectory) -> str:
        """Why a run so configured cannot go on in it; empty: it can."""
        if prepared.config.exact:
            return "in this mode a run goes back to its last checkpoint"
        if self.control.directory != str(directory.path):
            return f"it was made for {self.control.directory}"
        if self.control.pid_namespace != os.stat("/proc/self/ns/pid").st_ino:
            return "it was made in another container"
        learners = prepared.config.learner.count
        if self.learners not in (0, learners):
            return f"it was made for {self.learners} learners, and this run has {learners}"
        channel = {name: getattr(self.weights, name) for name in layout.channel}
        if channel != layout.channel:
            return "the weights are laid out otherwise"
        if len(self.rings) != len(layout.plans):
            return f"it has {len(self.rings)} rings, and this run needs {len(layout.plans)}"
        for ring, plan in zip(self.rings, layout.plans, strict=True):
            found = ring.plan
            if ring.slots != layout.slots:
                return f"it has rings of {ring.slots} slots"
            if found.pack() != replace(plan, restart_base=found.restart_base).pack():
                return "slots or producers are laid out otherwise"
        return ""

    def drop(self, reason: str) -> None:
        """Frees and counts every slot."""
        for ring in self.rings:
            for state, sequence, *_ in ring.observe().slots:
                if state in ("ready", "bad"):
                    ring.drop(sequence, "bad" if state == "bad" else reason)

    def totals(self, before: Totals) -> Totals:
        """Of all attempts up to this one: `before` is what the rings do not know of."""
        counted = Totals.read(self.control, self.rings, self.table.producers, self.table.learner)
        return before + replace(counted, seconds=self._seconds(), restarts=self._restarts())

    def _seconds(self) -> float:
        """Of the attempt, from its first commit to the last sign of its supervisor, or to its last commit if
        it was to stop: the clock stands still from the stop flag on."""
        books = [ring.books() for ring in self.rings]
        first = min((one["first_commit_ns"] for one in books if one["first_commit_ns"]), default=None)
        if first is None:
            return 0.0
        end = max(one["last_commit_ns"] for one in books)
        supervisor = self.control.process(0)
        if self.control.stop is None and supervisor.epoch == self._record.get("attempt"):
            end = max(end, supervisor.heartbeat_ns)
        return max(0.0, (end - max(first, self._record.get("began_ns") or 0)) / 1e9)

    def _restarts(self) -> dict[str, int]:
        """Of the attempt. An attempt that was killed before it had the table has had none."""
        if self.control.process(0).epoch != self._record.get("attempt"):
            return {}
        restarts: dict[str, int] = {}
        for slot in self.table.all:
            one = self.control.process(slot)
            if one.epoch:
                restarts[one.role] = restarts.get(one.role, 0) + one.epoch - 1
        return restarts

    def take_over(self, attempt: int) -> None:
        """Makes the control block that of a run under way whose processes have yet to start."""
        from ringbuf import Control

        control = self.control
        for slot in self.table.all:
            control.set_process(slot, pid=0, start_time=0, state="exited", epoch=0)
            control.reset_pulse(slot)
        Control.attach(control.fd, self.table.learner).counter_set("stop_request", 0)
        control.set_stop("run")
        control.set_producers_gone(False)
        enter_supervisor(control, attempt)

    def close(self) -> None:
        for ring in self.rings:
            ring.close()
        self.weights.close()
        self.control.close()


def enter_supervisor(control: Any, attempt: int) -> None:
    """Writes this process into the table, which belongs to `attempt` from then on."""
    used = procfs.usage(os.getpid())
    control.set_process(0, role="supervisor", role_index=0, pid=os.getpid(), state="running", epoch=attempt,
                        start_time=used.start_ticks if used else 0)


def totals_without(earlier: rundir.Earlier) -> Totals:
    """Of all earlier attempts, where the last one has left no rings: from its file if it was closed, else
    from its last status.json, which may be a second old; what was in flight then counts as dropped."""
    last = earlier.last
    if last.get("totals") is not None:
        return Totals.from_json(last["totals"])
    if not last or earlier.status.get("attempt") == earlier.number:
        return Totals.from_json(earlier.status.get("totals")).settled()
    return Totals.from_json(last.get("before"))


def compare(prepared: Prepared, directory: rundir.RunDirectory) -> list[str]:
    """What is configured otherwise than in the attempt before, one line for all of it. Raises
    config.ConfigError where the weights there are would not fit."""
    manifest = directory.earlier.manifest if directory.earlier else {}
    path = directory.path / rundir.RESOLVED
    try:
        was = dict(_flat(config.load_resolved(path).model_dump(mode="json")))
    except (config.Unreadable, config.ConfigError):
        return [] if not path.exists() else [f"{path} cannot be read: not compared with what it was"]
    now = dict(_flat(prepared.config.model_dump(mode="json")))
    spec, seen = manifest.get("simulator") or {}, prepared.spec
    other = [key for key in SIMULATOR if key in spec and spec[key] != seen.get(key)]
    program = manifest.get("program", prepared.program.fingerprint)
    changed = {key: (was.get(key), now.get(key)) for key in sorted(was.keys() | now.keys())
               if was.get(key) != now.get(key) and key not in NOT_COMPARED}
    for key, (old, new) in changed.items():
        rebuilt = key.startswith("policy.") and program != prepared.program.fingerprint
        # Another path to the same simulator is no other simulator.
        if rebuilt or (key.startswith("sim.") and key != "sim.name") or (key == "sim.name" and other):
            raise _refusal(prepared, key, _show(old), _show(new))
    for key in other:
        raise _refusal(prepared, "sim.name", f"{key} {spec[key]}", f"{key} {seen.get(key)}")
    if program != prepared.program.fingerprint:
        raise _refusal(prepared, "policy", f"program {program}", f"program {prepared.program.fingerprint}")
    if not changed:
        return []
    text = ", ".join(f"{key} {_show(old)} -> {_show(new)}" for key, (old, new) in changed.items())
    return [f"changed since attempt {directory.attempt - 1}: {text}"]


def _refusal(prepared: Prepared, key: str, old: str, new: str) -> config.ConfigError:
    text = f"{new} now, but this run began with {old}, which its weights are made for"
    return prepared.document.error(key, f"{text}; --fresh moves it aside and starts anew")


def _show(value: Any) -> str:
    return "nothing" if value is None else str(emit(value))


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, item in value.items():
        rows += _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else [(prefix + key, item)]
    return rows
