"""Exercise: grouped heads. Judge it with ``npformer gradcheck grouped_heads.py``.

Grouped-query attention with H query heads and H_kv key-value heads is multi-head attention on
repeated keys and values: query head h reads key-value head h // (H / H_kv). The pair below does the
repeating; its backward must bring the gradient of H heads back to H_kv of them.
"""

import numpy as np


def repeat_heads(k, G):
    """Take k (B, H_kv, S, d_h); return (B, H_kv G, S, d_h)."""
    return np.repeat(k, G, axis=1), (k.shape[1], G)


def repeat_heads_backward(dy, saved):
    """Return dk (B, H_kv, S, d_h)."""
    H_kv, G = saved
    return dy[:, : H_kv * G : G]


def example(rng):
    return (repeat_heads, repeat_heads_backward), (rng.standard_normal((2, 3, 5, 7)),), {"G": 4}
