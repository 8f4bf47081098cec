"""Rings, weights channel and control block in shared memory: the C core's thin Python face.

Importing this package imports neither numpy nor torch. docs/architecture.md says how the parts play together.
"""

try:
    from ringbuf._ring import (
        ABI,
        AGE_BINS,
        LAG_BINS,
        LEARNER_COUNTERS,
        LEARNER_GAUGES,
        MAX_GROUPS,
        MAX_LEARNERS,
        MAX_PROCESSES,
        MAX_SERVERS,
        NONE,
        PHASES,
        PRODUCER_COUNTERS,
        RECORDER_COUNTERS,
        ROLES,
        SERVER_COUNTERS,
        STATES,
        STOP_REASONS,
        Claim,
        Control,
        Lease,
        Observation,
        ProcessInfo,
        Ring,
        Weights,
    )
except ImportError as error:
    raise ImportError(f"ringbuf/_ring.abi3.so cannot be loaded ({error}): run make build") from error

from ringbuf import admission, books, segments
from ringbuf.errors import ResourceMissing, RingError
from ringbuf.plan import Field, Plan
from ringbuf.segments import control_bytes, ring_bytes, weights_bytes

__all__ = [
    "ABI", "AGE_BINS", "LAG_BINS", "LEARNER_COUNTERS", "LEARNER_GAUGES", "MAX_GROUPS", "MAX_LEARNERS",
    "MAX_PROCESSES", "MAX_SERVERS", "NONE", "PHASES", "PRODUCER_COUNTERS", "RECORDER_COUNTERS", "ROLES",
    "SERVER_COUNTERS", "STATES", "STOP_REASONS", "Claim", "Control", "Field", "Lease", "Observation", "Plan",
    "ProcessInfo",
    "ResourceMissing", "Ring", "RingError", "Weights", "admission", "books", "control_bytes",
    "ring_bytes", "segments", "weights_bytes",
]
