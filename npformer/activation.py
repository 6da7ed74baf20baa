"""Activations (chapter 2.5.2; text B section 4). Each saves its derivative, computed with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, require_floating, require_shape
from .module import Module
from .parallel import rowwise


class ActivationSaved(NamedTuple):
    derivative: Array
    """dy/dx, of the shape of ``x``: every activation acts on each number by itself."""


def activation_backward(dy: Array, saved: ActivationSaved) -> Array:
    r"""Gradient of every activation: :math:`dx = dy \odot f'(x)`.

    :math:`f` acts on each number by itself, so its Jacobian is diagonal. The derivative was
    computed in the forward pass, where the costly exp or tanh is at hand.
    """

    def block(dy: Array, derivative: Array) -> tuple[Array]:
        return (dy * derivative,)

    require_shape(dy, saved.derivative.shape, "dy")
    return rowwise(block, _rows(dy), _rows(saved.derivative))[0].reshape(dy.shape)


def _rows(x: Array) -> Array:
    return x if x.ndim > 1 else x.reshape(1, -1)


def _elementwise(
    block: Callable[[Array], tuple[Array, Array]], x: Array
) -> tuple[Array, ActivationSaved]:
    require_floating(x, "x")
    y, derivative = rowwise(block, _rows(x))
    return y.reshape(x.shape), ActivationSaved(derivative.reshape(x.shape))


def relu(x: Array) -> tuple[Array, ActivationSaved]:
    r""":math:`y = \max(x, 0)`, with :math:`y' = 1` for :math:`x > 0` and 0 elsewhere, at 0 too.

    Parameters
    ----------
    x : array

    Returns
    -------
    y : array of the shape of ``x``
    saved : ActivationSaved
    """

    def block(x: Array) -> tuple[Array, Array]:
        positive = (x.real > 0).astype(x.dtype)
        return np.where(x.real < 0, 0, x), positive  # NaN stays NaN

    return _elementwise(block, x)


def sigmoid(x: Array) -> tuple[Array, ActivationSaved]:
    r""":math:`\sigma(x) = 1 / (1 + e^{-x})`, with :math:`\sigma' = \sigma (1 - \sigma)`.

    Parameters
    ----------
    x : array

    Returns
    -------
    y : array of the shape of ``x``
        Exact to the last digits at both ends: `exp` is only taken of numbers below 0.
    saved : ActivationSaved
    """

    def block(x: Array) -> tuple[Array, Array]:
        s, s_minus = _sigmoid(x)
        return s, s * s_minus

    return _elementwise(block, x)


def _sigmoid(x: Array) -> tuple[Array, Array]:
    r""":math:`\sigma(x)` and :math:`\sigma(-x)`, both from :math:`e^{-|x|}`."""
    e = np.exp(np.minimum(x, -x))  # of complex numbers `minimum` takes the smaller real part
    small, large = e / (1 + e), 1 / (1 + e)
    below = x.real < 0
    return np.where(below, small, large), np.where(below, large, small)


def silu(x: Array) -> tuple[Array, ActivationSaved]:
    r"""SiLU or Swish: :math:`y = x\, \sigma(x)`, :math:`y' = \sigma(x) + y\,(1 - \sigma(x))`.

    The product rule gives :math:`\sigma + x \sigma (1 - \sigma)`, which is
    :math:`\sigma + y\, (1 - \sigma)`. Here :math:`\sigma(x) = \tfrac12 (1 + \tanh(x/2))`, exact
    to the last digit of 1 and so of y's scale.

    Parameters
    ----------
    x : array

    Returns
    -------
    y : array of the shape of ``x``
    saved : ActivationSaved

    References
    ----------
    Chapter 2.5.2; text B section 4; Shazeer, 2020, arXiv:2002.05202.
    """

    def block(x: Array) -> tuple[Array, Array]:
        s = np.tanh(0.5 * x)  # four times as fast as the exp in `sigmoid`
        s *= 0.5
        s += 0.5
        y = x * s
        derivative = 1 - s
        derivative *= y
        derivative += s
        return y, derivative

    return _elementwise(block, x)


def tanh(x: Array) -> tuple[Array, ActivationSaved]:
    r""":math:`y = \tanh x`, with :math:`y' = 1 - y^2`.

    Parameters
    ----------
    x : array

    Returns
    -------
    y : array of the shape of ``x``
    saved : ActivationSaved
    """

    def block(x: Array) -> tuple[Array, Array]:
        y = np.tanh(x)
        return y, 1 - y * y

    return _elementwise(block, x)


def gelu(x: Array, approximate: str = "none") -> tuple[Array, ActivationSaved]:
    r"""GELU: ``x`` times the probability that a standard normal number lies below it.

    .. math::
        y = x\, \Phi(x), \qquad y' = \Phi(x) + x\, \varphi(x), \qquad
        \Phi(x) = \tfrac12 \bigl(1 + \operatorname{erf}(x / \sqrt 2)\bigr)

    with the density :math:`\varphi = \Phi' = e^{-x^2/2} / \sqrt{2\pi}`. The tanh form puts

    .. math::
        \Phi(x) \approx \tfrac12 (1 + \tanh u), \qquad
        u = \sqrt{2/\pi}\,(x + 0.044715\, x^3)

    in its place, with :math:`\varphi = \tfrac12 (1 - \tanh^2 u)\, u' = 2\, \Phi (1 - \Phi)\, u'`,
    so that :math:`y' = \Phi\, (1 + 2 x u' (1 - \Phi))`. The two forms differ by 4.7e-4 at most, at
    :math:`|x| = 2.7`.

    Parameters
    ----------
    x : array
    approximate : {"none", "tanh"}
        BERT uses the exact form; GPT-2 and Gemma use tanh.

    Returns
    -------
    y : array of the shape of ``x``
    saved : ActivationSaved

    References
    ----------
    Hendrycks & Gimpel, 2016, arXiv:1606.08415.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f'approximate must be "none" or "tanh", but is {approximate!r}')
    return _elementwise(_gelu_tanh if approximate == "tanh" else _gelu_erf, x)


def _gelu_erf(x: Array) -> tuple[Array, Array]:
    from scipy.special import erf  # late: only this form needs it

    Phi = 0.5 * (1 + erf(x * math.sqrt(0.5)))
    u = np.maximum(np.minimum(x, 40), -40)  # the density is 0 from there on; x * x could overflow
    phi = np.exp(-0.5 * u * u) * (2 * math.pi) ** -0.5
    return x * Phi, Phi + x * phi


def _gelu_tanh(x: Array) -> tuple[Array, Array]:
    c = math.sqrt(2 / math.pi)
    x10 = np.clip(x, -10, 10)  # tanh is 1 to the last digit from there on; a cube could overflow
    square = x10 * x10
    Phi = np.tanh((square * (0.044715 * c) + c) * x10) * 0.5 + 0.5
    slope = (square * (6 * 0.044715 * c) + 2 * c) * x10  # 2 x u'
    return x * Phi, ((1 - Phi) * slope + 1) * Phi


relu_backward = silu_backward = sigmoid_backward = tanh_backward = activation_backward
gelu_backward = activation_backward


class Activation(Module):
    """An activation as a layer, by its name in `ACTIVATIONS`."""

    def __init__(self, name: str) -> None:
        if name not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, but is {name!r}")
        self.name = name

    def forward(self, x: Array) -> tuple[Array, ActivationSaved]:
        return ACTIVATIONS[self.name](x)

    def backward(self, dy: Array, saved: ActivationSaved) -> Array:
        return activation_backward(dy, saved)


def _gelu_tanh_form(x: Array) -> tuple[Array, ActivationSaved]:
    return gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": _gelu_tanh_form,
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
"""What a configuration may ask for."""
