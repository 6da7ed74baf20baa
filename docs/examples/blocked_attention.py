"""Exercise: the backward in blocks. Judge it with ``npformer gradcheck blocked_attention.py``.

One head, Y = softmax(Q K^T / sqrt(d_h)) V. The forward saves no weights, only q, k, v, y and

    lse_i = log sum_j exp(S_ij),    so that P_ij = exp(S_ij - lse_i)

can be computed again, a block of keys at a time. The row sum D_i = sum_j P_ij dP_ij runs over all
keys, and no block knows them all. The backward below takes the sum over the block alone. Find what
D is without any weights, and put it before the loop.
"""

import numpy as np

BLOCK = 3


def attention(q, k, v):
    """Take q (T, d_h), k (S, d_h) and v (S, d_v)."""
    s = q @ k.T * q.shape[-1] ** -0.5
    m = s.max(axis=-1, keepdims=True)
    lse = m + np.log(np.exp(s - m).sum(axis=-1, keepdims=True))
    y = np.exp(s - lse) @ v
    return y, (q, k, v, y, lse)


def attention_backward(dy, saved):
    """Return dq, dk and dv."""
    q, k, v, _, lse = saved  # the fourth is y
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for start in range(0, len(k), BLOCK):
        j = slice(start, start + BLOCK)
        p = np.exp(q @ k[j].T * scale - lse)
        dv[j] = p.T @ dy
        dp = dy @ v[j].T
        ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))
        dq += ds @ k[j] * scale
        dk[j] = ds.T @ q * scale
    return dq, dk, dv


def example(rng):
    q, k, v = (rng.standard_normal(shape) for shape in ((4, 5), (7, 5), (7, 2)))
    return (attention, attention_backward), (q, k, v)
