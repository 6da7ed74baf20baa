"""How fast do rotary positions turn, and what does a score know of them? Text B section 3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..attention_config import AttentionConfig
from ..position import rope
from ..rope_scaling import read_scaling, rope_frequencies, rotary_dimension

STARTS = (0, 7, 100)
"""Positions of the query whose scores are compared."""


class Rotation(NamedTuple):
    plain: Array
    """(n / 2,), tokens of a whole turn of each pair of features, 2 pi / theta, without scaling."""
    wavelengths: Array
    """(n / 2,), the same as it is in force."""
    factor: float
    """What queries and keys are multiplied by, for a scaling that does so; 1 otherwise."""
    distances: Array
    """(D,), how far the key lies before the query."""
    scores: Array
    """(starts, D), the score of a query of ones at a start with a key of ones so far before it,
    over its value at distance 0. All starts give the same."""
    T: int
    """The longest text."""


def rotation(config: AttentionConfig, T: int) -> Rotation:
    r"""Measure the rotation that a configuration asks for.

    Pair i turns by :math:`\theta_i = b^{-2i/n}` a token, a whole turn in :math:`2\pi/\theta_i`
    tokens. A score depends on the distance alone:

    .. math:: \langle R_m q, R_n k \rangle = \langle q, R_{n-m} k \rangle;

    for q and k of ones it is the sum of :math:`2 \cos(\theta_i (n - m))` over the pairs.

    Parameters
    ----------
    config : AttentionConfig
        With ``rope``.
    T : int
        Distances up to T - 1, and the length of the text where the rule asks for one.

    Returns
    -------
    Rotation

    Raises
    ------
    ValueError
        if nothing is rotated.
    """
    if not config.rope:
        raise ValueError("there is no rotation here: positions must be 'rope'")
    scaling = read_scaling(config.rope_scaling, config.rope_base)
    n = rotary_dimension(config.width, config.rotary_dim, scaling)
    theta, factor = rope_frequencies(n, config.rope_base, config.rope_scaling, T)
    plain, _ = rope_frequencies(n, scaling.base)
    distances = np.unique(np.geomspace(1, max(2, T), 160).astype(int)) - 1
    ones = np.ones((1, 1, len(distances), config.width))
    scores = []
    for start in STARTS:
        where = start + distances[-1]
        at = (np.full(len(distances), where), where - distances)  # the query, and keys before it
        q, k = (
            rope(ones, p, config.rope_base, config.rope_scaling, config.rope_layout,
                 config.rotary_dim, length=T)[0] for p in at
        )  # fmt: skip
        score = np.sum(q * k, axis=-1)[0, 0]
        scores.append(score / score[0])
    turns = 2 * np.pi
    return Rotation(turns / plain, turns / theta, factor, distances, np.array(scores), T)
