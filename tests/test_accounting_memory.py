"""Bytes of caches, of training and of activations, to the byte."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from many_configs import CLASSES, config, ids_of, some_configs

import npformer as nf
from npformer import accounting, tree
from npformer.accounting import (
    activation_bytes,
    kv_cache_bytes,
    parameters,
    training_bytes,
    weight_bytes,
)

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


@pytest.mark.parametrize("dtype", ["int8", np.int8, np.dtype("i1")])
@pytest.mark.parametrize("rolling", [False, True])
def test_eight_bits_have_their_scales(dtype, rolling):
    cfg = config(window=(3, None, 5))
    cache = nf.KVCache(cfg, 2, 7, np.dtype(dtype), rolling=rolling)
    account = kv_cache_bytes(cfg, 2, 7, dtype, rolling=rolling)
    assert account == cache.nbytes
    vectors = 2 * 2 * cfg.H_kv * (3 + 7 + 5 if rolling else 3 * 7)
    assert dict(account.rows)["scales"] == 4 * vectors
    longer = kv_cache_bytes(cfg, 2, 8, dtype, rolling=rolling)
    assert longer - account == 2 * account.per_token
    parts = (*cache._k[1].parts, *cache._v[1].parts)
    assert account.per_layer == sum(part.nbytes for part in parts)
    assert "scales" not in dict(kv_cache_bytes(cfg, 2, 7, "float8").rows)


def test_the_source_is_kept_as_the_model_makes_it():
    cfg = config(kind="encoder-decoder", L_encoder=2)
    model, cache = nf.EncoderDecoder(cfg, rng=0), nf.KVCache(cfg, 2, 5, np.int8)
    model.forward(*ids_of(cfg, 2, 5, 7), cache=cache)
    cross = sum(a.nbytes for kv in cache.cross for a in kv)
    assert kv_cache_bytes(cfg, 2, 5, "int8", source=7) == cache.nbytes + cross


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("T", [2, 3, 4, 7])
@pytest.mark.parametrize("window", [(3, None), (None, 3), (2, 3), 3])
def test_rolling_layers_are_counted_one_by_one(window, T, dtype):
    cfg = config(L=2, window=window)
    cache = nf.KVCache(cfg, 2, T, np.dtype(dtype), rolling=True)
    account = kv_cache_bytes(cfg, 2, T, dtype, rolling=True)
    assert account == cache.nbytes
    layers = [
        sum(part.nbytes for part in (*keys.parts, *values.parts))
        for keys, values in zip(cache._k, cache._v, strict=True)
    ]
    assert account.per_layer == max(layers)
    longer = nf.KVCache(cfg, 2, T + 1, np.dtype(dtype), rolling=True)
    assert longer.nbytes - cache.nbytes == 2 * account.per_token
    model = nf.DecoderLM(cfg, rng=0)
    model(np.zeros((2, T), int), cache=cache)  # filled, it is as large
    assert account == cache.nbytes


def test_a_rolling_cache_keeps_no_more_than_the_window():
    mistral, gemma = nf.preset("mistral-7b"), nf.preset("gemma-2-2b")
    assert kv_cache_bytes(mistral, 1, 8192, rolling=True) * 2 == kv_cache_bytes(mistral, 1, 8192)
    assert kv_cache_bytes(mistral, 1, 4096, rolling=True) == kv_cache_bytes(mistral, 1, 4096)
    short, long = (kv_cache_bytes(gemma, 1, T, rolling=True) for T in (4096, 8192))
    assert long * 2 == short * 3  # every other layer has stopped growing
    assert (short.per_token, long.per_token) == (53_248, 53_248)
    assert kv_cache_bytes(gemma, 1, 4095, rolling=True).per_token == 106_496


def test_bytes_are_numbers_with_rows():
    cache = kv_cache_bytes(config(), 2, 7)
    for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (twin, twin.rows, twin.per_token) == (cache, cache.rows, cache.per_token)
    assert type(cache + 1) is int
    assert json.dumps({"bytes": cache}) == f'{{"bytes": {cache.total}}}'
    assert (cache.gib * 2**30, cache.gb * 1e9) == pytest.approx((cache, cache))


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
