"""The archive of trajectories: which of them are kept, the shards they are kept in, and ways to read them
again.

`choice` picks agents, `blocks` lays out bytes, `shards` and `store` write files, `reading` and `episodes` go
the other way, `export` makes other people's files of them; docs/archive.md has the format. Nothing here
imports torch, and what writes imports no numpy either: the recorder is to stay small.
"""

from consumers.archive.blocks import Damaged

__all__ = ["Damaged"]
