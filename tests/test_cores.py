"""Placing producers on cores, on machines made of files."""

import pytest

from producers.cores import CoreNotAllowed, Machine, NoSuchCore, place, read_machine


def machine(tmp_path, *, present="0-7", siblings=None, cgroup="0::/\n", files=None, affinity=range(8)):
    """A /sys and a /proc with just what the code under test reads."""
    cpu = tmp_path / "sys/devices/system/cpu"
    cpu.mkdir(parents=True)
    (cpu / "present").write_text(present + "\n")
    for core, text in (siblings or {}).items():
        topology = cpu / f"cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    for name, text in (files or {}).items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    return read_machine(affinity, tmp_path / "sys", tmp_path / "proc")


def test_smt_siblings_come_last(tmp_path):
    interleaved = {core: f"{core // 2 * 2}-{core // 2 * 2 + 1}" for core in range(8)}
    assert machine(tmp_path, siblings=interleaved).usable == (0, 2, 4, 6, 1, 3, 5, 7)


def test_siblings_far_apart_come_last_too(tmp_path):
    halves = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}
    assert machine(tmp_path, siblings=halves).usable == (0, 1, 2, 3, 4, 5, 6, 7)
    assert place(machine(tmp_path / "b", siblings=halves, affinity={0, 4, 1}), "auto", 3).cores == (0, 1, 4)


def test_a_sibling_whose_partner_is_barred_counts_as_a_whole_core(tmp_path):
    halves = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}
    assert machine(tmp_path, siblings=halves, affinity={4, 1, 5}).usable == (1, 4, 5)


def test_affinity_and_cpuset_are_both_honoured(tmp_path):
    found = machine(tmp_path, affinity={0, 1, 2, 3}, files={"cpuset.cpus.effective": "2-5"})
    assert found.usable == (2, 3)
    assert place(found, "auto", 2).cores == (2, 3)


def test_the_cpuset_of_an_outer_group_holds_inside(tmp_path):
    files = {"a/cpuset.cpus.effective": "0-2", "a/b/cpuset.cpus.effective": "0-6"}
    assert machine(tmp_path, cgroup="0::/a/b\n", files=files).usable == (0, 1, 2)


@pytest.mark.parametrize(
    ("files", "quota", "capacity"),
    [
        ({"cpu.max": "max 100000"}, None, 8),
        ({"cpu.max": "250000 100000"}, 2.5, 2),
        ({"cpu.max": "50000 100000"}, 0.5, 1),
        ({"cpu.max": "nonsense"}, None, 8),
    ],
)
def test_the_quota_caps_the_number_of_processes_not_the_cores(tmp_path, files, quota, capacity):
    found = machine(tmp_path, files=files)
    assert (found.quota_cores, found.capacity, len(found.usable)) == (quota, capacity, 8)


def test_the_tightest_quota_on_the_way_to_the_root_counts(tmp_path):
    files = {"a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}
    assert machine(tmp_path, cgroup="0::/a/b\n", files=files).quota_cores == 1.5


def test_version_1_groups_are_read(tmp_path):
    files = {
        "cpuset/box/cpuset.effective_cpus": "1-3",
        "cpu,cpuacct/box/cpu.cfs_quota_us": "200000",
        "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
    }
    found = machine(tmp_path, cgroup="4:cpuset:/box\n3:cpu,cpuacct:/box\n2:pids:/box\n", files=files)
    assert (found.usable, found.quota_cores) == ((1, 2, 3), 2.0)


def test_auto_with_more_producers_than_cores_shares_them_and_says_so():
    placed = place(Machine(frozenset(range(2)), (0, 1)), "auto", 5)
    assert placed.cores == (0, 1, 0, 1, 0)
    assert placed.warnings == ("5 producers share 2 usable cores (0-1)",)
    assert not place(Machine(frozenset(range(2)), (0, 1)), "auto", 2).warnings


def test_a_quota_below_the_producers_is_named():
    (warning,) = place(Machine(frozenset(range(8)), tuple(range(8)), 2.0), "auto", 4).warnings
    assert "quota grants 2" in warning


def test_listed_cores_are_used_in_their_order():
    assert place(Machine(frozenset(range(8)), tuple(range(8))), [5, 1], 3).cores == (5, 1, 5)


def test_a_listed_core_that_the_machine_lacks_is_named():
    with pytest.raises(NoSuchCore, match=r"found core 9, 12; this machine has 0-3"):
        place(Machine(frozenset(range(4)), (0, 1)), [0, 9, 12], 1)


def test_a_listed_core_outside_the_affinity_is_named():
    with pytest.raises(CoreNotAllowed, match=r"core 2-3 is outside what this process may use, 0-1"):
        place(Machine(frozenset(range(4)), (0, 1)), [0, 2, 3], 1)


def test_this_machine_can_be_read():
    found = read_machine()
    assert set(found.usable) <= found.present
    assert place(found, "auto", 1).cores[0] in found.usable
