"""Whole models, small: placements, ties, groups, cross-attention, and the named families."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...config import TransformerConfig
from ...models import DecoderLM, Encoder, EncoderDecoder
from .registry import model


def _config(**options: Any) -> TransformerConfig:
    """V = 11, d = 6, L = 2, H = 3, d_ff = 13."""
    return TransformerConfig(**{"V": 11, "d": 6, "L": 2, "H": 3, "d_ff": 13, "T_max": 8, **options})


_TEXT = np.array([[3, 10, 1, 1, 7], [0, 3, 3, 9, 2]])  # (2, 5)
_SOURCE = np.array([[5, 1, 1, 8, 2, 0, 10], [4, 10, 6, 6, 9, 9, 1]])  # (2, 7)
_NEXT = np.array([[10, 1, 1, 7, -100], [3, 3, 9, 2, -100]])
_REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])
_PADDED = np.array([[True] * 5, [True] * 3 + [False] * 2])
_LLAMA = {
    "norm": "rmsnorm", "positions": "rope", "gated": True, "activation": "silu",
    "bias": False, "tied": False, "d": 12, "H": 6, "H_kv": 3,
}  # fmt: skip
_GEMMA = {
    **_LLAMA, "tied": True, "placement": "sandwich", "norm_offset": 1.0, "embedding_scale": 12**0.5,
    "softcap": 2.0, "logit_softcap": 3.0, "window": (2, None), "activation": "gelu_tanh",
}  # fmt: skip


def _decoder(**options: Any) -> Callable[[], DecoderLM]:
    return partial(DecoderLM, _config(**options))


def _encoder(**options: Any) -> Callable[[], Encoder]:
    return partial(Encoder, _config(**options))


def _both(**options: Any) -> Callable[[], EncoderDecoder]:
    return partial(EncoderDecoder, _config(**options))


model("Encoder pre", _encoder(), (_TEXT, _PADDED))
model("Encoder post", _encoder(placement="post", positions="sinusoidal"), (_TEXT, _PADDED))
model(
    "Encoder as BERT",
    _encoder(placement="post", token_types=2, embedding_norm=True, activation="gelu"),
    (_TEXT, _PADDED),
    token_types=(_TEXT > 2).astype(int),
)
model("DecoderLM pre", _decoder(), (_TEXT,))
model("DecoderLM post", _decoder(placement="post", activation="relu"), (_TEXT,))
model("DecoderLM untied", _decoder(tied=False, positions="none", head_bias=True), (_TEXT,))
model("DecoderLM as Llama", _decoder(**_LLAMA), (_TEXT, _PADDED))
model("DecoderLM as Gemma-2", _decoder(**_GEMMA), (_TEXT,))
model("DecoderLM as Qwen3", _decoder(**{**_LLAMA, "qk_norm": "head"}), (_TEXT,))
model(
    "DecoderLM as OLMo-2",
    _decoder(**{**_LLAMA, "qk_norm": "projection", "placement": "output"}),
    (_TEXT,),
)
model("DecoderLM, dropout", _decoder(dropout=0.2, attention_dropout=0.3), (_TEXT,), rng=5)
model(
    "DecoderLM, recomputed, dropout",
    _decoder(recompute=True, dropout=0.2, attention_dropout=0.3),
    (_TEXT,),
    rng=5,
)
model("DecoderLM.loss", _decoder(), (_TEXT, _NEXT), loss=True, label_smoothing=0.1)
model("DecoderLM.loss, padding", _decoder(**_LLAMA), (_TEXT, _NEXT), loss=True, mask=_PADDED)
model("EncoderDecoder pre", _both(L_encoder=1), (_SOURCE, _TEXT), source_mask=_REAL)
model("EncoderDecoder post", _both(placement="post", positions="sinusoidal"), (_SOURCE, _TEXT))
model("EncoderDecoder untied, rotary", _both(**_LLAMA), (_SOURCE, _TEXT))
model(
    "EncoderDecoder.loss",
    _both(dropout=0.2),
    (_SOURCE, _TEXT, _NEXT),
    loss=True,
    source_mask=_REAL,
    rng=5,
)
