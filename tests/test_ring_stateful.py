"""A ring against a list: any order of what producer, learner, supervisor and deaths may do to it."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rings import Rig, produce

from ringbuf import books

STARTS = st.sampled_from([0, 1, 7, 2**32 - 6, 2**45 - 2 * 4 - 40])


class Machine(RuleBasedStateMachine):
    """The model: one record a sequence below head, {state, deliveries}; everything else follows from it."""

    full = "block"

    @initialize(slots=st.integers(1, 4), start=STARTS)
    def create(self, slots, start):
        self.run = Rig(slots=slots, full=self.full, start_sequence=start)
        self.slots, self.start, self.head = slots, start, start
        self.state = {}  # sequence -> ready | leased | bad | consumed | <reason of drop> | not_written
        self.deliveries = {}
        self.steps = {}  # valid ones of each sequence
        self.redelivered = 0
        self.granted = start
        self.claim, self.leases = None, {}
        self.raw = self.run.raw()
        self.producer, self.learner = self.run.producer(), self.run.learner()

    def teardown(self):
        if hasattr(self, "run"):
            self.leases.clear()
            self.run.close()
            Rig.made.remove(self.run)

    # -- what the model says --

    def of(self, *states):
        return sorted(s for s, state in self.state.items() if state in states)

    def steps_of(self, *states):
        return sum(self.steps[s] for s in self.of(*states))

    def resident(self):
        """The sequence that keeps the slot of `head` from being written, if there is one."""
        same = [s for s in self.of("ready", "leased", "bad") if s % self.slots == self.head % self.slots]
        return same[0] if same else None

    def expected(self):
        if self.head >= 2**45 - 2 * self.slots:
            return "exhausted"
        resident = self.resident()
        if self.full == "block":
            if self.head >= self.granted:
                return "wait_credit"
            return "wait_full" if resident is not None else "claimable"
        if resident is None or (self.full == "drop_oldest" and self.state[resident] == "ready"):
            return "claimable"
        return "skip"

    # -- producer --

    @precondition(lambda self: self.claim is None)
    @rule(end=st.sampled_from(["commit", "abort", "die"]))
    def write(self, end):
        assert self.producer.claimable() == self.expected()
        if self.expected() != "claimable":
            return
        resident = self.resident()
        if end == "commit":
            self.steps[self.head] = 1 + self.head % 7
            assert produce(self.producer, valid_steps=self.steps[self.head]) == self.head
        else:
            claim = self.producer.claim(0)
            if end == "abort":
                claim.abort()
        if resident is not None:
            self.state[resident] = "overwritten"
        if end == "commit":
            self.state[self.head] = "ready"
            self.deliveries[self.head] = 0
            self.head += 1
        elif end == "die":
            self.restart_producer()

    @precondition(lambda self: self.full != "block")
    @rule()
    def skip(self):
        if self.expected() == "skip":
            self.producer.skip()
            self.state[self.head] = "not_written"
            self.head += 1

    @rule(again=st.booleans())
    def restart_producer(self, again=False):
        for _ in range(1 + again):
            self.run.ring.sweep_producer()
        self.producer = self.run.producer()
        assert self.producer.sequence == self.head

    # -- learner --

    @rule(data=st.data())
    def lease(self, data):
        sequence = self.start + data.draw(st.integers(0, max(1, self.head - self.start)))
        lease = self.learner.lease(sequence)
        assert (lease is not None) == (self.state.get(sequence) == "ready")
        if lease is not None:
            self.state[sequence] = "leased"
            self.deliveries[sequence] += 1
            assert lease.deliveries == self.deliveries[sequence]
            self.leases[sequence] = lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["ack", "lag", "rollback", "examined"]))
    def use(self, data, how):
        sequence = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases[sequence]
        obs = lease.array("obs")
        assert (obs == sequence % 251).all()
        del obs
        if how == "examined":
            lease.examined()
            self.deliveries[sequence] = 1
            return
        del self.leases[sequence]
        if how == "ack":
            lease.ack()
            self.state[sequence] = "consumed"
        else:
            lease.drop(how)
            self.state[sequence] = how

    @precondition(lambda self: self.of("ready"))
    @rule(data=st.data())
    def drop(self, data):
        sequence = data.draw(st.sampled_from(self.of("ready")))
        assert self.learner.drop(sequence, "shutdown")
        self.state[sequence] = "shutdown"

    @precondition(lambda self: self.of("ready"))
    @rule(data=st.data())
    def tear(self, data):
        sequence = data.draw(st.sampled_from(self.of("ready")))
        self.raw.bytes[self.raw.payload(sequence)] ^= 255
        assert self.learner.lease(sequence) is None
        assert self.learner.last_failure == "torn"
        self.deliveries[sequence] += 1
        self.state[sequence] = "bad"

    @rule(n=st.integers(1, 6))
    def grant(self, n):
        self.learner.grant(n)
        self.granted += n

    @rule(listed=st.sets(st.integers(0, 3)), again=st.booleans())
    def kill_learner(self, listed, again):
        published = {(0, s) for s in self.of("leased") if s % 4 in listed}
        published |= {(1, s) for s in self.of("leased")}  # another ring's
        self.leases.clear()
        for _ in range(1 + again):
            self.run.ring.sweep_learner(1, published)
        for sequence in self.of("leased"):
            if (0, sequence) in published:
                self.state[sequence] = "consumed"
            elif self.deliveries[sequence] >= 3:
                self.state[sequence] = "bad"
            else:
                self.state[sequence] = "ready"
                self.redelivered += 1
        self.learner = self.run.learner()

    # -- supervisor --

    @precondition(lambda self: self.of("bad"))
    @rule(data=st.data())
    def free_bad(self, data):
        sequence = data.draw(st.sampled_from(self.of("bad")))
        assert self.run.ring.drop(sequence, "bad")
        self.state[sequence] = "dropped_bad"

    @rule()
    def lower(self):
        assert self.run.ring.lower_granted_to_head() == (self.granted > self.head)
        self.granted = min(self.granted, self.head)

    # -- what must hold after each --

    @invariant()
    def the_words_are_the_model(self):
        if not hasattr(self, "run"):
            return
        slots = self.run.ring.observe().slots
        seen = {sequence: (state, deliveries) for state, sequence, deliveries, _ in slots}
        in_flight = self.of("ready", "leased", "bad")
        for sequence in in_flight:
            assert seen[sequence] == (self.state[sequence], self.deliveries[sequence])
        assert sum(state == "free" for state, _ in seen.values()) == self.slots - len(in_flight)

    @invariant()
    def the_books_are_the_model(self):
        if not hasattr(self, "run"):
            return
        found = self.run.ring.books()
        assert books.at_rest(found) == []
        assert (found["head"], found["granted"]) == (self.head, self.granted)
        assert found["not_written"] == len(self.of("not_written"))
        assert found["committed"] == self.head - self.start - found["not_written"]
        assert found["consumed"] == len(self.of("consumed"))
        assert found["redelivered"] == self.redelivered
        assert found["dropped"] == {
            "overwritten": len(self.of("overwritten")), "bad": len(self.of("dropped_bad")),
            **{reason: len(self.of(reason)) for reason in ("rollback", "shutdown", "lag")}}
        assert found["consumed_steps"] == self.steps_of("consumed")
        assert found["in_flight_steps"] == self.steps_of("ready", "leased", "bad")
        assert found["dropped_steps"] == {
            "overwritten": self.steps_of("overwritten"), "bad": self.steps_of("dropped_bad"),
            **{reason: self.steps_of(reason) for reason in ("rollback", "shutdown", "lag")}}
        if self.full == "block":
            done = self.head - self.start - len(self.of("ready", "leased", "bad"))
            assert self.run.ring.outstanding == self.granted - self.start - done


@pytest.mark.parametrize("full", ["block", "drop_oldest", "drop_newest"])
def test_whatever_happens_the_words_and_the_books_agree_with_a_list(full):
    run_state_machine_as_test(
        type("Machine", (Machine,), {"full": full}),
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None,
                          suppress_health_check=list(HealthCheck)))
