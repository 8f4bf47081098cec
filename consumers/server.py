"""The inference server: answers the questions of its producers about one step of a group of agents, in
batches.

    python -m consumers.server --role server --index 0 --run NAME --dir DIR --control FD --weights FD
                               --rings FD,FD,... --process INDEX --parent PID

Started by the supervisor for `policy.placement: server`. It writes action, log-probability, version and, at
step 0, the recurrent state into the slot that the producer has under way, then says so; docs/architecture.md,
"The inference server", has the protocol. Killed at any instruction, its producers give up their slots and ask
its successor."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import config as configuration
from config import exits
from consumers.acting import Step, Versions
from consumers.allocator import keep_freed_memory
from consumers.machine import Unavailable, choose_device
from consumers.process import leave, settle_in
from consumers.serving import Group, Question, lanes_of
from producers.c_heads import CHeads
from producers.opaque import decode
from producers.program import Program
from ringbuf import MAX_LEARNERS, Control, Ring, Weights

SLICE_SECONDS = 0.5  # of a wait, after which the heartbeat is renewed

Asked = list[tuple[Group, Question]]


class Lane:
    """Groups that are answered together, in the order of their places, and their recurrent state."""

    def __init__(self, groups: list[Group], program: Program, device: torch.device):
        self.groups = groups
        self.step = Step(program, sum(group.rows for group in groups), device)
        self.asked: dict[int, Question] = {}  # by place in `groups`

    def due(self, now_ns: int, patience_ns: int) -> tuple[bool, bool]:
        """Whether to answer what is asked now, and whether only because the oldest question has waited so
        long: else the producers that are in the middle of a slot are waited for."""
        if not self.asked:
            return False, False
        if all(i in self.asked for i, group in enumerate(self.groups) if group.midway):
            return True, False
        late = now_ns - self.oldest_ns >= patience_ns
        return late, late

    @property
    def oldest_ns(self) -> int:
        return min(self.groups[i].seen_ns for i in self.asked)


class Server:
    """One inference server of a run."""

    def __init__(
        self,
        config: configuration.Config,
        control: Control,
        weights: Weights,
        rings: Sequence[Ring],
        index: int = 0,
    ):
        """`rings`: those whose agents it acts for. Raises Unavailable where the settings ask for what this
        machine does not have, OSError where a native part is missing."""
        self.control, self.rings, self.index = control, list(rings), index
        self.plan = plan = rings[0].plan
        self.device = choose_device(config.server.device, index)
        torch.set_num_threads(config.server.threads)
        self.program = decode(weights.program)
        self.versions = Versions(self.program, weights, self.device)
        self.lanes = [Lane(groups, self.program, self.device) for groups in lanes_of(self.rings)]
        self.heads = CHeads(plan.choices, plan.heads)
        self._patience_ns = round(config.server.max_wait_us * 1e3)
        # What repeats bit for bit needs every agent at the same place of a batch of the same size; a CUDA
        # graph too.
        self._fixed = plan.mode == "exact" or self.device.type == "cuda"
        self._sticks = plan.mode == "exact" or plan.pickup == "slot"
        self._bell = MAX_LEARNERS + index
        self._batches = 0
        self._latency_max_ns = self._version_seen = 0
        self._told: dict[str, int] = {}

    def run(self) -> None:
        """Answers until no producer is left."""
        while not self.control.producers_gone:
            seen = self.control.bell_value(self._bell)
            self.look()
            now = time.monotonic_ns()
            due = [
                (lane, late)
                for lane in self.lanes
                for ready, late in [lane.due(now, self._patience_ns)]
                if ready
            ]
            if not due:
                self._wait(seen, now)
            for lane, late in due:
                self.answer(lane, late=late)

    def look(self) -> None:
        """Takes notice of new questions."""
        for lane in self.lanes:
            for place, group in enumerate(lane.groups):
                question = group.question()
                known = lane.asked.get(place)
                if question is None:
                    lane.asked.pop(place, None)  # of a producer that died
                elif known is None or known.number != question.number:
                    lane.asked[place] = question
                    group.seen_ns = time.monotonic_ns()

    @torch.inference_mode()
    def answer(self, lane: Lane, *, late: bool) -> None:
        """Acts for all groups of the lane that have asked: one pass for each version."""
        self.control.pulse("policy", self._batches)
        asked = [(lane.groups[place], lane.asked[place]) for place in sorted(lane.asked)]
        if late:  # whoever is in the middle of a slot and does not ask is waited for once
            for place, group in enumerate(lane.groups):
                group.midway = group.midway and place in lane.asked
        lane.asked.clear()
        by_version: dict[int | None, Asked] = {}
        for group, question in asked:
            by_version.setdefault(self._version(group, question), []).append((group, question))
        for version, some in by_version.items():
            held = {group.acting for each in self.lanes for group in each.groups if group.acting is not None}
            if version is None:
                version, model = self.versions.newest(held if self._sticks else ())
            else:
                model = self.versions.exactly(version, held | {one for one in by_version if one is not None})
            if model is None:
                self._refuse(some)
            else:
                self._act(lane, some, version, model, late=late)
        if self._told != self.versions.spent:
            self._told = dict(self.versions.spent)
            for name, count in self._told.items():
                self.control.counter_set(name, count)

    def _version(self, group: Group, question: Question) -> int | None:
        """By which weights the step is to be acted; None: by the newest."""
        if self.plan.mode == "exact":
            return question.version
        return group.acting if self._sticks and question.t > 0 else None

    def _act(self, lane: Lane, some: Asked, version: int, model: object, *, late: bool) -> None:
        begin = time.monotonic_ns()
        step = lane.step
        places, rows, obs = self._gather(lane, some)
        state = (
            step.state
            if rows == len(step.state)
            else torch.cat([_rows(step.state, group) for group, _ in some])
        )
        for (group, question), place in zip(some, places, strict=True):
            if self.program.state_width and question.t == 0:
                group.field(question, "state0")[...] = state[place : place + group.rows].cpu().numpy()
        gathered = time.monotonic_ns()
        logits, state = step.run(model, obs, state)
        passed = time.monotonic_ns()
        whole = self.device.type == "cpu" and len(some) == len(lane.groups)
        if whole:
            step.state = state
        log_std = None
        if self.program.log_std is not None:
            weight = self.program.log_std
            flat = model.flat_weights()  # type: ignore[attr-defined]
            log_std = flat[weight.offset : weight.offset + weight.count].cpu().numpy()
        for (group, question), place in zip(some, places, strict=True):
            after = state[place : place + group.rows]
            t = question.t
            mask = group.field(question, "mask")[t] if self.plan.has_mask else None
            action, log_prob = group.field(question, "action")[t], group.field(question, "logprob")[t]
            self.heads.draw(
                logits[place : place + group.rows], mask, log_std, question.noise_key, group.first_agent,
                question.step, action, log_prob,
            )  # fmt: skip
            group.field(question, "version")[t] = version
            group.acting = version if t + 1 < self.plan.horizon else None
            if self.program.state_width:
                if not whole:
                    _rows(step.state, group).copy_(after)
                if t + 1 == self.plan.horizon:
                    group.carry[...] = after.cpu().numpy()
            group.answer(question)
        self._version_seen = max(self._version_seen, version)
        self._count(some, rows, late, (begin, gathered, passed))

    def _gather(self, lane: Lane, some: Asked) -> tuple[list[int], int, Tensor]:
        """Copies observations and reset masks together; where each group's rows begin, and how many rows
        there are, and the observations. Begins with the state of agents that are new."""
        step, at, places = lane.step, 0, []
        # One group alone, and no other's place to keep: its observations are used where they lie.
        in_place = self.device.type == "cpu" and len(some) == 1 and (not self._fixed or len(lane.groups) == 1)
        obs = step.obs
        for group, question in some:
            place = group.place if self._fixed else at
            rows = slice(place, place + group.rows)
            state = _rows(step.state, group)
            if group.epoch != question.epoch:  # another producer's agents, or of another life of ours
                state.copy_(torch.from_numpy(group.carry)) if question.carried else state.zero_()
                group.epoch = question.epoch
            found = torch.from_numpy(group.field(question, "obs")[question.t])
            if in_place:
                obs = found
            else:
                obs[rows] = found
            if self.program.state_width:
                reset = torch.from_numpy(group.reset_before).bool()
                if question.t == 0:  # what the slot begins with is zeroed already
                    state.masked_fill_(reset.to(state.device).unsqueeze(-1), 0.0)
                    reset = torch.zeros_like(reset)
                step.reset_before[rows] = reset
            places.append(place)
            at += group.rows
        width = len(step.obs) if self._fixed else at
        return places, width, obs[:width]

    def _refuse(self, some: Asked) -> None:
        for group, question in some:
            group.acting = None
            group.answer(question, refused=True)
        self.control.counter_add("refused", len(some))

    def _count(self, some: Asked, rows: int, late: bool, times: tuple[int, int, int]) -> None:
        begin, gathered, passed = times
        now = time.monotonic_ns()
        self._batches += 1
        waited = [now - group.seen_ns for group, _ in some]
        self._latency_max_ns = max(self._latency_max_ns, *waited)
        add = self.control.counter_add
        add("rows", sum(group.rows for group, _ in some))
        add("requests", len(some))
        add("batches", 1)
        add("batch_rows", rows)
        if late:
            add("late_batches", 1)
        add("latency_sum_ns", sum(waited))
        add("gather_ns", gathered - begin)
        add("forward_ns", passed - gathered)
        add("sample_ns", now - passed)
        self.control.counter_set("latency_max_ns", self._latency_max_ns)
        self.control.counter_set("version", self._version_seen)

    def _wait(self, seen: int, now_ns: int) -> None:
        """Until somebody asks, or the oldest question has waited long enough."""
        left = SLICE_SECONDS
        for lane in self.lanes:
            if lane.asked:
                left = min(left, (lane.oldest_ns + self._patience_ns - now_ns) / 1e9)
        self.control.pulse("wait_data", self._batches)
        if not self.control.producers_gone:
            self.control.bell_wait(self._bell, seen, max(0.0, left))
        self.control.counter_add("wait_request_ns", time.monotonic_ns() - now_ns)


def _rows(state: Tensor, group: Group) -> Tensor:
    """Of the lane's state, where a group's agents have theirs for good."""
    return state[group.place : group.place + group.rows]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="consumers.server", description="Started by the supervisor.")
    for name in ("role", "run"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("index", "control", "weights", "process", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rings", type=lambda text: [int(fd) for fd in text.split(",")], required=True)
    return parser.parse_args(arguments)


def last_word(text: str) -> None:
    """To the log, where its disk has room: on a full one the exit code must do."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), text.encode())


def main(arguments: Sequence[str]) -> int:
    args = parse(arguments)
    settle_in(args.parent, args.dir / "logs" / f"server-{args.index}.log")
    keep_freed_memory()
    config = configuration.load_resolved(args.dir / "config.resolved.yaml")
    control = Control.attach(args.control, args.process)
    control.pulse("starting", 0)
    weights = Weights.attach(args.weights, "reader")
    rings = [Ring.attach(fd, control, "server") for fd in args.rings]
    try:
        server = Server(config, control, weights, rings, args.index)
    except (Unavailable, OSError) as error:
        last_word(f"server: {error}\n")
        return exits.MISSING
    try:
        server.run()
    except Exception:  # noqa: BLE001 - a bug of ours or of the module; the supervisor reads the code, the log the rest
        last_word(traceback.format_exc())
        return exits.INTERNAL
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
