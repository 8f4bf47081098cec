"""The realm under the sanitizers and its own invariants, random and scripted agents side by side.

A few thousand ticks here; a million with -m soak, or HEADRACE_SOAK_TICKS. Planted faults must be found.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from native import DATA, ROOT, broken

REALM = ROOT / "sims" / "realm"
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-DREALM_CHECK", "-O1", "-g", "-fno-omit-frame-pointer"]
FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{ROOT / 'sims'}", f"-I{REALM}"]
PLANTED = {  # file, what stands there, what it would be, what is said then
    "gold out of nowhere": ("combat.c", "w->s->minted += gold;", "w->s->minted += 1;", "invariant"),
    "an entity that stays behind": (
        "beasts.c",
        "    show_nobody(cell(w, one->tile));\n    w->occupant[to]",
        "    w->occupant[to]",
        "invariant",
    ),
    "an offer that outlives its thing": (
        "agents.c",
        "if (w->agent[i].slot[slot] == ON_OFFER) withdraw(w, i, slot);\n    w->s->sunk",
        ";\n    w->s->sunk",
        "invariant",
    ),
    "a row of cells that is left out": ("observe.c", "row < VIEW_ROWS;", "row < VIEW_ROWS - 1;", "invariant"),
    "an observation too long": (
        "observe.c",
        "memcpy(obs + GRID_BYTES, &w->agent[i], SELF_BYTES);",
        "memcpy(obs + GRID_BYTES, &w->agent[i], SELF_BYTES + 7);",
        "AddressSanitizer",
    ),
}


def compile_object(source: Path, out: Path) -> Path:
    subprocess.run(["gcc", *FLAGS, "-c", source, "-o", out], check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """The object file of each source, by its name."""
    folder = tmp_path_factory.mktemp("realm")
    sources = [*REALM.glob("*.c"), DATA / "realm_soak.c"]
    return {source.name: compile_object(source, folder / f"{source.stem}.o") for source in sources}


def soak(objects, folder: Path, ticks: int, seed: int = 1):
    """What the program said after so many ticks."""
    program = folder / "soak"
    link = ["gcc", "-fsanitize=address,undefined", "-o", program, *objects.values(), "-lm"]
    subprocess.run(link, check=True, capture_output=True)
    return subprocess.run([program, str(ticks), str(seed)], capture_output=True, text=True, check=False)


def test_no_invariant_breaks_and_no_byte_is_touched_that_should_not_be(objects, tmp_path):
    done = soak(objects, tmp_path, 2000)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 worlds\n", "")


@pytest.mark.parametrize("fault", PLANTED.values(), ids=list(PLANTED))
def test_it_is_found(objects, tmp_path, fault):
    name, old, new, said = fault
    source = tmp_path / name
    source.write_text(broken((REALM / name).read_text(), old, new))
    changed = {**objects, name: compile_object(source, tmp_path / "changed.o")}
    done = soak(changed, tmp_path, 20_000)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


@pytest.mark.soak
def test_a_million_ticks_find_nothing(objects, tmp_path):
    done = soak(objects, tmp_path, int(os.environ.get("HEADRACE_SOAK_TICKS", "1000000")), seed=2026)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
