"""What a KV cache is made of: time slots, also in 8 bits, and what a window keeps of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .arrays import Array
from .masks import padding_mask


def quantise(x: Array) -> tuple[Array, Array]:
    r"""Round each vector to whole numbers times a scale of its own.

    .. math:: s = \max_c |x_c| / 127, \qquad q_c = \operatorname{round}(x_c / s)

    so :math:`|x_c - s\, q_c| \le s / 2 = \max_c |x_c| / 254`, up to the rounding of the scale.

    Parameters
    ----------
    x : (..., d) array

    Returns
    -------
    q : (..., d) int8 array
        Within -127 ... 127.
    s : (..., 1) float32 array
        1 for a vector of zeros.
    """
    s = (np.max(np.abs(x), axis=-1, keepdims=True, initial=0) / 127).astype(np.float32)
    s[s == 0] = 1
    return np.rint(x / s).astype(np.int8), s


def stored(dtype: npt.DTypeLike) -> np.dtype[np.generic]:
    """Return the dtype of a cache's numbers, or raise TypeError."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or (found.kind != "f" and found != np.int8):
        given = repr(dtype) if found is None else found
        raise TypeError(f"a cache stores floating-point numbers or int8, not {given}")
    return found


class Slots:
    """Keys or values of one layer: ``numbers`` (B, H_kv, n, d_h), and a scale each where int8."""

    def __init__(self, B: int, H_kv: int, d_h: int, n: int, dtype: npt.DTypeLike) -> None:
        dtype = stored(dtype)
        self.numbers = np.zeros((B, H_kv, n, d_h), dtype)
        self.parts = [self.numbers]
        if dtype == np.int8:
            self.parts.append(np.zeros((B, H_kv, n, 1), np.float32))
        self._dropped: list[tuple[Array, Array, int]] = []

    def write(self, x: Array, end: int) -> Array:
        """Put (B, H_kv, T, d_h) into the T slots before ``end``; return all slots up to there."""
        for part, new in zip(self.parts, self._encoded(x), strict=True):
            part[:, :, end - x.shape[2] : end] = new
        return self._decoded([part[:, :, :end] for part in self.parts])

    def roll(self, x: Array, recent: Recent) -> Array:
        """Show the old slots and (B, H_kv, T, d_h) new ones, and keep what ``recent`` says."""
        T, n, N = x.shape[2], recent.before.shape[1], recent.slots.shape[1]
        if recent.keep is None and n + T == N:  # nothing is dropped yet
            return self.write(x, N)
        seen = []
        for part, new in zip(self.parts, self._encoded(x), strict=True):
            if recent.keep is None and T == 1:  # the others move up by one
                self._dropped.append((part, part[:, :, :1].copy(), n))
                part[:, :, : n - 1] = part[:, :, 1:n]
                part[:, :, n - 1 : n] = new
                seen.append(part)
                continue
            new = new.astype(part.dtype, copy=False)  # the chunk sees itself as it will be kept
            everything = np.concatenate([part[:, :, :n], new], axis=2) if n else new
            self._dropped.append((part, part[:, :, :n].copy(), n))
            if recent.keep is None:
                part[:, :, :N] = everything[:, :, -N:]
            else:
                place = recent.keep[:, None, :, None]
                part[:, :, :N] = np.take_along_axis(everything, place, axis=2)
            seen.append(everything)
        return self._decoded(seen)

    def undo(self) -> None:
        """Take back what was rolled since `forget_undo`, once."""
        for part, dropped, n in self._dropped:
            kept = part[:, :, : n - dropped.shape[2]].copy()
            part[:, :, :n] = np.concatenate([dropped, kept], axis=2)
        self.forget_undo()

    def forget_undo(self) -> None:
        """Let go of what `undo` would need."""
        self._dropped = []

    def reorder(self, rows: Array, changed: Array, used: int) -> None:
        """Row i of ``changed`` becomes what row ``rows[i]`` was, in the slots up to ``used``."""
        for part in self.parts:
            part[changed, :, :used] = part[rows[changed], :, :used]

    def _encoded(self, x: Array) -> tuple[Array, ...]:
        return quantise(x) if len(self.parts) == 2 else (x,)

    @staticmethod
    def _decoded(parts: list[Array]) -> Array:
        return parts[0] if len(parts) == 1 else parts[0] * parts[1]


class Recent:
    """Which time slots the rolling layers of one window hold, row by row.

    Attributes
    ----------
    slots, before : (B, n) int arrays
        Time slots that are held after the last call, and that were before it, in time order. A row
        that has fewer than n tokens holds padding in front of them.
    seen : (B, S) int array
        Time slots that the last call sees.
    keep : (B, n) int array, optional
        Which of the old and new slots stay; None for the last n of them in every row.
    """

    def __init__(self, window: int, batch: int) -> None:
        self.window, self.batch = window, batch
        self.reset()

    def reset(self) -> None:
        self.slots = self.before = self.seen = np.zeros((self.batch, 0), np.int64)
        self.keep: Array | None = None
        self.mask: Array | None = None
        self.dropped = self._dropped_before = False

    def extend(self, old: int, T: int, real: Array) -> None:
        """Take the time slots ``old`` ... ``old + T - 1`` of ``real`` (B, capacity) in."""
        self.before, self._dropped_before = self.slots, self.dropped
        new = np.broadcast_to(np.arange(old, old + T), (self.batch, T))
        self.seen = np.concatenate([self.before, new], axis=1)
        S = self.seen.shape[1]
        n = min(self.window, S)
        tokens = np.take_along_axis(real, self.seen, axis=1)
        # Padding first, so that the last n are a row's last tokens, in time order.
        order = np.argsort(tokens, axis=1, kind="stable")[:, S - n :]
        in_order = bool((order == np.arange(S - n, S)).all())
        self.keep = None if in_order else order
        self.slots = np.take_along_axis(self.seen, order, axis=1)
        self.dropped |= n < S or not in_order
        if in_order and T == 1:  # one query sees no more than what stays
            self.seen, tokens = self.slots, tokens[:, S - n :]
        self.mask = None if tokens.all() else padding_mask(tokens)

    def shrink(self, length: int, *, undo: bool) -> None:
        """Go back to ``length`` time slots: before the last call, or while nothing was dropped."""
        if undo:
            self.slots, self.dropped = self.before, self._dropped_before
        else:
            self.slots = self.slots[:, :length]
        self.before = self.seen = self.slots

    def reorder(self, rows: Array) -> None:
        self.slots = self.slots[rows]
        self.before = self.seen = self.slots
