"""Operations against the products of matrices that models really compute."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import case
from many_configs import CLASSES, config, ids_of, some_configs

import npformer as nf
from npformer import attention, linear, masks, stack
from npformer.accounting import attention_flops, attention_pairs, flops, parameters
from npformer.experts import ExpertsConfig


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
            monkeypatch.setattr(module, "matmuls", self.counting_several(module.matmuls))
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

    def counting_several(self, f: Any) -> Any:
        def counted(*products: Any) -> Any:
            self.found += [self.product(a, b) for a, b, _ in products]
            return f(*products)

        return counted

    def take(self) -> int:
        total, self.found = sum(self.found), []
        return total


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
    sides = {"L_encoder": 2} if kind == "encoder-decoder" else {}
    cfg = config(kind=kind, window=window, tied=False, **sides)
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
    cfg = ExpertsConfig(
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
