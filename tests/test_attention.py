"""The dense kernel against its definition, in panels of any size and on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels import plain_weights, visible_keys

import npformer as nf
from npformer import attention as dense
from npformer import functional as F
from npformer import parallel
from npformer.dropout import kept
from npformer.masks import Sight

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal

OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "window": 3},
    {"window": 3, "scale": 0.7},
    {"softcap": 1.5, "causal": True},
    {"dropout": 0.4, "rng": 3, "window": 6},
]


def arrays(rng, B=2, H=6, H_kv=3, T=7, S=11, d_h=5, d_v=3, dtype=np.float64):
    shapes = [(B, H, T, d_h), (B, H_kv, S, d_h), (B, H_kv, S, d_v), (B, H, T, d_v)]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def run(q, k, v, dy, **options):
    """y, lse, weights and the three gradients."""
    y, saved = F.attention(q, k, v, **options)
    return (y, saved.lse, F.attention_weights(saved), *F.attention_backward(dy, saved))


def definition(q, k, v, dy, mask=None, causal=False, window=None, scale=None, softcap=None):
    """The formulas on whole arrays, keys and values repeated, in the plainest words."""
    (B, H, T, d_h), (H_kv, S) = q.shape, k.shape[1:3]
    K, V = (np.repeat(x, H // H_kv, axis=1) for x in (k, v))
    scale = d_h**-0.5 if scale is None else scale
    S_ = scale * q @ K.swapaxes(-1, -2)
    slope = 1.0
    if softcap is not None:
        S_ = softcap * np.tanh(S_ / softcap)
        slope = 1 - (S_ / softcap) ** 2
    seen = np.broadcast_to(visible_keys(T, S, causal=causal, window=window), S_.shape)
    if mask is not None:
        seen = seen & mask
    P = plain_weights(S_, seen)
    dP = dy @ V.swapaxes(-1, -2)
    dS = P * (dP - np.sum(P * dP, axis=-1, keepdims=True)) * slope * scale
    group = (B, H_kv, H // H_kv, S, -1)
    dk = (dS.swapaxes(-1, -2) @ q).reshape(group).sum(2)
    dv = (P.swapaxes(-1, -2) @ dy).reshape(group).sum(2)
    with np.errstate(divide="ignore"):
        lse = np.log(np.sum(np.where(seen, np.exp(S_), 0), axis=-1))
    return P @ V, np.where(np.isinf(lse), np.inf, lse), P, dS @ K, dk, dv


@st.composite
def calls(draw):
    size = st.integers(1, 9)
    B, H_kv, G, T, S = draw(st.tuples(*[st.integers(1, 3)] * 3, size, size))
    shape = dict(B=B, H=H_kv * G, H_kv=H_kv, T=T, S=S, d_h=draw(size), d_v=draw(size))
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 10)),
        "scale": draw(st.none() | st.floats(-2, 2)),
        "softcap": draw(st.none() | st.floats(0.5, 30)),
    }
    masks = [(T, S), (1, 1, 1, S), (1, 1, T, S), (B, 1, 1, S), (B, 1, T, S), (B, H_kv * G, T, S)]
    mask = draw(st.none() | st.tuples(st.sampled_from(masks), st.sampled_from([0, 0.3, 0.8, 1])))
    return shape, options, mask, draw(st.integers(1, 9)), draw(st.integers(0, 99))


@given(calls())
def test_by_its_definition(call):
    """Every option at once, in panels of 1 to 9 queries."""
    shape, options, mask, panel, seed = call
    rng = np.random.default_rng(seed)
    inputs = arrays(rng, **shape)
    if mask is not None:
        options["mask"] = rng.random(mask[0]) < mask[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "PANEL", panel)
        with np.errstate(invalid="raise", divide="raise", over="raise"):
            out = run(*inputs, **options)
    for a, b in zip(out, definition(*inputs, **options), strict=True):
        assert a.shape == b.shape
        close(a, b, rtol=1e-12, atol=1e-13)
    nothing = np.isposinf(out[1])
    exact(out[0][nothing], 0)
    exact(out[2][nothing], 0)
    exact(out[3][nothing], 0)
    close(out[2].sum(-1), ~nothing, rtol=1e-14)


@pytest.mark.parametrize("p", [0.25, 0.9, 1.0])
def test_dropout_by_its_definition(p, rng):
    """Y = (P * Z) V with Z = 0 or 1 / (1 - p) from the hash of (number, head, query, key)."""
    q, k, v, dy = arrays(rng, H=3)
    y, saved = F.attention(q, k, v, dropout=p, rng=5)
    number = int(np.random.default_rng(5).integers(2**63))
    heads = np.arange(6).reshape(2, 3, 1, 1)
    Z = kept(number, heads, np.arange(7)[:, None], np.arange(11), p) / (1 - p if p < 1 else np.inf)
    P = F.attention_weights(saved)
    close(P, definition(q, k, v, dy)[2], rtol=1e-12)
    close(y, (P * Z) @ v, rtol=1e-12, atol=1e-14)
    close(F.attention_backward(dy, saved)[2], (P * Z).swapaxes(-1, -2) @ dy, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("panel", [1, 4, 128])
@pytest.mark.parametrize("block_bytes", [1, 1 << 9, 1 << 30])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_panels_and_groups_change_nothing(options, block_bytes, panel, rng, monkeypatch):
    inputs = arrays(rng, B=3, T=13, S=17)
    right = run(*inputs, **options)
    monkeypatch.setattr(dense, "PANEL", panel)
    monkeypatch.setattr(dense, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(parallel, "BLOCK_BYTES", block_bytes)
    for a, b in zip(run(*inputs, **options), right, strict=True):
        close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_for_any_number_of_threads(options, dtype, rng, monkeypatch):
    monkeypatch.setattr(dense, "PANEL", 16)
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 1 << 12)
    inputs = arrays(rng, B=2, T=33, S=35, dtype=dtype)
    before = parallel.threads()
    try:
        parallel.set_threads(1)
        one = run(*inputs, **options)
        for threads in (2, 3):
            parallel.set_threads(threads)
            for a, b in zip(run(*inputs, **options), one, strict=True):
                exact(a, b)
    finally:
        parallel.set_threads(before)


@pytest.mark.parametrize("method", ["complex", "central"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradient(options, method, rng, monkeypatch):
    monkeypatch.setattr(dense, "PANEL", 2)
    q, k, v, _ = arrays(rng, H=2, H_kv=1, T=3, S=5, d_h=3, d_v=2)
    mask = rng.random((2, 1, 3, 5)) < 0.8
    mask[1, 0, 2] = False
    pair = (F.attention, F.attention_backward)
    report = nf.gradcheck(pair, q, k, v, method=method, samples=16, mask=mask, **options)
    assert report.passed, report


@pytest.mark.parametrize(("H", "H_kv"), [(1, 1), (3, 3), (6, 2), (6, 1)])
def test_gradient_of_groups(H, H_kv, rng):
    q, k, v, _ = arrays(rng, H=H, H_kv=H_kv, T=2, S=3, d_h=2, d_v=3)
    report = nf.gradcheck((F.attention, F.attention_backward), q, k, v, causal=True)
    assert report.passed, report


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex128])
def test_dtype_stays(dtype, rng):
    inputs = arrays(rng, dtype=dtype)
    y, saved = F.attention(*inputs[:3], causal=True, softcap=2.0, dropout=0.2, rng=1)
    grads = F.attention_backward(inputs[3], saved)
    assert {a.dtype for a in (y, *grads)} == {np.dtype(dtype)}
    assert saved.lse.dtype == (np.float32 if dtype == np.float16 else dtype)


def test_half_precision_computes_in_float32(rng):
    inputs = [a.astype(np.float16) for a in arrays(rng)]
    wide = [a.astype(np.float32) for a in inputs]
    for a, b in zip(run(*inputs), run(*wide), strict=True):
        close(a.astype(np.float32), b, rtol=2e-3, atol=2e-3 * np.abs(b).max())
    large = [300 * inputs[0], 300 * inputs[1], inputs[2]]  # scores beyond 65504
    y, saved = F.attention(*large)
    right, saved_wide = F.attention(*(a.astype(np.float32) for a in large))
    assert saved.lse.max() > 65504
    close(y.astype(np.float32), right, rtol=1e-3, atol=1e-3)
    close(saved.lse, saved_wide.lse, rtol=1e-6)


@pytest.mark.parametrize("layout", ["plain", "as split_heads leaves it"])
def test_strided_inputs(layout, rng):
    """Queries, keys and values are views of (B, T, H d_h) in a layer."""
    inputs = arrays(rng)
    if layout != "plain":
        inputs = [np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2) for a in inputs]
    compact = run(*(np.array(a, order="C") for a in inputs), causal=True)
    for a, b in zip(run(*inputs, causal=True), compact, strict=True):
        close(a, b, rtol=1e-13, atol=1e-15)
    y, _ = F.attention(*inputs[:3])
    assert y.swapaxes(1, 2).flags.c_contiguous  # so that merging the heads copies nothing


def test_nothing_is_written_to(rng):
    inputs = arrays(rng)
    mask = rng.random((7, 11)) < 0.7
    for a in (*inputs, mask):
        a.flags.writeable = False
    q, k, v, dy = inputs
    y, saved = F.attention(q, k, v, mask=mask, causal=True)
    y0, lse0 = y.copy(), saved.lse.copy()
    first = F.attention_backward(dy, saved)
    for a, b in zip(first, F.attention_backward(dy, saved), strict=True):
        exact(a, b)
    exact(y, y0)
    exact(saved.lse, lse0)
    assert saved.q is q
    assert saved.v is v


def test_batch_rows_and_heads_are_independent(rng):
    q, k, v, dy = arrays(rng, B=3, H=4, H_kv=2)
    whole = run(q, k, v, dy, causal=True)
    for b in range(3):
        for g in range(2):
            part = (slice(b, b + 1), slice(2 * g, 2 * g + 2))
            keys = (part[0], slice(g, g + 1))
            alone = run(q[part], k[keys], v[keys], dy[part], causal=True)
            for n, (a, w) in enumerate(zip(alone, whole, strict=True)):
                close(a, w[part] if n < 4 else w[keys], rtol=1e-13, atol=1e-14)


def test_no_query_sees_its_future(rng):
    q, k, v, _ = arrays(rng, T=7, S=7)
    y, _ = F.attention(q, k, v, causal=True)
    for t in range(6):
        k2, v2 = k.copy(), v.copy()
        k2[:, :, t + 1 :], v2[:, :, t + 1 :] = 1e3, np.nan
        later = F.attention(q[:, :, : t + 1], k2[:, :, : t + 1], v2[:, :, : t + 1], causal=True)[0]
        close(later, y[:, :, : t + 1], rtol=1e-13)
        k2[:, :, t + 1 :], v2[:, :, t + 1 :] = 1e3, 1e3
        close(F.attention(q, k2, v2, causal=True)[0][:, :, : t + 1], y[:, :, : t + 1], rtol=1e-13)


def test_scores_that_exp_cannot_hold(rng):
    q, k, v, dy = arrays(rng)
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        for size in (1e4, 1e30):
            for a in run(size * q, k, v, dy, causal=True):
                assert not np.isnan(a).any()


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.booleans(),
    st.none() | st.integers(1, 9),
    st.integers(1, 9),
)
def test_panels_cover_what_is_visible(T, S, causal, window, panel):
    q, rules = np.zeros((1, 1, T, 1)), dense.Rules(Sight(T, S, causal, window), 1.0, None, 0, None)
    seen = visible_keys(T, S, causal=causal, window=window)
    covered = np.zeros((T, S), int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "PANEL", panel)
        for i, j in dense.panels(q, rules):
            covered[i, j] += 1
            if j.start < j.stop:
                assert seen[i, j.start].any()
                assert seen[i, j.stop - 1].any()
    exact(covered[seen], 1)
    assert covered.max() <= 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"q": np.zeros((2, 3, 4))}, ValueError, "q must have 4 axes"),
        ({"q": np.zeros((2, 2, 3, 4), int)}, TypeError, "q must be a floating-point array"),
        ({"k": np.zeros((2, 2, 5, 3))}, ValueError, "the same B and d_h"),
        ({"k": np.zeros((1, 2, 5, 4))}, ValueError, "the same B and d_h"),
        ({"v": np.zeros((2, 2, 6, 4))}, ValueError, "the same B and d_h"),
        ({"k": np.zeros((2, 0, 5, 4)), "v": np.zeros((2, 0, 5, 4))}, ValueError, "can't share"),
        ({"q": np.zeros((2, 3, 3, 4))}, ValueError, "can't share"),
        ({"window": 0}, ValueError, "window must be a whole number from 1 on, but is 0"),
        ({"window": 2.5}, ValueError, "window must be a whole number from 1 on, but is 2.5"),
        ({"window": True}, ValueError, "window must be a whole number from 1 on, but is True"),
        ({"window": "3"}, ValueError, "window must be a whole number from 1 on, but is '3'"),
        ({"causal": "no"}, ValueError, "causal must be true or false, but is 'no'"),
        ({"scale": np.nan}, ValueError, "scale must be a finite number, but is nan"),
        ({"scale": np.inf}, ValueError, "scale must be a finite number, but is inf"),
        ({"scale": "1"}, ValueError, "scale must be a finite number, but is '1'"),
        ({"scale": 1j}, ValueError, "scale must be a finite number, but is 1j"),
        ({"scale": 10**400}, ValueError, "scale must be a finite number, but is 100"),
        ({"softcap": 0.0}, ValueError, "softcap must be a positive number, but is 0.0"),
        ({"softcap": -1.0}, ValueError, "softcap must be a positive number, but is -1.0"),
        ({"softcap": np.inf}, ValueError, "softcap must be a positive number, but is inf"),
        ({"softcap": "5"}, ValueError, "softcap must be a positive number, but is '5'"),
        ({"dropout": 1.5}, ValueError, "must lie in"),
        ({"dropout": np.nan}, ValueError, "must lie in"),
        ({"dropout": "0.1"}, ValueError, "must lie in .* but is '0.1'"),
    ],
)
@pytest.mark.parametrize("kernel", ["attention", "flash_attention"])
def test_bad_input(kernel, change, error, words):
    call = {"q": np.zeros((2, 2, 3, 4)), "k": np.zeros((2, 2, 5, 4)), "v": np.zeros((2, 2, 5, 4))}
    getattr(F, kernel)(**call)
    with pytest.raises(error, match=words):
        getattr(F, kernel)(**call | change)
