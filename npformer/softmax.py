"""Softmax and log-softmax (chapter 2.5.5, the rows of the weights; text B section 2.3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Array, require_floating, require_shape
from .module import Module
from .parallel import rowdot, rowsum, rowwise


class SoftmaxSaved(NamedTuple):
    p: Array
    """(..., n), the result."""
    axis: int


class LogSoftmaxSaved(NamedTuple):
    y: Array
    """(..., n), the result."""
    axis: int


def shifted(x: Array) -> Array:
    """``x - max(x)`` row by row, where a row of nothing but -inf is left alone.

    The shift changes no softmax and keeps `exp` at most 1. Of numbers that lie further apart than
    the type reaches the smaller becomes -inf, whose `exp` is 0, as it should be.
    """
    m = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    m = np.where(np.isneginf(m.real), 0, m)
    with np.errstate(over="ignore"):
        return np.asarray(x - m)


def softmax(x: Array, axis: int = -1) -> tuple[Array, SoftmaxSaved]:
    r"""Turn scores into weights that are positive and sum to 1.

    .. math:: p_i = e^{x_i - m} / \textstyle\sum_j e^{x_j - m}, \qquad m = \max_j x_j

    Parameters
    ----------
    x : (..., n) array
        Scores; -inf gives the weight 0. A row of nothing but -inf gives a row of zeros.
    axis : int
        The axis along which the weights sum to 1.

    Returns
    -------
    p : (..., n) array
    saved : SoftmaxSaved
        ``p`` itself, no new memory.

    References
    ----------
    Text B section 2.3, whose ``z - z.max(dim=-1)`` does not run and whose ``exp(100) = inf`` is
    false in float64.

    Examples
    --------
    >>> softmax(np.array([0.0, np.log(3.0)]))[0]
    array([0.25, 0.75])
    """
    require_floating(x, "x")

    def block(x: Array) -> tuple[Array]:
        p = shifted(x)
        np.exp(p, out=p)
        total = rowsum(p)
        p /= np.where(total == 0, 1, total)
        return (p,)

    (p,) = rowwise(block, np.moveaxis(x, axis, -1))
    p = np.moveaxis(p, -1, axis)
    return p, SoftmaxSaved(p, axis)


def softmax_backward(dp: Array, saved: SoftmaxSaved) -> Array:
    r"""Gradient of `softmax`: ``dx`` (..., n).

    From :math:`\partial p_i / \partial x_j = p_i (\delta_{ij} - p_j)`, a symmetric matrix,

    .. math:: dx = p \odot \bigl(dp - \textstyle\sum_j p_j\, dp_j\bigr).

    A cotangent that is the same for the whole row gives 0: the weights always sum to 1.
    """

    def block(dp: Array, p: Array) -> tuple[Array]:
        return (p * (dp - rowdot(p, dp)),)

    p, axis = saved
    require_shape(dp, p.shape, "dp")
    (dx,) = rowwise(block, np.moveaxis(dp, axis, -1), np.moveaxis(p, axis, -1))
    return np.moveaxis(dx, -1, axis)


def log_softmax(x: Array, axis: int = -1) -> tuple[Array, LogSoftmaxSaved]:
    r"""Logarithm of `softmax`, exact where the weight itself would round to 0.

    .. math:: y_i = x_i - m - \log \textstyle\sum_j e^{x_j - m}

    Parameters
    ----------
    x : (..., n) array
    axis : int

    Returns
    -------
    y : (..., n) array
        -inf where ``x`` is -inf.
    saved : LogSoftmaxSaved
        ``y`` itself, no new memory.
    """
    require_floating(x, "x")

    def block(x: Array) -> tuple[Array]:
        y = shifted(x)
        total = rowsum(np.exp(y))
        y -= np.log(np.where(total == 0, 1, total))
        return (y,)

    with np.errstate(over="ignore"):  # below -65504 a float16 result is -inf
        (y,) = rowwise(block, np.moveaxis(x, axis, -1))
    y = np.moveaxis(y, -1, axis)
    return y, LogSoftmaxSaved(y, axis)


def log_softmax_backward(dy: Array, saved: LogSoftmaxSaved) -> Array:
    r"""Gradient of `log_softmax`: ``dx`` (..., n).

    From :math:`\partial y_i / \partial x_j = \delta_{ij} - p_j` with :math:`p = e^y`,

    .. math:: dx = dy - p \textstyle\sum_i dy_i.
    """

    def block(dy: Array, y: Array) -> tuple[Array]:
        return (dy - np.exp(y) * rowsum(dy),)

    y, axis = saved
    require_shape(dy, y.shape, "dy")
    (dx,) = rowwise(block, np.moveaxis(dy, axis, -1), np.moveaxis(y, axis, -1))
    return np.moveaxis(dx, -1, axis)


class Softmax(Module):
    """`softmax` as a layer, without parameters."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Array) -> tuple[Array, SoftmaxSaved]:
        return softmax(x, self.axis)

    def backward(self, dy: Array, saved: SoftmaxSaved) -> Array:
        return softmax_backward(dy, saved)


class LogSoftmax(Module):
    """`log_softmax` as a layer, without parameters."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Array) -> tuple[Array, LogSoftmaxSaved]:
        return log_softmax(x, self.axis)

    def backward(self, dy: Array, saved: LogSoftmaxSaved) -> Array:
        return log_softmax_backward(dy, saved)
