"""Bytes with what they consist of, and the sizes of number formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "int8": 1,
}
"""Bytes of one number. bfloat16 and float8 are formats that NumPy has no type for."""


def itemsize(dtype: Any) -> int:
    """Return the bytes of one number of a format, given by name or as a NumPy dtype."""
    if isinstance(dtype, str) and dtype in DTYPE_BYTES:
        return DTYPE_BYTES[dtype]
    try:
        size = np.dtype(dtype).itemsize
    except TypeError:
        size = 0
    if isinstance(dtype, str) or not size:
        raise ValueError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, but is {dtype!r}")
    return size


def has_scales(dtype: Any) -> bool:
    """Whether a cache keeps a scale with each vector in this format: whole numbers of 8 bits."""
    return bool(dtype == "int8" if isinstance(dtype, str) else np.dtype(dtype) == np.int8)


class Bytes(int):
    """A number of bytes that remembers what it is the sum of.

    Attributes
    ----------
    rows : tuple of (str, int)
        What it consists of.
    """

    rows: tuple[tuple[str, int], ...]

    def __new__(cls, rows: Iterable[tuple[str, int]]) -> Self:
        rows = tuple(rows)
        self = super().__new__(cls, sum(n for _, n in rows))
        self.rows = rows
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copies, which int would make of a number
        return (self.rows,)

    @property
    def total(self) -> int:
        """The sum as a plain number."""
        return int(self)

    @property
    def gib(self) -> float:
        """In GiB, 2^30 bytes."""
        return self / 2**30

    @property
    def gb(self) -> float:
        """In GB, 10^9 bytes."""
        return self / 1e9


def positive(**sizes: Any) -> None:
    """Raise ValueError unless every size is a whole number from 1 on."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a whole number from 1 on, but is {value!r}")
