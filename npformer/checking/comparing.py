"""What both ways of comparing gradients share: the methods, the floor, and a second opinion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from .probe import Probe
from .rules import Pass
from .slopes import (
    COMPLEX_STEP,
    EPS,
    FINE_STEPS,
    STEP,
    Line,
    central_slope,
    find_kink,
)
from .target import Target


class Method(NamedTuple):
    """A way to measure slopes, with what it can promise."""

    name: str
    text: str
    tolerance: float
    floor: float
    """Of the largest gradient of the call: below it a tensor counts as zero."""
    rounding: float
    """Of sum |dy y|: what rounding alone may make of a slope that is zero."""


METHODS = {
    method.name: method
    for method in (
        Method("complex", f"complex step {COMPLEX_STEP:.0e}", 1e-10, 1e-12, 4 * EPS),
        Method(
            "central",
            f"central differences of fourth order, step {STEP:.0e} max(1, |x|)",
            1e-6,
            1e-6,
            4 * EPS / STEP,
        ),
        Method(
            "direction",
            f"complex step {COMPLEX_STEP:.0e} along random directions",
            1e-10,
            1e-12,
            4 * EPS,
        ),
    )
}


class Comparison:
    """The backward's gradients against slopes of the forward."""

    def __init__(
        self, target: Target, first: Pass, method: Method, rng: np.random.Generator
    ) -> None:
        self.target, self.first, self.method, self.rng = target, first, method, rng
        self.probe = Probe(target)
        self.dy = np.asarray(first.dy)
        self.size = float(np.sum(np.abs(self.dy * np.where(np.isfinite(first.y), first.y, 0))))

    def floor(self, gradients: Sequence[float]) -> float:
        """Below this size a gradient counts as zero."""
        largest = max((abs(g) for g in gradients if math.isfinite(g)), default=0.0)
        rounding = self.method.rounding * self.size
        return max(self.method.floor * largest, rounding, float(np.finfo(np.float64).tiny))

    def differs_from_central(self, line: Line, slope: float, size: float) -> bool:
        """Whether differences along the line contradict the complex step.

        It is silently wrong where the forward takes abs, var, std or a norm, and a backward that
        forgets the same term would agree with it. ``size`` is what the slope is a sum of.
        """
        noise = 100 * EPS * self.size
        for step in (STEP, *FINE_STEPS):
            central = central_slope(line, self.dy, step)
            if not math.isfinite(central) or not math.isfinite(slope):
                return False
            if abs(central - slope) <= 1e-4 * max(size, abs(central)) + noise / step:
                return False
        return find_kink(line, self.dy) is None


def scale_of(a: Array, n: Array, floor: float) -> float:
    """The larger gradient's largest number, but not less than the floor."""
    finite = (np.abs(g[np.isfinite(g)]) for g in (a, n))
    return max(floor, *(float(np.max(g, initial=0)) for g in finite))


def max_ratio(a: Array, n: Array, floor: float) -> float:
    """The largest relative difference of a single number above the floor."""
    with np.errstate(invalid="ignore"):
        larger = np.maximum(np.maximum(np.abs(a), np.abs(n)), floor)
        return float(np.max(np.abs(a - n) / larger, initial=0.0))
