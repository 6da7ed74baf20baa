"""Keys and values of the tokens already seen (chapter 2.5.6, the KV cache). The caller owns it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .arrays import Array


class HasCacheSizes(Protocol):
    """What a cache needs to know of a configuration."""

    @property
    def L(self) -> int: ...
    @property
    def H_kv(self) -> int | None: ...
    @property
    def d_h(self) -> int | None: ...


class KVCache:
    """Keys and values of every layer, in time order, with what is padding and what is a token.

    Rows of a batch share their time slots: a call that feeds T tokens fills T slots of every row,
    and ``real`` says which of them hold tokens. Slots from ``length`` on are never read.

    Parameters
    ----------
    cfg : TransformerConfig
        ``L``, ``H_kv`` and ``d_h`` are read.
    batch, capacity : int
        Rows, and time slots.
    dtype : dtype

    Attributes
    ----------
    k, v : list of (batch, H_kv, capacity, d_h) arrays, one a layer
    real : (batch, capacity) bool array
    positions : (batch, capacity) int array
        Of padding 0.
    length : int
        Slots in use.
    context : array or None
        The encoder's output, for an encoder-decoder model.
    """

    def __init__(
        self, cfg: HasCacheSizes, batch: int, capacity: int, dtype: npt.DTypeLike = np.float32
    ) -> None:
        if batch < 1 or capacity < 1:
            raise ValueError(
                f"a cache needs batch and capacity of 1 or more, not {batch}, {capacity}"
            )
        shape = (batch, cfg.H_kv or 0, capacity, cfg.d_h or 0)
        self.k = [np.zeros(shape, dtype) for _ in range(cfg.L)]
        self.v = [np.zeros(shape, dtype) for _ in range(cfg.L)]
        self.cross: list[tuple[Array, Array] | None] = [None] * cfg.L
        self.context: Array | None = None
        self.real = np.zeros((batch, capacity), np.bool_)
        self.positions = np.zeros((batch, capacity), np.int64)
        self.length = 0

    @property
    def batch(self) -> int:
        return len(self.real)

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
        return sum(a.nbytes for a in (*self.k, *self.v))

    def extend(self, T: int, real: Any = None, positions: Any = None) -> Array:
        """Take T more slots and return the (batch, T) positions of the tokens in them.

        Parameters
        ----------
        T : int
        real : (batch, T) bool array, optional
            True = a token, False = padding.
        positions : (T,) or (batch, T) array of integers, optional
            By default each row counts its real tokens on.

        Raises
        ------
        ValueError
            if the cache has no room for T more.
        """
        old, new = self.length, self.length + T
        if new > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} tokens and holds {old}: {T} more don't fit"
            )
        self.real[:, old:new] = True if real is None else real
        if positions is None:
            counts = self.lengths[:, None] + np.cumsum(self.real[:, old:new], axis=1) - 1
            positions = np.maximum(counts, 0)
        self.positions[:, old:new] = positions
        self.length = new
        return self.positions[:, old:new]

    def shrink(self, length: int) -> None:
        """Forget the slots from ``length`` on."""
        self.length = min(self.length, length)

    def reset(self) -> None:
        """Forget everything; the next call starts a new text."""
        self.length, self.context = 0, None
        self.cross = [None] * len(self.cross)

    def reorder(self, rows: Any) -> None:
        """Row i becomes what row ``rows[i]`` was, as beam search needs."""
        rows = np.asarray(rows)
        for a in (*self.k, *self.v):
            a[:, :, : self.length] = a[rows, :, : self.length]
        self.real, self.positions = self.real[rows], self.positions[rows]
        if self.context is not None:
            self.context = self.context[rows]
        self.cross = [None if c is None else (c[0][rows], c[1][rows]) for c in self.cross]

    def layer(self, index: int) -> LayerCache:
        """Return one layer's part."""
        return LayerCache(self, index)


class LayerCache:
    """One layer's view of a `KVCache`, which the attention of that layer fills."""

    def __init__(self, cache: KVCache, index: int) -> None:
        self.cache = cache
        self.index = index

    def append(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Write (batch, H_kv, T, d_h) keys and values into the last T slots; return all of them."""
        new = self.cache.length
        old = new - k.shape[2]
        keys, values = self.cache.k[self.index], self.cache.v[self.index]
        keys[:, :, old:new] = k
        values[:, :, old:new] = v
        return keys[:, :, :new], values[:, :, :new]

    @property
    def positions(self) -> Array:
        """(batch, length) positions of all tokens, the new ones included."""
        return self.cache.positions[:, : self.cache.length]

    @property
    def cross(self) -> tuple[Array, Array] | None:
        """Keys and values of the encoder's output, once they have been computed."""
        return self.cache.cross[self.index]

    @cross.setter
    def cross(self, kv: tuple[Array, Array]) -> None:
        self.cache.cross[self.index] = kv
