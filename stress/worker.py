"""A warm worker: torch imported once, then learner or evaluator of one cell after the other.

    python -m stress.worker --fd FD --parent PID

FD is a socket of whole messages. An order is JSON, with descriptors beside it; `@0` in a learner's arguments
is the first of them. Every order gets one answer; `{"ready": true}` comes first. The end of the socket is the
end of the worker, and so is the death of PID."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from consumers import evaluate, learner
from consumers.process import leave
from monitor import procfs

MESSAGE_BYTES = 1 << 16
MOST_FDS = 200  # below the kernel's SCM_MAX_FD


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="stress.worker", description="Started by python -m stress.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever started this ends it
        signal.signal(number, signal.SIG_IGN)
    procfs.die_with_parent(args.parent)
    warm_up()
    with socket.socket(fileno=args.fd) as orders:
        answer(orders, {"ready": True})
        while True:
            data, fds, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, MOST_FDS)
            if not data:
                return 0
            answer(orders, perform(json.loads(data), fds))


def warm_up() -> None:
    """What a first cell would pay for. Everything that is there then is there for good: the collector need
    not look at it again after every cell."""
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(1))
    torch.optim.AdamW([weight], fused=True)  # the first optimizer imports as much again as torch itself
    weight.sum().backward()
    gc.collect()
    gc.freeze()


def answer(orders: socket.socket, value: dict[str, Any]) -> None:
    orders.send(json.dumps(value).encode())


def perform(order: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
    """Does what an order says; what comes of it is the answer."""
    try:
        if order["do"] == "learn":
            given = [
                re.sub(r"@(\d+)", lambda match: str(fds[int(match[1])]), one) for one in order["arguments"]
            ]
            return {"code": learner.main(given)}
        return {"evaluated": play(Path(order["run"]), order["episodes"], order["worlds"], order["seconds"])}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a worker outlives what goes wrong in a cell
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        if distributed.is_initialized():  # a process with one run leaves that to its end
            distributed.destroy_process_group()
        for fd in fds:
            os.close(fd)
        gc.collect()  # the cell's memory is mapped as long as anything of it is left


def play(run: Path, episodes: int, worlds: int, seconds: float) -> dict[str, Any]:
    """Scores of the policy in a run directory's newest checkpoint, which samples its actions as in training;
    the same number of episodes in every world, whose seeds training never used."""
    torch.set_num_threads(1)  # a few dozen rows a step: a second thread would cost more than it does
    player = evaluate.Player.load(run)
    worlds = min(worlds, episodes)
    generator = torch.Generator().manual_seed(player.seed)
    return evaluate.play(player, worlds, math.ceil(episodes / worlds), generator, time.monotonic() + seconds)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
