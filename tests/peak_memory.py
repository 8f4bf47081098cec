"""The peak memory of one learner's updates, measured in a process of its own: prints bytes as JSON.

    python -m peak_memory RUN.yaml [section.key=value ...]

The slots are held beside and not counted, as those in the rings are not. `base`: before the updates, without
the slots; `peak`: at most, in two updates.
"""

import json
import resource
import sys

import torch

from bench.learner import Slot
from consumers.allocator import keep_freed_memory
from consumers.batch import Batch
from consumers.machine import choose_bf16
from consumers.update import Update
from producers.footprint import kept_versions
from producers.prepare import prepare


def main(path, overrides):
    keep_freed_memory()
    torch.set_num_threads(1)
    prepared = prepare(path, overrides)
    settings, program = prepared.config.learner, prepared.program
    cpu = torch.device("cpu")
    slots = [Slot(prepared, seed) for seed in range(settings.batch_slots)]
    held = sum(x.nbytes for slot in slots for x in slot.fields.values())
    before = resident()
    update = Update(
        settings, program, seed=0, device=cpu, bf16=choose_bf16(settings.precision, cpu),
        versions=kept_versions(prepared.config),
    )  # fmt: skip
    for version in range(2):
        batch = Batch(
            slots, device=cpu, has_mask=program.mask is not None, discrete=not program.continuous,
            recurrent=program.state_width > 0, burn_in=settings.burn_in,
        )  # fmt: skip
        update.train(batch, version + 1, 0)
        batch.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"base": before - held, "peak": peak - held}))


def resident():
    with open("/proc/self/statm", encoding="ascii") as text:
        return int(text.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
