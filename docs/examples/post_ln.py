"""Exercise: a Post-LN residual. Judge it with ``npformer gradcheck post_ln.py``.

    y = LN(x + Sub(x)),    Sub(x) = x W

x reaches the sum on two ways. The backward below has forgotten one of them.
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
        return self.sub.backward(dsum, sub)


def example(rng):
    layer = PostLN(5, rng)
    layer.norm.gamma.value = rng.standard_normal(5)
    return layer, (rng.standard_normal((2, 3, 5)),)
