"""`gradcheck`: the one judge of every backward pass in the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .comparing import METHODS
from .directions import Directions
from .elements import Elements
from .report import GradientReport, Row
from .rules import run_rules
from .target import Target


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
        backward's business is written to, if a number is not finite, or if all inputs are empty.

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
        rows: tuple[Row, ...]
        if method == "direction":
            rows = Directions(target, first, METHODS[method], rng).rows()
        else:
            elements = Elements(target, first, METHODS[method], rng)
            elements.samples = samples
            rows = elements.rows()
    if rows and all(row.verdict == "empty" for row in rows):
        raise ValueError(
            f"{target.name}: every input is empty, so there is no number to check: give one row or "
            "more"
        )
    return GradientReport(
        target.name, METHODS[method].text, METHODS[method].tolerance, rows, tuple(first.problems)
    )
