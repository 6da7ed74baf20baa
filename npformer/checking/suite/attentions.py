"""Attention: the kernel under every option, and the layer around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...arrays import Array
from ...attention import attention, attention_backward
from ...flash import flash_attention, flash_attention_backward
from ...masks import causal_mask, padding_mask
from ...multihead import AttentionConfig, MultiHeadAttention
from .registry import Draw, layer, pair


def _grouped(n: Draw) -> tuple[Array, Array, Array]:
    """B = 2, H = 6, H_kv = 3, T = 5, S = 7, d_h = 4, d_v = 8."""
    return n(2, 6, 5, 4), n(2, 3, 7, 4), n(2, 3, 7, 8)


def _small(n: Draw, H_kv: int = 1, T: int = 5, S: int = 7) -> tuple[Array, Array, Array]:
    """B = 3, H = 2, d_h = 4, d_v = 6."""
    return n(3, 2, T, 4), n(3, H_kv, S, 4), n(3, H_kv, S, 6)


_holes = np.random.default_rng(1).random((3, 2, 5, 7)) < 0.6
_holes[1, 1, 2] = False  # a query that sees nothing
_real = np.array([[True] * 7, [True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
_all: dict[str, Any] = {
    "mask": _holes, "causal": True, "window": 4, "scale": 0.7, "softcap": 2.0, "dropout": 0.3,
    "rng": 5,
}  # fmt: skip

_kernels: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "attention": (attention, attention_backward, {}),
    "flash_attention": (
        flash_attention, flash_attention_backward, {"block_q": 6, "block_k": 4},
    ),
}  # fmt: skip
for _name, (_f, _f_backward, _blocks) in _kernels.items():
    _kernel: Callable[..., None] = partial(pair, f=_f, backward=_f_backward, **_blocks)
    _kernel(_name, make=partial(_small, H_kv=2))
    _kernel(f"{_name}, grouped", make=_grouped)
    _kernel(f"{_name}, one KV head", make=_small)
    _kernel(f"{_name}, causal, T > S", make=partial(_small, T=7, S=5), causal=True)
    _kernel(f"{_name}, window", make=_small, window=2)
    _kernel(f"{_name}, mask", make=_small, mask=_holes)
    _kernel(f"{_name}, soft cap", make=_small, softcap=1.5, causal=True)
    _kernel(f"{_name}, all options", make=_small, **_all)

# The blocked kernel's rules are the dense one's, and its own tests compare the two.
_dense: Callable[..., None] = partial(pair, f=attention, backward=attention_backward)
_dense("attention, B = H = T = S", make=lambda n: (n(3, 3, 3, 2), n(3, 3, 3, 2), n(3, 3, 3, 2)))
_dense("attention, causal", make=_small, causal=True)
_dense("attention, causal, window", make=_small, causal=True, window=2)
_dense("attention, mask (T, S)", make=_small, mask=causal_mask(5, 7))
_dense("attention, padding", make=_small, mask=padding_mask(_real), causal=True)
_dense("attention, scale", make=_small, scale=0.3)
_dense("attention, dropout", make=_small, dropout=0.3, rng=5)


def _heads(**options: Any) -> Callable[[], MultiHeadAttention]:
    """Width d = 3, H = 2, H_kv = 1, d_h = 4 unless told otherwise; H d_h is not d."""
    config = AttentionConfig(**{"d": 3, "H": 2, "H_kv": 1, "d_h": 4, **options})
    return partial(MultiHeadAttention, config)


_mha = partial(layer, make=lambda n: (n(2, 5, 3),))
_mha("MultiHeadAttention", build=_heads(d=6, H=6, H_kv=6, d_h=1), make=lambda n: (n(2, 5, 6),))
_mha(
    "MultiHeadAttention, grouped",
    build=_heads(d=7, H=6, H_kv=3, causal=True, rope=True),
    make=lambda n: (n(2, 5, 7),),
)
_mha("MultiHeadAttention, one KV head", build=_heads())
_mha("MultiHeadAttention, causal, no bias", build=_heads(causal=True, bias=False, out_bias=False))
_mha("MultiHeadAttention, padding", build=_heads(causal=True), mask=padding_mask(_real[:2, :5]))
_mha("MultiHeadAttention, rotary", build=_heads(rope=True, causal=True))
_mha("MultiHeadAttention, rotary halves", build=_heads(rope=True, rope_layout="half"))
_mha("MultiHeadAttention, norm of heads", build=_heads(qk_norm="head", rope=True))
_mha("MultiHeadAttention, norm of projections", build=_heads(qk_norm="projection"))
_mha("MultiHeadAttention, window, soft cap", build=_heads(causal=True, window=2, softcap=1.5))
_mha("MultiHeadAttention, flash", build=_heads(causal=True, kernel="flash"))
_mha("MultiHeadAttention, dropout", build=_heads(dropout=0.3), rng=5)
layer("MultiHeadAttention, cross", _heads(d_context=4), lambda n: (n(2, 4, 3), n(2, 5, 4)))
layer(
    "MultiHeadAttention, cross, grouped, padding",
    _heads(H=4, H_kv=2, d_context=6),
    lambda n: (n(3, 2, 3), n(3, 7, 6)),
    mask=padding_mask(_real),
)
layer("MultiHeadAttention, B = T = H", _heads(d=3, H=3, H_kv=3, d_h=2), lambda n: (n(3, 3, 3),))
