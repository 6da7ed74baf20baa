"""Hold a measurement of `gradient_scale` against theory: what holds, and what does not reproduce.

Tolerances are those of runs with at least 5 seeds for gradients and 20 for activations, at widths
from 128 on; about three standard errors there. With fewer seeds a miss says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from .gradient_scale import ScaleCurves, TheorySetup
from .theory import POST_SUM, last_gradient, loglog_slope, mean_field

MIN_GRADIENT_SEEDS = 5
MIN_ACTIVATION_SEEDS = 20


class Finding(NamedTuple):
    """One row of the table."""

    setup: str
    placement: str
    quantity: str
    """``slope``, ``constancy``, ``size``, ``stream``, ``sum``, ``flatness`` or ``growth``."""
    measured: float
    error: float | None
    """Standard error over the seeds, where it is defined."""
    expected: float | None
    """By the recursion at these depths; None where only a direction is expected."""
    theorem: float | None
    """By Xiong et al. (2020), for many layers; None where they say nothing."""
    tolerance: tuple[str, float]
    """``("within", t)``: measured - expected lies in [-t, t]; ``("below", t)``; ``("above", t)``.
    """
    verdict: str
    """``holds``, ``misses``, or ``unclear``: it misses, but with fewer seeds than it needs."""


class Claim(NamedTuple):
    """Something that is said about the layers of one stack, and what this run shows."""

    claim: str
    """``post_decay``, ``pre_flat``, ``pre_depth`` or ``post_depth``."""
    setup: str
    parameter: str
    depth: int | None
    claimed: float | None
    measured: float
    verdict: str
    """``yes``, ``no``, or ``slightly``: there, but smaller than what is called no slope."""


def findings(curves: ScaleCurves) -> list[Finding]:
    """Return the rows for one set-up; none about slopes where only one depth was measured."""
    rows = _theory(curves) if isinstance(curves.setup, TheorySetup) else _transformer(curves)
    return list(rows)


def _theory(curves: ScaleCurves) -> Iterator[Finding]:
    setup, depths = curves.setup, np.array(curves.depths)
    stream = mean_field(int(depths[-1]), setup.n).s
    for placement, theorem, tolerance in (("pre", -0.5, 0.06), ("post", 0.0, 0.1)):
        row = _rows(curves, placement, "gradients")
        s = stream[depths] if placement == "pre" else np.full(len(depths), POST_SUM)
        g = curves.last_gradients(placement)
        if len(depths) > 1:
            expected = loglog_slope(depths, s**-0.5)
            slope, error = _slope(depths, g)
            yield row("slope", slope, error, expected, theorem, ("within", tolerance))
            flat = g.mean(axis=0) * np.sqrt(s)
            yield row("constancy", _worst(flat / flat.mean()), None, 0.0, None, ("within", 0.12))
        size = g.mean(axis=0) / last_gradient(setup.d, setup.n, setup.B, s)
        yield row("size", _worst(size), None, 0.0, None, ("within", 0.2))
    row = _rows(curves, "pre", "activations")
    square = curves.activations["pre"][:, :, 1].mean(axis=0)
    yield row("stream", _worst(square / stream[1:]), None, 0.0, None, ("within", 0.05))
    row = _rows(curves, "post", "activations")
    sums = curves.activations["post"][:, :, 2].mean(axis=1)
    yield row("sum", sums.mean(), _error(sums), POST_SUM, 1.5, ("within", 0.03))


def _transformer(curves: ScaleCurves) -> Iterator[Finding]:
    depths = np.array(curves.depths)
    for placement, tolerance in (("pre", ("below", -0.2)), ("post", ("above", -0.25))):
        if len(depths) > 1:
            slope, error = _slope(depths, curves.last_gradients(placement))
            theorem = -0.5 if placement == "pre" else 0.0
            row = _rows(curves, placement, "gradients")
            yield row("slope", slope, error, None, theorem, tolerance)
    norm = {p: a[:, :, 0].mean(axis=0) for p, a in curves.activations.items()}
    if depths[-1] > 1:
        growth = norm["pre"][-1] / norm["pre"][0]
        row = _rows(curves, "pre", "activations")
        yield row("growth", growth, None, None, math.sqrt(depths[-1]), ("above", 1.5))
        flatness = norm["post"].max() / norm["post"].min()
        row = _rows(curves, "post", "activations")
        yield row("flatness", flatness, None, 1.0, 1.0, ("within", 0.2))


def _rows(curves: ScaleCurves, placement: str, kind: str) -> Callable[..., Finding]:
    """Return a function that makes rows of one placement, each with its verdict."""
    if kind == "gradients":
        values = curves.gradients[placement, curves.depths[0]]
        enough = len(values) >= MIN_GRADIENT_SEEDS
    else:
        enough = len(curves.activations[placement]) >= MIN_ACTIVATION_SEEDS

    def row(
        quantity: str,
        measured: float,
        error: float | None,
        expected: float | None,
        theorem: float | None,
        tolerance: tuple[str, float],
    ) -> Finding:
        rule, bound = tolerance
        holds = {
            "within": abs(measured - (expected or 0.0)) <= bound,
            "below": measured < bound,
            "above": measured > bound,
        }[rule]
        verdict = "holds" if holds else "misses" if enough else "unclear"
        place = (curves.setup.name, placement, quantity)
        return Finding(*place, float(measured), error, expected, theorem, tolerance, verdict)

    return row


def claims(curves: ScaleCurves) -> list[Claim]:
    r"""Return what is said about these curves, and whether it shows in them.

    - ``post_decay``: Post-LN gradients shrink towards the input by :math:`\sqrt{2/3}` a layer
      (arXiv:2002.04745, appendix F, called preliminary there). They don't: each residual sum adds
      the factor :math:`\sqrt{3/2}` that the norm behind it takes away.
    - ``pre_flat``: Pre-LN gradients do not depend on l where the layer index l is large (the same
      place). They fall: the stream grows with l, and what a layer reads is divided by it. The
      number is the ratio of the layers L/2 and L.
    - ``pre_depth``: "the gradient scale is about independent of depth" for Pre-LN (theorem 2.5.2
      of the chapter). The paper's Theorem 1 has 1 / sqrt(L). The number is the ratio of the last
      layer's gradients in the shallowest and the deepest stack.
    - ``post_depth``: Post-LN accumulates factors that grow with depth (the chapter's argument
      there, part 1). The last layer's gradient keeps its size, as Theorem 1 says. The number is
      the ratio of the deepest and the shallowest stack.

    "Independent" is judged as the slope of the table is: an exponent within 0.1 of 0. A growth
    below that, but above three standard errors, is called slight.
    """
    name, depths = curves.setup.name, np.array(curves.depths)
    found = []
    middle = max((L for L in curves.depths if L <= 16), default=0)
    deepest = int(depths[-1])
    for p, parameter in enumerate(("W1", "W2")):
        if middle > 1:
            g = curves.gradients["post", middle][:, :, p].mean(axis=0)
            factor = math.exp(-np.polyfit(np.arange(middle), np.log(g), 1)[0])
            claimed = math.sqrt(2 / 3)
            shows = abs(factor - claimed) <= 0.06
            found.append(_claim("post_decay", name, parameter, middle, claimed, factor, shows))
        if deepest > 3:
            g = curves.gradients["pre", deepest][:, :, p].mean(axis=0)
            ratio = g[deepest // 2 - 1] / g[-1]
            shows = abs(math.log(ratio)) <= 0.1 * math.log(2)
            found.append(_claim("pre_flat", name, parameter, deepest, 1.0, ratio, shows))
    if len(depths) > 1:
        g = curves.last_gradients("pre")
        ratio, slope = g[:, 0].mean() / g[:, -1].mean(), _slope(depths, g)[0]
        found.append(_claim("pre_depth", name, "W2", None, None, ratio, abs(slope) <= 0.1))
        g = curves.last_gradients("post")
        ratio, (slope, error) = g[:, -1].mean() / g[:, 0].mean(), _slope(depths, g)
        row = _claim("post_depth", name, "W2", None, None, ratio, slope > 0.1)
        grows = error is not None and slope > 3 * error
        found.append(row._replace(verdict="slightly") if row.verdict == "no" and grows else row)
    return found


def _claim(
    claim: str,
    setup: str,
    parameter: str,
    depth: int | None,
    claimed: float | None,
    measured: float,
    shows: bool,
) -> Claim:
    verdict = "yes" if shows else "no"
    return Claim(claim, setup, parameter, depth, claimed, float(measured), verdict)


def _slope(depths: Array, g: Array) -> tuple[float, float | None]:
    """Slope of the mean over the seeds, and the standard error of the slopes of single seeds."""
    single = np.array([loglog_slope(depths, one) for one in g])
    return loglog_slope(depths, g.mean(axis=0)), _error(single)


def _error(values: Array) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _worst(ratio: Array) -> float:
    """The departure from 1 that is largest, with its sign."""
    off = np.asarray(ratio) - 1
    return float(off[np.argmax(np.abs(off))])
