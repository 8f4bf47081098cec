"""The exit codes of every command and process of a run."""

DONE = 0
USAGE = 2
CONFIG = 64
MISSING = 69
INTERNAL = 70
GAVE_UP = 75
SIGNAL = 128  # and the signal's number: a second signal forced the end
