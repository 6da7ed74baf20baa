"""Every pair, block and small model against PyTorch while it runs, on fresh numbers."""

from __future__ import annotations

import numpy as np
import pytest
from twins import TWINS, differentiable

torch = pytest.importorskip("torch", reason="needs the extra `parity`")

from reference.torch_twins import TORCH, result_and_gradients  # noqa: E402
from test_torch_reference import error  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # the arrays are tiny

SEEDS = [1, 2, 3]


def normal(rng, *shape):
    return rng.standard_normal(shape)


def fresh(name, seed):
    """The twin's inputs, its floats drawn anew without rounding, and PyTorch's side of it."""
    rng = np.random.default_rng([seed, len(name)])
    inputs = TWINS[name].inputs(rng)
    for key in differentiable(inputs):
        inputs[key] = normal(rng, *inputs[key].shape)
    return inputs, *result_and_gradients(name, inputs, lambda *shape: normal(rng, *shape))


def test_both_sides_have_the_same_twins():
    assert TWINS.keys() == TORCH.keys()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TWINS)
def test_float64(name, seed):
    inputs, y, dy, grads = fresh(name, seed)
    ours, backward = TWINS[name].forward(inputs)
    assert error(ours, y) < 1e-11
    ours = backward(dy if dy.ndim else dy.item())
    assert ours.keys() == grads.keys()
    largest = max(np.abs(g).max() for g in grads.values())
    for key, g in grads.items():
        scale = largest if np.abs(g).max() < 1e-12 * largest else None
        assert error(ours[key], g, scale) < 1e-11, key


@pytest.mark.parametrize("name", TWINS)
def test_float32_is_as_close_to_float64_as_pytorchs_own(name):
    """Our float32 stays float32, and misses PyTorch's float64 about as PyTorch's float32 does."""
    rng = np.random.default_rng(len(name))
    inputs = TWINS[name].inputs(rng)  # multiples of 1/64: the same in both precisions
    y, dy, grads = result_and_gradients(name, inputs, lambda *s: normal(rng, *s).astype("f4"))
    y32, _, grads32 = result_and_gradients(name, inputs, lambda *_: dy, torch.float32)
    single = {key: a.astype(np.float32) if key in grads else a for key, a in inputs.items()}
    ours, backward = TWINS[name].forward(single)
    ours_grads = backward(dy if dy.ndim else dy.item())
    assert np.ndim(ours) == 0 or ours.dtype == np.float32
    largest = max(np.abs(g).max() for g in grads.values())
    rounding = np.finfo(np.float32).eps
    assert error(ours, y) < 10 * error(y32, y) + 20 * rounding
    for key, g in grads.items():
        scale = max(np.abs(g).max(), 1e-3 * largest)
        assert ours_grads[key].dtype == np.float32, key
        allowed = 10 * error(grads32[key], g, scale) + 20 * rounding
        assert error(ours_grads[key], g, scale) < allowed, key
