"""Large arrays from memory that is already there. No mathematics here.

The C library gives blocks of more than 32 MB back to the system as soon as they are free, and
the system hands out new ones a page at a time, each with a fault and filled with zeros. A training
step that makes the same large arrays again and again spends a tenth of its time on that. `empty`
keeps the memory of dead arrays and gives it to the next array of the same size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array

SMALLEST = 1 << 18  # bytes; smaller blocks stay with the C library anyway
KEPT_BYTES = 1 << 29  # where dead arrays hold more than this and none fits, all of them go
ALIGNMENT = 64  # a cache line: multiplying took 0.11 ns a number instead of 0.24

# By size. `_Lease.__del__` may run at any time and in any thread, so each step is one atomic call.
_free: dict[int, list[tuple[Array, int]]] = {}


class _Lease:
    """Memory on loan to one array and its views; it comes back when the last of them dies."""

    __slots__ = ("__array_interface__", "_memory", "_shelf")

    def __init__(
        self,
        shelf: list[tuple[Array, int]],
        memory: tuple[Array, int],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._shelf, self._memory = shelf, memory
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory[1], False),
        }

    def __del__(self) -> None:
        self._shelf.append(self._memory)

    def __reduce__(self) -> Any:
        raise TypeError("memory on loan can't be copied: it would come back twice")


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """`numpy.empty`, aligned and from used memory where the array is large."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < SMALLEST or dtype.kind in "OV":  # objects would be read from what lies there
        return np.empty(shape, dtype)
    shelf = _free.setdefault(size, [])
    try:
        memory = shelf.pop()
    except IndexError:
        memory = _new(size)
    # A view, since an array on a base that is none can't be made writable again.
    return np.asarray(_Lease(shelf, memory, shape, dtype))[...]


def _new(size: int) -> tuple[Array, int]:
    """Memory with the address of its first aligned byte."""
    if sum(n * len(shelf) for n, shelf in list(_free.items())) > KEPT_BYTES:
        release()
    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError:
        release()
        memory = np.empty(size + ALIGNMENT, np.uint8)
    address = memory.__array_interface__["data"][0]
    return memory, address + -address % ALIGNMENT


def release() -> None:
    """Give the memory of dead arrays back to the system."""
    for shelf in list(_free.values()):
        shelf.clear()
