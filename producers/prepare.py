"""From a run file to shared memory: what is checked and created before the first process starts."""

from __future__ import annotations

import importlib.metadata
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import config
from monitor import rundir
from producers import cores, footprint, native, probing, program, takeover

SNAPSHOT_MARGIN_BYTES = 1 << 20
RECORDED_BYTES = 32 << 20  # of one agent in one slot: half of what a reader of archives takes for a block
RECORDED_AGENTS = 500_000  # whose numbers are half of what it takes for a schema
OTHER_PROCESSES = 6  # in the process table: supervisor, exporter, recorder, evaluator, two sinks


class Missing(Exception):
    """Something that the run needs is not there: a core, a native part, memory."""


@dataclass(frozen=True)
class Prepared:
    """Everything that is known before anything is created."""

    document: config.Document
    library: Path
    """The simulator."""
    spec: dict[str, Any]
    """What the simulator says of itself under this run's parameters."""
    parameters: dict[str, int | float | bool]
    worlds: int
    """Of one producer."""
    program: program.Program
    placement: cores.Placement
    machine: cores.Machine
    hardware: footprint.Hardware

    @property
    def config(self) -> config.Config:
        """With the simulator's own defaults, and with no path that depends on where we are."""
        settings = self.document.config
        name = settings.sim.name if self.library.is_relative_to(native.SIMULATORS) else str(self.library)
        return settings.model_copy(update={"sim": config.Sim(name=name, **self.parameters)})

    @property
    def warnings(self) -> list[str]:
        return [*self.document.warnings, *self.placement.warnings, *self._one_group, *self._no_gpu]

    @property
    def _no_gpu(self) -> list[str]:
        """Not an error: whoever starts a process with torch will know better."""
        settings = self.document.config
        wanted = [("learner", settings.learner.device)] + [("server", settings.server.device)] * bool(
            settings.servers
        )
        return [
            f"{who}.device: cuda, but nvidia-smi tells of no GPU here"
            for who, device in wanted
            if device == "cuda" and not self.hardware.gpu_bytes
        ]

    @property
    def _one_group(self) -> list[str]:
        if not self.document.config.servers or self.worlds % 2 == 0:
            return []
        return [
            f"policy.placement: server, and worlds of each producer: {self.worlds}. That is one group of "
            "agents, which stands still while the server computes; of an even number of worlds one half "
            "would step meanwhile (producers.agents)"
        ]


def prepare(path: str, overrides: Sequence[str]) -> Prepared:
    """Reads the run file and checks it against this machine and the simulator. Creates nothing.

    Raises config.ConfigError, config.Unreadable or Missing.
    """
    machine = cores.read_machine()
    return fit(config.read(path, overrides, cores=machine.capacity), machine)


def fit(document: config.Document, machine: cores.Machine) -> Prepared:
    """The same for a run file that was read. Raises config.ConfigError or Missing."""
    settings = document.config
    try:
        native.check_abi()
        library = native.simulator_path(settings.sim.name)
        parameters = config.check_sim(document, native.describe(library))
        spec = native.describe(library, parameters)
    except native.UnknownSimulator as error:
        raise document.error("sim.name", f"{error}; there are: {', '.join(error.known)}") from None
    except native.RefusedParameters:
        given = ", ".join(f"{name}: {value}" for name, value in settings.sim.parameters.items())
        raise document.error(
            "sim.name",
            f"{settings.sim.name} refuses what it is given, each of which is within its bounds, in this "
            f"combination: {given}; what it says of them: producers/producer --describe {settings.sim.name}",
        ) from None
    except native.NativeError as error:
        raise Missing(str(error)) from None
    worlds = config.check_agents(document, spec)
    try:
        built = probing.build(settings.policy, spec)
    except program.ProgramError as error:
        text = str(error) if str(error).startswith("policy.") else f"policy: {error}"
        key, _, why = text.partition(": ")
        raise document.error(key, why) from None
    if settings.learner.burn_in and not built.state_width:
        why = f"warms up a recurrent state, but {settings.policy.module} has none; needs 0"
        raise document.error("learner.burn_in", why)
    try:
        placement = cores.place(machine, settings.producers.cores, int(settings.producers.count))
    except cores.NoSuchCore as error:
        raise document.error("producers.cores", str(error)) from None
    except cores.CoreNotAllowed as error:
        raise Missing(str(document.error("producers.cores", str(error)))) from None
    _require_packages(document)
    hardware = footprint.read_hardware()
    settings = footprint.resolve(_with_watch(document, spec), built, hardware)
    document = replace(document, config=settings)
    return Prepared(document, library, spec, parameters, worlds, built, placement, machine, hardware)


def _with_watch(document: config.Document, spec: dict[str, Any]) -> config.Config:
    """The settings with `watch.enabled: auto` worked out. Raises config.ConfigError."""
    settings, draws = document.config, bool(spec["render_text"] or spec["render_rgb"])
    if settings.watch.enabled is True and not draws:
        text = f"simulator {spec['name']} draws neither text nor pictures; needs auto or false"
        raise document.error("watch.enabled", text)
    enabled = draws if settings.watch.enabled == "auto" else settings.watch.enabled
    return settings.model_copy(update={"watch": settings.watch.model_copy(update={"enabled": enabled})})


def _require_packages(document: config.Document) -> None:
    """Those of the sinks that are asked for. Raises Missing."""
    for kind in document.config.sinks.kinds:
        try:
            importlib.metadata.distribution(kind)
        except importlib.metadata.PackageNotFoundError:
            text = f"needs the package {kind}, which is not there; {sys.executable} -m pip install {kind}"
            raise Missing(str(document.error(f"sinks.{kind}", text))) from None


class Layout:
    """What memory a run needs. Creates nothing. Raises config.ConfigError if no memory would do, Missing if
    this machine has too little for what its learners are estimated to need."""

    def __init__(self, prepared: Prepared):
        # Not before native.check_abi has passed: a missing extension gets a message, not a traceback.
        import ringbuf

        settings, document = prepared.config, prepared.document
        producers, self.slots = int(settings.producers.count), settings.ring.slots
        learners, most = settings.learner.count, ringbuf.MAX_LEARNERS
        if learners > most:
            raise document.error("learner.count", f"found {learners}; needs {most} or fewer")
        servers, most = settings.servers, ringbuf.MAX_SERVERS
        if servers > most:
            raise document.error("server.count", f"found {servers}; needs {most} or fewer")
        room = ringbuf.MAX_PROCESSES - OTHER_PROCESSES - learners - servers
        if producers > room:
            raise document.error("producers.count", f"found {producers}; needs {room} or fewer")
        weights = prepared.program.count
        self.channel: dict[str, Any] = {
            "count": weights,
            "buffers": max(3, settings.staleness.exact + 2),
            "program": prepared.program.encode(),
            "snapshot_bytes": _snapshot_bytes(prepared),
            "list_entries": settings.learner.batch_slots,
        }
        sizes = {**self.channel, "program_bytes": len(self.channel["program"])}
        del sizes["program"]
        try:
            self.plans = [_plan(prepared, ring) for ring in range(producers)]
            self.total_bytes = ringbuf.control_bytes() + ringbuf.weights_bytes(**sizes)
            self.total_bytes += sum(ringbuf.ring_bytes(plan, self.slots) for plan in self.plans)
        except (ValueError, ringbuf.RingError) as error:
            slot = f"a slot of {settings.rollout.horizon} steps of {settings.producers.agents} agents"
            raise document.error("rollout.horizon", f"{slot} is impossible: {error}") from None
        if settings.archive.enabled:
            self._check_archive(prepared)
        self._check_learners(prepared)

    def _check_archive(self, prepared: Prepared) -> None:
        """Whether its blocks hold what is to be recorded, and its schema the numbers of whom. Raises
        ConfigError."""
        archive, document = prepared.config.archive, prepared.document
        part = self.plans[0].payload_bytes // self.plans[0].agents
        if part > RECORDED_BYTES:
            why = f"an agent's part of a slot is {part} bytes; at most {RECORDED_BYTES} can be recorded"
            raise document.error("archive.enabled", f"{why}: make rollout.horizon smaller")
        tapped = [plan for plan in self.plans if archive.rings == "all" or plan.ring in archive.rings]
        agents = sum(plan.agents for plan in tapped)
        recorded = int(archive.fraction * agents)
        if recorded > RECORDED_AGENTS:
            raise document.error(
                "archive.fraction", f"{recorded} of {agents} agents; needs {RECORDED_AGENTS} or fewer"
            )

    @property
    def warnings(self) -> list[str]:
        """That there is too little shared memory as things are, which may be what this very run has."""
        import ringbuf
        from ringbuf import segments

        try:
            segments.preflight(self.total_bytes)
        except ringbuf.ResourceMissing as error:
            return [str(error)]
        return []

    def _check_learners(self, prepared: Prepared) -> None:
        """Raises Missing where they are estimated to need more memory than there is."""
        from ringbuf import segments

        found = footprint.shortfall(
            prepared.config, prepared.program, prepared.hardware, segments.memory_bytes(), self.total_bytes
        )
        if found is not None:
            raise Missing(str(prepared.document.error(*found)))

    def names(self, run_id: uuid.UUID) -> list[str]:
        """Of the segments: control block, weights channel, rings."""
        from ringbuf import segments

        parts = ["control", "weights", *(f"ring-{ring}" for ring in range(len(self.plans)))]
        return [segments.name(run_id.bytes, part) for part in parts]


class Segments:
    """The run's shared memory: control block, weights channel, one ring a producer.

    `close` unlinks the names; processes that hold a descriptor keep their memory until they end.
    """

    def __init__(
        self,
        prepared: Prepared,
        run_id: uuid.UUID,
        *,
        directory: str = "",
        resume: takeover.Resume | None = None,
        left: takeover.Left | None = None,
    ):
        """Creates them, or takes over those of an earlier attempt. Raises Missing if there is too little
        memory, config.ConfigError if no memory would do."""
        import ringbuf
        from ringbuf import books, segments

        layout = Layout(prepared)
        self.run_id, self.resume = run_id, resume or takeover.Resume()
        self.total_bytes = layout.total_bytes
        self.slot_bytes = layout.plans[0].payload_bytes
        self.unlink = segments.unlink
        self._at_rest = books.at_rest
        self.stop_reasons: Sequence[str] = ringbuf.STOP_REASONS
        if left is not None:
            self.names, self.control, self.weights = left.names, left.control, left.weights
            self.rings = left.rings
            return
        self.names = layout.names(run_id)
        base = self.resume.restart_base
        try:
            segments.preflight(self.total_bytes)
            self.control = segments.create_control(self.names[0], run_id.bytes, directory)
            self.weights = segments.create_weights(self.names[1], run_id=run_id.bytes, **layout.channel)
            self.rings = [
                segments.create_ring(
                    name, replace(plan, restart_base=base), layout.slots, run_id.bytes, self.control
                )
                for name, plan in zip(self.names[2:], layout.plans, strict=True)
            ]
            self.resume.load_worlds(self.rings)
        except ringbuf.ResourceMissing as error:
            self.close()
            raise Missing(str(error)) from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, prepared: Prepared, directory: rundir.RunDirectory) -> Segments:
        """Begins an attempt in `directory` with the memory it needs: that of a killed one where the run can
        go on in it, else new. Raises Missing or config.ConfigError, also if the run cannot go on so
        configured, or rundir.Unavailable."""
        layout = Layout(prepared)
        resume, left = takeover.resume(prepared, layout, directory)
        run_id = uuid.uuid4() if left is None else uuid.UUID(bytes=left.control.run_id)
        directory.begin()
        directory.write_attempt(
            run_id.hex,
            layout.names(run_id),
            resumed=resume.kind,
            before=resume.before.to_json(),
            began_ns=resume.began_ns,
            above=resume.above,
        )
        where = str(directory.path)
        try:
            try:
                made = cls(prepared, run_id, directory=where, resume=resume, left=left)
            except takeover.StateMisfit as error:
                resume = resume.without_worlds(str(error))
                made = cls(prepared, run_id, directory=where, resume=resume)
        except BaseException:
            directory.withdraw_attempt()
            raise
        if left is not None:
            left.take_over(directory.attempt)
        takeover.enter_supervisor(made.control, directory.attempt)
        return made

    def audit(self, ring: Any) -> list[str]:
        """What is wrong with the books of a ring whose processes are gone: nothing may be in flight."""
        counts = ring.books()
        left = [f"{counts['in_flight']} slots are still in flight"] if counts["in_flight"] else []
        return self._at_rest(counts) + left

    def leave(self) -> None:
        """Has `close` spare what was taken over, for an attempt that could not begin: the next one may."""
        if self.resume.kind == "attached":
            self.names = []

    def close(self) -> None:
        for name in self.names:
            self.unlink(name)


def _snapshot_bytes(prepared: Prepared) -> int:
    """Room for a hot snapshot: two moments of each weight, and the anchor's if there is one, two of each
    feature, the episodes of the score."""
    settings, built = prepared.config, prepared.program
    episodes = max(settings.stop.window, int(settings.producers.count) * settings.producers.agents)
    weights = 2 + settings.learner.anchored
    moments = weights * 4 * built.count + 2 * 8 * built.buffers[built.obs].width
    return moments + 8 * episodes + SNAPSHOT_MARGIN_BYTES


def _plan(prepared: Prepared, ring: int) -> Any:
    from ringbuf.plan import Plan

    settings, spec = prepared.config, prepared.spec
    heads = spec["heads"]
    return Plan.build(
        sim=spec["name"],
        horizon=settings.rollout.horizon,
        worlds=prepared.worlds,
        world_agents=spec["agents"],
        obs_dtype=spec["obs"]["dtype"],
        obs_shape=tuple(spec["obs"]["shape"]),
        choices=tuple(head["choices"] for head in heads if "choices" in head),
        action_low=tuple(head["low"] for head in heads if "low" in head),
        action_high=tuple(head["high"] for head in heads if "high" in head),
        has_mask=spec["mask"],
        state_width=prepared.program.state_width,
        statistics=len(spec["statistics"]),
        score=spec["score"],
        unpacked_step_bytes=prepared.program.unpacked_step_bytes(spec),
        mode="exact" if settings.exact else "async",
        full=settings.ring.full,
        pickup=settings.weights.pickup,
        lagged_versions=settings.staleness.exact,
        producers=int(settings.producers.count),
        batch_slots=settings.learner.batch_slots,
        ring=ring,
        run_seed=settings.run.seed,
        first_world=ring * prepared.worlds,
        first_agent=ring * settings.producers.agents,
        # Ahead by K versions, a state between two slots lies on no border of a version.
        world_state_bytes=spec["state_bytes"] if settings.exact and settings.staleness.exact == 0 else 0,
        groups=2 if settings.servers and prepared.worlds % 2 == 0 else 1,
        server=1 + ring * settings.servers // int(settings.producers.count) if settings.servers else 0,
        params={name: float(value) for name, value in prepared.parameters.items()},
    )
