"""Faults of attention and masks that people met in public projects, and their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from cases import case
from kernels import KERNELS, plain_weights, slope_error, visible_keys

import npformer as nf
from npformer import functional as F

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


def heads(values):
    """One feature a key, as the cases list it, in (1, 1, S, 1)."""
    return np.asarray(values, np.float64)[None, None, :, None]


def uniform(kernel, v, T, **options):
    """The output where every score is 0, so that a query averages the keys it sees."""
    k = np.random.default_rng(3).standard_normal(v.shape)
    q = np.zeros((*v.shape[:2], T, v.shape[-1]))
    return kernel[0](q, k, v, **options)


def averaging(d=1, H=1, **options):
    """A float64 attention layer that averages the visible rows of its input: Wv = Wo = 1."""
    layer = nf.MultiHeadAttention(
        nf.AttentionConfig(d, H, bias=False, out_bias=False, **options), rng=0, dtype=np.float64
    )
    layer.Wq.W.value[...] = 0
    layer.Wv.W.value[...] = np.eye(d)
    layer.Wo.W.value[...] = np.eye(d)
    return layer


# ------------------------------------------------------------------- A01 a query that sees nothing


def test_a01_hidden_query(kernel):
    c = case("A01")
    q, k, v, dy = (c["input"][name] for name in ("q", "k", "v", "dy"))
    mask = np.ones((4, 4), bool)
    mask[c["input"]["masked_query_row"]] = False
    with np.errstate(all="raise"):
        y, saved = kernel[0](q, k, v, mask=mask)
        grads = kernel[1](dy, saved)
    close(y, c["right"]["out"], rtol=0, atol=1e-12)
    for g, name in zip(grads, ("dq", "dk", "dv"), strict=True):
        close(g, c["right"][name], rtol=0, atol=1e-12)
    exact(y[0, 0, 2], 0)
    exact(grads[0][0, 0, 2], 0)
    exact(F.attention_weights(saved)[0, 0, 2], 0)
    assert np.abs(c["wrong"]["row_uniform"]).max() > 0.1  # what a large negative number gives


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 1.5}, {"dropout": 0.3, "rng": 4}, {"window": 2}, {"scale": 3.0}]
)
def test_a01_hidden_queries_of_every_origin(kernel, options, dtype, rng):
    """More queries than keys, a padded row of the batch, an empty mask: 0 and gradient 0."""
    B, H, H_kv, T, S, d_h = 3, 4, 2, 7, 5, 3
    q, k, v, dy = (
        rng.standard_normal(s).astype(dtype)
        for s in [(B, H, T, d_h), (B, H_kv, S, d_h), (B, H_kv, S, d_h), (B, H, T, d_h)]
    )
    real = np.array([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0]], bool)
    with np.errstate(all="raise"):
        y, saved = kernel[0](q, k, v, mask=F.padding_mask(real), causal=True, **options)
        dq, dk, dv = kernel[1](dy, saved)
    seen = visible_keys(T, S, causal=True, window=options.get("window")) & real[:, None]
    nothing = np.broadcast_to(~seen.any(-1)[:, None], (B, H, T))
    assert nothing[0].any()
    assert nothing[1].all()
    assert not nothing[2].all()
    exact(y[nothing], 0)
    exact(dq[nothing], 0)
    exact(dk[1], 0)
    exact(dv[1], 0)
    assert all(np.isfinite(a).all() for a in (y, dq, dk, dv))
    if "dropout" not in options:
        assert (np.abs(y[~nothing]).max(-1) > 0).all()


def test_a01_layer_whose_padding_hides_a_whole_row(rng):
    layer = nf.MultiHeadAttention(nf.AttentionConfig(6, 3, 1), rng=1, dtype=np.float64)
    x, dy = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 5, 6))
    real = np.array([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0]], bool)
    with np.errstate(all="raise"):
        y, saved = layer.forward(x, mask=F.padding_mask(real))
        dx = layer.backward(dy, saved)
    exact(y[1], np.broadcast_to(layer.Wo.b.value, (5, 6)))  # zeros through the last projection
    exact(dx[1], 0)
    assert np.abs(dx[0]).min() > 0


# --------------------------------------------------------------------- A03 masks that are added up


def test_a03_causal_and_padding_meet(kernel):
    c = case("A03")
    real, v = c["input"]["attention_mask"][None], heads(c["input"]["v"]).astype(np.float32)
    assert real.dtype == bool
    with np.errstate(all="raise"):
        y, _ = uniform(kernel, v, 4, causal=True, mask=F.padding_mask(real))
        joined = F.combine_masks(F.causal_mask(4), F.padding_mask(real))
        y2, saved = uniform(kernel, v, 4, mask=joined)
    exact(joined[0, 0], c["right"]["allowed"])
    close(y[0, 0, :, 0], c["right"]["out"], rtol=0, atol=1e-6)
    exact(y, y2)
    exact(F.attention_weights(saved)[0, 0, :2], 0)
    assert abs(c["wrong"]["row0_uniform_over_min"] - c["right"]["out"][0]) > 1


def test_a03_layer():
    c = case("A03")
    real = c["input"]["attention_mask"][None]
    layer = averaging(causal=True)
    with np.errstate(all="raise"):
        y = layer(c["input"]["v"][None, :, None], mask=F.padding_mask(real))
    close(y[0, :, 0], c["right"]["out"], rtol=0, atol=1e-12)


# ------------------------------------------------------------------- A04 causal with T unlike S


@pytest.mark.parametrize("shape", ["2x5", "5x2", "1x4", "3x3"])
def test_a04_causal_is_aligned_at_the_end(kernel, shape):
    c = case("A04")
    v, right = heads(c["input"][shape]["v"]), c["right"][shape]
    T, S = map(int, shape.split("x"))
    allowed = right["allowed"].astype(bool)
    exact(F.causal_mask(T, S), allowed)
    exact(visible_keys(T, S, causal=True), allowed)
    y, saved = uniform(kernel, v, T, causal=True)
    close(y[0, 0, :, 0], right["out"], rtol=0, atol=1e-14)
    P = plain_weights(np.zeros((T, S)), allowed)
    close(F.attention_weights(saved)[0, 0], P, rtol=0, atol=1e-15)
    if shape != "3x3":
        assert np.abs(c["wrong"][shape]["top_left"] - right["out"]).max() > 0.5

    dy = np.arange(1.0, T + 1)[None, None, :, None]
    dq, dk, dv = kernel[1](dy, saved)
    close(dv[0, 0], P.T @ dy[0, 0], rtol=0, atol=1e-14)
    dP = dy[0, 0] @ v[0, 0].T
    dS = P * (dP - (P * dP).sum(-1, keepdims=True))
    close(dq[0, 0], dS @ np.random.default_rng(3).standard_normal(v.shape)[0, 0], atol=1e-13)
    exact(dk, 0)  # q is 0


# ------------------------------------------------------------------------- A05 what True means


def test_a05_true_means_may_attend(kernel):
    c = case("A05")
    v, mask = heads(c["input"]["v"]), c["input"]["mask"]
    right, wrong = c["right"]["out"], c["wrong"]["out"]
    assert right != wrong
    shapes = [
        mask[None],
        mask[None, None, None],
        F.padding_mask(mask[None]),
        F.combine_masks(None, mask[None], None),
    ]
    for shaped in shapes:
        y, _ = uniform(kernel, v, 1, mask=shaped)
        close(y.item(), right, rtol=1e-14)
    close(averaging()(v[0], mask=F.padding_mask(mask[None]))[0, :, 0], right, rtol=1e-14)


@pytest.mark.parametrize("kind", ["integers", "zeros and -inf", "list"])
def test_a05_only_booleans_are_masks(kernel, kind):
    v = heads([1, 10, 100])
    mask = {
        "integers": np.array([[1, 1, 0]]),
        "zeros and -inf": np.array([[0, 0, -np.inf]]),
        "list": [[True, True, False]],
    }[kind]
    with pytest.raises(TypeError, match="boolean array, True = may attend"):
        uniform(kernel, v, 1, mask=mask)
    if kind != "list":
        with pytest.raises(TypeError, match="must be boolean"):
            F.padding_mask(mask)


# ------------------------------------------------------------- A06 padding goes along the keys


def test_a06_padding_is_along_the_keys(kernel):
    c = case("A06")
    real = (c["input"]["ids"] != 0)[None]
    y, _ = uniform(kernel, heads(c["input"]["v"]), 4, mask=F.padding_mask(real))
    close(y[0, 0, :2, 0], c["right"]["out_rows_0_1"], rtol=1e-14)
    assert c["wrong"]["query_axis"][0] != c["right"]["out_rows_0_1"][0]


@pytest.mark.parametrize("H", [1, 3, 6])
def test_a06_batch_heads_and_tokens_of_one_size(kernel, H):
    """B = T = S = 3 and H = 3 too: no wrong axis can fail by its shape."""
    c = case("A06")
    mask, v = c["input"]["square"]["key_mask"], c["input"]["square"]["v"]
    right = np.broadcast_to(c["right"]["square"][:, None], (3, H, 3))
    v = np.broadcast_to(v[:, None, :, None], (3, H, 3, 1))
    y, _ = uniform(kernel, v, 3, mask=F.padding_mask(mask))
    close(y[..., 0], right, rtol=1e-14)
    assert np.abs(c["wrong"]["square"] - c["right"]["square"]).max() > 1

    layer = averaging(H, H)
    x = np.broadcast_to(c["input"]["square"]["v"][..., None], (3, 3, H))
    close(layer(x, mask=F.padding_mask(mask)), right.swapaxes(1, 2), rtol=1e-14)


def test_a06_masks_that_are_not_guessed_at(kernel):
    v = np.ones((2, 3, 5, 1))
    for shape in [(2, 5), (5,), (2, 4, 5), (2, 3, 1, 5), (3, 1, 1, 5), (2, 1, 5, 4), (1, 3, 4, 5)]:
        with pytest.raises(ValueError, match="mask must have shape"):
            uniform(kernel, v, 4, mask=np.ones(shape, bool))
    for shape in [(4, 5), (1, 1, 1, 5), (1, 1, 4, 5), (2, 1, 1, 5), (2, 1, 4, 5), (2, 3, 4, 5)]:
        uniform(kernel, v, 4, mask=np.ones(shape, bool))
    for shape in [(5,), (2, 1, 5), (2, 1, 1, 5)]:
        with pytest.raises(ValueError, match="padding mask must have shape"):
            F.padding_mask(np.ones(shape, bool))


# --------------------------------------------------------------------- A08 softmax over the keys


def test_a08_softmax_goes_over_the_keys(kernel):
    c = case("A08")
    scores, right = c["input"]["scores"], c["right"]["p"]
    assert np.abs(c["wrong"]["over_queries"] - right).max() > 0.1
    close(F.softmax(scores)[0], right, rtol=1e-14)
    close(F.softmax(scores, axis=1)[0], right, rtol=1e-14)
    close(F.softmax(scores.T, axis=0)[0], right.T, rtol=1e-14)
    close(np.exp(F.log_softmax(scores.T, axis=0)[0]), right.T, rtol=1e-14)
    eye = np.eye(3)[None, None]
    y, saved = kernel[0](scores[None, None], eye, eye, scale=1.0)  # k = v = 1: the output is P
    close(y[0, 0], right, rtol=1e-14)
    close(F.attention_weights(saved)[0, 0], right, rtol=1e-14)


# ------------------------------------------------------------------------ A10 hidden blocks of keys


def test_a10_first_block_hidden(kernel):
    c = case("A10")
    q, k, v = (c["input"][name][None, None] for name in ("q", "k", "v"))
    mask = np.ones((3, 8), bool)
    mask[:, c["input"]["masked_keys"]] = False
    with np.errstate(all="raise"):
        y, _ = kernel[0](q, k, v, mask=mask, scale=c["input"]["scale"])
    close(y[0, 0], c["right"]["out"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("hidden", [range(4), range(2, 6), range(4, 8), [0, 1, 3, 4, 5, 7], [7]])
def test_a10_any_keys_hidden_by_mask(kernel, hidden, rng):
    c = case("A10")
    q, k, v = (c["input"][name][None, None] for name in ("q", "k", "v"))
    dy = rng.standard_normal((1, 1, 3, 4))
    mask = np.ones((3, 8), bool)
    mask[:, list(hidden)] = False
    mask[1] = True
    with np.errstate(all="raise"):
        y, saved = kernel[0](q, k, v, mask=mask)
        grads = kernel[1](dy, saved)
    P = plain_weights(q[0, 0] @ k[0, 0].T / 2, mask)
    close(y[0, 0], P @ v[0, 0], rtol=0, atol=1e-13)
    assert slope_error(lambda *a: kernel[0](*a, mask=mask)[0], [q, k, v], grads, dy) < 1e-12


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a10_blocks_that_a_window_hides(kernel, window, rng):
    q, k, v, dy = (rng.standard_normal((2, 3, n, 5)) for n in (11, 13, 13, 11))
    rules = {"causal": True, "window": window}
    with np.errstate(all="raise"):
        y, saved = kernel[0](q, k, v, **rules)
        grads = kernel[1](dy, saved)
    seen = visible_keys(11, 13, **rules)
    P = plain_weights(q @ k.swapaxes(-1, -2) / np.sqrt(5), seen)
    close(y, P @ v, rtol=0, atol=1e-13)
    assert slope_error(lambda *a: kernel[0](*a, **rules)[0], [q, k, v], grads, dy) < 1e-12


# -------------------------------------------------------------------------------- A14 dropout


def test_a14_backward_of_dropout_with_a_known_mask(kernel, monkeypatch):
    c = case("A14")
    q, k, v, dy = (c["input"][name][None, None] for name in ("q", "k", "v", "dy"))

    def kept(number, heads, queries, keys, p):
        assert p == c["input"]["p"]
        chosen = c["input"]["keep"][queries, keys]
        return np.broadcast_to(chosen, np.broadcast_shapes(heads.shape, chosen.shape))

    monkeypatch.setattr("npformer.attention.kept", kept)
    options = {"dropout": c["input"]["p"], "rng": 0, "scale": c["input"]["scale"]}
    y, saved = kernel[0](q, k, v, **options)
    grads = kernel[1](dy, saved)
    close(y[0, 0], c["right"]["out"], rtol=0, atol=1e-13)
    for g, name in zip(grads, ("dq", "dk", "dv"), strict=True):
        close(g[0, 0], c["right"][name], rtol=0, atol=1e-13)
    assert np.abs(c["wrong"]["dq_mask_forgotten"] - c["right"]["dq"]).max() > 0.01
    P = plain_weights(c["input"]["scale"] * q @ k.swapaxes(-1, -2), np.ones((3, 3), bool))
    close(F.attention_weights(saved), P, rtol=1e-13)  # before dropout


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 3}, {"softcap": 2.0}])
def test_a14_dropout_gradients(kernel, options, rng):
    q, k, v = (rng.standard_normal(s) for s in [(2, 6, 7, 5), (2, 3, 11, 5), (2, 3, 11, 2)])
    options = options | {"dropout": 0.4, "rng": 12}
    y, saved = kernel[0](q, k, v, **options)
    dy = rng.standard_normal(y.shape)
    grads = kernel[1](dy, saved)
    assert slope_error(lambda *a: kernel[0](*a, **options)[0], [q, k, v], grads, dy) < 1e-12
    for first, second in zip(grads, kernel[1](dy, saved), strict=True):
        exact(first, second)  # no new mask for a second backward
    exact(y, kernel[0](q, k, v, **options)[0])
    dense, _ = F.attention(q, k, v, **options)
    close(y, dense, rtol=0, atol=1e-13)  # the same mask for any blocks
    assert np.abs(y - kernel[0](q, k, v, **options | {"rng": 13})[0]).max() > 0.1


def test_a14_no_rng_or_no_probability_is_the_identity(kernel, rng):
    q, k, v = (rng.standard_normal((2, 3, 5, 7)) for _ in range(3))
    y, _ = kernel[0](q, k, v)
    exact(kernel[0](q, k, v, dropout=0.5)[0], y)
    exact(kernel[0](q, k, v, dropout=0.0, rng=1)[0], y)
    exact(kernel[0](q, k, v, dropout=1.0, rng=1)[0], 0)
    for p in (-0.1, 1.5, np.nan):
        with pytest.raises(ValueError, match="dropout probability"):
            kernel[0](q, k, v, dropout=p, rng=1)


def test_a14_dropped_weights_are_the_share_asked_for_and_differ_everywhere():
    """Uniform weights over S keys with v the unit vectors: the output shows the factors."""
    B, H, T, S, p = 2, 3, 50, 40, 0.25
    v = np.broadcast_to(np.eye(S), (B, H, S, S))
    y, _ = F.attention(np.zeros((B, H, T, 1)), np.zeros((B, H, S, 1)), v, dropout=p, rng=8)
    factors = y * S
    close(np.unique(factors.round(12)), [0, 1 / (1 - p)], atol=1e-12)
    keep = factors > 0
    n = keep.size
    assert abs(keep.mean() - (1 - p)) < 4 * np.sqrt(p * (1 - p) / n)
    for axis, size in enumerate(keep.shape):
        share = keep.mean(tuple(a for a in range(4) if a != axis))
        assert np.abs(share - (1 - p)).max() < 5 * np.sqrt(p * (1 - p) / (n / size))
    flat = keep.reshape(B * H, T, S)
    for a in range(B * H):
        for b in range(a):
            assert 0.5 < (flat[a] == flat[b]).mean() < 0.75  # 0.625 if independent
    rows = (flat[0][:, None] == flat[0][None]).mean(-1)
    assert np.sort(rows, axis=None)[:-T].max() < 1  # no two queries share a mask


# ------------------------------------------------------------------------------ A16 windows


def test_a16_window_counts_its_own_key(kernel):
    c = case("A16")
    T, W, v = c["input"]["T"], c["input"]["window"], heads(c["input"]["v"])
    mask = F.window_mask(T, window=W)
    exact(mask.sum(-1), c["right"]["visible_keys"])
    assert (mask.sum(-1) != c["wrong"]["visible"]).any()
    y, saved = uniform(kernel, v, T, causal=True, window=W)
    close(y[0, 0, :, 0], c["right"]["out"], rtol=1e-14)
    exact((F.attention_weights(saved)[0, 0] > 0).sum(-1), c["right"]["visible_keys"])
    layer = averaging(causal=True, window=W)
    close(layer(v[0])[0, :, 0], c["right"]["out"], rtol=1e-14)
    exact(uniform(kernel, v, T, causal=True, window=1)[0], v)
    for wide in (T, T + 1, 10 * T):
        exact(
            uniform(kernel, v, T, causal=True, window=wide)[0],
            uniform(kernel, v, T, causal=True)[0],
        )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("T", "S"), [(1, 7), (3, 7), (7, 7), (7, 3)])
@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_a16_windows_by_definition(kernel, causal, T, S, window):
    seen = visible_keys(T, S, causal=causal, window=window)
    exact(F.window_mask(T, S, window=window, causal=causal), seen)
    v = np.random.default_rng(5).standard_normal((1, 1, S, 2))
    y, saved = uniform(kernel, v, T, causal=causal, window=window)
    P = plain_weights(np.zeros((T, S)), seen)
    close(F.attention_weights(saved)[0, 0], P, rtol=0, atol=1e-15)
    close(y[0, 0], P @ v[0, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("window", [0, -1])
def test_a16_a_window_sees_something(kernel, window):
    with pytest.raises(ValueError, match="window must be a whole number from 1 on, but is"):
        uniform(kernel, heads([1, 2]), 2, causal=True, window=window)


# ------------------------------------------------------------- A17, A18 grouped key-value heads


def test_a17_neighbouring_query_heads_share_a_key_value_head(kernel):
    c = case("A17")
    H, H_kv, T = (c["input"][name] for name in ("H", "H_kv", "T"))
    v = np.broadcast_to(c["input"]["v"][None, :, None, None], (1, H_kv, T, 1))
    y, _ = kernel[0](np.zeros((1, H, T, 1)), np.zeros(v.shape), v)
    close(y[0, :, 0, 0], c["right"]["out"], rtol=1e-14)
    assert (c["wrong"]["tile"] != c["right"]["out"]).any()


@pytest.mark.parametrize("H_kv", [1, 2, 4])
def test_a17_equal_to_repeated_heads(kernel, H_kv, rng):
    """H = T = S = 4, so that a repeat along the sequence has the right shape too."""
    q, k, v = (rng.standard_normal((2, h, 4, 3)) for h in (4, H_kv, H_kv))
    dy = rng.standard_normal(q.shape)
    y, saved = kernel[0](q, k, v, causal=True)
    group = [h // (4 // H_kv) for h in range(4)]
    full, saved_full = kernel[0](q, k[:, group], v[:, group], causal=True)
    close(y, full, rtol=0, atol=1e-14)
    dq, dk, dv = kernel[1](dy, saved)
    dq_full, dk_full, dv_full = kernel[1](dy, saved_full)
    close(dq, dq_full, rtol=0, atol=1e-13)
    for g, g_full in ((dk, dk_full), (dv, dv_full)):
        close(g, g_full.reshape(2, H_kv, 4 // H_kv, 4, 3).sum(2), rtol=0, atol=1e-13)


def test_a17_layer_heads_share_as_the_kernel_does(rng):
    x = rng.standard_normal((2, 5, 12))
    grouped = nf.MultiHeadAttention(nf.AttentionConfig(12, 6, 2), rng=2, dtype=np.float64)
    full = nf.MultiHeadAttention(nf.AttentionConfig(12, 6), rng=3, dtype=np.float64)
    for name in ("Wq", "Wo"):
        getattr(full, name).W.value[...] = getattr(grouped, name).W.value
        getattr(full, name).b.value[...] = getattr(grouped, name).b.value
    for name in ("Wk", "Wv"):
        for p in ("W", "b"):
            a = getattr(getattr(grouped, name), p).value
            repeated = np.repeat(a.reshape(*a.shape[:-1], 2, 1, 2), 3, axis=-2)
            getattr(getattr(full, name), p).value[...] = repeated.reshape(*a.shape[:-1], 12)
    close(grouped(x), full(x), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("H", "H_kv"), [(6, 4), (2, 4), (3, 2)])
def test_a17_heads_that_cannot_be_shared(kernel, H, H_kv):
    with pytest.raises(ValueError, match="can't share"):
        kernel[0](np.ones((1, H, 3, 2)), np.ones((1, H_kv, 3, 2)), np.ones((1, H_kv, 3, 2)))
    with pytest.raises(ValueError, match="can't share"):
        nf.AttentionConfig(12, H, H_kv)


def test_a18_key_value_gradients_are_summed_over_the_group(kernel):
    c = case("A18")
    q, k, v, dy = (c["input"][name] for name in ("q", "k", "v", "dy"))
    y, saved = kernel[0](q, k, v, causal=True)
    close(y, c["right"]["out"], rtol=0, atol=1e-12)
    for g, name in zip(kernel[1](dy, saved), ("dq", "dk", "dv"), strict=True):
        close(g, c["right"][name], rtol=0, atol=1e-12)
    assert np.abs(c["wrong"]["out_tile"] - c["right"]["out"]).max() > 0.1

    one = np.ones((1, 2, 1, 1))
    _, saved = kernel[0](np.ones((1, 4, 1, 1)), one, one)
    dv = kernel[1](c["input"]["tiny_dy"][None, :, None, None], saved)[2]
    close(dv[0, :, 0, 0], c["right"]["tiny_dv"], rtol=1e-14)
