"""The forward of a target along lines through the point where it is checked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.exceptions import ComplexWarning

from ..arrays import Array
from .slopes import Line
from .target import Target


class NotAnalyticError(ValueError):
    """The forward can't be asked for its slope by the complex step."""


class Probe:
    """Moves single numbers or whole tensors and calls the forward; the point itself stays."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._values = [tensor.value for tensor in target.tensors]
        self._moved: dict[bool, list[Array]] = {}

    def element(self, k: int, i: int) -> tuple[Line, float]:
        """Return the line that moves number ``i`` of tensor ``k``, and its scale max(1, abs(x))."""
        x = float(self._values[k].flat[i])

        def line(t: complex) -> Array:
            values = self._buffers(isinstance(t, complex))
            values[k].flat[i] = x + t
            try:
                return self._output(values)
            finally:
                values[k].flat[i] = x

        return line, max(1.0, abs(x))

    def direction(self, directions: dict[int, Array]) -> Line:
        """Return the line that moves tensor ``k`` along ``directions[k]``."""

        def line(t: complex) -> Array:
            values = list(self._buffers(isinstance(t, complex)))
            for k, v in directions.items():
                values[k] = np.asarray(values[k] + t * v)
            return self._output(values)

        return line

    def _buffers(self, imaginary: bool) -> list[Array]:
        if imaginary not in self._moved:
            kind = np.complex128 if imaginary else np.float64
            self._moved[imaginary] = [np.array(v, kind, order="C") for v in self._values]
        return self._moved[imaginary]

    def _output(self, values: Sequence[Array]) -> Array:
        locked = [v.view() for v in values]
        for v in locked:
            v.flags.writeable = False
        with np.errstate(all="ignore"):
            if not any(v.dtype.kind == "c" for v in values):
                return np.array(self._target.forward(locked)[0])  # it may be a view of a buffer
            return self._complex_output(locked)

    def _complex_output(self, values: Sequence[Array]) -> Array:
        y: Any
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", ComplexWarning)
                y = np.asarray(self._target.forward(values)[0])
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._not_analytic(f"it fails on complex numbers ({reason})") from error
        if y.dtype.kind != "c":
            raise self._not_analytic("it turns complex numbers into real ones")
        return np.array(y)

    def _not_analytic(self, reason: str) -> NotAnalyticError:
        return NotAnalyticError(
            f"the complex step can't be taken through the forward of {self._target.name}: "
            f'{reason}; use method="central"'
        )


def flat_index(i: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the i-th number of an array, as Python ints."""
    return tuple(int(j) for j in np.unravel_index(i, shape)) if math.prod(shape) else ()
