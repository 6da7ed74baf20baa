"""Dropout: by a mask of random numbers for activations, by a counter hash inside attention."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Array, is_number, require_floating, require_shape
from .module import Module


class DropoutSaved(NamedTuple):
    keep: Array | None
    """Booleans of the shape of ``x``; None where nothing was dropped."""
    p: float


def check_probability(p: float) -> None:
    """Raise ValueError unless ``p`` is a probability of dropping."""
    if not is_number(p) or not 0 <= p <= 1:
        raise ValueError(f"the dropout probability must lie in [0, 1], but is {p!r}")


def dropout(
    x: Array, p: float, rng: np.random.Generator | int | None = None
) -> tuple[Array, DropoutSaved]:
    r"""Set each number to 0 with probability ``p`` and scale the others up.

    .. math:: y = x \odot z / (1 - p), \qquad z \sim \operatorname{Bernoulli}(1 - p)

    so that the expected value stays. Without ``rng``, at inference, it is the identity.

    Parameters
    ----------
    x : array
    p : float in [0, 1]
    rng : Generator or int, optional

    Returns
    -------
    y : array of the shape of ``x``
    saved : DropoutSaved
        The mask ``z``, one byte a number.

    References
    ----------
    Srivastava et al., 2014, Journal of Machine Learning Research 15.
    """
    require_floating(x, "x")
    check_probability(p)
    if rng is None or p == 0:
        return x, DropoutSaved(None, p)
    keep = np.random.default_rng(rng).random(x.shape, np.float32) >= p
    return _apply(x, keep, p), DropoutSaved(keep, p)


def dropout_backward(dy: Array, saved: DropoutSaved) -> Array:
    r"""Gradient of `dropout`: :math:`dx = dy \odot z / (1 - p)` with the mask of the forward."""
    if saved.keep is None:
        return dy
    require_shape(dy, saved.keep.shape, "dy")
    return _apply(dy, saved.keep, saved.p)


def _apply(x: Array, keep: Array, p: float) -> Array:
    return x * keep * (1 / (1 - p) if p < 1 else 0.0)


def kept(number: int, heads: Array, queries: Array, keys: Array, p: float) -> Array:
    """Which attention weights dropout keeps: one hash a weight, the same in any order.

    A kernel that works in blocks meets the weights in an order of its own and meets them again in
    the backward, so a stream of random numbers will not do. The bits of the counter (number,
    head, query, key) are mixed by the finaliser of SplitMix64 (Steele, Lea & Flood, 2014,
    doi:10.1145/2660193.2660195).

    Parameters
    ----------
    number : int
        Drawn once a call.
    heads, queries, keys : arrays of integers
        They broadcast against each other; the result has their shape.
    p : float

    Returns
    -------
    array of bool
    """
    with np.errstate(over="ignore"):
        row = _mix(_mix(np.uint64(number) + heads.astype(np.uint64)) + queries.astype(np.uint64))
        z = _mix(row + keys.astype(np.uint64))
    return np.asarray((z >> np.uint64(11)) * 2.0**-53 >= p)


def _mix(z: Array) -> Array:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Dropout(Module):
    """`dropout` as a layer; active only where ``rng`` is given."""

    def __init__(self, p: float) -> None:
        check_probability(p)
        self.p = p

    def forward(
        self, x: Array, rng: np.random.Generator | int | None = None
    ) -> tuple[Array, DropoutSaved]:
        return dropout(x, self.p, rng)

    def backward(self, dy: Array, saved: DropoutSaved) -> Array:
        return dropout_backward(dy, saved)
