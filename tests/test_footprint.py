"""Memory that stays flat while a run goes on; bench/memory.py measures it over hours."""

import os
import subprocess
import sys

import pytest
from command import CARTPOLE

from bench import memory

MINUTES = float(os.environ.get("HEADRACE_MEMORY_MINUTES", "0.75"))
GROWTH_MIB = 24  # in the second half: far above what allocators do, far below a leak of a slot an update
LEAK = """
import time
held = []
while True:
    held.append(bytearray(b"x") * (1 << 19))
    time.sleep(0.05)
"""


def test_a_leak_is_seen():
    process = subprocess.Popen([sys.executable, "-c", LEAK])
    try:
        points = []
        while len(points) < 2 or points[-1][1] - points[0][1] < 8 * memory.MIB:
            size = memory.private_bytes(process.pid)
            points.append((float(len(points)), float(size)))
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert memory.private_bytes(process.pid) is None
    assert memory.slope(points) > 0


def test_the_slope_is_that_of_the_points():
    found = memory.trend("one", [(float(t), 5.0 * memory.MIB + t * memory.MIB / 3600) for t in range(100)])
    assert found.mib_per_hour == pytest.approx(1.0)
    assert found.samples == 50
    assert memory.trend("one", [(0.0, 7.0), (1.0, 7.0)]).mib_per_hour == 0


@pytest.mark.soak
def test_no_process_of_a_run_grows_without_end(tmp_path):
    (tmp_path / "run.yaml").write_text(CARTPOLE)
    trends = memory.measure(tmp_path / "run.yaml", [], MINUTES * 60)
    found = {one.name: one for one in trends}
    roles = {"supervisor 0", "learner 0", "producer 0", "producer 1", "exporter 0"}
    assert roles | {"shared memory"} <= set(found)
    print(*trends, sep="\n")
    for one in trends:
        assert one.range_mib < GROWTH_MIB, one
    assert found["shared memory"].range_mib == 0
    assert found["supervisor 0"].mib < 60
