"""The audits: always on, they check that what a learner trains on is what it takes it for. They change no
result.

label      stored log-probabilities are those of the weights that the steps are labelled with
ratio      w = pi/mu is 1 in the mean, as it must be for any pi that has not been trained on the steps
target     targets and advantages are the sums that define them
precision  bfloat16 leaves the log-probabilities about as they are

docs/metrics.md has their limits; what an alarm usually means is in consumers/causes.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consumers.batch import Batch, Pieces
from consumers.corrections import MAX_LOG_RATIO
from consumers.modules import make
from consumers.objective import View
from consumers.sums import FORMS, Segment, summed
from producers.footprint import kept_at_most
from producers.program import Program

AUDITED_STEPS = 256  # at each look at the labels, and two segments at least
LOOKS_APART = 16384  # steps: what a look costs hardly depends on the batch, so not every small one gets one
GAP_EVERY = 8  # looks: bf16 is compared with float32
TARGETS_EVERY = 100  # versions: one segment is summed up
POOLED_BATCHES = 50  # make one judgement of the mean ratio
TOLERANCE_A_HEAD, TOLERANCE_A_LOGIT = 2e-4, 1e-5  # between log-probabilities of actor and learner, in float32
LABEL_LIMIT, LABEL_MARGIN = 1e-3, 3.0  # the limit is the larger of the first and so many tolerances
RATIO_LIMIT, RATIO_ERRORS = 0.01, 6.0  # the limit is so many standard errors above the first
UNSEEN_RATIO = 10.0  # times the largest seen: a ratio that the sample may have missed
LEAST_ESS = 0.1  # below it the mean says nothing
TARGET_LIMIT = 1e-4  # of the size of what is summed up: float32 errs by some 1e-7 times the root of the steps
PRECISION_LIMIT = 4e-2  # mean |bf16 - float32|; measured on healthy networks: mean 3e-3, largest 4e-2


class Alarm(NamedTuple):
    """An audit found more than its limit."""

    audit: str
    found: float
    limit: float


def label_limit(heads: int, scale: float) -> float:
    """What log-probabilities of actor and learner may differ by; `scale` as in `logit_scale`."""
    return max(LABEL_LIMIT, LABEL_MARGIN * (TOLERANCE_A_HEAD * heads + TOLERANCE_A_LOGIT * scale))


def logit_scale(logits: Tensor, log_std: Tensor | None, action: Tensor) -> float:
    """How large the numbers are that a log-probability is made of: the largest |logit|; of continuous
    actions the largest |mean|, by what an error of it does: that grows with the distance of the action and
    with a small deviation."""
    largest = float(logits.abs().max())
    if log_std is None:
        return largest
    std = log_std.exp().clamp(min=torch.finfo(torch.float32).tiny)  # 0 where a policy has collapsed
    furthest = float(((action - logits) / std).abs().max())
    return max(1.0, largest) * max(1.0, furthest) / min(1.0, float(std.min()))


class Pool:
    """The importance ratios w of several batches, before training on them.

    Given the steps before it, the mean of w is 1 for each step, so that steps are not correlated; but what is
    wrong with one, be it by rounding, is wrong with its neighbours. So the standard error is that of the
    segments' sums, and holds either way. A sample that has missed a rare and large ratio has too small a mean
    and too small an error: so one more step is counted into it, whose ratio is UNSEEN_RATIO times the largest
    seen; and of discrete actions it is at least that of telling the action taken from all others. Its
    probabilities m and p under both policies are known, so the ratio of the others too, (1 - p) / (1 - m),
    and the variance between the two, (p - m)^2 / (m (1 - m)) = (w - 1)^2 m / (1 - m)."""

    def __init__(self) -> None:
        self.batches = self.steps = 0
        self._largest = 0.0  # w
        self._sums = np.zeros(7)  # over w - 1 of steps and segments, as in `add`

    def add(self, log_ratio: Tensor, kept: Tensor | None, chance: Tensor | None = None) -> None:
        """log w [T, A] of one batch, of the steps `kept` (None: all); `chance`: where actions are discrete,
        log-probabilities [T, A] of what was done under the policy that did it."""
        apart = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expm1_()
        counts = apart.new_full(apart.shape[1:], len(apart)) if kept is None else kept.sum(0).float()
        if kept is not None:
            apart = torch.where(kept, apart, 0.0)
        by_segment, flat = apart.sum(0), apart.flatten()
        unseen = counts.new_zeros(())
        if chance is not None:
            odds = chance.exp() / (-chance.expm1()).clamp(min=torch.finfo(torch.float32).eps)
            odds = odds if kept is None else torch.where(kept, odds, 0.0)
            unseen = (odds.flatten() * flat).dot(flat)
        found = torch.stack(
            [
                counts.sum(), by_segment.sum(), flat.dot(flat), by_segment.dot(by_segment),
                by_segment.dot(counts), counts.dot(counts), unseen, flat.max(),
            ]
        ).tolist()  # fmt: skip
        self.batches += 1
        self.steps += int(found[0])
        self._sums += found[:7]
        self._largest = max(self._largest, 1.0 + found[7])

    def judge(self) -> tuple[float, float]:
        """The mean of w, and the limit on its distance from 1: NaN where nothing can be said."""
        steps, total, squares, by_segment, crossed, lengths, unseen = self._sums.tolist()
        if steps == 0:
            return math.nan, math.nan
        mean = total / steps  # of w - 1
        square = 1.0 + 2.0 * mean + squares / steps  # the mean of w^2; all w may be 0 in float32
        ess = (1.0 + mean) ** 2 / square if square > 0.0 else 0.0
        spread = max(0.0, by_segment - 2.0 * mean * crossed + mean * mean * lengths)
        error = math.sqrt(max(spread, unseen) + (UNSEEN_RATIO * self._largest) ** 2) / steps
        limit = RATIO_LIMIT + RATIO_ERRORS * error
        return 1.0 + mean, math.nan if ess < LEAST_ESS else limit


class Audits:
    """The audits of one learner, and the weights that it had last. `figures` and `alarms` are those of the
    batch that `begin` was called with."""

    def __init__(
        self, settings: Any, program: Program, *, seed: int, device: torch.device, bf16: bool, versions: int
    ):
        """`settings`: the `learner` section. `versions`: of how many the weights are kept."""
        self.figures: dict[str, float] = {}
        self.alarms: list[Alarm] = []
        self._settings, self._program, self._seed, self._device = settings, program, seed, device
        self._bf16 = bf16
        self._model = make(program).to(device).requires_grad_(False)
        self._loaded = -1  # version whose weights the model has
        self._most = kept_at_most(versions, program.count)
        self._kept: dict[int, Tensor] = {}  # by version
        self._pool = Pool()
        self._looks = 0  # at labels
        self._passed = LOOKS_APART  # steps since the last: the first batch gets one

    def begin(self, batch: Batch, version: int, flat: Tensor) -> Tensor:
        """Audits the labels of a batch before the learner of `version` trains on it; `flat` its weights,
        float32 [program.count]. Returns a copy of them, not to be changed."""
        self.alarms = []
        names = ("audit_label_error", "audit_label_tolerance", "audit_ratio_mean", "audit_ratio_limit",
                 "audit_target_error", "precision_gap")  # fmt: skip
        self.figures = dict.fromkeys(names, math.nan)
        self.figures |= dict.fromkeys(("audit_label_steps", "audit_label_unaudited"), 0)
        self._kept[version] = flat.detach().clone()
        if self._loaded == version:
            self._loaded = -1
        while len(self._kept) > self._most:
            del self._kept[min(self._kept)]
        self._passed += batch.horizon * batch.segments
        if self._passed >= LOOKS_APART:
            self._audit_labels(batch, version)
            self._looks += 1
            if self.figures["audit_label_steps"]:  # else nobody has these weights: behind a restart
                self._passed = 0
        return self._kept[version]

    def ratios(self, log_prob: Tensor, behaviour: Tensor, kept: Tensor | None) -> None:
        """Log-probabilities [T, m] of steps of the batch under the weights at its start and under those that
        acted, of the steps `kept` (None: all)."""
        discrete = self._program.log_std is None
        self._pool.add(log_prob - behaviour, kept, behaviour if discrete else None)
        if self._pool.batches == POOLED_BATCHES:
            mean, limit = self._pool.judge()
            self._pool = Pool()
            self.figures |= {"audit_ratio_mean": mean, "audit_ratio_limit": limit}
            self._judge("ratio", abs(mean - 1.0), limit)

    @staticmethod
    def sums_up(version: int) -> bool:
        """Whether the learner of `version` is to call `targets`."""
        return version % TARGETS_EVERY == 0

    def targets(self, batch: Batch, version: int, view: View, values: Tensor, target: Tensor) -> None:
        """Sums up one segment of the estimates `view` of the batch; `values` [T+1, A] and `target` [T, A] are
        those of it in the units of the rewards."""
        drawn = np.random.default_rng((self._seed, version))
        ends = (batch.terminated | batch.truncated).any(0).nonzero()[:, 0]
        # Every other time one in which an episode ends, which is where most can go wrong.
        if version // TARGETS_EVERY % 2 == 0 and len(ends):
            chosen = int(ends[drawn.integers(len(ends))])
        else:
            chosen = int(drawn.integers(batch.segments))

        def column(x: Tensor) -> NDArray[Any]:
            return x[:, chosen].double().cpu().numpy()

        terminated, truncated = column(batch.terminated) > 0, column(batch.truncated) > 0
        valid = np.ones(batch.horizon, bool) if batch.valid is None else column(batch.valid) > 0
        form = FORMS[self._settings.correction]
        log_ratio = column((view.proximal if form.of_target else view.log_prob) - batch.behaviour)
        segment = Segment(column(values), column(batch.rewards), terminated, truncated, valid, log_ratio)
        if not (np.isfinite(segment.values).all() and np.isfinite(segment.rewards[valid]).all()):
            return  # the steps made of them are skipped, and told of
        sums = summed(segment, form, self._settings)
        apart = np.abs([column(target) - sums.targets, column(view.advantage) - sums.advantages])
        error = float(np.nan_to_num(apart, nan=np.inf).max() / max(sums.size, 1e-6))
        self.figures["audit_target_error"] = error
        self._judge("target", error, TARGET_LIMIT)

    def _audit_labels(self, batch: Batch, version: int) -> None:
        gaps: list[Tensor] = []
        found = [self._compare(batch, part, version, gaps) for part in _drawn(batch, self._looks)]
        error, scale = max(one.error for one in found), max(one.scale for one in found)
        steps = sum(one.steps for one in found)
        self.figures["audit_label_steps"] = steps
        self.figures["audit_label_unaudited"] = sum(one.unaudited for one in found)
        if steps:
            limit = label_limit(self._program.heads, scale)
            self.figures |= {"audit_label_error": error, "audit_label_tolerance": limit}
            self._judge("label", error, limit)
        if gaps:
            self.figures["precision_gap"] = gap = float(torch.cat(gaps).mean())
            self._judge("precision", gap, PRECISION_LIMIT)

    @torch.no_grad()
    def _compare(self, batch: Batch, part: Pieces, version: int, gaps: list[Tensor]) -> _Compared:
        """The segments of `part`, acted by the same weights at each step; now and then |bf16 - float32| of
        theirs is added to `gaps`."""
        action, behaviour = part.take(batch.action), part.take(batch.behaviour)
        mask = None if batch.mask is None else part.take(batch.mask)
        kept = None if batch.kept is None else part.take(batch.kept)
        shape = (batch.horizon, part.size, *batch.observations[0].shape[2:])
        dtype = self._model.obs_dtype(torch.float32)
        obs = batch.observe(part.runs, batch.horizon, torch.empty(shape, dtype=dtype, device=self._device))
        state, resets = batch.memory(part, batch.horizon) or (None, None)
        error = scale = 0.0
        steps = unaudited = 0
        for rows, acted in _stretches(batch.acting(part.blocks[:1])[:, 0].tolist()):
            count = _count(rows, kept, part.size)
            if acted > version and count:  # nobody can have acted with those
                return _Compared(math.inf, scale, steps + count, unaudited)
            if acted not in self._kept:
                if state is not None:  # and what it was behind these steps cannot be told
                    rest = _count(slice(rows.start, batch.horizon), kept, part.size)
                    return _Compared(error, scale, steps, unaudited + rest)
                unaudited += count
                continue
            self._load(acted)
            chosen, allowed = action[rows], None if mask is None else mask[rows]
            before, reset = state, None if resets is None else resets[rows]
            logits, state = self._run(obs[rows], before, reset)
            exact = self._model.log_prob(logits, chosen, allowed)
            apart = (exact - behaviour[rows]).abs().nan_to_num_(nan=math.inf, posinf=math.inf)
            if kept is not None:
                apart = torch.where(kept[rows], apart, 0.0)
            error = max(error, float(apart.max()))
            if count:  # what the others hold must not widen the limit
                ours = (logits, chosen) if kept is None else (logits[kept[rows]], chosen[kept[rows]])
                scale = max(scale, logit_scale(ours[0], self._log_std, ours[1]))
            steps += count
            if self._bf16 and self._looks % GAP_EVERY == 0:
                with torch.autocast(self._device.type, torch.bfloat16):
                    rounded, _ = self._run(obs[rows], before, reset)
                gap = (self._model.log_prob(rounded, chosen, allowed) - exact).abs()
                gaps.append(gap.flatten() if kept is None else gap[kept[rows]])
        return _Compared(error, scale, steps, unaudited)

    def _run(self, obs: Tensor, state: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits, and the recurrent state after the rows of `obs`, where there is one."""
        if state is None:
            return self._model(obs)[0], None
        logits, _, state = self._model.unroll(obs, state, reset)
        return logits, state

    def _load(self, version: int) -> None:
        if self._loaded != version:
            self._model.load_flat(self._kept[version])
            self._loaded = version

    @property
    def _log_std(self) -> Tensor | None:
        weight = self._program.log_std
        if weight is None:
            return None
        flat = self._model.flat_weights()
        assert isinstance(flat, Tensor)
        return flat[weight.offset : weight.offset + weight.count]

    def _judge(self, audit: str, found: float, limit: float) -> None:
        """An alarm, unless there is no limit (NaN)."""
        if found > limit:
            self.alarms.append(Alarm(audit, found, limit))


class _Compared(NamedTuple):
    """Stored log-probabilities with those of the weights that they are labelled with."""

    error: float  # the largest difference
    scale: float  # as in `logit_scale`
    steps: int
    unaudited: int  # steps whose weights are not at hand


def _drawn(batch: Batch, look: int) -> Iterator[Pieces]:
    """About AUDITED_STEPS steps of a batch, in segments of at most as many groups as that takes; others at
    each look, and all of them in turn."""
    wanted = max(2, -(-AUDITED_STEPS // batch.horizon))
    length = min(wanted, batch.group)
    groups, blocks = batch.segments // batch.group, -(-batch.group // length)
    count = min(-(-wanted // length), groups * blocks)
    for place in range(look * count, look * count + count):
        block, group = place // groups % blocks, place % groups
        first = group * batch.group + min(block * length, batch.group - length)
        segments = torch.arange(first, first + length, device=batch.device)
        yield Pieces(segments, 1, [(first, first + length)])


def _stretches(versions: list[int]) -> Iterator[tuple[slice, int]]:
    """The steps, cut where the version changes."""
    start = 0
    for version, steps in itertools.groupby(versions):
        stop = start + sum(1 for _ in steps)
        yield slice(start, stop), version
        start = stop


def _count(rows: slice, kept: Tensor | None, segments: int) -> int:
    """Steps of so many segments in the rows, of those that are kept."""
    return (rows.stop - rows.start) * segments if kept is None else int(kept[rows].sum())
