"""Run a formula on cache-sized pieces, several at a time. No mathematics here.

NumPy works on whole arrays, so a formula of five operations sends five temporaries through
memory. `rowwise` and `headwise` hand the formula pieces that stay in the cache, and hand several
pieces out at once, since NumPy releases the interpreter lock inside its loops and products. The
pieces and the order in which their sums are added depend on shapes only, never on the number of
threads, so that the results are the same bit for bit.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .arrays import Array, widen
from .buffers import empty
from .team import inside, run, set_threads, single_blas, threads

__all__ = [
    "add_rows",
    "added",
    "colsum",
    "headwise",
    "matmul",
    "matmuls",
    "rowdot",
    "rowmean",
    "rowsum",
    "rowwise",
    "set_threads",
    "sum_by_id",
    "threads",
    "total_row",
]

BLOCK_BYTES = 1 << 20  # of one operand; a few of them fit in a core's L2 cache
PIECES = 4  # a call is cut into at least so many pieces where they stay large enough
SMALL_PRODUCT = 1 << 21  # multiply-adds below which a product is not worth a second thread
FEW_ROWS = 16  # up to so many, reading the matrix is what a product costs


def rowwise(
    block: Callable[..., Any], *arrays: Array, stats: int = 0, sums: int = 0
) -> tuple[Any, ...]:
    """Apply ``block`` to blocks of rows of ``arrays`` and put its results together.

    Parameters
    ----------
    block : callable
        Takes (n, d_k) arrays, one an input, and returns a tuple: first results of n rows each,
        then ``stats`` results of n rows that stay float32 where the inputs are float16, then
        ``sums`` results that are added up over the blocks, in block order.
    *arrays : (..., d_k) arrays
        They share their leading axes.

    Returns
    -------
    tuple of arrays
        Rows with the leading axes of the inputs, then the sums.
    """
    lead = arrays[0].shape[:-1]
    half = arrays[0].dtype == np.float16
    n = math.prod(lead)
    flat = [a.reshape(n, a.shape[-1]) for a in arrays]
    if n <= 1 or max([a.nbytes for a in flat]) <= BLOCK_BYTES // 4:
        with single_blas():
            return _shaped(lead, block(*map(widen, flat)), half, stats, sums)
    row_bytes = max(1, *(a.shape[1] * a.itemsize for a in flat))
    step = max(1, min(BLOCK_BYTES // row_bytes, -(-n // PIECES)))
    if step * row_bytes < BLOCK_BYTES // 4:
        step = max(1, BLOCK_BYTES // 4 // row_bytes)  # smaller pieces cost more than they bring
    starts = range(0, n, step)
    rows: list[Array] = []
    allocating = threading.Lock()

    def task(k: int) -> Sequence[Any]:
        nonlocal rows
        part = slice(starts[k], starts[k] + step)
        result: Sequence[Any] = block(*(widen(a[part]) for a in flat))
        end = len(result) - sums
        with allocating:
            if not rows:  # the first block to finish says what the results look like
                rows = [
                    empty((n, *r.shape[1:]), np.float16 if half and j < end - stats else r.dtype)
                    for j, r in enumerate(result[:end])
                ]
        for out, r in zip(rows, result, strict=False):
            out[part] = r
        return result[end:]

    with single_blas():
        parts = run(task, len(starts))
        totals = [sum(p[1:], start=p[0]) for p in zip(*parts, strict=True)]
        return _shaped(lead, [*rows, *totals], half, stats, sums)


def _shaped(
    lead: tuple[int, ...], results: Sequence[Any], half: bool, stats: int, sums: int
) -> tuple[Any, ...]:
    """The results with their leading axes; float16 again but for the statistics."""
    end = len(results) - sums
    shaped = [r.reshape(*lead, *r.shape[1:]) if j < end else r for j, r in enumerate(results)]
    if half:
        shaped = [
            r if end - stats <= j < end else r.astype(np.float16) for j, r in enumerate(shaped)
        ]
    return tuple(shaped)


def headwise(
    head: Callable[..., Any], *arrays: Array, stats: int = 0, work_bytes: int = 0
) -> tuple[Array, ...]:
    """Apply ``head`` to groups of heads of (B, H, ...) arrays and put the results together.

    Parameters
    ----------
    head : callable
        Takes (b, h, ...) arrays, some heads of one text or all heads of some, and returns a tuple
        of (b, h, ...) arrays; the last ``stats`` of them stay float32 where the inputs are float16.
    *arrays : (B, H, ...) arrays
    work_bytes : int
        What one head's temporaries need, to choose how many heads share a group.

    Returns
    -------
    tuple of (B, H, ...) arrays
        Results of two or more further axes lie in memory as (B, T, H, ..., d), so that merging
        the heads costs nothing.
    """
    B, H = arrays[0].shape[:2]
    half = arrays[0].dtype == np.float16
    one = max(1, work_bytes, *(a[:1, :1].size * a.itemsize for a in arrays))
    total = B * H * one
    pieces = max(1, -(-total // BLOCK_BYTES))
    if total > BLOCK_BYTES // 2:
        pieces = max(pieces, min(PIECES, 4 * total // BLOCK_BYTES))
    size = -(-B * H // pieces)
    h, b = min(H, size), max(1, size // H)
    places = [(slice(i, i + b), slice(j, j + h)) for i in range(0, B, b) for j in range(0, H, h)]
    outs: list[Array] = []
    allocating = threading.Lock()

    def task(k: int) -> None:
        nonlocal outs
        result: Sequence[Array] = head(*(widen(a[places[k]]) for a in arrays))
        narrow = len(result) - stats if half else 0
        with allocating:
            if not outs:  # the first group to finish says what the results look like
                kinds = [
                    np.dtype(np.float16) if j < narrow else r.dtype for j, r in enumerate(result)
                ]
                outs = [
                    _empty_heads(B, H, r.shape[2:], d, stat=j >= len(result) - stats)
                    for j, (r, d) in enumerate(zip(result, kinds, strict=True))
                ]
        for out, r in zip(outs, result, strict=True):
            out[places[k]] = r

    with single_blas():
        run(task, len(places))
    return tuple(outs)


def _empty_heads(B: int, H: int, rest: tuple[int, ...], dtype: np.dtype[Any], stat: bool) -> Array:
    """(B, H, ..., T, d) in the memory order (B, T, H, ..., d); plain order for a statistic."""
    if stat or len(rest) < 2:
        return np.empty((B, H, *rest), dtype)
    return np.moveaxis(empty((B, rest[-2], H, *rest[:-2], rest[-1]), dtype), 1, -2)


def matmul(a: Array, b: Array, plus: Array | None = None) -> Array:
    """``a @ b + plus`` for two matrices, the larger side of the result shared out over the team.

    ``plus`` is a row, such as a bias, or None.
    """
    return matmuls((a, b, plus))[0]


def matmuls(*products: tuple[Array, Array, Array | None]) -> list[Array]:
    """Return ``[a @ b + plus for a, b, plus in products]``, computed together.

    As many products as threads are a task each; fewer or more are cut. So are few rows, where
    reading the matrix is the work: along the sum if the matrix lies in memory row by row, since
    pieces of rows are read at half the speed.
    """
    half = [a.dtype == np.float16 and b.dtype == np.float16 for a, b, _ in products]
    wide = [
        (widen(a), widen(b)) if h else (a, b) for (a, b, _), h in zip(products, half, strict=True)
    ]
    # Of few rows or columns reading the matrix counts like 16 of them.
    work = sum([max(len(a), 16) * a.shape[1] * max(b.shape[1], 16) for a, b in wide])
    outs: list[Array]
    if work < SMALL_PRODUCT or inside():
        with single_blas():
            outs = [np.asarray(np.matmul(a, b)) for a, b in wide]
        for y, (_, _, plus) in zip(outs, products, strict=True):
            if plus is not None:
                y += plus
    else:
        outs = _shared(wide, [plus for _, _, plus in products])
    with single_blas():
        return [y.astype(np.float16) if h else y for y, h in zip(outs, half, strict=True)]


def _shared(pairs: list[tuple[Array, Array]], biases: list[Array | None]) -> list[Array]:
    """``[a @ b + plus ...]``, shared out over the team."""
    outs = [empty((len(a), b.shape[1]), np.result_type(a, b)) for a, b in pairs]
    count = 1 if len(pairs) == threads() else threads()
    tasks: list[tuple[Array, Array, Array | None, Array]] = []
    sums: list[list[Array]] = []
    for (a, b), plus, y in zip(pairs, biases, outs, strict=True):
        (n, k), m = a.shape, b.shape[1]
        if n < FEW_ROWS and b.flags.c_contiguous and len(parts := _cut(k, count)) > 1:
            terms = [y] + [np.empty_like(y) for _ in parts[1:]]
            tasks += [(a[:, p], b[p], None if i else plus, terms[i]) for i, p in enumerate(parts)]
            sums.append(terms)
        elif n >= min(128 * count, m):
            tasks += [(a[p], b, plus, y[p]) for p in _cut(n, count)]
        else:
            tasks += [
                (a, b[:, p], None if plus is None else plus[p], y[:, p]) for p in _cut(m, count)
            ]

    def task(i: int) -> None:
        a, b, plus, y = tasks[i]
        np.matmul(a, b, out=y)
        if plus is not None:
            y += plus

    with single_blas():
        run(task, len(tasks))
    for y, *terms in sums:
        for term in terms:
            y += term
    return outs


@functools.lru_cache(maxsize=256)
def _cut(n: int, pieces: int) -> tuple[slice, ...]:
    """``range(n)`` in pieces of 64 or more, a multiple of 16 each but for the last."""
    pieces = max(1, min(pieces, n // 64))
    edges = [n * i // pieces // 16 * 16 for i in range(pieces)] + [n]
    return tuple(slice(start, stop) for start, stop in pairwise(edges))


def total_row(x: Array) -> Array:
    """``x.sum(0)`` of a matrix, in pieces of a megabyte."""
    if x.nbytes <= BLOCK_BYTES and x.dtype != np.float16:
        with single_blas():
            return colsum(x)
    total: Array = rowwise(lambda x: (colsum(x),), x, sums=1)[0]
    return total


def added(a: Array, b: Array) -> Array:
    """``a + b`` for two arrays of one shape, in pieces."""
    total: Array = rowwise(lambda a, b: (a + b,), a, b)[0]
    return total


def sum_by_id(ids: Array, rows: Array) -> tuple[Array, Array]:
    """Return the distinct ids (m,), in order, and for each the sum (m, d) of its rows (n, d).

    One sort and one sparse product; `np.add.at` took five times as long.
    """
    from scipy.sparse import csr_array  # late: it takes longer to import than all of npformer

    wide, n = widen(rows), len(ids)
    order = np.argsort(ids, kind="stable")
    first = np.flatnonzero(np.diff(ids[order], prepend=-1))  # where the next id begins
    ends = np.append(first, n)
    chooser = csr_array((np.ones(n, wide.dtype), order, ends), shape=(len(first), n))
    return ids[order[first]], np.asarray(chooser @ wide).astype(rows.dtype, copy=False)


def add_rows(ids: Array, rows: Array, size: int) -> Array:
    """Return (size, d) zeros to which ``rows[i]`` was added at row ``ids[i]``, repeats summed."""
    total = empty((size, rows.shape[1]), rows.dtype)
    total.fill(0)
    distinct, sums = sum_by_id(ids, rows)
    total[distinct] = sums
    return total


# ---------------------------------------------------------------- sums and maxima along a row


def rowsum(x: Array) -> Array:
    """``x.sum(-1, keepdims=True)`` as a product with ones, three times as fast for short rows."""
    return np.matmul(x, _ones(x.shape[-1], x.dtype))[..., None]


def rowmean(x: Array) -> Array:
    """``x.mean(-1, keepdims=True)``; the factor is a Python float, so float32 stays float32."""
    return rowsum(x) * (1.0 / x.shape[-1])


def rowdot(x: Array, y: Array) -> Array:
    """``(x * y).sum(-1, keepdims=True)``, without a conjugate for complex numbers."""
    if x.dtype.kind == "c" or y.dtype.kind == "c":
        return np.sum(x * y, axis=-1, keepdims=True)
    return np.vecdot(x, y)[..., None]


def colsum(x: Array) -> Array:
    """``x.sum(0)`` of a matrix as a product with ones."""
    return np.matmul(_ones(len(x), x.dtype), x)


@functools.lru_cache(maxsize=64)
def _ones(n: int, dtype: np.dtype[Any]) -> Array:
    ones = np.ones(n, dtype)
    ones.flags.writeable = False
    return ones
