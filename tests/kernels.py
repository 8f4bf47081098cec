"""The C policy and its kernels compiled during a test: for other instruction sets, or with a test's own
functions around them."""

import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def compile_native(source: str, library: Path, march: str = "native") -> Path:
    """Compiles C text that includes files of producers/ with the flags of the Makefile, for the instruction
    set `march`."""
    c_file = library.with_suffix(".c")
    c_file.write_text(source)
    return _compile([c_file], library, march)


def compile_policy(library: Path, march: str) -> Path:
    """The C policy, as producers/policy.so but for the instruction set `march`."""
    return _compile(sorted((ROOT / "producers").glob("policy*.c")), library, march)


def instruction_sets() -> list[str]:
    """Values of -march beside `native` whose code runs here: each takes another path through the kernels."""
    if platform.machine() != "x86_64":
        return []
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    return ["x86-64", *(["x86-64-v3"] if {"avx2", "fma", "bmi2"} <= set(flags) else [])]


def _compile(sources: list[Path], library: Path, march: str) -> Path:
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O3", f"-march={march}", "-fno-math-errno", "-fPIC", "-shared"]
    strict = ["-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-Wshadow"]
    folders = [f"-I{ROOT / folder}" for folder in (".", "ringbuf", "producers", "sims")]
    command = ["gcc", *flags, *strict, *folders, "-o", str(library), *map(str, sources), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library
