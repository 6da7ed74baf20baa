"""Exercise: the backward of RMSNorm. Judge it with ``npformer gradcheck rmsnorm.py``.

    y = gamma * xhat,    xhat = x * r,    r = 1 / sqrt(mean(x * x) + eps)

The backward below treats r as if it did not depend on x. What is missing?
"""

import numpy as np

EPS = 1e-6


def rmsnorm(x, gamma):
    """Take x (..., d) and gamma (d,)."""
    r = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS)
    return gamma * x * r, (x, gamma, r)


def rmsnorm_backward(dy, saved):
    """Return dx (..., d) and dgamma (d,)."""
    x, gamma, r = saved
    g = gamma * dy
    dx = r * g  # and what comes through r
    dgamma = (dy * x * r).reshape(-1, len(gamma)).sum(axis=0)
    return dx, dgamma


def example(rng):
    x, gamma = rng.standard_normal((2, 3, 5)), rng.standard_normal(5)
    return (rmsnorm, rmsnorm_backward), (x, gamma)
