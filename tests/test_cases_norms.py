"""Faults of norms and residual connections that people met in public projects."""

from __future__ import annotations

import numpy as np
import pytest
from cases import case
from kernels import slope_error

import npformer as nf
from npformer import functional as F

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal


def plain_layernorm(x, eps):
    """One row at a time, in float64, from the definition."""
    x = np.asarray(x, np.float64)
    mean = x.sum() / len(x)
    return (x - mean) / np.sqrt(((x - mean) ** 2).sum() / len(x) + eps)


# ------------------------------------------------------------------------ N01 the variance and eps


def test_n01_population_variance_with_eps_inside_the_root():
    c = case("N01")
    x, eps = c["input"]["x"], c["input"]["eps"]
    y, _ = F.layernorm(x, np.ones(4), np.zeros(4), eps)
    close(y, c["right"]["out"], rtol=0, atol=1e-12)
    assert np.abs(y - c["wrong"]["out"]).max() > 0.05
    layer = nf.LayerNorm(4, eps, np.float64)
    close(layer(x), c["right"]["out"], rtol=0, atol=1e-12)
    exact(layer(np.stack([x, x[::-1]]))[1], layer(x)[::-1])


@pytest.mark.parametrize("eps", ["1e-5", "1e-6", "1e-12"])
def test_n01_eps_is_the_one_asked_for(eps):
    c = case("N01")
    x, right = c["input"]["small_x"], c["right"][f"small_eps_{eps}"]
    y, _ = F.layernorm(x, np.ones(2), np.zeros(2), float(eps))
    close(y, right, rtol=0, atol=1e-12)
    close(F.rmsnorm(x, np.ones(2), float(eps))[0], right, rtol=0, atol=1e-12)  # its mean is 0
    close(nf.LayerNorm(2, float(eps), np.float64)(x), right, rtol=0, atol=1e-12)
    close(nf.RMSNorm(2, float(eps), np.float64)(x), right, rtol=0, atol=1e-12)
    assert np.abs(c["wrong"]["small_eps_outside"] - c["right"]["small_eps_1e-5"]).max() > 0.5


def test_n01_block_and_model_hand_their_eps_on():
    for norm in ("layernorm", "rmsnorm"):
        cfg = nf.TransformerConfig(V=5, d=4, L=2, H=2, norm=norm, eps=0.3, embedding_norm=True)
        norms = [
            (name, m)
            for model in (nf.DecoderLM(cfg, rng=0), nf.Encoder(cfg, rng=0))
            for name, m in model.named_modules()
            if isinstance(m, nf.LayerNorm | nf.RMSNorm)
        ]
        assert len(norms) == 2 * (2 * 2 + 1 + 1)
        assert all(m.eps == 0.3 for _, m in norms), norms


# -------------------------------------------------------------------- N04 a mean far from 0


@pytest.mark.parametrize("mean", ["0", "100", "1000", "2000", "10000"])
def test_n04_two_passes_over_a_large_mean(mean):
    c = case("N04")
    n, step, eps = (c["input"][name] for name in ("n", "step", "eps"))
    right, wrong = c["right"][mean], c["wrong"][mean]
    x = (float(mean) + np.arange(n) * step).astype(np.float32)
    truth = plain_layernorm(x, eps)
    close(truth[[0, -1]], [right["out0"], right["out15"]], rtol=0, atol=1e-8)
    with np.errstate(all="raise"):
        y, _ = F.layernorm(x, np.ones(n, np.float32), np.zeros(n, np.float32), eps)
    assert y.dtype == np.float32
    assert np.abs(y - truth).max() < 1.01 * right["two_pass_float32_max_err"] + 1e-7
    if mean != "0":
        assert not wrong["one_pass_max_err"] < 1  # nan is wrong too


@pytest.mark.parametrize("shift", [0.0, 30.0, -1e4])
def test_n04_a_shift_of_the_row_changes_nothing(shift, rng):
    x, dy = rng.standard_normal((2, 3, 7, 13))
    gamma, beta = rng.standard_normal((2, 13))
    y, saved = F.layernorm(x, gamma, beta)
    moved, saved_moved = F.layernorm(x + shift, gamma, beta)
    close(moved, y, rtol=0, atol=1e-10)
    grads, grads_moved = F.layernorm_backward(dy, saved), F.layernorm_backward(dy, saved_moved)
    for g, g_moved in zip(grads, grads_moved, strict=True):
        close(g_moved, g, rtol=0, atol=1e-9)


def test_n04_constant_rows_give_beta(rng):
    gamma, beta = rng.standard_normal((2, 7)).astype(np.float32)
    x = np.array([[1e4], [-3.7], [0.0]], np.float32) * np.ones(7, np.float32)
    with np.errstate(all="raise"):
        y, saved = F.layernorm(x, gamma, beta)
        dx, _, _ = F.layernorm_backward(rng.standard_normal(x.shape).astype(np.float32), saved)
    close(y, np.broadcast_to(beta, y.shape), rtol=0, atol=1e-5)
    assert np.isfinite(dx).all()


# ------------------------------------------------------------------------- N05 RMSNorm's gradient


def test_n05_rmsnorm_gradient():
    c = case("N05")
    x, gamma, dy = (c["input"][name] for name in ("x", "gamma", "dy"))
    y, saved = F.rmsnorm(x, gamma, c["input"]["eps"])
    dx, dgamma = F.rmsnorm_backward(dy, saved)
    close(y, c["right"]["out"], rtol=0, atol=1e-12)
    close(dx, c["right"]["dx"], rtol=0, atol=1e-12)
    close(dgamma, c["right"]["dgamma"], rtol=0, atol=1e-12)
    for name, wrong in c["wrong"].items():
        assert np.abs(wrong - dx).max() > 0.05, name


def test_n05_gradients_know_the_directions_in_which_a_norm_is_flat(rng):
    x, dy = rng.standard_normal((2, 3, 5, 7))
    gamma, beta = rng.standard_normal((2, 7))
    dx, _ = F.rmsnorm_backward(dy, F.rmsnorm(x, gamma, eps=0.0)[1])
    close((dx * x).sum(-1), 0, atol=1e-13)  # the length of x does not matter
    dx, _, _ = F.layernorm_backward(dy, F.layernorm(x, gamma, beta, eps=0.0)[1])
    close(dx.sum(-1), 0, atol=1e-13)  # nor does its mean
    close((dx * x).sum(-1), 0, atol=1e-13)


# ----------------------------------------------------------------------------- N07 1 + gamma


def test_n07_gain_of_one_plus_gamma(rng):
    c = case("N07")
    layer = nf.RMSNorm(2, c["input"]["eps"], np.float64, offset=1)
    exact(layer.gamma.value, c["input"]["gamma"])  # starts at 0, a gain of 1
    close(layer(c["input"]["x"]), c["right"]["out"], rtol=0, atol=1e-12)
    layer.gamma.value[...] = c["input"]["gamma2"]
    close(layer(c["input"]["x"]), c["right"]["out2"], rtol=0, atol=1e-12)
    for wrong in c["wrong"].values():
        assert np.abs(wrong - c["right"]["out"]).max() > 0.5

    plain = nf.RMSNorm(2, c["input"]["eps"], np.float64)
    plain.gamma.value[...] = 1 + c["input"]["gamma2"]
    x, dy = rng.standard_normal((2, 5, 2))
    (y, saved), (y_plain, saved_plain) = layer.forward(x), plain.forward(x)
    exact(y, y_plain)
    exact(layer.backward(dy, saved), plain.backward(dy, saved_plain))
    exact(layer.gamma.grad, plain.gamma.grad)
    assert layer.state_dict()["gamma"] is layer.gamma.value  # what a file holds: no offset


def test_n07_a_model_of_that_kind_offsets_every_norm_once():
    options = dict(V=7, d=6, L=2, H=3, norm="rmsnorm", qk_norm="head", placement="sandwich")
    offset = nf.DecoderLM(nf.TransformerConfig(**options, norm_offset=1.0), rng=4, dtype="f8")
    plain = nf.DecoderLM(nf.TransformerConfig(**options), rng=4, dtype="f8")
    gains = 0
    for (name, p), (_, q) in zip(offset.named_parameters(), plain.named_parameters(), strict=True):
        if name.endswith("gamma"):
            gains += 1
            exact(p.value, 0)
            exact(q.value, 1)
        else:
            q.value[...] = p.value
    assert gains == 2 * (4 + 2) + 1
    ids = np.array([[1, 6, 2, 0]])
    exact(offset(ids), plain(ids))


# ----------------------------------------------------------------- N08 the residual goes around


def test_n08_the_skip_path_does_not_go_through_the_norm():
    c = case("N08")
    x, W, dy = (c["input"][name] for name in ("x", "W", "dy"))
    h, norm = F.layernorm(x, np.ones(4), np.zeros(4), c["input"]["eps"])
    _, linear = F.linear(h, W)
    dh, _ = F.linear_backward(dy, linear)
    dx = dy + F.layernorm_backward(dh, norm)[0]
    close(dx, c["right"]["dx"], rtol=0, atol=1e-12)
    for name, wrong in c["wrong"].items():
        assert np.abs(wrong - dx).max() > 0.5, name


def make_block(placement, dtype=np.float64, **options):
    attention = nf.AttentionConfig(6, 3, 1, causal=True, qk_norm="head")
    block = nf.Block(attention, 5, placement=placement, rng=1, dtype=dtype, **options)
    draw = np.random.default_rng(9)
    for p in block.parameters():
        p.value[...] = draw.standard_normal(p.value.shape)
    return block


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "output"])
def test_n08_whole_blocks(placement, norm, rng):
    block = make_block(placement, norm=norm)
    x, dy = rng.standard_normal((2, 2, 5, 6))
    y, saved = block.forward(x)
    dx = block.backward(dy, saved)
    twin, z = block.astype(complex), x.astype(complex)
    pairs = zip(block.named_parameters(), twin.parameters(), strict=True)
    for (name, p), moved in pairs:
        value = moved.value

        def forward(v, moved=moved):
            moved.value = v
            return twin.forward(z)[0]

        slope = slope_error(forward, [p.value], p.grad, dy)
        moved.value = value
        # Wk's bias too: without the norm of the keys it would shift all scores of a row alike.
        assert slope < 1e-11, name
    assert slope_error(lambda v: twin.forward(v)[0], [x], dx, dy) < 1e-12
    close(block(x), y, rtol=0, atol=0)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "output"])
def test_n08_placements_are_their_formulas(placement, rng):
    """The four formulas in the texts, written out with the block's own parts."""
    block = make_block(placement, bias=True)
    x = rng.standard_normal((2, 5, 6))

    def part(name, x):
        sub, norm = getattr(block, name), getattr(block, f"{name}_norm", None)
        out = getattr(block, f"{name}_out_norm", None)
        return {
            "pre": lambda: x + sub(norm(x)),
            "post": lambda: norm(x + sub(x)),
            "sandwich": lambda: x + out(sub(norm(x))),
            "output": lambda: x + out(sub(x)),
        }[placement]()

    close(block(x), part("ffn", part("attn", x)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("placement", ["pre", "sandwich", "output"])
def test_n08_a_silent_sublayer_leaves_the_stream_alone(placement, rng):
    block = make_block(placement)
    for name in ("attn.Wo", "ffn.W2"):
        part, linear = name.split(".")
        for p in getattr(getattr(block, part), linear).parameters():
            p.value[...] = 0
    for name, p in block.named_parameters():
        if name.endswith("out_norm.beta"):
            p.value[...] = 0
    x, dy = rng.standard_normal((2, 2, 5, 6))
    y, saved = block.forward(x)
    exact(y, x)
    if placement == "pre":
        exact(block.backward(dy, saved), dy)
