"""Dropout: how much it drops, what it keeps, and when it does nothing."""

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F
from npformer.dropout import kept

X = np.full((300, 400), 2.0)
"""120,000 numbers: the share that is kept has a standard error of 0.0015 at most."""


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_each_number_is_dropped_with_probability_p_and_the_mean_stays(p):
    y, saved = F.dropout(X, p, rng=3)
    assert np.mean(y == 0) == pytest.approx(p, abs=0.007)
    np.testing.assert_allclose(np.unique(y), [0, 2 / (1 - p)], rtol=1e-14)
    dx = F.dropout_backward(np.full(X.shape, 5.0), saved)
    np.testing.assert_array_equal(dx != 0, y != 0)
    np.testing.assert_allclose(np.unique(dx), [0, 5 / (1 - p)], rtol=1e-14)


def test_neighbours_are_dropped_apart():
    y, _ = F.dropout(X, 0.5, rng=3)
    alike = [np.mean((y[1:] == 0) == (y[:-1] == 0)), np.mean((y[:, 1:] == 0) == (y[:, :-1] == 0))]
    assert alike == pytest.approx([0.5, 0.5], abs=0.01)


def test_nothing_and_all():
    for y, saved in (F.dropout(X, 0.0, rng=3), F.dropout(X, 0.4), nf.Dropout(0.4).forward(X)):
        assert y is X
        assert F.dropout_backward(X, saved) is X
    y, saved = F.dropout(X, 1.0, rng=3)
    assert not y.any()
    assert not F.dropout_backward(X, saved).any()


def test_the_same_seed_drops_the_same():
    one, two, other = (F.dropout(X, 0.5, rng=seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, two)
    assert np.mean(one == other) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_attention_weights_are_dropped_with_probability_p(p):
    heads = np.arange(4)[:, None, None]
    keep = kept(7, heads, np.arange(150)[:, None], np.arange(200), p)
    assert keep.shape == (4, 150, 200)
    assert keep.mean() == pytest.approx(1 - p, abs=0.007)
    assert np.mean(keep[0] & keep[1]) == pytest.approx((1 - p) ** 2, abs=0.012)
    other = kept(8, heads, np.arange(150)[:, None], np.arange(200), p)
    assert np.mean(keep & other) == pytest.approx((1 - p) ** 2, abs=0.012)


def test_the_mean_over_many_masks_of_attention_is_attention_without():
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 1, 2, 5, 4))
    plain = F.attention(q, k, v)[0]
    draws = [F.attention(q, k, v, dropout=0.3, rng=rng)[0] for _ in range(3000)]
    np.testing.assert_allclose(np.mean(draws, axis=0), plain, atol=0.06)
