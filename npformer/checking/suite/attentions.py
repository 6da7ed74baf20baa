"""Attention: the kernel under every option, and the layer around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...arrays import Array
from ...attention import attention, attention_backward
from ...masks import causal_mask, padding_mask
from ...multihead import AttentionConfig, MultiHeadAttention
from .registry import Draw, layer, pair


def _qkv(n: Draw, H_kv: int = 3, T: int = 5, S: int = 7) -> tuple[Array, Array, Array]:
    """B = 2, H = 6, d_h = 4, d_v = 8."""
    return n(2, 6, T, 4), n(2, H_kv, S, 4), n(2, H_kv, S, 8)


_holes = np.random.default_rng(1).random((2, 6, 5, 7)) < 0.6
_holes[1, 4, 2] = False  # a query that sees nothing
_real = np.array([[True] * 7, [True] * 4 + [False] * 3])

_attention = partial(pair, f=attention, backward=attention_backward)
_attention("attention", make=partial(_qkv, H_kv=6))
_attention("attention, grouped", make=_qkv)
_attention("attention, one KV head", make=partial(_qkv, H_kv=1))
_attention("attention, B = H = T = S", make=lambda n: (n(3, 3, 3, 2), n(3, 3, 3, 2), n(3, 3, 3, 2)))
_attention("attention, causal", make=_qkv, causal=True)
_attention("attention, causal, T > S", make=partial(_qkv, T=7, S=5), causal=True)
_attention("attention, causal, window", make=_qkv, causal=True, window=2)
_attention("attention, window", make=_qkv, window=2)
_attention("attention, mask", make=_qkv, mask=_holes)
_attention("attention, mask (T, S)", make=_qkv, mask=causal_mask(5, 7))
_attention("attention, padding", make=_qkv, mask=padding_mask(_real), causal=True)
_attention("attention, soft cap", make=_qkv, softcap=1.5, causal=True)
_attention("attention, scale", make=_qkv, scale=0.3)
_attention("attention, dropout", make=_qkv, dropout=0.3, rng=5)
_attention(
    "attention, all options",
    make=_qkv,
    mask=_holes,
    causal=True,
    window=4,
    scale=0.7,
    softcap=2.0,
    dropout=0.3,
    rng=5,
)


def _heads(**options: Any) -> Callable[[], MultiHeadAttention]:
    """Width d = 7, H = 6, H_kv = 3, d_h = 4 unless told otherwise; H d_h is not d."""
    config = AttentionConfig(**{"d": 7, "H": 6, "H_kv": 3, "d_h": 4, **options})
    return partial(MultiHeadAttention, config)


_mha = partial(layer, make=lambda n: (n(2, 5, 7),))
_mha("MultiHeadAttention", build=_heads(d=6, H_kv=6, d_h=1), make=lambda n: (n(2, 5, 6),))
_mha("MultiHeadAttention, grouped", build=_heads())
_mha("MultiHeadAttention, one KV head", build=_heads(H_kv=1))
_mha("MultiHeadAttention, causal, no bias", build=_heads(causal=True, bias=False, out_bias=False))
_mha("MultiHeadAttention, padding", build=_heads(causal=True), mask=padding_mask(_real[:, :5]))
_mha("MultiHeadAttention, rotary", build=_heads(rope=True, causal=True))
_mha("MultiHeadAttention, rotary halves", build=_heads(rope=True, rope_layout="half"))
_mha("MultiHeadAttention, norm of heads", build=_heads(qk_norm="head", rope=True))
_mha("MultiHeadAttention, norm of projections", build=_heads(qk_norm="projection"))
_mha("MultiHeadAttention, window, soft cap", build=_heads(causal=True, window=2, softcap=1.5))
_mha("MultiHeadAttention, dropout", build=_heads(dropout=0.3), rng=5)
layer("MultiHeadAttention, cross", _heads(d_context=4), lambda n: (n(2, 3, 7), n(2, 5, 4)))
layer(
    "MultiHeadAttention, cross, padding",
    _heads(d_context=4),
    lambda n: (n(2, 3, 7), n(2, 7, 4)),
    mask=padding_mask(_real),
)
layer("MultiHeadAttention, B = T = H", _heads(d=3, H=3, H_kv=3, d_h=2), lambda n: (n(3, 3, 3),))
