"""Every pair, block and small model against values that PyTorch computed once, in float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from cases import DATA
from kernels import KERNELS
from twins import ATTENTION, TWINS, differentiable, unpack

TOLERANCE = 1e-11


@functools.cache
def recorded():
    with np.load(DATA / "torch_reference.npz") as file:
        return {key: file[key] for key in file.files}


def error(ours, theirs, scale=None):
    """Largest difference relative to the largest entry; infinite if the shapes differ."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return np.inf
    scale = np.abs(theirs).max(initial=0) if scale is None else scale
    return np.abs(ours - theirs).max(initial=0) / max(scale, 1e-300)  # NaN stays NaN


def of_twin(name):
    """Return the inputs, the cotangent, the result and the gradients that were recorded."""
    inputs = TWINS[name].inputs(np.random.default_rng(0))  # for names and shapes
    y, _ = TWINS[name].forward(inputs)
    given = unpack(recorded()[f"{name}/given"], inputs | {"dy": np.asarray(y)})
    gradients = {key: inputs[key] for key in differentiable(inputs)}
    computed = unpack(recorded()[f"{name}/computed"], {"y": np.asarray(y)} | gradients)
    return given, given.pop("dy"), computed.pop("y"), computed


def test_the_file_holds_every_twin():
    held = {key.split("/")[0] for key in recorded() if "/" in key}
    assert held == TWINS.keys(), "run tests/reference/make_torch_reference.py"
    assert str(recorded()["made with"]).startswith("torch 2.")


@pytest.mark.parametrize("name", TWINS)
def test_as_pytorch_computed_it(name):
    inputs, dy, y, grads = of_twin(name)
    for a in inputs.values():
        a.flags.writeable = False
    ours, backward = TWINS[name].forward(inputs)
    assert error(ours, y) < TOLERANCE
    ours = backward(dy if dy.ndim else dy.item())
    assert ours.keys() == grads.keys() == set(differentiable(inputs))
    largest = max(np.abs(g).max() for g in grads.values())
    for key, g in grads.items():
        # A key bias has no gradient: both sides hold rounding noise, judged by the largest one.
        scale = largest if np.abs(g).max() < 1e-12 * largest else None
        assert error(ours[key], g, scale) < TOLERANCE, key
        assert np.asarray(ours[key]).dtype == np.float64


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ATTENTION)
def test_every_kernel_as_pytorch_computed_attention(name, kernel):
    inputs, dy, y, grads = of_twin(f"attention {name}")
    forward, backward = KERNELS[kernel]
    q, k, v, *mask = inputs.values()
    ours, saved = forward(q, k, v, mask=mask[0] if mask else None, **ATTENTION[name][1])
    assert error(ours, y) < TOLERANCE
    for g, theirs in zip(backward(dy, saved), grads.values(), strict=True):
        assert error(g, theirs) < TOLERANCE
