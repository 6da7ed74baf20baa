"""The linear map and the embedding, which is a linear map of one-hot rows (chapter 2.5.5)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Array, require_ids, require_last, require_shape, require_sizes
from .buffers import empty
from .module import Module, Parameter
from .parallel import add_rows, matmul, matmuls, sum_by_id, total_row


class LinearSaved(NamedTuple):
    x: Array
    """(..., n), the input by reference."""
    W: Array
    bias: bool
    """Whether the backward owes a gradient of ``b``."""


class EmbeddingSaved(NamedTuple):
    ids: Array
    V: int


def linear(x: Array, W: Array, b: Array | None = None) -> tuple[Array, LinearSaved]:
    r"""Multiply every row by a matrix and add a bias.

    .. math:: y = x W + b

    Parameters
    ----------
    x : (..., n) array
    W : (n, m) array
    b : (m,) array, optional

    Returns
    -------
    y : (..., m) array
    saved : LinearSaved
        ``x`` and ``W`` by reference, no new memory.

    Raises
    ------
    ValueError
        if the last dimension of ``x`` is not the number of rows of ``W``, or ``b`` has not one
        number for each of its columns.
    """
    require_last(x, len(W), "x")
    if W.ndim != 2:
        raise ValueError(f"W must be a matrix (n, m), but its shape is {W.shape}")
    if b is not None:
        require_shape(b, W.shape[1:], "b")
    y = matmul(x.reshape(-1, len(W)), W, b)
    return y.reshape(*x.shape[:-1], W.shape[1]), LinearSaved(x, W, b is not None)


def linear_backward(dy: Array, saved: LinearSaved) -> tuple[Array, ...]:
    r"""Gradient of `linear`: ``dx`` (..., n), ``dW`` (n, m) and, with a bias, ``db`` (m,).

    For one row :math:`y_j = \sum_i x_i W_{ij} + b_j`. So :math:`\partial y_j / \partial x_i =
    W_{ij}` and :math:`\partial y_j / \partial W_{ij} = x_i`; with the rows stacked,

    .. math:: dx = dy\, W^T, \qquad dW = x^T dy, \qquad db = \textstyle\sum_{\text{rows}} dy.

    The leading axes are flattened first, so the sum over batch and time happens inside one
    product.
    """
    x, W, bias = saved
    require_shape(dy, (*x.shape[:-1], W.shape[1]), "dy")
    rows = dy.reshape(-1, W.shape[1])
    dx, dW = matmuls((rows, W.T, None), (x.reshape(-1, len(W)).T, rows, None))
    dx = dx.reshape(x.shape)
    return (dx, dW, total_row(rows)) if bias else (dx, dW)


def embedding(ids: Any, E: Array) -> tuple[Array, EmbeddingSaved]:
    r"""Look rows up: :math:`y = \operatorname{onehot}(\text{ids})\, E`.

    Parameters
    ----------
    ids : (...) array of integers in [0, V)
    E : (V, d) array

    Returns
    -------
    y : (..., d) array
    saved : EmbeddingSaved

    Raises
    ------
    IndexError
        if an id is negative, which NumPy would count from the end, or not below V.
    TypeError
        if the ids are not integers.
    """
    ids = require_ids(ids, len(E), "token ids")
    y = empty((*ids.shape, E.shape[1]), E.dtype)
    return np.take(E, ids, axis=0, out=y, mode="clip"), EmbeddingSaved(ids, len(E))


def embedding_backward(dy: Array, saved: EmbeddingSaved) -> Array:
    r"""Gradient of `embedding`: ``dE`` (V, d).

    Row v of E enters every place where v was looked up, so its gradient is the sum over them:

    .. math:: dE = \operatorname{onehot}(\text{ids})^T dy, \qquad
        dE_v = \textstyle\sum_{t:\, \text{ids}_t = v} dy_t.
    """
    require_shape(dy, (*saved.ids.shape, np.shape(dy)[-1]), "dy")
    return add_rows(saved.ids.reshape(-1), dy.reshape(-1, dy.shape[-1]), saved.V)


class Linear(Module):
    """`linear` with a learned ``W`` (n, m) and, unless ``bias=False``, ``b`` (m,).

    ``W`` starts as PyTorch's does, uniform within 1 / sqrt(n), and ``b`` too; the models set
    their own start afterwards (`npformer.init`).
    """

    def __init__(
        self,
        n: int,
        m: int,
        bias: bool = True,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        require_sizes(n=n, m=m)
        rng = np.random.default_rng(rng)
        bound = n**-0.5
        self.W = Parameter(rng.uniform(-bound, bound, (n, m)).astype(dtype, copy=False))
        self.b = (
            Parameter(rng.uniform(-bound, bound, m).astype(dtype, copy=False)) if bias else None
        )

    def forward(self, x: Array) -> tuple[Array, LinearSaved]:
        return linear(x, self.W.value, None if self.b is None else self.b.value)

    def backward(self, dy: Array, saved: LinearSaved) -> Array:
        dx, dW, *db = linear_backward(dy, saved)
        self.W.accumulate(dW)
        if self.b is not None:
            self.b.accumulate(db[0])
        return dx


def linears(x: Array, *layers: Linear) -> list[tuple[Array, LinearSaved]]:
    """``[layer.forward(x) for layer in layers]`` with all products computed together."""
    if any(type(layer) is not Linear or "forward" in vars(layer) for layer in layers):
        return [layer.forward(x) for layer in layers]  # a forward of its own, such as a watched one
    for layer in layers:
        require_last(x, len(layer.W.value), "x")
    rows = x.reshape(-1, x.shape[-1])
    biases = [None if layer.b is None else layer.b.value for layer in layers]
    made = matmuls(*((rows, layer.W.value, b) for layer, b in zip(layers, biases, strict=True)))
    return [
        (
            y.reshape(*x.shape[:-1], y.shape[1]),
            LinearSaved(x, layer.W.value, layer.b is not None),
        )
        for y, layer in zip(made, layers, strict=True)
    ]


class Embedding(Module):
    """`embedding` with a learned table ``E`` (V, d), which starts as N(0, 1) as PyTorch's does."""

    def __init__(
        self,
        V: int,
        d: int,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        require_sizes(V=V, d=d)
        start = np.random.default_rng(rng).standard_normal((V, d))
        self.E = Parameter(start.astype(dtype, copy=False))

    def forward(self, ids: Any) -> tuple[Array, EmbeddingSaved]:
        return embedding(ids, self.E.value)

    def backward(self, dy: Array, saved: EmbeddingSaved) -> None:
        rows = dy.reshape(-1, dy.shape[-1])
        self.E.accumulate_rows(*sum_by_id(saved.ids.reshape(-1), rows))
