"""The learner's policy: a torch module built from the policy program, operation by operation.

Parameters are views of one flat float32 vector in program order, so publishing a version is one copy. Matrix
products run in autocast's dtype where autocast is on; logits and value are float32 in any case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consumers import convolution, distributions, multihot, onednn, recurrent
from consumers.steps import Step, head_of, plan
from producers.program import READS_BYTES, Program, Weight

_ACTIVATIONS = {
    "relu": torch.relu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu-erf": F.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@dataclass
class _Memory:
    """Recurrent state on its way through `rows` steps of as many agents."""

    rows: int
    state: Tensor  # [B, state_width] before the first
    reset_before: Tensor | None  # [rows, B] bool
    after: list[Tensor]  # the last: [B, H] each, in the order of the state


class PolicyModel(nn.Module):
    """forward(obs [..., *obs_shape], mask [..., logits] or None) -> logits [..., logits], value [...] or None
    where the program has none; both float32, also under autocast. `unroll` is the same for segments, `step`
    for one step, of any program; a recurrent one has these alone.

    The leading dimensions are free. `obs` has the simulator's dtype, or the one that `obs_dtype` names. Given
    a mask, masked logits come out as -infinity; `log_prob`, `entropy` and the rest take either such logits or
    the mask. Of continuous actions the logits are the means [..., heads], and the standard deviations a
    parameter.
    """

    def __init__(self, program: Program, *, seed: int = 0):
        """Initialises as the program says (orthogonal by gain, else constant), from `seed` alone."""
        super().__init__()
        self.program = program
        self._steps = plan(program)
        self._logits = program.ops[head_of(program)].inputs[0]
        self._obs_shape = program.buffers[program.obs].shape
        self._fusible = onednn.is_available()
        self._flat = torch.empty(program.count)
        for weight, view in self._views():
            _register(self, weight.name, nn.Parameter(view) if weight.trainable else view)
        self._tensors = dict(self.named_parameters()) | dict(self.named_buffers())
        self.initialise(seed)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Fresh weights; the global generator is neither read nor moved."""
        generator = torch.Generator().manual_seed(seed)
        for weight, view in self._views():
            if weight.init_gain > 0:
                start = torch.empty(weight.shape)
                view.copy_(nn.init.orthogonal_(start, weight.init_gain, generator=generator))
            else:
                view.fill_(weight.init_value)

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.program.state_width:
            raise ValueError("a recurrent program needs its state: unroll and step take it")
        return self._evaluate(obs, mask, None)

    def unroll(
        self,
        obs: Tensor,
        state0: Tensor,
        reset_before: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Segments obs [T, B, *obs_shape] from the recurrent state0 [B, state_width] before row 0, which is
        zeroed before each row where reset_before [T, B] bool is true (None: nowhere) -> logits
        [T, B, logits], value [T, B] or None, and the state [B, state_width] after row T - 1."""
        memory = _Memory(len(obs), state0, reset_before, [])
        logits, value = self._evaluate(obs, mask, memory)
        return logits, value, torch.cat(memory.after, 1) if memory.after else state0

    def step(
        self,
        obs: Tensor,
        state: Tensor,
        reset_before: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """One step of `unroll`: obs [B, *obs_shape], state [B, state_width] and reset_before [B] -> logits
        [B, logits], value [B] or None, state [B, state_width]."""
        rows = (None if x is None else x.unsqueeze(0) for x in (reset_before, mask))
        logits, value, state = self.unroll(obs.unsqueeze(0), state, *rows)
        return logits[0], None if value is None else value[0], state

    def initial_state(self, agents: int) -> Tensor:
        """The recurrent state [agents, state_width] with which episodes begin: zeros."""
        return self._flat.new_zeros(agents, self.program.state_width)

    def _evaluate(
        self, obs: Tensor, mask: Tensor | None, memory: _Memory | None
    ) -> tuple[Tensor, Tensor | None]:
        lead = obs.shape[: obs.dim() - len(self._obs_shape)]
        device = obs.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        values: dict[int | None, Tensor] = {self.program.obs: obs.reshape(-1, *self._obs_shape).flatten(1)}
        if mask is not None:
            values[self.program.mask] = mask.reshape(-1, self.program.logits).bool()
        fused = (
            self._fusible
            and device == "cpu"
            and dtype == torch.bfloat16
            and not torch.compiler.is_compiling()
        )
        with torch.autocast(device, enabled=False):  # the casts are where they are written
            for step in self._steps:
                self._run(step, values, memory, dtype, fused)
        if fused:  # a NaN among the weights shows, whatever a ReLU made of it
            values[self._logits] = values[self._logits] + self._flat.sum() * 0.0
        logits = values[self._logits].float().t().reshape(self.program.logits, *lead).movedim(0, -1)
        if self.program.value is None:
            return logits, None
        return logits, values[self.program.value].float().view(lead)

    def log_prob(self, logits: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """log π(a) [...] float32, summed over heads; `actions` [..., heads] int64, continuous float32."""
        if self._log_std is not None:
            return distributions.gaussian_log_prob(logits, self._log_std, actions)
        return distributions.log_prob(logits, actions, self.program.choices, mask)

    def entropy(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy [...] float32 in nats, summed over heads."""
        if self._log_std is not None:
            return distributions.gaussian_entropy(logits, self._log_std)
        return distributions.entropy(logits, self.program.choices, mask)

    def log_prob_entropy(
        self, logits: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Both from one softmax: what a loss wants."""
        if self._log_std is not None:
            return self.log_prob(logits, actions), self.entropy(logits)
        return distributions.log_prob_entropy(logits, actions, self.program.choices, mask)

    def mode(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """The likeliest action [..., heads] int64, continuous float32."""
        if self._log_std is not None:
            return logits
        return distributions.mode(logits, self.program.choices, mask)

    def sample(
        self, logits: Tensor, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """An action [..., heads] int64, continuous float32 and not clipped."""
        if self._log_std is not None:
            return distributions.gaussian_sample(logits, self._log_std, generator)
        return distributions.sample(logits, self.program.choices, mask, generator)

    def obs_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """In which dtype observations may be held for passes in autocast `dtype` without changing any result:
        whoever copies them anyway saves the cast. bfloat16 holds bytes exactly, and where a program leaves
        observations as they are they are rounded either way. Bytes that stand for categories stay bytes."""
        source = self.program.buffers[self.program.obs].dtype
        if any(op.kind in READS_BYTES for op in self.program.ops):
            return torch.uint8
        casts = [op.attrs for op in self.program.ops if op.kind == "cast_affine"]
        plain = all(a["scale"] == 1 and a["offset"] == 0 and not a["per_feature"] for a in casts)
        return dtype if source in ("uint8", "int8") or (source == "float32" and plain) else torch.float32

    def flat_weights(self, out: Tensor | np.ndarray | None = None) -> Tensor | np.ndarray:
        """All weights as one float32 vector [program.count] in program order. Without `out` it is the memory
        of the parameters themselves; else a copy into `out` (say, a buffer of the weights channel), which is
        returned."""
        if out is None:
            return self._flat
        target = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
        target.copy_(self._flat)
        return out

    def load_flat(self, vector: Tensor | np.ndarray) -> None:
        """Takes all weights from one float32 vector [program.count]."""
        source = torch.from_numpy(vector) if isinstance(vector, np.ndarray) else vector
        if source.shape != self._flat.shape:
            raise ValueError(f"{tuple(source.shape)} weights for a program of {self.program.count}")
        self._flat.copy_(source)

    @property
    def _log_std(self) -> Tensor | None:
        weight = self.program.log_std
        return None if weight is None else self._tensors[weight.name]

    def _views(self) -> Iterator[tuple[Weight, Tensor]]:
        for weight in self.program.weights:
            yield weight, self._flat[weight.offset : weight.offset + weight.count].view(weight.shape)

    def _apply(self, fn, recurse=True):
        """Moves to another device as a whole, so that the parameters stay views of one vector."""
        flat = fn(self._flat)
        if flat.dtype != torch.float32:
            raise TypeError("weights stay float32: lower precision is autocast's")
        self._flat = flat
        for weight, view in self._views():
            tensor = self._tensors[weight.name]
            tensor.data = view
            if tensor.grad is not None:
                tensor.grad = fn(tensor.grad)
        return self

    def __deepcopy__(self, memo: dict) -> "PolicyModel":
        copy = PolicyModel(self.program).to(self._flat.device).train(self.training)
        copy.load_flat(self._flat)
        memo[id(self)] = copy
        return copy

    def _run(
        self,
        step: Step,
        values: dict[int | None, Tensor],
        memory: _Memory | None,
        dtype: torch.dtype,
        fused: bool,
    ) -> None:
        """One step on flattened rows [n, width]."""
        op = step.op
        output, x = step.outputs[0], values[op.inputs[0]]
        match op.kind:
            case "linear":
                values.update(zip(step.outputs, self._linear(step, x, dtype, fused)))
            case "conv2d":
                values[output] = self._convolve(step, x, dtype, fused)
            case "multihot_conv2d":
                values[output] = self._convolve_multihot(step, x, dtype)
            case "embedding":
                values[output] = self._embed(step, x).to(dtype)
            case "layer_norm":
                scale, bias = (self._tensors[name] for name in step.weights)
                values[output] = F.layer_norm(x.float(), scale.shape, scale, bias, op.attrs["epsilon"])
            case "activation":
                values[output] = _ACTIVATIONS[op.attrs["function"]](x)
            case "lstm" | "mingru":
                assert memory is not None
                values[output] = self._remember(step, x, memory, dtype)
            case "cast_affine":
                values[output] = self._cast(step, x).to(dtype)
            case "slice":
                values[output] = x[:, op.attrs["start"] : op.attrs["start"] + step.sizes[0]]
            case "concat":
                values[output] = torch.cat([values[i] for i in op.inputs], 1)
            case "add":
                values[output] = x + values[op.inputs[1]]
            case "mul":
                values[output] = x * values[op.inputs[1]]
            case "reshape":
                values[output] = x
            case "mask":
                mask = values.get(self.program.mask)
                values[output] = x if mask is None else torch.where(mask, x, -torch.inf)

    def _linear(self, step: Step, x: Tensor, dtype: torch.dtype, fused: bool) -> Sequence[Tensor]:
        weight = self._joined(step.weights)
        bias = self._joined(step.biases) if step.biases else None
        y = _product(x.to(dtype), weight, bias, step.relu, fused)
        if not step.terminal:
            return (y,)
        # Few columns, of which softmax and loss read one after another: they are laid out so.
        columns = y.t().float().contiguous()
        return [column.t() for column in columns.split(step.sizes)]

    def _convolve(self, step: Step, x: Tensor, dtype: torch.dtype, fused: bool) -> Tensor:
        weight, bias = self._joined(step.weights), self._joined(step.biases)
        shape, stride = self.program.buffers[step.op.inputs[0]].shape, step.op.attrs["stride"]
        if not convolution.takes_patches(x.device):
            y = convolution.dense(x.to(dtype), shape, weight.to(dtype), bias.to(dtype), stride)
            return torch.relu_(y) if step.relu else y
        patches = convolution.patches(x.to(dtype), shape, (weight.shape[2], weight.shape[3]), stride)
        return _product(patches, weight.permute(0, 2, 3, 1).flatten(1), bias, step.relu, fused).view(
            len(x), -1
        )

    def _convolve_multihot(self, step: Step, x: Tensor, dtype: torch.dtype) -> Tensor:
        weight, bias, attrs = self._joined(step.weights), self._joined(step.biases), step.op.attrs
        kernel = (weight.shape[2], weight.shape[3])
        geometry = multihot.Geometry(
            attrs["rows"], attrs["columns"], attrs["values"], kernel, attrs["stride"], len(weight)
        )
        grid = x[:, attrs["start"] : attrs["start"] + geometry.width]
        return multihot.convolve(grid, weight, bias, geometry, relu=step.relu, dtype=dtype)

    def _embed(self, step: Step, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            raise TypeError(f"codes of {x.dtype}: they are bytes that name rows; needs torch.uint8")
        table, start = self._joined(step.weights), step.op.attrs["start"]
        codes = x[:, start : start + step.sizes[0] // table.shape[1]]
        return F.embedding(codes.int().clamp(max=len(table) - 1), table).flatten(1)

    def _remember(self, step: Step, x: Tensor, memory: _Memory, dtype: torch.dtype) -> Tensor:
        """The recurrent layer's outputs [n, units] for the rows x [n, in] of all steps."""
        x, units, at = x.to(dtype), step.sizes[0], step.op.attrs["state"]
        weights = [self._tensors[name] for name in step.weights]
        h = memory.state[:, at : at + units]

        def linear(weight: Tensor, bias: Tensor) -> Tensor:
            y = F.linear(x, weight.to(dtype), bias.to(dtype)).float()
            return y.view(memory.rows, -1, len(weight))

        if step.op.kind == "mingru":
            outputs = recurrent.mingru(linear(*weights[:2]), linear(*weights[2:]), h, memory.reset_before)
            memory.after.append(outputs[-1])
        else:
            weight_ih, weight_hh, bias = weights
            c = memory.state[:, at + units : at + 2 * units]
            outputs, c = recurrent.lstm(linear(weight_ih, bias), weight_hh, h, c, memory.reset_before, dtype)
            memory.after.extend((outputs[-1], c))
        return outputs.flatten(0, 1)

    def _joined(self, names: tuple[str, ...]) -> Tensor:
        if len(names) == 1:
            return self._tensors[names[0]]
        return torch.cat([self._tensors[name] for name in names])

    def _cast(self, step: Step, x: Tensor) -> Tensor:
        scale, offset, clip, start = (step.op.attrs[name] for name in ("scale", "offset", "clip", "start"))
        x = x[:, start : start + step.sizes[0]]
        if step.weights:
            mean, inv_std = (self._tensors[name] for name in step.weights)
            x = (x.float() - mean) * inv_std
        elif scale != 1 or offset != 0:
            x = x.float() * scale + offset
        return x.clamp(-clip, clip) if clip > 0 else x


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, fused: bool) -> Tensor:
    """x Wᵀ + b in x's dtype, and perhaps a ReLU."""
    if fused:
        return onednn.linear(x, weight, bias, relu=relu)
    y = F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return torch.relu_(y) if relu else y


def _register(module: nn.Module, name: str, tensor: Tensor) -> None:
    """As the parameter or buffer of that dotted name, in submodules made on the way."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(last, tensor)
    else:
        module.register_buffer(last, tensor)
