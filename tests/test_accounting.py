"""Parameters and shapes against what models hold and compute, and against published numbers."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from many_configs import CLASSES, config, some_configs

import npformer as nf
from npformer import accounting, tree
from npformer.accounting import (
    activation_bytes,
    attention_pairs,
    flops,
    kv_cache_bytes,
    parameters,
    shapes,
    training_bytes,
)


def group_of(name: str) -> str:
    """The group of a parameter by its name in the model."""
    if "norm" in name:
        return "norm"
    if ".attn." in name or ".cross." in name:
        return "attention"
    if ".ffn." in name:
        return "feed-forward"
    return "head" if name.startswith(("head.", "pooler.", "encoder.pooler.")) else "embedding"


# ------------------------------------------------------------------------------ parameters


def test_parameters_by_group_are_those_of_the_model():
    for cfg in some_configs(60):
        model, account = CLASSES[cfg.kind](cfg, rng=0), parameters(cfg)
        walked = dict.fromkeys(accounting.counts.GROUPS, 0)
        for name, p in model.named_parameters():
            walked[group_of(name)] += p.value.size
        assert account.groups == walked, cfg
        assert account.total == account.active == sum(walked.values())
        assert sum(r.share for r in account.rows) == pytest.approx(1)
        for r in account.rows:
            assert r.per_layer is None or r.per_layer * r.layers == r.count


def test_the_chapters_example():
    account = parameters(nf.preset("chapter-12-layer"))
    block = {r.part: r.per_layer for r in account.rows if r.layers}
    assert block == {
        "attention matrices": 2_359_296,
        "attention biases": 3_072,
        "feed-forward matrices": 4_718_592,
        "feed-forward biases": 3_840,
        "norms": 3_072,
    }
    assert account.block == 7_087_872
    shares = [100 * block[part] / account.block for part in block]
    assert [round(s, 3) for s in shares] == [33.286, 0.043, 66.573, 0.054, 0.043]
    assert sum(r.count for r in account.rows if r.layers) == 12 * account.block == 85_054_464
    assert account.total == 109_632_000
    assert round(account.groups["embedding"] / account.total, 3) == 0.224
    untied = parameters(replace(nf.preset("chapter-12-layer"), tied=False))
    assert round(1 - untied.non_embedding / untied.total, 3) == 0.366


def test_layers_that_differ_have_no_number_of_one():
    assert parameters(nf.preset("gpt2")).block == 7_087_872
    for cfg, parts in [
        (config(d_ff=(4, 6, 8)), {"feed-forward matrices", "feed-forward biases"}),
        (config(d_ff=4, placement=("pre", "sandwich", "output")), {"norms"}),
        (nf.preset("deepseek-v2"), set()),  # one layer of 60 has no experts
        (nf.preset("transformer-base"), set()),  # two kinds of blocks
    ]:
        account = parameters(cfg)
        assert {r.part for r in account.rows if r.layers and r.per_layer is None} == parts
        assert account.block is None


def test_the_ledger_of_llama_2_7b_done_right():
    account = parameters(nf.preset("llama-2-7b"))
    rows = {r.part: r for r in account.rows}
    assert rows["attention matrices"].per_layer == 67_108_864
    assert rows["feed-forward matrices"].per_layer == 135_266_304
    both = rows["attention matrices"].count + rows["feed-forward matrices"].count
    assert both == 6_476_005_376
    assert rows["token embedding"].count == rows["output matrix"].count == 131_072_000
    assert account.total == 6_738_415_616
    assert round(100 * rows["feed-forward matrices"].share, 2) == 64.24
    # The rows of text B: groups of 8 and one table. They do not add up to its sum.
    given = parameters(replace(nf.preset("llama-2-7b"), H_kv=8, tied=True))
    rows = {r.part: r for r in given.rows}
    assert rows["attention matrices"].per_layer == 41_943_040 == 5 * 4096**2 // 2
    both = rows["attention matrices"].count + rows["feed-forward matrices"].count
    assert both == 5_670_699_008
    assert both + rows["token embedding"].count == 5_801_771_008
    assert round(rows["feed-forward matrices"].count / both, 3) == 0.763


def test_two_thirds_is_not_general():
    share = {
        name: round(100 * parameters(nf.preset(name)).groups["feed-forward"] / total, 1)
        for name in ("qwen3-0.6b", "gemma-2-27b")
        if (total := parameters(nf.preset(name)).total)
    }
    assert share == {"qwen3-0.6b": 44.3, "gemma-2-27b": 86.1}


def test_numbers_without_embeddings():
    for name, n in {
        "qwen2.5-0.5b": 357_898_112,
        "qwen2.5-7b": 6_525_621_760,
        "qwen2.5-72b": 70_214_787_072,
        "gemma-2-2b": 2_024_517_888,
        "gemma-2-9b": 8_324_201_984,
        "gemma-2-27b": 26_047_480_320,
    }.items():
        assert parameters(nf.preset(name)).non_embedding == n, name
    blocks = {n: parameters(nf.preset(f"transformer-{n}")).non_embedding for n in ("base", "big")}
    assert blocks == {"base": 44_101_632, "big": 176_283_648}


@pytest.mark.parametrize(
    ("name", "attention_of_a_layer", "active"),
    [("deepseek-v2", 149_227_520, 21_375_800_320), ("deepseek-v3", 187_107_328, 37_552_297_472)],
)
def test_experts_total_and_active(name, attention_of_a_layer, active):
    account = parameters(nf.preset(name))
    latent = [r for r in account.rows if r.group == "attention" or "latent" in r.part]
    assert sum(r.per_layer for r in latent) == attention_of_a_layer
    assert account.active == active
    experts = next(r for r in account.rows if r.part == "experts")
    cfg = nf.preset(name)
    assert experts.active * cfg.experts == experts.count * cfg.top_k
    if name == "deepseek-v3":
        assert account.total == 671_026_404_352 + 14_848  # the second number balances the load
        assert active - cfg.V * cfg.d == 36_625_618_432


# ---------------------------------------------------------------------------------- shapes


def test_the_chapters_shape_table():
    rows = {r.operation: r for r in shapes(nf.preset("chapter-12-layer"), B=8, T=512)}
    d2 = 768**2
    expected = {
        "token embedding": ((8, 512, 768), 32000 * 768),
        "scores q k^T": ((8, 12, 512, 512), 0),
        "softmax over the keys": ((8, 12, 512, 512), 0),
        "weighted values P v": ((8, 12, 512, 64), 0),
        "joined heads, Wo": ((8, 512, 768), d2),
        "norm before attention": ((8, 512, 768), 2 * 768),
        "feed-forward W1": ((8, 512, 3072), 4 * d2),
        "feed-forward W2": ((8, 512, 768), 4 * d2),
        "logits, by the tied table": ((8, 512, 32000), 0),
    }
    for name, (shape, weights) in expected.items():
        assert (rows[name].shape, rows[name].weights) == (shape, weights), name
    projections = [rows[f"{x} x W{x[0]}"] for x in ("queries", "keys", "values")]
    assert {r.shape for r in projections} == {(8, 12, 512, 64)}
    assert sum(r.weights for r in projections) == 3 * d2
    # Two rows grow with T squared, and the logits are larger than either of them.
    quadratic = [r for r in rows.values() if r.quadratic]
    assert [r.elements for r in quadratic] == [25_165_824] * 2
    assert rows["logits, by the tied table"].elements == 131_072_000
    assert rows["token embedding"].weights == 24_576_000


def test_the_rows_of_the_table_hold_all_parameters():
    for cfg in [*some_configs(60), *map(nf.preset, nf.presets())]:
        rows = shapes(cfg, 2, 5, source=7)
        assert sum(r.times * (r.weights + r.biases) for r in rows) == parameters(cfg).total
        assert all(len(r.shape) == len(r.symbols) and min(r.shape) > 0 for r in rows)


def test_shapes_are_those_of_a_forward_pass():
    cfg = config(gated=True, kind="encoder-decoder", positions="rope", L_encoder=2, tied=False)
    B, T, S = 2, 5, 7
    model = nf.EncoderDecoder(cfg, rng=0)
    logits, saved = model.forward(np.zeros((B, S), int), np.zeros((B, T), int))
    rows = shapes(cfg, B, T, source=S)
    assert rows[-1].shape == logits.shape
    for side, path, keys in [
        ("encoder: ", "encoder.stack.blocks.0.attn", S),
        ("decoder: ", "stack.blocks.0.attn", T),
        ("cross-attention: ", "stack.blocks.0.cross", S),
    ]:
        found = {r.operation.removeprefix(side): r for r in rows if r.operation.startswith(side)}
        (kept,) = tree.select(saved, f"{path}.attention").values()
        length = S if side == "encoder: " else T
        assert found["queries x Wq"].shape == kept.q.shape == (B, 6, length, 10)
        assert found["keys x Wk"].shape == kept.k.shape == (B, 2, keys, 10)
        assert found["values x Wv"].shape == kept.v.shape
        assert found["weighted values P v"].shape == kept.y.shape
        assert found["scores q k^T"].shape == nf.functional.attention_weights(kept).shape
    (kept,) = tree.select(saved, "stack.blocks.2.ffn.activation").values()
    w1 = next(r for r in rows if r.operation == "decoder: feed-forward W1")
    assert (w1.shape, w1.times, w1.layers) == (kept.derivative.shape, 3, "1-3")


def test_layers_that_differ_are_listed_apart():
    rows = shapes(config(d_ff=(5, 7, 5), placement=("pre", "post", "pre")), 2, 3)
    w1 = [r for r in rows if r.operation == "feed-forward W1"]
    assert [(r.shape[-1], r.times, r.layers) for r in w1] == [(5, 2, "1, 3"), (7, 1, "2")]


# ------------------------------------------------------------------------ large and bad input


def test_the_largest_models_are_accounted_for_without_memory():
    tracemalloc.start()
    for name in ("llama-3.1-405b", "gpt3-175b", "deepseek-v3"):
        cfg = nf.preset(name)
        parameters(cfg), shapes(cfg, 1024, 131072), training_bytes(cfg, zero=3, data=512)
        flops(cfg, 1024, 131072, convention="causal"), kv_cache_bytes(cfg, 1024, 131072)
        if name != "deepseek-v3":
            activation_bytes(cfg, 1024, 131072)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6
    assert flops(nf.preset("llama-3.1-405b"), 1, 8192).total > 6 * 405e9 * 8192


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: kv_cache_bytes(c, 0, 5), ValueError, "B must be a whole number from 1 on"),
        (lambda c: kv_cache_bytes(c, 1, 5.0), ValueError, r"T must be .* but is 5\.0"),
        (lambda c: kv_cache_bytes(c, 1, 5, "float12"), ValueError, "dtype must be one of float64"),
        (lambda c: kv_cache_bytes(c, 1, 5, "nonsense"), ValueError, "but is 'nonsense'"),
        (lambda c: kv_cache_bytes(c, 1, 5, 3), ValueError, "dtype must be one of .* but is 3"),
        (lambda c: kv_cache_bytes(c, 1, 5, source=-1), ValueError, "source must be a whole"),
        (
            lambda c: kv_cache_bytes(c, 1, 5, source=3),
            ValueError,
            "read by an encoder-decoder, but",
        ),
        (
            lambda _: kv_cache_bytes(nf.preset("bert-base"), 1, 5),
            ValueError,
            "bert-base generates nothing",
        ),
        (lambda c: flops(c, 1, 5, 4), ValueError, "must be T = 5 or more, but is 4"),
        (lambda c: flops(c, 1, 5, convention="both"), ValueError, "convention must be one of"),
        (lambda c: attention_pairs(3, 3, convention=""), ValueError, "but is ''"),
        (lambda c: shapes(c, 1, True), ValueError, "T must be a whole number .* but is True"),
        (lambda c: training_bytes(c, zero=4), ValueError, "zero must be 0, 1, 2 or 3, but is 4"),
        (lambda c: training_bytes(c, data=0), ValueError, "data must be a whole number"),
        (lambda c: training_bytes(c, tensor=4), ValueError, "heads H = 6 can't be shared by 4"),
        (lambda c: training_bytes(c, tensor=3), ValueError, "d_ff = 11 can't be shared by 3"),
        (
            lambda _: training_bytes(config(d_ff=12, H=12, H_kv=4, d_h=2), tensor=3),
            ValueError,
            "H_kv = 4 heads can't be shared by 3",
        ),
        (lambda c: training_bytes(c, pipeline=4), ValueError, "3 layers can't be shared by 4"),
        (
            lambda _: training_bytes(nf.preset("bert-base"), tensor=2),
            ValueError,
            "counted for decoders, but this is an encoder",
        ),
        (
            lambda _: activation_bytes(nf.preset("deepseek-v2"), 1, 5),
            TypeError,
            "no layers for deepseek-v2 here",
        ),
        (lambda c: activation_bytes(c, 1, 5, source=0), ValueError, "source must be"),
    ],
)
def test_bad_input_is_one_sentence(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call(config())
    assert "\n" not in str(caught.value)
