"""Runs a run: checks what it needs, spawns its processes, watches them, stops them in order.

    python supervisor.py RUN.yaml [section.key=value ...] [--check] [--print-config] [--print-schema]
                         [--plain] [--resume | --fresh]

One process, one thread, no torch, no numpy. `Supervisor.arbitrate` is the loop: reap, judge, advance, report,
sleep.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import config
from monitor import display, manifest, procfs, rundir, status
from producers import native
from producers.prepare import Missing, Prepared, Segments, prepare

EXIT_DONE = 0
EXIT_USAGE = 2
EXIT_CONFIG = 64
EXIT_MISSING = 69
EXIT_INTERNAL = 70
EXIT_GAVE_UP = 75
EXIT_SIGNAL = 128  # and the signal's number: a second signal forced the end
PASSED_ON = (EXIT_CONFIG, EXIT_MISSING, EXIT_GAVE_UP)  # exit codes of children that become the run's own

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # HUP: the terminal is gone
DONE_REASONS = ("steps", "seconds", "versions", "score")  # asked for by the run file: the run is done

TICK_SECONDS = 0.1
REPORT_SECONDS = 1.0
LOG_LIMIT_SECONDS = 10.0
EXPORTER_STOP_SECONDS = 3.0
STARTING_STOP_SECONDS = 1.0  # a stop waits so long for a producer that is still making its worlds
EVALUATE_START_SECONDS = 60.0  # importing torch from a slow disk, on top of the evaluation's own deadline


# torch's threads wait for each other at every operation. By default they spin: measured at 2 threads on 2
# cores, with now and then another process on them, that is six times slower than to sleep.
CHILD_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}


class Phase(Enum):
    """Where the run is in the one order of its life."""

    RUN = auto()
    STOP_PRODUCERS = auto()
    STOP_LEARNER = auto()
    EVALUATE = auto()
    OVER = auto()


@dataclass(frozen=True)
class Child:
    """A process of the run. `slot`: its index in the process table; None: it has none."""

    role: str
    index: int
    slot: int | None
    popen: subprocess.Popen[bytes]
    pidfd: int

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


class Supervisor:
    """Owns the process table of one run, from the first spawn to the last unlink."""

    def __init__(self, prepared: Prepared, directory: rundir.RunDirectory, *, plain: bool):
        """Takes what the run needs of the machine: port and shared memory. Raises Missing."""
        self.prepared = prepared
        self.config = prepared.config
        self.directory = directory
        self.run_id = uuid.uuid4()
        self.started = time.monotonic()
        self.table = status.Table.of(int(self.config.producers.count))
        # Processes
        self.children: dict[int, Child] = {}  # by pidfd
        self.exited: list[Child] = []  # known to be dead, not yet reaped
        self.killed: set[Child] = set()  # by ourselves
        self.poll = select.poll()
        self.signals, self.wakeup = socket.socketpair()
        self.pending = b""  # signals not yet acted on
        # Progress
        self.phase = Phase.RUN
        self.reason = ""  # why the run stops, in the control block's words
        self.signalled = False
        self.code = EXIT_DONE
        self.message: str | None = None  # what went wrong first
        self.failed = False
        self.evaluate = False
        self.evaluated: dict[str, Any] | None = None
        self.stopping = self.deadline = self.half_deadline = float("inf")
        self.next_report = self.next_log_limit = 0.0
        # What the run holds
        self._install_signals()
        # Two descriptors a producer, and some systems allow a process 1024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.endpoint = listen(self.config.monitor.host, self.config.monitor.port)
        self.segments = Segments(prepared, self.run_id)
        self.reporter = status.Reporter(
            self.segments.control, self.segments.rings, self.table, self.config.lag_limit, self._facts()
        )
        self.display = display.make(plain=plain, interval_seconds=self.config.monitor.interval_seconds)

    # The life of a run

    def run(self) -> int:
        """From the first file written to the last segment unlinked; returns the exit code.

        Raises rundir.Unavailable, with everything given back, where the first files cannot be written.
        """
        try:
            self._open()
            self._spawn_all()
            self.arbitrate()
        except rundir.Unavailable:  # nothing was started
            self._give_back()
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave processes or memory behind
            self._bug(error)
        try:
            self._kill_all(but="exporter")
            self._close_books()
            self._conclude()
        except Exception as error:  # noqa: BLE001
            self._bug(error)
        finally:
            self._give_back()
        if self.message is not None:
            print(f"headrace: {self.message}", file=sys.stderr)
        return self.code

    def _give_back(self) -> None:
        self.display.close()
        self._kill_all()
        self.segments.close()
        self.endpoint.close()
        self.directory.release()

    def arbitrate(self) -> None:
        """The loop. Everything that happens to the run happens here."""
        while self.phase is not Phase.OVER:
            self._reap()
            self._judge()
            self._advance()
            self._report()
            self._sleep()

    # Starting

    def _facts(self) -> dict[str, Any]:
        host, port = self.endpoint.getsockname()[:2]
        return {
            "name": self.config.run.name,
            "run_id": self.run_id.hex,
            "simulator": self.prepared.spec["name"],
            "mode": self.config.mode,
            "address": f"http://{f'[{host}]' if ':' in host else host}:{port}",
            "warnings": self.prepared.warnings,
        }

    def _install_signals(self) -> None:
        """Signals only write their number into a socket, which ends the loop's sleep."""
        for end in (self.signals, self.wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda *_: None)
        self.poll.register(self.signals, select.POLLIN)

    def _open(self) -> None:
        """Writes what the processes and later readers need. Raises rundir.Unavailable."""
        for name in self.directory.stale_segments():
            self.segments.unlink(name)
        self.directory.begin()
        try:
            self._describe()
        except OSError as error:
            raise rundir.unwritable(self.directory.path, error) from None
        for warning in self.prepared.warnings:
            self.display.say(f"warning: {warning}")

    def _describe(self) -> None:
        """Attempt, configuration and manifest."""
        path, prepared = self.directory.path, self.prepared
        self.directory.write_attempt(self.run_id.hex, self.segments.names)
        resolved = config.dump_resolved(self.config)
        (path / "run.yaml").write_bytes(prepared.document.data)
        (path / rundir.RESOLVED).write_text(resolved)
        made_of = manifest.build(
            native.ROOT,
            name=self.config.run.name,
            run_id=self.run_id.hex,
            seed=self.config.run.seed,
            config_text=resolved,
            simulator=prepared.spec,
            program=prepared.program.fingerprint,
            producer_cores=list(prepared.placement.cores),
            shared_memory_bytes=self.segments.total_bytes,
            warnings=prepared.warnings,
        )
        rundir.write_json(path / rundir.MANIFEST, made_of, durable=True)

    def _spawn_all(self) -> None:
        segments, table = self.segments, self.table
        for ring in segments.rings:
            ring.set_owner(0)
        channel = ["--control", str(segments.control.fd), "--weights", str(segments.weights.fd)]
        every = [*channel, "--rings", ",".join(str(ring.fd) for ring in segments.rings)]
        fds = [segments.control.fd, segments.weights.fd]
        all_fds = [*fds, *(ring.fd for ring in segments.rings)]
        python = [sys.executable, "-m"]
        port = self.endpoint.fileno()
        (exporter,) = table.others
        self._spawn("exporter", 0, exporter, [*python, "monitor.exporter"], [*every, "--socket", str(port)],
                    [*all_fds, port])
        self._spawn("learner", 0, table.learner, [*python, "consumers.learner"], every, all_fds)
        simulator = ["--sim", str(self.prepared.library)]
        for index, core in enumerate(self.prepared.placement.cores):
            fd = segments.rings[index].fd
            arguments = [*channel, "--ring", str(fd), *simulator, "--core", str(core)]
            slot = table.producers[index]
            self._spawn("producer", index, slot, [str(native.PRODUCER)], arguments, [*fds, fd], core)

    def _spawn(self, role: str, index: int, slot: int, program: Sequence[str], arguments: Sequence[str],
               fds: Sequence[int], core: int | None = None) -> None:
        """Starts a process of the table. `fds` keep their numbers in the child."""
        identity = ["--role", role, "--index", str(index), "--run", self.config.run.name,
                    "--dir", str(self.directory.path), "--process", str(slot), "--parent", str(os.getpid())]
        # The table first: a process may look itself up as soon as it runs.
        control = self.segments.control
        control.set_process(slot, role=role, role_index=index, core=core, state="starting", epoch=1)
        pid = self._start(role, index, slot, [*program, *identity, *arguments], fds)
        used = procfs.usage(pid)
        control.set_process(slot, pid=pid, start_time=used.start_ticks if used else 0)

    def _start(
        self, role: str, index: int, slot: int | None, command: Sequence[str], fds: Sequence[int]
    ) -> int:
        """Starts a child in a session of its own, with the run's lock and its own log; returns its pid."""
        log = self.directory.log(role, index)
        try:
            popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=native.ROOT,
                start_new_session=True, pass_fds=(*fds, self.directory.lock_fd),
                env=CHILD_ENVIRONMENT | os.environ,
                # Between fork and exec, which is safe with one thread: no child is ever without it.
                preexec_fn=functools.partial(procfs.die_with_parent, os.getpid()),
            )
        finally:
            os.close(log)
        child = Child(role, index, slot, popen, os.pidfd_open(popen.pid))
        self.children[child.pidfd] = child
        self.poll.register(child.pidfd, select.POLLIN)
        self.directory.event(role, index, "started", pid=popen.pid)
        return popen.pid

    # Watching

    def _sleep(self) -> None:
        """Until something happens, at most one tick."""
        for fd, _ in self.poll.poll(TICK_SECONDS * 1000):
            if fd in self.children:
                self.exited.append(self.children[fd])
            else:
                self.pending += self.signals.recv(256)

    def _reap(self) -> None:
        while self.exited:
            child = self.exited.pop()
            returncode = self._bury(child)
            expected = self.phase is not Phase.RUN and returncode == 0
            if child.role == "evaluator" or child in self.killed or expected:
                continue
            text = self._how_it_ended(child, returncode)
            if child.role == "exporter":  # it only looks
                self.display.say(f"warning: the run goes on without metrics, since {text}")
                continue
            self._fail(returncode if returncode in PASSED_ON else EXIT_INTERNAL, text)

    def _bury(self, child: Child) -> int:
        """Waits for a child that is dead or dying, then repairs what it left half done in shared memory.

        Never the other way round: only waitid tells that no store of the dead one is to come.
        """
        returncode = child.popen.wait()
        self.poll.unregister(child.pidfd)
        os.close(child.pidfd)
        del self.children[child.pidfd]
        self.directory.event(child.role, child.index, "ended", pid=child.popen.pid, returncode=returncode)
        control, rings, weights = self.segments.control, self.segments.rings, self.segments.weights
        if child.slot is not None:
            control.set_process(child.slot, state="exited" if returncode == 0 else "failed")
        if child.role == "producer":
            rings[child.index].sweep_producer()
        elif child.role == "learner":
            consumed = weights.consumed_list() if weights.published is not None else []
            for ring in rings:
                ring.sweep_learner(child.slot, consumed)
                ring.set_owner(None)
        control.bell_ring(0)
        return returncode

    def _how_it_ended(self, child: Child, returncode: int) -> str:
        how = "ended by itself" if returncode == 0 else f"ended with exit code {returncode}"
        if returncode < 0:
            how = f"died of {signal.Signals(-returncode).name}"
        return f"{child.name} (pid {child.popen.pid}) {how}{self._last_words(child.role, child.index)}"

    def _last_words(self, role: str, index: int) -> str:
        lines = self.directory.log_tail(role, index)
        return f"; the end of logs/{role}-{index}.log:\n    " + "\n    ".join(lines) if lines else ""

    def _judge(self) -> None:
        """Reasons to stop, and processes that have come up."""
        signals, self.pending = self.pending, b""
        for number in signals:
            self._judge_signal(signal.Signals(number))
        control = self.segments.control
        for slot in self.table.all:
            info = control.process(slot)
            if info.state == "starting" and info.phase != "starting":
                control.set_process(slot, state="running")
                control.bell_ring(0)
        if self.phase is not Phase.RUN:
            return
        learner = control.counters(self.table.learner)
        if learner["stop_request"]:
            self._begin_stop(self.segments.stop_reasons[learner["stop_request"]])
            return
        allowed = self.config.supervisor.start_seconds
        if not learner["ready"] and time.monotonic() - self.started > allowed:
            text = f"learner 0 published nothing within {allowed:g} s (supervisor.start_seconds)"
            self._fail(EXIT_INTERNAL, text + self._last_words("learner", 0))

    def _judge_signal(self, number: signal.Signals) -> None:
        """The first stops the run in order, or drops the evaluation; the second forces the end."""
        if self.signalled:
            self.code, self.message = EXIT_SIGNAL + number, f"killed by a second {number.name}"
            self.failed, self.phase = True, Phase.OVER
        elif self.phase is Phase.RUN:
            self.display.say(f"{number.name}: stopping in order; once more forces the end")
            self._begin_stop("signal")
        else:
            self.display.say(f"{number.name}: no evaluation; once more forces the end")
            self.evaluate = False
        self.signalled = True

    # Stopping

    def _begin_stop(self, reason: str) -> None:
        self.reason = reason
        self.phase = Phase.STOP_PRODUCERS
        self.evaluate = reason in DONE_REASONS and self.config.evaluate.episodes > 0
        now, allowed = time.monotonic(), self.config.supervisor.deadline_seconds
        self.stopping, self.half_deadline, self.deadline = now, now + allowed / 2, now + allowed
        self.reporter.stop_ns = time.monotonic_ns()
        self.segments.control.set_stop(reason)
        self.directory.event("supervisor", 0, "stopping", reason=reason)

    def _fail(self, code: int, message: str) -> None:
        """Notes what went wrong, the first thing only, and stops the run."""
        if self.message is None:
            self.code, self.message = code, message
            self.directory.event("supervisor", 0, "failed", message=message)
        self.failed, self.evaluate = True, False
        if self.phase is Phase.RUN:
            self._begin_stop("failure")

    def _advance(self) -> None:
        """The one order of shutdown."""
        now = time.monotonic()
        if self.phase is Phase.STOP_PRODUCERS:
            if not self._alive("producer"):
                self.segments.control.set_producers_gone()
                self.phase = Phase.STOP_LEARNER
            elif now > self.half_deadline:
                self._overdue("producer")
            elif now > self.stopping + STARTING_STOP_SECONDS:
                self._kill(self._starting())
        if self.phase is Phase.STOP_LEARNER:
            if not self._alive("learner"):
                self.phase = Phase.EVALUATE
                if self.evaluate:
                    self._start_evaluation()
            elif now > self.deadline:
                self._overdue("learner")
        if self.phase is Phase.EVALUATE:
            running = self._alive("evaluator")
            if running and (not self.evaluate or now > self.deadline):
                self._kill(running)
            elif not running:
                self._read_evaluation()
                self.phase = Phase.OVER

    def _alive(self, role: str) -> list[Child]:
        return [child for child in self.children.values() if child.role == role]

    def _starting(self) -> list[Child]:
        """Producers that have not come to their first slot: they see no stop, and have nothing to lose."""
        control = self.segments.control
        return [
            child
            for child in self._alive("producer")
            if child.slot is not None and control.process(child.slot).phase == "starting"
        ]

    def _overdue(self, role: str) -> None:
        """The deadline of a shutdown passed."""
        overdue = [child for child in self._alive(role) if child not in self.killed]
        if overdue:
            names = ", ".join(child.name for child in overdue)
            limit = f"{self.config.supervisor.deadline_seconds:g} s (supervisor.deadline_seconds)"
            self._fail(EXIT_INTERNAL, f"the shutdown deadline of {limit} passed: killed {names}")
            self._kill(overdue)

    def _kill(self, children: Sequence[Child]) -> None:
        for child in children:
            self.killed.add(child)
            # Its session is its own: whatever it has forked goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.popen.pid, signal.SIGKILL)

    def _start_evaluation(self) -> None:
        settings = self.config.evaluate
        self.deadline = time.monotonic() + settings.seconds + EVALUATE_START_SECONDS
        self.display.say(f"evaluating {settings.episodes} episodes of the sampled and of the argmax policy")
        result = self.directory.path / rundir.EVALUATION
        command = [sys.executable, "-m", "consumers.evaluate", str(self.directory.path)]
        self._start("evaluator", 0, None, [*command, "--json", str(result)], [])

    def _read_evaluation(self) -> None:
        if self.evaluate:
            self.evaluated = rundir.read_json(self.directory.path / rundir.EVALUATION)
            if self.evaluated is None:  # the run is done nevertheless, and its checkpoint is there
                self.code = EXIT_INTERNAL
                self.message = f"the evaluation gave no result{self._last_words('evaluator', 0)}"

    # Reporting

    @property
    def state(self) -> str:
        """The run's state, in the words of status.json."""
        if self.phase is Phase.RUN:
            updates = self.segments.control.counters(self.table.learner)["updates"]
            return "running" if updates else "starting"
        if self.phase is not Phase.OVER:
            return "stopping"
        if self.failed:
            return "failed"
        return "done" if self.reason in DONE_REASONS else "stopped"

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self.next_log_limit:
            self.next_log_limit = now + LOG_LIMIT_SECONDS
            self.directory.limit_logs(self.config.monitor.log_bytes)
        if now >= self.next_report:
            self.next_report = now + REPORT_SECONDS
            self._write_status()

    def _write_status(self) -> dict[str, Any]:
        report = self.reporter.report(self.state, evaluated=self.evaluated, message=self.message)
        with rundir.though_the_disk_is_full():
            rundir.write_json(self.directory.path / rundir.STATUS, report)
        self.display.show(report)
        return report

    # Ending

    def _kill_all(self, but: str = "") -> None:
        """Kills and reaps what is left, except the role `but`."""
        left = [child for child in self.children.values() if child.role != but]
        self._kill(left)
        for child in left:
            self._bury(child)

    def _close_books(self) -> None:
        """Frees and counts what is left in the rings. Afterwards nothing may be in flight."""
        problems = []
        for ring in self.segments.rings:
            for state, sequence, *_ in ring.observe().slots:
                if state in ("ready", "bad"):
                    ring.drop(sequence, "bad" if state == "bad" else "shutdown")
            problems += [f"ring {ring.index}: {problem}" for problem in self.segments.audit(ring)]
        if problems:
            self._fail(EXIT_INTERNAL, "the books do not balance: " + "; ".join(problems))

    def _conclude(self) -> None:
        """The last report, and the end of the exporter, which has served it until now."""
        self.phase = Phase.OVER
        report = self._write_status()
        try:
            rundir.write_json(self.directory.path / rundir.SUMMARY, report, durable=True)
            self.directory.close_attempt(report["state"])
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            self._fail(EXIT_INTERNAL, f"{self.directory.path / rundir.SUMMARY} cannot be written: {why}")
        self.directory.event("supervisor", 0, report["state"], code=self.code)
        self.display.close()
        self.display.say(status.summary_line(report))
        for exporter in self._alive("exporter"):
            exporter.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                exporter.popen.wait(EXPORTER_STOP_SECONDS)

    def _bug(self, error: Exception) -> None:
        where = "logs/supervisor-0.log"
        try:
            log = self.directory.log("supervisor", 0)
            os.write(log, traceback.format_exc().encode())
            os.close(log)
        except OSError:  # the directory itself may be what is broken
            where = "above"
            traceback.print_exc()
        self._fail(EXIT_INTERNAL, f"internal error, {type(error).__name__}: {error}; see {where}")


def listen(host: str, port: int) -> socket.socket:
    """The endpoint's socket. Raises Missing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0].lower()
        # Codes of getaddrinfo are negative; socket.create_server passes them on as OSError.
        if error.errno is not None and (error.errno < 0 or error.errno == errno.EADDRNOTAVAIL):
            raise Missing(f"monitor.host: {host}: {why}; needs an address of this machine") from None
        advice = "stop what holds it, or give another monitor.port (0: any free one)"
        raise Missing(f"monitor.port: {host} port {port}: {why}; {advice}") from None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="supervisor.py", description="Runs a run file.", allow_abbrev=False)
    parser.add_argument("run", metavar="RUN.yaml", nargs="?", help="the run file")
    parser.add_argument("overrides", metavar="section.key=value", nargs="*", help="instead of the file's")
    flags = {
        "--check": "check everything that can be checked, run nothing",
        "--print-config": "print every value and where it comes from",
        "--print-schema": "print the JSON schema of run files",
        "--plain": "lines instead of a live picture",
    }
    for flag, meaning in flags.items():
        parser.add_argument(flag, action="store_true", help=meaning)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--resume", action="store_true", help="go on with an unfinished run: in a later version")
    how.add_argument("--fresh", action="store_true", help="move an earlier run of that name aside")
    options = parser.parse_intermixed_args(arguments)
    if options.run is None and not options.print_schema:
        parser.error("RUN.yaml is missing")
    return options


def start(options: argparse.Namespace) -> int:
    """Does what the command line says; returns the exit code."""
    if options.print_schema:
        print(json.dumps(config.schema(), indent=2))
        return EXIT_DONE
    if options.print_config:
        document = config.read(options.run, options.overrides)
        print(config.dump_resolved(document.config, document.origin), end="")
        return EXIT_DONE
    prepared = prepare(options.run, options.overrides)
    if options.check:
        print("\n".join([*(f"warning: {warning}" for warning in prepared.warnings), f"{options.run}: good"]))
        return EXIT_DONE
    directory = rundir.RunDirectory.take(prepared.config.run_dir.absolute(), fresh=options.fresh)
    try:
        supervisor = Supervisor(prepared, directory, plain=options.plain)
    except BaseException:
        directory.release()
        raise
    return supervisor.run()


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        return start(options)
    except config.ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return EXIT_CONFIG
    except config.Unreadable as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:  # before there was anything to stop in order
        return EXIT_SIGNAL + signal.SIGINT
    except (Missing, rundir.Unavailable) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_MISSING
    except rundir.Finished as finished:
        print(status.summary_line(finished.summary))
        print("headrace: this run is done; --fresh moves it aside and starts anew")
        return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
