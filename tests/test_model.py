"""The protocol as Promela models, searched to the end by spin: no error in them, and each mutant is found.

The models are in tests/model/, what they leave out stands in their first lines. Every access to shared memory
is one step there and memory is sequentially consistent; so they cannot show what a relaxed store does
(test_races.py), nor that the C code does what the model does (test_step_kill.py, test_recovery.py).

    HEADRACE_MODEL_FIGURES=FILE   appends a line a search: model, definitions, states, seconds
    HEADRACE_LARGEST_MODELS=1     with -m soak: searches of some ten minutes more
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

MODELS = Path(__file__).parent / "model"
SEARCH_MEGABYTES = 3500
SMALLER_STATES = ("-DCOLLAPSE",)  # two thirds of the memory, half as long again
FIGURES = os.environ.get("HEADRACE_MODEL_FIGURES")
LARGEST = bool(os.environ.get("HEADRACE_LARGEST_MODELS"))

POLICIES = ["", "DROP_NEWEST", "DROP_OLDEST"]
HOLDS_SMALL = [  # model, definitions
    ("delivery", "DEATHS=3 SUPERVISOR_DEATHS=1"),
    ("delivery", "DEATHS=1 SUPERVISOR_DEATHS=1 ROLLBACKS=1"),
    ("delivery", "DEATHS=0 SUPERVISOR_DEATHS=0 POISON"),
    ("delivery", "DEATHS=1 SUPERVISOR_DEATHS=1 POISON"),
    ("tap", "KILLS=1 GIVEN_UP=2"),
    ("credit", "N=1 VERSIONS=2 KILLS=0"),
    ("serving", "G=1 T=1 KILLS=1 DEATHS=1 VERSIONS=0"),
    ("serving", "G=2 T=1 KILLS=0 DEATHS=1 VERSIONS=0"),
    ("serving", "G=2 T=1 KILLS=0 DEATHS=0 VERSIONS=0 REFUSALS=2"),
]
HOLDS = [  # more than a million states each
    *(("transport", f"KILLS=2 SUPERVISOR_DEATHS=0 {policy}") for policy in POLICIES),
    *(("transport", f"KILLS=1 SUPERVISOR_DEATHS=1 {policy}") for policy in POLICIES),
    ("transport", "KILLS=1 SUPERVISOR_DEATHS=0 LEARNERS=2 ITEMS=2"),
    ("delivery", "DEATHS=3 SUPERVISOR_DEATHS=1 K=1"),
    ("credit", "N=1 VERSIONS=1 KILLS=1 FAILURES=1"),
]
HOLDS_LARGER = [
    ("credit", "R=1 N=2 ETA=1 VERSIONS=2 KILLS=1 FAILURES=0 TORN=1"),
    ("serving", "G=1 KILLS=1 DEATHS=1 VERSIONS=0"),
    ("serving", "G=1 KILLS=1 DEATHS=1"),
    ("serving", "G=2 T=1 KILLS=1 DEATHS=1 VERSIONS=0"),
    ("serving", "G=2 KILLS=0 DEATHS=1 VERSIONS=0"),
    ("serving", "G=1 KILLS=0 DEATHS=1 STOPS=1"),
    ("serving", "G=1 KILLS=0 DEATHS=1 STOPS=1 EXACT"),
    ("serving", "R=2 G=1 T=1 KILLS=0 DEATHS=1 VERSIONS=0 WHOLE"),
    *(("transport", f"KILLS=2 SUPERVISOR_DEATHS=1 {policy}") for policy in POLICIES),
    ("transport", "KILLS=1 SUPERVISOR_DEATHS=0 LEARNERS=2"),
    ("delivery", "DEATHS=3 SUPERVISOR_DEATHS=1 ROLLBACKS=1 ITEMS=4"),
    ("credit", "N=1 VERSIONS=3 KILLS=0 ETA=1"),
]
HOLDS_LARGEST = [  # with HEADRACE_LARGEST_MODELS=1
    *(("transport", f"KILLS=3 SUPERVISOR_DEATHS=1 ITEMS=4 {policy}") for policy in POLICIES),
    ("serving", "G=1 T=1 ITEMS=2 KILLS=1 DEATHS=1"),
    ("credit", "N=1 VERSIONS=2 KILLS=1 FAILURES=1"),
]
SLEEPS = "invalid end state"
WRONG = "assertion violated"
MUTANTS = [  # model, what is broken, the rest of the definitions, how it shows
    ("transport", "NO_BELLS", "KILLS=1", SLEEPS),
    ("transport", "HEAD_WITHOUT_FREE", "KILLS=1", WRONG),
    ("transport", "HEAD_WITHOUT_HINT", "KILLS=1 DROP_NEWEST", WRONG),
    ("transport", "COUNT_IN_PLACE", "KILLS=1 DROP_OLDEST", WRONG),
    ("transport", "EARLY_COUNT", "KILLS=1", WRONG),
    ("transport", "SETTLE_ADDS", "KILLS=1", WRONG),
    ("transport", "NO_SECOND_LOOK", "KILLS=0", SLEEPS),
    ("transport", "LATE_LOOK", "KILLS=0", WRONG),
    ("transport", "BELL_COUNT", "KILLS=1", WRONG),
    ("delivery", "ACK_BEFORE_PUBLISH", "DEATHS=1", WRONG),
    ("delivery", "LIST_AFTER_WORDS", "DEATHS=1", WRONG),
    ("delivery", "EXAMINED_NOT_KEPT", "DEATHS=3", WRONG),
    ("delivery", "NOT_ALONE", "DEATHS=3", WRONG),
    ("delivery", "FLOOR_NOT_KEPT", "DEATHS=1 ROLLBACKS=1", WRONG),
    ("delivery", "COUNT_IN_PLACE", "DEATHS=1 SUPERVISOR_DEATHS=1", WRONG),
    ("delivery", "LATE_SETTLE", "DEATHS=1", WRONG),
    ("credit", "NOT_LOWERED", "N=1 VERSIONS=1", SLEEPS),
    ("credit", "LOWERED_ONCE", "N=1 VERSIONS=1", SLEEPS),
    ("credit", "QUIET_LOWERING", "N=1 VERSIONS=1", SLEEPS),
    ("credit", "CLEARED_AFTER_BELL", "N=1 R=1 VERSIONS=1 KILLS=0", SLEEPS),
    ("credit", "WAITS_SHOWN", "N=1 VERSIONS=2 KILLS=0", SLEEPS),
    ("serving", "NO_SECOND_LOOK", "G=1 T=1 KILLS=0 DEATHS=0", SLEEPS),
    ("serving", "QUIET_SWEEP", "G=1 T=1 KILLS=0 DEATHS=1", SLEEPS),
    ("serving", "QUIET_PRODUCER_SWEEP", "G=1 T=1 KILLS=1 DEATHS=0", SLEEPS),
    ("serving", "LIFE_NOT_COMPARED", "G=1 KILLS=0 DEATHS=1", WRONG),
    ("serving", "EPOCH_NOT_COMPARED", "G=1 KILLS=1 DEATHS=0", WRONG),
    ("serving", "FIELDS_NOT_CHECKED", "G=1 KILLS=1 DEATHS=0", WRONG),
    *(
        ("tap", mutant, "COPIES=1", WRONG)
        for mutant in ("NO_STAMP", "NO_WORD", "NO_FIRST_LOOK", "LOOKS_TOO_EARLY", "ANY_FREE", "LATE_STAMP")
    ),
]
MUTANTS_LARGER = [
    *(  # of the gate's: the smallest case in which one step is too old
        ("credit", mutant, "N=1 VERSIONS=3 KILLS=0 ETA=1", WRONG)
        for mutant in ("NO_GATE", "NO_RELOAD", "ACTING_AFTER_WORDS")
    ),
    ("serving", "NO_SERVER_BELL", "G=1 T=1 KILLS=0 DEATHS=0", SLEEPS),
    ("serving", "NO_ANSWER_BELL", "G=1 T=1 KILLS=0 DEATHS=0", SLEEPS),
    ("serving", "SERVER_NO_SECOND_LOOK", "G=1 T=1 KILLS=0 DEATHS=0", SLEEPS),
    ("serving", "LATE_SWEEP", "G=1 T=1 KILLS=0 DEATHS=1", SLEEPS),
    ("serving", "HALF_SWEEP", "R=2 G=1 T=1 KILLS=0 DEATHS=1 VERSIONS=0 WHOLE", SLEEPS),
    ("serving", "ANSWER_FIRST", "G=1 T=1 KILLS=0 DEATHS=0", WRONG),
    ("serving", "OLD_WEIGHTS", "G=1 T=1 KILLS=0 DEATHS=0", WRONG),
    ("serving", "NOT_AWAITED", "G=2 KILLS=0 DEATHS=0 REFUSALS=1 VERSIONS=0", WRONG),
]

pytestmark = pytest.mark.skipif(shutil.which("spin") is None, reason="needs spin (apt-get install spin)")


def search(model, definitions, directory, *flags):
    """What the search says; with a compiler that takes its time where the search does."""
    begin = time.monotonic()
    define = [f"-D{word}" for word in definitions.split()]
    options = {"cwd": directory, "capture_output": True, "text": True, "check": False}
    made = subprocess.run(["spin", *define, "-a", MODELS / f"{model}.pml"], **options)
    assert made.returncode == 0, made.stdout
    flags = [*flags, "-w", "-DSAFETY", f"-DMEMLIM={SEARCH_MEGABYTES}"]
    subprocess.run(["gcc", *flags, "-o", "pan", "pan.c"], cwd=directory, check=True)
    found = subprocess.run(["./pan", "-m1000000", "-w22"], **options).stdout
    states = re.search(r"^ *([\d.e+]+) states, stored", found, re.MULTILINE)
    assert states is not None, found
    if FIGURES:
        with open(FIGURES, "a", encoding="ascii") as file:
            seconds = time.monotonic() - begin
            print(f"{model}\t{' '.join(definitions.split())}\t{states[1]}\t{seconds:.1f}", file=file)
    return found


def holds(model, definitions, directory, *flags):
    found = search(model, definitions, directory, *flags)
    assert "errors: 0" in found, found
    for cut_short in ("max search depth too small", "Search not completed", "MEMLIM", "out of memory"):
        assert cut_short not in found, found


@pytest.mark.parametrize(
    ("model", "definitions", "optimize"),
    [*((*one, "-O0") for one in HOLDS_SMALL), *((*one, "-O1") for one in HOLDS)],
)
def test_the_model_has_no_error(tmp_path, model, definitions, optimize):
    holds(model, definitions, tmp_path, optimize)


@pytest.mark.soak
@pytest.mark.parametrize(("model", "definitions"), [*HOLDS_LARGER, *HOLDS_LARGEST * LARGEST])
def test_the_model_has_no_error_with_larger_bounds(tmp_path, model, definitions):
    holds(model, definitions, tmp_path, "-O2", *SMALLER_STATES)


def is_found(model, mutant, definitions, shows, directory, *flags):
    found = search(model, f"{mutant} {definitions}", directory, *flags)
    assert "errors: 1" in found, found
    assert shows in found


@pytest.mark.parametrize(("model", "mutant", "definitions", "shows"), MUTANTS)
def test_the_search_finds_what_is_broken(tmp_path, model, mutant, definitions, shows):
    is_found(model, mutant, definitions, shows, tmp_path, "-O0")


@pytest.mark.soak
@pytest.mark.parametrize(("model", "mutant", "definitions", "shows"), MUTANTS_LARGER)
def test_the_search_finds_what_is_broken_with_larger_bounds(tmp_path, model, mutant, definitions, shows):
    flags = ("-O2", *SMALLER_STATES) if model == "credit" else ("-O0",)
    is_found(model, mutant, definitions, shows, tmp_path, *flags)


def test_waiters_could_be_counted_if_nobody_died(tmp_path):
    """So it is the death that the count of waiters does not survive."""
    holds("transport", "BELL_COUNT KILLS=0 SUPERVISOR_DEATHS=0", tmp_path, "-O0")
