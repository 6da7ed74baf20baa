"""Faults at the edges of the number types that people met in public projects."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import case

from npformer import functional as F

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal


# --------------------------------------------------------------------------- U02 float16 sums


def test_u02_layernorm_of_a_long_float16_row():
    c = case("U02")
    n = c["input"]["normals"]
    x = np.random.default_rng(c["input"]["seed"]).standard_normal(n).astype(np.float16)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, saved = F.layernorm(x, np.ones(n, np.float16), np.zeros(n, np.float16), 0.0)
        z, saved_z = F.rmsnorm(x, np.ones(n, np.float16), 0.0)
    close(saved.r.item() ** -2, c["right"]["var"], rtol=1e-4)
    x64 = x.astype(np.float64)
    close(saved_z.r.item() ** -2, np.mean(x64**2), rtol=1e-4)
    assert y.dtype == z.dtype == np.float16
    close(y, (x64 - x64.mean()) / x64.std(), rtol=2e-3, atol=2e-3)
    assert np.isinf(c["wrong"]["var"])


def test_u02_norms_of_large_float16_numbers(rng):
    x = (3e4 * rng.standard_normal((5, 7)).clip(-2, 2)).astype(np.float16)
    dy = rng.standard_normal((5, 7)).astype(np.float16)
    gamma, beta = np.ones(7, np.float16), np.zeros(7, np.float16)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, saved = F.layernorm(x, gamma, beta)
        grads = F.layernorm_backward(dy, saved)
        z, saved_z = F.rmsnorm(x, gamma)
        grads += F.rmsnorm_backward(dy, saved_z)
    x64 = x.astype(np.float64)
    centred = x64 - x64.mean(-1, keepdims=True)
    close(y, centred / x64.std(-1, keepdims=True), rtol=0, atol=5e-3)
    close(z, x64 / np.sqrt(np.mean(x64**2, -1, keepdims=True)), rtol=0, atol=5e-3)
    assert all(np.isfinite(g).all() and g.dtype == np.float16 for g in grads)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_u02_loss_over_a_large_vocabulary(dtype):
    c = case("U02")
    V = c["input"]["equal_logits"]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        loss, saved = F.cross_entropy(np.zeros((1, V), dtype), np.array([3]))
        grad = F.cross_entropy_backward(1.0, saved)
        y, _ = F.log_softmax(np.zeros((1, V), dtype))
        p, _ = F.softmax(np.zeros((1, V), dtype))
    close(loss, c["right"]["loss"], rtol=1e-6)  # never less precise than float32
    close(y, -c["right"]["loss"], rtol=1e-3 if dtype == np.float16 else 1e-6)
    close(grad[0, 3], 1 / V - 1, rtol=1e-3)
    close(p, 1 / V, rtol=1e-2 if dtype == np.float16 else 1e-5)
    assert p.dtype == y.dtype == grad.dtype == dtype


def test_u02_weight_gradients_over_many_rows():
    """70000 ones: a float16 sum would be infinite, a float32 sum that is then narrowed is too."""
    x = np.full((70000, 2), 0.5, np.float16)
    dy = np.full((70000, 3), 0.5, np.float16)
    _, saved = F.linear(x, np.ones((2, 3), np.float16), np.zeros(3, np.float16))
    dx, dW, db = F.linear_backward(dy, saved)
    exact(dW, np.full((2, 3), 17500, np.float16))
    exact(db, np.full(3, 35000, np.float16))
    exact(dx, np.full((70000, 2), 1.5, np.float16))


# -------------------------------------------------------------------------- U04 GELU far from 0

FAR = {np.float16: 1000.0, np.float32: 1e20, np.float64: 1e200}
FORMS = ["none", "tanh"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", FAR)
def test_u04_gelu_far_from_zero(dtype, form):
    c = case("U04")
    name = np.dtype(dtype).name
    far = c["input"].get(name, FAR[dtype])
    x = np.array([far, -far, np.finfo(dtype).max, np.finfo(dtype).min, 0.0], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, saved = F.gelu(x, approximate=form)
        dx = F.gelu_backward(np.ones(5, dtype), saved)
    exact(y, [x[0], 0, x[2], 0, 0])
    exact(dx, [c["right"]["grad"], 0, 1, 0, 0.5])
    assert y.dtype == dx.dtype == dtype
    assert np.isnan(c["wrong"]["grad"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", FAR)
def test_u04_gelu_forward_values(dtype, form):
    c = case("U04")
    y, _ = F.gelu(c["input"]["x"].astype(dtype), approximate=form)
    exact(y, c["right"]["out"])


@pytest.mark.parametrize("form", FORMS)
def test_u04_gelu_by_its_definition_where_the_tails_begin(form):
    """Against the formula in Python floats, out to where the density underflows."""
    x = np.concatenate([np.linspace(-12, 12, 481), [-39.9, -40.1, 39.9, 40.1, 9.99, 10.01]])
    y, saved = F.gelu(x, approximate=form)
    dx = F.gelu_backward(np.ones_like(x), saved)
    c = math.sqrt(2 / math.pi)
    for xi, yi, di in zip(x.tolist(), y, dx, strict=True):
        if form == "none":
            Phi = 0.5 * math.erfc(-xi / math.sqrt(2))
            phi = math.exp(-xi * xi / 2) / math.sqrt(2 * math.pi)
        else:
            t = math.tanh(c * (xi + 0.044715 * xi**3))
            Phi, phi = 0.5 * (1 + t), 0.5 * (1 - t * t) * c * (1 + 3 * 0.044715 * xi * xi)
        assert abs(yi - xi * Phi) < 1e-14 * max(1, abs(xi))
        assert abs(di - (Phi + xi * phi)) < 1e-13


@pytest.mark.parametrize("name", ["silu", "sigmoid", "tanh", "relu"])
@pytest.mark.parametrize("dtype", FAR)
def test_u04_other_activations_far_from_zero(dtype, name):
    f, f_backward = getattr(F, name), getattr(F, f"{name}_backward")
    x = np.array([FAR[dtype], -FAR[dtype], np.finfo(dtype).max, np.finfo(dtype).min], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, saved = f(x)
        dx = f_backward(np.ones(4, dtype), saved)
    low = -1.0 if name == "tanh" else 0.0
    high = 1.0 if name in ("tanh", "sigmoid") else None
    exact(y[1::2], low)
    exact(y[::2], x[::2] if high is None else high)
    exact(dx, [1, 0, 1, 0] if name in ("silu", "relu") else 0)
    assert y.dtype == dx.dtype == dtype


# ------------------------------------------------------------------ U05 softmax at the edges

DTYPE = {"huge_spread_float32": np.float32, "float16_65504": np.float16}


@pytest.mark.parametrize("name", [n for n in case("U05")["input"] if n != "empty_last_axis"])
def test_u05_softmax_at_the_edges(name):
    c = case("U05")
    dtype = DTYPE.get(name, np.float64)
    x = c["input"][name].astype(dtype)
    p, saved = F.softmax(x)  # warnings are errors here
    exact(p, c["right"][name])
    assert p.dtype == dtype
    exact(
        F.softmax_backward(np.array([1.0, -2.0], dtype), saved), [0.75, -0.75] if p[0] == 0.5 else 0
    )
    y, saved = F.log_softmax(x)
    assert y.dtype == dtype
    assert np.isfinite(F.log_softmax_backward(np.array([1.0, -2.0], dtype), saved)).all()
    close(np.exp(y), c["right"][name], rtol=2e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("dtype", FAR)
def test_u05_cross_entropy_and_attention_at_the_edges(dtype):
    top = float(np.finfo(dtype).max)
    logits = np.array([[top, -top], [top, top]], dtype)
    loss, saved = F.cross_entropy(logits, np.array([0, 1]), reduction="none")
    close(loss, [0, math.log(2)], rtol=1e-6)
    exact(F.cross_entropy_backward(np.ones(2), saved), [[0, 0], [0.5, -0.5]])
    q = np.array([1.0], dtype).reshape(1, 1, 1, 1)
    k = np.array([top, -top], dtype).reshape(1, 1, 2, 1)
    v = np.array([2.0, 3.0], dtype).reshape(1, 1, 2, 1)
    y, saved = F.attention(q, k, v, scale=1.0)
    assert y.item() == 2
    assert all(np.isfinite(g).all() for g in F.attention_backward(np.ones_like(y), saved))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3)])
def test_u05_nothing_gives_nothing(shape):
    x = np.zeros(shape)
    for f, f_backward in ((F.softmax, F.softmax_backward), (F.log_softmax, F.log_softmax_backward)):
        y, saved = f(x)
        assert y.shape == f_backward(x, saved).shape == shape


def test_u05_rows_of_minus_infinity_are_zeros_with_gradient_zero():
    x = np.array([[-np.inf, -np.inf], [0.0, -np.inf]])
    p, saved = F.softmax(x)
    exact(p, [[0, 0], [1, 0]])
    exact(F.softmax_backward(np.array([[1.0, 2.0], [3.0, 4.0]]), saved), 0)


def test_u02_a_mean_loss_is_added_up_in_float64(rng):
    """A float32 sum would round the loss itself, whatever its terms."""
    z = rng.standard_normal((3001, 7)).astype(np.float32)
    t = rng.integers(7, size=3001)
    rows, _ = F.cross_entropy(z, t, reduction="none")
    assert rows.dtype == np.float32
    loss, _ = F.cross_entropy(z, t)
    assert isinstance(loss, float)
    assert loss == pytest.approx(rows.astype(np.float64).mean(), rel=1e-14)


def test_u05_the_gradient_of_large_logits_is_that_of_small_ones():
    """m + log(sum) as one float32 would round the second away: it is 0.06 coarse at 2^20."""
    z = np.array([[0.25, 1.0, -0.5, 0.75]], np.float32)
    dz, far = (
        F.cross_entropy_backward(1.0, F.cross_entropy(z + shift, [2])[1])
        for shift in (np.float32(0), np.float32(2**20))
    )
    np.testing.assert_allclose(far, dz, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_u04_relu_at_0_and_at_what_is_not_a_number(dtype):
    """Its derivative at 0 is 0, as in PyTorch; NaN is not swallowed as if it were negative."""
    x = np.array([-1.0, 0.0, -0.0, 2.0, np.nan], dtype)
    y, saved = F.relu(x)
    np.testing.assert_array_equal(y, np.array([0, 0, 0, 2, np.nan], dtype))
    dx = F.relu_backward(np.full(5, 3, dtype), saved)
    np.testing.assert_array_equal(dx[:4], np.array([0, 0, 0, 3], dtype))
