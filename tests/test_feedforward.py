"""The feed-forward network: every activation, gated and not, and the rules for its width."""

from __future__ import annotations

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F
from npformer.activation import ACTIVATIONS
from npformer.feedforward import llama_width, parity_width

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal


def layer(activation, *, gated, bias=True, dtype=np.float64, d=5, d_ff=7):
    made = nf.FeedForward(
        d, d_ff, activation=activation, gated=gated, bias=bias, rng=0, dtype=dtype
    )
    draw = np.random.default_rng(1)
    for p in made.parameters():
        p.value[...] = draw.standard_normal(p.value.shape)
    return made


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_by_its_formula(activation, gated, rng):
    ffn, x = layer(activation, gated=gated), rng.standard_normal((2, 3, 5))
    h = ACTIVATIONS[activation](x @ ffn.W1.W.value + ffn.W1.b.value)[0]
    if gated:
        h = h * (x @ ffn.W3.W.value + ffn.W3.b.value)
    right = h @ ffn.W2.W.value + ffn.W2.b.value
    close(ffn(x), right, rtol=1e-13)
    for b, t in np.ndindex(2, 3):  # each position by itself
        close(ffn(x[b, t]), right[b, t], rtol=1e-13)


@pytest.mark.parametrize("method", ["complex", "central"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient(activation, gated, bias, method, rng):
    ffn, x = layer(activation, gated=gated, bias=bias), rng.standard_normal((2, 3, 5))
    report = nf.gradcheck(ffn, x, method=method)
    assert report.passed, report
    assert len(ffn.parameters()) == (2 + gated) * (1 + bias)


@pytest.mark.parametrize("gated", [False, True])
def test_float32_stays(gated, rng):
    ffn, x = layer("silu", gated=gated, dtype=np.float32), rng.standard_normal((2, 3, 5))
    y, saved = ffn.forward(x.astype(np.float32))
    dx = ffn.backward(y, saved)
    assert y.dtype == dx.dtype == np.float32
    assert {p.grad.dtype for p in ffn.parameters()} == {np.dtype(np.float32)}
    close(y, layer("silu", gated=gated)(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("method", ["complex", "central"])
def test_gate_gradient(method, rng):
    a, u = rng.standard_normal((2, 2, 3, 5))
    report = nf.gradcheck((F.gate, F.gate_backward), a, u, method=method)
    assert report.passed, report
    close(F.gate(a, u)[0], a * u, rtol=0)


# ----------------------------------------------------------------------------------------- widths


@pytest.mark.parametrize(
    ("d", "multiplier", "multiple_of", "right"),
    [
        (4096, None, 256, 11008),  # Llama-2-7B
        (5120, None, 256, 13824),  # 13B
        (8192, 1.3, 4096, 28672),  # 70B, Llama-3-70B
        (4096, 1.3, 1024, 14336),  # Llama-3-8B
        (16384, 1.2, 4096, 53248),  # 405B
        (2048, 1.5, 256, 8192),  # Llama-3.2-1B
        (3072, 1.0, 256, 8192),  # 3B
    ],
)
def test_the_widths_of_llama(d, multiplier, multiple_of, right):
    assert llama_width(d, multiplier, multiple_of) == right
    assert llama_width(d, multiplier, 1) <= right < llama_width(d, multiplier, 1) + multiple_of


def test_a_width_that_is_a_multiple_stays():
    assert llama_width(96, None, 256) == 256  # 8 * 96 / 3 = 256
    assert llama_width(97, None, 256) == 512
    assert llama_width(10, 1.3, 1) == 33  # 26.7 is cut to 26, and 33.8 to 33


@pytest.mark.parametrize("d", [3, 96, 768, 4096])
def test_parity_width_keeps_the_number_of_weights(d):
    plain = nf.FeedForward(d, bias=False, rng=0)
    gated = nf.FeedForward(d, bias=False, gated=True, activation="silu", rng=0)
    count = [sum(p.value.size for p in f.parameters()) for f in (plain, gated)]
    assert count[0] == 8 * d * d
    assert abs(count[1] - count[0]) <= 1.5 * d  # the width is rounded by at most a half
    assert gated.W1.W.value.shape == (d, parity_width(d))


# -------------------------------------------------------------------------------------- bad input


def test_bad_input():
    with pytest.raises(ValueError, match=r"activation must be one of .*, but is 'swish'"):
        nf.FeedForward(5, activation="swish")
    with pytest.raises(ValueError, match="d_ff must be 1 or more, but is 0"):
        nf.FeedForward(5, 0)
    with pytest.raises(ValueError, match=r"x must have last dimension 5, but .* \(2, 3\)"):
        layer("relu", gated=False)(np.ones((2, 3)))
    with pytest.raises(TypeError, match="x must be a floating-point array"):
        layer("relu", gated=False)(np.ones((2, 5), int))
    for bad in ((0, None, 256), (8, 0.0, 256), (8, float("nan"), 256), (8, None, 0)):
        with pytest.raises(ValueError, match="d, multiplier and multiple_of must be positive"):
            llama_width(*bad)
