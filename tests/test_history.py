"""The past of the live page: right at every resolution, bounded, and there again after a kill."""

import errno
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.history import MOST_POINTS, History, Series, Tier

SERIES = (Series("mean"), Series("peak", peak=True))
NOW = 1.7e9


def filled(seconds, path=None, until=NOW, value=lambda t: t % 1000):
    """A figure a second, up to `until`."""
    history = History(SERIES, path)
    for back in range(seconds, -1, -1):
        now = until - back
        history.add(now, {"mean": value(now), "peak": value(now)})
    return history


def test_the_last_minutes_are_there_second_by_second():
    past = filled(1000).since(NOW, 300)
    assert past["step"] == 1
    assert past["times"] == [NOW - back for back in range(299, -1, -1)]
    assert past["series"]["mean"] == [time % 1000 for time in past["times"]]


def test_a_longer_span_has_means_and_peaks_of_its_parts():
    past = filled(4000).since(NOW, 3600)
    assert past["step"] == 5
    assert len(past["times"]) <= MOST_POINTS + 1
    at = past["times"].index(1_699_999_000)
    assert past["series"]["mean"][at] == pytest.approx(2.0)
    assert past["series"]["peak"][at] == 4.0


def test_what_is_older_than_an_hour_is_there_by_the_minute():
    past = filled(5000).since(NOW, 6 * 3600)
    assert past["step"] == 60
    assert NOW - 5060 < past["times"][0] < NOW - 4900
    at = past["times"].index(NOW // 60 * 60 - 60)
    seconds = [time % 1000 for time in range(int(past["times"][at]), int(past["times"][at]) + 60)]
    assert past["series"]["mean"][at] == pytest.approx(sum(seconds) / 60, rel=1e-5)
    assert past["series"]["peak"][at] == max(seconds)


def test_a_week_takes_no_more_points_than_a_screen_has():
    history = History(SERIES)
    for back in range(8 * 24 * 60, -1, -1):
        history.add(NOW - 60 * back, {"mean": 1.0})
    past = history.since(NOW, 7 * 24 * 3600)
    assert MOST_POINTS / 2 < len(past["times"]) <= MOST_POINTS + 1
    assert set(past["series"]["mean"]) == {1.0}
    assert set(past["series"]["peak"]) == {None}


def test_a_time_at_which_nobody_looked_is_missing_and_not_zero():
    history = History(SERIES)
    for second in (0, 1, 2, 7, 8):
        history.add(NOW + second, {"mean": 1.0})
    assert history.since(NOW + 8, 300)["times"] == [NOW + second for second in (0, 1, 2, 7, 8)]


def test_rows_of_an_hour_ago_are_not_taken_for_those_of_now():
    history = History(SERIES)
    history.add(NOW, {"mean": 5.0})
    history.add(NOW + 3700, {"mean": 6.0})
    past = history.since(NOW + 3700, 3600)
    assert past["series"]["mean"] == [6.0]


def test_what_is_no_number_is_null_and_spoils_no_mean():
    history = History(SERIES)
    for value in (math.nan, 3.0, math.inf, 5.0):
        history.add(NOW, {"mean": value})
    assert history.since(NOW, 300)["series"] == {"mean": [4.0], "peak": [None]}


def test_the_past_is_there_again_after_the_death_of_its_keeper(tmp_path):
    path = tmp_path / "history.bin"
    before = filled(4000, path)  # which nobody closes
    after = History(SERIES, path)
    for span in (300, 3600, 6 * 3600):
        assert after.since(NOW, span) == before.since(NOW, span)
    after.add(NOW + 1, {"mean": 7.0})
    assert after.since(NOW + 1, 300)["series"]["mean"][-2:] == [NOW % 1000, 7.0]


def test_the_file_has_one_size_for_ever(tmp_path):
    path, tiers = tmp_path / "history.bin", (Tier(1, 60), Tier(60, 60))
    history = History(SERIES, path, tiers)
    most = 4096 + 2 * 60 * 8 * (1 + len(SERIES))
    for second in range(10_000):
        history.add(NOW + second, {"mean": 1.0})
        assert path.stat().st_size <= most
    assert path.stat().st_size == most


def test_a_file_of_other_figures_is_begun_anew(tmp_path):
    path = tmp_path / "history.bin"
    filled(100, path)
    other = History((*SERIES, Series("more")), path)
    assert other.since(NOW, 300)["times"] == []
    other.add(NOW, {"more": 2.0})
    assert History((*SERIES, Series("more")), path).since(NOW, 300)["series"]["more"] == [2.0]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_damaged_file_never_keeps_a_history_from_its_work(tmp_path_factory, data):
    path, tiers = tmp_path_factory.mktemp("damaged") / "history.bin", (Tier(1, 60), Tier(60, 60))
    history = History(SERIES, path, tiers)
    for second in range(200):
        history.add(NOW + second, {"mean": 1.0, "peak": 2.0})
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content)))
    junk = data.draw(st.binary(max_size=100))
    path.write_bytes(
        data.draw(st.sampled_from([content[:at], content[:at] + junk + content[at + len(junk) :]]))
    )
    again = History(SERIES, path, tiers)
    again.add(NOW + 200, {"mean": 3.0})
    past = again.since(NOW + 200, 60)
    assert past["times"][-1] == NOW + 200
    assert past["series"]["mean"][-1] == 3.0
    assert all(value is None or math.isfinite(value) for value in past["series"]["mean"])


def test_a_full_disk_costs_the_copy_and_not_the_history(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    history = History(SERIES, tmp_path / "history.bin")
    monkeypatch.setattr(os, "pwrite", full)
    history.add(NOW, {"mean": 1.0})
    assert history.since(NOW, 300)["series"]["mean"] == [1.0]
    assert History(SERIES, tmp_path / "nowhere" / "history.bin").since(NOW, 300)["times"] == []


def test_a_link_in_its_place_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "history.bin").symlink_to(target)
    filled(3, tmp_path / "history.bin")
    assert target.read_text() == "precious"
