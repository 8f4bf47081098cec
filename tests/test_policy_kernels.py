"""The vector functions of the C policy stay within the errors that they state."""

import ctypes

import numpy as np
import pytest
import torch
from kernels import compile_native, instruction_sets

SHIM = """
#include "vector.h"
#define FUNCTION(name)                                                                                     \\
    __attribute__((visibility("default"))) void all_##name(const float *x, float *y, long n) {             \\
        for (long i = 0; i < n; i += HR_LANES) vec_store(y + i, vec_##name(vec_load(x + i)));              \\
    }
FUNCTION(exp)
FUNCTION(log)
FUNCTION(tanh)
FUNCTION(erf)
FUNCTION(relu)
FUNCTION(sigmoid)
FUNCTION(gelu_tanh)
FUNCTION(gelu_erf)
"""
NAMES = ("exp", "log", "tanh", "erf", "relu", "sigmoid", "gelu_tanh", "gelu_erf")


@pytest.fixture(scope="module", params=["native", *instruction_sets()])
def kernels(request, tmp_path_factory):
    """kernels(name, x float32 [n]) -> float32 [n], for each instruction set."""
    path = compile_native(SHIM, tmp_path_factory.mktemp("kernels") / "kernels.so", request.param)
    library = ctypes.CDLL(str(path))

    def call(name, x):
        x = np.asarray(x, np.float32)
        padded = np.concatenate([x, np.zeros(-len(x) % 16, np.float32)])
        y = np.empty_like(padded)
        pointer = ctypes.c_void_p
        getattr(library, "all_" + name)(
            pointer(padded.ctypes.data), pointer(y.ctypes.data), ctypes.c_long(len(padded))
        )
        return y[: len(x)]

    return call


def reference(name, x):
    x = torch.from_numpy(np.asarray(x, np.float32)).double()
    gelu = torch.nn.functional.gelu
    functions = {
        "gelu_tanh": lambda t: gelu(t, approximate="tanh"),
        "gelu_erf": gelu,
        "erf": torch.erf,
        "sigmoid": torch.sigmoid,
    }
    return functions.get(name, getattr(torch, name, None))(x).numpy()


def ulps(y, expected):
    """Distance in units of the last place of the expected float32, subnormals included."""
    place = np.spacing(np.maximum(np.abs(expected).astype(np.float32), np.float32(1e-45)))
    return float((np.abs(y.astype(np.float64) - expected) / place).max())


def everywhere(low, high, positive=False):
    """Floats spread over the range evenly, and evenly over all exponents."""
    generator = np.random.default_rng(0)
    even = np.linspace(low, high, 200_001)
    magnitudes = np.exp2(generator.uniform(-126, np.log2(max(abs(low), abs(high))), 200_000))
    signed = magnitudes if positive else magnitudes * generator.choice([-1.0, 1.0], len(magnitudes))
    x = np.concatenate([even, signed]).astype(np.float32)
    return x[(x >= low) & (x <= high)]


@pytest.mark.parametrize(
    ("name", "low", "high", "limit"),
    [("exp", -87.3, 88.7, 2), ("exp", -103.9, -87.3, 2), ("tanh", -20, 20, 3), ("erf", -6, 6, 3)],
)
def test_functions_are_within_a_few_units_in_the_last_place(kernels, name, low, high, limit):
    x = everywhere(low, high)
    assert ulps(kernels(name, x), reference(name, x)) <= limit


def test_log_is_within_two_units_in_the_last_place(kernels):
    x = np.concatenate(
        [everywhere(2.0**-126, 1e30, positive=True), np.linspace(0.5, 2, 100_001).astype(np.float32)]
    )
    x = x[x >= np.float32(2.0**-126)]
    assert ulps(kernels("log", x), reference("log", x)) <= 2


@pytest.mark.parametrize("name", ["sigmoid", "gelu_tanh", "gelu_erf"])
def test_activations_are_as_close_as_float32_allows(kernels, name):
    x = everywhere(-30, 30)
    error = np.abs(kernels(name, x) - reference(name, x))
    assert (error / np.maximum(1, np.abs(x))).max() <= 3e-7


def test_relu_is_exact(kernels):
    x = everywhere(-1e30, 1e30)
    np.testing.assert_array_equal(kernels("relu", x), np.maximum(x, 0))


def test_what_is_beyond_float32_becomes_zero_or_infinity(kernels):
    inf = np.inf
    cases = {
        "exp": ([-104.5, -1e30, -inf, 89, 1e30, inf], [0, 0, 0, inf, inf, inf]),
        "log": ([0, 2.0**-140, inf], [-inf, -inf, inf]),
        "tanh": ([-1e30, -inf, 1e30, inf, 0], [-1, -1, 1, 1, 0]),
        "erf": ([-1e30, -inf, 1e30, inf, 0], [-1, -1, 1, 1, 0]),
        "sigmoid": ([-1e30, -inf, 1e30, inf, 0], [0, 0, 1, 1, 0.5]),
        "relu": ([-inf, inf, 0], [0, inf, 0]),
        "gelu_tanh": ([1e30, 0], [1e30, 0]),
        "gelu_erf": ([1e30, 0], [1e30, 0]),
    }
    for name, (x, expected) in cases.items():
        np.testing.assert_array_equal(kernels(name, x), np.float32(expected), err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_nan_out_and_only_there(kernels, name):
    x = np.full(32, 0.5, np.float32)
    x[[3, 17]] = np.nan, -np.float32(np.nan)
    y = kernels(name, x)
    assert np.isnan(y).nonzero()[0].tolist() == [3, 17]


def test_the_logarithm_of_a_negative_number_is_nan(kernels):
    assert np.isnan(kernels("log", [-1, -np.inf, -1e-30])).all()
