"""A layer of one's own and the proof of its backward: ``npformer gradcheck examples/my_layer.py``.

The layer scales every feature of a row by a learned gain and then brings the row to length 1:

    z = x * gamma,    y = z / |z|,    |z|^2 = sum of z_i^2

For the backward, write r = 1 / |z|. Then dy_i / dz_j = r (delta_ij - y_i y_j): a row can't grow in
its own direction, since its length stays 1. That matrix is symmetric, so

    dz = r (dy - y (y . dy)),    dx = dz * gamma,    dgamma = sum over all rows of dz * x

To see what the checker says about a mistake, change a line of `backward`: leave out the term with
the dot product, divide dgamma by the number of rows, or forget to sum it over the batch.
"""

from typing import NamedTuple

import numpy as np

import npformer as nf


class Saved(NamedTuple):
    """What the backward needs; nothing is kept on the layer, so that it can be used twice."""

    x: np.ndarray
    y: np.ndarray
    r: np.ndarray


class UnitRows(nf.Module):
    """Scale the features, then bring every row to length 1."""

    def __init__(self, d: int) -> None:
        self.gamma = nf.Parameter(np.ones(d))

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Saved]:
        z = x * self.gamma.value
        r = 1 / np.sqrt(np.sum(z * z, axis=-1, keepdims=True))
        y = z * r
        return y, Saved(x, y, r)

    def backward(self, dy: np.ndarray, saved: Saved) -> np.ndarray:
        x, y, r = saved
        dz = r * (dy - y * np.sum(y * dy, axis=-1, keepdims=True))
        dgamma = (dz * x).reshape(-1, x.shape[-1]).sum(axis=0)
        self.gamma.accumulate(dgamma)
        return dz * self.gamma.value


def example(rng: np.random.Generator) -> tuple[nf.Module, tuple[np.ndarray, ...]]:
    """Return the layer and its inputs: B = 2, T = 3, d = 5, all different, and a random gain."""
    layer = UnitRows(5)
    layer.gamma.value = rng.standard_normal(5)
    return layer, (rng.standard_normal((2, 3, 5)),)
