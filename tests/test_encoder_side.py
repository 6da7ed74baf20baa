"""An encoder of its own sizes beside a decoder, and BERT's pooler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npformer as nf

SIZES = {"V": 13, "d": 12, "L": 2, "H": 6, "d_ff": 7, "T_max": 9, "init": "xavier"}


def shaken(model):
    """Move every parameter off its start, norms and biases too."""
    for i, p in enumerate(model.parameters()):
        p.value += 0.3 * np.random.default_rng(i).standard_normal(p.value.shape)
    return model


def test_the_encoder_has_its_own_sizes(rng):
    cfg = nf.TransformerConfig(
        **SIZES,
        placement="post",
        positions="sinusoidal",
        sinusoidal_layout="half",
        L_encoder=1,
        H_encoder=4,
        d_ff_encoder=5,
    )
    model = shaken(nf.EncoderDecoder(cfg, rng=0, dtype=np.float64))
    encoder, decoder = model.encoder.stack.blocks, model.stack.blocks
    assert (len(encoder), len(decoder)) == (1, 2)
    assert (encoder[0].attn.config.H, encoder[0].attn.config.d_h) == (4, 3)
    assert (decoder[0].attn.config.H, decoder[0].cross.config.H) == (6, 6)
    assert encoder[0].ffn.W1.W.value.shape == (12, 5)
    assert decoder[0].ffn.W1.W.value.shape == (12, 7)
    source, target = rng.integers(13, size=(2, 5)), rng.integers(13, size=(2, 3))
    mask = np.array([[True] * 5, [True] * 4 + [False]])
    report = nf.gradcheck(model, source, target, mask, method="direction")
    assert report.passed, report


def test_other_heads_share_the_same_width():
    cfg = nf.TransformerConfig(**SIZES, H_kv=2, d_h=10, H_encoder=4)
    encoder = cfg.encoder_side()
    assert (encoder.H, encoder.H_kv, encoder.d_h) == (4, 4, 15)
    assert encoder.encoder_side() == encoder
    same = nf.TransformerConfig(**SIZES, H_kv=2, H_encoder=6)
    assert same.encoder_side() is same


def test_layers_of_the_encoder():
    cfg = nf.TransformerConfig(
        **SIZES | {"d_ff": (5, 7)}, window=(3, None), placement=("pre", "post"), L_encoder=3
    )
    encoder = cfg.encoder_side()
    assert (encoder.L, encoder.d_ff, encoder.window, encoder.placement) == (3, 5, 3, "pre")
    alike = nf.TransformerConfig(**SIZES | {"d_ff": (5, 7)}, window=(3, None), L_encoder=2)
    assert (alike.encoder_side().d_ff, alike.encoder_side().window) == ((5, 7), (3, None))
    own = nf.TransformerConfig(**SIZES | {"d_ff": (5, 7)}, d_ff_encoder=11).encoder_side()
    assert (own.L, own.d_ff) == (2, 11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"L_encoder": 0}, "L_encoder must be a whole number from 1 on, but is 0"),
        ({"H_encoder": 2.0}, "H_encoder must be a whole number from 1 on, but is 2.0"),
        ({"d_ff_encoder": -1}, "d_ff_encoder must be a whole number from 1 on, but is -1"),
        ({"H_encoder": 5}, "H_encoder = 5 heads can't share the width H d_h = 12 equally"),
        ({"sinusoidal_layout": "neox"}, "sinusoidal_layout must be one of interleaved, half"),
    ],
)
def test_sizes_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        nf.TransformerConfig(**SIZES, **options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("decoder", {"pooler": True}, "pooler = True is for an encoder, but this is a decoder"),
        ("decoder", {"L_encoder": 3}, "L_encoder = 3 is for an encoder-decoder, but this is a dec"),
        ("decoder", {"H_encoder": 3}, "H_encoder = 3 is for an encoder-decoder, but this is a dec"),
        ("decoder", {"d_ff_encoder": 5}, "d_ff_encoder = 5 is for an encoder-decoder, but"),
        (
            "encoder",
            {"L_encoder": 3},
            "L_encoder = 3 is for an encoder-decoder, but this is an enc",
        ),
        ("encoder", {"head_bias": True}, "head_bias = True is for a decoder, but this is an enc"),
        ("encoder", {"logit_softcap": 5.0}, "logit_softcap = 5.0 is for a decoder, but"),
    ],
)
def test_what_a_kind_has_no_use_for_is_refused(kind, options, message):
    """By models and by accounts; not by the configuration, whose kind a model may set."""
    model = {"decoder": nf.DecoderLM, "encoder": nf.Encoder}[kind]
    for cfg in (
        nf.TransformerConfig(**SIZES, **options),
        nf.TransformerConfig(**SIZES, **options, kind=kind),
    ):
        with pytest.raises(ValueError, match=message):
            model(cfg, rng=0)
    for account in (nf.accounting.parameters, nf.accounting.weight_bytes):
        with pytest.raises(ValueError, match=message):
            account(cfg)
    nf.EncoderDecoder(nf.TransformerConfig(**SIZES, **options), rng=0)


def test_sizes_that_are_those_of_the_decoder_are_no_matter():
    same = nf.TransformerConfig(**SIZES, L_encoder=2, H_encoder=6, d_ff_encoder=7)
    for model in (nf.DecoderLM, nf.Encoder):
        assert model(same, rng=0).cfg.L == 2
    shorter = replace(nf.TransformerConfig(**SIZES), L=1)
    assert nf.DecoderLM(shorter, rng=0).cfg.encoder_side().L == 1


def test_an_encoder_beside_a_decoder_has_no_logits():
    cfg = nf.TransformerConfig(**SIZES, head_bias=True, logit_softcap=3.0, pooler=True)
    model = nf.EncoderDecoder(cfg, rng=0)
    mine = model.encoder.cfg
    assert (mine.head_bias, mine.logit_softcap, mine.pooler) == (False, None, True)
    assert (model.cfg.head_bias, model.head.b is None) == (True, False)
    assert nf.accounting.parameters(model.cfg).total == sum(
        p.value.size for p in model.parameters()
    )


def test_the_pooler_reads_the_first_token(rng):
    cfg = nf.TransformerConfig(**SIZES, pooler=True, token_types=2, embedding_norm=True)
    model = shaken(nf.Encoder(cfg, rng=0, dtype=np.float64))
    h = rng.standard_normal((2, 3, 12))
    y, _ = model.pool(h)
    W, b = model.pooler.W.value, model.pooler.b.value
    np.testing.assert_allclose(y, np.tanh(h[:, 0] @ W + b), rtol=0, atol=1e-14)

    class Pooler(nf.Module):
        """Only what `Encoder.pool` uses."""

        def __init__(self):
            self.pooler = model.pooler

        forward, backward = nf.Encoder.pool, nf.Encoder.pool_backward

    report = nf.gradcheck(Pooler(), h)
    assert report.passed, report
    assert len(report.rows) == 3  # h, W, b
    single = model.astype(np.float32)
    y, saved = single.pool(h.astype(np.float32))
    assert y.dtype == single.pool_backward(y, saved).dtype == np.float32


def test_an_encoder_without_a_pooler_says_so(rng):
    model = nf.Encoder(nf.TransformerConfig(**SIZES), rng=0)
    with pytest.raises(ValueError, match="this encoder has no pooler"):
        model.pool(rng.standard_normal((2, 3, 12)).astype(np.float32))
