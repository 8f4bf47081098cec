"""What no single key can know: values that depend on others or the machine, keys that contradict."""

from __future__ import annotations

import math

from config.sections import Config, Schedule

HUNG_SECONDS = 60.0
HUNG_COMPILING_SECONDS = 300.0

AVERAGED = ("decoupled", "tis", "mis", "none")  # corrections whose proximal policy may be an average
PROXIMAL = (*AVERAGED, "impact")  # corrections that need a pass at batch start
NATIVE = ("vtrace", "ppo", "tis", "none")  # corrections that consumers/loss.c knows
# Of `policy.preset`, by what it puts in the place of defaults.
PRESETS: dict[str, dict[str, object]] = {
    "none": {},
    "full": {
        "channels": 128,
        "embedding": 32,
        "hidden": (512,),
        "recurrent": "lstm",
        "recurrent_width": 512,
        "layer_norm": True,
    },
    "small": {
        "channels": 32,
        "embedding": 24,
        "hidden": (128,),
        "recurrent": "mingru",
        "recurrent_width": 128,
        "layer_norm": True,
    },
}


def conflicts(config: Config) -> tuple[list[tuple[str, str]], list[str]]:
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

    learners = config.learner.count
    need(
        producers % learners == 0,
        "learner.count",
        f"every learner has equally many producers, but {producers} cannot be divided by {learners}; needs a "
        f"divisor of {producers} (producers.count)",
    )
    need(
        batch % learners == 0,
        "learner.batch_slots",
        f"every learner has an equal part of a batch, but {batch} slots cannot be divided by {learners} "
        f"(learner.count); needs a multiple of {learners}",
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
    need(
        least >= learners or producers < learners,
        "supervisor.min_producers",
        f"{least} producers for {learners} learners (learner.count), of which each needs one; needs "
        f"{learners} or more",
    )
    if room >= needed and learners <= least <= producers:
        fewest = least // learners * learners  # equally many for each
        need(
            fewest * slots >= batch + fewest,
            "supervisor.min_producers",
            f"{fewest} producers x {slots} slots = {fewest * slots} slots, but learner.batch_slots + "
            f"min_producers = {batch + fewest} are needed; needs {_least_producers(config)} or more",
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
    oldest, max_lag = math.ceil(room / batch) - 1, config.learner.max_lag
    if max_lag is not None and max_lag < oldest and config.ring.full != "drop_oldest":
        warnings.append(
            f"learner.max_lag {max_lag}: the {room} slots of full rings are up to {oldest} versions old, so "
            f"a learner slower than its producers may come to train on nothing; needs fewer ring.slots, or "
            f"ring.full: drop_oldest"
        )

    need(
        config.learner.targets == "batch" or config.learner.epochs == 1,
        "learner.targets",
        f"minibatch takes targets from the loss's own forward, so it needs learner.epochs: 1, found "
        f"{config.learner.epochs}",
    )
    need(
        config.learner.targets == "batch" or config.learner.correction not in PROXIMAL,
        "learner.targets",
        f"minibatch has no policy from before the update, which correction {config.learner.correction} "
        "needs; needs batch",
    )
    need(
        config.learner.loss != "native" or config.learner.correction in NATIVE,
        "learner.loss",
        f"native has no form of correction {config.learner.correction}; needs torch or auto",
    )
    need(
        config.learner.loss != "native" or config.learner.proximal == "batch",
        "learner.loss",
        f"native has no form of learner.proximal: {config.learner.proximal}; needs torch or auto",
    )
    need(
        config.learner.proximal == "batch" or config.learner.correction in AVERAGED,
        "learner.proximal",
        f"{config.learner.proximal} belongs to the corrections {', '.join(AVERAGED)}, but the correction is "
        f"{config.learner.correction}; needs batch",
    )
    need(
        config.learner.targets == "batch" or not config.learner.ess_learning_rate,
        "learner.ess_learning_rate",
        "takes the ratios of the policy at batch start, which targets: minibatch lacks; needs false",
    )
    part = batch // learners
    segments = part * config.producers.agents
    need(
        segments % config.learner.minibatches == 0,
        "learner.minibatches",
        f"{part} slots x {config.producers.agents} agents = {segments} segments of {horizon} steps"
        f"{' for each learner' if learners > 1 else ''} cannot be divided by {config.learner.minibatches}",
    )
    minibatch, parts = segments // config.learner.minibatches, config.learner.parts
    need(
        segments % config.learner.minibatches != 0 or minibatch % parts == 0,
        "learner.minibatch_parts",
        f"a minibatch of {minibatch} segments of {horizon} steps cannot be divided by {parts}",
    )
    need(
        config.learner.burn_in == 0 or config.policy.recurrent != "none" or config.policy.module != "",
        "learner.burn_in",
        "warms up the state of a recurrent policy, but policy.recurrent is none; needs 0",
    )
    need(
        config.learner.burn_in < horizon,
        "learner.burn_in",
        f"{config.learner.burn_in} of the {horizon} steps of a segment (rollout.horizon) would leave none to "
        f"train on; needs {horizon - 1} or less",
    )
    need(
        config.learner.c_clip <= config.learner.rho_clip,
        "learner.c_clip",
        f"found {config.learner.c_clip:g}; needs {config.learner.rho_clip:g} (learner.rho_clip) or less",
    )
    need(
        config.policy.recurrent == "none" or not config.learner.compile,
        "learner.compile",
        f"a recurrent policy ({config.policy.recurrent}) would be compiled step by step, for minutes; "
        "needs false",
    )
    if config.policy.placement == "server":
        need(
            config.ring.full == "block",
            "ring.full",
            "an inference server writes into slots alone, and a segment that is dropped has none; needs "
            "block with policy.placement: server",
        )
        need(
            producers % config.server.count == 0,
            "server.count",
            f"every server acts for equally many producers, but {producers} cannot be divided by "
            f"{config.server.count}; needs a divisor of {producers} (producers.count)",
        )
    if config.policy.module:
        need(
            config.policy.placement == "server",
            "policy.placement",
            "a producer runs no torch module (policy.module); needs server or auto",
        )
        for key, is_set in (
            ("policy.normalize_obs", config.policy.normalize_obs),
            ("learner.normalize_value", config.learner.normalize_value),
        ):
            need(not is_set, key, "is for described networks: a policy.module does this itself; needs false")
    archive = config.archive
    need(
        archive.rings == "all" or max(archive.rings) < producers,
        "archive.rings",
        f"{producers} producers have the rings 0 to {producers - 1}",
    )
    need(
        archive.total_bytes >= 2 * archive.shard_bytes,
        "archive.total_bytes",
        f"{archive.total_bytes} bytes; needs two shards (archive.shard_bytes) or more: one is being written",
    )
    for key in ("learning_rate", "entropy_coef"):
        schedule = getattr(config.learner, key)
        need(
            not isinstance(schedule, Schedule) or schedule.steps is not None,
            f"learner.{key}",
            "a schedule needs its length; give it steps, or give stop.steps",
        )
    return wrong, warnings


def fewest_by_default(config: Config, producers: int) -> int:
    """`supervisor.min_producers: auto` of so many."""
    return producers if config.exact else min(producers, _least_producers(config))


def _least_producers(config: Config) -> int:
    """So many that every learner's rings hold its part of a batch while one slot of each is written."""
    learners = config.learner.count
    return learners * math.ceil(config.learner.batch_slots / learners / (config.ring.slots - 1))


def resolve(config: Config, name: str, cores: int) -> Config:
    """Fills in what depends on other keys or on the machine, so that every process reads the same values."""
    producers = cores if config.producers.count == "auto" else int(config.producers.count)
    least = config.supervisor.min_producers
    if least == "auto":
        least = fewest_by_default(config, producers)
    pickup = config.weights.pickup
    if pickup == "auto":
        pickup = "slot" if config.exact else "step"
    learner: dict[str, object] = {
        key: schedule.model_copy(update={"steps": config.stop.steps})
        for key in ("learning_rate", "entropy_coef")
        if isinstance(schedule := getattr(config.learner, key), Schedule) and schedule.steps is None
    }
    if config.exact and config.learner.threads == "auto":
        # Here and not in the learner: a container's quota is no affinity, and torch would not see it.
        learner["threads"] = max(1, cores // config.learner.count)
    hung = config.supervisor.hung_seconds
    if hung == "auto":
        hung = HUNG_COMPILING_SECONDS if config.learner.compile else HUNG_SECONDS
    given = config.policy.model_fields_set
    preset = {key: value for key, value in PRESETS[config.policy.preset].items() if key not in given}
    placement = config.policy.placement
    if placement == "auto":
        placement = "server" if config.policy.module else "producer"
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"name": config.run.name or name}),
            "producers": config.producers.model_copy(update={"count": producers}),
            "supervisor": config.supervisor.model_copy(update={"min_producers": least, "hung_seconds": hung}),
            "weights": config.weights.model_copy(update={"pickup": pickup}),
            "policy": config.policy.model_copy(update={**preset, "placement": placement}),
            "learner": config.learner.model_copy(update=learner),
        }
    )
