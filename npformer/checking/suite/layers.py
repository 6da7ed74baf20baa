"""The feed-forward network, and blocks in every placement of the norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...block import PLACEMENTS, Block, Recompute
from ...feedforward import FeedForward
from ...masks import padding_mask
from ...multihead import AttentionConfig
from .registry import layer

_REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])

layer("FeedForward", partial(FeedForward, 5, 11), lambda n: (n(2, 3, 5),))
layer("FeedForward, ReLU", partial(FeedForward, 5, 11, activation="relu"), lambda n: (n(2, 3, 5),))
layer(
    "FeedForward, gated",
    partial(FeedForward, 5, 11, activation="silu", gated=True, bias=False),
    lambda n: (n(2, 3, 5),),
)


def _block(causal: bool = True, dropout: float = 0.0, **options: Any) -> Callable[[], Block]:
    config = AttentionConfig(d=5, H=2, H_kv=1, d_h=4, causal=causal, dropout=dropout)
    return partial(Block, config, 7, dropout=dropout, **options)


for _placement in PLACEMENTS:
    layer(f"Block {_placement}", _block(placement=_placement), lambda n: (n(2, 3, 5),))
layer(
    "Block, gated, RMSNorm",
    _block(placement="post", norm="rmsnorm", gated=True, activation="silu", bias=False),
    lambda n: (n(2, 3, 5),),
    mask=padding_mask(_REAL[:, 2:5]),
)
layer("Block, dropout", _block(dropout=0.3), lambda n: (n(2, 3, 5),), rng=5)
_CROSS = AttentionConfig(d=5, H=2, H_kv=1, d_h=4)
for _placement in ("pre", "post"):
    layer(
        f"Block {_placement}, cross",
        _block(placement=_placement, cross=_CROSS),
        lambda n: (n(2, 3, 5), n(2, 7, 5)),
        context_mask=padding_mask(_REAL),
    )
layer("Recompute", lambda: Recompute(_block(dropout=0.3)()), lambda n: (n(2, 3, 5),), rng=5)
