"""Exercise: the backward of softmax. Judge it with ``npformer gradcheck softmax.py``.

    p = exp(x - max x) / sum exp(x - max x)    along the last axis

The backward below is that of exp alone: it forgets that every p_i feels every x_j through the sum.
"""

import numpy as np


def softmax(x):
    """Take x (..., n)."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return p, p


def softmax_backward(dp, p):
    """Return dx (..., n)."""
    return p * dp


def example(rng):
    return (softmax, softmax_backward), (rng.standard_normal((2, 3, 5)),)
