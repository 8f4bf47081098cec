"""The inference server alone, and with real producers: rows a second, beside torch's own forward pass.

    python -m bench.server [--seconds N] [--threads N] [--network small|large|lstm ...] [--json FILE]

Three figures for each batch size, by turns, in one process but for the last: - torch: `model(obs)` of that
many observations and nothing else, under inference mode; - server: questions of one group, answered: looking,
copying observations together, the same forward pass, drawing actions, writing the slot, saying so. What
producers do is not in it; - run: real producers of breakout, stepping, and a server in a thread of this
process; what all the cores give.

The server is compared with torch at the best batch size of each. Best and median of many short runs: on a
shared machine the first is what the code can do, the second what it got. """

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.policy import per_call
from bench.rig import LEARNER_SLOT, Rig
from consumers import modules
from consumers.allocator import keep_freed_memory
from consumers.server import Server
from ringbuf import Control, Ring, Weights

SERVER_SLOT = LEARNER_SLOT + 100
ROWS = (512, 1024, 2048, 4096)
NETWORKS = {
    "small": "hidden: [128, 128]",
    "large": "hidden: [512, 512]",
    "lstm": "hidden: [128], recurrent: lstm, recurrent_width: 128",
}
RUN = """
run: {{name: bench}}
sim: {{name: breakout}}
producers: {{count: {producers}, agents: {agents}}}
rollout: {{horizon: 32}}
ring: {{slots: {slots}}}
policy: {{placement: server, {network}}}
server: {{threads: {threads}}}
learner: {{batch_slots: {producers}, minibatches: 1, memory: 64GiB}}
"""


def rig(folder: Path, **values: Any) -> Rig:
    path = folder / "run.yaml"
    path.write_text(RUN.format(**values))
    made = Rig(path)
    generator = np.random.default_rng(0)
    made.publish(0, generator.normal(0, 0.05, made.weights.count).astype(np.float32))
    made.supervisor.set_process(SERVER_SLOT, role="server", role_index=0, state="running")
    return made


def server_of(made: Rig) -> Server:
    control = Control.attach(made.segments.control.fd, SERVER_SLOT)
    rings = [Ring.attach(ring.fd, control, "server") for ring in made.segments.rings]
    return Server(made.prepared.config, control, Weights.attach(made.segments.weights.fd), rings)


def alone(rows: int, network: str, threads: int, seconds: float) -> dict[str, Any]:
    """torch and server by turns, for `rows` rows a batch."""
    with tempfile.TemporaryDirectory() as folder:
        made = rig(Path(folder), producers=1, agents=2 * rows, slots=2, network=network, threads=threads)
        with made:
            server = server_of(made)
            producer = Ring.attach(
                made.segments.rings[0].fd, Control.attach(made.segments.control.fd, 40), "producer"
            )
            made.grant()
            version = producer.announce(made.weights)
            assert version is not None
            claim = producer.claim(version)
            assert claim is not None
            obs = claim.array("obs")
            assert obs is not None
            obs[:] = np.random.default_rng(1).normal(0, 1, obs.shape).astype(obs.dtype)
            model = modules.make(made.prepared.program).requires_grad_(False)
            rows_in = torch.from_numpy(obs[0, :rows].copy())
            state = model.initial_state(rows)

            def forward() -> None:
                with torch.inference_mode():
                    if made.prepared.program.state_width:
                        model.step(rows_in, state)
                    else:
                        model(rows_in)

            turn = [0]

            def answer() -> None:
                turn[0] += 1
                producer.ask(0, 0, turn[0] % 31, turn[0], 1, version)
                server.look()
                server.answer(server.lanes[0], late=False)

            found = {"rows": rows}
            for _ in range(2):  # by turns
                for name, call in (("torch", forward), ("server", answer)):
                    best, median = per_call(call, seconds / 2)
                    found[name] = max(found.get(name, 0), rows / best)
                    found[f"{name}_median"] = max(found.get(f"{name}_median", 0), rows / median)
            del obs
            claim.abort()
            producer.close()
            made.segments.rings[0].sweep_producer()
            return found


def together(rows: int, network: str, threads: int, producers: int, seconds: float) -> dict[str, Any]:
    """Rows a second of a server with real producers, each with two groups of `rows` / `producers` agents."""
    with tempfile.TemporaryDirectory() as folder:
        made = rig(
            Path(folder), producers=producers, agents=2 * rows // producers, slots=4, network=network,
            threads=threads,
        )  # fmt: skip
        with made:
            server = server_of(made)
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            made.spawn()
            made.grant()
            begin: dict[str, int] = {}
            until = started = 0.0
            for lease in made.leases():
                lease.ack()
                made.grant()
                now = time.perf_counter()
                if not begin:
                    begin, started, until = made.supervisor.counters(SERVER_SLOT), now, now + seconds
                elif now > until:
                    break
            end = made.supervisor.counters(SERVER_SLOT)
            spent = time.perf_counter() - started
            made.supervisor.set_stop("signal")
            for child in made.children:
                child.wait(timeout=10)
            made.supervisor.set_producers_gone()
            thread.join()
        grown = {name: end[name] - begin[name] for name in end}
        return {
            "rows": rows,
            "run": grown["rows"] / spent,
            "rows_a_batch": grown["rows"] / max(1, grown["batches"]),
            "latency_ms": grown["latency_sum_ns"] / max(1, grown["requests"]) / 1e6,
            "busy": 1 - grown["wait_request_ns"] / 1e9 / spent,
        }


def measure(
    networks: list[str], threads: int, seconds: float, say: Callable[[str], None] = print
) -> dict[str, Any]:
    keep_freed_memory()
    torch.set_num_threads(threads)
    figures: dict[str, Any] = {}
    for name in networks:
        each = [alone(rows, NETWORKS[name], threads, seconds) for rows in ROWS]
        for one in each:
            say(
                f"{name:6} {one['rows']:6} rows  torch {one['torch'] / 1e6:6.3f} M/s (median"
                f" {one['torch_median'] / 1e6:6.3f})  server {one['server'] / 1e6:6.3f} M/s (median"
                f" {one['server_median'] / 1e6:6.3f})"
            )
        ratio = max(one["server"] for one in each) / max(one["torch"] for one in each)
        run = together(1024, NETWORKS[name], threads, 2, seconds)
        say(
            f"{name:6} server / torch, each at its best: {ratio:.2f}; with two producers"
            f" {run['run'] / 1e6:.3f} M/s, {run['rows_a_batch']:.0f} rows a batch,"
            f" {run['latency_ms']:.2f} ms, server busy {run['busy']:.0%}"
        )
        figures[name] = {"alone": each, "ratio": ratio, "run": run}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each figure (default 2)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--network", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    figures = measure(options.network, options.threads, options.seconds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
