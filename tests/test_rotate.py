"""What is set aside by size: in order, bounded in number, and without losing a line."""

import os

from config.rotate import rotate


def test_the_newest_is_1_and_the_oldest_goes(tmp_path):
    path = tmp_path / "a.log"
    for number in range(6):
        path.write_text(str(number))
        rotate(path, 3)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {
        "a.log.1": "5",
        "a.log.2": "4",
        "a.log.3": "3",
    }


def test_a_missing_file_moves_nothing(tmp_path):
    (tmp_path / "a.log.1").write_text("kept where it is")
    rotate(tmp_path / "a.log", 3)
    assert os.listdir(tmp_path) == ["a.log.1"]


def test_a_writer_that_has_the_file_open_loses_nothing(tmp_path):
    path = tmp_path / "a.log"
    with path.open("a", buffering=1) as writer:
        writer.write("before\n")
        rotate(path, 1)
        writer.write("after\n")
    assert (tmp_path / "a.log.1").read_text() == "before\nafter\n"
