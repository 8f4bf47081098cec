"""The schema of run.yaml: one frozen model a section, each key with its meaning, unit and default.

Parts: the schema; a YAML reader that remembers where each value stands; `read`, which joins the two and
reports every mistake at once with its place; and the writers. `python config.py --docs` writes the reference
in docs/configuration.md, `python config.py --schema` writes docs/run.schema.json.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from annotated_types import Ge, Gt, Le
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
    WithJsonSchema,
)

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_VALUES = 10_000  # after aliases are expanded: a few lines of aliases can describe billions
MAX_NUMBER_DIGITS = 40
MAX_KEYS_NAMED = 20


class ConfigError(Exception):
    """Something in run.yaml or in an override is wrong. `problems`: one line each, with its place."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class Unreadable(Exception):
    """The run file cannot be read at all."""


# ------------------------------------------------------------------------------------------------------------
# The schema


def _whole(value: Any) -> Any:
    """1e6 is a float to YAML and a whole number to everybody else; `true` and "5" are neither."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _size(value: Any) -> Any:
    """64MiB, 2 GB, 4096 -> bytes."""
    if not isinstance(value, str):
        return _whole(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B", value)
    if not match:
        raise ValueError("not a size")
    prefix = match[2] or ""
    base = 1024 if prefix.endswith("i") else 1000
    return int(float(match[1]) * base ** " KMGT".index(prefix[0] if prefix else " "))


def _limit(value: Any) -> Any:
    """`none` -> None. An empty value is not `none`: a slip of the pen must not lift the bound."""
    if value is None:
        raise ValueError("empty")
    return None if value == "none" else _whole(value)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Natural = Annotated[int, Ge(0), BeforeValidator(_whole)]
Positive = Annotated[int, Ge(1), BeforeValidator(_whole)]
PositiveNumber = Annotated[float, Gt(0)]
NaturalNumber = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Size = Annotated[
    int,
    BeforeValidator(_size),
    Ge(1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*([KMGT]i?)?B$"},
            ]
        }
    ),
]
Limit = Annotated[
    Annotated[int, Ge(0)] | None,
    BeforeValidator(_limit),
    PlainSerializer(lambda value: "none" if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "none"}]}),
]
Auto = Literal["auto"]
Cores = Annotated[tuple[Natural, ...], BeforeValidator(_tuple), Field(min_length=1)]
Widths = Annotated[tuple[Positive, ...], BeforeValidator(_tuple)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )


class Run(Section):
    """Name, place and seed of the run."""

    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")] = ""
    """Name of the run and of its directory; empty: the file's name without `.yaml`."""
    dir: Annotated[str, Field(min_length=1)] = "runs"
    """Directory that holds run directories, relative to the working directory."""
    seed: Natural = 1
    """Seed of worlds, action noise, initial weights and minibatches."""


class Sim(Section):
    """The simulator. Every key beside `name` is a parameter; `producers/producer --describe` lists them."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    """Folder in `sims/`, or the path of a simulator's `.so`."""

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Staleness(Section):
    """How old the weights that acted may be when the learner trains on their steps; unit: versions."""

    limit: Limit = 1
    """Hard bound on the lag in `mode: async`; `none`: no bound."""
    exact: Natural = 0
    """`mode: lagged`: the lag of every batch. Must be 0 in the other modes."""


class Producers(Section):
    """Processes that simulate and act."""

    count: Positive | Auto = "auto"
    """Number of producer processes; `auto`: one for each usable core."""
    cores: Cores | Auto = "auto"
    """Cores to pin producers to, in turn; `auto`: usable cores, SMT siblings last."""
    agents: Positive = 1024
    """Agents of one producer, over all its worlds."""


class Rollout(Section):
    """One trajectory segment, which is one slot of a ring."""

    horizon: Positive = 64
    """Steps of each agent in a slot."""


class Ring(Section):
    """The shared-memory ring of each producer."""

    slots: Annotated[int, Ge(2), BeforeValidator(_whole)] = 4
    """Slots of each ring."""
    full: Literal["block", "drop_oldest", "drop_newest"] = "block"
    """What a producer does when its ring is full. Dropping needs `staleness.limit: none`."""


class Policy(Section):
    """The network, and who runs it to act."""

    placement: Literal["auto", "producer", "server"] = "auto"
    """Who computes actions: each producer in C, or an inference server (in a later version)."""
    hidden: Widths = (128, 128)
    """Widths of the hidden layers; []: none."""
    activation: Literal["relu", "gelu-tanh", "gelu-erf", "tanh", "sigmoid"] = "relu"
    """After each hidden layer."""
    recurrent: Literal["none", "lstm", "mingru"] = "none"
    """Recurrent layer behind the hidden ones."""
    separate_value: bool = False
    """Whether the value function has hidden layers of its own."""
    normalize_obs: bool = False
    """Whether observations are normalised by running mean and deviation."""
    obs_scale: PositiveNumber | None = None
    """Factor on raw observations; null: 1/255 for images of uint8, 1 for everything else."""
    obs_offset: float | None = None
    """Added to scaled observations; null: 0."""


class Schedule(Section):
    """A setting that changes over the run, by valid steps trained on."""

    start: NaturalNumber
    """Value at step 0."""
    end: NaturalNumber
    """Value from `steps` on."""
    kind: Literal["linear", "cosine"] = "linear"
    """Way from `start` to `end`."""
    steps: Positive | None = None
    """Length in valid steps; null: `stop.steps`."""


Scheduled = Annotated[
    Annotated[NaturalNumber, Tag("value")] | Annotated[Schedule, Tag("schedule")],
    Discriminator(lambda value: "schedule" if isinstance(value, dict | Schedule) else "value"),
]


class Reward(Section):
    """Applied in the learner; the score stays raw."""

    scale: PositiveNumber = 1.0
    """Factor on rewards."""
    clip: PositiveNumber | None = None
    """Bound on the scaled reward's magnitude; null: none."""


class Learner(Section):
    """Training."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: CUDA if there is a GPU, else the CPU."""
    count: Positive = 1
    """Learner processes; this version runs one."""
    threads: Positive | Auto = "auto"
    """torch threads; `auto`: 1 in `mode: async` on a CPU, else all cores."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Of matrix products; log-probabilities are always float32."""
    compile: bool = False
    """Whether forward and backward go through `torch.compile`."""
    batch_slots: Positive = 2
    """Slots of one batch, over all producers; one batch makes one version."""
    epochs: Positive = 1
    """Passes over a batch."""
    minibatches: Positive = 8
    """Optimizer steps of one pass."""
    correction: Literal["vtrace", "ppo", "tis", "none"] = "vtrace"
    """Off-policy correction; see docs/details.md."""
    loss: Literal["auto", "torch", "native"] = "auto"
    """Who computes loss and gradient from the network's outputs: torch operation by operation, or one native
    call with the same result but for rounding; `auto`: native on a CPU."""
    targets: Literal["batch", "minibatch"] = "batch"
    """When targets and advantages are computed: once a batch, or with each minibatch (one epoch only)."""
    gamma: Share = 0.99
    """Discount a step."""
    gae_lambda: Share = 0.95
    """λ of V-trace and GAE."""
    rho_clip: PositiveNumber = 1.0
    """ρ̄ of V-trace: bound on the ratio that weighs a temporal difference."""
    c_clip: PositiveNumber = 1.0
    """c̄ of V-trace: bound on the ratio that carries the trace on; at most `rho_clip`."""
    tis_cap: PositiveNumber = 2.0
    """Bound on the weight that `correction: tis` gives a step."""
    clip: PositiveNumber = 0.2
    """ε of the PPO objective."""
    value_coef: NaturalNumber = 0.5
    """Weight of the value loss."""
    value_clip: PositiveNumber | None = None
    """Bound on the value's change in one update; null: none."""
    normalize_value: bool = False
    """Whether value targets are normalised by running mean and deviation."""
    normalize_advantage: bool = True
    """Whether advantages are normalised over each minibatch."""
    target_kl: PositiveNumber | None = None
    """KL divergence that ends the epochs of a batch early; null: never."""
    max_grad_norm: PositiveNumber | None = 0.5
    """Bound on the gradient's norm; null: none."""
    reward: Reward = Reward()
    """Scaling and clipping of rewards."""
    learning_rate: Scheduled = 3e-4
    """A number, or a schedule {start, end, kind, steps}."""
    entropy_coef: Scheduled = 0.01
    """Weight of the entropy bonus: a number or a schedule."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: for 2-D weights, AdamW for the rest."""
    betas: Annotated[tuple[Share, Share], BeforeValidator(_tuple)] = (0.9, 0.999)
    """β₁ and β₂ of AdamW."""
    eps: PositiveNumber = 1e-8
    """ε of AdamW."""
    weight_decay: NaturalNumber = 0.0
    """Decoupled weight decay."""
    momentum: Share = 0.95
    """Momentum of Muon."""
    max_lag: Natural | None = None
    """Steps of more versions than this are not trained on, only with `staleness.limit: none`; null: all
    are."""


class Weights(Section):
    """The channel from learner to producers."""

    pickup: Literal["auto", "step", "slot"] = "auto"
    """When producers take new weights: between steps, or between slots; `auto`: `step` in `mode: async`,
    else `slot`."""


class Checkpoint(Section):
    """Checkpoints on disk."""

    interval_seconds: PositiveNumber = 300.0
    """Seconds between checkpoints; one more is written at every end."""
    keep: Positive = 3
    """Checkpoints kept."""


class Stop(Section):
    """The first condition met ends the run; without any it runs until it is told to stop."""

    steps: Positive | None = None
    """Valid agent-steps consumed."""
    seconds: PositiveNumber | None = None
    """Seconds since the first slot was committed."""
    versions: Positive | None = None
    """Versions published."""
    score: float | None = None
    """Mean raw score, on two disjoint windows."""
    window: Positive = 100
    """Episodes of a window; at least as many as there are agents are taken."""


class Monitor(Section):
    """The HTTP endpoint, the terminal and the logs."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address of the endpoint."""
    port: Annotated[int, Ge(0), Le(65535), BeforeValidator(_whole)] = 9108
    """Port of the endpoint; 0: any free one, named in status.json."""
    interval_seconds: PositiveNumber = 5.0
    """Seconds between lines of the plain display."""
    log_bytes: Size = 64 * 1024**2
    """Size at which a log or `metrics.jsonl` is set aside, once."""


class Supervisor(Section):
    """Start and shutdown."""

    min_producers: Positive | Auto = "auto"
    """Producers without which the run ends; `auto`: the least that fill a batch, all in `sync` and
    `lagged`."""
    start_seconds: PositiveNumber = 120.0
    """Deadline for the first version after the start."""
    deadline_seconds: PositiveNumber = 60.0
    """Deadline of a shutdown, evaluation apart."""


class Archive(Section):
    """Recording of trajectories, which comes with a later version."""

    enabled: bool = False
    """Must be `false` in this version."""


class Evaluate(Section):
    """Evaluation of the final policy by a run that met its stop condition."""

    episodes: Natural = 128
    """Episodes of each of the two policies (sampled, argmax), rounded up to whole worlds; 0: no
    evaluation."""
    worlds: Positive = 64
    """Worlds played side by side."""
    seconds: PositiveNumber = 120.0
    """Deadline in seconds; what has not ended by then is reported as missing."""


class Config(Section):
    """A whole run."""

    run: Run = Run()
    """Name, place and seed."""
    sim: Sim
    """The simulator and its parameters."""
    mode: Literal["async", "sync", "lagged"] = "async"
    """`async`: producers run ahead; `sync`: every batch acted by the newest weights; `lagged`: by those of
    exactly `staleness.exact` versions before."""
    staleness: Staleness = Staleness()
    """Bounds on the lag."""
    producers: Producers = Producers()
    """Producer processes."""
    rollout: Rollout = Rollout()
    """Trajectory segments."""
    ring: Ring = Ring()
    """Rings."""
    policy: Policy = Policy()
    """The network."""
    learner: Learner = Learner()
    """Training."""
    weights: Weights = Weights()
    """The weights channel."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""
    stop: Stop = Stop()
    """When the run ends."""
    monitor: Monitor = Monitor()
    """Endpoint, display, logs."""
    supervisor: Supervisor = Supervisor()
    """Start and shutdown."""
    archive: Archive = Archive()
    """Recording."""
    evaluate: Evaluate = Evaluate()
    """Evaluation at the end."""

    @property
    def exact(self) -> bool:
        """Whether every slot is acted with exactly one version that is known beforehand."""
        return self.mode != "async"

    @property
    def lag_limit(self) -> int | None:
        """The bound on the lag that this mode keeps, in versions; None: none."""
        return self.staleness.exact if self.exact else self.staleness.limit

    @property
    def run_dir(self) -> Path:
        return Path(self.run.dir) / self.run.name


# ------------------------------------------------------------------------------------------------------------
# What no single key can know


def _conflicts(config: Config) -> tuple[list[tuple[str, str]], list[str]]:
    """Checks across keys of a resolved configuration: ([(key, problem)], [warning])."""
    producers, slots = int(config.producers.count), config.ring.slots
    batch, horizon = config.learner.batch_slots, config.rollout.horizon
    wrong: list[tuple[str, str]] = []
    warnings: list[str] = []

    def need(condition: bool, key: str, text: str) -> None:
        if not condition:
            wrong.append((key, text))

    if config.exact:
        need(
            config.ring.full == "block",
            "ring.full",
            f"mode {config.mode} gives every slot its version, so nothing may be dropped; needs block",
        )
        need(
            config.weights.pickup == "slot",
            "weights.pickup",
            f"mode {config.mode} acts every slot with one version; needs slot",
        )
        need(
            batch % producers == 0,
            "learner.batch_slots",
            f"mode {config.mode} takes equally many slots from every ring, but {batch} slots a batch cannot "
            f"be divided by {producers} producers; needs a multiple of {producers}",
        )
    need(
        config.mode == "lagged" or config.staleness.exact == 0,
        "staleness.exact",
        f"belongs to mode lagged, but the mode is {config.mode}",
    )
    if config.ring.full != "block" and not config.exact:
        need(
            config.staleness.limit is None,
            "ring.full",
            f"{config.ring.full} needs staleness.limit: none, because a lag is bounded by credit for slots "
            f"that will be trained on, and dropped ones never return theirs",
        )
    need(
        config.learner.max_lag is None or config.lag_limit is None,
        "learner.max_lag",
        "masks steps that staleness.limit already keeps out; needs staleness.limit: none",
    )

    needed = batch + producers
    room = producers * slots
    need(
        room >= needed,
        "ring.slots",
        f"{producers} producers x {slots} slots = {room} slots, but batch_slots + producers = {needed} "
        f"are needed, since a batch stays leased while producers write the next; "
        f"needs {math.ceil(needed / producers)} or more",
    )
    least = int(config.supervisor.min_producers)
    need(
        least <= producers,
        "supervisor.min_producers",
        f"{least} of {producers} producers; needs {producers} or less",
    )
    if room >= needed and least <= producers:
        need(
            least * slots >= batch + least,
            "supervisor.min_producers",
            f"{least} producers x {slots} slots = {least * slots} slots, but learner.batch_slots + "
            f"min_producers = {batch + least} are needed; needs {math.ceil(batch / (slots - 1))} or more",
        )
    if (
        not config.exact
        and config.staleness.limit is not None
        and room < (config.staleness.limit + 1) * batch
    ):
        warnings.append(
            f"staleness.limit {config.staleness.limit} cannot be reached: {room} slots in the rings hold at "
            f"most {math.ceil(room / batch) - 1} versions' worth of batches, which is the effective limit"
        )

    need(
        config.learner.targets == "batch" or config.learner.epochs == 1,
        "learner.targets",
        f"minibatch takes targets from the loss's own forward, so it needs learner.epochs: 1, found "
        f"{config.learner.epochs}",
    )
    need(
        config.learner.targets == "batch" or config.learner.correction not in ("tis", "none"),
        "learner.targets",
        f"minibatch has no policy from before the update, which correction {config.learner.correction} "
        "needs; needs batch",
    )
    segments = batch * config.producers.agents
    need(
        segments % config.learner.minibatches == 0,
        "learner.minibatches",
        f"{batch} slots x {config.producers.agents} agents = {segments} segments of {horizon} steps cannot "
        f"be divided by {config.learner.minibatches}",
    )
    need(
        config.learner.c_clip <= config.learner.rho_clip,
        "learner.c_clip",
        f"found {config.learner.c_clip:g}; needs {config.learner.rho_clip:g} (learner.rho_clip) or less",
    )
    need(
        config.learner.count == 1,
        "learner.count",
        f"found {config.learner.count}; several learners come with a later version, this one needs 1",
    )
    need(
        config.policy.placement != "server",
        "policy.placement",
        "an inference server comes with a later version; this one needs producer or auto",
    )
    need(
        not config.archive.enabled,
        "archive.enabled",
        "recording comes with a later version; this one needs false",
    )
    for key in ("learning_rate", "entropy_coef"):
        schedule = getattr(config.learner, key)
        need(
            not isinstance(schedule, Schedule) or schedule.steps is not None,
            f"learner.{key}",
            "a schedule needs its length; give it steps, or give stop.steps",
        )
    return wrong, warnings


def _resolve(config: Config, name: str, cores: int) -> Config:
    """Fills in what depends on other keys or on the machine, so that every process reads the same values."""
    producers = cores if config.producers.count == "auto" else int(config.producers.count)
    least = config.supervisor.min_producers
    if least == "auto":
        fill = math.ceil(config.learner.batch_slots / (config.ring.slots - 1))
        least = producers if config.exact else min(producers, fill)
    pickup = config.weights.pickup
    if pickup == "auto":
        pickup = "slot" if config.exact else "step"
    schedules = {
        key: schedule.model_copy(update={"steps": config.stop.steps})
        for key in ("learning_rate", "entropy_coef")
        if isinstance(schedule := getattr(config.learner, key), Schedule) and schedule.steps is None
    }
    placement = "producer" if config.policy.placement == "auto" else config.policy.placement
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"name": config.run.name or name}),
            "producers": config.producers.model_copy(update={"count": producers}),
            "supervisor": config.supervisor.model_copy(update={"min_producers": least}),
            "weights": config.weights.model_copy(update={"pickup": pickup}),
            "policy": config.policy.model_copy(update={"placement": placement}),
            "learner": config.learner.model_copy(update=schedules),
        }
    )


# ------------------------------------------------------------------------------------------------------------
# YAML 1.2 with places

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """Where something stands: a file with line and column (from 1), or an override."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass
class Tree:
    """Values as Python objects, where each key and value stands, and what was wrong with the text."""

    value: Any = None
    keys: dict[Path_, Mark] = field(default_factory=dict)
    values: dict[Path_, Mark] = field(default_factory=dict)
    problems: list[tuple[Mark, str]] = field(default_factory=list)

    def at(self, path: Path_) -> Mark | None:
        """The place of the value at `path`, or of the nearest section around it."""
        for length in range(len(path), 0, -1):
            if mark := self.values.get(path[:length]):
                return mark
        return None

    def get(self, path: Path_) -> Any:
        value = self.value
        for name in path:
            value = value[name]
        return value


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: `no` is a string, 3e-4 a number, 010 ten, 1:30 a string."""

    yaml_implicit_resolvers: ClassVar[dict] = {}
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_CORE = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
_TAG = "tag:yaml.org,2002:"
for _name, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(
        _TAG + _name, re.compile(rf"^(?:{_pattern})$"), [*_first, *([""] if _name == "null" else [])]
    )


def _scalar(kind: str, text: str) -> Any:
    """The value of a plain scalar that matches the pattern of `kind`. ValueError: it does not."""
    if kind == "str":
        return text
    if kind not in _CORE or not re.fullmatch(_CORE[kind][0], text):
        raise ValueError
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if len(text) > MAX_NUMBER_DIGITS:
        raise ValueError
    if kind == "int":
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def parse_yaml(text: str, source: str, *, place: bool = True) -> Tree:
    """Reads one YAML document of plain values.

    `source` names the file or override in marks; `place`: whether lines and columns go into marks. Never
    raises: what is wrong stands in `problems`. Anchors are allowed while the expanded document stays small.
    """
    tree = Tree()
    left = MAX_VALUES

    def mark(at: Any) -> Mark:
        return Mark(source, at.line + 1, at.column + 1) if place and at else Mark(source)

    def build(node: Any, path: Path_) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or len(path) > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"aliases expand to more than {MAX_VALUES} values or {MAX_DEPTH} levels",
                problem_mark=node.start_mark,
            )
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.ScalarNode):
            try:
                return _scalar(kind, node.value)
            except ValueError:
                tree.problems.append((mark(node.start_mark), _not_a(kind, node)))
                return node.value
        if kind not in ("map", "seq"):
            tree.problems.append(
                (mark(node.start_mark), f"tag {node.tag} is not allowed; needs plain values")
            )
        if isinstance(node, yaml.SequenceNode):
            return [build(item, (*path, str(i))) for i, item in enumerate(node.value)]
        return mapping(node, path)

    def mapping(node: Any, path: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = build(key_node, (*path, "")) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                tree.problems.append((mark(key_node.start_mark), "a key must be a name"))
                continue
            place_of_key = (*path, key)
            if key in result:
                first = tree.keys[place_of_key]
                tree.problems.append(
                    (
                        mark(key_node.start_mark),
                        f"{'.'.join(place_of_key)}: given a second time, first in line {first.line}",
                    )
                )
                continue
            tree.keys[place_of_key] = mark(key_node.start_mark)
            tree.values[place_of_key] = mark(value_node.start_mark)
            result[key] = build(value_node, place_of_key)
        return result

    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        tree.value = {} if node is None else build(node, ())
    except yaml.MarkedYAMLError as error:
        said = error.problem or error.context or "not YAML"
        tree.problems.append(
            (mark(error.problem_mark or error.context_mark), f"not readable as YAML: {said}")
        )
    except yaml.reader.ReaderError as error:
        tree.problems.append(
            (Mark(source), f"not readable as YAML: {error.reason} (character #x{error.character:04x})")
        )
    finally:
        if loader is not None:
            loader.dispose()
    return tree


def _not_a(kind: str, node: Any) -> str:
    if kind not in _CORE:
        return f"tag {node.tag} is not allowed; needs plain values"
    if kind in ("int", "float") and len(node.value) > MAX_NUMBER_DIGITS:
        return f"a number of {len(node.value)} digits; needs {MAX_NUMBER_DIGITS} or fewer"
    return f"found {node.value!r}, which is no {kind}"


# ------------------------------------------------------------------------------------------------------------
# Reading a run file


@dataclass(frozen=True)
class Document:
    """A configuration together with where it comes from. `warnings`: one line each."""

    config: Config
    path: str
    tree: Tree
    warnings: tuple[str, ...] = ()

    def origin(self, path: Path_) -> str:
        """`file:line` of a value, the override it comes from, or `default`."""
        if mark := self.tree.values.get(path):
            return f"{mark.source}:{mark.line}" if mark.line else mark.source
        return "default"

    def error(self, key: str, text: str) -> ConfigError:
        """A problem with the value of `key` that only somebody else could find."""
        where = self.tree.at(tuple(key.split("."))) or Mark(self.path)
        return ConfigError([f"{where}: {key}: {text}"])


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """`read(...)`'s configuration alone."""
    return read(path, overrides).config


def read(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), *, cores: int | None = None
) -> Document:
    """Reads and checks a run file.

    `overrides`: `section.key=value`, each value parsed as YAML. `cores`: what `producers.count: auto` stands
    for; default: the cores this process may use. The result is resolved: only what needs the simulator or
    torch is left to be worked out.

    Raises ConfigError with every problem found; Unreadable.
    """
    name = os.fspath(path)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise Unreadable(f"{name}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError([f"{name}: {len(data)} bytes; needs {MAX_FILE_BYTES} or fewer"])
    try:
        tree = parse_yaml(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8"]) from None
    if not isinstance(tree.value, dict):
        if not tree.problems:
            tree.problems.append((Mark(name, 1, 1), "needs sections such as `sim:`"))
        raise _failure(tree)
    for text in overrides:
        _override(tree, text)
    try:
        config = Config.model_validate(tree.value)
    except ValidationError as error:
        tree.problems += _explain(tree, name, error)
        raise _failure(tree) from None
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem).strip("-._")[:64] or "run"
    config = _resolve(config, stem, cores or len(os.sched_getaffinity(0)))
    wrong, warnings = _conflicts(config)
    for key, text in wrong:
        where = tree.at(tuple(key.split("."))) or Mark(name)
        tree.problems.append((where, f"{key}: {text}"))
    if tree.problems:
        raise _failure(tree)
    return Document(config, name, tree, tuple(warnings))


def _failure(tree: Tree) -> ConfigError:
    order = sorted(
        tree.problems, key=lambda problem: (problem[0].line == 0, problem[0].line, problem[0].column)
    )
    return ConfigError(list(dict.fromkeys(f"{mark}: {text}" for mark, text in order)))


def _override(tree: Tree, text: str) -> None:
    key, equals, value_text = text.partition("=")
    source = f"override {text!r}"
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        tree.problems.append((Mark(source), "needs the form section.key=value"))
        return
    value = parse_yaml(value_text, source, place=False)
    tree.problems += value.problems
    if value.problems:
        return
    section = tree.value
    for depth, name in enumerate(path[:-1], 1):
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            tree.problems.append(
                (Mark(source), f"{'.'.join(path[:depth])} is not a section but {_show(section)}")
            )
            return
        tree.keys.setdefault(path[:depth], Mark(source))
        tree.values.setdefault(path[:depth], Mark(source))
    section[path[-1]] = value.value if value_text.strip() else None
    for marks in (tree.keys, tree.values):
        for old in [known for known in marks if known[: len(path)] == path]:
            del marks[old]
        marks[path] = Mark(source)
        for below in value.values:
            marks[path + below] = Mark(source)


# ------------------------------------------------------------------------------------------------------------
# Saying what is wrong


def schema() -> dict[str, Any]:
    """JSON schema of run.yaml."""
    keys = _unwrapped(Config.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **keys}


def _unwrapped(node: Any) -> Any:
    """Descriptions come from docstrings and are wrapped as those are; a table's cell must be one line."""
    if isinstance(node, dict):
        return {
            key: " ".join(value.split()) if (key, type(value)) == ("description", str) else _unwrapped(value)
            for key, value in node.items()
        }
    return [_unwrapped(one) for one in node] if isinstance(node, list) else node


def _properties(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys below a schema node; {} for a plain value."""
    for option in (node, *node.get("anyOf", ()), *node.get("oneOf", ())):
        if "$ref" in option:
            return defs[option["$ref"].rsplit("/", 1)[1]]["properties"]
    return node.get("properties", {})


def _walk(
    properties: Mapping[str, Any], defs: Mapping[str, Any], prefix: Path_ = ()
) -> Iterator[tuple[Path_, Any]]:
    for name, node in properties.items():
        yield (*prefix, name), node
        yield from _walk(_properties(node, defs), defs, (*prefix, name))


def describe(node: Mapping[str, Any]) -> str:
    """What a value has to be, in words."""
    if "anyOf" in node or "oneOf" in node:
        options = [describe(option) for option in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(option for option in options if option))
    if "$ref" in node:
        keys = _properties(node, schema()["$defs"])
        return "a section of " + ", ".join(keys)
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return " or ".join(filter(None, (", ".join(map(str, node["enum"][:-1])), str(node["enum"][-1]))))
    kind = node.get("type")
    if kind == "array":
        item = describe(node.get("items", {})) or describe(node["prefixItems"][0])
        exact = node.get("minItems") if node.get("minItems") == node.get("maxItems") else None
        return f"a list of {exact} values, each {item}" if exact else f"a list with each {item}"
    if kind == "string" and "pattern" in node:
        return "a size such as 64MiB" if "KMGT" in node["pattern"] else "letters, digits, `.`, `_` and `-`"
    text = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "a text",
        "null": "null",
        "object": "a section",
    }.get(kind or "", "")
    bounds = [
        f"{node[key]} {words}"
        for key, words in (("minimum", "or more"), ("maximum", "or less"))
        if key in node
    ]
    bounds += [f"above {node[key]}" for key in ("exclusiveMinimum",) if key in node]
    return f"{text} ({' and '.join(bounds)})" if bounds else text


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a section"
    if value is None:
        return "nothing"
    text = emit(value)
    return (text if len(text) <= 60 else text[:57] + "...") + (" (a text)" if isinstance(value, str) else "")


def _near(name: str, path: Path_, known: Mapping[Path_, Any]) -> str:
    """The nearest valid key: alike or by its initials beside it, then alike elsewhere."""
    beside = {other[-1]: other for other in known if other[:-1] == path[:-1]}
    for other in beside:
        if "".join(word[0] for word in other.split("_")) == name:
            return f"; did you mean {'.'.join(beside[other])}?"
    if close := difflib.get_close_matches(name, beside, 1, 0.6):
        return f"; did you mean {'.'.join(beside[close[0]])}?"
    elsewhere = {other[-1]: other for other in sorted(known, key=len, reverse=True)}
    if close := difflib.get_close_matches(name, elsewhere, 1, 0.75):
        return f"; did you mean {'.'.join(elsewhere[close[0]])}?"
    return f"; known here: {', '.join(beside)}" if 0 < len(beside) <= MAX_KEYS_NAMED else ""


def _explain(tree: Tree, source: str, error: ValidationError) -> list[tuple[Mark, str]]:
    """One problem a key, in words of the schema."""
    whole = schema()
    defs = whole["$defs"]
    known = dict(_walk(whole["properties"], defs))
    problems: dict[Path_, tuple[Mark, str]] = {}
    for item in error.errors():
        path: Path_ = ()
        for step in item["loc"]:
            unknown = item["type"] == "extra_forbidden" and step == item["loc"][-1]
            if isinstance(step, str) and ((*path, step) in known or unknown):
                path = (*path, step)
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            where = tree.keys.get(path) or tree.at(path) or Mark(source)
            problems[path] = (where, f"{key}: unknown key{_near(path[-1], path, known)}")
        elif item["type"] == "missing":
            problems[path] = (tree.at(path) or Mark(source), f"{key}: missing; needs {describe(known[path])}")
        else:
            problems.setdefault(
                path,
                (
                    tree.at(path) or Mark(source),
                    f"{key}: found {_show(tree.get(path))}; needs {describe(known[path])}",
                ),
            )
    return list(problems.values())


def check_sim(document: Document, spec: Mapping[str, Any]) -> dict[str, int | float | bool]:
    """Checks `sim:` against the simulator's own spec.

    `spec`: what `producers/producer --describe` prints. Returns every parameter's value in its own type,
    defaults included. Raises ConfigError with every problem, with the marks of the run file.
    """
    types: dict[str, Any] = {"int": int, "float": float, "bool": bool}
    given = document.config.sim.parameters
    table = {parameter["name"]: parameter for parameter in spec["params"]}
    known: dict[Path_, Any] = {("sim", name): None for name in ("name", *table)}
    problems = Tree()

    def problem(name: str, text: str, marks: Mapping[Path_, Mark]) -> None:
        problems.problems.append((marks.get(("sim", name)) or Mark(document.path), f"sim.{name}: {text}"))

    values = {name: types[parameter["kind"]](parameter["default"]) for name, parameter in table.items()}
    for name, found in given.items():
        parameter = table.get(name)
        if parameter is None:
            problem(
                name,
                f"{spec['name']} has no such parameter{_near(name, ('sim', name), known)}",
                document.tree.keys,
            )
            continue
        low, high, kind = parameter["low"], parameter["high"], parameter["kind"]
        needs = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kind]
        needs += "" if kind == "bool" else f" from {low:g} to {high:g}"
        value: Any = _whole(found) if kind == "int" else found
        fits = isinstance(value, bool) == (kind == "bool") and isinstance(value, int | types[kind])
        if not fits or not low <= value <= high:
            problem(name, f"found {_show(value)}; needs {needs} ({parameter['help']})", document.tree.values)
            continue
        values[name] = types[kind](value)
    if problems.problems:
        raise _failure(problems)
    return values


def check_agents(document: Document, spec: Mapping[str, Any]) -> int:
    """Worlds of one producer. Raises ConfigError if the agents of one world do not divide its agents."""
    agents, a_world = document.config.producers.agents, int(spec["agents"])
    if agents % a_world:
        needs = f"needs a multiple of {a_world}, the agents of one world of {spec['name']}"
        raise document.error("producers.agents", f"found {agents}; {needs}")
    return agents // a_world


# ------------------------------------------------------------------------------------------------------------
# Writing


def emit(value: Any) -> str:
    """A value in YAML's flow style, readable by `parse_yaml` and by JSON-minded YAML readers alike."""
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z/.][A-Za-z0-9_./-]*", value) and not parse_yaml(value, "").problems
        return (
            value if plain and parse_yaml(value, "").value == value else json.dumps(value, ensure_ascii=False)
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {emit(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(emit, value)) + "]"
    return json.dumps(value)


def dump_resolved(config: Config, origin: Any = None) -> str:
    """The configuration as YAML with every key. `origin(path) -> str`: a comment beside each value."""
    lines = []

    def line(text: str, path: Path_) -> None:
        lines.append(text if origin is None else f"{text:<44} # {origin(path)}")

    for section, value in config.model_dump(mode="json").items():
        if not isinstance(value, dict):
            line(f"{section}: {emit(value)}", (section,))
            continue
        lines.append(f"{section}:")
        for key, item in value.items():
            line(f"  {key}: {emit(item)}", (section, key))
    return "\n".join(lines) + "\n"


def load_resolved(path: str | os.PathLike[str]) -> Config:
    """Reads what `dump_resolved` wrote, for the processes of a run. Raises ConfigError or Unreadable."""
    return read(path).config


def markdown() -> str:
    """The reference of all keys, for docs/configuration.md."""
    whole = schema()
    defs = whole["$defs"]
    defaults = Config.model_construct(sim=Sim(name="-")).model_dump(mode="json")
    lines: list[str] = []

    def table(title: str, doc: str, properties: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        lines.extend(
            [f"### `{title}`", "", doc, "", "| key | default | needs | meaning |", "|---|---|---|---|"]
        )
        for name, node in properties.items():
            required = "default" not in node and values.get(name, "-") == "-"
            default = "required" if required else f"`{emit(values[name])}`"
            text = f"| `{name}` | {default} | {describe(node)} | {node['description']} |"
            lines.append(text)
        lines.append("")

    top = {name: node for name, node in whole["properties"].items() if not _properties(node, defs)}
    table("(top level)", "Keys outside any section.", top, defaults)
    for name, node in whole["properties"].items():
        if name not in top:
            definition = defs[node["$ref"].rsplit("/", 1)[1]]
            table(name, definition["description"], definition["properties"], defaults[name])
    for name in ("Reward", "Schedule"):
        blank = (
            {"start": "-", "end": "-", "kind": "linear", "steps": None}
            if name == "Schedule"
            else Reward().model_dump()
        )
        title = {"Reward": "learner.reward", "Schedule": "learner.learning_rate, learner.entropy_coef"}[name]
        table(title, defs[name]["description"], defs[name]["properties"], blank)
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    writers = {"--docs": markdown, "--schema": lambda: json.dumps(schema(), indent=2) + "\n"}
    if len(arguments) != 1 or arguments[0] not in writers:
        print(f"usage: python config.py {' | '.join(writers)}", file=sys.stderr)
        return 2
    sys.stdout.write(writers[arguments[0]]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
