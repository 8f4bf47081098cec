"""Run files: the schema, and a reader that reports every mistake at once with its place.

`sections` holds the keys, `places` reads YAML 1.2 and remembers where everything stands, `rules` knows what
no single key can know, `explain` finds the words, `reading` joins them, `writing` goes the other way; `exits`
are the codes that every process ends with. Imports nothing of the project's.
"""

from config.errors import ConfigError, Unreadable
from config.explain import describe
from config.live import Change, changes, take_over
from config.places import MAX_DEPTH, MAX_VALUES, Mark, Tree, emit, parse_yaml
from config.reading import MAX_FILE_BYTES, Document, check_agents, check_sim, load, load_resolved, read
from config.sections import (
    Config,
    Evaluate,
    Learner,
    Monitor,
    Policy,
    Producers,
    Ring,
    Rollout,
    Run,
    Schedule,
    Sim,
    Staleness,
    Stop,
    schema,
)
from config.writing import dump_resolved, markdown

__all__ = [
    "MAX_DEPTH",
    "MAX_FILE_BYTES",
    "MAX_VALUES",
    "Change",
    "Config",
    "ConfigError",
    "Document",
    "Evaluate",
    "Learner",
    "Mark",
    "Monitor",
    "Policy",
    "Producers",
    "Ring",
    "Rollout",
    "Run",
    "Schedule",
    "Sim",
    "Staleness",
    "Stop",
    "Tree",
    "Unreadable",
    "changes",
    "check_agents",
    "check_sim",
    "describe",
    "dump_resolved",
    "emit",
    "load",
    "load_resolved",
    "markdown",
    "parse_yaml",
    "read",
    "schema",
    "take_over",
]
