"""What holds where nothing is said: the defaults of the contract, by their effect."""

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F

SMALL = np.array([[3e-3, -1e-3, 2e-3]])
"""Of the size of the root of eps, so that eps decides."""
ONE, ZERO = np.ones(3), np.zeros(3)


@pytest.mark.parametrize(
    "y",
    [
        F.layernorm(SMALL, ONE, ZERO)[0],
        nf.LayerNorm(3, dtype=np.float64)(SMALL),
    ],
)
def test_layernorm_has_eps_1e_5_as_in_pytorch_and_gpt_2(y):
    centred = SMALL - SMALL.mean()
    np.testing.assert_allclose(y, centred / np.sqrt((centred**2).mean() + 1e-5), rtol=1e-12)


@pytest.mark.parametrize("y", [F.rmsnorm(SMALL, ONE)[0], nf.RMSNorm(3, dtype=np.float64)(SMALL)])
def test_rmsnorm_has_eps_1e_6_as_in_llama(y):
    np.testing.assert_allclose(y, SMALL / np.sqrt((SMALL**2).mean() + 1e-6), rtol=1e-12)


def test_a_configuration_has_eps_1e_5_in_every_norm():
    model = nf.DecoderLM(nf.TransformerConfig(V=5, d=4, L=1, H=2, norm="rmsnorm"), rng=0)
    norms = [m for _, m in model.named_modules() if isinstance(m, nf.RMSNorm | nf.LayerNorm)]
    assert [m.eps for m in norms] == [1e-5] * 3


def test_gelu_is_the_exact_one():
    assert F.gelu(np.array([1.0]))[0][0] == pytest.approx(0.8413447460685429, abs=1e-15)


def test_softmax_goes_over_the_last_axis():
    x = np.arange(6.0).reshape(2, 3)
    for f in (F.softmax, F.log_softmax):
        np.testing.assert_array_equal(f(x)[0], f(x, axis=1)[0])
    assert (nf.Softmax().axis, nf.LogSoftmax().axis) == (-1, -1)


def test_cross_entropy_is_a_mean_without_smoothing_that_ignores_minus_100():
    z = np.array([[1.0, 2.0, 0.5], [0.0, 3.0, 1.0], [9.0, 9.0, 9.0]])
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    want = -(log_p[0, 2] + log_p[1, 0]) / 2
    for f in (F.cross_entropy, nf.CrossEntropy().forward):
        assert f(z, [2, 0, -100])[0] == pytest.approx(want, rel=1e-14)


def test_attention_sees_everything_at_one_over_the_root_of_the_width():
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 4, 9))
    scores = q[0, 0] @ k[0, 0].T / 3
    P = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for f in (F.attention, F.flash_attention):
        np.testing.assert_allclose(f(q, k, v)[0][0, 0], P @ v[0, 0], rtol=1e-12)


def test_layers_are_float32_with_bias_and_dropout_needs_an_rng():
    assert nf.Linear(2, 3, rng=0).b is not None
    for layer in (nf.Linear(2, 3, rng=0), nf.Embedding(2, 3, rng=0), nf.LayerNorm(3),
                  nf.RMSNorm(3), nf.FeedForward(3, rng=0)):  # fmt: skip
        assert {p.value.dtype for p in layer.parameters()} == {np.dtype(np.float32)}
    x = np.ones((3, 4))
    assert nf.Dropout(0.9)(x) is x
