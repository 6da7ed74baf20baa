"""Softmax, norms, linear maps, activations, dropout, positions and the loss."""

from __future__ import annotations

from functools import partial

import numpy as np

from ... import activation as act
from ...dropout import Dropout, dropout, dropout_backward
from ...feedforward import gate, gate_backward
from ...linear import Embedding, Linear, embedding, embedding_backward, linear, linear_backward
from ...loss import CrossEntropy, cross_entropy, cross_entropy_backward
from ...norm import (
    LayerNorm,
    RMSNorm,
    layernorm,
    layernorm_backward,
    rmsnorm,
    rmsnorm_backward,
)
from ...position import LearnedPositions, rope, rope_backward
from ...softmax import (
    LogSoftmax,
    Softmax,
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)
from ...stack import softcap, softcap_backward, unembedding, unembedding_backward
from .registry import layer, pair

pair("softmax", softmax, softmax_backward, lambda n: (3 * n(3, 5, 7),))
pair("softmax, axis 1", softmax, softmax_backward, lambda n: (3 * n(3, 5, 7),), axis=1)
pair("log_softmax", log_softmax, log_softmax_backward, lambda n: (3 * n(3, 5, 7),))
pair("log_softmax, axis 0", log_softmax, log_softmax_backward, lambda n: (n(3, 5, 7),), axis=0)
layer("Softmax", Softmax, lambda n: (3 * n(2, 3, 5),))
layer("LogSoftmax", partial(LogSoftmax, axis=1), lambda n: (3 * n(2, 3, 5),))

pair("layernorm", layernorm, layernorm_backward, lambda n: (n(3, 5, 7) + 2, n(7), n(7)))
pair("layernorm, d = T = B", layernorm, layernorm_backward, lambda n: (n(3, 3, 3), n(3), n(3)))
pair(
    "layernorm, large eps", layernorm, layernorm_backward, lambda n: (n(5, 7), n(7), n(7)), eps=0.3
)
pair("rmsnorm", rmsnorm, rmsnorm_backward, lambda n: (n(3, 5, 7) + 2, n(7)))
pair("rmsnorm, d = T = B", rmsnorm, rmsnorm_backward, lambda n: (n(3, 3, 3), n(3)), eps=0.3)
layer("LayerNorm", partial(LayerNorm, 7), lambda n: (n(2, 3, 7),))
layer("RMSNorm", partial(RMSNorm, 7), lambda n: (n(2, 3, 7),))
layer("RMSNorm, gain 1 + gamma", partial(RMSNorm, 7, offset=1.0), lambda n: (n(2, 3, 7),))

pair("linear", linear, linear_backward, lambda n: (n(2, 3, 5), n(5, 7), n(7)))
pair("linear, no bias", linear, linear_backward, lambda n: (n(2, 2, 3, 5), n(5, 7)))
pair("linear, square", linear, linear_backward, lambda n: (n(3, 3, 3), n(3, 3), n(3)))
pair("unembedding", unembedding, unembedding_backward, lambda n: (n(2, 3, 5), n(7, 5), n(7)))
layer("Linear", partial(Linear, 5, 7), lambda n: (n(2, 3, 5),))
layer("Linear, no bias", partial(Linear, 5, 7, bias=False), lambda n: (n(2, 3, 5),))

_IDS = np.array([[1, 4, 4, 0, 1], [4, 2, 1, 1, 6], [0, 0, 0, 3, 4]])  # (3, 5), with repeats
pair("embedding", embedding, embedding_backward, lambda n: (_IDS, n(7, 2)))
layer("Embedding", partial(Embedding, 7, 2), lambda n: (_IDS,))
layer("LearnedPositions", partial(LearnedPositions, 11, 2), lambda n: (np.arange(5),))
layer("LearnedPositions by row", partial(LearnedPositions, 11, 2), lambda n: (_IDS,))

# ---------------------------------------------------------------- activations, dropout, positions

for _name in ("relu", "silu", "sigmoid", "tanh", "gelu"):
    pair(_name, getattr(act, _name), act.activation_backward, lambda n: (2 * n(5, 7),))
    layer(f"Activation {_name}", partial(act.Activation, _name), lambda n: (2 * n(2, 3, 5),))
pair("gelu, tanh form", act.gelu, act.gelu_backward, lambda n: (2 * n(5, 7),), approximate="tanh")
pair("gate", gate, gate_backward, lambda n: (n(3, 5, 7), n(3, 5, 7)))
pair("softcap", softcap, softcap_backward, lambda n: (3 * n(5, 7), 2.0))
pair("dropout", dropout, dropout_backward, lambda n: (n(3, 5, 7), 0.4), rng=5)
pair("dropout at inference", dropout, dropout_backward, lambda n: (n(3, 5), 0.4), rng=None)
layer("Dropout", partial(Dropout, 0.4), lambda n: (n(3, 5, 7),), rng=5)

pair("rope", rope, rope_backward, lambda n: (n(2, 3, 5, 10), np.arange(4, 9)), base=100.0)
pair(
    "rope, halves, partial",
    rope,
    rope_backward,
    lambda n: (n(3, 5, 10), np.arange(5)),
    layout="half",
    rotary_dim=6,
)
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
pair("rope, YaRN", rope, rope_backward, lambda n: (n(3, 5, 10), np.arange(5)), scaling=_YARN)
pair("rope, positions by row", rope, rope_backward, lambda n: (n(3, 3, 5, 4), 3 * _IDS))

# ------------------------------------------------------------------------------------------ loss

_TARGETS = np.array([[1, 4, 4, 0, 1], [4, 2, -100, 1, 6], [-100, 0, 0, 3, 4]])  # (3, 5), V = 7
_loss = partial(pair, f=cross_entropy, backward=cross_entropy_backward)
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
layer("CrossEntropy", partial(CrossEntropy, label_smoothing=0.1), lambda n: (n(3, 5, 7), _TARGETS))
