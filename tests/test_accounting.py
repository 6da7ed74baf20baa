"""Accounts against what models really allocate and compute, and against published numbers."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import case

import npformer as nf
from npformer import accounting, attention, linear, masks, stack, tree
from npformer.accounting import (
    activation_bytes,
    attention_flops,
    attention_pairs,
    flops,
    kv_cache_bytes,
    parameters,
    shapes,
    training_bytes,
    weight_bytes,
)

CLASSES = {"decoder": nf.DecoderLM, "encoder": nf.Encoder, "encoder-decoder": nf.EncoderDecoder}
PLACEMENTS = ("pre", "post", "sandwich", "output")


def config(**changes: Any) -> nf.TransformerConfig:
    """Sizes that are all different."""
    sizes: dict[str, Any] = {"V": 13, "d": 14, "L": 3, "H": 6, "H_kv": 2, "d_h": 10, "d_ff": 11}
    return nf.TransformerConfig(**{**sizes, "T_max": 17, **changes})


def some_configs(n: int) -> list[nf.TransformerConfig]:
    """Configurations drawn from everything that a count depends on."""
    rng, found = np.random.default_rng(5), []

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    def maybe(p: float = 0.5) -> bool:
        return bool(rng.random() < p)

    for kind in itertools.islice(itertools.cycle(CLASSES), n):
        norm, L = one_of("layernorm", "rmsnorm"), one_of(1, 2, 3)
        positions = one_of("learned", "sinusoidal", "rope", "none")
        H, H_kv = one_of((3, 3), (6, 2), (4, 1), (6, 3))
        found.append(
            config(
                kind=kind,
                norm=norm,
                L=L,
                L_encoder=one_of(None, 2),
                H_encoder=one_of(None, 1),
                d_ff_encoder=one_of(None, 9),
                H=H,
                H_kv=H_kv,
                d_h=one_of(10, 2, 6),
                d_ff=one_of(7, None, tuple(range(3, 3 + L))),
                placement=one_of(*PLACEMENTS, tuple(one_of(*PLACEMENTS) for _ in range(L))),
                activation=one_of("gelu", "gelu_tanh", "relu", "silu", "tanh"),
                gated=maybe(),
                positions=positions,
                rotary_dim=2 if positions == "rope" and maybe(0.3) else None,
                bias=maybe(),
                qkv_bias=one_of(None, True, False),
                out_bias=one_of(None, True),
                ffn_bias=one_of(None, False),
                tied=maybe(),
                window=one_of(None, 3, (2,) * L),
                softcap=one_of(None, 5.0),
                logit_softcap=one_of(None, 3.0),
                qk_norm=one_of(None, "head", "projection"),
                norm_offset=1.0 if norm == "rmsnorm" and maybe(0.4) else 0.0,
                embedding_scale=one_of(1.0, 2.0),
                final_norm=one_of(None, True, False),
                token_types=one_of(0, 2),
                embedding_norm=maybe(0.3),
                pooler=maybe(0.3),
                head_bias=maybe(0.3),
                dropout=one_of(0.0, 0.3),
                attention_dropout=one_of(0.0, 0.2),
                kernel=one_of("dense", "flash", "auto"),
                recompute=maybe(0.25),
            )
        )
    return found


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


# ------------------------------------------------------------------------------ operations


def test_attention_flops_of_known_faults():
    c03 = case("C03")
    square, right = c03["input"]["square"], c03["right"]
    args = square["B"], square["H"], square["T"], square["T"], square["d"]
    assert attention_flops(*args, causal=True) == right["square"]["dense"] == 65_536
    exact = attention_flops(*args, causal=True, convention="causal")
    assert exact == right["square"]["causal_exact"] == 34_816
    r, right = c03["input"]["rectangular"], c03["right"]["rectangular"]
    args = r["B"], r["H"], r["Tq"], r["Tk"], r["dk"], r["dv"]
    assert attention_flops(*args, causal=True) == right["dense"]
    assert attention_pairs(4, 10, causal=True, convention="causal") == right["allowed_pairs"]
    counts = [attention_flops(*args, causal=True, convention=c) for c in ("causal", "half")]
    assert counts == [right["causal_exact"], right["rectangle_plus_half_square_convention"]]
    assert counts == [1_632, 1_536]
    for convention in ("dense", "causal"):
        step = attention_flops(1, 1, 1, 10, 8, causal=True, convention=convention)
        assert step == c03["right"]["decode_step"]["flops"] == 320
    # Without causality nothing is halved.
    assert attention_flops(1, 1, 4, 10, 8, convention="half") == 2 * 4 * 10 * 16


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 40])
def test_visible_pairs_are_those_of_the_mask(causal, window):
    for T, S in itertools.product((1, 2, 5, 11), (1, 3, 5, 13)):
        sight = masks.Sight(T, S, causal, window)
        seen = masks.visible(np.arange(T)[:, None], np.arange(S), sight)
        count = attention_pairs(T, S, causal=causal, window=window, convention="causal")
        assert count == np.count_nonzero(seen), (T, S)
        assert attention_pairs(T, S, causal=causal, window=window) == T * S


class Counter:
    """Counts the operations of every matrix product of the package's layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[int] = []
        for module in (linear, stack):
            monkeypatch.setattr(module, "matmul", self.counting(module.matmul, self.product))
        monkeypatch.setattr(attention, "times", self.counting(attention.times, self.times))
        monkeypatch.setattr(attention, "summed", self.counting(attention.summed, self.summed))

    @staticmethod
    def product(a: Any, b: Any) -> int:
        return 2 * a.shape[0] * a.shape[1] * b.shape[1]

    @staticmethod
    def times(A: Any, B: Any) -> int:
        return 2 * A.size * B.shape[-1]

    @staticmethod
    def summed(A: Any, B: Any) -> int:
        return 2 * A.size * B.shape[-1]

    def counting(self, f: Any, count: Any) -> Any:
        def counted(a: Any, b: Any, *rest: Any) -> Any:
            self.found.append(count(a, b))
            return f(a, b, *rest)

        return counted

    def take(self) -> int:
        total, self.found = sum(self.found), []
        return total


def ids_of(cfg: nf.TransformerConfig, B: int, T: int, source: int) -> list[Any]:
    rng = np.random.default_rng(3)
    lengths = (source, T) if cfg.kind == "encoder-decoder" else (T,)
    return [rng.integers(0, cfg.V, (B, n)) for n in lengths]


@pytest.mark.parametrize("seed", range(24))
def test_operations_are_those_of_the_products(seed, monkeypatch):
    cfg = replace(some_configs(24)[seed], kernel="dense")
    counter = Counter(monkeypatch)
    # One query at a time: then the kernel computes the visible pairs and no others.
    monkeypatch.setattr(attention, "PANEL", 1)
    B, T, source = 2, 5, 7
    model = CLASSES[cfg.kind](cfg, rng=0)
    y, saved = model.forward(*ids_of(cfg, B, T, source))
    account = flops(cfg, B, T, source=source, convention="causal")
    assert counter.take() == account.forward
    model.backward(np.ones_like(y), saved)
    assert counter.take() == account.backward + account.recomputed
    assert account.total == 3 * account.forward


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("window", [None, 3])
def test_operations_of_a_step_with_a_cache(kind, window, monkeypatch):
    cfg = config(kind=kind, window=window, L_encoder=2, tied=False)
    model, ids = CLASSES[kind](cfg, rng=0), ids_of(cfg, 2, 8, 7)
    cache = nf.KVCache(cfg, 2, 8)
    model.forward(*ids[:-1], ids[-1][:, :5], cache=cache)
    counter = Counter(monkeypatch)
    monkeypatch.setattr(attention, "PANEL", 1)
    model.forward(*ids[:-1], ids[-1][:, 5:7], cache=cache)  # two more, of 7
    account = flops(cfg, 2, 2, 7, source=7, convention="causal")
    assert counter.take() == account.forward
    model.forward(*ids[:-1], ids[-1][:, 7:], cache=cache)
    assert counter.take() == flops(cfg, 2, 8, source=7, convention="causal").decoding_step


def test_a_token_costs_two_operations_for_each_parameter_of_a_matrix():
    for name in ("gpt2", "llama-2-7b", "qwen3-8b"):
        cfg = nf.preset(name)
        account, rows = flops(cfg, 3, 11), parameters(cfg).rows
        matrices = sum(r.count for r in rows if "matrices" in r.part)
        products = sum(
            r.forward for r in account.rows if r.part not in ("scores", "weighted values", "logits")
        )
        assert products == 2 * 3 * 11 * matrices
        assert account.rows[-1].forward == 2 * 3 * 11 * cfg.V * cfg.d  # tied or not


def test_attention_passes_the_rest_of_a_step_beyond_6_d_tokens():
    d = 4096
    cfg = nf.TransformerConfig(V=2, d=d, L=1, H=32, bias=False)  # 12 d^2 in the matrices
    for S, less in ((6 * d - 1, True), (6 * d, None), (6 * d + 1, False)):
        rows = {r.part: r.forward for r in flops(cfg, 1, 1, S).rows}
        attended = rows.pop("scores") + rows.pop("weighted values")
        rest = sum(rows.values()) - rows["logits"]
        assert attended == 4 * S * d
        assert (attended == rest) if less is None else (attended < rest) is less


def test_experts_by_hand():
    cfg = accounting.operations.ExpertsConfig(
        V=11, d=7, L=3, H=2, q_rank=5, kv_rank=4, d_nope=3, d_rope=2, d_v=6, d_ff=13,
        dense_layers=1, d_expert=3, experts=5, shared_experts=1, top_k=2,
    )  # fmt: skip
    B, T = 2, 9
    token = 2 * B * T
    attention_matrices = 7 * 5 + 5 * 2 * 5 + 7 * (4 + 2) + 4 * 2 * (3 + 6) + 2 * 6 * 7
    networks = 3 * 7 * 13 + 2 * (3 * 7 * 3 * (2 + 1) + 7 * 5)
    products = token * (3 * attention_matrices + networks + 7 * 11)
    account = flops(cfg, B, T)
    assert account.forward == products + 3 * 2 * B * 2 * T * T * (5 + 6)
    causal = flops(cfg, B, T, convention="causal")
    assert causal.forward == products + 3 * 2 * B * 2 * T * (T + 1) // 2 * (5 + 6)
    # A step reads the latent vectors: the same matrices once, scores over 4 + 2, values over 4.
    step = products // T + 3 * 2 * B * 2 * T * (6 + 4)
    assert account.decoding_step == flops(cfg, B, 1, T).forward == step
    active = parameters(cfg)
    assert sum(r.active for r in active.rows if r.group == "feed-forward") == networks


# ------------------------------------------------------------------------- cache and weights

PER_TOKEN = {
    "gpt2": 36_864,
    "llama-2-7b": 524_288,
    "llama-2-13b": 819_200,
    "llama-2-70b": 327_680,
    "llama-3-8b": 131_072,
    "llama-3-70b": 327_680,
    "llama-3.1-405b": 516_096,
    "llama-3.2-1b": 32_768,
    "llama-3.2-3b": 114_688,
    "qwen2.5-0.5b": 12_288,
    "qwen2.5-7b": 57_344,
    "qwen2.5-72b": 327_680,
    "qwen3-0.6b": 114_688,
    "qwen3-8b": 147_456,
    "gemma-2-2b": 106_496,
    "gemma-2-9b": 344_064,
    "gemma-2-27b": 376_832,
    "mistral-7b": 131_072,
    "deepseek-v2": 69_120,
    "deepseek-v3": 70_272,
}


def test_cache_bytes_of_a_token():
    for name, n in PER_TOKEN.items():
        cache = kv_cache_bytes(nf.preset(name), 3, 7, "bfloat16")
        assert cache.per_token == n, name
        assert cache == 3 * 7 * n


def test_the_chapters_caches():
    cfg = nf.TransformerConfig(V=32000, d=4096, L=32, H=32)
    sizes = {k: kv_cache_bytes(replace(cfg, H_kv=k), 1, 8192) for k in (32, 8, 1)}
    assert list(sizes.values()) == [4_294_967_296, 1_073_741_824, 134_217_728]
    assert [s.gib for s in sizes.values()] == [4, 1, 0.125]
    assert (sizes[32].per_token, sizes[32].per_layer // 8192) == (524_288, 16_384)
    matrices = 12 * 32 * 4096**2
    assert weight_bytes(cfg) > 2 * matrices == 12_884_901_888
    assert [2 * matrices // s for s in sizes.values()] == [3, 12, 96]  # rows until it is as large
    cfg = nf.TransformerConfig(V=2, d=2048, L=24, H=16)  # question 4
    sizes = {k: kv_cache_bytes(replace(cfg, H_kv=k), 1, 4096) for k in (16, 4)}
    assert (sizes[16], sizes[4]) == (805_306_368, 201_326_592)
    assert (sizes[16].gib, sizes[4].gib) == (0.75, 0.1875)
    # Text B section 2.7: one head of 32 layers, written 4096^2 x 2 bytes x 32.
    assert 4096**2 * 2 * 32 == 2**30


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", np.float32, np.dtype("f8")])
def test_cache_bytes_are_those_of_the_cache(dtype):
    for cfg in (config(), config(H_kv=1, window=3), config(H=3, H_kv=3, d_h=2)):
        cache, account = nf.KVCache(cfg, 2, 7, np.dtype(dtype)), kv_cache_bytes(cfg, 2, 7, dtype)
        assert account == cache.nbytes == account.per_token * 2 * 7
        assert account.per_layer == cache.k[0].nbytes + cache.v[0].nbytes
    cfg = config(kind="encoder-decoder", L_encoder=2)
    model, ids = nf.EncoderDecoder(cfg, rng=0, dtype=dtype), ids_of(cfg, 2, 5, 7)
    cache = nf.KVCache(cfg, 2, 5, np.dtype(dtype))
    model.forward(*ids, cache=cache)
    cross = sum(a.nbytes for kv in cache.cross for a in kv)
    assert kv_cache_bytes(cfg, 2, 5, dtype, source=7) == cache.nbytes + cross


def test_a_rolling_cache_keeps_no_more_than_the_window():
    mistral, gemma = nf.preset("mistral-7b"), nf.preset("gemma-2-2b")
    assert kv_cache_bytes(mistral, 1, 8192, rolling=True) * 2 == kv_cache_bytes(mistral, 1, 8192)
    assert kv_cache_bytes(mistral, 1, 4096, rolling=True) == kv_cache_bytes(mistral, 1, 4096)
    short, long = (kv_cache_bytes(gemma, 1, T, rolling=True) for T in (4096, 8192))
    assert long * 2 == short * 3  # every other layer has stopped growing
    assert (short.per_token, long.per_token) == (53_248, 53_248)
    assert kv_cache_bytes(gemma, 1, 4095, rolling=True).per_token == 106_496


# -------------------------------------------------------------------------------- training


def test_sixteen_bytes_a_parameter():
    n, cfg = 6_738_415_616, nf.preset("llama-2-7b")
    account = training_bytes(cfg)
    assert account == 16 * n
    assert [size // n for _, size in account.rows] == [2, 2, 4, 4, 4]
    assert (round(account.gb, 1), round(account.gib, 1)) == (107.8, 100.4)
    assert round(weight_bytes(cfg).gb, 2) == 13.48
    # Text B section 7: 7e9 parameters ask for 112 GB, and 98 without the gradients.
    assert sum(size for _, size in accounting.memory.ITEMS) * 7e9 == 112e9
    assert account.gb > 80
    assert (account - account.rows[1][1]) / n == 14


def test_zero_divides_what_it_says():
    cfg = config()
    n, N = parameters(cfg).total, 64
    share = -(-n // N)
    expected = (16 * n, 4 * n + 12 * share, 2 * n + 14 * share, 16 * share)
    assert tuple(training_bytes(cfg, zero=z, data=N) for z in range(4)) == expected
    # The paper's figure: 7.5e9 parameters take 120 GB, and on 64 devices 31.4, 16.6 and 1.9.
    cfg = nf.preset("llama-2-7b")
    whole = training_bytes(cfg)
    ratios = [training_bytes(cfg, zero=z, data=64) / whole for z in (1, 2, 3)]
    assert [round(120 * r, 1) for r in ratios] == [31.4, 16.6, 1.9]
    assert training_bytes(cfg, zero=0, data=64) == whole
    assert training_bytes(cfg, zero=3, data=2).gb < 80


def slice_of(name: str, shape: tuple[int, ...], tensor: int, heads: dict[str, int]) -> int:
    """Numbers of one parameter on one device: columns, rows or all of it."""
    layer, _, kind = name.rpartition(".")
    last = layer.rpartition(".")[2]
    if kind == "E" and "types" not in name:
        return -(-shape[0] // tensor) * shape[1]
    if last in ("Wq", "Wk", "Wv", "W1", "W3"):
        # Fewer key-value heads than devices: each holds one.
        part = max(shape[-1] // tensor, heads["d_h"]) if last in ("Wk", "Wv") else None
        columns = shape[-1] // tensor if part is None else part
        return columns * (shape[0] if kind == "W" else 1)
    if last in ("Wo", "W2") and kind == "W":
        return shape[0] // tensor * shape[1]
    if name == "head.b":
        return -(-shape[0] // tensor)
    return math.prod(shape)


@pytest.mark.parametrize("tensor", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "options",
    [
        {"bias": True, "H_kv": 6},
        {"gated": True, "norm": "rmsnorm", "qk_norm": "head", "tied": False, "bias": False},
        {"token_types": 2, "embedding_norm": True, "head_bias": True, "H_kv": 1},
        {"placement": ("pre", "sandwich", "post"), "d_ff": (6, 12, 18), "positions": "rope"},
    ],
)
def test_tensor_and_pipeline_splits_are_slices_of_the_model(tensor, options):
    cfg = config(**{"d_ff": 12, "H_kv": 6, **options})
    model = nf.DecoderLM(cfg, rng=0)
    held = {
        name: slice_of(name, p.value.shape, tensor, {"d_h": 10})
        for name, p in model.named_parameters()
    }
    whole = training_bytes(cfg, tensor=tensor)
    assert whole.parameters == (sum(held.values()),)
    assert whole == 16 * sum(held.values())
    for pipeline, ends in ((2, (2, 3)), (3, (1, 2, 3))):
        account = training_bytes(cfg, tensor=tensor, pipeline=pipeline)
        expected, start = [], 0
        for i, end in enumerate(ends):
            names = [f"stack.blocks.{layer}." for layer in range(start, end)]
            names += ["embedding."] if i == 0 else []
            names += ["stack.final_norm.", "head."] if i == pipeline - 1 else []
            n = sum(size for name, size in held.items() if name.startswith(tuple(names)))
            if cfg.tied and i == pipeline - 1:
                n += held["embedding.tokens.E"]
            expected.append(n)
            start = end
        assert account.parameters == tuple(expected)
        assert account.stages == tuple(16 * n for n in expected)
        assert account == max(account.stages)
        assert account.devices == tensor * pipeline


def test_experts_are_split_too():
    cfg = nf.preset("deepseek-v3")
    one, two = training_bytes(cfg), training_bytes(cfg, tensor=2, pipeline=1)
    rows = {r.part: r.count for r in parameters(cfg).rows}
    latent = cfg.L * cfg.d * (cfg.q_rank + cfg.cached)
    whole = sum(n for part, n in rows.items() if "norm" in part) + rows["gates"] + latent
    assert two * 2 == one + 16 * whole
    stages = training_bytes(cfg, pipeline=61)
    assert sum(stages.parameters) == parameters(cfg).total
    assert (stages.devices, len(stages.stages)) == (61, 61)


# ------------------------------------------------------------------------------ activations


@pytest.mark.parametrize("seed", range(90))
def test_activation_bytes_are_those_that_a_forward_pass_keeps(seed):
    cfg, rng = some_configs(90)[seed], np.random.default_rng(seed)
    dtype = ("float32", "float64", "float16")[rng.integers(3)]
    B, T = ((2, 7), (1, 5), (3, 3), (4, 16))[rng.integers(4)]
    source, dropout = (None, 9)[rng.integers(2)], bool(rng.integers(2))
    loss = cfg.kind != "encoder" and bool(rng.integers(2))
    model, inputs = CLASSES[cfg.kind](cfg, rng=0, dtype=dtype), ids_of(cfg, B, T, source or T)
    options = {"rng": 3} if dropout else {}
    if loss:
        inputs.append(np.zeros((B, T), int))
    _, saved = (model.loss if loss else model.forward)(*inputs, **options)
    kept = tree.nbytes(saved, without=[inputs, model.state_dict()])
    account = activation_bytes(cfg, B, T, dtype, source=source, dropout=dropout, loss=loss)
    assert account == kept, cfg
    assert account == account.total == sum(n for _, n in account.rows)


@pytest.mark.parametrize("kernel", ["dense", "flash"])
@pytest.mark.parametrize("name", ["gpt2", "llama-2-7b", "gemma-2-2b", "qwen3-0.6b", "bert-base"])
def test_activation_bytes_of_families_in_many_pieces(name, kernel):
    wide = nf.preset(name)
    cfg = replace(
        wide, V=997, d=96, L=2, L_encoder=2, H=6, H_kv=2 if wide.H_kv < wide.H else 6, d_h=16,
        d_ff=160, window=(32, None), kernel=kernel, T_max=512,
    )  # fmt: skip
    model, ids = CLASSES[cfg.kind](cfg, rng=0), np.zeros((2, 384), int)
    _, saved = model.forward(ids)
    account = activation_bytes(cfg, 2, 384)
    assert account == tree.nbytes(saved, without=[ids, model.state_dict()])
    assert account > 100 * 2 * 384


def test_the_formula_of_a_block():
    B, T, w = 3, 7, 8
    one, two = (activation_bytes(config(L=n, positions="none"), B, T, "float64") for n in (1, 2))
    d, q, kv, d_ff, H = 14, 60, 20, 11, 6
    assert two - one == w * B * T * (4 * d + 2 * (q + kv) + H + 2 * d_ff + 2)
    # Nothing is of T by T, and recomputation leaves the input.
    long = [activation_bytes(config(positions="none"), B, n * T) for n in (1, 2, 4)]
    assert long[2] - long[1] == 2 * (long[1] - long[0])
    one, two = (activation_bytes(config(L=n, recompute=True), B, T) for n in (1, 2))
    assert two - one == 4 * B * T * d


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
