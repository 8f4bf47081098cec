"""The torch layers that expand bytes and convolve, against their definitions in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers import convolution, multihot
from consumers.models import PolicyModel
from producers.c_policy import CPolicy
from producers.program import Builder

WAYS = ["native", "written down"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Both ways on this device."""
    if request.param != "native":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    return request.param


def geometries():
    return st.builds(
        lambda rows, columns, values, high, wide, stride, out: multihot.Geometry(
            rows, columns, tuple(values), (min(high, rows), min(wide, columns)), stride, out
        ),
        st.integers(1, 7),
        st.integers(1, 7),
        st.lists(st.sampled_from((1, 2, 9, 256)), min_size=1, max_size=4),
        st.integers(1, 5),
        st.integers(1, 5),
        st.integers(1, 3),
        st.sampled_from((1, 3, 16, 65, 130, 260)),
    )


def a_grid(geometry, n, generator):
    """[n, width] uint8, some bytes beyond their categories, rows apart as in a longer observation."""
    rows = generator.integers(0, 256, (n, geometry.width + 9), np.uint8)
    rows[:, 3::2] %= 3
    return torch.from_numpy(rows)[:, 5 : 5 + geometry.width]


def by_definition(grid, weight, bias, geometry):
    """Loops over every output position, kernel cell and plane: float64 [n, positions * out]."""
    cells = grid.numpy().reshape(len(grid), geometry.rows, geometry.columns, -1)
    first = np.cumsum([0, *geometry.values])
    high, wide = geometry.kernel
    down = (geometry.rows - high) // geometry.stride + 1
    across = (geometry.columns - wide) // geometry.stride + 1
    y = []
    for oy in range(down):
        for ox in range(across):
            total = bias.expand(len(grid), -1)
            for ky in range(high):
                for kx in range(wide):
                    cell = cells[:, oy * geometry.stride + ky, ox * geometry.stride + kx]
                    for plane, categories in enumerate(geometry.values):
                        channel = first[plane] + np.minimum(cell[:, plane], categories - 1)
                        total = total + weight[:, channel, ky, kx].t()
            y.append(total)
    return torch.stack(y, 1).flatten(1)


def results(function, weights, relu):
    """Output and the gradients of a mixture of it."""
    weights = [w.detach().clone().requires_grad_() for w in weights]
    y = function(*weights)
    y = torch.relu(y) if relu else y
    (y.double() * torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)).sum().backward()
    return [y.detach().double(), *(w.grad.double() for w in weights)]


@pytest.mark.parametrize("threads", [1, 2])
@settings(deadline=None, max_examples=12, derandomize=True)
@given(geometry=geometries(), n=st.sampled_from((1, 15, 130)), relu=st.booleans(), seed=st.integers(0, 99))
def test_a_multihot_convolution_and_its_gradient_are_those_of_its_definition(
    threads, geometry, n, relu, seed
):
    generator = np.random.default_rng(seed)
    grid = a_grid(geometry, n, generator)
    shape = (geometry.out, sum(geometry.values), *geometry.kernel)
    weights = [torch.from_numpy(generator.normal(0, 1, size)) for size in (shape, geometry.out)]
    expected = results(lambda w, b: by_definition(grid, w, b, geometry), weights, relu)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = results(
            lambda w, b: multihot.convolve(grid, w, b, geometry, relu=relu, dtype=torch.float32),
            [w.float() for w in weights],
            False,
        )
    finally:
        torch.set_num_threads(before)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * (1 + float(b.abs().max()))


def test_both_ways_of_a_multihot_convolution_agree_in_bfloat16_too(monkeypatch):
    geometry = multihot.Geometry(11, 15, (4, 4, 17, 5), (5, 5), 3, 40)
    generator = np.random.default_rng(0)
    grid, drawn = a_grid(geometry, 50, generator), torch.Generator().manual_seed(0)
    weights = [torch.randn(size, generator=drawn) / 10 for size in ((40, 30, 5, 5), (40,))]

    def run():
        return results(
            lambda w, b: multihot.convolve(grid, w, b, geometry, relu=False, dtype=torch.bfloat16), weights, 0
        )

    native = run()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for a, b in zip(run(), native, strict=True):
        assert float((a - b).norm() / b.norm()) <= 0.03


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7), st.sampled_from((1, 3, 17))),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_patches_times_weights_are_a_convolution_forwards_and_backwards(shape, high, wide, stride):
    kernel = min(high, shape[0]), min(wide, shape[1])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, shape[0] * shape[1] * shape[2], generator=generator, dtype=torch.float64)
    weight = torch.randn(5, shape[2], *kernel, generator=generator, dtype=torch.float64)

    def by_patches(x, weight):
        y = convolution.patches(x, shape, kernel, stride) @ weight.permute(0, 2, 3, 1).flatten(1).t()
        return y.view(len(x), -1)

    def by_definition(x, weight):
        y = F.conv2d(x.view(-1, *shape).permute(0, 3, 1, 2), weight, None, stride)
        return y.permute(0, 2, 3, 1).flatten(1)

    def dense(x, weight):
        return convolution.dense(x, shape, weight, weight.new_zeros(5), stride)

    expected = results(by_definition, [x, weight], False)
    for function in (by_patches, dense):
        for a, b in zip(results(function, [x, weight], False), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def a_network():
    """Every expanding operation, with the logits the last convolution's and the embedding's sum."""
    builder = Builder("uint8", (60,), [5])
    x = builder.multihot_conv2d(5, 4, (3, 2), 6, "a", kernel=(2, 2), stride=1, gain=1.0)
    x = builder.layer_norm(
        builder.conv2d(builder.activation(x, "relu"), 7, "b", kernel=(2, 3), stride=2, gain=1.0), "c"
    )
    y = builder.embedding(40, 10, 9, 3, "d", gain=1.0)
    z = builder.cast_affine(scale=0.1, offset=-1.0, start=40)
    builder.head(builder.linear(builder.concat([x, y, z]), 5, "policy", gain=1.0))
    return builder.finish()


def logits_by_definition(obs, w):
    """Of `a_network`, in float64, from torch's own layers over a one-hot grid with channels first."""
    obs = torch.from_numpy(obs)
    cells = obs[:, :40].view(-1, 5, 4, 2).long()
    ones = [F.one_hot(cells[..., 0].clamp(max=2), 3), F.one_hot(cells[..., 1].clamp(max=1), 2)]
    x = torch.cat(ones, -1).permute(0, 3, 1, 2).double()
    x = F.conv2d(x, w["a.weight"], w["a.bias"]).relu()
    x = F.conv2d(x, w["b.weight"], w["b.bias"], 2).permute(0, 2, 3, 1).flatten(1)
    x = F.layer_norm(x, x.shape[1:], w["c.weight"], w["c.bias"])
    y = F.embedding(obs[:, 40:50].long().clamp(max=8), w["d.weight"]).flatten(1)
    z = obs[:, 40:].double() * 0.1 - 1.0
    return F.linear(torch.cat([x, y, z], 1), w["policy.weight"], w["policy.bias"])


def test_a_network_of_new_layers_and_its_gradients_are_those_of_torchs_own(way):
    generator = np.random.default_rng(1)
    program, obs = a_network(), generator.integers(0, 256, (33, 60), np.uint8)
    obs[:, :40] %= 4
    model = PolicyModel(program)
    model.load_flat(generator.normal(0, 0.5, program.count).astype(np.float32))
    exact = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    expected, (logits, _) = logits_by_definition(obs, exact), model(torch.from_numpy(obs))
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
    for one in (logits, expected):
        one.double().sin().sum().backward()
    for name, parameter in model.named_parameters():
        scale = float(exact[name].grad.abs().max())
        assert float((parameter.grad.double() - exact[name].grad).abs().max()) <= 1e-4 * scale, name
    actor = CPolicy(program, len(obs))
    actor.load(model.flat_weights().numpy())
    np.testing.assert_allclose(actor.logits(obs), expected.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int8])
def test_what_reads_bytes_refuses_anything_else(way, dtype):
    """Four bytes of a float32 would be four categories to the native kernel."""
    network = PolicyModel(a_network())
    network(torch.zeros(3, 60, dtype=torch.uint8))
    with pytest.raises(TypeError, match=rf"a grid of {dtype}.*needs torch\.uint8"):
        network(torch.zeros(3, 60, dtype=dtype))
    builder = Builder("uint8", (7,), [5])
    builder.head(builder.linear(builder.embedding(0, 7, 9, 3, "a", gain=1.0), 5, "policy", gain=1.0))
    with pytest.raises(TypeError, match=rf"codes of {dtype}.*needs torch\.uint8"):
        PolicyModel(builder.finish())(torch.zeros(3, 7, dtype=dtype))
