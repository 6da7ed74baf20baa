"""Whole models: the slope along one random direction for each tensor, and for all together."""

from __future__ import annotations

import math

import numpy as np

from .comparing import Comparison, max_ratio
from .elements import Elements
from .hints import not_analytic, of_direction
from .report import Row
from .slopes import complex_slope


class Directions(Comparison):
    """Compares the sum of gradient times direction with the slope along the direction.

    One forward pass a tensor. A wrong number can't hide from a random direction, but the report
    can't say which it was.
    """

    def rows(self) -> tuple[Row, ...]:
        """Return one row a tensor and one for all of them."""
        tensors, gradients = self.target.tensors, self.first.gradients
        if any(g.shape != t.value.shape for g, t in zip(gradients, tensors, strict=True)):
            return Elements(self.target, self.first, self.method, self.rng).rows()  # says which
        v = {k: self.rng.standard_normal(t.value.shape) for k, t in enumerate(tensors)}
        lines = [{k: v[k]} for k in v]
        together = {k: self.rng.standard_normal(t.value.shape) for k, t in enumerate(tensors)}
        slopes = []
        for directions in [*lines, together]:
            line = self.probe.direction(directions)
            a = float(sum(np.sum(gradients[k] * d) for k, d in directions.items()))
            slopes.append((a, complex_slope(line, self.dy)))
        floor = self.floor([s for pair in slopes for s in pair])
        names = [t.name for t in tensors] + ["all together"]
        shapes = [t.value.shape for t in tensors] + [(sum(t.value.size for t in tensors),)]
        rows = [
            self._row(name, shape, *pair, floor)
            for name, shape, pair in zip(names, shapes, slopes, strict=True)
        ]
        size = float(sum(np.abs(s) for _, s in slopes))
        if self.differs_from_central(self.probe.direction(together), slopes[-1][1], size):
            rows[-1] = not_analytic(rows[-1])
        return tuple(rows)

    def _row(self, name: str, shape: tuple[int, ...], a: float, n: float, floor: float) -> Row:
        gap = abs(a - n)
        finite, small = math.isfinite(gap), max(abs(a), abs(n)) < floor
        error = 0.0 if small else gap / max(abs(a), abs(n), floor)
        if math.prod(shape) == 0:
            verdict = "empty"
        elif not finite:
            verdict = "not finite"
        elif small:
            verdict = "zero"
        else:
            verdict = "pass" if error <= self.method.tolerance else "fail"
        bad = verdict in ("fail", "not finite")
        ratio = max_ratio(np.array([a]), np.array([n]), floor)
        row = Row(name, shape, 1, gap, error, ratio, None, a, n, float(bad), verdict)
        return of_direction(row) if bad else row
