"""status.json: the state of a run in figures, read from the shared counters."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monitor import procfs
from monitor.rotate import Growth
from monitor.totals import Totals

RATE_WINDOW_SECONDS = 10.0
RUN_TOTALS = ("steps", "updates", "bytes")
PRODUCER_TIMES = (
    "sim",
    "policy",
    "pickup",
    "wait_credit",
    "wait_ring_full",
    "wait_version",
    "wait_answer",
    "wait_owner",
)
LEARNER_TIMES = ("wait_no_data", "copy", "forward", "backward", "optimizer", "allreduce", "publish")
LOSSES = (
    "loss_policy",
    "loss_value",
    "loss_entropy",
    "loss_total",
    "grad_norm",
    "approx_kl",
    "entropy_ratio",
    "explained_variance",
    "clipped_ratio",
    "audit_label_error",
    "precision_gap",
    "learning_rate",
    "entropy_coef",
)


@dataclass(frozen=True)
class Table:
    """Where the roles stand in the process table."""

    producers: tuple[int, ...]
    learners: tuple[int, ...]
    exporter: int
    servers: tuple[int, ...] = ()
    recorder: int | None = None
    evaluator: int | None = None
    sinks: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        producers: int,
        learners: int = 1,
        servers: int = 0,
        *,
        recorder: bool = False,
        evaluator: bool = False,
        sinks: int = 0,
    ) -> Table:
        """Slot 0 is the supervisor's own; then producers, learners, the exporter, inference servers,
        sinks, a recorder and an evaluator, whose slots are left out where there is none."""
        exporter = 1 + producers + learners
        behind = exporter + 1 + servers + sinks
        return cls(
            tuple(range(1, 1 + producers)),
            tuple(range(1 + producers, exporter)),
            exporter,
            tuple(range(exporter + 1, behind - sinks)),
            behind if recorder else None,
            behind + 1 if evaluator else None,
            tuple(range(behind - sinks, behind)),
        )

    @classmethod
    def of_run(cls, settings: Any) -> Table:
        """Of the processes that a resolved configuration asks for."""
        return cls.of(
            int(settings.producers.count),
            settings.learner.count,
            settings.servers,
            recorder=settings.archive.enabled,
            evaluator=settings.watch.enabled is True,
            sinks=len(settings.sinks.kinds),
        )

    @property
    def learner(self) -> int:
        """The first, whose counters are the run's; those of the others tell of their own time."""
        return self.learners[0]

    @property
    def all(self) -> tuple[int, ...]:
        observers = (slot for slot in (self.recorder, self.evaluator) if slot is not None)
        return (*self.producers, *self.learners, self.exporter, *self.servers, *self.sinks, *observers)


@dataclass
class Reporter:
    """Turns counters into the fields of status.json. One instance a run, asked about once a second."""

    control: Any
    rings: Sequence[Any]
    table: Table
    lag_limit: int | None
    facts: dict[str, Any] = field(default_factory=dict)
    """What does not change over a run and is repeated in every report: name, run id, simulator, address."""
    stop_ns: int | None = None
    """CLOCK_MONOTONIC of the stop flag; the run's clock stands still from then on."""
    created_ns: int = field(default_factory=time.monotonic_ns)
    """CLOCK_MONOTONIC of just before the processes' start."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Of this attempt, by role."""
    before: Totals = field(default_factory=Totals)
    """What earlier attempts come to, without what the rings still know of."""
    lineage: Mapping[str, Any] = field(default_factory=dict)
    """state.json of the checkpoint gone on from, whose figures stand until the learner has its own."""
    began_ns: int = 0
    """CLOCK_MONOTONIC before which this attempt's clock does not run."""
    growth: Growth | None = None
    _first: dict[str, float] = field(default_factory=dict)
    _history: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)

    def report(
        self, state: str, *, evaluated: dict[str, Any] | None = None, message: str | None = None
    ) -> dict[str, Any]:
        """The fields of status.json and summary.json; `state` is the run's."""
        control = self.control
        producers = [control.counters(index) for index in self.table.producers]
        learner = control.counters(self.table.learner)
        gauges = control.gauges(self.table.learner)
        books = [ring.books() for ring in self.rings]
        counted = Totals.read(control, self.rings, self.table.producers, self.table.learner)
        seconds = self._seconds(books)
        total = self.before + replace(counted, seconds=seconds, restarts=self.restarts)
        processes, cpu_seconds = self._processes()
        totals = {"steps": counted.steps, "updates": learner["updates"], "bytes": counted.packed_bytes,
                  **cpu_seconds}
        for name in PRODUCER_TIMES:
            totals[f"producer.{name}"] = sum(one[f"{name}_ns"] for one in producers) / 1e9 / len(producers)
        learners = [control.counters(index) for index in self.table.learners]
        for name in LEARNER_TIMES:
            totals[f"learner.{name}"] = sum(one[f"{name}_ns"] for one in learners) / 1e9 / len(learners)
        self._first = self._first or totals
        rates = self._rates(totals, seconds)
        for process in processes:
            process["cpu"] = round(rates.get(f"cpu.{process['role']}.{process['index']}", 0.0), 3)
        surviving = self._surviving(learner, gauges)
        if state not in ("starting", "running", "stopping"):
            rates = self._overall(totals, seconds)
            whole = {name: surviving[name] for name in ("steps", "updates")} | {"bytes": total.packed_bytes}
            rates |= {name: n / total.seconds if total.seconds else 0.0 for name, n in whole.items()}
        in_flight = sum(one["in_flight"] for one in books)
        return {
            "state": state,
            "steps": surviving["steps"],
            "seconds": round(total.seconds, 3),
            "steps_per_second": round(rates["steps"], 1),
            "version": surviving["version"],
            "score": {**surviving["score"], "evaluated": evaluated},
            "solved_at_seconds": number(gauges["solved_at_seconds"]),
            "lag": {
                "mean": total.lag_sum / total.steps if total.steps else None,
                "p50": quantile(total.lag_bins, 0.5),
                "p99": quantile(total.lag_bins, 0.99),
                "max": total.lag_max if total.steps else None,
                "limit": self.lag_limit,
            },
            "slots": {
                "committed": total.committed,
                "consumed": total.consumed,
                "dropped": total.dropped,
                "redelivered": total.redelivered,
                "not_written": total.not_written,
                "in_flight": in_flight,
                "capacity": sum(ring.slots for ring in self.rings),
            },
            "steps_dropped": total.steps_dropped,
            "producers": [{"slots": one["slots"], "steps": one["steps"]} for one in producers],
            "bytes": {
                "packed": str(total.packed_bytes),
                "unpacked": str(total.unpacked_bytes),
                "per_second": round(rates["bytes"]),
            },
            "restarts": dict(total.restarts),
            "processes": processes,
            "updates": surviving["updates"],
            "sgd_steps": total.sgd_steps,
            "samples": total.samples,
            "updates_per_second": round(rates["updates"], 3),
            "losses": {name: number(gauges[name]) for name in LOSSES},
            "ratio": {name: number(gauges[f"ratio_{name}"]) for name in ("mean", "p1", "p50", "p99", "max")},
            "time": {
                "producer": {name: round(rates[f"producer.{name}"], 4) for name in PRODUCER_TIMES},
                "learner": {name: round(rates[f"learner.{name}"], 4) for name in LEARNER_TIMES},
            },
            "server": self._server(producers),
            "checkpoint": {
                "count": total.checkpoints,
                "failures": total.checkpoint_failures,
                "last_unix": learner["last_checkpoint_unix_ns"] / 1e9 or None,
            },
            "run_dir": self.growth.report(learner["checkpoint_bytes"]) if self.growth else None,
            "totals": total.to_json(),
            "message": message,
            "updated_unix": round(time.time(), 3),
            **self.facts,
        }

    def _server(self, producers: Sequence[dict[str, int]]) -> dict[str, Any] | None:
        """What the inference servers have done in this attempt; None: there is none."""
        each = [self.control.counters(index) for index in self.table.servers]
        if not each:
            return None
        total = {name: sum(one[name] for one in each) for name in each[0]}
        given_up = ("stop", "server", "version")
        return {
            "rows": total["rows"],
            "batches": total["batches"],
            "rows_a_batch": round(total["rows"] / total["batches"], 1) if total["batches"] else None,
            "latency_seconds": total["latency_sum_ns"] / 1e9 / max(1, total["requests"]),
            "abandoned_steps": {
                why: sum(one[f"abandoned_steps_{why}"] for one in producers) for why in given_up
            },
        }

    def _surviving(self, learner: dict[str, int], gauges: dict[str, float]) -> dict[str, Any]:
        """What the policy that survives has been through; the checkpoint's word until the learner has one."""
        if not learner["ready"] and self.lineage:
            names = ("steps", "updates", "version")
            score = self.lineage.get("score") or {}
            return {name: self.lineage.get(name) or 0 for name in names} | {
                "score": {name: score.get(name) for name in ("mean", "best", "episodes")}
            }
        return {
            "steps": learner["run_steps"],
            "updates": learner["run_updates"],
            "version": learner["version"] if learner["ready"] else None,
            "score": {
                "mean": number(gauges["score_mean"]),
                "best": number(gauges["score_best"]),
                "episodes": learner["run_episodes"],
            },
        }

    def _overall(self, totals: dict[str, float], seconds: float) -> dict[str, float]:
        """Growth a second over the whole attempt."""
        # Producers wait for the first weights before the run's clock starts, so theirs is a longer one.
        lived = ((self.stop_ns or time.monotonic_ns()) - self.created_ns) / 1e9
        spans = {name: lived if name.startswith("producer.") else seconds for name in totals}
        first = self._first if self.began_ns else {}
        return {
            name: (total - first.get(name, 0)) / spans[name] if seconds else 0.0
            for name, total in totals.items()
        }

    def _seconds(self, books: Sequence[dict[str, Any]]) -> float:
        """Of this attempt, from its first commit to the stop flag."""
        first = min((one["first_commit_ns"] for one in books if one["first_commit_ns"]), default=None)
        if first is None:
            return 0.0
        return max(0.0, ((self.stop_ns or time.monotonic_ns()) - max(first, self.began_ns)) / 1e9)

    def _processes(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        processes, cpu = [], {}
        for index in self.table.all:
            info = self.control.process(index)
            used = procfs.usage(info.pid) if info.pid else None
            if used is not None:
                cpu[f"cpu.{info.role}.{info.role_index}"] = used.cpu_seconds
            processes.append(
                {
                    "role": info.role,
                    "index": info.role_index,
                    "pid": info.pid,
                    "state": info.state,
                    "cpu": 0.0,
                    "core": info.core,
                    "phase": info.phase,
                    "resident_bytes": used.resident_bytes if used is not None else 0,
                }
            )
        return processes, cpu

    def _rates(self, totals: dict[str, float], seconds: float) -> dict[str, float]:
        """Growth a second over the last 10 s; 0 for a total that is new. `seconds`: the run's clock, before
        which no step was made."""
        now = time.monotonic()
        self._history.append((now, totals))
        while len(self._history) > 2 and now - self._history[1][0] >= RATE_WINDOW_SECONDS:
            self._history.popleft()
        then, before = self._history[0]
        span = now - then
        if span <= 0:
            return dict.fromkeys(totals, 0.0)
        spans = dict.fromkeys(totals, span) | dict.fromkeys(RUN_TOTALS, min(span, seconds) or span)
        grown = {name: max(0.0, total - before.get(name, total)) for name, total in totals.items()}
        return {name: growth / spans[name] for name, growth in grown.items()}


def number(value: float) -> float | None:
    """JSON has no NaN: what is not there yet is null."""
    return value if math.isfinite(value) else None


def quantile(bins: Sequence[int], share: float) -> int | None:
    """The smallest lag that at least `share` of all steps do not exceed; None where nothing was counted.

    The last bin holds everything above the others, so its number is a lower bound.
    """
    total = sum(bins)
    if not total:
        return None
    below = 0
    for lag, count in enumerate(bins):
        below += count
        if below >= share * total:
            return lag
    return len(bins) - 1


def _figure(value: float | None) -> str:
    """An evaluation that ran out of time may have no mean, and one episode has no interval."""
    return "-" if value is None else f"{value:.2f}"


def summary_line(status: dict[str, Any]) -> str:
    """One line that says how a run went."""
    score, lag = status["score"], status["lag"]
    parts = [
        f"{status['state']}: {status['steps']:,} steps in {status['seconds']:.1f} s "
        f"({status['steps_per_second']:,.0f} steps/s), version {status['version']}"
    ]
    if score["mean"] is not None:
        parts.append(f"score {score['mean']:.2f}, best {score['best']:.2f}")
    if status["solved_at_seconds"] is not None:
        parts.append(f"solved at {status['solved_at_seconds']:.1f} s")
    if evaluated := score["evaluated"]:
        parts.append(
            f"evaluated {_figure(evaluated['mean'])} ({_figure(evaluated['low'])} to "
            f"{_figure(evaluated['high'])}, {evaluated['n']} episodes), "
            f"argmax {_figure(evaluated['argmax']['mean'])}"
        )
    if lag["mean"] is not None:
        limit = "no limit" if lag["limit"] is None else f"limit {lag['limit']}"
        parts.append(f"lag mean {lag['mean']:.2f}, max {lag['max']} ({limit})")
    return "; ".join(parts)
