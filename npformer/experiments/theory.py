"""What the theory of Pre-LN and Post-LN says about scales at the start (chapter 2.5.3).

Xiong et al., 2020, arXiv:2002.04745, bound the activations (Lemma 2) and the last gradient
(Theorem 1) of the stack in `theory_stack`. At infinite width both have exact values: the recursion
here gives them, so that a measurement can be held against a number and not only a bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..arrays import Array

POST_SUM = 1.5
r"""E|x + FFN(x)|^2 / d of Post-LN before a block's last norm: x is normed and counts 1, the
feed-forward network adds 1/2 (Lemma 2)."""


class MeanField(NamedTuple):
    s: Array
    """(L + 1,), E|x_l|^2 / d after l layers."""
    c: Array
    """(L + 1,), E<x_l,i, x_l,j> / d of two tokens of one sequence."""


def relu_kernel(rho: float) -> float:
    r"""Correlation of ReLU features, :math:`2\,E[\phi(u)\phi(v)]` for N(0, 1) with correlation rho.

    .. math:: \kappa(\rho) = \frac{1}{\pi}\bigl(\sqrt{1 - \rho^2}
        + \rho\,(\pi - \arccos \rho)\bigr), \qquad \kappa(0) = 1/\pi, \quad \kappa(1) = 1

    References
    ----------
    Cho & Saul, 2009, Kernel methods for deep learning (the arc-cosine kernel of degree 1).
    """
    return (math.sqrt(1 - rho * rho) + rho * (math.pi - math.acos(rho))) / math.pi


def mean_field(L: int, n: int) -> MeanField:
    r"""Scale of the Pre-LN stream at infinite width, for sequences of n tokens.

    A layer adds two terms to :math:`x`, each with fresh weights N(0, 1/d) and therefore orthogonal
    to what is there; so the s of the sum is the sum of the s, and likewise c. With
    :math:`\rho = c / s`, the cosine of two normed tokens,

    .. math::
        \text{attention (the mean of n tokens):} \quad
        & s \mathrel{+}= A, \; c \mathrel{+}= A, \qquad A = \frac{1 + (n - 1)\rho}{n} \\
        \text{feed-forward:} \quad
        & s \mathrel{+}= \tfrac12, \; c \mathrel{+}= \tfrac12\,\kappa(\rho).

    The mean of n vectors of length 1 and cosine :math:`\rho` has the squared length A, and every
    token gets the same one. A ReLU keeps half of the second moment (Lemma 1). From s = 1, c = 0 the
    slope of s rises from 1/2 + 1/n to 3/2 while the tokens align: within Lemma 2's bounds
    :math:`1 + l/2 \le s_l \le 1 + 3l/2`.

    Parameters
    ----------
    L : int
        Layers.
    n : int
        Tokens of a sequence.

    Returns
    -------
    MeanField
        ``s`` and ``c``, each (L + 1,), from the input on.
    """
    s, c = 1.0, 0.0
    values = [(s, c)]
    for _ in range(L):
        A = (1 + (n - 1) * c / s) / n
        s, c = s + A, c + A
        s, c = s + 0.5, c + 0.5 * relu_kernel(min(1.0, c / s))
        values.append((s, c))
    return MeanField(*np.array(values).T)


def last_gradient(d: int, n: int, B: int, s: Array | float) -> Array:
    r"""Frobenius norm of the last layer's :math:`\partial L / \partial W_2`.

    .. math:: \Bigl\| \frac{\partial L}{\partial W_2} \Bigr\|_F \approx \sqrt{\frac{d}{2 n B s}}

    The loss is a mean over n B tokens, so the gradient is
    :math:`\frac{1}{nB} \sum_i h_i^T \delta_i` with the ReLU features :math:`h_i`,
    :math:`E|h_i|^2 = d/2`, and :math:`\delta_i`, the gradient of token i's loss by the stream. That
    is :math:`(p_i - y_i) W_{emb}`, of length 1 where p is small, sent through the last norm, which
    divides by :math:`\sqrt s`. Labels are independent, so the n B terms add up as their squares.

    Parameters
    ----------
    d, n, B : int
        Width, tokens of a sequence, sequences.
    s : float or array
        E|x|^2 / d of what the last norm divides: `mean_field` of the depth for Pre-LN, `POST_SUM`
        at every depth for Post-LN. Theorem 1 follows: 1 / sqrt(L) against a constant.
    """
    return np.sqrt(d / (2 * n * B * np.asarray(s, float)))


def loglog_slope(x: Array, y: Array) -> float:
    """Exponent of a power law through the points, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
