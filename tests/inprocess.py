"""A learner in a thread of the test's process; the test is its supervisor and its producers."""

import json
import os
import struct
import threading
import time

import numpy as np
import torch
from segments import Slot

import config
from consumers import learner
from producers.program import build
from ringbuf import Control, Plan, Ring, Weights, segments

HORIZON, AGENTS = 8, 6
SPEC = {"obs": {"dtype": "float32", "shape": [5]}, "heads": [{"choices": 3}], "mask": False}
DEADLINE_SECONDS = 60  # against hanging only
SUPERVISOR, LEARNER, PRODUCER = 0, 1, 100  # places in the process table


class Run:
    """One learner, of a small network."""

    def __init__(self, folder, *, rings=2, slots=4, mode="async", exact=0, limit=1, full="block", **sections):
        batch_slots = sections.pop("batch_slots", rings)
        self.folder, self.rings, run_id = folder, rings, os.urandom(16)
        settings = {"minibatches": 2, "batch_slots": batch_slots, "threads": 1, "precision": "float32"}
        base = {
            "sim": {"name": "toy"},
            "mode": mode,
            "staleness": {"limit": "none" if limit is None else limit, "exact": exact},
            "producers": {"count": rings, "agents": AGENTS},
            "rollout": {"horizon": HORIZON},
            "ring": {"slots": slots, "full": full},
            "learner": settings | sections.pop("learner", {}),
        }
        self.settings = base | sections
        self.config = self._write_config()
        program = build({"hidden": [8], "activation": "tanh"}, SPEC)
        parts = ["control", "weights", *(f"ring-{i}" for i in range(rings))]
        self.names = [segments.name(run_id, part) for part in parts]
        self.control = segments.create_control(self.names[0], run_id)
        self.channel = segments.create_weights(
            self.names[1],
            count=program.count,
            buffers=3 + exact,
            program=program.encode(),
            snapshot_bytes=1 << 17,
            list_entries=batch_slots,
            run_id=run_id,
        )
        self.owned = []
        for i in range(rings):
            plan = Plan.build(
                sim="toy",
                horizon=HORIZON,
                worlds=AGENTS,
                world_agents=1,
                obs_dtype="float32",
                obs_shape=(5,),
                choices=(3,),
                statistics=2,
                score=1,
                unpacked_step_bytes=20,
                mode="async" if mode == "async" else "exact",
                full=full,
                pickup="slot",
                lagged_versions=exact,
                producers=rings,
                batch_slots=batch_slots,
                ring=i,
            )
            self.owned.append(segments.create_ring(self.names[2 + i], plan, slots, run_id, self.control))
            self.owned[i].set_owner(0)
            self.control.set_process(PRODUCER + i, role="producer", role_index=i, state="running")
        self.control.set_process(LEARNER, role="learner", role_index=0, state="running")
        self.reader = Weights.attach(self.channel.fd)
        self.producers = [
            Ring.attach(ring.fd, Control.attach(self.control.fd, PRODUCER + i), "producer")
            for i, ring in enumerate(self.owned)
        ]
        self.written = 0
        self.learner = learner.Learner(
            self.config,
            folder,
            Control.attach(self.control.fd, LEARNER),
            Weights.attach(self.channel.fd, "writer"),
            [Ring.attach(ring.fd, Control.attach(self.control.fd, LEARNER)) for ring in self.owned],
        )
        self.thread = threading.Thread(target=self.learner.run, daemon=True)

    def _write_config(self):
        path = self.folder / "config.resolved.yaml"
        path.write_text(json.dumps(self.settings))
        return config.load_resolved(path)

    def change(self, **sections):
        """What the supervisor does when the run file was edited and it is told so."""
        for name, keys in sections.items():
            self.settings[name] = self.settings.get(name, {}) | keys
        expected = self._write_config()
        self.control.announce_settings()
        self.control.bell_ring(0)
        self.until(lambda: self.learner.config == expected)

    def start(self):
        self.thread.start()
        self.until(lambda: self.control.process(LEARNER).phase == "wait_data")

    def until(self, condition):
        """Waits for what must happen; hanging is the failure."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            assert self.thread.is_alive() or condition(), "the learner ended"
            time.sleep(0.001)

    def claimable(self, ring):
        return self.producers[ring].claimable() == "claimable"

    def write(self, ring, scores=(), *, poisoned=False):
        """One slot as its producer writes it; `scores` of the episodes that end in it. `poisoned`: nothing
        finite comes of its rewards. Returns its sequence."""
        return self.begin_to_write(ring, scores, poisoned=poisoned)()

    def begin_to_write(self, ring, scores=(), *, poisoned=False):
        """The same but for the commit, which what this returns does."""
        self.until(lambda: self.claimable(ring))
        producer = self.producers[ring]
        if producer.plan.mode == "exact":
            version = producer.exact_version()
            self.until(lambda: self.reader.published >= version)
        else:
            version = producer.announce(self.reader)
        claim = producer.claim(version)
        slot = Slot(self.written, horizon=HORIZON, agents=AGENTS, version=version)
        self.written += 1
        for name in ("obs", "action", "logprob", "reward", "terminated", "truncated", "valid", "version"):
            claim.array(name)[...] = slot.fields[name]
        if poisoned:
            claim.array("reward")[...] = np.nan
        records = claim.array("episodes")
        for i, score in enumerate(scores):
            record = struct.pack("<qiifff", version, 0, 7, 1.0, 99.0, score)
            records[i, : len(record)] = memoryview(record)
        del records

        def commit():
            claim.commit(int(slot.fields["valid"].sum()), len(scores), version)
            return claim.sequence

        return commit

    def counters(self):
        return self.control.counters(LEARNER)

    def stop(self, reason):
        """What the supervisor does at a stop, up to the point where every producer is gone."""
        self.control.set_stop(reason)
        for ring in self.owned:
            ring.sweep_producer()
        self.control.set_producers_gone()
        self.thread.join(DEADLINE_SECONDS)
        assert not self.thread.is_alive(), "the learner did not end"

    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def close(self):
        for name in self.names:
            segments.unlink(name)
        if self.thread.is_alive():
            self.control.set_stop("failure")
            self.control.set_producers_gone()
            self.thread.join(DEADLINE_SECONDS)


def runs(folder, monkeypatch):
    """For a fixture: begins Runs and closes them. Their learners wake up for bells alone: what no bell tells
    would hang."""
    monkeypatch.setattr(learner, "SLICE_SECONDS", 3600.0)
    made = []
    torch.set_num_threads(1)

    def begin(**options):
        run = Run(folder, **options)
        made.append(run)
        run.start()
        return run

    yield begin
    for run in made:
        run.close()
