"""What every test leaves behind: no segment in shared memory and no process. And none hangs for ever."""

import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import leftovers
import pytest
from command import SHM, segments
from kernels import compile_policy
from rings import Rig
from runs import QUICK, Run

# A shell starts its background jobs with SIGINT ignored, and so would be every run that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

HANG_SECONDS = 900


@pytest.fixture(autouse=True)
def no_test_hangs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Far above what any test needs on any machine; a test that waits for what never comes fails then."""
    if request.node.get_closest_marker("soak") is not None:
        yield
        return

    def hangs(*_: object) -> None:
        raise TimeoutError(f"still running after {HANG_SECONDS} seconds")

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANG_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def rig() -> Iterator[type[Rig]]:
    """The class Rig; all that the test makes of it is closed and unlinked afterwards, also when it fails."""
    yield Rig
    for made in Rig.made:
        made.close()
    Rig.made.clear()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts run.yaml with overrides; whatever the test leaves running is killed."""
    runs = []

    def begin(*overrides: str, **options: Any) -> Run:
        runs.append(Run(tmp_path, *QUICK, *overrides, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Any]:
    """Forks learners for the tests of a module."""
    import torch  # not for the many tests that need none
    from zygote import Zygote

    torch.set_num_threads(1)
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def live(tmp_path: Path, zygote: Any) -> Iterator[Callable[..., Any]]:
    """Makes LiveRuns, each in a folder of its own; afterwards nothing of them is left."""
    from liverun import LiveRun

    made: list[LiveRun] = []

    def make(*overrides: str, after: LiveRun | None = None, **options: Any) -> LiveRun:
        """`after`: in the run directory of an earlier one, whose memory is gone."""
        if after is not None:
            after.close()
        folder = tmp_path / f"{len(made)}" if after is None else after.folder
        made.append(LiveRun(folder, zygote, *overrides, **options))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.fixture(scope="session")
def policy_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The C policy for an instruction set, compiled once for all tests."""
    folder = tmp_path_factory.mktemp("policy")
    return functools.cache(lambda march: compile_policy(folder / f"{march}.so", march))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order, and no waiting for a thread that another process keeps from its core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """At the end of the session none of its segments is in shared memory and no child process is left."""
    before, folder = segments(), tmp_path_factory.getbasetemp()
    leftovers.note_what_is_made()
    yield
    deadline = time.monotonic() + 10
    while True:
        left, children = leftovers.segments_of(folder, before), leftovers.children()
        if (not left and not children) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert not left, f"segments left in {SHM}"
    assert not children, "processes left"
