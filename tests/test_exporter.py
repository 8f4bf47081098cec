"""The exporter: every figure is the counter's, every name is documented, every page says what is so."""

import dataclasses
import json
import math
import os
import threading
import time
from pathlib import Path

import pytest
from machines import Machine, get, serving
from prom import needs_promtool, promtool

import config
import ringbuf
from consumers.causes import CAUSES
from monitor import collector, metrics, procfs, rundir
from monitor.status import Reporter
from monitor.totals import Totals

ROOT = Path(__file__).resolve().parent.parent
# Without a value until something happened.
ABSENT_AT_FIRST = {
    *collector.GAUGES, *collector.LABELLED_GAUGES, "policy_version", "run_dir_bytes", "run_dir_bound_bytes",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.close()


@pytest.fixture
def two_learners(tmp_path):
    made = Machine(tmp_path, learners=2)
    yield made
    made.close()


@pytest.fixture
def served(machine):
    """The address of an exporter that serves `machine`."""
    with serving(machine) as address:
        yield address


def sample_names(entry):
    if entry.kind == "histogram":
        return {f"headrace_{entry.name}_{part}" for part in ("bucket", "sum", "count")}
    return {f"headrace_{entry.name}"}


def test_every_metric_has_a_value_from_the_start_or_is_absent_for_a_reason(machine):
    found = {name for name, _ in machine.scrape()}
    wanted = {
        name
        for entry in metrics.METRICS.values()
        if entry.name not in ABSENT_AT_FIRST
        for name in sample_names(entry)
    }
    assert wanted - found == set()
    assert found - wanted == set()


def test_known_series_start_at_zero(machine):
    samples = machine.scrape()
    for reason in collector.DROP_REASONS:
        assert samples["headrace_samples_dropped_total", (("reason", reason),)] == 0
    for producer in "01":
        for reason in collector.PRODUCER_WAITS:
            labels = (("producer", producer), ("reason", reason))
            assert samples["headrace_producer_wait_seconds_total", labels] == 0
    assert samples["headrace_process_restarts_total", (("index", "0"), ("role", "learner"))] == 0
    assert sum(value for (name, _), value in samples.items() if name == "headrace_run_state") == 1


def test_every_gauge_of_a_learner_is_in_a_metric_with_its_value(machine):
    learner = machine.own(machine.table.learner)
    for number, name in enumerate(ringbuf.LEARNER_GAUGES):
        learner.gauge_set(name, 1000.5 + number)
    shown = set(machine.scrape().values())
    hidden = [name for number, name in enumerate(ringbuf.LEARNER_GAUGES) if 1000.5 + number not in shown]
    assert hidden == ["solved_at_seconds"], "it is in status.json"


def test_alarms_of_audits_are_counted_by_audit(machine):
    learner = machine.own(machine.table.learner)
    for number, audit in enumerate(CAUSES, 1):
        learner.counter_set(f"audit_{audit}_alarms", number)
    learner.counter_set("unaudited_steps", 9)
    samples = machine.scrape()
    for number, audit in enumerate(CAUSES, 1):
        assert samples["headrace_audit_alarms_total", (("audit", audit),)] == number
    assert samples["headrace_audit_steps_total", (("outcome", "unaudited"),)] == 9


def test_of_several_learners_each_tells_of_its_own_work_and_the_first_of_what_is_common(two_learners):
    first, second = (two_learners.own(slot) for slot in two_learners.table.learners)
    first.counter_set("updates", 7)
    for name in ("wait_no_data_ns", "forward_ns"):
        second.counter_set(name, 1_500_000_000)
    second.counter_set("examined_slots", 3)
    samples = two_learners.scrape()
    other = ("learner", "1")
    assert samples["headrace_learner_examined_slots_total", (other,)] == 3
    assert samples["headrace_learner_wait_seconds_total", (other, ("reason", "no_data"))] == 1.5
    assert samples["headrace_learner_phase_seconds_total", (other, ("phase", "forward"))] == 1.5
    assert samples["headrace_learner_updates_total", (("learner", "0"),)] == 7
    assert ("headrace_learner_updates_total", (other,)) not in samples, "both would be counted twice"


def test_timestamps_begin_with_the_run_so_that_ages_are_bounded(machine):
    samples = machine.scrape()
    for name in ("policy_published", "checkpoint_last_success"):
        assert abs(samples[f"headrace_{name}_timestamp_seconds", ()] - time.time()) < 600


def test_ages_are_bounded_by_an_attempt_that_goes_on_in_older_memory(machine):
    machine.own(machine.table.learner).counter_set("last_publish_unix_ns", 5_000_000_000)
    began = time.time() + 3600
    machine.collector.facts = dataclasses.replace(machine.collector.facts, began_unix=began)
    assert machine.scrape()["headrace_policy_published_timestamp_seconds", ()] == began


def test_the_interval_between_checkpoints_is_the_one_in_force(machine):
    name = ("headrace_checkpoint_interval_seconds", ())
    assert machine.scrape()[name] == 300
    settings = config.load(str(machine.directory / "run.yaml"), ["checkpoint.interval_seconds=7"])
    (machine.directory / rundir.RESOLVED).write_text(config.dump_resolved(settings))
    assert machine.scrape()[name] == 300, "nobody has said that they were written again"
    machine.segments.control.announce_settings()
    assert machine.scrape()[name] == 7
    (machine.directory / rundir.RESOLVED).write_text("nonsense: [")
    machine.segments.control.announce_settings()
    samples = machine.scrape()
    assert samples["headrace_collector_errors_total", ()] == 1
    assert ("headrace_learner_samples_total", (("learner", "0"),)) in samples


@needs_promtool
@pytest.mark.parametrize("begun", [False, True])
def test_promtool_finds_no_fault_with_the_metrics(machine, begun):
    if begun:
        learner = machine.own(machine.table.learner)
        for name in ringbuf.LEARNER_GAUGES:
            learner.gauge_set(name, 0.5)
        learner.counter_set("ready", 1)
        learner.lag_add(3, 7)
    body = machine.pages.answer("/metrics")[2].decode()
    assert promtool("check", "metrics", given=body) == ""
    faulty = "# TYPE headrace_x counter\nheadrace_x 1\n"
    assert "should have" in promtool("check", "metrics", given=faulty, check=False)


def test_two_may_scrape_at_the_same_time(machine, monkeypatch):
    """One is held in the middle of its scrape while the other begins and ends its own, or waits."""
    held, go_on = threading.Event(), threading.Event()
    storage = machine.collector._storage

    def slow():
        held.set()
        go_on.wait(0.3)
        storage()

    monkeypatch.setattr(machine.collector, "_storage", slow)
    answers = []
    scrape = lambda: answers.append(machine.pages.answer("/metrics")[2].decode())  # noqa: E731
    both = [threading.Thread(target=scrape) for _ in range(2)]
    both[0].start()
    assert held.wait(60)
    both[1].start()
    for one in both:
        one.join()
    for answer in answers:
        series = [line.rpartition(" ")[0] for line in answer.splitlines() if not line.startswith("#")]
        assert len(series) == len(set(series)) > 200


def test_counters_are_those_of_shared_memory(machine):
    producer, learner = machine.own(2), machine.own(machine.table.learner)
    producer.counter_add("steps", 2**53 + 1)
    producer.counter_add("wait_credit_ns", 1_500_000_000)
    producer.counter_add("bytes_packed", 12_345)
    for name, value in (("updates", 7), ("ready", 1), ("version", 7), ("samples", 70), ("steps", 35)):
        learner.counter_set(name, value)
    learner.counter_set("last_update_unix_ns", 10**19)
    learner.gauge_set("loss_policy", -0.25)
    samples = machine.scrape()
    assert samples["headrace_producer_steps_total", (("producer", "1"),)] == float(2**53 + 1)
    assert samples["headrace_producer_wait_seconds_total", (("producer", "1"), ("reason", "credit"))] == 1.5
    assert samples["headrace_ring_committed_bytes_total", (("ring", "1"),)] == 12_345
    assert samples["headrace_ring_committed_bytes_total", (("ring", "0"),)] == 0
    assert samples["headrace_run_bytes", ()] == 12_345
    assert samples["headrace_learner_updates_total", (("learner", "0"),)] == 7
    assert samples["headrace_policy_version", ()] == 7
    assert samples["headrace_ring_consumed_samples_total", ()] == 35
    assert samples["headrace_learner_last_update_timestamp_seconds", (("learner", "0"),)] == 1e10
    assert samples["headrace_learner_loss", (("term", "policy"),)] == -0.25
    assert ("headrace_learner_loss", (("term", "value"),)) not in samples


def test_the_slots_of_a_ring_add_up(machine):
    control, ring = machine.segments.control, machine.segments.rings[1]
    learner = ringbuf.Ring.attach(ring.fd, machine.own(machine.table.learner), "learner")
    producer = ringbuf.Ring.attach(ring.fd, machine.own(2), "producer")
    ring.set_owner(0)
    learner.grant(3)
    steps = ring.plan.horizon * ring.plan.agents
    for _ in range(3):
        producer.claim(0).commit(steps)
    learner.lease(0).ack()
    learner.drop(1, "shutdown")
    samples = machine.scrape()
    assert control.process(2).role == "producer"
    of_ring = {
        name: samples[f"headrace_ring_{name}_slots_total", (("ring", "1"),)]
        for name in ("committed", "consumed", "dropped", "redelivered", "not_written")
    }
    assert of_ring == {"committed": 3, "consumed": 1, "dropped": 1, "redelivered": 0, "not_written": 0}
    assert samples["headrace_ring_fill_slots", (("ring", "1"),)] == 1
    assert (
        samples["headrace_ring_consumed_bytes_total", (("ring", "1"),)] == steps * ring.plan.packed_step_bytes
    )
    assert samples["headrace_samples_dropped_total", (("reason", "shutdown"),)] == steps
    assert samples["headrace_samples_dropped_total", (("reason", "lag"),)] == 0


def test_the_staleness_histogram_counts_each_step_once(machine):
    learner = machine.own(machine.table.learner)
    for lag, steps in ((0, 5), (1, 3), (7, 2), (128, 1), (500, 4)):
        learner.lag_add(lag, steps)
    learner.counter_set("lag_sum", 3 + 14 + 128 + 2000)
    samples = machine.scrape()

    def bucket(bound):
        return samples["headrace_batch_staleness_updates_bucket", (("le", bound),)]

    assert [bucket(bound) for bound in ("0.0", "1.0", "6.0", "8.0", "96.0", "128.0", "+Inf")] == [
        5,
        8,
        8,
        10,
        10,
        11,
        15,
    ]
    assert samples["headrace_batch_staleness_updates_count", ()] == 15
    assert samples["headrace_batch_staleness_updates_sum", ()] == 2145


@pytest.mark.parametrize(("limit", "more"), [(1, []), (5, ["5.0"]), (100, ["100.0"]), (500, []), (None, [])])
def test_the_limit_of_the_lag_is_a_bound_of_its_histogram(machine, limit, more):
    machine.collector.facts = dataclasses.replace(machine.collector.facts, lag_limit=limit)
    learner = machine.own(machine.table.learner)
    learner.lag_add(5, 2)
    learner.lag_add(100, 1)
    name = "headrace_batch_staleness_updates_bucket"
    samples = machine.scrape().items()
    found = {dict(labels)["le"]: value for (metric, labels), value in samples if metric == name}
    assert set(found) == {*(str(float(bound)) for bound in collector.LAG_BUCKETS), "+Inf", *more}
    assert [found[bound] for bound in more] == [2 if limit == 5 else 3] * len(more)


def test_the_age_histogram_has_the_bounds_of_its_bins(machine):
    learner = machine.own(machine.table.learner)
    learner.age_add(0, 2)
    learner.age_add(10, 1)
    learner.age_add(ringbuf.AGE_BINS - 1, 1)
    samples = machine.scrape()
    name = "headrace_sample_age_seconds_bucket"
    assert samples[name, (("le", "0.001"),)] == 2
    assert samples[name, (("le", "0.512"),)] == 2
    assert samples[name, (("le", "1.024"),)] == 3
    assert samples[name, (("le", "+Inf"),)] == 4
    assert all(
        math.isfinite(float(dict(labels)["le"])) or dict(labels)["le"] == "+Inf"
        for found, labels in samples
        if found == name
    )


def test_a_process_of_a_reused_pid_is_not_ours(machine):
    machine.segments.control.set_process(1, start_time=1)
    samples = machine.scrape()
    assert ("headrace_process_resident_memory_bytes", (("index", "0"), ("role", "producer"))) not in samples
    assert samples["headrace_process_resident_memory_bytes", (("index", "1"), ("role", "producer"))] > 0


def test_the_run_is_ready_once_it_has_updated_and_every_process_is_heard(machine):
    assert machine.pages.answer("/readyz")[0] == 503
    assert "no update yet" in machine.pages.not_ready()
    machine.own(machine.table.learner).counter_set("updates", 1)
    for slot in machine.table.all:
        machine.segments.control.set_process(slot, state="running")
        machine.own(slot).pulse("step", 1)
    assert machine.pages.answer("/readyz") == (200, "text/plain; charset=utf-8", b"ok\n")
    machine.segments.control.set_process(1, state="failed")
    assert machine.pages.not_ready() == ["producer 0 is failed"]


def test_a_run_of_several_learners_is_not_ready_while_one_of_them_hangs(two_learners):
    two_learners.own(two_learners.table.learner).counter_set("updates", 1)
    for slot in two_learners.table.all:
        two_learners.segments.control.set_process(slot, state="running")
        two_learners.own(slot).pulse("step", 1)
    assert two_learners.pages.not_ready() == []
    two_learners.segments.control.set_process(two_learners.table.learners[1], state="hung")
    assert two_learners.pages.not_ready() == ["learner 1 is hung"]


def test_the_status_file_is_served_as_it_is(machine, served):
    assert get(served, "/status.json")[0] == 503
    rundir.write_json(machine.collector.facts.directory / rundir.STATUS, {"state": "running", "steps": 3})
    status, headers, body = get(served, "/status.json")
    assert (status, json.loads(body)) == (200, {"state": "running", "steps": 3})
    assert ("Content-Type", "application/json") in headers


def test_every_figure_of_the_status_is_exact_beyond_what_a_float_holds(machine, served):
    """Readers of JSON may hold all numbers as floats: bytes, the only ones that large, are strings."""
    large = 2**62 + 1
    producer, learner = machine.own(1), machine.own(machine.table.learner)
    for name in ("bytes_packed", "bytes_unpacked"):
        producer.counter_add(name, large)
    learner.counter_set("ready", 1)
    for name in ("samples", "steps", "run_steps", "run_updates", "version"):
        learner.counter_set(name, 2**53 - 1)
    reporter = Reporter(machine.segments.control, machine.segments.rings, machine.table, 1)
    rundir.write_json(machine.directory / rundir.STATUS, reporter.report("running"))
    as_floats = json.loads(get(served, "/status.json")[2], parse_int=float)
    assert as_floats["bytes"]["packed"] == as_floats["bytes"]["unpacked"] == str(large)
    assert as_floats["totals"]["packed_bytes"] == str(large)
    for name in ("samples", "steps", "updates", "version"):
        assert int(as_floats[name]) == 2**53 - 1
    assert Totals.from_json(as_floats["totals"]).packed_bytes == large


def test_the_other_pages_answer_over_http(machine, served):
    assert get(served, "/healthz")[::2] == (200, b"ok\n")
    assert get(served, "/nothing")[0] == 404
    status, headers, body = get(served, "/metrics")
    assert status == 200
    assert b"headrace_build_info{" in body
    assert get(served, "/metrics?name[]=x")[0] == 200
    status, headers, body = get(served, "/metrics", "HEAD")
    assert (status, body) == (200, b"")
    assert int(dict(headers)["Content-Length"]) > 1000


def test_the_page_has_the_figures_escaped_for_whoever_runs_no_scripts(machine):
    assert "starting" in machine.page()
    status = {"state": "running", "name": "<b>", "score": {"mean": 3.5}, "processes": [{"pid": 7}]}
    rundir.write_json(machine.directory / rundir.STATUS, status)
    page = machine.page()
    assert "<b>" not in page
    assert "name<td>&lt;b&gt;" in page
    assert "score.mean<td>3.5" in page
    assert "pid 7" in page


def test_a_part_that_cannot_be_read_is_counted_and_the_rest_is_served(machine, monkeypatch):
    def gone(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", gone)
    samples = machine.scrape()
    assert samples["headrace_collector_errors_total", ()] == 1
    assert ("headrace_run_dir_free_bytes", ()) not in samples
    assert ("headrace_run_samples", ()) in samples


def test_run_gauges_are_of_all_attempts_and_counters_of_these_rings(machine, tmp_path):
    before = Totals(committed=10, consumed=7, dropped=3, packed_bytes=1000)
    machine.collector.facts = dataclasses.replace(machine.collector.facts, attempt=3, before=before)
    rundir.write_json(tmp_path / rundir.STATUS, {"steps": 70, "run_dir": {"bytes": 5, "bound_bytes": None}})
    machine.own(1).counter_add("bytes_packed", 24)
    samples = machine.scrape()
    assert samples["headrace_run_attempt", ()] == 3
    assert samples["headrace_run_bytes", ()] == 1024
    assert samples["headrace_ring_committed_bytes_total", (("ring", "0"),)] == 24
    outcomes = {"committed": 10, "consumed": 7, "dropped": 3}
    for outcome, slots in outcomes.items():
        assert samples["headrace_run_slots", (("outcome", outcome),)] == slots
    assert samples["headrace_run_samples", ()] == 70, "of the checkpoint, which the learner has yet to read"
    assert samples["headrace_run_dir_bytes", ()] == 5
    assert ("headrace_run_dir_bound_bytes", ()) not in samples
    machine.own(3).counter_set("ready", 1)
    machine.own(3).counter_set("run_steps", 90)
    rundir.write_json(tmp_path / rundir.STATUS, {"run_dir": {"bytes": 5, "bound_bytes": 50}})
    samples = machine.scrape()
    assert samples["headrace_run_samples", ()] == 90
    assert samples["headrace_run_dir_bound_bytes", ()] == 50
    assert 0 < samples["headrace_memory_limit_bytes", ()] <= procfs.memory_bytes()


def test_the_reference_in_docs_is_current():
    text = (ROOT / "docs/metrics.md").read_text()
    assert text.partition("<!-- metrics -->\n")[2] == metrics.markdown(), "python -m monitor.metrics"
