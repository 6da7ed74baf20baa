"""Cross-entropy (chapter 2.5.6, the training loss)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, require_floating, require_shape
from .module import Module
from .parallel import rowsum, rowwise


class CrossEntropySaved(NamedTuple):
    logits: Array
    """(..., V), by reference."""
    targets: Array
    """(...)."""
    m: Array
    """(..., 1), the largest logit."""
    log_sum: Array
    """(..., 1), log of the sum of exp(logits - m)."""
    counted: Array
    """(..., 1) booleans, False where the target is ignored."""
    smoothing: float
    weight: float
    """What a row's loss is multiplied by: 1 over the number of counted rows for the mean."""


def cross_entropy(
    logits: Array,
    targets: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> tuple[Any, CrossEntropySaved]:
    r"""Negative log-probability of the targets.

    .. math::
        \ell = -\textstyle\sum_k q_k \log p_k = \operatorname{lse}(z) - \sum_k q_k z_k,
        \qquad q = (1 - \varepsilon)\operatorname{onehot}(t) + \varepsilon / V

    with :math:`p = \operatorname{softmax}(z)`. The log of a weight that rounds to 0 is never taken.

    Parameters
    ----------
    logits : (..., V) array
    targets : (...) array of integers in [0, V)
    ignore_index : int
        Rows with this target count nowhere.
    label_smoothing : float in [0, 1]
        :math:`\varepsilon`; all V classes share it, the target among them. With a logit of -inf
        the smoothed loss is infinite, as the formula says.
    reduction : {"mean", "sum", "none"}
        The mean is over the counted rows; over none of them it is 0, with gradient 0.

    Returns
    -------
    loss : float, or (...) array for "none"
        Never less precise than float32; a sum is a Python float, added up in float64.
    saved : CrossEntropySaved
        ``m`` and ``log_sum`` (..., 1) are the only new memory of size. Added up to lse, a large
        ``m`` would round ``log_sum`` away.

    Raises
    ------
    IndexError
        if a target is neither ``ignore_index`` nor in [0, V).
    TypeError
        if the targets are not integers.
    ValueError
        if the shapes do not fit or an option is out of range.

    References
    ----------
    Szegedy et al., 2016, arXiv:1512.00567, section 7 (smoothing).
    """
    require_floating(logits, "logits")
    targets, V = np.asarray(targets), logits.shape[-1]
    if targets.dtype.kind not in "iu":
        raise TypeError(f"targets must be integers, but the dtype is {targets.dtype}")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets must have the shape {logits.shape[:-1]} of rows, but have {targets.shape}"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", but is {reduction!r}')
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must lie in [0, 1], but is {label_smoothing}")
    counted = (targets != ignore_index)[..., None]
    if np.any((targets < 0) & counted[..., 0]) or np.any((targets >= V) & counted[..., 0]):
        wrong = targets[counted[..., 0] & ((targets < 0) | (targets >= V))].flat[0]
        raise IndexError(f"targets must lie in [0, {V}) or be {ignore_index}, but one is {wrong}")
    eps = float(label_smoothing)

    def block(z: Array, t: Array, counted: Array) -> tuple[Array, Array, Array]:
        m = np.max(z, axis=-1, keepdims=True, initial=-np.inf)
        m = np.where(np.isneginf(m.real), 0, m)
        with np.errstate(over="ignore"):
            z = z - m
        log_sum = np.log(rowsum(np.exp(z)))
        wanted = np.take_along_axis(z, np.where(counted, t, 0), axis=-1)
        if eps:
            wanted = (1 - eps) * wanted + eps * (rowsum(z) * (1.0 / V))
        return np.where(counted, log_sum - wanted, 0), m, log_sum

    loss, m, log_sum = rowwise(block, logits, targets[..., None], counted, stats=3)
    count = int(np.count_nonzero(counted))
    weight = 1.0 / max(1, count) if reduction == "mean" else 1.0
    saved = CrossEntropySaved(logits, targets, m, log_sum, counted, eps, weight)
    if reduction == "none":
        return loss[..., 0], saved
    return loss.sum(dtype=np.result_type(loss, np.float64)).item() * weight, saved


def cross_entropy_backward(dloss: Any, saved: CrossEntropySaved) -> Array:
    r"""Gradient of `cross_entropy`: ``dlogits`` (..., V).

    :math:`\partial \operatorname{lse} / \partial z_k = p_k` and q does not depend on z, so for each
    row

    .. math:: \partial \ell / \partial z_k = p_k - q_k,

    which sums to 0, times the row's share of ``dloss``: 1 / N under the mean over N rows, and 0
    for ignored rows.
    """
    logits, targets, m, log_sum, counted, eps, weight = saved
    V = logits.shape[-1]
    if np.ndim(dloss) == 0:
        dloss = np.broadcast_to(
            np.asarray(complex(dloss) if np.iscomplexobj(dloss) else float(dloss)), targets.shape
        )
    require_shape(dloss, targets.shape, "dloss")
    share = (np.where(counted, dloss[..., None], 0) * weight).astype(log_sum.dtype, copy=False)

    def block(
        z: Array, t: Array, m: Array, log_sum: Array, counted: Array, share: Array
    ) -> tuple[Array]:
        with np.errstate(over="ignore"):
            dz = z - m
        dz -= log_sum
        np.exp(dz, out=dz)
        if eps:
            dz -= eps / V
        rows = np.flatnonzero(counted)
        dz[rows, t[rows, 0]] -= 1 - eps
        dz *= share
        dz[~counted[:, 0]] = 0  # whatever the logits are there, NaN too
        return (dz,)

    dz: Array = rowwise(block, logits, targets[..., None], m, log_sum, counted, share)[0]
    return dz


class CrossEntropy(Module):
    """`cross_entropy` as a layer, without parameters."""

    def __init__(
        self, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> None:
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.reduction = reduction

    def forward(self, logits: Array, targets: Any) -> tuple[Any, CrossEntropySaved]:
        return cross_entropy(
            logits,
            targets,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )

    def backward(self, dloss: Any, saved: CrossEntropySaved) -> Array:
        return cross_entropy_backward(dloss, saved)


def perplexity(loss: float) -> float:
    """Return exp(loss), the size of the choice that a loss in nats a token amounts to."""
    return math.exp(min(loss, 709.0))
