"""Normalisation (chapter 2.5.3; text B section 5.1): function pairs first, layers below."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Array, require_last, require_shape, require_sizes
from .module import Module, Parameter
from .parallel import colsum, rowdot, rowmean, rowwise


def require_eps(eps: float) -> None:
    """Raise unless ``eps`` is 0 or more: below, the root of a variance could be of less than 0."""
    if not eps >= 0:
        raise ValueError(f"eps must be 0 or more, but is {eps}")


class LayerNormSaved(NamedTuple):
    xhat: Array
    """(..., d), the standardised rows."""
    r: Array
    """(..., 1), one over the standard deviation."""
    gamma: Array


class RMSNormSaved(NamedTuple):
    x: Array
    """(..., d), the input by reference."""
    r: Array
    """(..., 1), one over the root mean square."""
    gamma: Array


def layernorm(
    x: Array, gamma: Array, beta: Array, eps: float = 1e-5
) -> tuple[Array, LayerNormSaved]:
    r"""Bring every row to mean 0 and variance 1, then scale and shift each feature.

    .. math::
        y = \gamma \odot \hat x + \beta, \qquad
        \hat x = (x - \mu)\, r, \qquad r = 1 / \sqrt{\sigma^2 + \epsilon}

    with the mean :math:`\mu` and the population variance :math:`\sigma^2` of the row: divided by
    d and not by d - 1, and :math:`\epsilon` inside the root.

    Parameters
    ----------
    x : (..., d) array
    gamma, beta : (d,) arrays
    eps : float

    Returns
    -------
    y : (..., d) array
    saved : LayerNormSaved
        ``xhat`` (..., d) and ``r`` (..., 1).

    Raises
    ------
    ValueError
        if the last dimension of ``x`` is not that of ``gamma`` and ``beta``.

    References
    ----------
    Ba, Kiros & Hinton, 2016, arXiv:1607.06450; chapter definition 2.5.3.
    """
    require_last(x, len(gamma), "x")
    require_eps(eps)
    require_shape(gamma, (len(gamma),), "gamma")
    require_shape(beta, (len(gamma),), "beta")

    def block(x: Array) -> tuple[Array, Array, Array]:
        xhat = x - rowmean(x)
        xhat -= rowmean(xhat)  # removes what rounding a large mean left over
        r = 1 / np.sqrt(rowdot(xhat, xhat) * (1.0 / x.shape[-1]) + eps)
        xhat *= r
        y = xhat * gamma
        y += beta
        return y, xhat, r

    y, xhat, r = rowwise(block, x, stats=1)
    return y, LayerNormSaved(xhat, r, gamma)


def layernorm_backward(dy: Array, saved: LayerNormSaved) -> tuple[Array, Array, Array]:
    r"""Gradient of `layernorm`: ``dx`` (..., d), ``dgamma`` and ``dbeta`` (d,).

    Write :math:`g = \gamma \odot dy`, the gradient by :math:`\hat x`. The row enters
    :math:`\hat x_i = (x_i - \mu) r` three times: through :math:`x_i` itself, through the mean with
    :math:`\partial \mu / \partial x_j = 1/d`, and through the scale with
    :math:`\partial r / \partial x_j = -r^3 (x_j - \mu) / d = -r^2 \hat x_j / d`. Together

    .. math:: \partial \hat x_i / \partial x_j = r\,(\delta_{ij} - 1/d - \hat x_i \hat x_j / d),

    a symmetric matrix: it takes the mean and the component along :math:`\hat x` away. Hence

    .. math::
        dx = r\,\bigl(g - \operatorname{mean}(g) - \hat x \operatorname{mean}(g \odot \hat x)\bigr),
        \qquad d\gamma = \textstyle\sum_{\text{rows}} dy \odot \hat x,
        \qquad d\beta = \sum_{\text{rows}} dy.

    The length of ``dx`` falls as 1 over that of the row (Xiong et al., 2020, arXiv:2002.04745,
    Lemma 3).
    """
    xhat, r, gamma = saved
    require_shape(dy, xhat.shape, "dy")

    def block(dy: Array, xhat: Array, r: Array) -> tuple[Array, Array, Array]:
        dgamma, dbeta = colsum(dy * xhat), colsum(dy)
        g = dy * gamma
        dx = g - rowmean(g)
        dx -= xhat * (rowdot(g, xhat) * (1.0 / g.shape[-1]))
        dx *= r
        return dx, dgamma, dbeta

    return rowwise(block, dy, xhat, r, sums=2)


def rmsnorm(x: Array, gamma: Array, eps: float = 1e-6) -> tuple[Array, RMSNormSaved]:
    r"""Scale every row to unit root mean square, then scale each feature.

    .. math:: y = \gamma \odot x\, r, \qquad r = 1 / \sqrt{\operatorname{mean}(x^2) + \epsilon}

    Parameters
    ----------
    x : (..., d) array
    gamma : (d,) array
    eps : float

    Returns
    -------
    y : (..., d) array
    saved : RMSNormSaved
        ``x`` by reference; ``r`` (..., 1) is the only new memory.

    Raises
    ------
    ValueError
        if the last dimension of ``x`` is not that of ``gamma``.

    References
    ----------
    Zhang & Sennrich, 2019, arXiv:1910.07467; chapter definition 2.5.3; text B section 5.1.
    """
    require_last(x, len(gamma), "x")
    require_eps(eps)
    require_shape(gamma, (len(gamma),), "gamma")

    def block(x: Array) -> tuple[Array, Array]:
        r = 1 / np.sqrt(rowdot(x, x) * (1.0 / x.shape[-1]) + eps)
        y = x * r
        y *= gamma
        return y, r

    y, r = rowwise(block, x, stats=1)
    return y, RMSNormSaved(x, r, gamma)


def rmsnorm_backward(dy: Array, saved: RMSNormSaved) -> tuple[Array, Array]:
    r"""Gradient of `rmsnorm`: ``dx`` (..., d) and ``dgamma`` (d,).

    Write :math:`\hat x = x r` and :math:`g = \gamma \odot dy`, the gradient by :math:`\hat x`. From
    :math:`\partial r / \partial x_j = -r^3 x_j / d`,

    .. math:: \partial \hat x_i / \partial x_j = r\,(\delta_{ij} - \hat x_i \hat x_j / d),

    a symmetric matrix, so its transpose needs no second formula:

    .. math::
        dx = r\,\bigl(g - \hat x\,\operatorname{mean}(g \odot \hat x)\bigr),
        \qquad d\gamma = \textstyle\sum_{\text{rows}} dy \odot \hat x.
    """
    x, r, gamma = saved
    require_shape(dy, x.shape, "dy")

    def block(dy: Array, x: Array, r: Array) -> tuple[Array, Array]:
        xhat = x * r
        dgamma = colsum(dy * xhat)
        dx = dy * gamma
        xhat *= rowdot(dx, xhat) * (1.0 / x.shape[-1])
        dx -= xhat
        dx *= r
        return dx, dgamma

    return rowwise(block, dy, x, r, sums=1)


class LayerNorm(Module):
    """`layernorm` with a learned gain ``gamma`` and shift ``beta`` for each of ``d`` features."""

    def __init__(self, d: int, eps: float = 1e-5, dtype: npt.DTypeLike = np.float32) -> None:
        require_sizes(d=d)
        self.gamma = Parameter(np.ones(d, dtype))
        self.beta = Parameter(np.zeros(d, dtype))
        self.eps = eps

    def forward(self, x: Array) -> tuple[Array, LayerNormSaved]:
        return layernorm(x, self.gamma.value, self.beta.value, self.eps)

    def backward(self, dy: Array, saved: LayerNormSaved) -> Array:
        dx, dgamma, dbeta = layernorm_backward(dy, saved)
        self.gamma.accumulate(dgamma)
        self.beta.accumulate(dbeta)
        return dx


class RMSNorm(Module):
    """`rmsnorm` with a learned gain ``gamma``, one number for each of ``d`` features.

    With ``offset=1`` the gain is 1 + gamma and gamma starts at 0, as in Gemma, so that weight
    decay pulls the gain to 1.
    """

    def __init__(
        self, d: int, eps: float = 1e-6, dtype: npt.DTypeLike = np.float32, offset: float = 0.0
    ) -> None:
        require_sizes(d=d)
        self.gamma = Parameter(np.full(d, 1 - offset, dtype))
        self.eps = eps
        self.offset = float(offset)

    def forward(self, x: Array) -> tuple[Array, RMSNormSaved]:
        gamma = self.gamma.value + self.offset if self.offset else self.gamma.value
        return rmsnorm(x, gamma, self.eps)

    def backward(self, dy: Array, saved: RMSNormSaved) -> Array:
        dx, dgamma = rmsnorm_backward(dy, saved)
        self.gamma.accumulate(dgamma)
        return dx


def make_norm(
    name: str, d: int, eps: float, dtype: npt.DTypeLike = np.float32, **options: Any
) -> LayerNorm | RMSNorm:
    """Return the norm layer called ``name`` in a configuration."""
    return NORMS[name](d, eps, dtype, **options)


NORMS: dict[str, Any] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
"""What a configuration may ask for: a new norm is a pair, a layer and a name here."""
