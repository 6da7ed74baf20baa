"""Numbers that are the same in every version of every library."""

from __future__ import annotations

import numpy as np


def sequence(t: int, n: int) -> np.ndarray:
    """Return n numbers within [-1, 1], whole 1024ths, which differ from one ``t`` to the next."""
    k = np.arange(1, n + 1)
    return ((k * k * 7919 + t * 10_007 + k * t * 613) % 2039 - 1019) / 1024


def gradient(t: int, n: int) -> np.ndarray:
    """Return the t-th gradient: a direction that stays, and noise of its size."""
    return (sequence(1000, n) + sequence(t, n)) / 2
