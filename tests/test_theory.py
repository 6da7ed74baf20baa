"""The mean-field recursion against its limits, its bounds and an integral; then against runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from npformer.experiments.gradient_scale import TheorySetup, gradient_scale
from npformer.experiments.theory import (
    POST_SUM,
    last_gradient,
    loglog_slope,
    mean_field,
    relu_kernel,
)


@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.0, 0.3, 0.9, 1.0])
def test_relu_kernel_is_an_integral_over_angles(rho: float):
    # u = r cos(a), v = r cos(a - theta) with rho = cos(theta); the integral over r is 2.
    theta = math.acos(rho)
    integral, _ = quad(
        lambda a: math.cos(a) * math.cos(a - theta), theta - math.pi / 2, math.pi / 2
    )
    assert relu_kernel(rho) == pytest.approx(2 * integral / math.pi, abs=1e-12)


def test_the_recursion_has_the_values_it_was_published_with():
    s = mean_field(64, 32).s
    np.testing.assert_allclose(
        s[[0, 1, 6, 12, 24, 64]], [1, 1.531, 5.891, 12.983, 28.792, 85.061], atol=5e-4
    )


@pytest.mark.parametrize("n", [1, 2, 7, 32, 1000])
def test_the_recursion_keeps_within_the_bounds_of_lemma_2(n: int):
    s, c = mean_field(50, n)
    layers = np.arange(51)
    assert np.all(s >= 1 + layers / 2)
    assert np.all(s <= 1 + 1.5 * layers + 1e-12)
    assert np.all(np.diff(s) > 0)
    assert np.all((c >= 0) & (c <= s))


def test_one_token_alone_adds_three_halves_a_layer():
    np.testing.assert_allclose(mean_field(9, 1).s, 1 + 1.5 * np.arange(10))


def test_tokens_align_so_the_last_layers_add_three_halves():
    s, c = mean_field(4000, 5)
    assert s[-1] - s[-2] == pytest.approx(1.5, abs=5e-3)
    assert c[-1] / s[-1] > 0.99


def test_slopes_of_power_laws_are_their_exponents():
    x = np.array([2, 3, 5, 8])
    assert loglog_slope(x, 7 * x**-0.5) == pytest.approx(-0.5)
    depths = np.array([6, 8, 10, 12, 14])
    s = mean_field(14, 32).s[depths]
    assert loglog_slope(depths, last_gradient(256, 32, 1, s)) == pytest.approx(-0.572, abs=5e-4)


def test_the_size_of_the_last_gradient():
    assert last_gradient(256, 32, 1, POST_SUM) == pytest.approx(1.633, abs=5e-4)
    assert last_gradient(256, 32, 1, mean_field(6, 32).s[6]) == pytest.approx(0.824, abs=5e-4)
    assert last_gradient(64, 8, 4, 2.0) == pytest.approx(last_gradient(64, 32, 1, 2.0))


def test_a_measurement_agrees_with_the_recursion():
    # 0.06 is three standard errors of a mean over 60 seeds at this width.
    setup = TheorySetup(d=64, n=7, B=2, V=500)
    curves = gradient_scale(setup, (1, 3, 6), gradient_seeds=60, activation_seeds=60)
    s = mean_field(6, setup.n).s
    measured = curves.activations["pre"][:, :, 1].mean(axis=0)
    np.testing.assert_allclose(measured, s[1:], rtol=0.06)
    np.testing.assert_allclose(curves.activations["post"][:, :, 1], 1, rtol=1e-4)
    assert curves.activations["post"][:, :, 2].mean() == pytest.approx(POST_SUM, rel=0.03)
    for placement, scale in (("pre", s[[1, 3, 6]]), ("post", np.full(3, POST_SUM))):
        expected = last_gradient(setup.d, setup.n, setup.B, scale)
        mean = curves.last_gradients(placement).mean(axis=0)
        np.testing.assert_allclose(mean, expected, rtol=0.12)
