"""Solution: the backward of one attention head.

Y_ic = sum_j P_ij V_jc:    dV_jc = sum_i P_ij dY_ic, that is dV = P^T dY, and dP = dY V^T.
S_ij = sum_c Q_ic K_jc / sqrt(d_h):    dQ = dS K / sqrt(d_h), and
dK_jc = sum_i dS_ij Q_ic / sqrt(d_h), that is dK = dS^T Q / sqrt(d_h). (Q^T dS is its transpose.)

With sizes that are unlike each other both faults are errors of shape. So are many of those in
published code: choose sizes in tests that are unlike each other.
"""

import numpy as np


def attention(q, k, v):
    """Take q (T, d_h), k (S, d_h) and v (S, d_v)."""
    s = q @ k.T * q.shape[-1] ** -0.5
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return p @ v, (q, k, v, p)


def attention_backward(dy, saved):
    """Return dq, dk and dv."""
    q, k, v, p = saved
    scale = q.shape[-1] ** -0.5
    dv = p.T @ dy
    dp = dy @ v.T
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))
    return ds @ k * scale, ds.T @ q * scale, dv


def example(rng):
    q, k, v = (rng.standard_normal(shape) for shape in ((3, 5), (7, 5), (7, 2)))
    return (attention, attention_backward), (q, k, v)
