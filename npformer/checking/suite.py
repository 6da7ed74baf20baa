"""Everything that ``npformer gradcheck`` runs: one entry a pair, layer or model, with its options.

An entry is a name and a function ``example(rng)`` that returns ``(thing, inputs, options)``, the
same as a reader's own file. A new layer is covered by being entered here: the command checks its
gradients, and the contract test its manners.

Sizes are small and pairwise different, so that a mixed-up axis is an error and not a coincidence;
a few entries have B = T = H on purpose, where a wrong broadcast fits. Parameters are random and of
order one: with a gain of 1 a forgotten gain goes unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import activation as act
from ..arrays import Array
from ..attention import attention, attention_backward
from ..block import PLACEMENTS, Block, Recompute
from ..config import TransformerConfig
from ..dropout import Dropout, dropout, dropout_backward
from ..feedforward import FeedForward, gate, gate_backward
from ..linear import Embedding, Linear, embedding, embedding_backward, linear, linear_backward
from ..loss import CrossEntropy, cross_entropy, cross_entropy_backward
from ..masks import causal_mask, padding_mask
from ..models import DecoderLM, Encoder, EncoderDecoder
from ..module import Module
from ..multihead import AttentionConfig, MultiHeadAttention
from ..norm import (
    LayerNorm,
    RMSNorm,
    layernorm,
    layernorm_backward,
    rmsnorm,
    rmsnorm_backward,
)
from ..position import LearnedPositions, rope, rope_backward
from ..softmax import (
    LogSoftmax,
    Softmax,
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)
from ..stack import softcap, softcap_backward, unembedding, unembedding_backward

Example = tuple[Any, tuple[Any, ...], dict[str, Any]]
Draw = Callable[..., Array]
"""``n(3, 5)``: a (3, 5) array of standard normal numbers."""


@dataclass(frozen=True)
class Case:
    """One thing to check."""

    name: str
    kind: str
    """"pair", "layer" or "model"."""
    example: Callable[[np.random.Generator], Example]

    @property
    def method(self) -> str:
        """How it is checked unless asked otherwise: models along directions only."""
        return "direction" if self.kind == "model" else "complex"


CASES: dict[str, Case] = {}


def enter(name: str, kind: str, example: Callable[[np.random.Generator], Example]) -> None:
    """Add a case under a name of its own."""
    if name in CASES:
        raise ValueError(f"there are two cases called {name!r}")
    CASES[name] = Case(name, kind, example)


def randomised(layer: Module, rng: np.random.Generator) -> Module:
    """Give every parameter random float64 numbers of order one; a product stays of order one."""
    for p in layer.parameters():
        fresh = rng.standard_normal(p.value.shape)
        if p.value.ndim == 1:
            p.value = p.value + 0.5 * fresh
        else:
            p.value = fresh * p.value.shape[0] ** -0.5
    return layer


def _pair(name: str, f: Any, backward: Any, make: Callable[[Draw], Any], **options: Any) -> None:
    def example(rng: np.random.Generator) -> Example:
        return (f, backward), make(lambda *shape: rng.standard_normal(shape)), dict(options)

    enter(name, "pair", example)


def _layer(
    name: str, build: Callable[[], Any], make: Callable[[Draw], Any], **options: Any
) -> None:
    def example(rng: np.random.Generator) -> Example:
        layer = randomised(build(), rng)
        return layer, make(lambda *shape: rng.standard_normal(shape)), dict(options)

    enter(name, "layer", example)


def _model(
    name: str,
    build: Callable[[], Any],
    ids: tuple[Any, ...],
    loss: bool = False,
    **options: Any,
) -> None:
    def example(rng: np.random.Generator) -> Example:
        model: Any = randomised(build(), rng)
        thing = (model.loss, model.loss_backward) if loss else model
        return thing, ids, dict(options)

    enter(name, "model", example)


# ------------------------------------------------------------------------- softmax, norms, linear

_pair("softmax", softmax, softmax_backward, lambda n: (3 * n(3, 5, 7),))
_pair("softmax, axis 1", softmax, softmax_backward, lambda n: (3 * n(3, 5, 7),), axis=1)
_pair("log_softmax", log_softmax, log_softmax_backward, lambda n: (3 * n(3, 5, 7),))
_pair("log_softmax, axis 0", log_softmax, log_softmax_backward, lambda n: (n(3, 5, 7),), axis=0)
_layer("Softmax", Softmax, lambda n: (3 * n(2, 3, 5),))
_layer("LogSoftmax", partial(LogSoftmax, axis=1), lambda n: (3 * n(2, 3, 5),))

_pair("layernorm", layernorm, layernorm_backward, lambda n: (n(3, 5, 7) + 2, n(7), n(7)))
_pair("layernorm, d = T = B", layernorm, layernorm_backward, lambda n: (n(3, 3, 3), n(3), n(3)))
_pair(
    "layernorm, large eps", layernorm, layernorm_backward, lambda n: (n(5, 7), n(7), n(7)), eps=0.3
)
_pair("rmsnorm", rmsnorm, rmsnorm_backward, lambda n: (n(3, 5, 7) + 2, n(7)))
_pair("rmsnorm, d = T = B", rmsnorm, rmsnorm_backward, lambda n: (n(3, 3, 3), n(3)), eps=0.3)
_layer("LayerNorm", partial(LayerNorm, 7), lambda n: (n(2, 3, 7),))
_layer("RMSNorm", partial(RMSNorm, 7), lambda n: (n(2, 3, 7),))
_layer("RMSNorm, gain 1 + gamma", partial(RMSNorm, 7, offset=1.0), lambda n: (n(2, 3, 7),))

_pair("linear", linear, linear_backward, lambda n: (n(2, 3, 5), n(5, 7), n(7)))
_pair("linear, no bias", linear, linear_backward, lambda n: (n(2, 2, 3, 5), n(5, 7)))
_pair("linear, square", linear, linear_backward, lambda n: (n(3, 3, 3), n(3, 3), n(3)))
_pair("unembedding", unembedding, unembedding_backward, lambda n: (n(2, 3, 5), n(7, 5), n(7)))
_layer("Linear", partial(Linear, 5, 7), lambda n: (n(2, 3, 5),))
_layer("Linear, no bias", partial(Linear, 5, 7, bias=False), lambda n: (n(2, 3, 5),))

_IDS = np.array([[1, 4, 4, 0, 1], [4, 2, 1, 1, 6], [0, 0, 0, 3, 4]])  # (3, 5), with repeats
_pair("embedding", embedding, embedding_backward, lambda n: (_IDS, n(7, 2)))
_layer("Embedding", partial(Embedding, 7, 2), lambda n: (_IDS,))
_layer("LearnedPositions", partial(LearnedPositions, 11, 2), lambda n: (np.arange(5),))
_layer("LearnedPositions by row", partial(LearnedPositions, 11, 2), lambda n: (_IDS,))

# ---------------------------------------------------------------- activations, dropout, positions

for _name in ("relu", "silu", "sigmoid", "tanh", "gelu"):
    _pair(
        _name, getattr(act, _name), act.activation_backward, lambda n: (2 * n(5, 7),)
    )
    _layer(f"Activation {_name}", partial(act.Activation, _name), lambda n: (2 * n(2, 3, 5),))
_pair(
    "gelu, tanh form", act.gelu, act.gelu_backward, lambda n: (2 * n(5, 7),), approximate="tanh"
)
_pair("gate", gate, gate_backward, lambda n: (n(3, 5, 7), n(3, 5, 7)))
_pair("softcap", softcap, softcap_backward, lambda n: (3 * n(5, 7), 2.0))
_pair("dropout", dropout, dropout_backward, lambda n: (n(3, 5, 7), 0.4), rng=5)
_pair("dropout at inference", dropout, dropout_backward, lambda n: (n(3, 5), 0.4), rng=None)
_layer("Dropout", partial(Dropout, 0.4), lambda n: (n(3, 5, 7),), rng=5)

_pair("rope", rope, rope_backward, lambda n: (n(2, 3, 5, 10), np.arange(4, 9)), base=100.0)
_pair(
    "rope, halves, partial",
    rope,
    rope_backward,
    lambda n: (n(3, 5, 10), np.arange(5)),
    layout="half",
    rotary_dim=6,
)
_pair("rope, positions by row", rope, rope_backward, lambda n: (n(3, 3, 5, 4), 3 * _IDS))

# -------------------------------------------------------------------------------------- attention


def _qkv(n: Draw, H_kv: int = 3, T: int = 5, S: int = 7) -> tuple[Array, Array, Array]:
    """B = 2, H = 6, d_h = 4, d_v = 8."""
    return n(2, 6, T, 4), n(2, H_kv, S, 4), n(2, H_kv, S, 8)


_holes = np.random.default_rng(1).random((2, 6, 5, 7)) < 0.6
_holes[1, 4, 2] = False  # a query that sees nothing
_real = np.array([[True] * 7, [True] * 4 + [False] * 3])

_attention = partial(_pair, f=attention, backward=attention_backward)
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
    """d = 7, H = 6, H_kv = 3, d_h = 4 unless told otherwise; H d_h is not d."""
    config = AttentionConfig(**{"d": 7, "H": 6, "H_kv": 3, "d_h": 4, **options})
    return partial(MultiHeadAttention, config)


_mha = partial(_layer, make=lambda n: (n(2, 5, 7),))
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
_layer("MultiHeadAttention, cross", _heads(d_context=4), lambda n: (n(2, 3, 7), n(2, 5, 4)))
_layer(
    "MultiHeadAttention, cross, padding",
    _heads(d_context=4),
    lambda n: (n(2, 3, 7), n(2, 7, 4)),
    mask=padding_mask(_real),
)
_layer(
    "MultiHeadAttention, B = T = H", _heads(d=3, H=3, H_kv=3, d_h=2), lambda n: (n(3, 3, 3),)
)

# ----------------------------------------------------------------- feed-forward, loss, blocks

_layer("FeedForward", partial(FeedForward, 5, 11), lambda n: (n(2, 3, 5),))
_layer("FeedForward, ReLU", partial(FeedForward, 5, 11, activation="relu"), lambda n: (n(2, 3, 5),))
_layer(
    "FeedForward, gated",
    partial(FeedForward, 5, 11, activation="silu", gated=True, bias=False),
    lambda n: (n(2, 3, 5),),
)

_TARGETS = np.array([[1, 4, 4, 0, 1], [4, 2, -100, 1, 6], [-100, 0, 0, 3, 4]])  # (3, 5), V = 7
_loss = partial(_pair, f=cross_entropy, backward=cross_entropy_backward)
_loss("cross_entropy", make=lambda n: (2 * n(3, 5, 7), _IDS))
_loss("cross_entropy, ignored rows", make=lambda n: (2 * n(3, 5, 7), _TARGETS))
_loss("cross_entropy, smoothing", make=lambda n: (2 * n(3, 5, 7), _TARGETS), label_smoothing=0.2)
_loss("cross_entropy, sum", make=lambda n: (2 * n(3, 5, 7), _TARGETS), reduction="sum")
_loss(
    "cross_entropy, none",
    make=lambda n: (2 * n(3, 5, 7), _TARGETS),
    reduction="none",
    label_smoothing=0.2,
)
_layer(
    "CrossEntropy", partial(CrossEntropy, label_smoothing=0.1), lambda n: (n(3, 5, 7), _TARGETS)
)


def _block(causal: bool = True, dropout: float = 0.0, **options: Any) -> Callable[[], Block]:
    config = AttentionConfig(d=5, H=2, H_kv=1, d_h=4, causal=causal, dropout=dropout)
    return partial(Block, config, 7, dropout=dropout, **options)


for _placement in PLACEMENTS:
    _layer(f"Block {_placement}", _block(placement=_placement), lambda n: (n(2, 3, 5),))
_layer(
    "Block, gated, RMSNorm",
    _block(placement="post", norm="rmsnorm", gated=True, activation="silu", bias=False),
    lambda n: (n(2, 3, 5),),
    mask=padding_mask(_real[:, 2:5]),
)
_layer("Block, dropout", _block(dropout=0.3), lambda n: (n(2, 3, 5),), rng=5)
_CROSS = AttentionConfig(d=5, H=2, H_kv=1, d_h=4)
for _placement in ("pre", "post"):
    _layer(
        f"Block {_placement}, cross",
        _block(placement=_placement, cross=_CROSS),
        lambda n: (n(2, 3, 5), n(2, 7, 5)),
        context_mask=padding_mask(_real),
    )
_layer("Recompute", lambda: Recompute(_block(dropout=0.3)()), lambda n: (n(2, 3, 5),), rng=5)

# ------------------------------------------------------------------------------------ whole models


def _config(**options: Any) -> TransformerConfig:
    """V = 11, d = 6, L = 2, H = 3, d_ff = 13."""
    return TransformerConfig(**{"V": 11, "d": 6, "L": 2, "H": 3, "d_ff": 13, "T_max": 8, **options})


_TEXT = np.array([[3, 10, 1, 1, 7], [0, 3, 3, 9, 2]])  # (2, 5)
_SOURCE = np.array([[5, 1, 1, 8, 2, 0, 10], [4, 10, 6, 6, 9, 9, 1]])  # (2, 7)
_NEXT = np.array([[10, 1, 1, 7, -100], [3, 3, 9, 2, -100]])
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


_model("Encoder pre", _encoder(), (_TEXT, _PADDED))
_model("Encoder post", _encoder(placement="post", positions="sinusoidal"), (_TEXT, _PADDED))
_model(
    "Encoder as BERT",
    _encoder(placement="post", token_types=2, embedding_norm=True, activation="gelu"),
    (_TEXT, _PADDED),
    token_types=(_TEXT > 2).astype(int),
)
_model("DecoderLM pre", _decoder(), (_TEXT,))
_model("DecoderLM post", _decoder(placement="post", activation="relu"), (_TEXT,))
_model("DecoderLM untied", _decoder(tied=False, positions="none", head_bias=True), (_TEXT,))
_model("DecoderLM as Llama", _decoder(**_LLAMA), (_TEXT, _PADDED))
_model("DecoderLM as Gemma-2", _decoder(**_GEMMA), (_TEXT,))
_model("DecoderLM as Qwen3", _decoder(**{**_LLAMA, "qk_norm": "head"}), (_TEXT,))
_model(
    "DecoderLM as OLMo-2",
    _decoder(**{**_LLAMA, "qk_norm": "projection", "placement": "output"}),
    (_TEXT,),
)
_model("DecoderLM, dropout", _decoder(dropout=0.2, attention_dropout=0.3), (_TEXT,), rng=5)
_model(
    "DecoderLM, recomputed, dropout",
    _decoder(recompute=True, dropout=0.2, attention_dropout=0.3),
    (_TEXT,),
    rng=5,
)
_model("DecoderLM.loss", _decoder(), (_TEXT, _NEXT), loss=True, label_smoothing=0.1)
_model("DecoderLM.loss, padding", _decoder(**_LLAMA), (_TEXT, _NEXT), loss=True, mask=_PADDED)
_model("EncoderDecoder pre", _both(L_encoder=1), (_SOURCE, _TEXT), source_mask=_real)
_model("EncoderDecoder post", _both(placement="post", positions="sinusoidal"), (_SOURCE, _TEXT))
_model("EncoderDecoder untied, rotary", _both(**_LLAMA), (_SOURCE, _TEXT))
_model(
    "EncoderDecoder.loss",
    _both(dropout=0.2),
    (_SOURCE, _TEXT, _NEXT),
    loss=True,
    source_mask=_real,
    rng=5,
)
