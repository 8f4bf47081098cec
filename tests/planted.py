"""Whole lines from C producer to learner in the test's process, healthy or with a fault planted in them."""

import json
import os
import subprocess
import threading
from pathlib import Path

from native import broken

import config
from bench.rig import Rig
from consumers.causes import CAUSES
from consumers.learner import Learner
from producers import native

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 120  # against hanging only

BASE = """\
run: {seed: 5}
mode: lagged
staleness: {exact: 1}
producers: {count: 1, agents: 32}
rollout: {horizon: 16}
ring: {slots: 6}
learner:
  {device: cpu, threads: 1, precision: float32, batch_slots: 1, epochs: 2, minibatches: 4,
   learning_rate: 5e-3}
stop: {versions: 60, window: 20}
monitor: {port: 0}
"""
PLAIN = "policy: {hidden: [16], activation: tanh}"
RECURRENT = "policy: {hidden: [16], activation: tanh, recurrent_width: 16, recurrent: "
MEMORY = "sim: {name: memory, corridor: 3, patience: 2}"
TASKS = {
    "cartpole": "sim: {name: cartpole, max_steps: 30}\npolicy: {hidden: [16], normalize_obs: true}\n",
    "memory": f"{MEMORY}\n{RECURRENT}mingru}}\n",
    "memory-lstm": f"{MEMORY}\n{RECURRENT}lstm}}\n",
    "pendulum": f"sim: {{name: pendulum, max_steps: 20}}\n{PLAIN}\n",
    "tabular": f"sim: {{name: tabular}}\n{PLAIN}\n",
    "slowtail": f"sim: {{name: slowtail, mean_us: 2}}\n{PLAIN}\n",
    "masked": f"sim: {{name: RELAY}}\n{PLAIN}\n",
}

# What a fault changes in producers/rollout.c; PLANT names the one that is active.
MARK = '#include "rollout_step.h"\n'
SWITCH = """
static int planted(const char *fault) {
    const char *active = getenv("PLANT");
    return active != NULL && strcmp(active, fault) == 0;
}
"""
COPY = "hr_weights_copy(r->weights, *version, r->flat)"
FAULTS = (
    (
        "= (int64_t)r->loaded;\n        hr_policy_act(",
        '= (int64_t)r->loaded + planted("label+1") - planted("label-1");\n        hr_policy_act(',
    ),
    ("    while (!" + COPY, '    while (!(planted("stale") && r->loaded != HR_NONE) && !' + COPY),
    (
        "        r->step++;\n",
        '        r->step++;\n        if (planted("unreset")) memset(r->reset_before, 0, agents);\n',
    ),
    (
        "s.mask ? s.mask + r->mask_bytes * t : NULL, r->state",
        's.mask && !planted("unmasked") ? s.mask + r->mask_bytes * t : NULL, r->state',
    ),
    (
        "r->noise_key, plan->first_agent, r->step, 0, s.action",
        'r->noise_key, plan->first_agent, r->step, planted("greedy"), s.action',
    ),
    (
        "        policy_ns += hr_since(&mark);\n",
        """        if (planted("bf16"))
            for (uint32_t i = 0; i < agents; i++) {
                uint32_t bits;
                memcpy(&bits, s.logprob + (size_t)t * agents + i, sizeof bits);
                bits = (bits + 0x8000u) & 0xffff0000u;
                memcpy(s.logprob + (size_t)t * agents + i, &bits, sizeof bits);
            }
        policy_ns += hr_since(&mark);
""",
    ),
)


def build_producer(folder):
    """A producer with every fault above, none of which is active without PLANT in its environment."""
    source = broken((ROOT / "producers/rollout.c").read_text(), MARK, MARK + SWITCH)
    for old, new in FAULTS:
        source = broken(source, old, new)
    changed = folder / "rollout.c"
    changed.write_text(source.replace('"../ringbuf/', '"ringbuf/'))
    built = [*(ROOT / "build" / "producers").glob("*.o"), *(ROOT / "build" / "ringbuf").glob("*.o")]
    objects = [o for o in built if not o.name.startswith("_ring") and o.name != "rollout.o"]
    folders = [f"-I{ROOT / part}" for part in ("", "ringbuf", "producers", "sims")]
    sources = [str(changed), *map(str, objects), str(ROOT / "build" / "sims" / "host.o")]
    command = [
        "gcc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O1",
        *folders,
        "-o",
        str(folder / "producer"),
        *sources,
    ]
    subprocess.run([*command, "-pthread", "-ldl", "-lm"], check=True, capture_output=True)
    return folder / "producer"


class Line(Rig):
    """A run of one of TASKS up to `stop.versions`, with everything in place but the supervisor."""

    def __init__(self, folder, task, *overrides, producer=native.PRODUCER, masked=None, channel=None):
        """`producer`: the executable. `masked`: the library of a simulator with action masks. `channel`: what
        takes the place of the weights channel for the learner, of the real one."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        path = folder / "run.yaml"
        path.write_text(BASE + TASKS[task].replace("RELAY", str(masked)))
        super().__init__(path, overrides, producer=producer)
        resolved = folder / "config.resolved.yaml"
        resolved.write_text(config.dump_resolved(self.prepared.config))
        weights = self.weights if channel is None else channel(self.weights)
        try:
            self.learner = Learner(config.load_resolved(resolved), folder, self.control, weights, self.rings)
        except BaseException:
            self.close()
            raise

    def run(self, plant=""):
        """From the first step to the last version, with the fault `plant` active in the producers. Returns
        the names of the audits that gave alarms."""
        os.environ["PLANT"] = plant
        try:
            with (self.folder / "producer.log").open("w") as log:
                self.spawn(errors=log)
        finally:
            del os.environ["PLANT"]
        thread = threading.Thread(target=self.learner.run, daemon=True)
        thread.start()
        supervisor = self.supervisor
        while thread.is_alive() and not self.counters()["stop_request"]:
            thread.join(0.005)
        supervisor.set_stop("versions")
        for child, ring in zip(self.children, self.segments.rings, strict=True):
            child.wait(DEADLINE_SECONDS)
            ring.sweep_producer()
        supervisor.set_producers_gone()
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive(), "the learner did not end"
        assert self.lines()[-1]["version"] >= 1
        return {audit for audit in CAUSES if self.counters()[f"audit_{audit}_alarms"]}

    def counters(self):
        return self.supervisor.counters(1)

    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def events(self):
        path = self.folder / "events.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [event for event in found if event["event"] == "audit"]
