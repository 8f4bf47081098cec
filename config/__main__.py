"""`python -m config --docs | --schema`: the reference in docs/configuration.md, docs/run.schema.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from config import markdown, schema


def main(arguments: Sequence[str]) -> int:
    writers = {"--docs": markdown, "--schema": lambda: json.dumps(schema(), indent=2) + "\n"}
    if len(arguments) != 1 or arguments[0] not in writers:
        print(f"usage: python -m config {' | '.join(writers)}", file=sys.stderr)
        return 2
    sys.stdout.write(writers[arguments[0]]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
