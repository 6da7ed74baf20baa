r"""How the next token is chosen from the logits of one row.

The steps come in this order: repetition penalty, temperature, top-k, top-p, and a draw from what
is left. Equal logits are told apart by their ids, the lower one first, in every step, so a choice
never depends on the order in which a sort happens to leave them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..arrays import Array, require_whole


@dataclass(frozen=True)
class Sampling:
    r"""The options of a choice, and the choice itself.

    Attributes
    ----------
    temperature : float
        The logits are divided by it; 0 takes the largest one, without a draw.
    top_k : int, optional
        Only the k largest logits stay; of equal ones at the edge those with the lowest ids, so
        that exactly k stay.
    top_p : float in (0, 1], optional
        Of the probabilities, from the largest one on, so many stay as are needed to reach
        ``top_p``: the one that crosses the line stays too (nucleus sampling; Holtzman et al.,
        2020, arXiv:1904.09751, Eq. 2). They are those of what top-k left, summing to 1.
    repetition_penalty : float
        Logits of tokens in the text so far are divided by it where positive and multiplied where
        negative (Keskar et al., 2019, arXiv:1909.05858, section 4.1, with the sign taken care of,
        as the transformers package does); 1 changes nothing.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 or more, but is {self.temperature}")
        if self.top_k is not None:
            require_whole(self.top_k, "top_k")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be 1 or more, but is {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], but is {self.top_p}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(
                f"repetition_penalty must be positive, but is {self.repetition_penalty}"
            )

    def choose(self, logits: Array, text: Array, rng: np.random.Generator) -> int:
        """Return the id that follows.

        Parameters
        ----------
        logits : (V,) array
            -inf where a token must not come.
        text : (n,) array of integers
            The ids so far, for the repetition penalty.
        rng : Generator
            One number is drawn, none at temperature 0.
        """
        z = logits.astype(np.float64)
        require_choice(z)
        if self.repetition_penalty != 1:
            z = penalised(z, text, self.repetition_penalty)
        if self.temperature == 0:
            return int(np.argmax(z))
        with np.errstate(over="ignore"):
            z = (z - np.max(z)) / self.temperature
        ids = np.arange(len(z))
        if self.top_k is not None:
            ids = largest(z, self.top_k)
        w = np.exp(z[ids])
        if self.top_p is not None and self.top_p < 1:
            ids = ids[nucleus(w / w.sum(), self.top_p)]
            w = np.exp(z[ids])
        edges = np.cumsum(w)
        place = np.searchsorted(edges, rng.random() * edges[-1], side="right")
        return int(ids[min(place, np.searchsorted(edges, edges[-1]))])


def penalised(z: Array, text: Array, penalty: float) -> Array:
    """Make the tokens of ``text`` less likely, each once however often it stands there."""
    z = z.copy()
    seen = np.unique(text)
    with np.errstate(over="ignore"):  # a tiny or huge penalty: as far as numbers go
        new = np.where(z[seen] > 0, z[seen] / penalty, z[seen] * penalty)
    z[seen] = np.minimum(new, np.finfo(z.dtype).max)
    return z


def require_choice(logits: Array) -> None:
    """Raise FloatingPointError where a row (..., V) holds NaN or +inf, or nothing but -inf."""
    top = np.max(logits, axis=-1)
    if not np.all((top < np.inf) & (top > -np.inf)):  # false for NaN
        raise FloatingPointError("no token can be chosen: a logit is NaN or infinite")


def largest(z: Array, k: int) -> Array:
    """Return the ids of the k largest of ``z``, ascending; of equal ones the lowest ids."""
    if k >= len(z):
        return np.arange(len(z))
    edge = np.partition(z, len(z) - k)[len(z) - k]
    above = np.flatnonzero(z > edge)
    equal = np.flatnonzero(z == edge)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def nucleus(p: Array, top_p: float) -> Array:
    """Return the indices, ascending, of the shortest list of largest ``p`` that reaches top_p.

    Those below ``(1 - top_p) / n`` sum to less than ``1 - top_p``, so the list never needs them
    and the sort can leave them out.
    """
    places = np.flatnonzero(p >= (1 - top_p) / len(p))
    order = places[np.argsort(-p[places], kind="stable")]
    count = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
    return np.sort(order[:count])
