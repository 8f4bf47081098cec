"""The six dashboards, and the files they are written to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monitor.grafana import learner, processes, rings, staleness, storage, throughput
from monitor.grafana.frame import dashboard_json
from monitor.grafana.now import now
from monitor.grafana.panels import Row
from monitor.grafana.reading import FOLDER


@dataclass(frozen=True)
class Board:
    """One dashboard. `uid` is its address in Grafana, and the name of its file."""

    uid: str
    title: str
    description: str
    rows: Callable[[], list[Row]]

    def json(self) -> str:
        return dashboard_json(self.uid, self.title, self.description, [Row("Now", now()), *self.rows()])


BOARDS = (
    Board("headrace-throughput", "Headrace: throughput",
          "Bandwidth packed and unpacked, steps, and where time goes.", throughput.rows),
    Board("headrace-staleness", "Headrace: staleness and stability",
          "How old what is trained on is, what that does to it, and whether training holds.", staleness.rows),
    Board("headrace-rings", "Headrace: rings",
          "How full the rings are, who waits at them, and the books of every slot.", rings.rows),
    Board("headrace-learner", "Headrace: learner",
          "Score, losses, and what an update is made of.", learner.rows),
    Board("headrace-processes", "Headrace: processes and machine",
          "Who lives, and what it takes of the machine.", processes.rows),
    Board("headrace-storage", "Headrace: storage and checkpoints",
          "Checkpoints, the disk and the archive.", storage.rows),
)  # fmt: skip


def write(folder: Path = FOLDER) -> list[Path]:
    """Writes all of them; returns the paths."""
    folder.mkdir(exist_ok=True)
    paths = []
    for board in BOARDS:
        paths.append(folder / f"{board.uid}.json")
        paths[-1].write_text(board.json())
    return paths
