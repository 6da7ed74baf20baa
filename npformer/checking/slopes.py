r"""Derivatives without a backward pass: the complex step, central differences, one-sided slopes.

Each takes a line, the output as a function of t when some numbers are moved by t, and a cotangent
``dy``, and measures the slope of :math:`\sum dy \odot y(t)` at t = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..arrays import Array

Line = Callable[[complex], Array]
"""t to the output; t is a Python float or an imaginary number."""

COMPLEX_STEP = 1e-30
STEP = 2e-4
"""Times max(1, abs(x)). A little below eps^(1/5) = 7e-4, the best for fourth order in float64 where
nothing bends sharply; a norm of a short row does."""
FINE_STEPS = (1e-5, 1e-6)
"""Where the output bends sharply, or breaks nearby, within the other step."""
_LADDER = (1e-5, 3e-6, 1e-6)
EPS = float(np.finfo(np.float64).eps)


def complex_slope(line: Line, dy: Array) -> float:
    r""":math:`\operatorname{Im} y(ih) / h`, exact to rounding for any small h.

    There is no difference and so no cancellation. The output must be analytic in t: no abs, no
    conjugate, no comparison of imaginary parts.

    References
    ----------
    Squire & Trapp, 1998, SIAM Review 40(1), doi:10.1137/S003614459631241X.
    """
    with np.errstate(invalid="ignore"):
        return float(np.sum(dy * line(1j * COMPLEX_STEP).imag) / COMPLEX_STEP)


def central_slope(line: Line, dy: Array, h: float) -> float:
    r"""Central differences of fourth order, from y at :math:`\pm h` and :math:`\pm 2h`.

    .. math:: \frac{4 D(h) - D(2h)}{3}, \qquad D(h) = \frac{y(h) - y(-h)}{2h}

    The error in :math:`h^2` cancels; what stays is :math:`h^4 y^{(5)} / 30`, and the rounding of y
    divided by h.
    """
    return (4 * plain_slope(line, dy, h) - plain_slope(line, dy, 2 * h)) / 3


def plain_slope(line: Line, dy: Array, h: float) -> float:
    """Central difference of second order, ``(y(h) - y(-h)) / 2h``."""
    with np.errstate(invalid="ignore"):
        return float(np.sum(dy * (line(h) - line(-h))) / (2 * h))


class Kink(NamedTuple):
    """A point where the slopes from the left and from the right differ."""

    left: float
    right: float
    """Both at 1e-5; with the kink beside the point, one of them is a mixture."""
    inner: tuple[float, float]
    """Both at the shortest step."""
    slack: float
    """How far rounding may move the inner slopes."""

    @property
    def central(self) -> float:
        """The plain central difference at 1e-5."""
        return (self.left + self.right) / 2

    def admits(self, slope: float, tolerance: float) -> bool:
        """Whether ``slope`` lies between the two sides: what a backward may choose there."""
        slack = self.slack + tolerance
        return min(self.inner) - slack <= slope <= max(self.inner) + slack


def find_kink(line: Line, dy: Array, scale: float = 1.0) -> Kink | None:
    """Return the kink within 1e-5 of t = 0, or None where the output is smooth there.

    With a smooth output the difference of the one-sided slopes, divided by the step, is the second
    derivative, the same at every step. A kink of height J gives J / h instead, or nothing as soon
    as the step is too short to reach it.
    """
    y = line(0.0)
    bends: list[float] = []
    noises: list[float] = []
    slopes: list[tuple[float, float, float]] = []
    for step in _LADDER:
        h = step * scale
        up, down = line(h), line(-h)
        moved = (up != y) | (down != y)
        with np.errstate(invalid="ignore"):
            left, right = float(np.sum(dy * (y - down)) / h), float(np.sum(dy * (up - y)) / h)
            noise = 16 * EPS * float(np.sum(np.abs(dy * y) * moved)) / h
        slopes.append((left, right, noise))
        bends.append((right - left) / h)
        noises.append(noise / h)
    kinked = any(
        abs(bends[i] - bends[j])
        > 0.2 * max(abs(bends[i]), abs(bends[j])) + 4 * (noises[i] + noises[j])
        for i, j in ((0, 1), (1, 2), (0, 2))
    )
    if not kinked:
        return None
    return Kink(slopes[0][0], slopes[0][1], (slopes[-1][0], slopes[-1][1]), slopes[-1][2])
