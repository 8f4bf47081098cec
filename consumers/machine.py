"""What of the machine a learner takes: device, threads, arithmetic."""

from __future__ import annotations

import os

import torch

import config as configuration


class Unavailable(Exception):
    """The settings ask for what this machine does not have. The message is one line."""


def choose_device(setting: str, index: int) -> torch.device:
    """`learner.device` of the learner `index`: each has a GPU of its own where there are enough. Raises
    Unavailable where there is no such device."""
    if setting == "cuda" and not torch.cuda.is_available():
        raise Unavailable("learner.device: cuda, but torch sees no CUDA device here; needs cpu or auto")
    if setting == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", index % torch.cuda.device_count())


def choose_threads(config: configuration.Config, device: torch.device) -> int:
    """`learner.threads`; auto is 1 where producers run beside the learner, since torch's threads wait for
    each other and a producer would hold up all of them, and every core where producers sleep meanwhile, of
    which several learners have a part each."""
    if config.learner.threads != "auto":
        return int(config.learner.threads)
    cores = len(os.sched_getaffinity(0)) if config.exact and device.type == "cpu" else 1
    return max(1, cores // config.learner.count)


def choose_bf16(setting: str, device: torch.device) -> bool:
    """`learner.precision`; auto is bf16 where the hardware multiplies it."""
    if setting != "auto" or device.type == "cuda":
        return setting != "float32"
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))
