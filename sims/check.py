"""The author's check of a simulator against the rules of sim.h.

    python -m sims.check NAME [key=value ...] [--steps N] [--seed N]

NAME is a simulator or the path of a library; key=value sets its parameters. A line a rule; exit status 0 when
all hold, 1 when one is broken, 2 when there is nothing to check. Rules that random play never met are named:
choose parameters that make them happen, e.g. a short time limit.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sims._abi import SIM_CODES
from sims.loader import Simulator, SimulatorError, Value, load
from sims.probe import Failure, Probe

SEED = 20_240_229
OTHER_SEED = 7
PATTERNS = (0xA5, 0x5A)
SAVES = 5


class NotMet(Exception):
    """The play never reached what a rule speaks of; the message says what."""


@dataclass(frozen=True)
class Subject:
    """What is checked, and for how many steps."""

    simulator: Simulator
    params: Mapping[str, Value]
    steps: int
    seed: int = SEED

    def probe(self, seed: int | None = None, pattern: int = PATTERNS[0]) -> Probe:
        return Probe(self.simulator, self.params, self.seed if seed is None else seed, pattern)

    def play(self, probe: Probe, action_seed: int = SEED) -> Iterator[int]:
        """Resets, then steps at random (the same for the same seed and masks); yields after each call."""
        generator = np.random.default_rng(action_seed)
        probe.reset()
        yield 0
        for t in range(1, self.steps + 1):
            probe.step(probe.random_actions(generator))
            yield t

    def trajectory(self, seed: int | None = None) -> list[bytes]:
        with self.probe(seed) as probe:
            return [probe.digest() for _ in self.play(probe)]


def table(subject: Subject) -> None:
    """names are distinct, and defaults are within their bounds"""
    simulator = subject.simulator
    for what in (simulator.params, simulator.statistics):
        names = [entry.name for entry in what]
        for entry in what:
            if not entry.name.isidentifier() or names.count(entry.name) > 1:
                raise Failure(f"{entry.name!r} is used twice or is no plain word")
            if not entry.help.strip() or "\n" in entry.help:
                raise Failure(f"{entry.name} has no line of help")
    for parameter, value in zip(simulator.params, simulator.values(), strict=False):
        if parameter.kind == "bool" and (parameter.low, parameter.high) != (0, 1):
            raise Failure(
                f"{parameter.name} is a bool with the bounds {parameter.low:g} to {parameter.high:g}"
            )
        if not parameter.low <= value <= parameter.high:
            raise Failure(f"{parameter.name} = {value:g} is out of bounds")
    if simulator.path.stem != simulator.name:
        raise Failure(f"the table says {simulator.name!r}, the library is {simulator.path.name}")


def shape(subject: Subject) -> None:
    """sizes, action heads and bounds are possible"""
    for head in subject.simulator.shape(subject.params).heads:
        if head.choices == 0 and not -np.inf < head.low < head.high < np.inf:
            raise Failure(f"a continuous head has the bounds {head.low:g} to {head.high:g}")


def written(subject: Subject) -> None:
    """every byte of every observation is written"""
    with subject.probe(pattern=PATTERNS[0]) as one, subject.probe(pattern=PATTERNS[1]) as two:
        for t, _ in zip(subject.play(one), subject.play(two), strict=True):
            rows = [probe.obs.view(np.uint8).reshape(one.shape.agents, -1) for probe in (one, two)]
            left = np.argwhere((rows[0] == PATTERNS[0]) & (rows[1] == PATTERNS[1]))
            if len(left):
                agent, byte = left[0]
                raise Failure(
                    f"call {t} leaves byte {byte} of agent {agent} as it was ({len(left)} bytes in all)"
                )


def meaning(subject: Subject) -> None:
    """every byte of the grid is a category of its plane, every code below 128"""
    shape = subject.simulator.shape(subject.params)
    if shape.grid is None and shape.coded == 0:
        raise NotMet("the observation has neither grid nor codes")
    limits = np.full(shape.obs_shape, 256)
    grid = 0
    if shape.grid is not None:
        grid = shape.grid.width
        limits[:grid] = np.tile(shape.grid.values, shape.grid.rows * shape.grid.columns)
    limits[grid : grid + shape.coded] = SIM_CODES
    with subject.probe() as probe:
        for t in subject.play(probe):
            wrong = np.argwhere(probe.obs >= limits)
            if len(wrong):
                agent, byte = wrong[0]
                raise Failure(
                    f"call {t} writes {probe.obs[agent, byte]} into byte {byte} of agent {agent}, "
                    f"which stays below {limits[byte]}"
                )


def repeats(subject: Subject) -> None:
    """same seed and same actions give the same bytes"""
    one, two = subject.trajectory(), subject.trajectory()
    for t, (a, b) in enumerate(zip(one, two, strict=True)):
        if a != b:
            raise Failure(
                f"two worlds of one seed part at call {t}: is there a rand(), a clock, unset memory?"
            )


def independent(subject: Subject) -> None:
    """worlds do not disturb one another"""
    alone = subject.trajectory()
    with subject.probe() as probe, subject.probe(OTHER_SEED) as other:
        neighbour = subject.play(other, OTHER_SEED)
        for t in subject.play(probe):
            if probe.digest() != alone[t]:
                raise Failure(
                    f"beside another world, call {t} is not what it is alone: is there global state?"
                )
            next(neighbour)


def finite(subject: Subject) -> None:
    """observations and rewards are finite"""
    with subject.probe() as probe:
        for t in subject.play(probe):
            if probe.obs.dtype.kind == "f" and not np.isfinite(probe.obs).all():
                raise Failure(f"call {t} writes an observation that is not finite")
            if not np.isfinite(probe.rewards).all():
                raise Failure(f"call {t} gives a reward that is not finite")


def masks(subject: Subject) -> None:
    """a mask holds 0 or 1 and allows an action of every head"""
    with subject.probe() as probe:
        if probe.mask is None:
            raise NotMet("no mask is declared")
        for t in subject.play(probe):
            if probe.mask.max() > 1:
                raise Failure(f"call {t} writes {probe.mask.max()} into the mask")
            first = 0
            for i, head in enumerate(probe.shape.heads):
                if not probe.mask[:, first : first + head.choices].any(axis=1).all():
                    raise Failure(f"call {t} allows no action of head {i}")
                first += head.choices


def statistics(subject: Subject) -> None:
    """an end is flagged by 1 and fills the agent's statistics"""
    ends = 0
    with subject.probe() as probe:
        for t in subject.play(probe):
            if max(probe.terminated.max(), probe.truncated.max()) > 1:
                raise Failure(f"call {t} sets a flag that is neither 0 nor 1")
            ended = probe.ended()
            if t == 0 and ended.any():
                raise Failure("reset sets a flag")
            if not np.isfinite(probe.statistics[ended]).all():
                missing = np.argwhere(~np.isfinite(probe.statistics) & ended[:, None])[0][1]
                raise Failure(f"call {t} ends without {subject.simulator.statistics[missing].name!r}")
            ends += int(ended.sum())
    if ends == 0:
        raise NotMet(f"no episode ended in {subject.steps} steps")


def after_truncation(subject: Subject) -> None:
    """the step after a truncation ignores the action and gives neither reward nor flags"""
    truncations = 0
    generator = np.random.default_rng(OTHER_SEED)
    with subject.probe() as one, subject.probe() as two:
        for probe in (one, two):
            probe.reset()
        pending = np.zeros(one.shape.agents, np.bool_)
        for t in range(1, subject.steps + 1):
            actions = one.random_actions(generator)
            others = np.where(pending[:, None], two.random_actions(generator), actions)
            one.step(actions)
            two.step(others)
            if one.digest() != two.digest():
                raise Failure(f"the action of the step after a truncation matters in call {t}")
            if one.rewards[pending].any() or one.ended()[pending].any():
                raise Failure(f"call {t} comes after a truncation and gives a reward or a flag")
            pending = (one.truncated != 0) & (one.terminated == 0)
            truncations += int(pending.sum())
    if truncations == 0:
        raise NotMet(f"nothing was truncated in {subject.steps} steps")


def saves(subject: Subject) -> None:
    """a saved state, loaded into another world, goes on to the byte"""
    api = subject.simulator.api
    present = [bool(function) for function in (api.state_bytes, api.save, api.load)]
    if not any(present):
        raise NotMet("save and load are not offered")
    if not all(present):
        raise Failure("state_bytes, save and load go together, but one is missing")
    generator = np.random.default_rng(SEED)
    with subject.probe() as original, subject.probe(OTHER_SEED) as copy:
        original.reset()
        copy.reset()
        for t in range(1, subject.steps + 1):
            if t % max(1, subject.steps // SAVES) == 1:
                state = original.save(PATTERNS[0])
                if state != original.save(PATTERNS[1]):
                    raise Failure(f"the state saved before call {t} holds bytes that save did not set")
                copy.load(state)
            actions = original.random_actions(generator)
            original.step(actions)
            copy.step(actions)
            if original.digest() != copy.digest():
                raise Failure(f"original and copy part at call {t}")


def pictures(subject: Subject) -> None:
    """pictures stay within their memory"""
    api = subject.simulator.api
    if not (api.render_text or api.render_rgb):
        raise NotMet("no pictures are offered")
    with subject.probe() as probe:
        for t in subject.play(probe):
            if t % max(1, subject.steps // SAVES) == 0:
                probe.follow(t % probe.shape.agents)
                if api.render_text:
                    probe.render_text()
                if api.render_rgb:
                    probe.render_rgb()


RULES: tuple[Callable[[Subject], None], ...] = (
    table,
    shape,
    written,
    meaning,
    repeats,
    independent,
    finite,
    masks,
    statistics,
    after_truncation,
    saves,
    pictures,
)


def check(subject: Subject, line: Callable[[str], None] = print) -> bool:
    """Checks every rule and gives `line` a line for each; True if none is broken."""
    good = True
    for rule in RULES:
        promise = (rule.__doc__ or rule.__name__).strip()
        try:
            rule(subject)
        except NotMet as note:
            line(f"  -   {promise}: not met, {note}")
        except (Failure, SimulatorError) as failure:
            line(f"FAIL  {promise}: {failure}")
            good = False
        else:
            line(f" ok   {promise}")
    return good


def parse_value(text: str) -> Value:
    """true, false or a number."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


def parse_params(pairs: list[str]) -> dict[str, Value]:
    params = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not key or not separator:
            raise SimulatorError(f"{pair!r} is not key=value")
        try:
            params[key] = parse_value(text)
        except ValueError as error:
            raise SimulatorError(f"{pair!r} is not key=number, key=true or key=false") from error
    return params


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sims.check", description=__doc__.split("\n")[0])
    parser.add_argument("name", help="a simulator, or the path of its library")
    parser.add_argument("params", nargs="*", metavar="key=value", help="parameters of the simulator")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each check (default 2000)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the world, e.g. of one that broke down")
    options = parser.parse_args(arguments)
    try:
        simulator = load(options.name)
        params = parse_params(options.params)
        simulator.values(params)
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{simulator.name}: {simulator.help}", flush=True)
    subject = Subject(simulator, params, options.steps, options.seed)
    return 0 if check(subject, lambda text: print(text, flush=True)) else 1


if __name__ == "__main__":
    faulthandler.enable()  # a simulator that crashes is named by the rule that was being checked
    sys.exit(main())
