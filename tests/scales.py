"""`ScaleCurves` of known shape, made without measuring anything."""

from __future__ import annotations

import numpy as np

from npformer.experiments.gradient_scale import ScaleCurves, TheorySetup, TransformerSetup
from npformer.experiments.theory import POST_SUM, last_gradient, mean_field

DEPTHS = (2, 4, 8)


def theory_curves(
    depths: tuple[int, ...] = DEPTHS, *, seeds: int = 5, activation_seeds: int = 20
) -> ScaleCurves:
    """What the recursion expects, with a little spread over the seeds."""
    setup = TheorySetup(d=64, n=7)
    s = mean_field(depths[-1], setup.n).s
    gradients, activations = {}, {}
    spread = 1 + 0.01 * np.linspace(-1, 1, seeds)[:, None, None]
    for L in depths:
        pre = last_gradient(setup.d, setup.n, setup.B, s[1 : L + 1])
        post = np.full(L, last_gradient(setup.d, setup.n, setup.B, POST_SUM))
        for placement, g in (("pre", pre), ("post", post)):
            gradients[placement, L] = spread * np.stack([0.9 * g, g], axis=1)
    spread = 1 + 0.01 * np.linspace(-1, 1, activation_seeds)[:, None, None]
    for placement, square, total in (
        ("pre", s[1:], s[1:]),
        ("post", np.ones(depths[-1]), np.full(depths[-1], POST_SUM)),
    ):
        norm = np.sqrt(square * setup.d)
        activations[placement] = spread * np.stack([norm, square, total], axis=1)
    return ScaleCurves(setup, depths, gradients, activations)


def transformer_curves(
    depths: tuple[int, ...] = DEPTHS, *, seeds: int = 5, activation_seeds: int = 20
) -> ScaleCurves:
    """The same numbers, as if a decoder on text had them."""
    like = theory_curves(depths, seeds=seeds, activation_seeds=activation_seeds)
    ids = np.arange(70) % 7
    return ScaleCurves(TransformerSetup(ids, 7, d=64), depths, like.gradients, like.activations)
