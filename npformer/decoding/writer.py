"""A text that grows: a model with its cache, or the whole text again at every step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Array
from ..cache import KVCache
from ..models import DecoderLM, EncoderDecoder


class Writer:
    """Feed tokens, get the logits of the next one.

    Parameters
    ----------
    model : DecoderLM or EncoderDecoder
    rows, capacity : int
        Texts side by side, and the tokens that each may be fed, padding included.
    source_ids, source_mask : (rows, S) arrays, optional
        What an encoder-decoder reads.
    cached : bool
        Keep keys and values; otherwise every call runs the model over the whole text.
    """

    def __init__(
        self,
        model: DecoderLM | EncoderDecoder,
        rows: int,
        capacity: int,
        *,
        source_ids: Array | None = None,
        source_mask: Array | None = None,
        cached: bool = True,
    ) -> None:
        self.model = model
        self.source_ids, self.source_mask = source_ids, source_mask
        self.cache = KVCache(model.cfg, rows, capacity, dtype=model.dtype) if cached else None
        self.ids = np.zeros((rows, 0), np.int64)
        self.real = np.zeros((rows, 0), np.bool_)

    def feed(self, ids: Array, real: Array | None = None) -> Array:
        """Add (rows, T) tokens, True in ``real`` where they are no padding; return (rows, V)."""
        real = np.ones(ids.shape, np.bool_) if real is None else real
        if self.cache is None:
            self.ids = ids = np.concatenate([self.ids, ids], axis=1)
            self.real = real = np.concatenate([self.real, real], axis=1)
        mask = None if real.all() else real
        if isinstance(self.model, EncoderDecoder):
            logits, _ = self.model.forward(
                self.source_ids, ids, self.source_mask, self.cache, target_mask=mask
            )
        else:
            logits = self.model(ids, mask, cache=self.cache, last=True)
        last: Array = logits[:, -1]
        return last

    def reorder(self, rows: Any) -> None:
        """Row i goes on as what row ``rows[i]`` was."""
        if self.cache is not None:
            self.cache.reorder(rows)
        self.ids, self.real = self.ids[rows], self.real[rows]
        if self.source_ids is not None:
            self.source_ids = self.source_ids[rows]
        if self.source_mask is not None:
            self.source_mask = self.source_mask[rows]
