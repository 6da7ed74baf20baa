"""Solution: DeepNorm's residual.

    y = LN(alpha x + Sub(x)),    Sub(x) = relu(x W1) W2

(Wang et al., 2022, arXiv:2203.00555; alpha = (2 L)^(1/4) in a decoder of L layers.) Both
paths start at the sum; the one past the sub-layer is multiplied by alpha, as it was on the way up.
"""

import numpy as np

import npformer as nf


class DeepNorm(nf.Module):
    def __init__(self, d, d_ff, L, rng):
        self.alpha = (2 * L) ** 0.25
        self.sub = nf.FeedForward(d, d_ff, activation="relu", bias=False, rng=rng, dtype=np.float64)
        self.norm = nf.LayerNorm(d, dtype=np.float64)

    def forward(self, x):
        s, sub = self.sub.forward(x)
        y, norm = self.norm.forward(self.alpha * x + s)
        return y, (sub, norm)

    def backward(self, dy, saved):
        sub, norm = saved
        dsum = self.norm.backward(dy, norm)
        return self.alpha * dsum + self.sub.backward(dsum, sub)


def example(rng):
    layer = DeepNorm(5, 7, L=6, rng=rng)
    layer.norm.gamma.value = rng.standard_normal(5)
    return layer, (rng.standard_normal((2, 3, 5)),)
