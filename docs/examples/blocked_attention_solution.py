"""Solution: the backward in blocks.

dP_ij = sum_c dY_ic V_jc is itself a product, and exchanging the two sums gives

    D_i = sum_j P_ij sum_c dY_ic V_jc = sum_c dY_ic sum_j P_ij V_jc = sum_c dY_ic Y_ic:

one number a query, from what is saved anyway (Dao et al., 2022, arXiv:2205.14135, appendix B).
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
    q, k, v, y, lse = saved
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    D = np.sum(dy * y, axis=-1, keepdims=True)
    for start in range(0, len(k), BLOCK):
        j = slice(start, start + BLOCK)
        p = np.exp(q @ k[j].T * scale - lse)
        dv[j] = p.T @ dy
        dp = dy @ v[j].T
        ds = p * (dp - D)
        dq += ds @ k[j] * scale
        dk[j] = ds.T @ q * scale
    return dq, dk, dv


def example(rng):
    q, k, v = (rng.standard_normal(shape) for shape in ((4, 5), (7, 5), (7, 2)))
    return (attention, attention_backward), (q, k, v)
