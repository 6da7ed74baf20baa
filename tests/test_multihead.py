"""Multi-head attention: each variant by its formula and by both judges, maps, layouts, faults."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from kernels import plain_weights, visible_keys

import npformer as nf
from npformer import functional as F
from npformer.linear import linears
from npformer.masks import token_window
from npformer.multihead import KERNELS

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal

B, T, S, D, D_CONTEXT = 2, 5, 7, 11, 13
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 3}

VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "one key head": {"H_kv": 1, "causal": True},
    "each its own": {"H_kv": 6},
    "no biases": {"bias": False, "out_bias": False},
    "no key bias": {"bias": (True, False, True), "causal": True},
    "window": {"causal": True, "window": 3},
    "window both sides": {"window": 2},
    "scale, cap": {"scale": 0.7, "softcap": 1.5, "causal": True},
    "norm of heads": {"qk_norm": "head", "eps": 1e-3},
    "norm of projections": {"qk_norm": "projection", "eps": 1e-3, "norm_offset": 1.0},
    "rotation": {"rope": True, "causal": True},
    "half rotation": {"rope": True, "rope_layout": "half", "rotary_dim": 2, "rope_base": 7.0},
    "stretched": {"rope": True, "rope_scaling": YARN, "qk_norm": "head", "causal": True},
    "by length": {"rope": True, "rope_scaling": DYNAMIC, "causal": True},
}


def make(name="plain", dtype=np.float64, kernel=None, **options):
    """d_h = 4 and six heads, so that H d_h is not d = 11; all values of order one."""
    base = dict(d=D, H=6, H_kv=2, d_h=4, eps=1e-6)
    config = nf.AttentionConfig(**base | VARIANTS[name] | options)
    layer = nf.MultiHeadAttention(config, kernel=kernel, rng=0, dtype=dtype)
    draw = np.random.default_rng(1)
    for p in layer.parameters():
        p.value[...] = draw.standard_normal(p.value.shape) * (0.4 if p.value.ndim == 2 else 1)
    return layer


def by_loops(layer, x, context=None, mask=None, positions=None):
    """Output (B, T, d) and weights (B, H, T, S), head by head, from the definition."""
    c = layer.config
    source = x if context is None else context
    n = c.rotary_dim or c.d_h

    def project(rows, linear, norm, heads, at):
        y = rows @ linear.W.value
        if linear.b is not None:
            y = y + linear.b.value
        y = y.reshape(*y.shape[:2], heads, c.d_h)
        if norm is not None:
            axes = (-1,) if c.qk_norm == "head" else (-2, -1)
            gain = (norm.gamma.value + c.norm_offset).reshape(-1, c.d_h)
            y = y / np.sqrt(np.mean(y * y, axis=axes, keepdims=True) + c.eps) * gain
        if at is not None:
            base = c.rope_base
            theta, factor = F.rope_frequencies(n, base, c.rope_scaling, int(at.max()) + 1)
            turn = factor * np.exp(1j * at[..., None] * theta)[..., None, :]
            first, second = (
                (slice(0, n, 2), slice(1, n, 2))
                if c.rope_layout == "interleaved"
                else (slice(0, n // 2), slice(n // 2, n))
            )
            turned = (y[..., first] + 1j * y[..., second]) * turn
            y = y.copy()
            y[..., first], y[..., second] = turned.real, turned.imag
        return y

    if positions is None:
        positions = np.arange(x.shape[1])
    own = np.broadcast_to(positions, x.shape[:2]) if c.rope else None
    other = np.broadcast_to(np.arange(source.shape[1]), source.shape[:2]) if c.rope else None
    norms = (None, None) if c.qk_norm is None else (layer.q_norm, layer.k_norm)
    q = project(x, layer.Wq, norms[0], c.H, own)
    k = project(source, layer.Wk, norms[1], c.H_kv, own if context is None else other)
    v = project(source, layer.Wv, None, c.H_kv, None)
    seen = visible_keys(x.shape[1], source.shape[1], causal=c.causal, window=c.window)
    seen = seen if mask is None else seen & mask
    P = np.empty((len(x), c.H, x.shape[1], source.shape[1]))
    y = np.empty((*x.shape[:2], c.H, c.d_h))
    for h in range(c.H):
        g = h // (c.H // c.H_kv)
        for b in range(len(x)):
            scores = (c.scale or c.d_h**-0.5) * q[b, :, h] @ k[b, :, g].T
            if c.softcap is not None:
                scores = c.softcap * np.tanh(scores / c.softcap)
            P[b, h] = plain_weights(scores, np.broadcast_to(seen, P.shape)[b, h])
            y[b, :, h] = P[b, h] @ v[b, :, g]
    out = y.reshape(*x.shape[:2], -1) @ layer.Wo.W.value
    return out + (0 if layer.Wo.b is None else layer.Wo.b.value), P


# ------------------------------------------------------------------ every variant, every kernel


@pytest.mark.parametrize("kernel", [*KERNELS, "auto"])
@pytest.mark.parametrize("name", VARIANTS)
def test_by_its_formula_with_its_maps(name, kernel, rng):
    layer, x = make(name, kernel=kernel), rng.standard_normal((B, T, D))
    padded = np.arange(T) >= np.array([[0], [2]])
    for mask in (None, F.padding_mask(padded), rng.random((T, T)) < 0.7):
        right, P = by_loops(layer, x, mask=mask)
        y, saved = layer.forward(x, mask=mask)
        close(y, right, rtol=0, atol=1e-12)
        close(F.attention_weights(saved["attention"]), P, rtol=0, atol=1e-12)
        exact(layer(x, mask=mask), y)


@pytest.mark.parametrize("name", [n for n, o in VARIANTS.items() if o.get("rope")])
def test_positions_by_row(name, rng):
    """B = T = H here, where a wrong broadcast would not be an error."""
    layer, x = make(name, H=3, H_kv=1), rng.standard_normal((3, 3, D))
    positions = np.array([[0, 1, 2], [4, 5, 6], [2, 9, 30]])
    y = layer(x, positions=positions)
    close(y, by_loops(layer, x, positions=positions)[0], rtol=0, atol=1e-12)
    if name != "by length":
        for b in range(3):
            close(y[b], layer(x[b : b + 1], positions=positions[b])[0], rtol=0, atol=1e-13)
    assert np.abs(y - layer(x)).max() > 1e-3


@pytest.mark.parametrize("method", ["complex", "central", "direction"])
@pytest.mark.parametrize("name", VARIANTS)
def test_gradient(name, method, rng):
    layer, x = make(name), rng.standard_normal((B, T, D))
    samples = {"complex": 40, "central": 15}.get(method)
    report = nf.gradcheck(layer, x, method=method, samples=samples)
    assert report.passed, report
    # A key bias adds the same to every score of a row, unless the rotation, the norm or the cap
    # makes something else of it.
    zero = {row.tensor for row in report.rows if row.verdict == "zero"}
    c = layer.config
    plain = not c.rope and c.qk_norm is None and c.softcap is None and c.biases[1]
    assert zero == ({"Wk.b"} if plain and c.window != 1 else set())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("method", ["complex", "central"])
def test_gradient_with_masks_positions_and_dropout(method, kernel, rng):
    layer = make("stretched", window=3, dropout=0.3, softcap=2.0, kernel=kernel)
    x, mask = rng.standard_normal((B, T, D)), rng.random((B, 1, T, T)) < 0.7
    mask[0, 0, 2] = False  # a query that sees nothing
    positions = rng.integers(0, 20, (B, T))
    options = dict(mask=mask, positions=positions, samples=15)
    report = nf.gradcheck(layer, x, method=method, **options)
    assert report.passed, report


CROSS = {
    "plain": {},
    "norm of heads": {},
    "no key bias": {"causal": False},
    "scale, cap": {"causal": False},
    "half rotation": {},
    "window both sides": {"window": 3},
}


@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("d_context", [None, D_CONTEXT])
def test_cross_attention(name, d_context, rng):
    layer = make(name, d_context=d_context, **CROSS[name])
    x, context = rng.standard_normal((B, T, D)), rng.standard_normal((B, S, d_context or D))
    real = np.array([[True] * S, [True] * 4 + [False] * 3])
    mask = F.padding_mask(real)
    right, P = by_loops(layer, x, context, mask)
    y, saved = layer.forward(x, context, mask=mask)
    close(y, right, rtol=0, atol=1e-12)
    close(F.attention_weights(saved["attention"]), P, rtol=0, atol=1e-12)
    dx, dcontext = layer.backward(y, saved)
    assert (dx.shape, dcontext.shape) == (x.shape, context.shape)
    exact(dcontext[1, 4:], 0)
    if layer.config.window is None:
        assert np.abs(dcontext[1, :4]).min() > 0
    for method in ("complex", "central"):
        report = nf.gradcheck(layer, x, context, mask=mask, method=method, samples=15)
        assert report.passed, report
    other = context.copy()
    other[1, 4:] = 9
    exact(layer(x, other, mask=mask), y)


def test_dropout_is_active_only_where_there_is_a_generator(rng):
    layer, x = make("causal", dropout=0.4), rng.standard_normal((B, T, D))
    y, dropped = layer(x), layer.forward(x, rng=3)[0]
    assert np.abs(dropped - y).max() > 1e-2
    exact(layer.forward(x, rng=np.random.default_rng(3))[0], dropped)
    exact(make("causal")(x), y)
    nothing = make("causal", dropout=1.0)
    close(nothing.forward(x, rng=3)[0], np.broadcast_to(nothing.Wo.b.value, x.shape), rtol=1e-14)


def test_a17_query_head_h_reads_key_head_h_over_group():
    layer = make("no biases", H=4, d_h=1)
    layer.Wq.W.value[...] = 0
    layer.Wv.W.value[...] = np.array([[10.0, 20.0]] + [[0, 0]] * 10)
    layer.Wo.W.value[...] = np.eye(4, D)
    x = np.eye(1, D)[None]
    close(layer(x)[0, 0, :4], [10, 10, 20, 20], rtol=1e-15)


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_stays_and_is_close(name, rng):
    layer, x = make(name, np.float32), rng.standard_normal((B, T, D)).astype(np.float32)
    y, saved = layer.forward(x)
    dx = layer.backward(y, saved)
    assert y.dtype == dx.dtype == np.float32
    assert {p.grad.dtype for p in layer.parameters()} == {np.dtype(np.float32)}
    right = make(name)(x.astype(np.float64))
    close(y, right, rtol=0, atol=2e-5 * max(1, np.abs(right).max()))


def test_the_same_layer_twice_before_its_backwards(rng):
    layer, (x1, x2) = make("stretched"), rng.standard_normal((2, B, T, D))
    alone = []
    for x in (x1, x2):
        layer.zero_grad()
        y, saved = layer.forward(x)
        alone.append((layer.backward(y, saved), [p.grad.copy() for p in layer.parameters()]))
    layer.zero_grad()
    y1, saved1 = layer.forward(x1)
    y2, saved2 = layer.forward(x2)
    exact(layer.backward(y2, saved2), alone[1][0])
    exact(layer.backward(y1, saved1), alone[0][0])
    for p, g1, g2 in zip(layer.parameters(), alone[0][1], alone[1][1], strict=True):
        close(p.grad, g1 + g2, rtol=1e-12, atol=1e-14)


# -------------------------------------------------------------------------- layouts of a rotation


@pytest.mark.parametrize("rotary_dim", [None, 2])
@pytest.mark.parametrize("qk_norm", [None, "head", "projection"])
def test_permuted_columns_change_the_layout(qk_norm, rotary_dim, rng):
    """What is done to weights of Meta's files to run them with Hugging Face's layout."""
    options = dict(rotary_dim=rotary_dim, qk_norm=qk_norm)
    first, second = make("rotation", **options), make("rotation", rope_layout="half", **options)
    second.load_state_dict(first.state_dict())
    order = F.rope_permutation(4, rotary_dim)
    x = rng.standard_normal((B, T, D))
    y = first(x)
    if rotary_dim is None:
        assert np.abs(second(x) - y).max() > 1e-2
    for name, heads in (("q", 6), ("k", 2)):
        linear = getattr(second, f"W{name}")
        for p in (linear.W, linear.b):
            columns = p.value.reshape(*p.value.shape[:-1], heads, 4)[..., order]
            p.value = columns.reshape(p.value.shape)
        if qk_norm is not None:
            gamma = getattr(second, f"{name}_norm").gamma
            gamma.value = gamma.value.reshape(-1, 4)[:, order].reshape(-1)
    close(second(x), y, rtol=0, atol=1e-13)


# ------------------------------------------------------------------- windows and what is no token


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_window_counts_tokens(causal, window, rng):
    """Whatever padding stands before, between and behind the tokens of a row."""
    layer = make("plain", causal=causal, window=window)
    x = rng.standard_normal((3, 9, D))
    real = np.array([list("110100111"), list("001111000"), list("111111111")]) == "1"
    y = layer(x, mask=F.padding_mask(real))
    for b in range(3):
        close(y[b, real[b]], layer(x[b : b + 1, real[b]])[0], rtol=0, atol=1e-12)
    report = nf.gradcheck(layer, x, mask=F.padding_mask(real), samples=20)
    assert report.passed, report
    # a mask of pairs is taken as it is, and counted by places
    seen = np.broadcast_to(real[0], (9, 9)).copy()
    places = visible_keys(9, 9, causal=causal, window=window) & real[0]
    close(layer(x[:1], mask=seen), by_loops(layer, x[:1], mask=places)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("padding", ["1111111", "0011111", "0110111"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("one_row", [False, True])
def test_a_mask_over_the_keys_beside_the_padding_of_a_cache(padding, window, one_row, rng):
    """Both hide: the cache its padding, the caller what else he likes, which counts as tokens."""
    layer = make("causal", window=window, rope=True)
    x = rng.standard_normal((2, 7, D))
    real = np.array([list(padding), list("1111111")]) == "1"
    seen = np.array([list("1101101"), list("1011111")]) == "1"
    seen = seen[:1] if one_row else seen
    cfg = nf.TransformerConfig(V=3, d=D, L=1, H=6, H_kv=2, d_h=4)
    cache = nf.KVCache(cfg, 2, 8, np.float64)
    cache.extend(4, real[:, :4])
    layer(x[:, :4], cache=cache.layer(0))
    cache.extend(3, real[:, 4:])
    y = layer(x[:, 4:], cache=cache.layer(0), mask=F.padding_mask(seen))
    counted = token_window(real, 7, 7 if window is None else window)
    mask = counted & F.causal_mask(7) & F.padding_mask(real) & F.padding_mask(seen)
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0)
    whole = make("plain", rope=True)(x, mask=mask, positions=positions)
    for b in range(2):
        close(y[b, real[b, 4:]], whole[b, 4:][real[b, 4:]], rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------- what is refused


def test_no_backward_after_a_cache(rng):
    cfg = nf.TransformerConfig(V=3, d=D, L=1, H=6, H_kv=2, d_h=4)
    layer, cache = make("causal"), nf.KVCache(cfg, B, 9, np.float64)
    cache.extend(T)
    y, saved = layer.forward(rng.standard_normal((B, T, D)), cache=cache.layer(0))
    with pytest.raises(ValueError, match="no backward after a forward pass with a cache"):
        layer.backward(y, saved)
    assert not any(p.has_grad for p in layer.parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d": 0}, "d must be 1 or more, but is 0"),
        ({"d": 11.0}, "d must be a whole number, but is 11.0"),
        ({"H": -2}, "H must be 1 or more, but is -2"),
        ({"H": True}, "H must be a whole number, but is True"),
        ({"H": None}, "H must be a whole number, but is None"),
        ({"H_kv": 0}, "H_kv must be 1 or more, but is 0"),
        ({"H_kv": 4}, "H = 6 query heads can't share H_kv = 4 heads equally"),
        ({"d_h": None}, "d = 11 is not divisible by H = 6: choose another H or give d_h"),
        ({"d_h": 0}, "d_h must be 1 or more"),
        ({"d_context": 0}, "d_context must be 1 or more"),
        ({"window": 0}, "window must be 1 or more, but is 0"),
        ({"window": 2.5}, "window must be a whole number, but is 2.5"),
        ({"scale": float("nan")}, "scale must be a number, but is nan"),
        ({"scale": "big"}, "scale must be a number, but is 'big'"),
        ({"softcap": 0.0}, "softcap must be positive, but is 0.0"),
        ({"softcap": float("nan")}, "softcap must be positive, but is nan"),
        ({"eps": 0.0}, "eps must be positive, but is 0.0"),
        ({"dropout": 1.5}, "dropout probability must lie in [0, 1], but is 1.5"),
        ({"bias": (True, False)}, "bias must be a bool or three, of q, k and v, not (True, False)"),
        ({"scale": 10**400}, "scale must be a number, but is 100"),
        ({"softcap": 10**400}, "softcap must be positive, but is 100"),
        ({"norm_offset": 10**400}, "norm_offset must be a finite number, but is 100"),
        ({"dropout": "0.1"}, "dropout must be a finite number, but is '0.1'"),
        ({"bias": 1}, "bias must be a bool or three, of q, k and v, not 1"),
        ({"bias": "yes"}, "bias must be a bool or three, of q, k and v, not 'yes'"),
        ({"bias": (True, 1, False)}, "a bool or three, of q, k and v, not (True, 1, False)"),
        (
            {"bias": (True, "yes", False)},
            "a bool or three, of q, k and v, not (True, 'yes', False)",
        ),
        *(
            ({name: value}, f"{name} must be true or false, but is {value!r}")
            for name in ("causal", "out_bias", "rope")
            for value in (1, "yes", None, (True, False, True))
        ),
        ({"qk_norm": "both"}, 'qk_norm must be None, "head" or "projection", not \'both\''),
        ({"kernel": "fast"}, "kernel must be one of dense, flash, auto, but is 'fast'"),
        ({"rope_layout": "neox"}, 'rope_layout must be "interleaved" or "half", but is \'neox\''),
        ({"rotary_dim": 2}, "rotary_dim is given, but there is no rotation: rope is False"),
        ({"rope_scaling": YARN}, "rope_scaling is given, but there is no rotation"),
        ({"rope": True, "d_h": 5}, "rotary dimension must be even and at most d_h = 5, but is 5"),
        ({"rope": True, "rotary_dim": 6}, "even and at most d_h = 4, but is 6"),
        ({"rope": True, "rope_base": 10**400}, "the base must be a positive number, but is 100"),
        ({"rope": True, "rope_base": 0}, "the base must be a positive number, but is 0"),
        ({"rope": True, "rope_scaling": {"type": "su"}}, "rope scaling must be one of default"),
        (
            {
                "rope": True,
                "rope_base": 5e5,
                "rope_scaling": {"type": "default", "rope_theta": 1e6},
            },
            "rope_theta = 1000000.0, but the base is given as 500000.0",
        ),
    ],
)
def test_configurations_that_contradict_themselves(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        nf.AttentionConfig(**dict(d=D, H=6, H_kv=2, d_h=4) | options)


def test_a_configuration_is_frozen_and_says_what_is_in_force():
    config = nf.AttentionConfig(d=12, H=6, bias=[True, False, True])
    assert (config.d_h, config.H_kv, config.width, config.heads_kv) == (2, 6, 2, 6)
    assert config.bias == config.biases == (True, False, True)
    assert dataclasses.replace(config, H_kv=3).H_kv == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d = 7
    layer = nf.MultiHeadAttention(config, rng=0)
    assert [layer.Wq.b is None, layer.Wk.b is None, layer.Wv.b is None] == [False, True, False]


def test_bad_calls(rng):
    layer, x = make(), rng.standard_normal((B, T, D))
    cases = [
        ((x[..., :7],), {}, r"x must have last dimension 11, but its shape is \(2, 5, 7\)"),
        ((x[0],), {}, r"x must have 3 axes, \(B, T, d\), but its shape is \(5, 11\)"),
        ((x[:, :0],), {}, "needs at least one token"),
        ((x, x[..., :7]), {}, "context must have last dimension 11"),
        ((x, x[:1]), {}, r"context must be \(B, S, d_context\) with B = 2"),
        ((x,), {"mask": np.ones((B, T), bool)}, r"mask must have shape \(T, S\)"),
        ((x,), {"mask": np.ones((T, S), bool)}, r"mask must have shape \(T, S\)"),
        ((x, x), {"mask": np.ones((T, S), bool)}, r"mask must have shape \(T, S\)"),
    ]
    for inputs, options, words in cases:
        with pytest.raises(ValueError, match=words):
            layer(*inputs, **options)
    with pytest.raises(TypeError, match="mask must be a boolean array"):
        layer(x, mask=np.ones((T, T)))
    with pytest.raises(ValueError, match="positions must have shape"):
        make("rotation")(x, positions=np.arange(T + 1))
    with pytest.raises(ValueError, match="follows the length of a text can't read a context"):
        make("by length")(x, x)
    with pytest.raises(ValueError, match="kernel must be one of"):
        make(kernel="fast")


class Doubled(nf.Linear):
    """A projection with a forward of its own."""

    def forward(self, x):
        y, saved = super().forward(x)
        return 2 * y, saved


@pytest.mark.parametrize("name", ["Wq", "Wk", "Wv"])
def test_a_projection_may_have_a_forward_of_its_own(name):
    rng = np.random.default_rng(0)
    layer = nf.MultiHeadAttention(nf.AttentionConfig(d=6, H=2), rng=0, dtype=np.float64)
    x = rng.standard_normal((2, 5, 6))
    own = Doubled(6, 6, dtype=np.float64)
    own.W.value, own.b.value = getattr(layer, name).W.value, getattr(layer, name).b.value
    getattr(layer, name).W.value, getattr(layer, name).b.value = 2 * own.W.value, 2 * own.b.value
    want = layer(x)
    setattr(layer, name, own)
    np.testing.assert_allclose(layer(x), want, rtol=1e-12)


def test_projections_computed_together_check_their_input():
    layers = [nf.Linear(6, 4), nf.Linear(5, 4)]
    with pytest.raises(
        ValueError, match=r"x must have last dimension 5, but its shape is \(2, 6\)"
    ):
        linears(np.zeros((2, 6), np.float32), *layers)
