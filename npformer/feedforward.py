"""The position-wise feed-forward network (chapter 2.5.2; text B section 4)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .activation import Activation
from .arrays import Array, require_last, require_shape, require_sizes
from .linear import Linear
from .module import Module
from .parallel import rowwise


class GateSaved(NamedTuple):
    a: Array
    """(..., d_ff), the activated half."""
    u: Array
    """(..., d_ff), the linear half."""


def gate(a: Array, u: Array) -> tuple[Array, GateSaved]:
    r"""Multiply two branches number by number: :math:`y = a \odot u`.

    Parameters
    ----------
    a, u : arrays of one shape

    Returns
    -------
    y : array of that shape
    saved : GateSaved
        Both by reference.

    Raises
    ------
    ValueError
        if their shapes differ.

    References
    ----------
    Shazeer, 2020, arXiv:2002.05202, Eq. 5 and 6.
    """
    require_shape(u, a.shape, "u")

    def block(a: Array, u: Array) -> tuple[Array]:
        return (a * u,)

    return rowwise(block, a, u)[0], GateSaved(a, u)


def gate_backward(dy: Array, saved: GateSaved) -> tuple[Array, Array]:
    r"""Gradient of `gate`, the product rule: :math:`da = dy \odot u`, :math:`du = dy \odot a`."""
    require_shape(dy, saved.a.shape, "dy")

    def block(dy: Array, a: Array, u: Array) -> tuple[Array, Array]:
        return dy * u, dy * a

    return rowwise(block, dy, *saved)


class FeedForward(Module):
    r"""Two linear maps with an activation between them, the same for every position.

    .. math:: y = \phi(x W_1 + b_1)\, W_2 + b_2

    and gated, with a third matrix,

    .. math:: y = \bigl(\phi(x W_1 + b_1) \odot (x W_3 + b_3)\bigr) W_2 + b_2,

    which is SwiGLU for ``activation="silu"``, GeGLU for "gelu" and ReGLU for "relu".

    Parameters
    ----------
    d : int
    d_ff : int, optional
        4 d, or `parity_width` of d where gated: the same number of parameters.
    activation : str
        A name of `npformer.activation.ACTIVATIONS`.
    gated, bias : bool
    rng : Generator or int, optional
    dtype : dtype

    References
    ----------
    Vaswani et al., 2017, arXiv:1706.03762, Eq. 2; Shazeer, 2020, arXiv:2002.05202; chapter
    definition 2.5.2 (which writes columns, W z; here rows are multiplied, x W).
    """

    def __init__(
        self,
        d: int,
        d_ff: int | None = None,
        *,
        activation: str = "gelu_tanh",
        gated: bool = False,
        bias: bool = True,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        rng = np.random.default_rng(rng)
        require_sizes(d=d)
        if d_ff is None:
            d_ff = parity_width(d) if gated else 4 * d
        require_sizes(d_ff=d_ff)
        self.d = d
        self.W1 = Linear(d, d_ff, bias, rng=rng, dtype=dtype)
        self.activation = Activation(activation)
        self.W3 = Linear(d, d_ff, bias, rng=rng, dtype=dtype) if gated else None
        self.W2 = Linear(d_ff, d, bias, rng=rng, dtype=dtype)

    def forward(self, x: Array) -> tuple[Array, dict[str, Any]]:
        require_last(x, self.d, "x")
        saved: dict[str, Any] = {}
        h, saved["W1"] = self.W1.forward(x)
        h, saved["activation"] = self.activation.forward(h)
        if self.W3 is not None:
            u, saved["W3"] = self.W3.forward(x)
            h, saved["gate"] = gate(h, u)
        y, saved["W2"] = self.W2.forward(h)
        return y, saved

    def backward(self, dy: Array, saved: dict[str, Any]) -> Array:
        dh = self.W2.backward(dy, saved["W2"])
        if self.W3 is not None:
            dh, du = gate_backward(dh, saved["gate"])
        dh = self.activation.backward(dh, saved["activation"])
        dx = self.W1.backward(dh, saved["W1"])
        if self.W3 is not None:
            dx += self.W3.backward(du, saved["W3"])
        return dx


def parity_width(d: int) -> int:
    """Return 8 d / 3 rounded: three matrices of that width have the 8 d^2 numbers of two of 4 d.

    The source is that count (Shazeer, 2020, arXiv:2002.05202, section 2), not an experiment with
    widths.
    """
    return round(8 * d / 3)


def llama_width(d: int, multiplier: float | None = None, multiple_of: int = 256) -> int:
    """Return Llama's d_ff: 8 d / 3 cut to a whole number, times ``multiplier``, rounded up.

    The rule of Meta's ``llama`` reference code; each cut is one of its own.

    Parameters
    ----------
    d : int
    multiplier : float, optional
        ``ffn_dim_multiplier``: 1.3 for Llama-2-70B and Llama-3-8B.
    multiple_of : int
        The result is a multiple of it.

    Examples
    --------
    >>> llama_width(4096), llama_width(4096, 1.3, 1024)
    (11008, 14336)
    """
    if d < 1 or multiple_of < 1 or (multiplier is not None and not multiplier > 0):
        raise ValueError(
            f"d, multiplier and multiple_of must be positive, but are {d}, {multiplier} and "
            f"{multiple_of}"
        )
    width = int(2 * (4 * d) / 3)
    if multiplier is not None:
        width = int(multiplier * width)
    return -(-width // multiple_of) * multiple_of
