"""The schema of a run file: one frozen model a section, each key with its meaning, unit and default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WithJsonSchema,
)


def whole(value: Any) -> Any:
    """1e6 is a float to YAML and a whole number to everybody else; `true` and "5" are neither."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _size(value: Any) -> Any:
    """64MiB, 2 GB, 4096 -> bytes."""
    if not isinstance(value, str):
        return whole(value)
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
    return None if value == "none" else whole(value)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Natural = Annotated[int, Ge(0), BeforeValidator(whole)]
Positive = Annotated[int, Ge(1), BeforeValidator(whole)]
PositiveNumber = Annotated[float, Gt(0)]
AboveOne = Annotated[float, Gt(1)]
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
    seed: Annotated[int, Ge(0), Le(2**64 - 1), BeforeValidator(whole)] = 1
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

    slots: Annotated[int, Ge(2), Le(65536), BeforeValidator(whole)] = 4
    """Slots of each ring."""
    full: Literal["block", "drop_oldest", "drop_newest"] = "block"
    """What a producer does when its ring is full. Dropping needs `staleness.limit: none`."""


class Policy(Section):
    """The network, and who runs it to act."""

    placement: Literal["auto", "producer", "server"] = "auto"
    """Who computes actions: each producer in C, or an inference server for all; `auto`: `server` where a
    `module` is named, else `producer`."""
    module: Annotated[str, Field(pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*)?$")] = ""
    """`package.module:Class` of a torch module of your own, instead of the network that the keys below
    describe; empty: none. See docs/modules.md."""
    preset: Literal["none", "full", "small"] = "none"
    """Sizes for grid-worlds of many agents, in the place of the defaults below; what a run file gives itself
    stays. `full`: channels 128, embedding 32, hidden [512], LSTM of 512, layer_norm. `small`: channels 32,
    embedding 24, hidden [128], MinGRU of 128, layer_norm."""
    encoder: Literal["auto", "mlp", "grid"] = "auto"
    """What the hidden layers read. `mlp`: the observation as numbers. `grid`: its grid by two convolutions,
    its codes by an embedding, both as the simulator describes them, and codes and the rest as numbers.
    `auto`: `grid` where the simulator describes either, else `mlp`."""
    channels: Positive = 128
    """`encoder: grid`: channels of both convolutions."""
    embedding: Positive = 32
    """`encoder: grid`: width of the embedding of each coded byte."""
    hidden: Widths = (128, 128)
    """Widths of the hidden layers; []: none."""
    activation: Literal["relu", "gelu-tanh", "gelu-erf", "tanh", "sigmoid"] = "relu"
    """After each hidden layer."""
    recurrent: Literal["none", "lstm", "mingru"] = "none"
    """Recurrent layer behind the hidden ones: long short-term memory or minimal gated recurrent unit."""
    recurrent_width: Positive = 128
    """Units of the recurrent layer."""
    layer_norm: bool = False
    """Whether a layer normalisation stands before the heads."""
    separate_value: bool = False
    """Whether the value function has layers of its own, the encoder's included."""
    normalize_obs: bool = False
    """Whether observations are normalised by running mean and deviation."""
    obs_scale: PositiveNumber | None = None
    """Factor on raw observations; null: 1/255 for images of uint8, 1/128 for the numbers of `encoder: grid`,
    1 for everything else."""
    obs_offset: float | None = None
    """Added to scaled observations; null: 0."""
    log_std: Annotated[float, Ge(-20), Le(5)] = 0.0
    """Logarithm of the standard deviation that continuous actions begin with; it is trained."""


class Server(Section):
    """The inference server of `policy.placement: server`."""

    count: Positive = 1
    """Server processes; each acts for equally many producers."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: CUDA if there is a GPU, else the CPU."""
    threads: Positive = 1
    """torch threads of each."""
    max_wait_us: Annotated[float, Ge(0)] = 2000.0
    """Microseconds that a question waits at most for those of other producers, to be answered in one batch
    with them."""


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
    """Learner processes; each trains on an equal part of every batch, from producers of its own."""
    threads: Positive | Auto = "auto"
    """torch threads of each learner; `auto`: 1 in `mode: async` on a CPU, else its part of all cores."""
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
    minibatch_parts: Positive | Auto = "auto"
    """Parts in which a minibatch is run, one after another, so that it needs less memory; they change nothing
    but rounding. `auto`: as few as `memory` allows, 1 where that is `auto`."""
    memory: Size | Auto = "auto"
    """Memory that each learner may be estimated to need: of its GPU where it has one, else of its process;
    checked before the start. `auto`: what the machine has."""
    burn_in: Natural = 0
    """First steps of each segment that only warm the recurrent state up: they are in no loss."""
    correction: Literal[
        "vtrace", "vtrace_pg", "puff", "ppo", "decoupled", "tis", "mis", "cispo", "m2po", "impact", "none"
    ] = "vtrace"
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
    proximal: Literal["batch", "ewma"] = "batch"
    """The proximal policy of `correction: decoupled`, `tis`, `mis` and `none`: the one at batch start, or the
    average of the weights over past optimizer steps."""
    proximal_decay: Share = 0.889
    """β of `proximal: ewma`: the weights of n optimizer steps ago count βⁿ."""
    rho_clip: PositiveNumber = 1.0
    """ρ̄ of V-trace (`vtrace`, `vtrace_pg`, `puff`, `impact`): bound on the ratio that weighs a temporal
    difference."""
    c_clip: PositiveNumber = 1.0
    """c̄ of V-trace: bound on the ratio that carries the trace on; at most `rho_clip`."""
    pg_rho_clip: PositiveNumber = 1.0
    """Bound on the ratio that weighs a step's gradient in `correction: vtrace_pg`."""
    decoupled_cap: PositiveNumber = 100.0
    """Bound on the ratio of the policy in training to the one that acted in `correction: decoupled`."""
    tis_cap: PositiveNumber = 2.0
    """Bound on the weight that `correction: tis` gives a step."""
    mis_cap: AboveOne = 2.0
    """`correction: mis` leaves steps out whose weight is above this or below its inverse."""
    mis_veto: Annotated[float, Gt(0), Le(1)] | None = 1e-4
    """`correction: mis` leaves out the whole segment in which a step's weight is below this; null: never."""
    mis_mean: AboveOne | None = None
    """`correction: mis` leaves out the whole segment whose geometric mean of weights is above this or below
    its inverse; null: never."""
    cispo_clip: PositiveNumber = 4.0
    """`correction: cispo` gives a step at most the weight 1 + this."""
    m2po_bound: PositiveNumber = 0.04
    """Bound on the mean squared logarithm of the ratio, above which `correction: m2po` leaves out the steps
    with the largest."""
    impact_rho: PositiveNumber = 2.0
    """Bound on the ratio of the policy that acted to the target network's in `correction: impact`."""
    impact_versions: Positive = 2
    """Versions after which the target network of `correction: impact` is replaced; 1: it is the policy at
    batch start."""
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
    ess_learning_rate: bool = False
    """Whether the learning rate is multiplied by √(effective sample size / steps) of each batch's ratios."""
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
    nonfinite_steps: Positive = 10
    """Optimizer steps in a row whose loss or gradient is not finite, after which the learner goes back to
    the last checkpoint; each is skipped."""
    nonfinite_rollbacks: Positive = 3
    """Such returns without a later checkpoint in between, after which the run gives up."""

    @property
    def parts(self) -> int:
        """Parts of a minibatch; 1 before `auto` has been worked out."""
        return 1 if self.minibatch_parts == "auto" else int(self.minibatch_parts)

    @property
    def anchored(self) -> bool:
        """Whether the learner keeps a second set of weights beside those in training."""
        return self.correction == "impact" or self.proximal == "ewma"


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
    """Newest checkpoints kept; the one with the best score is kept beside them."""
    retry_seconds: PositiveNumber = 30.0
    """Seconds after a failed checkpoint until the next try, if `interval_seconds` is longer."""


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
    port: Annotated[int, Ge(0), Le(65535), BeforeValidator(whole)] = 9108
    """Port of the endpoint; 0: any free one, named in status.json."""
    interval_seconds: PositiveNumber = 5.0
    """Seconds between lines of the plain display."""
    log_bytes: Size = 64 * 1024**2
    """Size at which a log, `events.jsonl` or `metrics.jsonl` is set aside and begun anew."""
    log_files: Positive = 3
    """Files of each that are kept once they were set aside; older ones are deleted."""
    log_level: Literal["debug", "info", "warning"] = "info"
    """Least important messages that reach the terminal and the logs."""


class Sinks(Section):
    """Where the figures of `metrics.jsonl` are sent beside it; see docs/comparing.md."""

    tensorboard: bool = False
    """Whether they are written for TensorBoard, into `tb/` of the run directory."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Whether they are written for Weights & Biases, into `wandb/` of the run directory; `online`: and sent
    to its server."""
    project: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "headrace"
    """Project of Weights & Biases."""
    interval_seconds: PositiveNumber = 5.0
    """Seconds between updates whose figures are sent; those in between are in `metrics.jsonl` only."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that there are, by the names of their keys, which are those of their packages too."""
        there = {"tensorboard": self.tensorboard, "wandb": self.wandb != "off"}
        return tuple(kind for kind, wanted in there.items() if wanted)


class Supervisor(Section):
    """Start, restarts and shutdown."""

    min_producers: Positive | Auto = "auto"
    """Producers without which the run ends; `auto`: the least that fill a batch, all in `sync` and
    `lagged`."""
    start_seconds: PositiveNumber = 120.0
    """Deadline for a process to come up, and for the first version after the start."""
    deadline_seconds: PositiveNumber = 60.0
    """Deadline of a shutdown, evaluation apart."""
    hung_seconds: PositiveNumber | Auto = "auto"
    """A process without a heartbeat for so long is hung: it is killed and restarted. `auto`: 60, with
    `learner.compile` 300, since a compiler gives no heartbeat."""
    stalled_seconds: PositiveNumber = 300.0
    """So is a process that is stepping, acting or training for so long without progress."""
    abort_seconds: PositiveNumber = 2.0
    """Time between the signal that asks a hung process for its stack and the one that kills it."""
    backoff_seconds: PositiveNumber = 0.5
    """Delay before the restart of a process that died without progress; doubles with each such death in a
    row. A process that had made progress restarts at once."""
    backoff_max_seconds: PositiveNumber = 30.0
    """Bound on that delay."""
    max_failures: Positive = 10
    """Deaths without progress within `failure_seconds` after which a process counts as failed."""
    failure_seconds: PositiveNumber = 600.0
    """Span over which deaths without progress are counted."""
    keep_bad_slots: Natural = 4
    """Slots set aside whose contents are kept in the run directory, the newest; 0: none."""


class Archive(Section):
    """Recording of trajectories to files in the run directory, by a process that holds nobody up."""

    enabled: bool = False
    """Whether there is a recorder."""
    fraction: Annotated[float, Gt(0), Le(1)] = 0.01
    """Share of the agents whose trajectories are recorded, all the time; at least one agent."""
    rings: Literal["all"] | Cores = "all"
    """Numbers of the rings, which are those of their producers, that agents are taken from."""
    level: Annotated[int, Ge(1), Le(19), BeforeValidator(whole)] = 1
    """Of zstd: 1 is the fastest."""
    shard_bytes: Size = 1024**3
    """Size of a shard, after compression, at which the next is begun."""
    shard_seconds: PositiveNumber = 600.0
    """Age at which it is begun in any case."""
    total_bytes: Size = 10 * 1024**3
    """Size of all shards at which the oldest is deleted."""
    keep_seconds: PositiveNumber | None = None
    """Age at which a shard is deleted; empty: none is for its age."""
    free_bytes: Size = 1024**3
    """Free space on the disk below which nothing is recorded, so that checkpoints find room."""
    sync_seconds: PositiveNumber = 5.0
    """How long a block waits to be full, and the time between two syncs: so much a power cut takes."""


class Evaluate(Section):
    """Evaluation of the final policy by a run that met its stop condition."""

    episodes: Natural = 128
    """Episodes of each of the two policies (sampled, argmax), rounded up to whole worlds; 0: no
    evaluation."""
    worlds: Positive = 64
    """Worlds played side by side."""
    seconds: PositiveNumber = 120.0
    """Deadline in seconds; what has not ended by then is reported as missing."""


class Watch(Section):
    """Watching the agent play on the live page."""

    enabled: bool | Auto = "auto"
    """Whether a process stands by to play the newest policy for whoever watches; `auto`: where the simulator
    draws text or pictures."""
    worlds: Annotated[int, Ge(1), Le(1000), BeforeValidator(whole)] = 8
    """Worlds to choose from, with seeds that training never uses."""


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
    server: Server = Server()
    """Inference server."""
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
    sinks: Sinks = Sinks()
    """Trackers."""
    archive: Archive = Archive()
    """Recording."""
    evaluate: Evaluate = Evaluate()
    """Evaluation at the end."""
    watch: Watch = Watch()
    """The agent at play."""

    @property
    def exact(self) -> bool:
        """Whether every slot is acted with exactly one version that is known beforehand."""
        return self.mode != "async"

    @property
    def lag_limit(self) -> int | None:
        """The bound on the lag that this mode keeps, in versions; None: none."""
        return self.staleness.exact if self.exact else self.staleness.limit

    @property
    def servers(self) -> int:
        """Number of inference servers."""
        return self.server.count if self.policy.placement == "server" else 0

    @property
    def run_dir(self) -> Path:
        return Path(self.run.dir) / self.run.name


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
