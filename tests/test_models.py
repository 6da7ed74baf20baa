"""Whole models: gradients, causality, padding, caches, ties, dtypes, and what they refuse."""

import itertools

import numpy as np
import pytest

import npformer as nf
from npformer import buffers, tree

V, T, B = 13, 7, 3
SMALL = {"V": V, "d": 12, "L": 2, "H": 6, "T_max": T, "init": "xavier"}
CONFIGS = {
    "pre": {},
    "post": {"placement": "post"},
    "mixed placements": {"placement": ("post", "pre")},
    "relu xavier untied": {"activation": "relu", "tied": False, "positions": "none"},
    "llama": {
        "norm": "rmsnorm",
        "gated": True,
        "activation": "silu",
        "positions": "rope",
        "H_kv": 2,
        "bias": False,
        "d_ff": 17,
    },
    "gemma": {
        "norm": "rmsnorm",
        "norm_offset": 1.0,
        "placement": "sandwich",
        "gated": True,
        "positions": "rope",
        "rope_layout": "half",
        "H_kv": 3,
        "d_h": 10,
        "window": (3, None),
        "softcap": 2.0,
        "logit_softcap": 3.0,
        "scale": 0.3,
        "embedding_scale": 3.5,
        "bias": False,
    },
    "qwen3": {
        "norm": "rmsnorm",
        "positions": "rope",
        "qk_norm": "head",
        "H_kv": 1,
        "qkv_bias": False,
    },
    "olmo2": {
        "norm": "rmsnorm",
        "placement": "output",
        "qk_norm": "projection",
        "positions": "rope",
    },
    "sinusoidal recomputed": {"positions": "sinusoidal", "recompute": True, "head_bias": True},
}


def shaken(model, seed=0):
    """Every parameter of order one: at its start a bias or a gain hides half of all faults."""
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        p.value[...] += 0.3 * rng.standard_normal(p.value.shape)
    return model


def decoder(name="pre", dtype=np.float64, **more):
    cfg = nf.TransformerConfig(**{**SMALL, **CONFIGS[name], **more})
    return shaken(nf.DecoderLM(cfg, rng=0, dtype=dtype))


def text(seed=0):
    rng = np.random.default_rng(seed)
    ids, targets = rng.integers(0, V, (2, B, T))
    mask = np.ones((B, T), bool)
    mask[1, :2] = False
    targets[0, 3] = -100
    return ids, targets, mask


@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_of_the_loss(name):
    model = decoder(name)
    ids, targets, mask = text()
    report = nf.gradcheck(
        (model.loss, model.loss_backward), ids, targets, method="direction", mask=mask
    )
    assert report.passed, report


@pytest.mark.parametrize("name", ["pre", "post", "gemma"])
def test_gradient_with_dropout(name):
    model = decoder(name, dropout=0.2, attention_dropout=0.3)
    ids, targets, _ = text()
    report = nf.gradcheck(
        (model.loss, model.loss_backward), ids, targets, method="direction", rng=5
    )
    assert report.passed, report
    assert model.loss(ids, targets, rng=5)[0] != model.loss(ids, targets, rng=6)[0]
    assert model.loss(ids, targets, rng=5)[0] == model.loss(ids, targets, rng=5)[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_later_tokens_change_nothing_before(name):
    model = decoder(name)
    ids, _, _ = text()
    before = model(ids)
    ids[:, 4:] = (ids[:, 4:] + 1) % V
    after = model(ids)
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_nothing(name):
    model = decoder(name, T_max=20)
    rng = np.random.default_rng(0)
    row = rng.integers(0, V, (1, 4))
    alone = model(row)
    padded = np.zeros((1, 7), int)
    padded[:, 3:] = row
    mask = np.arange(7)[None] >= 3
    np.testing.assert_allclose(model(padded, mask)[:, 3:], alone, rtol=1e-11, atol=1e-11)
    padded[:, :3] = 5  # whatever stands in the padding
    np.testing.assert_allclose(model(padded, mask)[:, 3:], alone, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5, 6), (3,), (6,), (1, 5)])
def test_cached_chunks_equal_the_whole(name, cuts):
    model = decoder(name)
    ids, _, mask = text()
    whole = model(ids, mask)
    cache = nf.KVCache(model.cfg, B, T, dtype=np.float64)
    edges = [0, *cuts, T]
    parts = [model(ids[:, a:b], mask[:, a:b], cache=cache) for a, b in itertools.pairwise(edges)]
    np.testing.assert_allclose(
        np.concatenate(parts, axis=1)[mask], whole[mask], rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_inference_equals_forward_and_float32_stays(name):
    model = decoder(name, np.float32)
    ids, targets, mask = text()
    logits, saved = model.forward(ids, mask)
    np.testing.assert_array_equal(model(ids, mask), logits)
    assert logits.dtype == np.float32
    assert {a.dtype for _, a in tree.leaves(saved)} <= {
        np.dtype(t) for t in (np.float32, np.int64, np.bool_)
    }
    _, saved = model.loss(ids, targets, mask=mask)
    model.loss_backward(1.0, saved)
    assert {p.grad.dtype for p in model.parameters()} == {np.dtype(np.float32)}


def test_a_second_forward_between_does_not_matter():
    model = decoder()
    ids, targets, _ = text()
    _, saved = model.loss(ids, targets)
    model.loss_backward(1.0, saved)
    once = [p.grad for p in model.parameters()]
    model.zero_grad()
    _, saved = model.loss(ids, targets)
    model.loss((ids + 1) % V, targets)
    model((ids + 2) % V)
    model.loss_backward(1.0, saved)
    for p, g in zip(model.parameters(), once, strict=True):
        np.testing.assert_array_equal(p.grad, g)
    model.loss_backward(1.0, saved)
    for p, g in zip(model.parameters(), once, strict=True):
        np.testing.assert_allclose(p.grad, 2 * g, rtol=1e-12)


def test_tied_weights_are_one_parameter_with_both_gradients():
    model = decoder()
    assert model.head.E is model.embedding.tokens.E
    names = [name for name, _ in model.named_parameters()]
    assert "embedding.tokens.E" in names
    assert "head.E" not in names
    untied = decoder(tied=False)
    untied.head.E.value[...] = untied.embedding.tokens.E.value
    for (_, p), (name, q) in zip(
        model.named_parameters(),
        ((n, q) for n, q in untied.named_parameters() if n != "head.E"),
        strict=True,
    ):
        q.value[...] = p.value
        assert p.value.shape == q.value.shape, name
    untied.head.E.value[...] = model.head.E.value
    ids, targets, _ = text()
    for m in (model, untied):
        _, saved = m.loss(ids, targets)
        m.loss_backward(1.0, saved)
    np.testing.assert_allclose(
        model.head.E.grad, untied.head.E.grad + untied.embedding.tokens.E.grad, rtol=1e-10
    )
    for copied in (model.astype(np.float32), model.astype(np.float64)):
        assert copied.head.E is copied.embedding.tokens.E


def test_inference_keeps_one_blocks_memory():
    import tracemalloc

    ids = np.zeros((4, 64), int)

    def peak(L, run):
        model = nf.DecoderLM(nf.TransformerConfig(V=11, d=64, L=L, H=4, T_max=64), rng=0)
        run(model)  # the threads and the caches of the libraries are there
        buffers.release()  # memory kept from earlier would not be counted
        tracemalloc.start()
        run(model)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    shallow, deep = (peak(L, lambda model: model(ids)) for L in (2, 8))
    assert deep < 1.2 * shallow
    shallow, deep = (peak(L, lambda model: model.forward(ids)) for L in (2, 8))
    assert deep > 2 * shallow


# ------------------------------------------------------------------------- encoder, enc-dec


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"placement": "post", "activation": "gelu", "token_types": 2, "embedding_norm": True},
        {"positions": "rope", "norm": "rmsnorm", "gated": True, "H_kv": 2, "window": 3},
    ],
)
def test_encoder(options):
    model = shaken(nf.Encoder(nf.TransformerConfig(**SMALL, **options), rng=0, dtype=np.float64))
    ids, _, mask = text()
    more = {"token_types": ids % 2} if "token_types" in options else {}
    report = nf.gradcheck(model, ids, method="direction", mask=mask, **more)
    assert report.passed, report
    h = model(ids, mask, **more)
    assert h.shape == (B, T, 12)
    np.testing.assert_array_equal(h, model.forward(ids, mask, **more)[0])
    changed = ids.copy()
    changed[1, 0] = (changed[1, 0] + 1) % V  # a padded place
    np.testing.assert_array_equal(model(changed, mask, **more)[1, 2:], h[1, 2:])
    changed[0, 6] = (changed[0, 6] + 1) % V  # a real one is seen by those before it
    assert not np.allclose(model(changed, mask, **more)[0, 4], h[0, 4])


@pytest.mark.parametrize(
    "options",
    [{}, {"placement": "post", "positions": "sinusoidal"}, {"L_encoder": 3, "tied": False}],
)
def test_encoder_decoder(options):
    cfg = nf.TransformerConfig(**{**SMALL, **options})
    model = shaken(nf.EncoderDecoder(cfg, rng=0, dtype=np.float64))
    rng = np.random.default_rng(0)
    source, (target, wanted) = rng.integers(0, V, (B, 5)), rng.integers(0, V, (2, B, T))
    mask = np.ones((B, 5), bool)
    mask[0, 3:] = False
    report = nf.gradcheck(
        (model.loss, model.loss_backward),
        source,
        target,
        wanted,
        method="direction",
        source_mask=mask,
    )
    assert report.passed, report

    whole = model(source, target, mask)
    cache = nf.KVCache(cfg, B, T, dtype=np.float64)
    parts = [model(source, target[:, i : i + 1], mask, cache=cache) for i in range(T)]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-10, atol=1e-10)

    hidden = source.copy()
    hidden[0, 3:] = (hidden[0, 3:] + 1) % V
    np.testing.assert_array_equal(model(hidden, target, mask), whole)
    later = target.copy()
    later[:, 5:] = (later[:, 5:] + 1) % V
    np.testing.assert_array_equal(model(source, later, mask)[:, :5], whole[:, :5])
    other = source.copy()
    other[:, 0] = (other[:, 0] + 1) % V
    assert not np.allclose(model(other, target, mask)[:, 0], whole[:, 0])


# ------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (np.array([[0, V]]), IndexError, rf"\[0, {V}\), but one of them is {V}"),
        (np.array([[0, -1]]), IndexError, "one of them is -1"),
        (np.array([[0.0, 1.0]]), TypeError, "must be integers"),
        (np.array([[True, False]]), TypeError, "must be integers"),
        (np.array([0, 1]), ValueError, r"shape \(B, T\)"),
        (np.zeros((2, 0), int), ValueError, "at least one row and one token"),
        (np.zeros((0, 2), int), ValueError, "at least one row and one token"),
        (np.zeros((1, T + 1), int), IndexError, f"beyond the table of T_max = {T}"),
    ],
)
def test_ids_that_a_model_refuses(ids, error, words):
    with pytest.raises(error, match=words):
        decoder()(ids)


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        (np.ones((B, T)), TypeError, "mask must be boolean"),
        (np.ones((T, T), bool), ValueError, r"must have the shape \(3, 7\)"),
    ],
)
def test_masks_that_a_model_refuses(mask, error, words):
    with pytest.raises(error, match=words):
        decoder()(text()[0], mask)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d": 13}, "d = 13 is not divisible by H = 6"),
        ({"H_kv": 4}, "H = 6 query heads can't share H_kv = 4"),
        ({"V": 0}, "V must be a whole number from 1 on, but is 0"),
        ({"L": 2.0}, "L must be a whole number from 1 on, but is 2.0"),
        ({"norm": "batchnorm"}, "norm must be one of layernorm, rmsnorm, but is 'batchnorm'"),
        ({"placement": "before"}, "placement must be one of pre, post"),
        ({"placement": ("pre",)}, "one for each of the L = 2 layers, but it has 1"),
        ({"activation": "swish"}, "activation must be one of"),
        ({"positions": "alibi"}, "positions must be one of"),
        ({"positions": "rope", "d_h": 5}, "even and at most d_h = 5, but is 5"),
        ({"positions": "rope", "rotary_dim": 4}, "at most d_h = 2, but is 4"),
        ({"positions": "sinusoidal", "d": 9, "H": 3}, "even d, but d = 9"),
        ({"norm_offset": 1.0}, "norm_offset needs norm='rmsnorm'"),
        ({"dropout": 1.5}, r"dropout must lie in \[0, 1\], but is 1.5"),
        ({"init": "zeros"}, "init must be one of"),
        ({"d_ff": 0}, "d_ff must be a whole number"),
        ({"window": (3, 0)}, "window must be 1 or more"),
        ({"kernel": "fast"}, "kernel must be one of"),
        ({"qk_norm": "both"}, "qk_norm must be None"),
        ({"L": 10**9}, "L must be at most 100000, but is 1000000000"),
        ({"tied": "no"}, "tied must be true or false, but is 'no'"),
        ({"head_bias": 1}, "head_bias must be true or false, but is 1"),
        ({"final_norm": "yes"}, "final_norm must be true or false"),
        ({"out_bias": "x"}, "out_bias must be true or false"),
        *(
            ({name: value}, f"^{name} must be true or false, but is {value!r}")
            for name in ("bias", "qkv_bias", "out_bias", "ffn_bias", "gated", "recompute")
            for value in (1, "yes", 0.0)
        ),
        ({"embedding_scale": 10**400}, "embedding_scale must be a finite number, but is 100"),
        ({"token_types": -2}, "token_types must be a whole number from 0 on, but is -2"),
        ({"token_types": 2.5}, "token_types must be a whole number"),
        ({"embedding_scale": float("nan")}, "embedding_scale must be a finite number"),
        ({"embedding_scale": None}, "embedding_scale must be a finite number"),
        ({"norm_offset": "a"}, "norm_offset must be a finite number"),
        ({"dropout": "a"}, "dropout must be a finite number"),
        ({"logit_softcap": 0}, "logit_softcap must be positive, but is 0"),
        ({"logit_softcap": float("inf")}, "logit_softcap must be a finite number"),
        ({"norm": ["layernorm"]}, "norm must be one of"),
        ({"placement": {}}, "placement must be one of"),
    ],
)
def test_configurations_that_contradict_themselves(options, words):
    with pytest.raises(ValueError, match=words):
        nf.TransformerConfig(**{**SMALL, **options})


def test_a_whole_number_of_numpy_will_do():
    assert nf.TransformerConfig(**{**SMALL, "V": np.int64(17)}).V == 17


def test_a_cache_that_is_full_or_of_the_wrong_size():
    model = decoder()
    ids, _, _ = text()
    cache = nf.KVCache(model.cfg, B, 5, dtype=np.float64)
    model(ids[:, :3], cache=cache)
    with pytest.raises(ValueError, match="room for 5 tokens and holds 3: 4 more don't fit"):
        model(ids[:, 3:], cache=cache)
    assert cache.length == 3
    with pytest.raises(ValueError, match="made for 3 rows, but ids has 1"):
        model(ids[:1, :1], cache=cache)
    logits, saved = model.forward(ids[:, 3:4], cache=cache)
    with pytest.raises(ValueError, match="no backward after a forward pass with a cache"):
        model.backward(logits, saved)


def test_the_same_seed_gives_the_same_weights():
    a, b = (nf.DecoderLM(nf.TransformerConfig(**SMALL), rng=3) for _ in range(2))
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        np.testing.assert_array_equal(p.value, q.value)
