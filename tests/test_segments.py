"""Creating segments: real memory or a message that names the numbers, and nothing left of a failure."""

import mmap
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from rings import small_plan

import ringbuf
from ringbuf import Control, ResourceMissing, Ring, RingError, Weights, segments

RUN = bytes(range(16))
MIB = 1 << 20


def in_mount_namespace(script):
    """Runs shell commands as root of a mount namespace of their own; skips where that is not permitted."""
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("needs the right to make a mount namespace")
    return subprocess.run(["unshare", "-m", "sh", "-ec", script], capture_output=True, text=True, timeout=120)


def test_names_carry_user_run_and_part():
    assert segments.name(RUN, "ring-3") == f"/headrace-{os.getuid()}-{RUN.hex()}-ring-3"


def test_segments_are_private_real_memory_and_closed_on_exec(rig):
    run = rig()
    for thing in (run.control, run.channel, run.ring):
        facts = os.fstat(thing.fd)
        assert stat.S_IMODE(facts.st_mode) == 0o600
        assert facts.st_blocks * 512 >= facts.st_size  # no holes
        assert not os.get_inheritable(thing.fd)
        assert Path("/dev/shm" + thing.name).stat().st_ino == facts.st_ino


def test_the_mode_is_private_whatever_the_umask(rig):
    previous = os.umask(0o777)
    try:
        assert stat.S_IMODE(os.fstat(rig().ring.fd).st_mode) == 0o600
    finally:
        os.umask(previous)


def test_the_sizes_asked_for_are_the_sizes_made(rig):
    run = rig(slots=5)
    assert os.fstat(run.ring.fd).st_size == ringbuf.ring_bytes(small_plan(), 5)
    assert os.fstat(run.control.fd).st_size == ringbuf.control_bytes()
    assert os.fstat(run.channel.fd).st_size == ringbuf.weights_bytes(8, 3, 7, 100, 16)


def test_a_name_in_use_is_refused_and_stays(rig):
    run = rig()
    for create in (lambda name: segments.create_control(name, RUN),
                   lambda name: segments.create_ring(name, small_plan(), 2, RUN, run.control)):
        with pytest.raises(RingError, match="exists already"):
            create(run.names[0])
    assert Path("/dev/shm" + run.names[0]).exists()


def test_a_segment_that_cannot_be_finished_leaves_nothing(rig):
    run = rig()
    name = segments.name(os.urandom(16), "ring-0")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(RingError, match="another run"):
        segments.create_ring(name, small_plan(), 2, RUN, run.control)
    assert not Path("/dev/shm" + name).exists()
    assert set(os.listdir("/proc/self/fd")) == before


def test_unlink_forgives_what_is_gone():
    segments.unlink(segments.name(os.urandom(16), "ring-0"))


SMALL = """
mount -t tmpfs -o size={size} tmpfs /dev/shm
{python} -c '
import os, sys
from ringbuf import Plan, ResourceMissing, segments
run = os.urandom(16)
plan = Plan.build(sim="toy", horizon=128, worlds=64, world_agents=1, obs_dtype="float32", obs_shape=(32,),
                  choices=(3,), statistics=1, unpacked_step_bytes=1, batch_slots=2)
control = segments.create_control(segments.name(run, "control"), run)
{body}
'
test -z "$(ls /dev/shm | grep ring || true)"
"""


def test_a_full_shm_is_an_error_with_numbers_and_leaves_nothing():
    done = in_mount_namespace(SMALL.format(size="4m", python=sys.executable, body="""
try:
    segments.create_ring(segments.name(run, "ring-0"), plan, 4, run, control)
except ResourceMissing as error:
    print(error)
"""))
    assert done.returncode == 0, done.stderr
    needed = segments.ring_bytes(_toy(), 4) / MIB
    assert f"{needed:.1f} MiB needed" in done.stdout
    assert "/dev/shm has 1." in done.stdout


def test_preflight_tells_before_anything_is_created():
    done = in_mount_namespace(SMALL.format(size="64m", python=sys.executable, body="""
segments.preflight(8 << 20)
try:
    segments.preflight(200 << 20)
except ResourceMissing as error:
    print(error)
"""))
    assert done.returncode == 0, done.stderr
    assert "200.0 MiB needed, but /dev/shm has 61." in done.stdout
    assert "free of 64.0 MiB" in done.stdout
    assert "--shm-size=2g" in done.stdout
    assert "emptyDir" in done.stdout


def _toy():
    return ringbuf.Plan.build(
        sim="toy", horizon=128, worlds=64, world_agents=1, obs_dtype="float32", obs_shape=(32,), choices=(3,),
        statistics=1, unpacked_step_bytes=1, batch_slots=2)


def machine(root, total_kib=1 << 20, cgroups="0::/\n", **limits):
    """A /proc and a /sys/fs/cgroup of our own; limits by path, '/' written as '__'."""
    proc, cgroup = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {total_kib} kB\nMemFree: 5 kB\n")
    (proc / "self" / "cgroup").write_text(cgroups)
    for path, value in limits.items():
        file = cgroup / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value)
    return {"directory": "/proc", "proc": str(proc), "cgroup": str(cgroup)}  # /proc has no size of its own


def test_preflight_takes_a_share_of_the_machines_memory(tmp_path):
    here = machine(tmp_path)
    segments.preflight(700 * MIB, **here)
    with pytest.raises(ResourceMissing, match=r"900\.0 MiB needed, but the machine has 1\.0 GiB .*768\.0"):
        segments.preflight(900 * MIB, **here)


@pytest.mark.parametrize(("cgroups", "limits"), [
    ("0::/\n", {"memory.max": "104857600\n"}),
    ("0::/a/b\n", {"memory.max": "max\n", "a__memory.max": "104857600\n", "a__b__memory.max": "max\n"}),
    ("5:cpu:/\n4:memory,x:/c\n", {"memory__c__memory.limit_in_bytes": "104857600\n"}),
    ("0::/../outer\n", {"outer__memory.max": "104857600\n"}),
], ids=["v2", "a group above", "v1", "namespaced"])
def test_preflight_heeds_the_memory_limit_of_the_cgroup(tmp_path, cgroups, limits):
    here = machine(tmp_path, cgroups=cgroups, **limits)
    segments.preflight(70 * MIB, **here)
    with pytest.raises(ResourceMissing, match=r"80\.0 MiB needed, but the cgroup may use 100\.0 .* 75\.0"):
        segments.preflight(80 * MIB, **here)


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_no_limit_of_the_cgroup_is_no_limit(tmp_path, limit):
    segments.preflight(700 * MIB, **machine(tmp_path, **{"memory.max": limit}))


def test_preflight_names_a_missing_directory(tmp_path):
    with pytest.raises(ResourceMissing, match="nowhere"):
        segments.preflight(1, directory=str(tmp_path / "nowhere"))


DAMAGE = {
    "magic": (0, b"X", "not a segment"), "byte order": (8, b"\x01", "byte order"),
    "ABI": (12, b"\x63", "ABI 99"), "kind": (16, b"\x01", "expected a ring"),
    "length": (24, b"\x01", "header says"), "page": (40, b"\x01", "pages"),
    "reboot": (72, b"\x00" * 16, "reboot"), "run id": (56, b"\x00", "damaged"),
    "plan": (400, b"\xff", "damaged")}


@pytest.mark.parametrize(("at", "bytes_", "message"), DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_header_is_refused_and_named(rig, at, bytes_, message):
    run = rig()
    raw = mmap.mmap(run.ring.fd, 0)
    if raw[at:at + len(bytes_)] == bytes_:
        bytes_ = bytes(255 - b for b in bytes_)
    raw[at:at + len(bytes_)] = bytes_
    with pytest.raises(RingError, match=message):
        Ring.attach(run.ring.fd, run.control, "monitor")


def test_segments_of_another_kind_or_length_are_refused(rig):
    run = rig()
    with pytest.raises(RingError, match="expected a control block, found a ring"):
        Control.attach(run.ring.fd, 0)
    with pytest.raises(RingError, match="expected a weights channel, found a control block"):
        Weights.attach(run.control.fd)
    os.ftruncate(run.channel.fd, os.fstat(run.channel.fd).st_size + 4096)
    with pytest.raises(RingError, match="bytes"):
        Weights.attach(run.channel.fd)


def test_an_attacher_waits_a_moment_for_the_ready_word_and_then_says_so(rig):
    run = rig()
    raw = mmap.mmap(run.ring.fd, 0)
    struct.pack_into("<Q", raw, 128, 0)
    with pytest.raises(RingError, match="not ready"):
        Ring.attach(run.ring.fd, run.control, "monitor")


def test_a_ring_of_another_run_is_refused(rig):
    run, other = rig(), rig()
    with pytest.raises(RingError, match="another run"):
        Ring.attach(run.ring.fd, other.control, "learner")


def memory_of(thing, field):
    """KiB of `field` in /proc/self/smaps over all mappings of the segment."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(thing.name)
        elif inside and line.startswith(field + ":"):
            total += int(line.split()[1])
    return total


def test_the_supervisor_keeps_only_headers_mapped(rig):
    run = rig(obs_shape=(1000, 1000))
    ring_kib = os.fstat(run.ring.fd).st_size // 1024
    assert ring_kib > 64 * 1024
    assert memory_of(run.ring, "Size") < 64


def test_importing_ringbuf_loads_neither_numpy_nor_torch():
    code = "import sys, ringbuf; sys.exit(any(name in sys.modules for name in ('numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_missing_extension_says_what_to_run(tmp_path):
    package = tmp_path / "ringbuf"
    package.mkdir()
    (package / "__init__.py").write_text((Path(ringbuf.__file__).parent / "__init__.py").read_text())
    done = subprocess.run([sys.executable, "-c", "import ringbuf"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode == 1
    assert "run make build" in done.stderr
