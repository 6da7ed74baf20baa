"""What a good teacher would say about a wrong gradient: every guess is tested on the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..arrays import Array
from .factors import name_factor
from .probe import Probe
from .report import Row
from .rules import Pass
from .target import Target, first_not_finite

_CLOSE = 1e-5
_MOST = 3  # hints for one tensor
_LARGEST = 1 << 22  # numbers in a table of contributions


@dataclass
class Evidence:
    """All that is known about a failed check."""

    target: Target
    first: Pass
    probe: Probe
    numeric: list[Array | None] = field(default_factory=list)
    """By tensor; None where it was not measured in full."""

    def explain(self, k: int, row: Row) -> Row:
        """Return the row with the fault named and hints added."""
        notes = list(row.notes)
        if row.bad_share > 0 and row.verdict in ("fail", "not analytic"):
            wrong = round(row.bad_share * row.compared)
            which = "every number is" if wrong == row.compared else f"{wrong} of {row.compared} are"
            notes.insert(
                0,
                f"{which} wrong; at {list(row.worst_index or ())} the backward gives "
                f"{row.analytic:.8g}, but the forward's slope is {row.numeric:.8g}",
            )
        if row.verdict == "not finite":
            notes.insert(0, self._not_finite(k))
        elif row.verdict == "not analytic":
            return not_analytic(replace(row, notes=tuple(notes)))
        else:
            notes += self._hints(k)[:_MOST]
        return replace(row, notes=tuple(notes))

    def _not_finite(self, k: int) -> str:
        fault = first_not_finite(self.first.gradients[k])
        if fault:
            return f"the backward gives {fault}"
        numeric = self.numeric[k]
        where = "" if numeric is None else f": {first_not_finite(numeric)}"
        return f"the slope measured by the forward is not finite{where}"

    def _hints(self, k: int) -> list[str]:
        a, n = self.first.gradients[k], self.numeric[k]
        tensor = self.target.tensors[k]
        if a.shape != tensor.value.shape:
            n = self._measured(k)
        if n is None:
            return []
        if a.shape != n.shape:
            return list(_of_shape(a, n))
        if n.size > 1 and not np.any(a):
            return [self._of_zero(k)]
        found = list(self._simple(k, a, n))
        if not found:
            found = list(self._from_contributions(k, a))
        if not found:
            found = list(self._projections(k, a, n))
        if not found:
            found = list(_places(a, n))
        if a.dtype != np.float64:
            found.append(f"the gradient is {a.dtype} though everything given was float64")
        return found

    def _of_zero(self, k: int) -> str:
        if self.first.silent[k]:
            return "the backward never adds a gradient to this parameter"
        return "the backward's gradient is zero everywhere"

    # ------------------------------------------------- guesses that need no further measurement

    def _simple(self, k: int, a: Array, n: Array) -> Iterator[str]:
        ratio = _constant_ratio(a, n)
        if ratio is not None:
            yield name_factor(ratio, self.target, self.first.y.shape)
            return
        if _close(a, np.asarray(self.first.dy)):
            yield "it is dy itself: the incoming gradient is passed on unchanged"
        for i in range(n.ndim):
            for j in range(i + 1, n.ndim):
                if _close(a, np.swapaxes(n, i, j).reshape(n.shape)):
                    yield f"it is transposed: axes {i} and {j} are swapped" + (
                        "" if n.shape[i] == n.shape[j] else ", and a reshape made the shape fit"
                    )
                    return
        if n.size > 2 and _close(np.sort(a, axis=None), np.sort(n, axis=None)):
            yield "the numbers are right but in the wrong places: an index, a flip or a reshape"
        for other, m in zip(self.target.tensors, self.numeric, strict=True):
            if other is not self.target.tensors[k] and m is not None and _close(a, m):
                yield f"it is the gradient of {other.name}: two gradients are swapped"
        yield from self._vector_factors(a, n)

    def _vector_factors(self, a: Array, n: Array) -> Iterator[str]:
        """A gain such as gamma that was forgotten, or multiplied in twice."""
        for tensor in self.target.tensors:
            v = tensor.value
            if v.ndim == 1 and v.size > 1 and n.shape[-1:] == v.shape:
                if _close(a * v, n):
                    yield f"a factor {tensor.name} is missing"
                elif _close(a, n * v):
                    yield f"there is one factor {tensor.name} too many"

    def _projections(self, k: int, a: Array, n: Array) -> Iterator[str]:
        """The difference is a combination of a few known rows: a term is missing."""
        tensor, y = self.target.tensors[k], self.first.y
        one = np.ones(n.shape)
        gains = [t.value for t in self.target.tensors if t.value.shape == n.shape[-1:]]
        gains = [np.ones(()), *(gains if n.ndim > 1 else [])]  # a row may be scaled afterwards
        if any(_in_span(a - n, [one * v]) for v in gains):
            yield (
                "each row is off by a constant: a term with a mean or a sum over the last axis is "
                "missing or wrong, such as the one through the mean"
            )
        elif any(_in_span(a - n, [tensor.value * v]) for v in gains):
            yield (
                f"each row is off by a multiple of the same row of {tensor.name}: the term through "
                f"the row's length (rms, norm) is missing or wrong"
            )
        elif y.shape == n.shape and any(_in_span(a - n, [y * v]) for v in gains):
            yield (
                "each row is off by a multiple of the output's row: the projection is missing or "
                "wrong, such as - p * sum(p * dp) of the softmax"
            )
        elif any(_in_span(a - n, [one * v, tensor.value * v]) for v in gains):
            yield (
                f"each row is off by a constant plus a multiple of the same row of {tensor.name}: "
                f"the terms through mean and variance are missing or wrong"
            )

    # ---------------------------------------- guesses from what each row of the output contributes

    def _measured(self, k: int) -> Array | None:
        table = self._contributions(k)
        if table is None:
            return None
        return np.asarray(table.sum(axis=1).reshape(self.target.tensors[k].value.shape))

    def _contributions(self, k: int) -> Array | None:
        """(numbers of the tensor, numbers of the output): dy times the derivative of the output."""
        x, dy = self.target.tensors[k].value, np.asarray(self.first.dy)
        if x.size * dy.size > _LARGEST or dy.size == 0:
            return None
        table = np.zeros((x.size, dy.size))
        for i in range(x.size):
            line, scale = self.probe.element(k, i)
            h = 1e-5 * scale
            table[i] = (dy * (line(h) - line(-h)) / (2 * h)).reshape(-1)
        return table

    def _from_contributions(self, k: int, a: Array) -> Iterator[str]:
        shape = self.first.y.shape
        table = self._contributions(k) if len(shape) > 1 else None
        if table is None:
            return
        table = table.reshape(a.size, *shape)
        flat = a.reshape(-1)
        rows = table.reshape(a.size, -1, shape[-1]).sum(-1)
        reached = np.abs(rows) > 1e-7 * np.max(np.abs(rows))
        ends = [np.append(0, row[there])[-1] for row, there in zip(rows, reached, strict=True)]
        if not reached.all() and _close(flat, np.array(ends), 1e-4):
            yield (
                "each number is only the last of its contributions: with repeated indices "
                "g[ids] += d keeps one of them"
            )
            return
        for axis, word in enumerate(_leading_names(len(shape))):
            parts = np.moveaxis(table, axis + 1, 1).reshape(a.size, shape[axis], -1).sum(-1)
            for i in range(shape[axis]) if shape[axis] > 1 else ():
                if _close(flat, parts[:, i], 1e-4):
                    last = " (the last)" if i == shape[axis] - 1 else ""
                    yield (
                        f"it comes from index {i}{last} of the output's axis {axis} alone: the sum "
                        f"over {word} is missing, or each overwrites the one before"
                    )
                    return


def not_analytic(row: Row) -> Row:
    """Return the row with the verdict that the complex step is no judge here."""
    note = (
        "complex step and differences of the same forward disagree, so it is not analytic (abs, "
        'var, std, norm, conjugate, a comparison of complex numbers?): use method="central"'
    )
    return replace(row, verdict="not analytic", notes=(*row.notes, note))


def of_direction(row: Row) -> Row:
    """Return a direction's row with both slopes named."""
    both = f"{row.analytic:.8g}, but the forward's slope is {row.numeric:.8g}"
    notes = [f"along a random direction the backward gives {both}"]
    if row.analytic == -row.numeric:
        notes.append("the sign is wrong")
    elif row.analytic == 0:
        notes.append("the backward's gradient is zero, or missing")
    else:
        notes.append('method="complex" with samples=20 says which numbers are wrong')
    return replace(row, notes=tuple(notes))


def _of_shape(a: Array, n: Array) -> Iterator[str]:
    extra = a.ndim - n.ndim
    if extra > 0 and a.shape[extra:] == n.shape:
        axes = tuple(range(extra))
        right = _close(a.sum(axis=axes), n)
        yield (
            f"the sum over the batch is missing: .sum(axis={axes}) "
            f"{'gives the right gradient' if right else 'gives the right shape'}"
        )
    elif a.shape == n.shape[::-1]:
        yield "it is transposed" + (
            ": its transpose is right" if _close(a.T, n) else ", and wrong beyond that"
        )
    elif a.size == n.size and _close(a.reshape(n.shape), n):
        yield f"the numbers are right: reshape it to {n.shape}"


def _constant_ratio(a: Array, n: Array) -> float | None:
    """c, if a = c n everywhere; the norm-wise best c is tried."""
    power = float(np.sum(n * n))
    if power == 0:
        return None
    c = float(np.sum(a * n)) / power
    return c if c != 0 and _close(a, c * n) else None


def _close(a: Array, b: Array, tolerance: float = _CLOSE) -> bool:
    if a.shape != b.shape or a.size == 0:
        return False
    size = max(float(np.max(np.abs(a))), float(np.max(np.abs(b))))
    return size > 0 and bool(np.max(np.abs(a - b)) <= tolerance * size)


def _in_span(r: Array, basis: list[Array]) -> bool:
    """Whether each row of ``r`` is a combination of the same rows of the basis."""
    if r.ndim == 0 or r.shape[-1] < len(basis) + 2:
        return False
    rows = r.reshape(-1, r.shape[-1])
    left = np.empty_like(rows)
    for i, row in enumerate(rows):
        columns = np.stack([b.reshape(rows.shape)[i] for b in basis], axis=1)
        left[i] = row - columns @ np.linalg.lstsq(columns, row, rcond=None)[0]
    return bool(np.max(np.abs(left)) <= _CLOSE * np.max(np.abs(rows)))


def _places(a: Array, n: Array) -> Iterator[str]:
    """What the wrong numbers have in common, where only some of them are wrong."""
    size = max(float(np.max(np.abs(a))), float(np.max(np.abs(n))))
    bad = np.argwhere(np.abs(a - n) > 1e-6 * size)
    if not 0 < len(bad) < a.size:
        return
    for axis in range(a.ndim):
        at = np.unique(bad[:, axis])
        if len(at) == 1 and a.shape[axis] > 1:
            last = " (the last)" if at[0] == a.shape[axis] - 1 else ""
            yield f"only numbers with index {at[0]}{last} on axis {axis} are wrong"


def _leading_names(ndim: int) -> list[str]:
    """Words for every axis of the output but the last."""
    return {2: ["the batch"], 3: ["the batch", "the positions"]}.get(
        ndim, ["the batch", "the heads", *["the positions"] * max(0, ndim - 3)][: ndim - 1]
    )
