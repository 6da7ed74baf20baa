"""Faults of attention beside a filled cache that people met in public projects."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases import case
from kernels import KERNELS

import npformer as nf
from npformer import functional as F

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal

PATTERNS = list(itertools.chain.from_iterable(
    # every way to cut 5 tokens into chunks
    ([np.diff([0, *cut, 5]).tolist() for cut in itertools.combinations(range(1, 5), n)])
    for n in range(5)
))  # fmt: skip


def cache_for(model, batch, capacity, fill=np.nan):
    """A cache whose unused slots would poison whatever read them."""
    cache = nf.KVCache(model.cfg, batch, capacity, dtype=np.float64)
    for a in (*cache.k, *cache.v):
        a[...] = fill
    return cache


# ------------------------------------------------------------------------ K01 the mask's offset


@pytest.mark.parametrize("kernel", KERNELS)
def test_k01_new_queries_see_the_cached_keys_and_not_each_others_future(kernel):
    c = case("K01")
    cached, new = c["input"]["cached"], c["input"]["new"]
    v = c["input"]["v"][None, None, :, None]
    exact(F.causal_mask(new, cached + new), c["right"]["mask"])
    y, _ = KERNELS[kernel][0](np.zeros((1, 1, new, 1)), np.ones_like(v), v, causal=True)
    close(y[0, 0, :, 0], c["right"]["out"], rtol=1e-14)
    for name, wrong in c["wrong"].items():
        assert np.abs(wrong - c["right"]["out"]).max() > 0.4, name


def test_k01_layer_with_a_cache():
    c = case("K01")
    v, cached = c["input"]["v"], c["input"]["cached"]
    cfg = nf.TransformerConfig(V=2, d=1, L=1, H=1, bias=False)
    layer = nf.MultiHeadAttention(cfg.attention(0), rng=0, dtype=np.float64)
    layer.Wq.W.value[...] = 0
    layer.Wv.W.value[...] = layer.Wo.W.value[...] = 1
    cache = nf.KVCache(cfg, 1, 5, dtype=np.float64)
    outputs = []
    for part in (v[:cached], v[cached:]):
        cache.extend(len(part))
        outputs.append(layer(part[None, :, None], cache=cache.layer(0))[0, :, 0])
    close(outputs[0], [1, 1.5, 2], rtol=1e-14)
    close(outputs[1], c["right"]["out"], rtol=1e-14)


# ------------------------------------------------------------------ K02 whole text = any chunks


def case_model():
    """The model of the case: embeddings, one attention of one head, tied logits, nothing else."""
    c = case("K02")["input"]
    draw = np.random.default_rng(c["seed"]).standard_normal
    V, T_max, d = c["V"], c["T_max"], c["d"]
    cfg = nf.TransformerConfig(
        V=V, d=d, L=1, H=1, T_max=T_max, bias=False, placement="pre", final_norm=False, d_ff=1
    )
    model = nf.DecoderLM(cfg, rng=0, dtype=np.float64)
    model.embedding.tokens.E.value[...] = draw((V, d))
    model.embedding.learned.P.value[...] = draw((T_max, d))
    for name in ("Wq", "Wk", "Wv", "Wo"):
        getattr(model.stack.blocks[0].attn, name).W.value[...] = c["attention_gain"] * draw((d, d))
    return model


class NoNorm(nf.Module):
    def forward(self, x):
        return x, None


def test_k02_logits_of_the_case():
    c = case("K02")
    model, ids = case_model(), c["input"]["ids"][None]
    block = model.stack.blocks[0]
    block.attn_norm = NoNorm()
    for p in block.ffn.parameters():
        p.value[...] = 0
    logits = model(ids)
    close(logits[0, -1], c["right"]["logits_last_row"], rtol=0, atol=1e-11)
    assert logits[0, -1].argmax() == c["right"]["greedy_next"]
    T = ids.shape[1]
    for a in range(T):
        for b in range(a, T):
            cache = cache_for(model, 1, T)
            chunks = [model(part, cache=cache) for part in np.split(ids, [a, b], 1) if part.size]
            close(np.concatenate(chunks, 1), logits, rtol=0, atol=1e-10)
    for wrong in c["wrong"].values():
        assert wrong > 20


MODELS = {
    "learned": {},
    "sinusoidal": {"positions": "sinusoidal"},
    "rope, grouped": {"positions": "rope", "H_kv": 1, "rope_layout": "half", "d_h": 4},
    "window, capped": {"positions": "rope", "window": 2, "softcap": 1.5, "logit_softcap": 3.0},
    "window by layer": {"positions": "none", "window": (1, None), "d_ff": (5, 7)},
    "post, qk norm": {"placement": "post", "qk_norm": "projection", "norm": "rmsnorm"},
    "sandwich": {"placement": "sandwich", "qk_norm": "head", "gated": True},
}


def make(name, dtype=np.float64):
    cfg = nf.TransformerConfig(**(dict(V=11, d=6, L=2, H=3, d_h=2, T_max=7) | MODELS[name]))
    model = nf.DecoderLM(cfg, rng=0, dtype=dtype)
    draw = np.random.default_rng(1)
    for p in model.parameters():
        p.value[...] = draw.standard_normal(p.value.shape)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_k02_any_chunks_give_the_logits_of_the_whole(name, rng):
    model, ids = make(name), rng.integers(0, 11, (2, 5))
    whole, _ = model.forward(ids)
    exact(model(ids), whole)
    for chunks in PATTERNS:
        cache = cache_for(model, 2, 5)
        parts = np.split(ids, np.cumsum(chunks)[:-1], axis=1)
        logits = [model(part, cache=cache) for part in parts]
        close(np.concatenate(logits, axis=1), whole, rtol=0, atol=1e-10)
    later = ids.copy()
    later[:, 3] = (later[:, 3] + 1) % 11
    changed = np.abs(model(later) - whole).max((0, 2))
    exact(changed[:3], 0)
    assert changed[3] > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_k02_single_precision(name, rng):
    model, ids = make(name, np.float32), rng.integers(0, 11, (2, 5))
    cache = nf.KVCache(model.cfg, 2, 5)
    logits = [model(ids[:, t : t + 1], cache=cache) for t in range(5)]
    whole = model(ids)
    assert logits[0].dtype == whole.dtype == np.float32
    close(np.concatenate(logits, 1), whole, rtol=0, atol=1e-4 * np.abs(whole).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_k02_padded_rows_are_the_rows_alone(name, side, rng):
    """Rows of different length in one batch: no logit of a real token notices the padding."""
    model, lengths = make(name), [3, 5, 1]
    texts = [rng.integers(0, 11, n) for n in lengths]
    ids, real = np.zeros((3, 5), int), np.zeros((3, 5), bool)
    for b, text in enumerate(texts):
        where = slice(5 - len(text), None) if side == "left" else slice(0, len(text))
        ids[b, where], real[b, where] = text, True
    alone = np.concatenate([model(text[None])[0] for text in texts])
    with np.errstate(invalid="raise", divide="raise"):
        whole, _ = model.forward(ids, real)
    close(whole[real], alone, rtol=0, atol=1e-10)
    for chunks in ([2, 3], [1, 1, 1, 1, 1], [4, 1]):
        cache = cache_for(model, 3, 5)
        ends = np.cumsum(chunks)[:-1]
        parts = zip(np.split(ids, ends, 1), np.split(real, ends, 1), strict=True)
        logits = np.concatenate([model(i, m, cache=cache) for i, m in parts], axis=1)
        close(logits[real], whole[real], rtol=0, atol=1e-10)
        exact(cache.lengths, lengths)


@pytest.mark.parametrize("name", MODELS)
def test_k02_text_that_goes_on_after_padding(name, rng):
    """Rows of different length, padded at the end, and two more tokens for each of them."""
    model, lengths = make(name), [3, 5, 1]
    texts = [rng.integers(0, 11, n + 2) for n in lengths]
    ids, real = np.zeros((3, 5), int), np.zeros((3, 5), bool)
    for b, n in enumerate(lengths):
        ids[b, :n], real[b, :n] = texts[b][:n], True
    cache = cache_for(model, 3, 7)
    model(ids, real, cache=cache)
    for step in range(2):
        new = np.array([[text[n + step]] for text, n in zip(texts, lengths, strict=True)])
        logits = model(new, cache=cache)
        for b, n in enumerate(lengths):
            alone = model(texts[b][None, : n + step + 1])[0, -1]
            close(logits[b, 0], alone, rtol=0, atol=1e-10, err_msg=f"row {b}, step {step}")


# ---------------------------------------------------------------- K04 what a cache carries over


def test_k04_a_full_cache_raises_and_stays_as_it_was(rng):
    model, ids = make("rope, grouped"), rng.integers(0, 11, (2, 5))
    cache = cache_for(model, 2, 4)
    first = model(ids[:, :3], cache=cache)
    with pytest.raises(ValueError, match="room for 4 tokens and holds 3: 2 more don't fit"):
        model(ids[:, 3:], cache=cache)
    with pytest.raises(IndexError):
        model(np.array([[11], [0]]), cache=cache)
    with pytest.raises(ValueError, match="made for 2 rows, but ids has 1"):
        model(ids[:1, 3:4], cache=cache)
    last = model(ids[:, 3:4], cache=cache)
    close(np.concatenate([first, last], 1), model(ids[:, :4]), rtol=0, atol=1e-10)


def test_k04_a_cache_that_was_reset_is_as_new(rng):
    model, long, short = make("learned"), rng.integers(0, 11, (1, 5)), rng.integers(0, 11, (1, 2))
    cache = cache_for(model, 1, 5)
    first = model(long, cache=cache)
    kept = first.copy()
    cache.reset()
    close(model(short, cache=cache), model(short), rtol=0, atol=1e-12)
    exact(first, kept)
    cache.reset()
    close(model(long, cache=cache), kept, rtol=0, atol=1e-12)
