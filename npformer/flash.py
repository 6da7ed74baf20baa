"""Attention in blocks with an online softmax, FlashAttention-2's algorithm (text B section 2.7).

The scores are computed a block at a time, so small that it stays in the cache, and no (T, S)
array is ever made: beyond its result the forward pass keeps one number a query. The rules, the
masks and the formula of the scores are those of the dense kernel in `npformer.attention`, and so
is what is saved; only the order of the work differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .arrays import Array, is_whole, widen
from .attention import (
    AttentionSaved,
    Rules,
    cap_slope,
    check_call,
    grouped,
    keep,
    scores,
    summed,
    times,
)
from .masks import Sight, hide
from .parallel import headwise, rowdot, rowsum

BLOCK_Q, BLOCK_K = 256, 768  # a block of float32 fits in a core's L2 cache, two in L2 and L3


def flash_attention(
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
    block_q: int = BLOCK_Q,
    block_k: int = BLOCK_K,
) -> tuple[Array, AttentionSaved]:
    r"""Compute `attention` without its weights: block by block, with a softmax that is corrected.

    A softmax needs the maximum m and the sum :math:`\ell` of its whole row. Here the row arrives
    in blocks of keys, and both are kept for the keys met so far. Where block j with the scores
    :math:`S^{(j)} = \tau\, Q K_j^T` (line 8 of the paper's Algorithm 1) raises the maximum, all
    that was added up before is too large by the same factor, so that one multiplication per row
    makes it right (lines 9 and 10):

    .. math::
        m^{(j)} &= \max\bigl(m^{(j-1)}, \operatorname{rowmax} S^{(j)}\bigr), \qquad
        \tilde P^{(j)} = e^{S^{(j)} - m^{(j)}}, \qquad
        \alpha = e^{m^{(j-1)} - m^{(j)}}, \\
        \ell^{(j)} &= \alpha\, \ell^{(j-1)} + \operatorname{rowsum} \tilde P^{(j)}, \qquad
        O^{(j)} = \operatorname{diag}(\alpha)\, O^{(j-1)} + \tilde P^{(j)} V_j.

    By induction :math:`\ell^{(j)} = \sum e^{s - m^{(j)}}` and
    :math:`O^{(j)} = \sum e^{s - m^{(j)}} v` over the keys of the blocks up to j, whatever the
    blocks are. After the last one (lines 12 and 13)

    .. math::
        Y = \operatorname{diag}(\ell)^{-1} O, \qquad \mathrm{lse} = m + \log \ell.

    Some copies of the paper print :math:`\operatorname{diag}(\alpha)^{-1}` in line 10; that is
    wrong as soon as a maximum rises. Before the first key m is :math:`-\infty`. A block may be
    hidden whole, and then m is still :math:`-\infty`; the shift by m is left out there, because
    :math:`-\infty - (-\infty)` is not a number.

    Blocks that the causal rule or the window hides entirely are skipped, blocks that it cuts are
    cut to the keys that one of the queries sees, and only there scores are hidden (section 3.1.1).

    Parameters
    ----------
    q, k, v, mask, causal, window, scale, softcap, dropout, rng
        As for `attention`. Dropout hits the same weights as there and leaves :math:`\ell` alone.
    block_q, block_k : int
        Rows and columns of a block of scores. Query heads that share a key-value head share its
        blocks, each with its part of the rows.

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
        if shapes do not fit or a block has no rows or columns.

    References
    ----------
    Dao, 2023, arXiv:2307.08691, Algorithm 1; Milakov & Gimelshein, 2018, arXiv:1805.02867,
    Algorithm 3 (the online softmax); Dao et al., 2022, arXiv:2205.14135 (FlashAttention).
    """
    rules, mask = check_call(q, k, v, mask, causal, window, scale, softcap, dropout, rng)
    if not all(is_whole(n) and n >= 1 for n in (block_q, block_k)):
        raise ValueError(
            f"block_q and block_k must be whole numbers from 1 on, but are {block_q!r} and "
            f"{block_k!r}"
        )
    rules = rules._replace(blocks=(block_q, block_k))
    query_blocks, key_blocks, size = blocks(q, k, rules)
    dtype = np.result_type(widen(q), widen(k), widen(v))

    def head(q: Array, k: Array, v: Array, ids: Array, *masks: Array) -> tuple[Array, Array]:
        y = np.zeros((*q.shape[:-1], v.shape[-1]), dtype)  # q is (..., G, T, d_h), v (..., S, d_v)
        lse = np.empty(q.shape[:-1], dtype)
        scaled = q * rules.scale
        for i in query_blocks:
            O = y[..., i, :]
            m = np.full((*O.shape[:-1], 1), -np.inf, dtype)
            l = np.zeros_like(m)
            for _, j in met([i], key_blocks, rules.sight):
                S = scores(scaled[..., i, :], k[..., j, :], rules)
                hide(S, i, j, rules.sight, *masks)
                highest = S.max(axis=-1, keepdims=True, initial=-np.inf)
                before, m = m, np.maximum(m, highest)
                shift = np.where(m == -np.inf, 0, m)
                with np.errstate(over="ignore"):  # a score too far below m becomes -inf
                    S -= shift
                    alpha = np.exp(before - shift)
                P = np.exp(S, out=S)
                l *= alpha
                l += rowsum(P)
                if (z := keep(ids, i, j, rules, P)) is not None:
                    P *= z
                O *= alpha
                O += times(P, v[..., j, :])
            nothing = l == 0
            l[nothing] = 1
            O /= l
            lse[..., i] = np.where(nothing, np.inf, m + np.log(l))[..., 0]
        return y, lse

    y, lse = headwise(head, *grouped(q, k, v, mask), stats=1, work_bytes=size)
    y, lse = y.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])
    return y, AttentionSaved(q, k, v, y, lse, mask, rules)


def flash_attention_backward(dy: Array, saved: AttentionSaved) -> tuple[Array, Array, Array]:
    r"""Gradient of `flash_attention`: ``dq``, ``dk``, ``dv`` in the shapes of q, k, v.

    The formulas are those of `attention_backward`; none of them needs more of the weights than
    one block. With the saved lse a block of weights comes back at once, no maximum and no
    correction (line 11 of the paper's Algorithm 2):

    .. math:: P = e^{S - \mathrm{lse}}, \qquad S = \tau\, Q_i K_j^T.

    The product :math:`Y = P V` gives (lines 12 and 13)

    .. math:: dV_j \mathrel{+}= P^T dY_i, \qquad dP = dY_i V_j^T.

    A row of the softmax has the Jacobian :math:`\partial P_a / \partial S_b = P_a (\delta_{ab} -
    P_b)`, so :math:`dS_a = P_a (dP_a - D)` with one number a row (line 14),

    .. math:: D = \textstyle\sum_b P_b\, dP_b,

    a sum over all keys, which no block knows. But dP is itself a product,
    :math:`dP_b = \sum_c dY_c V_{bc}`, and exchanging the two sums gives

    .. math::
        D = \textstyle\sum_b P_b \sum_c dY_c V_{bc} = \sum_c dY_c \sum_b P_b V_{bc}
          = \sum_c dY_c Y_c,

    :math:`D = \operatorname{rowsum}(dY \odot Y)`, computed once for all blocks (line 4; it has one
    number a query, N and not d as printed there). At last (lines 15 and 16)

    .. math:: dQ_i \mathrel{+}= \tau\, dS\, K_j, \qquad dK_j \mathrel{+}= \tau\, dS^T Q_i.

    Blocks of keys are the outer loop: theirs are two sums, dK and dV, the queries have only dQ.

    With dropout :math:`Y = (P \odot Z) V`, where Z holds 0 and :math:`1 / (1 - p)` and is computed
    again from the counter hash. Then :math:`dV = (P \odot Z)^T dY` and
    :math:`dP = Z \odot dY V^T`, and D stays as it is: in its derivation P V becomes
    :math:`(P \odot Z) V`, which is Y again. With a soft cap dS is multiplied by its slope,
    :math:`1 - (S/c)^2`. Query heads that share a key-value head add up in dK and dV (section
    3.1.2). A query that sees nothing has lse = :math:`+\infty`, so P = 0 and its gradients are 0.
    """
    q, k, v, y, lse, mask, rules = saved
    query_blocks, key_blocks, size = blocks(q, k, rules)

    def head(
        q: Array, k: Array, v: Array, dy: Array, y: Array, lse: Array, ids: Array, *masks: Array
    ) -> tuple[Array, Array, Array]:
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        D = rowdot(dy, y)
        scaled = q * rules.scale
        for outer in key_blocks:
            for i, j in met(query_blocks, [outer], rules.sight):
                S = scores(scaled[..., i, :], k[..., j, :], rules)
                slope = cap_slope(S, rules)
                hide(S, i, j, rules.sight, *masks)
                with np.errstate(over="ignore"):
                    S -= lse[..., i, None]
                P = np.exp(S, out=S)
                z = keep(ids, i, j, rules, P)
                dP = times(dy[..., i, :], v[..., j, :].swapaxes(-1, -2))
                if z is not None:
                    dP *= z
                dv[..., j, :] += summed(P if z is None else P * z, dy[..., i, :])
                dP -= D[..., i, :]
                dS = np.multiply(P, dP, out=dP)
                if slope is not None:
                    dS *= slope
                dq[..., i, :] += times(dS, k[..., j, :])
                dk[..., j, :] += summed(dS, scaled[..., i, :])
        dq *= rules.scale
        return dq, dk, dv

    q5, k, v, *rest = grouped(q, k, v, mask)
    lead = q5.shape[:3]
    dy, y, lse = (a.reshape(*lead, *a.shape[2:]) for a in (dy, y, lse))
    dq, dk, dv = headwise(head, q5, k, v, dy, y, lse, *rest, work_bytes=2 * size)
    return dq.reshape(q.shape), dk, dv


# ---------------------------------------------------------------------------------- the blocks


def slices(n: int, step: int) -> list[slice]:
    """Cut ``range(n)`` into pieces of ``step``, the last one shorter."""
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def blocks(q: Array, k: Array, rules: Rules) -> tuple[list[slice], list[slice], int]:
    """Return the blocks of queries, those of keys, and the bytes of one block of scores."""
    (H, T), (H_kv, S) = q.shape[1:3], k.shape[1:3]
    block_q, block_k = rules.blocks or (BLOCK_Q, BLOCK_K)
    rows = max(1, block_q // (H // H_kv))
    size = (H // H_kv) * min(rows, T) * min(block_k, S) * q.itemsize
    return slices(T, rows), slices(S, block_k), size


def met(
    query_blocks: Iterable[slice], key_blocks: Iterable[slice], sight: Sight
) -> Iterator[tuple[slice, slice]]:
    """Yield each pair of blocks that sees anything, its keys cut to those that are seen."""
    for i in query_blocks:
        seen = sight.keys_of(i)
        for j in key_blocks:
            start, stop = max(j.start, seen.start), min(j.stop, seen.stop)
            if start < stop:
                yield i, slice(start, stop)
