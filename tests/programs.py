"""Policy programs for tests: drawn at random by Hypothesis, and a few by hand."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from producers.program import ACTIVATIONS, RECURRENT, Builder, Program

WIDTHS = (1, 3, 16, 63, 65, 130)  # within, at and beyond the kernels' vectors and panels
FORWARD = (
    "linear", "linear", "activation", "slice", "concat", "add", "mul", "reshape", "layer_norm", "conv2d",
)  # fmt: skip
ROWS = (1, 2, 11, 12, 13, 47, 48, 49, 97, 200, 1000)


@st.composite
def programs(
    draw: st.DrawFn, *, recurrent: bool = False, continuous: bool = False, categories: bool = False
) -> Program:
    """A network of up to eight operations with one to five heads, discrete or `continuous`; `recurrent`: one
    or two of the operations are, and the value has a third. `categories`: observations are bytes, and one to
    three operations look at them as categories."""
    choices = draw(st.lists(st.sampled_from((1, 2, 3, 17)), min_size=1, max_size=5))
    dtype = draw(st.sampled_from(("uint8",) if categories else ("float32", "uint8", "int8", "int32")))
    shape = draw(st.sampled_from(((1,), (3,), (65,), (130,), (4, 5), (2, 3, 7), (331,))))
    if continuous:
        builder = Builder(dtype, shape, low=[-1.0] * len(choices), high=[1.0] * len(choices))
    else:
        builder = Builder(dtype, shape, choices, mask=draw(st.booleans()))
    if draw(st.booleans()):
        clip, start = draw(st.sampled_from((0.0, 2.0))), draw(st.sampled_from((None, 0)))
        buffers = [builder.cast_affine(normalize="normalize", clip=clip, start=start)]
    else:
        scale, offset = draw(st.sampled_from((1.0, 1 / 255, 0.3))), draw(st.sampled_from((0.0, -0.5)))
        start = draw(st.one_of(st.none(), st.integers(0, int(np.prod(shape)) - 1)))
        buffers = [builder.cast_affine(scale=scale, offset=offset, start=start)]
    if categories:
        for index in range(draw(st.integers(1, 3))):
            source = draw(st.sampled_from((an_embedding, a_multihot_convolution)))
            buffers.append(source(draw, builder, int(np.prod(shape)), f"source.{index}"))
    kinds = draw(st.lists(st.sampled_from(FORWARD), max_size=8))
    if recurrent:
        for kind in draw(st.lists(st.sampled_from(sorted(RECURRENT)), min_size=1, max_size=2)):
            kinds.insert(draw(st.integers(0, len(kinds))), kind)
    for index, kind in enumerate(kinds):
        x = draw(st.sampled_from(buffers))
        if kind in RECURRENT:
            x = getattr(builder, kind)(x, draw(st.sampled_from(WIDTHS)), f"layer.{index}")
        elif kind == "linear":
            out = draw(st.sampled_from(WIDTHS))
            x = builder.linear(x, out, f"layer.{index}", gain=1.0, bias=draw(st.booleans()))
        elif kind == "activation":
            x = builder.activation(x, draw(st.sampled_from(sorted(ACTIVATIONS))))
        elif kind == "slice":
            start = draw(st.integers(0, builder.width(x) - 1))
            x = builder.slice(x, start, draw(st.integers(start + 1, builder.width(x))))
        elif kind == "concat":
            x = builder.concat([x, draw(st.sampled_from(buffers))])
        elif kind == "reshape":
            x = builder.reshape(x, (builder.width(x), 1))
        elif kind == "layer_norm":
            x = builder.layer_norm(x, f"layer.{index}")
        elif kind == "conv2d":
            x = a_convolution(draw, builder, x, f"layer.{index}")
        else:
            others = [y for y in buffers if builder.width(y) == builder.width(x)]
            x = getattr(builder, kind)(x, draw(st.sampled_from(others)))
        buffers.append(x)
    if builder.width(buffers[-1]) > 2000:  # concatenated with itself too often to be quick
        buffers.append(builder.slice(buffers[-1], 0, 2000))
    logits = builder.linear(buffers[-1], builder.logits, "policy", gain=1.0)
    if continuous:
        builder.gaussian(logits, "log_std", log_std=0.0)
    else:
        builder.head(logits)
    x = draw(st.sampled_from(buffers))
    if recurrent:
        x = getattr(builder, draw(st.sampled_from(sorted(RECURRENT))))(x, 5, "value_layer")
    return builder.finish(builder.linear(x, 1, "value", gain=1.0))


def a_convolution(draw: st.DrawFn, builder: Builder, x: int, name: str) -> int:
    """Over the elements of `x`, of which the last few may not fill a row of an image."""
    channels, columns = draw(st.sampled_from((1, 2, 5, 17))), draw(st.integers(1, 6))
    rows = min(7, builder.width(x) // (channels * columns))
    if rows == 0:
        rows, columns, channels = 1, 1, builder.width(x)
    image = builder.reshape(builder.slice(x, 0, rows * columns * channels), (rows, columns, channels))
    kernel = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    out, stride = draw(st.sampled_from((1, 3, 16, 65))), draw(st.integers(1, 3))
    return builder.conv2d(image, out, name, kernel=kernel, stride=stride, gain=1.0)


def an_embedding(draw: st.DrawFn, builder: Builder, width: int, name: str) -> int:
    """Of some bytes of an observation of `width`, with fewer codes than bytes have or as many."""
    start = draw(st.integers(0, width - 1))
    count = draw(st.integers(1, min(20, width - start)))
    codes, size = draw(st.sampled_from((1, 7, 256))), draw(st.sampled_from((1, 5, 32)))
    return builder.embedding(start, count, codes, size, name, gain=1.0)


def a_multihot_convolution(draw: st.DrawFn, builder: Builder, width: int, name: str) -> int:
    planes = draw(st.integers(1, min(4, width)))
    columns = draw(st.integers(1, min(7, width // planes)))
    rows = draw(st.integers(1, min(7, width // planes // columns)))
    start = draw(st.integers(0, width - rows * columns * planes))
    values = draw(st.lists(st.sampled_from((1, 2, 9, 256)), min_size=planes, max_size=planes))
    kernel = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    out, stride = draw(st.sampled_from((1, 3, 16, 65, 130))), draw(st.integers(1, 3))
    return builder.multihot_conv2d(
        rows, columns, values, out, name, kernel=kernel, stride=stride, gain=1.0, start=start
    )


def logits_program(choices: list[int], *, mask: bool = False) -> Program:
    """The observation is the logits."""
    builder = Builder("float32", (sum(choices),), choices, mask=mask)
    builder.head(builder.cast_affine())
    return builder.finish()


def perceptron(
    obs: int, hidden: list[int], choices: list[int], activation: str = "relu", *, mask: bool = False
) -> Program:
    builder = Builder("float32", (obs,), choices, mask=mask)
    x = builder.cast_affine()
    for index, width in enumerate(hidden):
        x = builder.activation(builder.linear(x, width, f"trunk.{index}", gain=1.4), activation)
    builder.head(builder.linear(x, sum(choices), "policy", gain=1.0))
    return builder.finish(builder.linear(x, 1, "value", gain=1.0))


def expander() -> Program:
    """A small network of all the operations that expand bytes: a grid of 4 x 5 cells, codes and numbers."""
    builder = Builder("uint8", (4 * 5 * 3 + 7,), [3, 2])
    x = builder.multihot_conv2d(4, 5, (4, 7, 2), 5, "grid.0", kernel=(2, 3), stride=1, gain=1.0)
    x = builder.conv2d(builder.activation(x, "relu"), 3, "grid.1", kernel=(2, 2), stride=1, gain=1.0)
    codes = builder.embedding(60, 4, 9, 3, "embedding", gain=1.0)
    x = builder.layer_norm(builder.concat([x, codes, builder.cast_affine(start=60)]), "norm")
    builder.head(builder.linear(x, 5, "policy", gain=1.0))
    return builder.finish(builder.linear(x, 1, "value", gain=1.0))


def random_weights(
    program: Program, generator: np.random.Generator, gain: float = 1.0
) -> NDArray[np.float32]:
    """Of such a size that activations neither die out nor grow; `gain` on the policy layer."""
    flat = np.empty(program.count, np.float32)
    for weight in program.weights:
        if weight.name.endswith("inv_std"):
            values = generator.uniform(0.5, 2.0, weight.shape)
        elif len(weight.shape) > 1:
            values = generator.standard_normal(weight.shape) / np.sqrt(np.prod(weight.shape[1:]))
        else:
            values = generator.standard_normal(weight.shape) * 0.3
        if weight.name == "policy.weight":
            values = values * gain
        flat[weight.offset : weight.offset + weight.count] = values.ravel()
    return flat


def random_obs(program: Program, agents: int, generator: np.random.Generator) -> NDArray:
    """Observations [agents, *shape] over the whole range of a byte, or around zero."""
    buffer = program.buffers[program.obs]
    shape = (agents, *buffer.shape)
    if buffer.dtype == "float32":
        return generator.standard_normal(shape).astype(np.float32)
    limits = {"uint8": (0, 256), "int8": (-128, 128), "int32": (-1000, 1000)}[buffer.dtype]
    return generator.integers(*limits, shape).astype(buffer.dtype)


def random_mask(program: Program, agents: int, generator: np.random.Generator) -> NDArray[np.uint8] | None:
    """At least one allowed choice a head."""
    if program.mask is None:
        return None
    mask = (generator.random((agents, program.logits)) < 0.5).astype(np.uint8)
    first = 0
    for n in program.choices:
        mask[np.arange(agents), first + generator.integers(0, n, agents)] = 1
        first += n
    return mask
