"""What can go wrong with shared memory: one class a kind of failure."""


class RingError(Exception):
    """A segment is missing, damaged, of another build, or used in a way its protocol does not allow."""


class ResourceMissing(RingError):
    """The machine does not have what the run needs (exit code 69); the message names both numbers."""
