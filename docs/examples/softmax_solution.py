"""Solution: the backward of softmax.

With p_i = e_i / s:    dp_i / dx_j = e_i delta_ij / s - e_i e_j / s^2 = p_i (delta_ij - p_j),

a symmetric matrix, so

    dx_i = sum_j p_i (delta_ij - p_j) dp_j = p_i (dp_i - sum_j p_j dp_j).

The maximum needs no gradient: a shift of the whole row changes nothing.
"""

import numpy as np


def softmax(x):
    """Take x (..., n)."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return p, p


def softmax_backward(dp, p):
    """Return dx (..., n)."""
    return p * (dp - np.sum(p * dp, axis=-1, keepdims=True))


def example(rng):
    return (softmax, softmax_backward), (rng.standard_normal((2, 3, 5)),)
