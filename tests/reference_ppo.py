"""An independent PPO in one process, for comparison with `mode: sync` bit for bit.

Written from the published algorithm and from docs/, not from the learner: it shares with it the
simulators, the C policy that acts and the torch module of the network, and nothing of batches,
corrections, losses or the loop. What the last bit depends on is stated where it is.
"""

import numpy as np
import torch

from consumers.models import PolicyModel
from producers.c_policy import CPolicy
from producers.program import build
from sims.loader import load, world_seeds

MASK64 = 2**64 - 1


def splitmix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


class Actors:
    """All agents of the run, stepped in lock step by the C policy."""

    def __init__(self, sim, parameters, agents, seed, program):
        self.worlds = load(sim).create(agents, parameters, world_seeds(seed, agents))
        self.policy = CPolicy(program, agents)
        self.noise_key = splitmix(seed ^ 0x6E6F697365)  # "noise": apart from the worlds' seeds
        self.steps = 0
        self.obs = self.worlds.reset().copy()

    def segment(self, horizon):
        """`horizon` steps of all agents: dict of [T, A, ...] arrays, obs with T+1 rows."""
        rows = {
            name: [] for name in ("obs", "action", "logprob", "reward", "terminated", "truncated", "valid")
        }
        rows["obs"].append(self.obs)
        for _ in range(horizon):
            action, logprob = self.policy.act(
                self.obs, None, key=self.noise_key, first_agent=0, step=self.steps
            )
            self.worlds.step(action)
            self.steps += 1
            self.obs = self.worlds.obs.copy()
            w = self.worlds
            for name, value in zip(
                rows, (self.obs, action, logprob, w.rewards, w.terminated, w.truncated, w.valid), strict=True
            ):
                rows[name].append(value.copy())
        return {name: np.stack(x) for name, x in rows.items()}


def blocks_of(size):
    """A minibatch of `size` segments is drawn as at most four runs of neighbours of equal length."""
    return max(n for n in (1, 2, 3, 4) if size % n == 0)


def gae(rewards, values, terminated, truncated, valid, gamma, lambda_):
    """Advantages [T, A]; values [T+1, A]. An end stops the sum, a termination also has no successor, a
    step that is not valid only resets."""
    advantages = torch.zeros_like(rewards)
    later = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        # Fused multiply-adds, as the learner has them: the last bit depends on it.
        discount = gamma * ~terminated[t]
        delta = torch.addcmul(rewards[t], discount, values[t + 1]) - values[t]
        delta = torch.where(valid[t], delta, torch.zeros_like(later))
        goes_on = valid[t] & ~terminated[t] & ~truncated[t]
        later = torch.addcmul(delta, gamma * lambda_ * goes_on, later)
        advantages[t] = later
    return advantages


def train(s, versions):
    """Weights after each of `versions` updates, as state dicts; `s` a dict of settings named as in a run
    file."""
    simulator = load(s["sim"])
    shape = simulator.shape(s["parameters"])
    spec = {
        "obs": {"dtype": shape.obs_dtype.name, "shape": list(shape.obs_shape)},
        "heads": [{"choices": head.choices} for head in shape.heads],
        "mask": False,
    }
    program = build({"hidden": s["hidden"], "activation": s["activation"]}, spec)
    model = PolicyModel(program, seed=s["seed"])
    # All weights as one vector, which is where the module keeps them: at its end the last bit depends on it.
    whole = torch.nn.Parameter(model.flat_weights())
    optimizer = torch.optim.AdamW(
        [whole], lr=s["learning_rate"], betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True
    )
    actors = Actors(s["sim"], s["parameters"], s["agents"], s["seed"], program)
    generator = torch.Generator().manual_seed(s["seed"])
    history = []
    for _ in range(versions):
        actors.policy.load(model.flat_weights().numpy())
        slots = [actors.segment(s["horizon"]) for _ in range(s["slots"])]
        update(model, optimizer, generator, slots, s)
        history.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return history


def update(model, optimizer, generator, slots, s):
    def joined(name):  # slots stand side by side along the agents
        return torch.from_numpy(np.concatenate([slot[name] for slot in slots], 1))

    horizon = s["horizon"]
    obs, action, behaviour, reward = (
        joined("obs"),
        joined("action").long(),
        joined("logprob"),
        joined("reward"),
    )
    terminated, truncated, valid = (joined(name).bool() for name in ("terminated", "truncated", "valid"))
    segments = reward.shape[1]
    size = segments // s["minibatches"]

    with (
        torch.no_grad()
    ):  # in pieces as large as a minibatch: matrix products of another size round otherwise
        values = torch.cat([model(piece.contiguous())[1] for piece in obs.split(size, 1)], 1)
        advantages = gae(reward, values, terminated, truncated, valid, s["gamma"], s["gae_lambda"])
        returns = values[:-1] + advantages

    for _ in range(s["epochs"]):
        blocks = blocks_of(size)
        length = size // blocks
        order = torch.randperm(segments // length, generator=generator)
        for chosen in order.view(s["minibatches"], blocks):
            index = torch.cat(
                [torch.arange(b * length, (b + 1) * length) for b in chosen.sort().values.tolist()]
            )
            kept = valid[:, index]
            n = kept.sum()

            def mean(x, kept=kept, n=n):
                return torch.where(kept, x, 0.0).sum() / n

            logits, value = model(obs[:horizon, index])
            log_policy = torch.log_softmax(logits.movedim(-1, 0), 0)
            log_prob = log_policy.gather(0, action[:, index].movedim(-1, 0)).squeeze(0)
            entropy = -(log_policy.exp() * log_policy).sum(0)

            a = advantages[:, index]
            a = torch.where(kept, a - mean(a), 0.0)
            a = a / ((a.square().sum() / n).sqrt() + 1e-8)

            ratio = (log_prob - behaviour[:, index]).exp()
            clipped = ratio.clamp(1 - s["clip"], 1 + s["clip"])
            policy_loss = mean(-torch.minimum(ratio * a, clipped * a))
            value_loss = mean(0.5 * (value - returns[:, index]).square())
            loss = policy_loss + s["value_coef"] * value_loss - s["entropy_coef"] * mean(entropy)
            loss.backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            norm = gradient.norm()
            if norm > s["max_grad_norm"]:
                gradient *= s["max_grad_norm"] / (norm + 1e-6)
            optimizer.param_groups[0]["params"][0].grad = gradient
            optimizer.step()
            model.zero_grad()
