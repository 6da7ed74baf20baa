"""What attention maps say in a few numbers, and which of them are meant by a name."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..tree import matches


class HeadSummary(NamedTuple):
    name: str
    head: int
    entropy: float
    """Of a row of weights in nats, mean over the queries: 0 is one key, log S all keys alike."""
    distance: float
    """Mean of |i - j| over the weights; NaN where queries and keys are different texts."""
    itself: float
    """Mean weight of a query on its own place; NaN likewise."""
    first: float
    """Mean weight on the first key."""


def summary(name: str, head: int, P: Array) -> HeadSummary:
    """Summarise the weights (T, S) of one head; queries that see nothing count nowhere."""
    T, S = P.shape
    seeing = np.flatnonzero(P.sum(axis=-1) > 0)
    P = P[seeing].astype(np.float64)
    n = max(1, len(seeing))
    logs = np.log(np.where(P > 0, P, 1))
    distance = itself = float("nan")
    if ".cross" not in f".{name}" and T == S:
        distance = float((P * np.abs(seeing[:, None] - np.arange(S))).sum() / n)
        itself = float(P[np.arange(len(seeing)), seeing].sum() / n)
    return HeadSummary(
        name, head, float(-(P * logs).sum() / n), distance, itself, float(P[:, 0].sum() / n)
    )


def attention_name(wanted: str) -> tuple[str, int | None]:
    """Return the pattern and the head that a short name means.

    >>> attention_name("3"), attention_name("3.1")
    (('blocks.3.attn', None), ('blocks.3.attn', 1))
    >>> attention_name("encoder.blocks.0.attn.2"), attention_name("all")
    (('encoder.blocks.0.attn', 2), ('**', None))
    """
    if wanted == "all":
        return "**", None
    if match := re.fullmatch(r"(\d+)(?:\.(\d+))?", wanted):
        return f"blocks.{match[1]}.attn", None if match[2] is None else int(match[2])
    if match := re.fullmatch(r"(.*\b(?:attn|cross))\.(\d+)", wanted):
        return match[1], int(match[2])
    return wanted, None


class Maps(NamedTuple):
    """The maps that were asked for: a name, the heads to show, and the weights (H, T, S)."""

    name: str
    heads: tuple[int, ...]
    P: Array


def chosen_maps(found: dict[str, Array], wanted: list[str]) -> list[Maps]:
    """Return the maps found that the short names ask for, in the order of the model.

    Raises
    ------
    ValueError
        if a head does not exist.
    """
    maps = []
    for name, P in found.items():
        heads: set[int] = set()
        for pattern, head in map(attention_name, wanted):
            if not matches(name, pattern):
                continue
            if head is not None and head >= len(P):
                raise ValueError(
                    f"{name} has {len(P)} heads, numbered from 0, so there is no head {head}"
                )
            heads |= set(range(len(P))) if head is None else {head}
        if heads:
            maps.append(Maps(name, tuple(sorted(heads)), P))
    return maps
