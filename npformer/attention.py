"""Scaled dot-product attention, dense kernel (chapter 2.5.1; text B section 2).

`headwise` runs the heads; each reads as the chapter's formula on matrices. A head works through
its queries in panels: a few rows and the keys that any of them sees. So what the causal rule or
the window hides is never computed, and no (T, S) array is made; the backward computes the weights
again from the scores and the one number per row that is saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, is_number, is_whole, require_floating, widen
from .dropout import check_probability, kept
from .masks import Sight, check_mask, hide
from .parallel import BLOCK_BYTES, headwise, rowdot, rowsum


class Rules(NamedTuple):
    """The options of one call of an attention kernel."""

    sight: Sight
    scale: float
    softcap: float | None
    dropout: float
    number: int | None
    """What the dropout hash starts from; None where nothing is dropped."""
    blocks: tuple[int, int] | None = None
    """Rows and columns of the blocks of scores, where the kernel works in blocks."""


class AttentionSaved(NamedTuple):
    q: Array
    """(B, H, T, d_h), by reference, like k, v and y."""
    k: Array
    """(B, H_kv, S, d_h)."""
    v: Array
    """(B, H_kv, S, d_v)."""
    y: Array
    """(B, H, T, d_v), the result."""
    lse: Array
    """(B, H, T), log of the sum of exp of the scores; +inf where a query sees nothing."""
    mask: Array | None
    """(B, H, T, S), a view."""
    rules: Rules


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    rng: np.random.Generator | int | None = None,
) -> tuple[Array, AttentionSaved]:
    r"""Average the values with the weights that queries and keys agree on.

    .. math::
        Y = P V, \qquad P = \operatorname{softmax}(S), \qquad S = \tau\, Q K^T

    for each head, with the scale :math:`\tau = 1/\sqrt{d_h}` unless given. Query head h reads
    key-value head ``h // (H / H_kv)``: one each is multi-head attention, fewer is grouped-query, a
    single one multi-query attention. With a soft cap c the scores are
    :math:`c \tanh(\tau Q K^T / c)`, before any mask; hidden scores are :math:`-\infty`. With
    dropout P is multiplied by a random mask :math:`Z / (1 - p)`.

    Parameters
    ----------
    q : (B, H, T, d_h) array
    k : (B, H_kv, S, d_h) array
        H must be a multiple of H_kv.
    v : (B, H_kv, S, d_v) array
    mask : bool array, optional
        True = may attend; (T, S), (B or 1, 1, 1 or T, S) or (B, H, T, S).
    causal : bool
        Query i sees key j iff ``j <= S - T + i``.
    window : int, optional
        With ``causal`` also ``j > S - T + i - window``; without, ``|i + S - T - j| < window``.
    scale, softcap : float, optional
    dropout : float
        Probability of dropping a weight; active only where ``rng`` is given.
    rng : Generator or int, optional
        One number is drawn from it.

    Returns
    -------
    y : (B, H, T, d_v) array
        0 for a query that sees nothing.
    saved : AttentionSaved
        ``lse`` (B, H, T) is the only new memory besides ``y``.

    Raises
    ------
    TypeError
        if the mask is not boolean or an input is not floating.
    ValueError
        if shapes do not fit.

    References
    ----------
    Vaswani et al., 2017, arXiv:1706.03762, Eq. 1; Ainslie et al., 2023, arXiv:2305.13245 (groups);
    Gemma team, 2024, arXiv:2408.00118 (soft cap).
    """
    rules, mask = check_call(q, k, v, mask, causal, window, scale, softcap, dropout, rng)
    dtype = np.result_type(widen(q), widen(k), widen(v))

    def head(q: Array, k: Array, v: Array, ids: Array, *masks: Array) -> tuple[Array, Array]:
        y = np.empty((*q.shape[:-1], v.shape[-1]), dtype)  # q is (..., G, T, d_h), v (..., S, d_v)
        lse = np.empty(q.shape[:-1], dtype)
        for i, j in panels(q, rules):
            S = scores(q[..., i, :] * rules.scale, k[..., j, :], rules)  # (..., G, t, s)
            hide(S, i, j, rules.sight, *masks)
            m, nothing = row_maximum(S)
            with np.errstate(over="ignore"):
                S -= m
            P = np.exp(S, out=S)
            total = np.where(nothing, 1, rowsum(P))
            if (z := keep(ids, i, j, rules, P)) is not None:
                P *= z
            y[..., i, :] = times(P, v[..., j, :])
            y[..., i, :] /= total
            lse[..., i] = np.where(nothing, np.inf, m + np.log(total))[..., 0]
        return y, lse

    y, lse = headwise(head, *grouped(q, k, v, mask), stats=1, work_bytes=panel_bytes(q, k))
    y, lse = y.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])
    return y, AttentionSaved(q, k, v, y, lse, mask, rules)


def attention_backward(dy: Array, saved: AttentionSaved) -> tuple[Array, Array, Array]:
    r"""Gradient of `attention`: ``dq``, ``dk``, ``dv`` in the shapes of q, k, v.

    The products give :math:`dV = P^T dY` and :math:`dP = dY V^T`. Each row of the softmax gives
    (see `softmax_backward`)

    .. math:: dS_{ij} = P_{ij}\,(dP_{ij} - D_i), \qquad D_i = \textstyle\sum_j P_{ij}\, dP_{ij},

    where the sum needs no row of P at all:

    .. math::
        D_i = \textstyle\sum_j P_{ij} \sum_c dY_{ic} V_{jc}
            = \sum_c dY_{ic} \sum_j P_{ij} V_{jc} = \sum_c dY_{ic} Y_{ic}.

    The scores :math:`S = \tau Q K^T` are again products, so :math:`dQ = \tau\, dS\, K` and
    :math:`dK = \tau\, dS^T Q`. A key-value head that serves G query heads receives the sum of their
    gradients. With a soft cap :math:`S = c \tanh(\tau QK^T/c)`, dS is first multiplied by
    :math:`1 - (S/c)^2`. With dropout :math:`Y = (P \odot Z') V`, so :math:`dV = (P \odot Z')^T dY`
    and :math:`dP = Z' \odot dY V^T`; D stays as it is. The weights are computed again,
    :math:`P = e^{S - \mathrm{lse}}`; a query that sees nothing has lse = +inf, so P = 0 and every
    gradient of it is 0.
    """
    q, k, v, y, lse, mask, rules = saved

    def head(
        q: Array, k: Array, v: Array, dy: Array, y: Array, lse: Array, ids: Array, *masks: Array
    ) -> tuple[Array, Array, Array]:
        dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
        for i, j in panels(q, rules):
            scaled = q[..., i, :] * rules.scale
            S = scores(scaled, k[..., j, :], rules)
            slope = cap_slope(S, rules)
            hide(S, i, j, rules.sight, *masks)
            with np.errstate(over="ignore"):
                S -= lse[..., i, None]
            P = np.exp(S, out=S)
            dP = times(dy[..., i, :], v[..., j, :].swapaxes(-1, -2))
            if (z := keep(ids, i, j, rules, P)) is not None:
                dP *= z
            dv[..., j, :] += summed(P if z is None else P * z, dy[..., i, :])
            dP -= rowdot(dy[..., i, :], y[..., i, :])
            dS = np.multiply(P, dP, out=dP)
            if slope is not None:
                dS *= slope
            dq[..., i, :] = times(dS, k[..., j, :]) * rules.scale
            dk[..., j, :] += summed(dS, scaled)
        return dq, dk, dv

    q5, k, v, *rest = grouped(q, k, v, mask)
    lead = q5.shape[:3]
    dy, y, lse = (a.reshape(*lead, *a.shape[2:]) for a in (dy, y, lse))
    dq, dk, dv = headwise(head, q5, k, v, dy, y, lse, *rest, work_bytes=panel_bytes(q, k))
    return dq.reshape(q.shape), dk, dv


def attention_weights(saved: AttentionSaved) -> Array:
    """Return the weights P (B, H, T, S) of a forward pass of either kernel, before dropout.

    They are computed again from what the pass saved, so they are those it used; rows sum to 1, or
    to 0 where a query sees nothing.
    """
    q, k, _, _, lse, mask, rules = saved
    B, H, T, _ = q.shape

    def head(q: Array, k: Array, lse: Array, *masks: Array) -> tuple[Array]:
        S = scores(q * rules.scale, k, rules)
        hide(S, slice(0, T), slice(0, S.shape[-1]), rules.sight, *masks)
        with np.errstate(over="ignore"):
            S -= lse[..., None]
        return (np.exp(S, out=S),)

    q5, k, _, _, *masks = grouped(q, k, k, mask)
    lse = lse.reshape(q5.shape[:-1])
    (P,) = headwise(head, q5, k, lse, *masks, work_bytes=T * k.shape[2] * q.itemsize)
    return P.reshape(B, H, T, k.shape[2])


# ------------------------------------------------------- the lines that both kernels share


def scores(scaled: Array, k: Array, rules: Rules) -> Array:
    """``(scale q) k^T`` (..., G, t, s), capped if asked for; nothing is hidden yet."""
    S = times(scaled, k.swapaxes(-1, -2))
    if rules.softcap is not None:
        S /= rules.softcap
        np.tanh(S, out=S)
        S *= rules.softcap
    return S


def cap_slope(S: Array, rules: Rules) -> Array | None:
    """Derivative of the soft cap, ``1 - tanh^2``, from capped scores that are not hidden yet."""
    if rules.softcap is None:
        return None
    t = S * (1 / rules.softcap)
    return np.asarray(1 - t * t)


def row_maximum(S: Array) -> tuple[Array, Array]:
    """Maximum of each row, 0 where everything is hidden, and the rows (..., 1) where it is."""
    m = S.max(axis=-1, keepdims=True, initial=-np.inf)
    nothing = m == -np.inf
    return np.where(nothing, 0, m), nothing


def keep(ids: Array, i: slice, j: slice, rules: Rules, P: Array) -> Array | None:
    """Dropout's factors for a panel, 0 or 1 / (1 - p), or None where nothing is dropped."""
    if rules.number is None:
        return None
    rows, columns = np.arange(i.start, i.stop)[:, None], np.arange(j.start, j.stop)
    z = kept(rules.number, ids[..., None, None], rows, columns, rules.dropout)
    return z.astype(P.dtype) * (1 / (1 - rules.dropout) if rules.dropout < 1 else 0.0)


def times(A: Array, B: Array) -> Array:
    """(..., G, t, n) times (..., n, m): the G heads share B, so their rows go in one product."""
    *lead, G, t, n = A.shape
    return np.matmul(A.reshape(*lead, G * t, n), B).reshape(*lead, G, t, B.shape[-1])


def summed(A: Array, B: Array) -> Array:
    """``A^T B`` (..., s, d), summed over the G heads and t rows of both."""
    *lead, G, t, s = A.shape
    rows = B.reshape(*lead, G * t, B.shape[-1])
    return np.matmul(A.reshape(*lead, G * t, s).swapaxes(-1, -2), rows)


def grouped(q: Array, k: Array, v: Array, mask: Array | None) -> list[Array]:
    """The arrays by key-value head: q (B, H_kv, G, T, d_h), k, v, head numbers, and the mask."""
    B, H, T, d_h = q.shape
    H_kv, S = k.shape[1:3]
    G = H // H_kv
    ids = np.arange(B * H).reshape(B, H_kv, G)
    masks = [] if mask is None else [mask.reshape(B, H_kv, G, T, S)]
    return [q.reshape(B, H_kv, G, T, d_h), k, v, ids, *masks]


PANEL = 128  # queries at a time: few enough to skip most of what a causal rule hides


def panels(q: Array, rules: Rules) -> Iterator[tuple[slice, slice]]:
    """Yield each panel of (..., G, T, d_h): its queries and the keys that any of them sees."""
    T, S = rules.sight.T, rules.sight.S
    step = panel_rows(T, S, q.shape[1] * q.itemsize)
    for start in range(0, T, step):
        i = slice(start, min(start + step, T))
        yield i, rules.sight.keys_of(i)


def panel_rows(T: int, S: int, row_itemsize: int) -> int:
    """How many queries make a panel: so many that its scores stay in the cache."""
    return max(1, min(T, PANEL, max(16, BLOCK_BYTES // max(1, S * row_itemsize))))


def panel_bytes(q: Array, k: Array) -> int:
    """Bytes of one panel of scores of one key-value head."""
    T, S, G = q.shape[2], k.shape[2], q.shape[1] // max(1, k.shape[1])
    return panel_rows(T, S, G * q.itemsize) * S * G * q.itemsize


def check_call(
    q: Array,
    k: Array,
    v: Array,
    mask: Any,
    causal: bool,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    dropout: float,
    rng: np.random.Generator | int | None,
) -> tuple[Rules, Array | None]:
    """Check the shapes and options of a call and return its rules and its (B, H, T, S) mask."""
    for name, a in (("q", q), ("k", k), ("v", v)):
        require_floating(a, name)
        if a.ndim != 4:
            raise ValueError(f"{name} must have 4 axes, (B, H, T, d), but its shape is {a.shape}")
    (B, H, T, d_h), (H_kv, S) = q.shape, k.shape[1:3]
    if k.shape != (B, H_kv, S, d_h) or v.shape[:3] != (B, H_kv, S):
        raise ValueError(
            f"q {q.shape} asks for k (B, H_kv, S, d_h) and v (B, H_kv, S, d_v) with the same B and "
            f"d_h, but k is {k.shape} and v is {v.shape}"
        )
    if H_kv == 0 or H % H_kv:
        raise ValueError(f"H = {H} query heads can't share H_kv = {H_kv} heads equally")
    if 0 in (B, H, d_h):
        raise ValueError(f"q must have rows, heads and features, but its shape is {q.shape}")
    if not isinstance(causal, bool | np.bool_):
        raise ValueError(f"causal must be true or false, but is {causal!r}")
    if window is not None and not (is_whole(window) and window >= 1):
        raise ValueError(f"window must be a whole number from 1 on, but is {window!r}")
    if scale is not None and not is_number(scale):
        raise ValueError(f"scale must be a finite number, but is {scale!r}")
    if softcap is not None and not (is_number(softcap) and softcap > 0):
        raise ValueError(f"softcap must be a positive number, but is {softcap!r}")
    check_probability(dropout)
    number = None
    if rng is not None and dropout > 0:
        number = int(np.random.default_rng(rng).integers(2**63))
    if mask is not None:
        mask = check_mask(mask, B, H, T, S)
    rules = Rules(
        Sight(T, S, bool(causal), window),
        d_h**-0.5 if scale is None else float(scale),
        None if softcap is None else float(softcap),
        float(dropout),
        number,
    )
    return rules, mask
