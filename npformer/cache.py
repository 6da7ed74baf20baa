"""Keys and values of the tokens already seen (chapter 2.5.6, the KV cache). The caller owns it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .arrays import Array, is_whole
from .masks import padding_mask
from .position import require_positions
from .storage import Recent, Slots, stored


class HasCacheSizes(Protocol):
    """What a cache needs to know of a configuration."""

    @property
    def L(self) -> int: ...
    @property
    def H_kv(self) -> int | None: ...
    @property
    def d_h(self) -> int | None: ...
    def at(self, name: str, layer: int) -> Any: ...


class KVCache:
    r"""Keys and values of every layer, in time order, with what is padding and what is a token.

    Rows of a batch share their time slots: a call that feeds T tokens fills T slots of every row,
    and ``real`` says which of them hold tokens. Slots from ``length`` on are never read. So rows of
    different length go together, padded on the left (the padding has position 0) or on the right,
    and each goes on where its own tokens end. Feeding a text in chunks of any size gives what the
    whole text gives; the exception is a rotation that follows the length of the text
    ("dynamic" and "longrope"): its frequencies are those of the length reached with each call, and
    for this the keys are kept as they are before the rotation.

    Parameters
    ----------
    cfg : TransformerConfig
        ``L``, ``H_kv``, ``d_h`` and, for ``rolling``, ``window`` are read.
    batch, capacity : int
        Rows, and time slots, for which there must be room.
    dtype : dtype
        float16 halves the memory; int8 keeps whole numbers with a float32 scale for each head and
        position, wrong by at most 1/254 of the largest number of a key or value (`quantise`).
    rolling : bool
        A layer with a window keeps its last ``window`` tokens only, of each row by itself.

    Attributes
    ----------
    k, v : list of (batch, H_kv, n, d_h) arrays, one a layer
        n = capacity, or min(capacity, window) in a rolling layer.
    real : (batch, capacity) bool array
    positions : (batch, capacity) int array
        Of padding 0.
    layers : int
    length : int
        Time slots in use.
    context : array or None
        The encoder's output, for an encoder-decoder model; ``cross`` has each layer's keys and
        values of it, which are computed once.
    nbytes : int
        :math:`2\, B\, H_{kv}\, d_h \sum_l n_l` numbers of the dtype, and for int8
        :math:`2\, B\, H_{kv} \sum_l n_l` scales of 4 bytes.
    """

    def __init__(
        self,
        cfg: HasCacheSizes,
        batch: int,
        capacity: int,
        dtype: npt.DTypeLike = np.float32,
        *,
        rolling: bool = False,
    ) -> None:
        if not (is_whole(batch) and is_whole(capacity)) or batch < 1 or capacity < 1:
            raise ValueError(
                "a cache needs batch and capacity of 1 or more, whole numbers, not "
                f"{batch!r}, {capacity!r}"
            )
        if not isinstance(rolling, bool):
            raise ValueError(f"rolling must be true or false, but is {rolling!r}")
        if not hasattr(cfg, "H_kv"):
            raise TypeError(
                f"a cache is made for a TransformerConfig, but was given {type(cfg).__name__}"
            )
        self._windows: list[int | None] = []
        for layer in range(cfg.L):
            window = cfg.at("window", layer) if rolling else None
            self._windows.append(window if window is not None and window < capacity else None)
        shape = (batch, cfg.H_kv or 0, cfg.d_h or 0)
        sizes = [capacity if w is None else w for w in self._windows]
        try:
            self._k = [Slots(*shape, n, dtype) for n in sizes]
            self._v = [Slots(*shape, n, dtype) for n in sizes]
            self.real = np.zeros((batch, capacity), np.bool_)
            self.positions = np.zeros((batch, capacity), np.int64)
        except (MemoryError, ValueError):  # NumPy calls what no address can reach a ValueError
            kind = stored(dtype)
            one = shape[1] * (shape[2] * kind.itemsize + 4 * (kind == np.int8))
            raise ValueError(
                f"a cache of {batch} rows with {capacity} time slots needs "
                f"{2 * batch * sum(sizes) * one / 1e9:.1f} GB, and there is no room for it"
            ) from None
        self._recent = {w: Recent(w, batch) for w in self._windows if w is not None}
        self.cross: list[tuple[Array, Array] | None] = [None] * cfg.L
        self.context: Array | None = None
        self.length = 0
        self._new = 0  # slots of the last call
        self._mask: Array | None = None

    @property
    def k(self) -> list[Array]:
        return [slots.numbers for slots in self._k]

    @property
    def v(self) -> list[Array]:
        return [slots.numbers for slots in self._v]

    @property
    def batch(self) -> int:
        return len(self.real)

    @property
    def layers(self) -> int:
        return len(self._k)

    @property
    def capacity(self) -> int:
        return self.real.shape[1]

    @property
    def lengths(self) -> Array:
        """(batch,) numbers of real tokens."""
        return np.count_nonzero(self.real[:, : self.length], axis=1)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values, filled or not."""
        return sum(part.nbytes for slots in (*self._k, *self._v) for part in slots.parts)

    def check_fits(self, cfg: HasCacheSizes, B: int) -> None:
        """Raise ValueError where a model or a number of rows would not get all that it asks for.

        The heads and their width are seen when keys are appended.
        """
        if self.layers != cfg.L:
            raise ValueError(
                f"the cache was made for {self.layers} layers, but this model has {cfg.L}"
            )
        if self.batch != B:
            raise ValueError(f"the cache was made for {self.batch} rows, but ids has {B}")
        for layer, kept in enumerate(self._windows if self._recent else ()):
            window = cfg.at("window", layer)
            if kept is not None and (window is None or window > kept):
                raise ValueError(
                    f"the cache keeps the last {kept} tokens in layer {layer}, but this model's "
                    f"window there is {window}"
                )

    def extend(self, T: int, real: Any = None, positions: Any = None) -> Array:
        """Take T more slots and return the (batch, T) positions of the tokens in them.

        Parameters
        ----------
        T : int
        real : (batch, T) bool array, optional
            True = a token, False = padding.
        positions : (T,) or (batch, T) array of integers, optional
            By default each row counts on from its last token.

        Raises
        ------
        ValueError
            if the cache has no room for T more, or a shape does not fit; it stays as it was.
        """
        old, new = self.length, self.length + T
        if T < 1:
            raise ValueError(f"a cache is extended by 1 token or more, not by {T}")
        if new > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} tokens and holds {old}: {T} more don't fit"
            )
        tokens = self._tokens(T, real)
        if positions is None:
            count = np.where(self.real[:, :old], self.positions[:, :old] + 1, 0)
            first = count.max(axis=1, initial=0)
            positions = first[:, None] + np.cumsum(tokens, axis=1) - 1
        else:
            positions = require_positions(positions)
            if positions.shape not in ((T,), (self.batch, T)):
                raise ValueError(
                    f"positions must have shape ({T},) or ({self.batch}, {T}), not "
                    f"{positions.shape}"
                )
        self.real[:, old:new] = tokens
        self.positions[:, old:new] = np.where(tokens, positions, 0)
        self._settle()
        self.length, self._new = new, T
        self._mask = key_mask(self.real[:, :new])
        for recent in self._recent.values():
            recent.extend(old, T, self.real)
        return self.positions[:, old:new]

    def _settle(self) -> None:
        """The last call is final: let go of what undoing it would need."""
        self._new = 0
        for slots in (*self._k, *self._v):
            slots.forget_undo()

    def _tokens(self, T: int, real: Any) -> Array:
        """Check ``real`` and return it as an array."""
        if real is None:
            return np.ones((self.batch, T), np.bool_)
        real = np.asarray(real)
        if real.dtype != np.bool_:
            raise TypeError(f"real must be boolean, True = a token, but the dtype is {real.dtype}")
        if real.shape != (self.batch, T):
            raise ValueError(f"real must have shape ({self.batch}, {T}), not {real.shape}")
        return real

    def shrink(self, length: int) -> None:
        """Forget the slots from ``length`` on.

        Raises
        ------
        ValueError
            if a rolling layer has dropped tokens that it would need again.
        """
        if not is_whole(length) or length < 0:
            raise ValueError(f"a cache can't shrink to {length!r} tokens")
        if length >= self.length:
            return
        last = length == self.length - self._new  # a call that is not final yet
        if not last and any(recent.dropped for recent in self._recent.values()):
            raise ValueError(
                f"a rolling cache can't go back to {length} tokens: it has dropped some of them"
            )
        for slots in (*self._k, *self._v):
            slots.undo()
        for recent in self._recent.values():
            recent.shrink(length, undo=last)
        self.length, self._new = length, 0

    @contextmanager
    def unchanged_on_error(self) -> Iterator[None]:
        """Whatever fails inside leaves the cache as it was before."""
        self._settle()
        before = self.length, self.context, list(self.cross)
        try:
            yield
        except BaseException:
            self.shrink(before[0])
            self.context, self.cross = before[1:]
            raise
        self._settle()

    def reset(self) -> None:
        """Forget everything; the next call starts a new text."""
        self._settle()
        self.length, self.context = 0, None
        self.cross = [None] * len(self.cross)
        for recent in self._recent.values():
            recent.reset()

    def reorder(self, rows: Any) -> None:
        """Row i becomes what row ``rows[i]`` was, as beam search needs.

        Raises
        ------
        ValueError
            if ``rows`` is not one row number for each row.
        """
        rows = np.asarray(rows)
        if rows.shape != (self.batch,) or rows.dtype.kind not in "iu":
            raise ValueError(f"rows must be {self.batch} row numbers, but are {rows!r}")
        if rows.min() < 0 or rows.max() >= self.batch:
            raise ValueError(f"rows must lie in [0, {self.batch}), but are {rows.tolist()}")
        changed = np.flatnonzero(rows != np.arange(self.batch))
        if not len(changed):
            return
        for slots in (*self._k, *self._v):
            slots.reorder(rows, changed, self.length)
        for recent in self._recent.values():
            recent.reorder(rows)
        self.real, self.positions = self.real[rows], self.positions[rows]
        self._settle()
        if self.context is not None:
            self.context = self.context[rows]
        self.cross = [None if c is None else (c[0][rows], c[1][rows]) for c in self.cross]

    def layer(self, index: int) -> LayerCache:
        """Return one layer's part."""
        if not 0 <= index < self.layers:
            raise IndexError(f"the cache was made for {self.layers} layers: none is number {index}")
        return LayerCache(self, index)


class LayerCache:
    """One layer's view of a `KVCache`, which the attention of that layer fills."""

    def __init__(self, cache: KVCache, index: int) -> None:
        self.cache = cache
        self.index = index
        window = cache._windows[index]
        self.recent = None if window is None else cache._recent[window]

    def append(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Take the (batch, H_kv, T, d_h) keys and values of a call; return all that it may see.

        Without rolling these are all there are, as views; a rolling layer shows what it kept before
        the call and the whole chunk, and then keeps the last ``window`` tokens.
        """
        keys, values = self.cache._k[self.index], self.cache._v[self.index]
        B, H_kv, _, d_h = keys.numbers.shape
        wanted = (B, H_kv, self.cache._new, d_h)
        if k.shape != wanted or v.shape != wanted:
            raise ValueError(
                f"the cache was extended by {wanted[2]} tokens, so it takes keys and values of "
                f"shape {wanted}, but they are {k.shape} and {v.shape}"
            )
        new = self.cache.length
        if self.recent is not None:
            return keys.roll(k, self.recent), values.roll(v, self.recent)
        return keys.write(k, new), values.write(v, new)

    @property
    def mask(self) -> Array | None:
        """(batch, 1, 1, S), True where a visible key is a token; None where all of them are."""
        return self.cache._mask if self.recent is None else self.recent.mask

    @property
    def positions(self) -> Array:
        """(batch, S) positions of the keys that `append` returns."""
        if self.recent is not None:
            return np.take_along_axis(self.cache.positions, self.recent.seen, axis=1)
        return self.cache.positions[:, : self.cache.length]

    @property
    def new_positions(self) -> Array:
        """(batch, T) positions of the tokens of this call."""
        return self.cache.positions[:, self.cache.length - self.cache._new : self.cache.length]

    @property
    def cross(self) -> tuple[Array, Array] | None:
        """Keys and values of the encoder's output, once they have been computed."""
        return self.cache.cross[self.index]

    @cross.setter
    def cross(self, kv: tuple[Array, Array]) -> None:
        self.cache.cross[self.index] = kv


def key_mask(real: Array) -> Array | None:
    """(B, 1, 1, S) from (B, S), a copy of it; None where there is no padding."""
    return None if real.all() else padding_mask(real.copy())
