"""Action distributions: log-probability, entropy and choice of discrete heads from logits, and of Gaussian
ones from their means.

Pure functions of tensors, in float32 whatever autocast says. `logits` [..., sum(choices)] holds the heads one
after another; `mask` of the same shape is true where a choice is allowed, None where all are, and acts by
selection: a masked choice has probability exactly 0 and gets no gradient, and so has one whose logit is
-infinity already. They are fastest when the last dimension is outermost in memory, as PolicyModel returns it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def _total(heads: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, heads)


def log_prob(logits: Tensor, actions: Tensor, choices: Sequence[int], mask: Tensor | None = None) -> Tensor:
    """log π(a), summed over heads: [...] float32. `actions` [..., heads] int64."""
    heads = _log_softmax(logits, choices, mask)
    return _total(_chosen(head, actions[..., index]) for index, head in enumerate(heads))


def entropy(logits: Tensor, choices: Sequence[int], mask: Tensor | None = None) -> Tensor:
    """Entropy in nats, summed over heads: [...] float32."""
    return _total(_entropy(head) for head in _log_softmax(logits, choices, mask))


def log_prob_entropy(
    logits: Tensor, actions: Tensor, choices: Sequence[int], mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`log_prob` and `entropy` from one softmax."""
    heads = list(_log_softmax(logits, choices, mask))
    chosen = _total(_chosen(head, actions[..., index]) for index, head in enumerate(heads))
    return chosen, _total(_entropy(head) for head in heads)


def mode(logits: Tensor, choices: Sequence[int], mask: Tensor | None = None) -> Tensor:
    """The likeliest choice of each head: [..., heads] int64."""
    return torch.stack([head.argmax(0) for head in _log_softmax(logits, choices, mask)], -1)


def sample(
    logits: Tensor,
    choices: Sequence[int],
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One action of each head, by inverse CDF: [..., heads] int64."""
    actions = []
    for head in _log_softmax(logits, choices, mask):
        running = head.exp().cumsum(0)
        uniform = torch.rand(running.shape[1:], generator=generator, device=running.device)
        threshold = uniform * running[-1]  # below the total, as uniform < 1
        actions.append((running <= threshold).sum(0))
    return torch.stack(actions, -1)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """log π(a) of independent normal distributions, summed over heads: [...] float32. `mean`, `actions`
    [..., heads], `log_std` [heads]."""
    z = (actions - mean.float()) / log_std.exp()
    return (-0.5 * z * z - log_std - _HALF_LOG_2PI).sum(-1)


def gaussian_entropy(mean: Tensor, log_std: Tensor) -> Tensor:
    """Entropy in nats, summed over heads, the same everywhere: [...] float32."""
    return (log_std + (0.5 + _HALF_LOG_2PI)).sum().expand(mean.shape[:-1])


@torch.no_grad()
def gaussian_sample(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One action of each head, not clipped: [..., heads] float32."""
    normal = torch.randn(mean.shape, generator=generator, device=mean.device)
    return mean.float() + log_std.exp() * normal


def _log_softmax(logits: Tensor, choices: Sequence[int], mask: Tensor | None) -> Iterator[Tensor]:
    """Each head's log-probabilities [choices, ...]."""
    x = logits.movedim(-1, 0).float()
    if mask is not None:
        x = torch.where(mask.movedim(-1, 0), x, -torch.inf)
    for head in x.split(list(choices)):
        yield torch.log_softmax(head, 0)


def _chosen(log_probs: Tensor, action: Tensor) -> Tensor:
    return log_probs.gather(0, action.unsqueeze(0)).squeeze(0)


def _entropy(log_probs: Tensor) -> Tensor:
    possible = log_probs.masked_fill(log_probs == -torch.inf, 0.0)  # 0 · log 0 = 0, also in the gradient
    return -(log_probs.exp() * possible).sum(0)
