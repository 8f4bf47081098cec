"""The finished cells of a study in one small file, from which its report can be made again.

cells.json.zst is a line of JSON a cell, compressed. Of curves it has three digits of every figure, of
diagnostics two, and none of runs for tuning or for the clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from stress.watched import DIAGNOSTICS

FILE = "cells.json.zst"
LEVEL = 19


def pack(folder: Path, target: Path) -> Path:
    """Packs the cells of a study's folder into another one, with what the study is, but for where it lay.
    Returns the packed file. Raises FileNotFoundError without a study."""
    study = json.loads((folder / "study.resolved.json").read_text())
    if "file" in study:
        study["file"] = Path(study["file"]).name
    study.get("study", {}).get("study", {}).pop("dir", None)
    cells = [json.loads(path.read_text()) for path in sorted((folder / "cells").glob("*.json"))]
    if "cells" in study:
        asked = set(study["cells"])
        cells = [cell for cell in cells if cell["id"] in asked]
    target.mkdir(parents=True, exist_ok=True)
    (target / "study.resolved.json").write_text(json.dumps(study, indent=1) + "\n")
    lines = "".join(json.dumps(_slim(cell), separators=(",", ":")) + "\n" for cell in cells)
    packed = target / FILE
    packed.write_bytes(zstandard.ZstdCompressor(level=LEVEL).compress(lines.encode()))
    return packed


def unpack(packed: Path) -> Iterator[dict[str, Any]]:
    """The cells of a packed file. Raises zstandard.ZstdError, ValueError where it is damaged."""
    for line in zstandard.ZstdDecompressor().decompress(packed.read_bytes()).splitlines():
        yield json.loads(line)


def _slim(cell: dict[str, Any]) -> dict[str, Any]:
    kept = DIAGNOSTICS if cell["purpose"] == "main" else ()
    diagnostics = {name: values for name, values in cell["diagnostics"].items() if name in kept}
    steps = cell["curve"]["steps"]
    return cell | {
        "curve": _rounded(cell["curve"], 3) | {"steps": steps},
        "diagnostics": _rounded(diagnostics, 2),
    }


def _rounded(columns: dict[str, list[Any]], digits: int) -> dict[str, list[Any]]:
    return {name: [_short(value, digits) for value in values] for name, values in columns.items()}


def _short(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
