"""Who may look at whom (chapter 2.5.4). Masks are booleans, True = may attend, joined with "and".

No mask is ever a large negative number: two of them add up to -inf, and a row that sees nothing
then averages the padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array


def causal_mask(T: int, S: int | None = None) -> Array:
    """(T, S) booleans: query i sees key j iff ``j <= S - T + i``, aligned at the end.

    With a cache the T queries are the last T of S positions, so the triangle must end in the lower
    right corner; from the upper left it would hide the newest keys. (Text A's code drops the mask
    whenever there is a cache, which lets a chunk of several tokens see its own future.)

    Examples
    --------
    >>> causal_mask(2, 3).astype(int)
    array([[1, 1, 0],
           [1, 1, 1]])
    """
    S = T if S is None else S
    return visible(np.arange(T)[:, None], np.arange(S), Sight(T, S, causal=True))


def window_mask(T: int, S: int | None = None, *, window: int, causal: bool = True) -> Array:
    """(T, S) booleans: each query sees ``window`` keys up to its own (causal), or on both sides.

    Examples
    --------
    >>> window_mask(3, window=2).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    if window < 1:
        raise ValueError(f"window must be 1 or more, but is {window}")
    S = T if S is None else S
    return visible(np.arange(T)[:, None], np.arange(S), Sight(T, S, causal, window))


def padding_mask(real: Any) -> Array:
    """Turn (B, S) booleans, True = a real token, into a (B, 1, 1, S) mask over the keys."""
    real = np.asarray(real)
    if real.dtype != np.bool_:
        raise TypeError(f"a padding mask must be boolean, True = a real token, not {real.dtype}")
    if real.ndim != 2:
        raise ValueError(f"a padding mask must have shape (B, S), not {real.shape}")
    return real[:, None, None, :]


def combine_masks(*masks: Array | None) -> Array | None:
    """Join masks: a key is visible where every mask says so. None stands for "all visible".

    Raises
    ------
    TypeError
        if one of them is not boolean: 0 and -inf mean something else in other libraries.
    """
    given = [m for m in masks if m is not None]
    for m in given:
        if not isinstance(m, np.ndarray) or m.dtype != np.bool_:
            kind = getattr(m, "dtype", type(m).__name__)
            raise TypeError(f"masks must be boolean arrays, True = may attend, but one is {kind}")
    if not given:
        return None
    joined = given[0]
    for m in given[1:]:
        joined = joined & m
    return joined


def token_window(real: Array, T: int, window: int, *, causal: bool = True) -> Array:
    """(B, 1, T, S) booleans: a window that counts tokens and not the padding between them.

    ``real`` is (B, S), True = a token; the T queries are the last T of the S places. Rows that go
    on after their padding need this: counted by places, the window would end early.

    Examples
    --------
    >>> token_window(np.array([[True, True, False, True]]), T=1, window=2).astype(int)
    array([[[[0, 1, 0, 1]]]])
    """
    count = np.cumsum(real, axis=1)
    behind = count[:, real.shape[1] - T :, None] - count[:, None]  # tokens from key to query
    seen = real[:, None] & (behind < window)
    if not causal:
        seen &= behind > -window
    return seen[:, None]


def has_gaps(real: Array) -> bool:
    """Whether padding stands between the tokens of a row of (B, S) booleans."""
    starts = real.copy()
    starts[:, 1:] &= ~real[:, :-1]
    return bool((np.count_nonzero(starts, axis=1) > 1).any())


def check_mask(mask: Any, B: int, H: int, T: int, S: int) -> Array:
    """Return ``mask`` as a (B, H, T, S) view, or say what is wrong with it.

    Raises
    ------
    TypeError
        if it is not boolean.
    ValueError
        unless its shape is (T, S), (B or 1, 1, 1 or T, S) or (B, H, T, S). A (B, S) array is not
        guessed at: where B = T it would pass as (T, S). `padding_mask` makes a mask of it.
    """
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        given = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"mask must be a boolean array, True = may attend, but it is {given}")
    shapes = {(T, S), (1, 1, 1, S), (1, 1, T, S), (B, 1, 1, S), (B, 1, T, S), (B, H, T, S)}
    if mask.shape not in shapes:
        raise ValueError(
            f"mask must have shape (T, S), (B or 1, 1, 1 or T, S) or (B, H, T, S) with "
            f"B, H, T, S = {B}, {H}, {T}, {S}, but it is {mask.shape}"
        )
    return np.broadcast_to(mask, (B, H, T, S))


class Sight(NamedTuple):
    """What the rules alone allow, before any mask: ``causal`` and ``window`` on T by S."""

    T: int
    S: int
    causal: bool = False
    window: int | None = None

    def keys_of(self, i: slice) -> slice:
        """Return the range of keys that at least one of the queries ``i`` sees."""
        offset, first, last = self.S - self.T, i.start, i.stop - 1
        low, high = 0, self.S
        if self.causal:
            high = offset + last + 1
        elif self.window is not None:
            high = offset + last + self.window
        if self.window is not None:
            low = offset + first - self.window + 1
        high = min(max(high, 0), self.S)
        return slice(min(max(low, 0), high), high)

    def edges(self, i: slice, j: slice) -> Iterator[slice]:
        """Yield the ranges within the keys ``j`` that some of the queries ``i`` does not see."""
        offset, first, last = self.S - self.T, i.start, i.stop - 1
        low, high = j.start, j.stop  # between the two, every query sees every key
        if self.window is not None:
            low = min(max(offset + last - self.window + 1, low), high)
        if self.causal:
            high = max(min(offset + first + 1, high), low)
        elif self.window is not None:
            high = max(min(offset + first + self.window, high), low)
        if j.start < low:
            yield slice(j.start, low)
        if high < j.stop:
            yield slice(high, j.stop)


def visible(i: Array, j: Array, sight: Sight) -> Array:
    """Whether query ``i`` sees key ``j`` by the rules of ``sight``; the arrays broadcast."""
    own = i + (sight.S - sight.T)  # the query's own position among the keys
    if sight.causal and sight.window is not None:
        return np.asarray((j <= own) & (j > own - sight.window))
    if sight.causal:
        return np.asarray(j <= own)
    if sight.window is not None:
        return np.asarray((j < own + sight.window) & (j > own - sight.window))
    return np.ones(np.broadcast_shapes(i.shape, j.shape), np.bool_)


def hide(scores: Array, i: slice, j: slice, sight: Sight, mask: Array | None = None) -> None:
    """Write -inf where the queries ``i`` do not see the keys ``j``; scores are (..., t, s)."""
    for edge in sight.edges(i, j):
        part = scores[..., edge.start - j.start : edge.stop - j.start]
        ahead = sight.S - sight.T + i.start - edge.start
        t, s = part.shape[-2:]
        table = _hidden if t * s <= 1 << 18 else _hidden.__wrapped__
        np.copyto(part, -np.inf, where=table(ahead, t, s, sight.causal, sight.window))
    if mask is not None:
        np.copyto(scores, -np.inf, where=~mask[..., i, j])


@lru_cache(maxsize=32)
def _hidden(ahead: int, t: int, s: int, causal: bool, window: int | None) -> Array:
    """(t, s), True where a query does not see a key; query 0 stands ``ahead`` places after key 0.

    The rules only know how far apart the two are, so the blocks along the diagonal share a table.
    """
    rules = Sight(0, 0, causal, window)
    hidden = ~visible(np.arange(ahead, ahead + t)[:, None], np.arange(s), rules)
    hidden.flags.writeable = False
    return hidden
