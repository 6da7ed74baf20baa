"""KV caches: any chunks equal the whole text, whatever is stored, rolled, padded or reordered."""

from __future__ import annotations

import copy
import dataclasses
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npformer as nf
from npformer.cache import key_mask
from npformer.storage import Recent, quantise

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal

V = 11
DYNAMIC = {"rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 5}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.3],
    "long_factor": [2.0, 5.0],
    "original_max_position_embeddings": 5,
    "factor": 4.0,
}
MODELS = {
    "learned": {"positions": "learned"},
    "sinusoidal": {"positions": "sinusoidal", "d": 14, "H": 7, "H_kv": 7},
    "rope, half, yarn": {
        "positions": "rope",
        "rope_layout": "half",
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 4,
        },
    },
    "one key head, cap": {"positions": "rope", "H_kv": 1, "softcap": 1.5, "logit_softcap": 3.0},
    "window 3": {"positions": "rope", "window": 3},
    "window 1": {"positions": "none", "window": 1},
    "windows by turns": {
        "positions": "rope",
        "window": (4, None),
        "qk_norm": "head",
        "softcap": 2.0,
    },
    "two windows": {"positions": "learned", "window": (2, 5), "qk_norm": "projection"},
}


def make(name, dtype=np.float64, **options):
    base = dict(V=V, d=12, L=2, H=6, H_kv=2, d_h=4, d_ff=7, T_max=16, norm="rmsnorm")
    cfg = nf.TransformerConfig(**base | MODELS.get(name, {}) | options)
    model = nf.DecoderLM(cfg, rng=0, dtype=dtype)
    draw = np.random.default_rng(1)
    for p in model.parameters():
        p.value[...] = 0.7 * draw.standard_normal(p.value.shape)
    return model


def cache_for(model, batch, capacity, dtype=np.float64, **options):
    """A cache whose unused slots would poison whatever read them."""
    cache = nf.KVCache(model.cfg, batch, capacity, dtype, **options)
    if cache.k[0].dtype.kind == "f":
        for a in (*cache.k, *cache.v):
            a[...] = np.nan
    return cache


def fed(model, cache, ids, cuts, real=None):
    parts = [np.split(a, cuts, axis=1) for a in (ids, *([] if real is None else [real]))]
    logits = [model(*part, cache=cache) for part in zip(*parts, strict=True)]
    return np.concatenate(logits, axis=1)


# ------------------------------------------------------------- any chunks, any options, any cache

cuts_of = st.sets(st.integers(1, 12)).map(sorted)


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("name", MODELS)
@given(cuts=cuts_of, seed=st.integers(0, 99), padded=st.sampled_from(["none", "left", "right"]))
def test_any_chunks_equal_the_whole(name, rolling, cuts, seed, padded):
    rng = np.random.default_rng(seed)
    model, B, T = make(name), 3, 13
    ids, real = rng.integers(0, V, (B, T)), np.ones((B, T), bool)
    lengths = rng.integers(1, T + 1, B) if padded != "none" else np.full(B, T)
    for b, n in enumerate(lengths):
        real[b, : T - n if padded == "left" else T] = padded == "right"
        real[b, n if padded == "right" else T - n :] = padded != "right"
    assert (real.sum(1) == lengths).all()
    whole = model(ids, real)
    cache = cache_for(model, B, T, rolling=rolling)
    logits = fed(model, cache, ids, cuts, real)
    close(logits[real], whole[real], rtol=0, atol=1e-10)
    exact(cache.lengths, lengths)
    assert cache.length == T


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_rows_go_on_after_their_padding_as_if_alone(name, rolling, data):
    """Chunks that are padded on either side, several times: each row sees its own tokens only."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    model, B = make(name), 3
    cache = cache_for(model, B, 40, rolling=rolling)
    texts, got = [[] for _ in range(B)], [[] for _ in range(B)]
    for _ in range(4):
        T = data.draw(st.integers(1, 5))
        ids, real = rng.integers(0, V, (B, T)), np.zeros((B, T), bool)
        for b in range(B):
            n = data.draw(st.integers(0, min(T, 16 - len(texts[b]))))
            start = data.draw(st.integers(0, T - n))
            real[b, start : start + n] = True
            texts[b] += ids[b, start : start + n].tolist()
        logits = model(ids, real, cache=cache)
        for b in range(B):
            got[b] += list(logits[b, real[b]])
    for b in range(B):
        if texts[b]:
            alone = model(np.array([texts[b]]))[0]
            close(np.array(got[b]), alone, rtol=0, atol=1e-10)
    exact(cache.lengths, [len(t) for t in texts])


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_single_precision(name, rolling, rng):
    model, ids = make(name, np.float32), rng.integers(0, V, (2, 13))
    whole = model(ids)
    size = np.abs(whole).max()
    for cuts in ([5, 6, 7, 8], [1, 2, 12]):
        logits = fed(model, cache_for(model, 2, 13, np.float32, rolling=rolling), ids, cuts)
        assert logits.dtype == np.float32
        close(logits, whole, rtol=0, atol=1e-4 * size)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize("name", ["rope, half, yarn", "windows by turns"])
def test_rounded_keys_are_the_same_in_any_chunk(name, dtype, rng):
    model, ids = make(name), rng.integers(0, V, (2, 13))
    whole = model(ids)
    runs = [
        fed(model, cache_for(model, 2, 13, dtype, rolling=rolling), ids, cuts)
        for cuts in ([], list(range(1, 13)), [8], [3, 9])
        for rolling in (False, True)
    ]
    size = np.abs(whole).max()
    allowed = {np.float16: 1e-2, np.float32: 1e-6, np.int8: 0.15}[dtype] * size
    for logits in runs:
        close(logits, runs[0], rtol=0, atol=1e-10)
        close(logits, whole, rtol=0, atol=allowed)
    assert np.abs(runs[0] - whole).max() > 1e-3 * allowed


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
@pytest.mark.parametrize("name", ["rope, half, yarn", "windows by turns"])
def test_whatever_the_cache_stores_the_model_keeps_its_dtype(name, dtype, rng):
    for own in (np.float16, np.float32, np.float64):
        model, ids = make(name, own), rng.integers(0, V, (2, 13))
        for rolling in (False, True):
            cache = nf.KVCache(model.cfg, 2, 13, dtype, rolling=rolling)
            assert fed(model, cache, ids, [6, 7]).dtype == own
            assert cache.k[0].dtype == dtype


@pytest.mark.parametrize("name", ["window 3", "window 1", "windows by turns", "two windows"])
def test_a_rolling_layer_keeps_exactly_its_window_in_time_order(name, rng):
    model, ids = make(name), rng.integers(0, V, (2, 13))
    full, rolling = (cache_for(model, 2, 13, rolling=r) for r in (False, True))
    at = 0
    for T in (1, 6, 1, 1, 3, 1):  # chunks shorter and longer than the windows
        for cache in (full, rolling):
            model(ids[:, at : at + T], cache=cache)
        at += T
        for layer in range(2):
            w = model.cfg.at("window", layer) or 13
            n = min(at, w)
            assert rolling.k[layer].shape[2] == w
            for a, b in ((full.k, rolling.k), (full.v, rolling.v)):
                close(b[layer][:, :, :n], a[layer][:, :, at - n : at], rtol=0, atol=1e-12)
                assert np.isnan(b[layer][:, :, n:]).all()


def test_a16_decoding_with_a_rolling_cache_of_exactly_w_entries():
    """Uniform attention to 1 ... 6 with a window of 3."""
    cfg = nf.TransformerConfig(V=2, d=1, L=1, H=1, bias=False, window=3)
    layer = nf.MultiHeadAttention(cfg.attention(0), rng=0, dtype=np.float64)
    layer.Wq.W.value[...] = 0
    layer.Wv.W.value[...] = layer.Wo.W.value[...] = 1
    v = np.arange(1.0, 7.0)[None, :, None]
    for cuts in ([1, 2, 3, 4, 5], [], [4], [2, 3]):
        cache = nf.KVCache(cfg, 1, 6, np.float64, rolling=True)
        assert cache.k[0].shape == (1, 1, 3, 1)
        y = []
        for part in np.split(v, cuts, axis=1):
            cache.extend(part.shape[1])
            y.append(layer(part, cache=cache.layer(0)))
        close(np.concatenate(y, 1)[0, :, 0], [1, 1.5, 2, 3, 4, 5], rtol=1e-14)
        exact(cache.v[0][0, 0, :, 0], [4, 5, 6])


# --------------------------------------------------------- rotations that follow the length


@pytest.mark.parametrize("scaling", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("rolling", [False, True])
def test_each_call_rotates_every_key_at_the_length_it_has_reached(scaling, window, rolling, rng):
    """The exception to "chunks equal the whole", stated exactly.

    With one layer the logits of a call are those of the text up to its end, uncached.
    """
    model = make("", L=1, positions="rope", rope_scaling=scaling, window=window)
    ids = rng.integers(0, V, (2, 13))
    cache = cache_for(model, 2, 13, rolling=rolling)
    at, chunks = 0, []
    for T in (3, 1, 4, 1, 4):
        chunks.append(model(ids[:, at : at + T], cache=cache))
        at += T
        close(chunks[-1], model(ids[:, :at])[:, -T:], rtol=0, atol=1e-10)
    whole = model(ids)
    assert np.abs(np.concatenate(chunks, 1) - whole)[:, :5].max() > 1e-3
    # a short text after the long one is as if it came first
    cache.reset()
    close(model(ids[:, :4], cache=cache), model(ids[:, :4]), rtol=0, atol=1e-10)
    plain = make("", L=1, positions="rope", window=window)
    if scaling is DYNAMIC:
        exact(model(ids[:, :5]), plain(ids[:, :5]))


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("window", [None, 9])
def test_the_length_is_that_of_the_longest_row_even_when_it_rests(window, rolling, rng):
    options = dict(positions="rope", rope_scaling=DYNAMIC, window=window)
    model, ids = make("", L=1, **options), rng.integers(0, V, (2, 13))
    real = np.ones((2, 13), bool)
    real[1, :6] = real[0, 12] = False
    cache = cache_for(model, 2, 13, rolling=rolling)
    fed(model, cache, ids[:, :12], [5, 11], real[:, :12])
    last = model(ids[:, 12:], real[:, 12:], cache=cache)
    close(last[1], model(ids, real)[1, 12:], rtol=0, atol=1e-10)
    assert np.abs(last[1] - model(ids[1:, 6:])[0, -1:]).max() > 1e-4


def test_keys_are_kept_unrotated_where_the_rotation_follows_the_length(rng):
    model = make("", L=1, positions="rope", rope_scaling=DYNAMIC)
    ids = rng.integers(0, V, (1, 6))
    cache = cache_for(model, 1, 6)
    model(ids, cache=cache)
    x = model.stack.blocks[0].attn_norm(model.embedding.forward(ids, np.arange(6))[0])
    k = model.stack.blocks[0].attn.Wk(x)
    close(cache.k[0][0].swapaxes(0, 1).reshape(6, -1), k[0], rtol=1e-12)


# ------------------------------------------------------------------------------ 8 bits, and bytes


@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-20, 1.0, 3e4]))
def test_eight_bits_are_wrong_by_at_most_1_254_of_the_largest(seed, scale):
    rng = np.random.default_rng(seed)
    x = (scale * rng.standard_normal((2, 3, 5, 7)) * rng.choice([0, 1, 100], (2, 3, 5, 1))).astype(
        "f4"
    )
    q, s = quantise(x)
    assert (q.dtype, s.dtype, s.shape) == (np.int8, np.float32, (2, 3, 5, 1))
    assert np.abs(q.astype(int)).max() <= 127
    largest = np.abs(x).max(-1, keepdims=True)
    assert (np.abs(x - q * s) <= largest / 254 * (1 + 1e-5)).all()
    exact(np.abs(q).max(-1), np.where(largest[..., 0] > 0, 127, 0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
@pytest.mark.parametrize(("rolling", "slots"), [(False, 10 + 10), (True, 4 + 10)])
def test_bytes_by_the_formula(dtype, rolling, slots):
    cfg = make("windows by turns").cfg
    cache = nf.KVCache(cfg, 3, 10, dtype, rolling=rolling)
    numbers = 2 * 3 * cfg.H_kv * cfg.d_h * slots
    scales = 4 * 2 * 3 * cfg.H_kv * slots if dtype == np.int8 else 0
    assert cache.nbytes == numbers * np.dtype(dtype).itemsize + scales
    assert cache.nbytes < nf.KVCache(cfg, 3, 11, dtype, rolling=rolling).nbytes
    counted = nf.accounting.kv_cache_bytes(cfg, 3, 10, dtype, rolling=rolling)
    assert cache.nbytes == int(counted)


def test_a_window_as_long_as_the_capacity_does_not_roll(rng):
    model, ids = make("window 3"), rng.integers(0, V, (1, 3))
    for capacity in (2, 3):
        sizes = [nf.KVCache(model.cfg, 1, capacity, rolling=r).nbytes for r in (False, True)]
        assert sizes[0] == sizes[1]
    cache = cache_for(model, 1, 3, rolling=True)
    model(ids, cache=cache)
    cache.shrink(1)  # nothing was dropped
    with pytest.raises(ValueError, match="room for 3 tokens and holds 1: 3 more don't fit"):
        model(ids, cache=cache)


# ------------------------------------------------------------------- one token costs one token


def test_one_token_copies_nothing_of_the_cache(rng):
    """Keys and values stay views: memory of a step is small beside the cache, at any length."""
    model = make("", np.float32, positions="rope", d_h=64, T_max=4096)
    ids, cache = rng.integers(0, V, (1, 1)), nf.KVCache(model.cfg, 1, 4096)
    peaks = []
    for length in (1024, 4000):
        cache.extend(length - cache.length)
        model(ids, cache=cache)  # the threads and the caches of the libraries are there
        tracemalloc.start()
        model(ids, cache=cache)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    one_layer = 4000 * 2 * 64 * 4
    scores = 4000 * 6 * 4
    assert peaks[1] < 4 * scores + 100_000 < one_layer / 2
    y, saved = model.stack.blocks[0].attn.forward(
        np.ones((1, 1, 12), np.float32), cache=(cache.extend(1), cache.layer(0))[1]
    )
    for kept, stored in ((saved["attention"].k, cache.k[0]), (saved["attention"].v, cache.v[0])):
        assert np.shares_memory(kept, stored)
    assert y.shape == (1, 1, 12)


# --------------------------------------------------------------------- what a cache carries over


def test_a_failed_call_leaves_the_cache_as_it_was(rng):
    for name in MODELS:
        for rolling, dtype in ((False, np.float64), (True, np.float64), (True, np.int8)):
            model, ids = make(name), rng.integers(0, V, (2, 13))
            real = np.arange(13) >= np.array([[0], [4]])
            cache = cache_for(model, 2, 13, dtype, rolling=rolling)
            model(ids[:, :4], real[:, :4], cache=cache)
            model(ids[:, 4:5], cache=cache)
            before = copy.deepcopy(cache)
            for T in (1, 2, 7):
                broken = model.stack.blocks[1].ffn.W2.W
                good, broken.value = broken.value, broken.value[:-1]
                with pytest.raises(ValueError, match="last dimension"):
                    model(ids[:, 5 : 5 + T], cache=cache)
                broken.value = good
                assert cache.length == 5
                exact(cache.real[:, :5], before.real[:, :5])
                for layer in range(2):
                    n = min(5, cache.k[layer].shape[2])
                    exact(cache.k[layer][:, :, :n], before.k[layer][:, :, :n])
                    exact(cache.v[layer][:, :, :n], before.v[layer][:, :, :n])
            logits = [model(ids[:, 5:9], cache=c) for c in (cache, before)]
            exact(logits[0], logits[1])
            if dtype != np.int8:
                close(logits[0], model(ids[:, :9], real[:, :9])[:, 5:], rtol=0, atol=1e-10)


def test_going_back(rng):
    model, ids = make("learned"), rng.integers(0, V, (1, 6))
    cache = cache_for(model, 1, 6)
    model(ids, cache=cache)
    cache.shrink(9)
    assert cache.length == 6
    cache.shrink(2)
    close(model(ids[:, 2:5], cache=cache), model(ids)[:, 2:5], rtol=0, atol=1e-10)
    cache.shrink(0)
    close(model(ids, cache=cache), model(ids), rtol=0, atol=1e-10)


def test_going_back_with_a_rolling_cache(rng):
    model, ids = make("window 3"), rng.integers(0, V, (1, 6))
    cache = cache_for(model, 1, 6, rolling=True)
    model(ids[:, :2], cache=cache)
    model(ids[:, 2:3], cache=cache)
    cache.shrink(1)  # the window was not full yet
    model(ids[:, 1:5], cache=cache)
    with pytest.raises(ValueError, match="can't go back to 4 tokens: it has dropped some"):
        cache.shrink(4)
    assert cache.length == 5
    close(model(ids[:, 5:], cache=cache), model(ids)[:, 5:], rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="can't shrink to -1"):
        cache.shrink(-1)
    cache.reset()
    model(ids[:, :3], np.array([[True, True, False]]), cache=cache)  # padding moved to the front
    with pytest.raises(ValueError, match="can't go back to 2 tokens"):
        cache.shrink(2)
    close(model(ids[:, 2:3], cache=cache), model(ids[:, :3])[:, 2:], rtol=0, atol=1e-10)


def test_a_layer_used_by_itself_is_not_undone_twice(rng):
    """Outside of a model nothing says when a call is final, but the next one does."""
    cache = nf.KVCache(make("window 3").cfg, 1, 9, np.float64, rolling=True)
    kv = rng.standard_normal((2, 1, 2, 9, 4))
    for start, stop in ((0, 4), (4, 5)):
        cache.extend(stop - start)
        cache.layer(0).append(*kv[:, :, :, start:stop])
    cache.extend(1)  # and no append
    cache.shrink(5)
    exact(cache.k[0], kv[0][:, :, 2:5])
    cache.extend(2)
    cache.layer(0).append(*kv[:, :, :, 5:7])
    exact(cache.v[0], kv[1][:, :, 4:7])
    cache.shrink(5)
    exact(cache.v[0], kv[1][:, :, 2:5])


@pytest.mark.parametrize("dtype", [np.float64, np.int8])
@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("name", ["learned", "windows by turns", "two windows"])
def test_reordered_rows_go_on_as_the_rows_they_were(name, rolling, dtype, rng):
    model, ids = make(name), rng.integers(0, V, (3, 9))
    real = np.array([list("111111111"), list("000111111"), list("111000111")]) == "1"
    for rows in ([2, 0, 0], [0, 1, 2], [1, 1, 1], [2, 1, 0]):
        moved, straight = (cache_for(model, 3, 10, dtype, rolling=rolling) for _ in range(2))
        model(ids[:, :6], real[:, :6], cache=moved)
        model(ids[:, 6:8], cache=moved)
        moved.reorder(rows)
        model(ids[rows, :6], real[rows, :6], cache=straight)
        model(ids[rows, 6:8], cache=straight)
        exact(moved.lengths, straight.lengths)
        logits = [model(ids[:, 8:], cache=c) for c in (moved, straight)]
        close(logits[0], logits[1], rtol=0, atol=1e-12)


def test_positions_that_the_caller_gives(rng):
    model, ids = make("one key head, cap"), rng.integers(0, V, (2, 6))
    positions = np.array([[3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5]])
    whole = model(ids, positions=positions)
    cache = cache_for(model, 2, 6)
    first = model(ids[:, :4], positions=positions[:, :4], cache=cache)
    rest = model(ids[:, 4:], cache=cache)  # each row counts on from its last token
    close(np.concatenate([first, rest], 1), whole, rtol=0, atol=1e-10)
    exact(cache.positions, positions)


def test_a_layer_without_positions_counts_on(rng):
    cfg = make("rope, half, yarn").cfg
    layer = nf.MultiHeadAttention(cfg.attention(0), rng=0, dtype=np.float64)
    x = rng.standard_normal((2, 7, 12))
    cache = nf.KVCache(cfg, 2, 7, np.float64)
    y = []
    for part in np.split(x, [3, 4], axis=1):
        cache.extend(part.shape[1])
        y.append(layer(part, cache=cache.layer(1)))
    close(np.concatenate(y, axis=1), layer(x), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------- the other side


def test_keys_of_the_context_are_computed_once(rng):
    cfg = nf.TransformerConfig(V=V, d=12, L=2, H=6, H_kv=2, d_ff=7, T_max=16)
    model = nf.EncoderDecoder(cfg, rng=0, dtype=np.float64)
    source, target = rng.integers(0, V, (2, 5)), rng.integers(0, V, (2, 7))
    real = np.array([[True] * 5, [True] * 3 + [False] * 2])
    whole = model(source, target, real)
    cache = nf.KVCache(cfg, 2, 7, np.float64)
    first = model(source, target[:, :3], real, cache)
    kept = list(cache.cross)
    rest = [model(source, target[:, t : t + 1], real, cache) for t in range(3, 7)]
    close(np.concatenate([first, *rest], 1), whole, rtol=0, atol=1e-10)
    assert all(a is b for a, b in zip(kept, cache.cross, strict=True))
    assert kept[0][0].shape == (2, 2, 5, 2)

    swapped = [a[::-1] for a in (source, target, real)]
    cache.shrink(6)
    context = cache.context
    cache.reorder([1, 0])
    exact(cache.context, context[::-1])
    close(
        model(swapped[0], swapped[1][:, 6:], swapped[2], cache), whole[::-1, 6:], rtol=0, atol=1e-10
    )
    with pytest.raises(ValueError, match="holds a context of 5 tokens, but this one has 4"):
        model.stack.blocks[0].cross(np.ones((2, 1, 12)), np.ones((2, 4, 12)), cache=cache.layer(0))
    cache.reset()
    assert cache.context is None
    assert cache.cross == [None, None]
    close(
        model(source[:, ::-1], target, real[:, ::-1], cache),
        model(source[:, ::-1], target, real[:, ::-1]),
        rtol=0,
        atol=1e-10,
    )


def test_a_failed_call_leaves_no_context_behind(rng):
    cfg = nf.TransformerConfig(V=V, d=12, L=2, H=6, d_ff=7, T_max=4)
    model = nf.EncoderDecoder(cfg, rng=0, dtype=np.float64)
    cache = nf.KVCache(cfg, 1, 9, np.float64)
    ids = rng.integers(0, V, (1, 4))
    with pytest.raises(IndexError, match="beyond the table"):
        model(ids, np.zeros((1, 5), int), None, cache)
    assert cache.context is None
    assert cache.length == 0
    broken = model.stack.blocks[1].ffn.W2.W
    good, broken.value = broken.value, broken.value[:-1]
    with pytest.raises(ValueError, match="last dimension"):
        model(ids, ids, None, cache)  # block 0 has read the context already
    broken.value = good
    assert cache.context is None
    assert cache.cross == [None, None]
    model(ids, ids, None, cache)
    with pytest.raises(IndexError, match="beyond the table"):
        model(ids, ids[:, :1], None, cache)
    assert cache.context is not None
    assert cache.length == 4


# -------------------------------------------------------------------------------------- bad input


def test_bad_caches():
    cfg = make("learned").cfg
    for sizes in ((0, 3), (2, -1), (2, 2.5), (2.0, 3), (True, 3), (2, "9"), (None, 3)):
        words = "batch and capacity of 1 or more, whole numbers, not {!r}, {!r}".format(*sizes)
        with pytest.raises(ValueError, match=re.escape(words)):
            nf.KVCache(cfg, *sizes)
    for dtype, name in (
        (np.int64, "int64"),
        (complex, "complex128"),
        (np.complex64, "complex64"),
        (bool, "bool"),
        ("bfloat16", "'bfloat16'"),
        (3, "3"),
    ):
        with pytest.raises(TypeError, match=f"stores floating-point numbers or int8, not {name}$"):
            nf.KVCache(cfg, 1, 3, dtype)
    with pytest.raises(ValueError, match="rolling must be true or false, but is 'no'"):
        nf.KVCache(cfg, 1, 3, rolling="no")
    for other in (nf.preset("deepseek-v3"), None):
        with pytest.raises(TypeError, match="made for a TransformerConfig, but was given"):
            nf.KVCache(other, 1, 3)
    with pytest.raises(IndexError, match="made for 2 layers: none is number 2"):
        nf.KVCache(cfg, 1, 3).layer(2)


@pytest.mark.parametrize("capacity", [10**13, 10**18, 10**30])
def test_a_cache_that_no_memory_can_hold(capacity):
    """As much as an address reaches, more, and more than a size can be."""
    cfg = make("learned").cfg
    numbers = 2 * 3 * capacity * cfg.L * cfg.H_kv * cfg.d_h
    for dtype, size in ((np.float64, 8 * numbers), (np.int8, numbers + numbers // cfg.d_h * 4)):
        with pytest.raises(ValueError, match="and there is no room for it") as error:
            nf.KVCache(cfg, 3, capacity, dtype)
        words = f"a cache of 3 rows with {capacity} time slots needs {size / 1e9:.1f} GB"
        assert str(error.value).startswith(words)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_cache_for_another_number_of_layers(layers, kind):
    cfg = make("learned").cfg
    model = (nf.DecoderLM if kind == "decoder" else nf.EncoderDecoder)(cfg, rng=0)
    cache = nf.KVCache(dataclasses.replace(cfg, L=layers), 1, 5)
    ids = np.ones((1, 2), int)
    texts = (ids,) if kind == "decoder" else (ids, ids)
    for call in (model, model.forward):
        words = f"made for {layers} layers, but this model has 2"
        with pytest.raises(ValueError, match=words):
            call(*texts, cache=cache)
    assert (cache.length, cache.context) == (0, None)


def test_a_cache_that_rolls_more_than_the_model_allows(rng):
    ids = rng.integers(0, V, (1, 6))
    model = make("windows by turns")  # 4 and all
    for windows, words in (
        ((3, None), "last 3 tokens in layer 0, but .* window there is 4"),
        ((None, 5), "last 5 tokens in layer 1, but .* window there is None"),
    ):
        cfg = dataclasses.replace(model.cfg, window=windows)
        with pytest.raises(ValueError, match=words):
            model(ids, cache=nf.KVCache(cfg, 1, 6, rolling=True))
        model(ids, cache=nf.KVCache(cfg, 1, 6))
    cache = nf.KVCache(
        dataclasses.replace(model.cfg, window=(5, None)), 1, 6, np.float64, rolling=True
    )
    close(fed(model, cache, ids, [5]), model(ids), rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [-1, 1.5, None, True])
def test_bad_lengths(length):
    cache = nf.KVCache(make("learned").cfg, 2, 5)
    cache.extend(3)
    with pytest.raises(ValueError, match="can't shrink to"):
        cache.shrink(length)
    assert cache.length == 3


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0,), ValueError, "extended by 1 token or more, not by 0"),
        ((6,), ValueError, "room for 5 tokens and holds 0: 6 more don't fit"),
        ((2, [[1, 1], [1, 0]]), TypeError, "real must be boolean, True = a token, but .* int64"),
        ((2, [True, True]), ValueError, r"real must have shape \(2, 2\), not \(2,\)"),
        ((2, None, [0.0, 1.0]), TypeError, "positions must be integers"),
        ((2, None, [[0, 1]]), ValueError, r"shape \(2,\) or \(2, 2\), not \(1, 2\)"),
        ((2, None, [0, -1]), ValueError, "positions must be 0 or more"),
    ],
)
def test_bad_extensions(arguments, error, words):
    cache = nf.KVCache(make("learned").cfg, 2, 5)
    with pytest.raises(error, match=words):
        cache.extend(*arguments)
    assert cache.length == 0


@pytest.mark.parametrize("rows", [[0], [0, 1, 2], [0, 2], [-1, 0], [0.0, 1.0], 1])
def test_bad_orders(rows):
    cache = nf.KVCache(make("learned").cfg, 2, 5)
    with pytest.raises(ValueError, match="rows must"):
        cache.reorder(rows)


def test_keys_that_do_not_fit(rng):
    cfg = make("learned").cfg
    cache = nf.KVCache(cfg, 2, 5)
    kv = rng.standard_normal((2, 2, 2, 3, 4))
    with pytest.raises(ValueError, match=r"extended by 0 tokens, so it takes .* shape"):
        cache.layer(0).append(*kv)
    cache.extend(3)
    cache.layer(0).append(*kv)
    for bad in (kv[:, :1], kv[:, :, :, :2], kv[..., :3]):
        with pytest.raises(ValueError, match=r"by 3 tokens, so it takes .* \(2, 2, 3, 4\), but"):
            cache.layer(0).append(*bad)
    layer = nf.MultiHeadAttention(nf.AttentionConfig(d=12, H=6, H_kv=2, d_h=4), rng=0)
    with pytest.raises(ValueError, match="a cache needs causal attention"):
        layer(np.ones((2, 3, 12), np.float32), cache=cache.layer(0))


def test_masks_of_keys():
    real = np.array([[True, False], [True, True]])
    mask = key_mask(real)
    exact(mask, real[:, None, None])
    assert not np.shares_memory(mask, real)
    assert key_mask(np.ones((2, 3), bool)) is None


@given(seed=st.integers(0, 99), window=st.integers(1, 60), parts=st.lists(st.integers(1, 70)))
def test_a_window_keeps_the_last_tokens_of_each_row_in_time_order(seed, window, parts):
    T = sum(parts)
    real = np.random.default_rng(seed).random((3, T)) < np.array([[0.9], [0.3], [1.0]])
    recent, at = Recent(window, 3), 0
    for part in parts:
        recent.extend(at, part, real)
        at += part
        for b in range(3):
            tokens = np.flatnonzero(real[b, :at])[-window:]
            slots = recent.slots[b]
            exact(slots[real[b, slots]], tokens)
            exact(slots[len(slots) - len(tokens) :], tokens)
            assert len(slots) == min(window, at)
            assert set(tokens) <= set(recent.seen[b].tolist())
            if real[b, at - 1]:
                assert recent.seen[b, -1] == at - 1


def test_what_a_window_keeps():
    """Row 0 has padding between its tokens, row 1 has none."""
    recent, real = Recent(3, 2), np.array([[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]], bool)
    recent.extend(0, 4, real)
    exact(recent.seen, [[0, 1, 2, 3]] * 2)
    exact(recent.slots, [[3, 0, 1], [1, 2, 3]])
    exact(recent.mask[:, 0, 0], real[:, :4])
    recent.extend(4, 1, real)
    exact(recent.seen, [[0, 1, 4], [2, 3, 4]])
    assert recent.mask is None
    recent.extend(5, 1, real)
    exact(recent.slots, [[1, 4, 5], [3, 4, 5]])
