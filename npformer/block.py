"""The residual block and its placements of the norm (chapter 2.5.3; text B section 5)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array
from .cache import LayerCache
from .dropout import dropout, dropout_backward
from .feedforward import FeedForward
from .module import Module
from .multihead import AttentionConfig, MultiHeadAttention
from .norm import make_norm
from .parallel import added

PLACEMENTS: dict[str, tuple[bool, bool, bool]] = {
    "pre": (True, False, False),
    "post": (False, False, True),
    "sandwich": (True, True, False),
    "output": (False, True, False),
}
"""Where a norm stands: before the sub-layer, on its output, after the sum.

========  ==============================  =========================================================
name      formula                         source
========  ==============================  =========================================================
pre       Y = X + Sub(LN(X))              Xiong et al., 2020, arXiv:2002.04745; GPT-2, Llama
post      Y = LN(X + Sub(X))              Vaswani et al., 2017, arXiv:1706.03762; BERT
sandwich  Y = X + LN(Sub(LN(X)))          CogView, arXiv:2105.13290; Gemma-2; Peri-LN
output    Y = X + LN(Sub(X))              OLMo-2
========  ==============================  =========================================================
"""


class Block(Module):
    """Self-attention, cross-attention if asked for, and a feed-forward network, each a residual.

    Parameters
    ----------
    attention : AttentionConfig
    d_ff : int, optional
        See `FeedForward`, like ``activation`` and ``gated``.
    norm : str
        A name of `npformer.norm.NORMS`; ``eps`` and ``norm_offset`` are the norm's.
    placement : str
        A name of `PLACEMENTS`: this is the one place where Pre-LN and Post-LN differ.
    cross : AttentionConfig, optional
        Of cross-attention, between the other two.
    bias : bool
        Of the feed-forward network.
    dropout : float
        Of each sub-layer's output, where ``rng`` is given.
    rng : Generator or int, optional
    dtype : dtype
    """

    def __init__(
        self,
        attention: AttentionConfig,
        d_ff: int | None = None,
        *,
        norm: str = "layernorm",
        placement: str = "pre",
        activation: str = "gelu_tanh",
        gated: bool = False,
        bias: bool = True,
        eps: float = 1e-5,
        norm_offset: float = 0.0,
        dropout: float = 0.0,
        cross: AttentionConfig | None = None,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        if placement not in PLACEMENTS:
            names = ", ".join(PLACEMENTS)
            raise ValueError(f"placement must be one of {names}, but is {placement!r}")
        rng = np.random.default_rng(rng)
        self.placement = placement
        self.dropout = dropout
        self.attn = MultiHeadAttention(attention, rng=rng, dtype=dtype)
        if cross is not None:
            self.cross = MultiHeadAttention(cross, rng=rng, dtype=dtype)
        self.ffn = FeedForward(
            attention.d, d_ff, activation=activation, gated=gated, bias=bias, rng=rng, dtype=dtype
        )
        self.sublayers = ("attn", "ffn") if cross is None else ("attn", "cross", "ffn")
        before, on_output, after = PLACEMENTS[placement]
        options = {"offset": norm_offset} if norm_offset else {}
        for name in self.sublayers:
            if before or after:
                setattr(self, f"{name}_norm", make_norm(norm, attention.d, eps, dtype, **options))
            if on_output:
                setattr(
                    self, f"{name}_out_norm", make_norm(norm, attention.d, eps, dtype, **options)
                )

    def forward(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: Array | None = None,
        context_mask: Array | None = None,
        positions: Any = None,
        cache: LayerCache | None = None,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        if ("cross" in self.sublayers) != (context is not None):
            wanted = (
                "needs a context" if context is None else "has no cross-attention for a context"
            )
            raise ValueError(f"this block {wanted}")
        rng = None if rng is None else np.random.default_rng(rng)
        options: dict[str, dict[str, Any]] = {
            "attn": {"mask": mask, "positions": positions, "cache": cache, "rng": rng},
            "cross": {"context": context, "mask": context_mask, "cache": cache, "rng": rng},
            "ffn": {},
        }
        saved: dict[str, Any] = {}
        for name in self.sublayers:
            x = self._residual(name, x, options[name], saved, rng)
        return x, saved

    def _residual(
        self,
        name: str,
        x: Array,
        options: dict[str, Any],
        saved: dict[str, Any],
        rng: np.random.Generator | None,
    ) -> Array:
        """``x + Sub(x)``, with norms where the placement puts them."""
        before, on_output, after = PLACEMENTS[self.placement]
        y = x
        if before:
            y, saved[f"{name}_norm"] = self._norm(name).forward(y)
        y, saved[name] = getattr(self, name).forward(y, **options)
        if on_output:
            y, saved[f"{name}_out_norm"] = self._norm(f"{name}_out").forward(y)
        if self.dropout and rng is not None:
            y, saved[f"{name}_dropout"] = dropout(y, self.dropout, rng)
        y = added(x, y)
        if after:
            y, saved[f"{name}_norm"] = self._norm(name).forward(y)
        return y

    def backward(self, dy: Array, saved: dict[str, Any]) -> Any:
        """Return ``dx``, or ``(dx, dcontext)`` where the block has cross-attention."""
        dcontext: Array | None = None
        for name in reversed(self.sublayers):
            dy, d = self._residual_backward(name, dy, saved)
            dcontext = d if d is not None else dcontext
        return dy if dcontext is None else (dy, dcontext)

    def _residual_backward(
        self, name: str, dy: Array, saved: dict[str, Any]
    ) -> tuple[Array, Array | None]:
        """The sum hands dy to both of its terms: to x as it is, and to the sub-layer."""
        before, on_output, after = PLACEMENTS[self.placement]
        if after:
            dy = self._norm(name).backward(dy, saved[f"{name}_norm"])
        dsub, dcontext = dy, None
        if f"{name}_dropout" in saved:
            dsub = dropout_backward(dsub, saved[f"{name}_dropout"])
        if on_output:
            dsub = self._norm(f"{name}_out").backward(dsub, saved[f"{name}_out_norm"])
        dsub = getattr(self, name).backward(dsub, saved[name])
        if isinstance(dsub, tuple):
            dsub, dcontext = dsub
        if before:
            dsub = self._norm(name).backward(dsub, saved[f"{name}_norm"])
        return added(dy, dsub), dcontext

    def _norm(self, name: str) -> Module:
        norm: Module = getattr(self, f"{name}_norm")
        return norm


class Recompute(Module):
    """Wrap a layer so that it keeps its inputs only and computes the rest again in the backward.

    A stack of L recomputed blocks keeps L inputs and the activations of one block, for one more
    forward pass (Chen et al., 2016, arXiv:1604.06174). Dropout repeats, since the state of ``rng``
    is kept too.
    """

    def __init__(self, layer: Module) -> None:
        self.layer = layer

    def forward(self, *inputs: Any, **options: Any) -> tuple[Any, Any]:
        again = {k: copy.deepcopy(v) if k == "rng" else v for k, v in options.items()}
        if again.get("cache") is not None:
            raise ValueError("a layer that is recomputed can't fill a cache")
        return self.layer(*inputs, **options), {"inputs": inputs, "options": again}

    def backward(self, dy: Any, saved: dict[str, Any]) -> Any:
        options = {k: copy.deepcopy(v) for k, v in saved["options"].items() if k == "rng"}
        _, inner = self.layer.forward(*saved["inputs"], **{**saved["options"], **options})
        return self.layer.backward(dy, inner)
