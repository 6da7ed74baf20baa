"""Every number of every tensor: the backward's gradient against the slope by that number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from .comparing import Comparison, max_ratio, scale_of
from .hints import Evidence
from .probe import flat_index
from .report import Row
from .slopes import (
    FINE_STEPS,
    STEP,
    Kink,
    central_slope,
    complex_slope,
    find_kink,
)

_ENOUGH = 50  # wrong numbers of one tensor are searched for kinks until so many are none


@dataclass
class _Found:
    """The two gradients of one tensor, at the numbers that are compared."""

    places: Array
    """Flat indices."""
    analytic: Array
    numeric: Array
    kinks: dict[int, Kink]
    not_analytic: bool = False


class Elements(Comparison):
    """Compares number by number; with ``samples`` only so many of each tensor."""

    samples: int | None = None

    def rows(self) -> tuple[Row, ...]:
        """Return one row a tensor, with hints where something is wrong."""
        found = [self._measure(k) for k in range(len(self.target.tensors))]
        floor = self.floor([g for f in found if f for g in (*f.analytic, *f.numeric)])
        rows = []
        for k, f in enumerate(found):
            if f is not None:
                self._look_for_kinks(k, f, floor)
            rows.append(self._row(k, f, floor))
        return self._with_hints(rows, found)

    def _measure(self, k: int) -> _Found | None:
        tensor, gradient = self.target.tensors[k], self.first.gradients[k]
        if gradient.shape != tensor.value.shape:
            return None
        places = np.arange(tensor.value.size)
        if self.samples is not None and self.samples < len(places):
            places = np.sort(self.rng.choice(places, self.samples, replace=False))
        numeric = np.zeros(len(places))
        for j, i in enumerate(places):
            line, scale = self.probe.element(k, int(i))
            if self.method.name == "complex":
                numeric[j] = complex_slope(line, self.dy)
            else:
                numeric[j] = central_slope(line, self.dy, STEP * scale)
        found = _Found(places, gradient.reshape(-1)[places], numeric, {})
        if self.method.name == "complex" and len(places):
            found.not_analytic = self._not_analytic(k, found)
        return found

    def _not_analytic(self, k: int, found: _Found) -> bool:
        shape = self.target.tensors[k].value.shape
        v = np.zeros(self.target.tensors[k].value.size)
        v[found.places] = self.rng.standard_normal(len(found.places))
        terms = found.numeric * v[found.places]
        line = self.probe.direction({k: v.reshape(shape)})
        return self.differs_from_central(line, float(terms.sum()), float(np.abs(terms).sum()))

    def _look_for_kinks(self, k: int, f: _Found, floor: float) -> None:
        smooth = 0
        for j in np.flatnonzero(self._bad(f.analytic, f.numeric, floor)):
            a, scale = float(f.analytic[j]), scale_of(f.analytic, f.numeric, floor)
            allowed = self.method.tolerance * scale
            if smooth >= _ENOUGH or not math.isfinite(a):
                return
            line, unit = self.probe.element(k, int(f.places[j]))
            kink = find_kink(line, self.dy, unit)
            if kink is not None and kink.admits(a, max(allowed, 1e-6 * scale)):
                f.kinks[int(j)] = kink
                f.numeric[j] = kink.central
                continue
            finer = FINE_STEPS if self.method.name == "central" else ()
            tried = [central_slope(line, self.dy, step * unit) for step in finer]
            right = [n for n in tried if abs(a - n) <= allowed]
            if right:
                f.numeric[j] = right[0]
            else:
                smooth += 1

    def _bad(self, a: Array, n: Array, floor: float) -> Array:
        with np.errstate(invalid="ignore"):
            return ~(np.abs(a - n) <= self.method.tolerance * scale_of(a, n, floor))

    def _row(self, k: int, f: _Found | None, floor: float) -> Row:
        tensor, gradient = self.target.tensors[k], self.first.gradients[k]
        shape = tensor.value.shape
        if f is None:
            note = (
                f"the gradient has shape {gradient.shape}, "
                f"but {tensor.name} has shape {tensor.value.shape}"
            )
            nan = math.nan
            return Row(
                tensor.name, shape, 0, nan, nan, nan, None, nan, nan, 1.0, "wrong shape", (note,)
            )
        if not f.places.size:
            return Row(tensor.name, shape, 0, 0.0, 0.0, 0.0, None, 0.0, 0.0, 0.0, "empty")
        judged = np.ones(f.places.size, np.bool_)
        judged[list(f.kinks)] = False
        a, n = f.analytic[judged], f.numeric[judged]
        finite = bool(np.isfinite(f.analytic).all() and np.isfinite(f.numeric).all())
        scale = scale_of(a, n, floor)
        small = finite and bool(np.all(np.abs(a) < floor) and np.all(np.abs(n) < floor))
        bad = np.zeros(judged.size, np.bool_)
        if not small:
            bad[judged] = self._bad(a, n, floor)
        with np.errstate(invalid="ignore"):
            gaps = np.abs(f.analytic - f.numeric)
        if finite:
            shown = bad if bad.any() else (~judged if f.kinks else judged)
            worst = int(np.argmax(np.where(shown, gaps, -1)))
        else:
            worst = int(np.argmax(~np.isfinite(f.analytic) | ~np.isfinite(f.numeric)))
        max_abs = float(np.max(gaps[judged], initial=0.0)) if finite else math.nan
        return Row(
            tensor.name,
            shape,
            f.places.size,
            max_abs,
            0.0 if small else max_abs / scale,
            max_ratio(a, n, floor),
            flat_index(int(f.places[worst]), shape),
            float(f.analytic[worst]),
            float(f.numeric[worst]),
            float(np.mean(bad)),
            self._verdict(f, finite, bool(bad.any()), small),
            _kink_notes(f, shape) if f.kinks else (),
        )

    @staticmethod
    def _verdict(f: _Found, finite: bool, bad: bool, small: bool) -> str:
        if not finite:
            return "not finite"
        if f.not_analytic:
            return "not analytic"
        if bad:
            return "fail"
        if f.kinks:
            return "kink"
        return "zero" if small else "pass"

    def _with_hints(self, rows: list[Row], found: list[_Found | None]) -> tuple[Row, ...]:
        evidence = Evidence(self.target, self.first, self.probe)
        for f, row in zip(found, rows, strict=True):
            complete = f is not None and f.places.size == math.prod(row.shape)
            evidence.numeric.append(f.numeric.reshape(row.shape) if f and complete else None)
        return tuple(row if row.passed else evidence.explain(k, row) for k, row in enumerate(rows))


def _kink_notes(f: _Found, shape: tuple[int, ...]) -> tuple[str, ...]:
    j, kink = next(iter(f.kinks.items()))
    index = list(flat_index(int(f.places[j]), shape))
    return (
        (
            f"{len(f.kinks)} of {f.places.size} numbers lie at a kink, where the slope jumps; at "
            f"{index} it is {kink.left:.6g} on the left and {kink.right:.6g} on the right, "
            f"and the backward gives {f.analytic[j]:.6g}"
        ),
    )
