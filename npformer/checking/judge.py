"""`gradcheck`: the one judge of every backward pass in the package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from . import hints
from .probe import Probe, flat_index
from .report import GradientReport, Row
from .rules import Pass, run_rules
from .slopes import COMPLEX_STEP, FINE_STEP, STEP, Kink, central_slope, complex_slope, find_kink, plain_slope
from .target import Target

_EPS = float(np.finfo(np.float64).eps)
_ENOUGH = 50  # wrong numbers of one tensor are searched for kinks until so many are none


class Method(NamedTuple):
    """A way to measure slopes, with what it can promise."""

    text: str
    tolerance: float
    floor: float
    """Of the largest gradient of the call: below it a tensor counts as zero."""
    rounding: float
    """Of sum |dy y|: what rounding alone may make of a slope that is zero."""


METHODS = {
    "complex": Method(f"complex step {COMPLEX_STEP:.0e}", 1e-10, 1e-12, 4 * _EPS),
    "central": Method(
        f"central differences of fourth order, step {STEP:.0e} max(1, |x|)",
        1e-6, 1e-6, 4 * _EPS / STEP,
    ),
    "direction": Method(
        f"complex step {COMPLEX_STEP:.0e} along random directions", 1e-10, 1e-12, 4 * _EPS
    ),
}  # fmt: skip


def gradcheck(
    thing: Any,
    *inputs: Any,
    method: str = "complex",
    rng: np.random.Generator | int = 0,
    samples: int | None = None,
    **options: Any,
) -> GradientReport:
    r"""Compare a hand-written backward with derivatives that need the forward alone.

    With one random cotangent ``dy`` the backward gives the gradient of
    :math:`\sum dy \odot f(x)` by every floating-point input and every parameter. Each number of it
    is measured a second time from the forward. The error of a tensor is

    .. math:: \max |a - n| \,/\, \max(\max |a|, \max |n|, \text{floor})

    with the backward's gradient a, the numeric n, and a floor of 1e-12 (central differences: 1e-6)
    times the largest gradient of the call. A tensor below the floor on both sides is "zero".

    Parameters
    ----------
    thing : Module, pair of functions, or function
        A layer; ``(f, f_backward)``; or ``f`` alone where its module holds ``f_backward``. With a
        pair of methods such as ``(model.loss, model.loss_backward)`` the parameters count too.
    *inputs : arrays and others
        What the forward is called with. Floating-point arrays must be float64; ids, masks and
        numbers are passed on as they are.
    method : {"complex", "central", "direction"}
        Complex step by each number (tolerance 1e-10, needs an analytic forward); central
        differences by each number (1e-6); or complex step along one random direction a tensor and
        one for all of them together, for whole models.
    rng : Generator or int
        Where the cotangent and the directions come from. A forward that has a parameter ``rng``
        gets a generator with a seed from here too, the same at every call, so dropout is active.
    samples : int, optional
        Compare only so many numbers of each tensor, chosen at random.
    **options
        Passed on to the forward; never differentiated by.

    Returns
    -------
    GradientReport
        ``passed``, ``max_rel_error``, ``rows``; `str` gives a table.

    Raises
    ------
    TypeError
        if a gradient is due for an array that is not float64.
    ValueError
        if the forward is not a function of its inputs alone, if an array that is none of the
        backward's business is written to, or if a number is not finite.

    Notes
    -----
    The inputs are read-only during the check and come back as they were, and so do the parameters,
    which are checked on float64 copies. Also checked: forward and backward give the same a second
    time, change nothing that they were given or saved, add to the parameters' gradients instead of
    overwriting them, and leave nothing on the layer that a second call would overwrite. Near a
    kink, such as ReLU at 0, the two sides have different slopes; a gradient between them is
    reported as "kink" and does not fail.

    Examples
    --------
    >>> from npformer.softmax import softmax, softmax_backward
    >>> x = np.random.default_rng(0).standard_normal((2, 3))
    >>> gradcheck((softmax, softmax_backward), x).passed
    True
    """
    return check(thing, inputs, options, method=method, rng=rng, samples=samples)


def check(
    thing: Any,
    inputs: Sequence[Any],
    options: dict[str, Any] | None = None,
    *,
    method: str = "complex",
    rng: np.random.Generator | int = 0,
    samples: int | None = None,
) -> GradientReport:
    """`gradcheck` with inputs and options given as a tuple and a dict, as a `Case` holds them."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, but is {method!r}")
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be 1 or more, but is {samples}")
    seed = int(rng.integers(2**31)) if isinstance(rng, np.random.Generator) else int(rng)
    rng = np.random.default_rng(rng)
    target = Target(thing, inputs, options or {}, seed)
    with target.borrowed():
        first = run_rules(target, rng)
        rows = _Judge(target, first, METHODS[method], rng, samples).rows(method)
    return GradientReport(
        target.name, METHODS[method].text, METHODS[method].tolerance, rows, tuple(first.problems)
    )


@dataclass
class _Found:
    """The two gradients of one tensor, at the numbers that are compared."""

    places: Array
    """Flat indices."""
    analytic: Array
    numeric: Array
    kinks: dict[int, Kink]
    not_analytic: bool = False


class _Judge:
    def __init__(
        self,
        target: Target,
        first: Pass,
        method: Method,
        rng: np.random.Generator,
        samples: int | None,
    ) -> None:
        self.target, self.first, self.method = target, first, method
        self.rng, self.samples = rng, samples
        self.probe = Probe(target)
        self.dy = np.asarray(first.dy)
        finite = np.where(np.isfinite(first.y), first.y, 0)
        self.size = float(np.sum(np.abs(self.dy * finite)))
        self.rounding = method.rounding * self.size

    def rows(self, method: str) -> tuple[Row, ...]:
        if method == "direction":
            return self._directions()
        found = [self._measure(k, method) for k in range(len(self.target.tensors))]
        floor = self._floor([n for f in found if f for n in (*f.analytic, *f.numeric)])
        rows = []
        for k, f in enumerate(found):
            if f is not None:
                self._look_for_kinks(k, f, floor, method)
            rows.append(self._row(k, f, floor))
        return tuple(self._with_hints(rows, found, floor))

    def _floor(self, gradients: list[float]) -> float:
        largest = max((abs(g) for g in gradients if math.isfinite(g)), default=0.0)
        return max(self.method.floor * largest, self.rounding, float(np.finfo(np.float64).tiny))

    # ------------------------------------------------------------------- number by number

    def _measure(self, k: int, method: str) -> _Found | None:
        tensor, gradient = self.target.tensors[k], self.first.gradients[k]
        if gradient.shape != tensor.value.shape:
            return None
        places = np.arange(tensor.value.size)
        if self.samples is not None and self.samples < len(places):
            places = np.sort(self.rng.choice(places, self.samples, replace=False))
        numeric = np.zeros(len(places))
        for j, i in enumerate(places):
            line, scale = self.probe.element(k, int(i))
            if method == "complex":
                numeric[j] = complex_slope(line, self.dy)
            else:
                numeric[j] = central_slope(line, self.dy, STEP * scale)
        found = _Found(places, gradient.reshape(-1)[places], numeric, {})
        if method == "complex" and len(places):
            found.not_analytic = self._differs_from_central(k, found)
        return found

    def _differs_from_central(self, k: int, found: _Found) -> bool:
        """Whether the complex step is wrong, measured by differences along one direction.

        It is silently wrong where the forward takes abs, var, std or a norm, and a backward that
        forgets the same term would agree with it.
        """
        v = np.zeros(self.target.tensors[k].value.size)
        v[found.places] = self.rng.standard_normal(len(found.places))
        line = self.probe.direction({k: v.reshape(self.target.tensors[k].value.shape)})
        terms = found.numeric * v[found.places]
        return self._slopes_disagree(line, float(terms.sum()), float(np.abs(terms).sum()))

    def _slopes_disagree(self, line: Any, slope: float, size: float) -> bool:
        noise = 100 * _EPS * self.size
        for measured, allowed in (
            (lambda: central_slope(line, self.dy, STEP), noise / STEP),
            (lambda: plain_slope(line, self.dy, FINE_STEP), noise / FINE_STEP),
        ):
            central = measured()
            if not math.isfinite(central) or not math.isfinite(slope):
                return False
            if abs(central - slope) <= 1e-4 * max(size, abs(central)) + allowed:
                return False
        return find_kink(line, self.dy) is None

    def _look_for_kinks(self, k: int, f: _Found, floor: float, method: str) -> None:
        smooth = 0
        for j in np.flatnonzero(self._bad(f.analytic, f.numeric, floor)):
            a, scale = float(f.analytic[j]), _scale(f.analytic, f.numeric, floor)
            allowed = self.method.tolerance * scale
            if smooth >= _ENOUGH or not math.isfinite(a):
                return
            line, unit = self.probe.element(k, int(f.places[j]))
            if method == "central":
                fine = plain_slope(line, self.dy, FINE_STEP * unit)
                if abs(a - fine) <= allowed:
                    f.numeric[j] = fine
                    continue
            kink = find_kink(line, self.dy, unit)
            if kink is not None and kink.admits(a, max(allowed, 1e-6 * scale)):
                f.kinks[int(j)] = kink
                f.numeric[j] = kink.central
            else:
                smooth += 1

    def _bad(self, a: Array, n: Array, floor: float) -> Array:
        with np.errstate(invalid="ignore"):
            return ~(np.abs(a - n) <= self.method.tolerance * _scale(a, n, floor))

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
        scale = _scale(a, n, floor)
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
            _max_ratio(a, n),
            flat_index(int(f.places[worst]), shape),
            float(f.analytic[worst]),
            float(f.numeric[worst]),
            float(np.mean(bad)),
            self._verdict(f, finite, bool(bad.any()), small),
            _kink_notes(f, tensor.name, shape) if f.kinks else (),
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

    def _with_hints(
        self, rows: list[Row], found: list[_Found | None], floor: float
    ) -> list[Row]:
        evidence = hints.Evidence(self.target, self.first, self.probe, floor)
        for f, row in zip(found, rows, strict=True):
            complete = f is not None and f.places.size == math.prod(row.shape)
            evidence.numeric.append(f.numeric.reshape(row.shape) if f and complete else None)
        return [row if row.passed else evidence.explain(k, row) for k, row in enumerate(rows)]

    # ------------------------------------------------------------ along random directions

    def _directions(self) -> tuple[Row, ...]:
        tensors, gradients = self.target.tensors, self.first.gradients
        if any(g.shape != t.value.shape for g, t in zip(gradients, tensors, strict=True)):
            return self.rows("complex")  # says which shape is wrong
        v = {k: self.rng.standard_normal(t.value.shape) for k, t in enumerate(tensors)}
        lines = [{k: v[k]} for k in v]
        together = {k: self.rng.standard_normal(t.value.shape) for k, t in enumerate(tensors)}
        slopes = []
        for directions in [*lines, together]:
            line = self.probe.direction(directions)
            a = float(sum(np.sum(gradients[k] * d) for k, d in directions.items()))
            slopes.append((a, complex_slope(line, self.dy)))
        floor = self._floor([s for pair in slopes for s in pair])
        names = [t.name for t in tensors] + ["all together"]
        shapes = [t.value.shape for t in tensors] + [(sum(t.value.size for t in tensors),)]
        rows = [
            self._direction_row(name, shape, *pair, floor)
            for name, shape, pair in zip(names, shapes, slopes, strict=True)
        ]
        size = float(sum(np.abs(s) for _, s in slopes))
        if self._slopes_disagree(self.probe.direction(together), slopes[-1][1], size):
            rows[-1] = hints.not_analytic(rows[-1])
        return tuple(rows)

    def _direction_row(
        self, name: str, shape: tuple[int, ...], a: float, n: float, floor: float
    ) -> Row:
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
        ratio = _max_ratio(np.array([a]), np.array([n]))
        row = Row(name, shape, 1, gap, error, ratio, None, a, n, float(bad), verdict)
        return hints.of_direction(row) if bad else row


def _scale(a: Array, n: Array, floor: float) -> float:
    return max(float(np.max(np.abs(a), initial=0)), float(np.max(np.abs(n), initial=0)), floor)


def _max_ratio(a: Array, n: Array) -> float:
    """Largest |a - n| / max(|a|, |n|) of one number; two zeros are equal."""
    larger = np.maximum(np.abs(a), np.abs(n))
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(a - n) / np.where(larger == 0, 1, larger), initial=0.0))


def _kink_notes(f: _Found, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    j, kink = next(iter(f.kinks.items()))
    index = list(flat_index(int(f.places[j]), shape))
    return (
        f"{len(f.kinks)} of {f.places.size} numbers lie at a kink, where the slope jumps; at "
        f"{index} it is {kink.left:.6g} on the left and {kink.right:.6g} on the right, "
        f"and the backward gives {f.analytic[j]:.6g}",
    )
