"""A network of a user's own, for tests: what no policy program describes."""

import torch
from torch import nn


class Attentive(nn.Module):
    """Softmax attention over learned slots, in front of a GRU."""

    def __init__(self, spec, settings):
        super().__init__()
        width, self.units = spec["obs"]["shape"][0], settings["recurrent_width"]
        choices = sum(head["choices"] for head in spec["heads"])
        self.keys = nn.Parameter(torch.randn(4, width) * 0.3)
        self.values = nn.Parameter(torch.randn(4, width) * 0.3)
        self.cell = nn.GRUCell(2 * width, self.units)
        self.logits, self.value = nn.Linear(self.units, choices), nn.Linear(self.units, 1)
        nn.init.zeros_(self.logits.weight)

    def initial_state(self, agents):
        return self.keys.new_zeros(agents, self.units)

    def step(self, obs, state):
        x = obs.float()
        read = torch.softmax(x @ self.keys.t(), -1) @ self.values
        state = self.cell(torch.cat([x, read], -1), state)
        return self.logits(state), self.value(state).squeeze(-1), state


class Plain(nn.Module):
    """Not recurrent, and for continuous actions."""

    def __init__(self, spec, settings):
        super().__init__()
        self.body = nn.Linear(spec["obs"]["shape"][0], 8)
        self.log_std = nn.Parameter(torch.zeros(len(spec["heads"])))
        self.mean, self.value = nn.Linear(8, len(spec["heads"])), nn.Linear(8, 1)

    def forward(self, obs):
        x = torch.tanh(self.body(obs.float()))
        return self.mean(x), self.value(x).squeeze(-1)


class Stateless(Plain):
    """The same for one choice."""

    def __init__(self, spec, settings):
        super().__init__(spec, settings)
        del self.log_std
        self.mean = nn.Linear(8, spec["heads"][0]["choices"])


class Slanted(Attentive):
    """Gives one logit too many."""

    def step(self, obs, state):
        logits, value, state = super().step(obs, state)
        return torch.cat([logits, logits[:, :1]], -1), value, state


class Forgetful(Attentive):
    """Its unroll does not do what its step does."""

    def unroll(self, obs, state0, reset_before):
        logits, value, state = self.step(obs[0], state0 + 1)
        self.logits.bias.data[0] = 1.0
        return logits.expand(len(obs), *logits.shape), value.expand(len(obs), *value.shape), state


class Crowded(Attentive):
    """A row's outputs depend on the rows beside it."""

    def step(self, obs, state):
        logits, value, state = super().step(obs, state)
        return logits + obs.float().sum(), value, state


class Undefined(Plain):
    def forward(self, obs):
        mean, value = super().forward(obs)
        return mean / obs.float().sum(1, keepdim=True) * 0, value


class Deaf(Attentive):
    """Its unroll takes no notice of resets, and without them nothing leads away from a state of zeros."""

    def __init__(self, spec, settings):
        super().__init__(spec, settings)
        self.cell = nn.GRUCell(2 * spec["obs"]["shape"][0], self.units, bias=False)
        nn.init.normal_(self.logits.weight)

    def unroll(self, obs, state0, reset_before):
        steps, state = [], state0
        for row in obs:
            *outputs, state = self.step(row, state)
            steps.append(outputs)
        return *(torch.stack(each) for each in zip(*steps, strict=True)), state


class Growing(Attentive):
    """Gives a state that is wider than the one it got."""

    def step(self, obs, state):
        logits, value, state = super().step(obs, state[:, : self.units])
        return logits, value, torch.cat([state, state[:, :1]], -1)


class Double(Attentive):
    def initial_state(self, agents):
        return super().initial_state(agents).double()


class Chatty(Attentive):
    def __init__(self, spec, settings):
        print("hello")
        super().__init__(spec, settings)


class Leaving(nn.Module):
    def __init__(self, spec, settings):
        raise SystemExit(0)
