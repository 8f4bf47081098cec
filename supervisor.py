"""Runs a run: checks what it needs, spawns its processes, watches them, stops them in order.

    python supervisor.py RUN.yaml [section.key=value ...] [--check] [--print-config] [--print-schema]
                         [--plain] [--resume | --fresh]

One process, one thread, no torch, no numpy. `Supervisor.arbitrate` is the loop: reap, judge, repair, start,
advance, report, sleep.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import config
from config import exits
from monitor import display, dumps, endpoint, manifest, rundir, status
from monitor.children import Child, Children
from monitor.ending import Ending, Phase
from monitor.enlist import Places, enlist
from monitor.evaluation import Evaluation
from monitor.keeper import TICK_SECONDS, Keeper
from monitor.roster import Roster
from monitor.rotate import Growth, Rotation
from monitor.setbacks import Setbacks
from producers import native
from producers.prepare import Layout, Missing, Prepared, Segments, prepare

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
REPORT_SECONDS = 1.0
EXPORTER_STOP_SECONDS = 3.0


class Supervisor:
    """Owns the process table of one run, from the first spawn to the last unlink."""

    def __init__(
        self,
        prepared: Prepared,
        directory: rundir.RunDirectory,
        *,
        plain: bool,
        prepare_again: Callable[[], Prepared],
    ):
        """Takes what the run needs of the machine: port and shared memory. `prepare_again`: reads and checks
        the run file as at the start. Raises Missing."""
        self.prepared = prepared
        self.config = prepared.config
        self.directory = directory
        self.table = status.Table.of_run(self.config)
        # Processes
        self.children = Children(directory, native.ROOT)
        self.ended: list[Child] = []  # known to be dead, not yet reaped
        self.signals: list[signal.Signals] = []  # not yet acted on
        # Progress
        self.signalled = False
        self.next_tick = self.next_report = 0.0
        # What the run holds
        self.prepare_again = prepare_again
        self.meeting = os.memfd_create("headrace-meeting")  # gone with the last process that has it
        install_signals()
        # Two descriptors a producer, and some systems allow a process 1024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.endpoint = endpoint.listen(self.config.monitor.host, self.config.monitor.port)
        self.watch_line = endpoint.watch_line() if self.config.watch.enabled else None
        self.segments = Segments.open(prepared, directory)
        try:
            self._assemble(plain)
        except BaseException:  # nobody else knows of them yet
            self.segments.leave()
            self.segments.close()
            raise

    def _assemble(self, plain: bool) -> None:
        """All that works on the run's memory."""
        directory = self.directory
        self.run_id = self.segments.run_id
        from ringbuf.repair import Repair  # not before `prepare` has told who has not built it

        self.repair = Repair(
            self.segments.control, self.segments.weights, self.segments.rings, self.config.learner.count
        )
        self.evaluation = Evaluation(self.children, directory, self.config.evaluate.seconds)
        self.roster = Roster(
            self.segments.control, self.children, self.config.run.name, str(directory.path)
        )
        resume = self.segments.resume
        self.reporter = status.Reporter(
            self.segments.control,
            self.segments.rings,
            self.table,
            self.config.lag_limit,
            self._facts(),
            before=resume.before,
            lineage=resume.lineage,
            began_ns=resume.began_ns or 0,
        )
        self.keeper = Keeper(
            self.config,
            self.roster,
            self.children,
            directory,
            control=self.segments.control,
            repair=self.repair,
            simulator=self.prepared.spec["name"],
            before_learners=self._clear_meeting,
            resumption=self._resumption,
            warn=self._warn,
            fail=self._fail,
        )
        self.ending = Ending(
            self.config,
            self.roster,
            self.children,
            self.keeper,
            self.evaluation,
            directory,
            control=self.segments.control,
            learner=self.table.learner,
            tell=self._tell,
            warn=self._warn,
        )
        self.reporter.restarts = self.keeper.restarts
        self.setbacks = Setbacks(directory.path)
        self._adapt()
        self.display = display.make(plain=plain, interval_seconds=self.config.monitor.interval_seconds)

    # The life of a run

    def run(self) -> int:
        """From the first file written to the last segment unlinked; returns the exit code.

        Raises rundir.Unavailable, with everything given back, where the first files cannot be written.
        """
        try:
            self._open()
            self._enlist()
            self.arbitrate()
        except rundir.Unavailable:  # nothing was started
            self.segments.leave()
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
        if self.ending.message is not None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(f"headrace: {self.ending.message}", file=sys.stderr, flush=True)
        return self.ending.code

    def _give_back(self) -> None:
        """Processes, memory, port and lock, in this order, and each whatever becomes of those before it."""
        with contextlib.ExitStack() as last_first:
            for give_back in (
                self.directory.release,
                self.endpoint.close,
                self.segments.close,
                self._kill_all,
                self.display.close,
            ):
                last_first.callback(give_back)

    def arbitrate(self) -> None:
        """The loop. Everything that happens to the run happens here."""
        while self.ending.phase is not Phase.OVER:
            self._reap()
            self._judge()
            self._repair()
            self.keeper.start()
            self.ending.advance()
            self._report()
            self._sleep()

    # Starting

    def _facts(self) -> dict[str, Any]:
        return {
            "name": self.config.run.name,
            "run_id": self.run_id.hex,
            "attempt": self.directory.attempt,
            "resume": self.segments.resume.report() if self.directory.earlier else None,
            "simulator": self.prepared.spec["name"],
            "mode": self.config.mode,
            "address": endpoint.address(self.endpoint),
            "warnings": self.prepared.warnings,
        }

    def _open(self) -> None:
        """Writes what the processes and later readers need. Raises rundir.Unavailable."""
        try:
            self._describe()
        except OSError as error:
            raise rundir.unwritable(self.directory.path, error) from None
        resume = self.segments.resume
        for note in resume.notes:
            self.display.say(note)
            self.directory.event("supervisor", 0, "resume", message=note)
        for warning in self.prepared.warnings:
            self.display.say(f"warning: {warning}")

    def _describe(self) -> None:
        """Configuration and manifest. The result of an earlier attempt goes."""
        path, prepared = self.directory.path, self.prepared
        self.directory.supersede()
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

    def _enlist(self) -> None:
        """Fills the process table; `arbitrate` does the rest."""
        places = Places(
            producer=native.PRODUCER,
            simulator=self.prepared.library,
            cores=self.prepared.placement.cores,
            port=self.endpoint.fileno(),
            meeting=self.meeting,
            watch=None
            if self.watch_line is None
            else (self.watch_line[0].fileno(), self.watch_line[1].fileno()),
        )
        enlist(self.roster, self.table, self.config, self.segments, places)
        self.keeper.restarts.update({member.role: 0 for member in self.roster})

    def _clear_meeting(self) -> None:
        """Where learners find each other: what the last ones wrote there is of nobody who lives."""
        os.ftruncate(self.meeting, 0)

    def _resumption(self) -> list[str]:
        """What a learner is told of earlier ones. Their hot snapshot it finds by itself, and the newest
        checkpoint where that cannot be read; the one named here is for when nothing was published yet."""
        with contextlib.suppress(OSError):  # what is in force, whatever became of the file
            rundir.write_text(self.directory.path / rundir.RESOLVED, config.dump_resolved(self.config))
        published, resume = self.segments.weights.published, self.segments.resume
        told = resume.arguments()
        if published is None and resume.checkpoint is not None:
            told += ["--resume", str(resume.checkpoint)]
        newest = max((one for one in (published, resume.above) if one is not None), default=None)
        return told if newest is None else [*told, "--above", str(newest)]

    # Watching

    def _sleep(self) -> None:
        """Until something happens, at most until the next tick. Ticks are counted, not measured: a machine
        that was paused has missed some, and nobody is judged by them."""
        now = time.monotonic()
        if now >= self.next_tick:
            self.keeper.ticks += 1
            self.next_tick = now + TICK_SECONDS
        phase = "step" if self.ending.phase is Phase.RUN else "stopping"
        self.segments.control.pulse(phase, self.keeper.ticks)
        ended, signals = self.children.wait(max(0.0, self.next_tick - now))
        self.ended += ended
        self.signals += signals

    def _reap(self) -> None:
        ended, self.ended = self.ended, []
        for child in ended:
            returncode = self.keeper.bury(child)
            if returncode is None or child in self.children.killed:
                continue
            if child.member is None:
                self.ending.judge_evaluation(returncode)
            else:
                self.keeper.inquire(child, child.member, returncode)

    def _judge(self) -> None:
        """Signals, processes that do not do what they should, and reasons to stop."""
        signals, self.signals = self.signals, []
        for number in signals:
            self._judge_signal(number)
        self.keeper.judge()
        request = self._learner["stop_request"]
        if self.ending.phase is Phase.RUN and request:
            self.ending.begin(self.segments.stop_reasons[request])

    def _judge_signal(self, number: signal.Signals) -> None:
        """The first stops the run in order, or drops the evaluation; the second forces the end. SIGHUP reads
        the run file again."""
        if number == signal.SIGHUP:
            self._reload()
            return
        if number not in STOP_SIGNALS:
            return
        if self.signalled:
            self.ending.force(exits.SIGNAL + number, f"killed by a second {number.name}")
        elif self.ending.phase is Phase.RUN:
            self._tell(f"{number.name}: stopping in order; once more forces the end")
            self.ending.begin("signal")
        else:
            self._tell(f"{number.name}: no evaluation; once more forces the end")
            self.evaluation.wanted = False
        self.signalled = True

    def _reload(self) -> None:
        """Takes over what may change in a run under way, or says why not and changes nothing."""
        source = Path(self.prepared.document.path)
        try:
            if not source.is_file():  # a pipe would be waited for
                raise config.Unreadable(f"{source}: no such file any more")
            wanted = self.prepare_again().config
            changes = config.changes(self.config, wanted)
            taken = config.take_over(self.config, wanted)
            rundir.write_text(self.directory.path / rundir.RESOLVED, config.dump_resolved(taken))
        except (config.ConfigError, config.Unreadable, Missing, OSError) as error:
            self._warn(f"SIGHUP: {error}; nothing was changed")
            return
        self.config = self.keeper.config = self.ending.config = taken
        self._adapt()
        self.segments.control.announce_settings()
        heading = "SIGHUP: settings:" if changes else "SIGHUP: no change"
        self._tell("\n    ".join([heading, *map(str, changes)]))
        self.directory.event("supervisor", 0, "settings", changes=[str(change) for change in changes])

    # Repairing

    def _repair(self) -> None:
        """What must not wait for anybody's restart: credit that nobody uses, slots that were set aside."""
        for member in self.roster.of_role("producer"):
            if member.child is None:
                self.repair.take_back_credit(member.index)
        self.repair.free_bad(self._keep_bad)

    def _keep_bad(self, ring: Any, sequence: int) -> None:
        """Writes down what is in a slot that was set aside, before it is given back."""
        folder, keep = self.directory.path / dumps.FOLDER, self.config.supervisor.keep_bad_slots
        path, header = dumps.dump(ring, sequence, folder, keep), ring.header(sequence)
        where = None if path is None else f"{dumps.FOLDER}/{path.name}"
        self.directory.event("supervisor", 0, "slot set aside", ring=ring.index, dump=where, header=header)
        self._warn(
            f"ring {ring.index}: slot {sequence} was set aside after {header['deliveries']} deliveries"
            + (f"; its contents are in {where}" if where else "")
        )

    # Reporting

    @property
    def _learner(self) -> dict[str, int]:
        """Its counters."""
        return self.segments.control.counters(self.table.learner)

    def _fail(self, code: int, message: str) -> None:
        self.ending.fail(code, message)

    def _tell(self, text: str) -> None:
        if self.config.monitor.log_level != "warning":
            self.display.say(text)

    def _warn(self, text: str) -> None:
        self.display.say(f"warning: {text}")

    def _adapt(self) -> None:
        """What is made of settings that may change."""
        monitor = self.config.monitor
        self.rotation = Rotation(self.directory.path, monitor.log_bytes, monitor.log_files)
        self.reporter.growth = Growth(self.directory.path, self.config, self.segments.slot_bytes)

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self.next_report:
            self.next_report = now + REPORT_SECONDS
            self._rotate()
            self._write_status()

    def _rotate(self) -> None:
        """Sets aside the logs that have grown and has their writers open new ones."""
        with rundir.though_the_disk_is_full():
            logs = self.rotation.rotate()
            for child in self.children:
                if f"{child.role}-{child.index}" in logs:
                    child.send(signal.SIGUSR1)

    def _write_status(self) -> dict[str, Any]:
        ending, self.reporter.stop_ns = self.ending, self.ending.stop_ns
        report = self.reporter.report(ending.state, evaluated=self.evaluation.result, message=ending.message)
        written = False
        with rundir.though_the_disk_is_full():
            rundir.write_json(self.directory.path / rundir.STATUS, report)
            written = True
        for news in self.setbacks.news(self._learner, written=written):
            self._warn(news)
        self.display.show(report)
        return report

    # Ending

    def _kill_all(self, but: str = "") -> None:
        """Kills and reaps what is left, except the role `but`."""
        left = [child for child in self.children if child.role != but]
        self.children.kill(left)
        for child in left:
            self.keeper.bury(child)

    def _close_books(self) -> None:
        """Frees and counts what is left in the rings. Afterwards nothing may be in flight."""
        self.repair.free_bad(self._keep_bad)
        self.repair.drop_ready()
        problems = []
        for ring in self.segments.rings:
            problems += [f"ring {ring.index}: {problem}" for problem in self.segments.audit(ring)]
        if problems:
            self.ending.fail(exits.INTERNAL, "the books do not balance: " + "; ".join(problems))

    def _conclude(self) -> None:
        """The last report, and the end of the exporter, which has served it until now."""
        self.ending.phase = Phase.OVER
        report = self._write_status()
        self.segments.close()  # before the result is there, after which nobody would look for them
        try:
            rundir.write_json(self.directory.path / rundir.SUMMARY, report, durable=True)
            self.directory.close_attempt(report["state"], report["totals"])
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            summary = self.directory.path / rundir.SUMMARY
            self.ending.fail(exits.INTERNAL, f"{summary} cannot be written: {why}")
        self.directory.event("supervisor", 0, report["state"], code=self.ending.code)
        self.display.close()
        self.display.say(status.summary_line(report))
        for exporter in self.children.alive("exporter"):
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
        self.ending.fail(exits.INTERNAL, f"internal error, {type(error).__name__}: {error}; see {where}")


def install_signals() -> None:
    """Handlers that do nothing: the number reaches the loop through the wake-up socket of Children."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # set by a shell for what runs in the background
            signal.signal(number, lambda *_: None)
    # Also under nohup: a lost terminal does no harm here, and kill -HUP is to work.
    signal.signal(signal.SIGHUP, lambda *_: None)


def open_missing_streams() -> None:
    """A daemon may be started with 0, 1 or 2 closed; the next files opened would be taken for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for good: the lowest number that is free


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
    how.add_argument("--resume", action="store_true",
                     help="go on, even with a run that is done; an unfinished one goes on in any case")
    how.add_argument("--fresh", action="store_true", help="move an earlier run of that name aside")
    options = parser.parse_intermixed_args(arguments)
    if options.run is None and not options.print_schema:
        parser.error("RUN.yaml is missing")
    return options


def start(options: argparse.Namespace) -> int:
    """Does what the command line says; returns the exit code."""
    if options.print_schema:
        print(json.dumps(config.schema(), indent=2))
        return exits.DONE
    if options.print_config:
        document = config.read(options.run, options.overrides)
        print(config.dump_resolved(document.config, document.origin), end="")
        return exits.DONE
    prepared = prepare(options.run, options.overrides)
    if options.check:
        warnings = [*prepared.warnings, *Layout(prepared).warnings]
        print("\n".join([*(f"warning: {warning}" for warning in warnings), f"{options.run}: good"]))
        return exits.DONE
    path = prepared.config.run_dir.absolute()
    directory = rundir.RunDirectory.take(path, fresh=options.fresh, resume=options.resume)
    try:
        again = functools.partial(prepare, options.run, options.overrides)
        supervisor = Supervisor(prepared, directory, plain=options.plain, prepare_again=again)
    except BaseException:
        directory.release()
        raise
    return supervisor.run()


def main(arguments: Sequence[str]) -> int:
    open_missing_streams()
    options = parse(arguments)
    try:
        return start(options)
    except config.ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return exits.CONFIG
    except (config.Unreadable, rundir.Nothing) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return exits.USAGE
    except KeyboardInterrupt:  # before there was anything to stop in order
        return exits.SIGNAL + signal.SIGINT
    except (Missing, endpoint.Refused, rundir.Unavailable) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return exits.MISSING
    except rundir.Finished as finished:
        if finished.summary:  # it can be deleted, and the attempt's file says so too
            print(status.summary_line(finished.summary))
        print("headrace: this run is done; --resume goes on with it, --fresh moves it aside and starts anew")
        return exits.DONE
    except Exception as error:  # noqa: BLE001 - a bug of ours, or a file that nobody but us should have written
        traceback.print_exc()
        print(f"headrace: internal error, {type(error).__name__}: {error}", file=sys.stderr)
        return exits.INTERNAL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
