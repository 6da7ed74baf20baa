"""The probes pass on right models and find each planted fault."""

import dataclasses

import numpy as np
import pytest

import npformer as nf

CFG = nf.TransformerConfig(V=11, d=12, L=2, H=3, T_max=9, init="xavier")


def not_causal(model):
    for block in model.stack.blocks:
        block.attn.config = dataclasses.replace(block.attn.config, causal=False)
    return model


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_right_models_pass(dtype):
    assert nf.check_causal(nf.DecoderLM(CFG, rng=0, dtype=dtype))
    assert nf.check_causal(nf.EncoderDecoder(CFG, rng=0, dtype=dtype))
    assert nf.check_padding(nf.DecoderLM(CFG, rng=0, dtype=dtype))
    report = nf.check_padding(nf.Encoder(CFG, rng=0, dtype=dtype))
    assert str(report).startswith("ok: padding by 3")


def test_a_missing_mask_is_found_and_named():
    report = nf.check_causal(not_causal(nf.DecoderLM(CFG, rng=0)))
    assert not report
    assert "position 0 sees its future" in str(report)
    assert not nf.check_causal(not_causal(nf.EncoderDecoder(CFG, rng=0)))


def test_a_leak_in_one_of_two_layers_is_found():
    model = nf.DecoderLM(CFG, rng=0)
    last = model.stack.blocks[1].attn
    last.config = dataclasses.replace(last.config, causal=False)
    assert not nf.check_causal(model)


def test_a_model_that_ignores_its_input_proves_nothing():
    model = nf.DecoderLM(CFG, rng=0)
    model.embedding.tokens.E.value[...] = 0
    assert "do not depend on their own tokens" in nf.check_causal(model).detail


def test_padding_that_is_seen_is_found(monkeypatch):
    model = nf.DecoderLM(CFG, rng=0)
    monkeypatch.setattr("npformer.models.padding_mask", lambda real: None)
    assert "in the padding on the left" in nf.check_padding(model).detail


def test_padding_of_a_source_that_is_seen_is_found(monkeypatch):
    model = nf.EncoderDecoder(CFG, rng=0)
    assert "padding of the source by 3 leaves" in nf.check_padding(model).detail
    monkeypatch.setattr("npformer.models.padding_mask", lambda real: None)
    assert "padding of the source changes the text" in nf.check_padding(model).detail


def test_positions_that_count_the_padding_are_found(monkeypatch):
    model = nf.DecoderLM(CFG, rng=0)
    monkeypatch.setattr("npformer.models.default_positions", lambda T, mask: np.arange(T))
    assert "padding on the left changes the text" in nf.check_padding(model).detail


def test_an_encoder_has_nothing_causal():
    with pytest.raises(TypeError, match="sees the whole text by design"):
        nf.check_causal(nf.Encoder(CFG, rng=0))


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("size", [1.0, 1e-5])
def test_a_leak_at_any_place_and_of_any_size_is_found(place, size):
    """Each bit counts: a mask of -1e4 in place of -inf leaks less than that."""

    class Leaking(nf.DecoderLM):
        def __call__(self, ids, *args, **options):
            y = super().__call__(ids, *args, **options)
            y[:, place] += size * ids[:, place + 1, None]
            return y

    report = nf.check_causal(Leaking(CFG, rng=0, dtype=np.float64))
    assert f"position {place} sees its future" in report.detail


def test_what_is_not_a_number_does_not_pass_for_the_same_text():
    class Broken(nf.DecoderLM):
        def __call__(self, ids, mask=None, **options):
            return super().__call__(ids, mask, **options) * (np.nan if mask is None else 1)

    assert "changes the text by nan" in nf.check_padding(Broken(CFG, rng=0)).detail
