"""Solution: a Post-LN residual.

    y = LN(x + Sub(x)),    Sub(x) = x W

A sum hands its gradient to both of its terms: dsum goes to x as it is, and through the sub-layer.
In Post-LN both have passed the norm; in Pre-LN the first would be dy itself.
"""

import numpy as np

import npformer as nf


class PostLN(nf.Module):
    def __init__(self, d, rng):
        self.sub = nf.Linear(d, d, bias=False, rng=rng, dtype=np.float64)
        self.norm = nf.LayerNorm(d, dtype=np.float64)

    def forward(self, x):
        s, sub = self.sub.forward(x)
        y, norm = self.norm.forward(x + s)
        return y, (sub, norm)

    def backward(self, dy, saved):
        sub, norm = saved
        dsum = self.norm.backward(dy, norm)
        return dsum + self.sub.backward(dsum, sub)


def example(rng):
    layer = PostLN(5, rng)
    layer.norm.gamma.value = rng.standard_normal(5)
    return layer, (rng.standard_normal((2, 3, 5)),)
