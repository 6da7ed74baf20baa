"""Exercise: the backward of one attention head. Judge it with ``npformer gradcheck attention.py``.

    Y = P V,    P = softmax(S),    S = Q K^T / sqrt(d_h)

Two lines of the backward are wrong: the sizes below are chosen so that you can't see it in the
shapes. (T = S = d_h = 4. With other sizes NumPy would have complained about one of them.)
"""

import numpy as np


def attention(q, k, v):
    """Take q (T, d_h), k (S, d_h) and v (S, d_h)."""
    s = q @ k.T * q.shape[-1] ** -0.5
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return p @ v, (q, k, v, p)


def attention_backward(dy, saved):
    """Return dq, dk and dv."""
    q, k, v, p = saved
    scale = q.shape[-1] ** -0.5
    dv = p @ dy
    dp = dy @ v.T
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))
    return ds @ k * scale, q.T @ ds * scale, dv


def example(rng):
    return (attention, attention_backward), tuple(rng.standard_normal((3, 4, 4)))
