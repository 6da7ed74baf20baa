"""The array type of every signature, and the one rule about half precision."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""A NumPy array; its shape and dtype stand in the docstring of the function."""


def widen(x: Array) -> Array:
    """Return float16 arrays as float32, every other array unchanged.

    float16 sums overflow at 65504, so formulas compute in float32 and narrow the result.
    """
    return x.astype(np.float32) if x.dtype == np.float16 else x


def require_floating(x: Array, name: str) -> None:
    """Raise TypeError unless ``x`` holds real or complex floating-point numbers."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fc":
        given = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"{name} must be a floating-point array, but it is {given}")


def require_last(x: Array, d: int, name: str) -> None:
    """Raise unless ``x`` is a floating array whose last dimension is ``d``."""
    require_floating(x, name)
    if x.ndim == 0 or x.shape[-1] != d:
        raise ValueError(f"{name} must have last dimension {d}, but its shape is {x.shape}")


def is_number(value: Any) -> bool:
    """Whether ``value`` is a real number that a float can hold; a bool is none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # a whole number of more than 308 digits
        return False


def is_whole(value: Any) -> bool:
    """Whether ``value`` is a whole number; a bool is none, and 2.0 is none either."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_shape(a: Any, shape: tuple[int, ...], name: str) -> None:
    """Raise ValueError unless ``a`` has just this shape.

    NumPy would stretch a bias (1,) over all features, and flattening to rows takes any cotangent
    of the right size, a transposed one too.
    """
    if np.shape(a) != shape:
        raise ValueError(f"{name} must have shape {shape}, but its shape is {np.shape(a)}")


def require_real(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return ``dtype`` as a floating-point dtype; whole numbers would cut all weights to 0.

    Raises
    ------
    TypeError
        if parameters can't be kept in it.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "fc":
        raise TypeError(f"parameters must be floating-point numbers, but the dtype is {kind}")
    return kind


def require_whole(value: Any, name: str) -> None:
    """Raise TypeError unless ``value`` is a whole number."""
    if not is_whole(value):
        raise TypeError(f"{name} must be a whole number, but is {value!r}")


def require_sizes(**sizes: Any) -> None:
    """Raise unless each of the named sizes of a layer is a whole number from 1 on."""
    for name, n in sizes.items():
        require_whole(n, name)
        if n < 1:
            raise ValueError(f"{name} must be 1 or more, but is {n}")


def require_ids(ids: Any, size: int, name: str) -> Array:
    """Return ``ids`` as an integer array, each in ``[0, size)``; NumPy would wrap negatives.

    Raises
    ------
    TypeError
        if they are not integers (booleans and floats are refused).
    IndexError
        if one of them is negative or not below ``size``.
    """
    if isinstance(ids, list | tuple) and not len(ids):
        return np.zeros(0, np.int64)  # NumPy would make it float64
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, but the dtype is {ids.dtype}")
    if ids.size and (ids.min() < 0 or ids.max() >= size):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise IndexError(f"{name} must lie in [0, {size}), but one of them is {bad}")
    return ids
