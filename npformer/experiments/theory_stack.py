"""The stack that Xiong et al. (2020), arXiv:2002.04745, section 3.3, analyse.

One head with Wq = Wk = 0, so that attention is the mean over the n tokens times Wv (no mask, no
Wo); all matrices d x d and N(0, 1/d); ReLU; no biases; norms with gain 1 and shift 0; Gaussian
inputs in place of an embedding; the mean cross-entropy of random labels. Residuals, norms and
feed-forward network are the package's own: only the attention is another, and how weights start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..activation import Activation
from ..arrays import Array
from ..block import Block
from ..feedforward import FeedForward
from ..linear import Linear
from ..loss import cross_entropy, cross_entropy_backward
from ..module import Module, Parameter
from ..norm import LayerNorm
from ..stack import Stack, unembedding, unembedding_backward


class GaussianLinear(Linear):
    """d x d without bias, N(0, 1/d): Xavier's rule."""

    def __init__(self, d: int, rng: np.random.Generator, dtype: npt.DTypeLike) -> None:
        self.W = Parameter(gaussian(d, d, rng, dtype))
        self.b = None


class TheoryFeedForward(FeedForward):
    """ReLU between two such maps."""

    def __init__(self, d: int, rng: np.random.Generator, dtype: npt.DTypeLike) -> None:
        self.d = d
        self.W1, self.W2 = GaussianLinear(d, rng, dtype), GaussianLinear(d, rng, dtype)
        self.activation = Activation("relu")
        self.W3 = None


class TokenMeanSaved(NamedTuple):
    n: int


def token_mean(x: Array) -> tuple[Array, TokenMeanSaved]:
    r"""Mean of a sequence, for each of its tokens: attention with all scores 0 and no mask.

    .. math:: y_i = \frac1n \sum_{j=1}^n x_j

    Parameters
    ----------
    x : (B, n, d) array

    Returns
    -------
    y : (B, 1, d) array
        One row, since all n are the same.
    saved : TokenMeanSaved
    """
    return x.mean(axis=1, keepdims=True), TokenMeanSaved(x.shape[1])


def token_mean_backward(dy: Array, saved: TokenMeanSaved) -> Array:
    r"""Gradient of `token_mean`: every token has the share 1/n, :math:`dx_j = dy / n`."""
    (n,) = saved
    return np.repeat(dy * (1.0 / n), n, axis=1)


class MeanAttention(Module):
    r"""Attention with Wq = Wk = 0: :math:`y_i = \bigl(\frac1n \sum_j x_j\bigr) W_V`."""

    def __init__(self, d: int, rng: np.random.Generator, dtype: npt.DTypeLike) -> None:
        self.Wv = GaussianLinear(d, rng, dtype)

    def forward(self, x: Array, **_: Any) -> tuple[Array, dict[str, Any]]:
        saved: dict[str, Any] = {}
        m, saved["token_mean"] = token_mean(x)
        y, saved["Wv"] = self.Wv.forward(m)
        return np.broadcast_to(y, x.shape), saved

    def backward(self, dy: Array, saved: dict[str, Any]) -> Array:
        dm = self.Wv.backward(dy.sum(axis=1, keepdims=True), saved["Wv"])
        return token_mean_backward(dm, saved["token_mean"])


class TheoryBlock(Block):
    """The package's residual block around `MeanAttention` and a d x d feed-forward network."""

    def __init__(
        self, d: int, placement: str, rng: np.random.Generator, dtype: npt.DTypeLike
    ) -> None:
        self.placement = placement
        self.dropout = 0.0
        self.sublayers = ("attn", "ffn")
        self.attn = MeanAttention(d, rng, dtype)  # type: ignore[assignment]
        self.ffn = TheoryFeedForward(d, rng, dtype)
        self.attn_norm = LayerNorm(d, dtype=dtype)
        self.ffn_norm = LayerNorm(d, dtype=dtype)


class TheoryStack(Stack):
    """L such blocks, then the final norm of Pre-LN."""

    def __init__(
        self, d: int, L: int, placement: str, rng: np.random.Generator, dtype: npt.DTypeLike
    ) -> None:
        self.recompute = False
        self.blocks = [TheoryBlock(d, placement, rng, dtype) for _ in range(L)]
        self.final_norm = LayerNorm(d, dtype=dtype) if placement == "pre" else None


class TheoryModel(Module):
    """The stack and its loss, with the interface of `npformer.DecoderLM`; inputs are x itself.

    Parameters
    ----------
    d, L, V : int
    placement : {"pre", "post"}
    rng : Generator or int, optional
    dtype : dtype
    """

    def __init__(
        self,
        d: int,
        L: int,
        V: int,
        placement: str = "pre",
        *,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        rng = np.random.default_rng(rng)
        self.stack = TheoryStack(d, L, placement, rng, dtype)
        self.E = Parameter(gaussian(V, d, rng, dtype))

    def forward(self, x: Array) -> tuple[Array, dict[str, Any]]:
        saved: dict[str, Any] = {}
        h, saved["stack"] = self.stack.forward(x)
        logits, saved["unembedding"] = unembedding(h, self.E.value)
        return logits, saved

    def backward(self, dlogits: Array, saved: dict[str, Any]) -> Array:
        dh, dE = unembedding_backward(dlogits, saved["unembedding"])
        self.E.accumulate(dE)
        return self.stack.backward(dh, saved["stack"])

    def loss(self, x: Array, targets: Any) -> tuple[float, dict[str, Any]]:
        logits, saved = self.forward(x)
        loss, saved["cross_entropy"] = cross_entropy(logits, targets)
        return loss, saved

    def loss_backward(self, dloss: float, saved: dict[str, Any]) -> Array:
        return self.backward(cross_entropy_backward(dloss, saved["cross_entropy"]), saved)


def gaussian(n: int, d: int, rng: np.random.Generator, dtype: npt.DTypeLike) -> Array:
    """(n, d) of N(0, 1/d); drawn in float32, which takes half the time."""
    W = rng.standard_normal((n, d), np.float32)
    W *= d**-0.5
    return W.astype(dtype, copy=False)
