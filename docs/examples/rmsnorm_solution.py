"""Solution: the backward of RMSNorm.

x_j enters xhat_i = x_i r as x_i itself and through r. From r = (mean(x x) + eps)^(-1/2)

    dr / dx_j = -1/2 r^3 * 2 x_j / d = -r^3 x_j / d = -r^2 xhat_j / d,

so d xhat_i / d x_j = r (delta_ij - xhat_i xhat_j / d), a symmetric matrix, and with g = gamma * dy

    dx = r (g - xhat mean(g * xhat)).
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
    g, xhat = gamma * dy, x * r
    dx = r * (g - xhat * np.mean(g * xhat, axis=-1, keepdims=True))
    dgamma = (dy * xhat).reshape(-1, len(gamma)).sum(axis=0)
    return dx, dgamma


def example(rng):
    x, gamma = rng.standard_normal((2, 3, 5)), rng.standard_normal(5)
    return (rmsnorm, rmsnorm_backward), (x, gamma)
