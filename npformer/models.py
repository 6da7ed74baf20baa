"""Whole models (chapter 2.5.4): `Encoder`, `DecoderLM` and `EncoderDecoder`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from .activation import tanh, tanh_backward
from .arrays import Array
from .cache import KVCache
from .config import TransformerConfig
from .init import initialise
from .linear import Linear
from .loss import cross_entropy, cross_entropy_backward
from .masks import padding_mask
from .module import Module
from .sizes import fitting
from .stack import Head, InputEmbedding, Stack, check_text, default_positions


class Encoder(Module):
    """Every token sees every other: embedding, a stack of blocks, hidden states (B, T, d).

    ``forward(ids, mask)`` takes (B, T) ids and (B, T) booleans, True = a real token.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        cfg = fitting(cfg, "encoder", dtype)
        rng = np.random.default_rng(rng)
        self.cfg = cfg
        self.embedding = InputEmbedding(cfg, rng, dtype)
        self.stack = Stack(cfg, rng, dtype, causal=False)
        self.pooler = Linear(cfg.d, cfg.d, rng=rng, dtype=dtype) if cfg.pooler else None
        initialise(self, cfg.init, cfg.L, rng)

    def forward(
        self,
        ids: Any,
        mask: Any = None,
        *,
        positions: Any = None,
        token_types: Any = None,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        x, seen, saved, rng = self._embed(ids, mask, positions, token_types, rng)
        h, stack = self.stack.forward(x, mask=seen, positions=saved.pop("positions"), rng=rng)
        return h, {**saved, "stack": stack}

    def __call__(
        self, ids: Any, mask: Any = None, *, positions: Any = None, token_types: Any = None
    ) -> Array:
        x, seen, saved, _ = self._embed(ids, mask, positions, token_types, None)
        h: Array = self.stack(x, mask=seen, positions=saved["positions"])
        return h

    def backward(self, dh: Array, saved: dict[str, Any]) -> None:
        self.embedding.backward(self.stack.backward(dh, saved["stack"]), saved["embedding"])

    def pool(self, h: Array) -> tuple[Array, dict[str, Any]]:
        r"""BERT's summary of a text, :math:`\tanh(h_0 W + b)` (B, d), of its hidden states."""
        if self.pooler is None:
            raise ValueError("this encoder has no pooler: its configuration says pooler=False")
        saved: dict[str, Any] = {"shape": h.shape}
        y, saved["pooler"] = self.pooler.forward(h[:, 0])
        y, saved["tanh"] = tanh(y)
        return y, saved

    def pool_backward(self, dy: Array, saved: dict[str, Any]) -> Array:
        """Gradient of `pool`: ``dh`` (B, T, d), which only the first token has."""
        assert self.pooler is not None
        dh = np.zeros(saved["shape"], dy.dtype)
        dh[:, 0] = self.pooler.backward(tanh_backward(dy, saved["tanh"]), saved["pooler"])
        return dh

    def _embed(
        self, ids: Any, mask: Any, positions: Any, token_types: Any, rng: Any
    ) -> tuple[Array, Array | None, dict[str, Any], np.random.Generator | None]:
        ids, real = check_text(ids, mask, self.cfg.V)
        rng = None if rng is None else np.random.default_rng(rng)
        if positions is None:
            positions = default_positions(ids.shape[1], real)
        x, kept = self.embedding.forward(ids, positions, token_types, rng)
        seen = None if real is None else padding_mask(real)
        return x, seen, {"embedding": kept, "positions": positions}, rng


class DecoderLM(Module):
    """A language model: every token sees itself and the earlier ones; logits (B, T, V).

    ``forward(ids, mask, positions, cache)``: with a cache the ids continue what it holds.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        cfg = fitting(cfg, "decoder", dtype)
        rng = np.random.default_rng(rng)
        self.cfg = cfg
        self.embedding = InputEmbedding(cfg, rng, dtype)
        self.stack = Stack(cfg, rng, dtype, causal=True)
        self.head = Head(cfg, self.embedding.tokens.E, rng, dtype)
        initialise(self, cfg.init, cfg.L, rng)

    def forward(
        self,
        ids: Any,
        mask: Any = None,
        positions: Any = None,
        cache: KVCache | None = None,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        return self._run(ids, mask, positions, cache, rng, keep=True)

    def __call__(
        self,
        ids: Any,
        mask: Any = None,
        positions: Any = None,
        cache: KVCache | None = None,
        *,
        last: bool = False,
    ) -> Array:
        """Return the logits (B, T, V), or with ``last`` only those after the last token."""
        return self._run(ids, mask, positions, cache, None, keep=False, last=last)[0]

    def backward(self, dlogits: Array, saved: dict[str, Any]) -> None:
        dh = self.head.backward(dlogits, saved["head"])
        del dlogits  # (B, T, V) numbers that the blocks needn't wait for
        self.embedding.backward(self.stack.backward(dh, saved["stack"]), saved["embedding"])

    def loss(
        self,
        ids: Any,
        targets: Any,
        *,
        mask: Any = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[float, dict[str, Any]]:
        """Mean cross-entropy; ``targets[b, t]`` is the id wanted after ``ids[b, :t + 1]``.

        Nothing is shifted here. (Definition 2.5.4's sum to T would need a token T + 1.)
        """
        logits, saved = self.forward(ids, mask, rng=rng)
        loss, saved["cross_entropy"] = cross_entropy(
            logits, targets, label_smoothing=label_smoothing, ignore_index=ignore_index
        )
        return loss, saved

    def loss_backward(self, dloss: float, saved: dict[str, Any]) -> None:
        self.backward(cross_entropy_backward(dloss, saved["cross_entropy"]), saved)

    def _run(
        self,
        ids: Any,
        mask: Any,
        positions: Any,
        cache: KVCache | None,
        rng: Any,
        *,
        keep: bool,
        last: bool = False,
    ) -> tuple[Array, dict[str, Any]]:
        ids, real = check_text(ids, mask, self.cfg.V)
        rng = None if rng is None else np.random.default_rng(rng)
        with nullcontext() if cache is None else cache.unchanged_on_error():
            seen, positions = sight(self.cfg, ids, real, positions, cache)
            x, embedding = self.embedding.forward(ids, positions, None, rng)
            options = {"mask": seen, "positions": positions, "cache": cache}
            if not keep:
                h = self.stack(x, **options)
                return self.head(h[:, -1:] if last else h), {}
            h, stack = self.stack.forward(x, **options, rng=rng)
            logits, head = self.head.forward(h)
        return logits, {"embedding": embedding, "stack": stack, "head": head}


def sight(
    cfg: TransformerConfig, ids: Array, real: Array | None, positions: Any, cache: KVCache | None
) -> tuple[Array | None, Any]:
    """Return the key mask (B, 1, 1, S) and the positions of a call; a cache masks its own keys."""
    B, T = ids.shape
    if cache is None:
        seen = None if real is None else padding_mask(real)
        return seen, default_positions(T, real) if positions is None else positions
    cache.check_fits(cfg, B)
    return None, cache.extend(T, real, positions)


class EncoderDecoder(Module):
    """The original Transformer: the decoder's cross-attention reads the encoder's output.

    ``forward(source_ids, target_ids, source_mask)`` gives the logits (B, T, V) of the target; both
    sides share the vocabulary and, where ``tied``, its one table.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        cfg = fitting(cfg, "encoder-decoder", dtype)
        rng = np.random.default_rng(rng)
        self.cfg = cfg
        self.encoder = Encoder(cfg.encoder_side(), rng=rng, dtype=dtype)
        self.embedding = InputEmbedding(cfg, rng, dtype)
        self.stack = Stack(cfg, rng, dtype, causal=True, cross=True)
        if cfg.tied:
            self.embedding.tokens.E = self.encoder.embedding.tokens.E
        self.head = Head(cfg, self.embedding.tokens.E, rng, dtype)
        initialise(self, cfg.init, cfg.L, rng)

    def forward(
        self,
        source_ids: Any,
        target_ids: Any,
        source_mask: Any = None,
        cache: KVCache | None = None,
        *,
        target_mask: Any = None,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        source_ids, real = check_text(source_ids, source_mask, self.cfg.V, "source_ids")
        target_ids, target_real = check_text(target_ids, target_mask, self.cfg.V, "target_ids")
        if len(source_ids) != len(target_ids):
            raise ValueError(
                f"source_ids has {len(source_ids)} rows, but target_ids has {len(target_ids)}"
            )
        rng = None if rng is None else np.random.default_rng(rng)
        saved: dict[str, Any] = {}
        with nullcontext() if cache is None else cache.unchanged_on_error():
            if cache is not None and cache.context is not None:
                context = cache.context
            else:
                context, saved["encoder"] = self.encoder.forward(source_ids, real, rng=rng)
                if cache is not None:
                    cache.context = context
            seen, positions = sight(self.cfg, target_ids, target_real, None, cache)
            x, saved["embedding"] = self.embedding.forward(target_ids, positions, None, rng)
            h, saved["stack"] = self.stack.forward(
                x,
                context,
                mask=seen,
                context_mask=None if real is None else padding_mask(real),
                positions=positions,
                cache=cache,
                rng=rng,
            )
        logits, saved["head"] = self.head.forward(h)
        return logits, saved

    def backward(self, dlogits: Array, saved: dict[str, Any]) -> None:
        dh = self.head.backward(dlogits, saved["head"])
        del dlogits  # (B, T, V) numbers that the blocks needn't wait for
        dx, dcontext = self.stack.backward(dh, saved["stack"])
        self.embedding.backward(dx, saved["embedding"])
        self.encoder.backward(dcontext, saved["encoder"])

    def loss(
        self,
        source_ids: Any,
        target_ids: Any,
        targets: Any,
        *,
        source_mask: Any = None,
        target_mask: Any = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[float, dict[str, Any]]:
        """Mean cross-entropy; ``targets[b, t]`` is what follows ``target_ids[b, :t + 1]``."""
        logits, saved = self.forward(
            source_ids, target_ids, source_mask, target_mask=target_mask, rng=rng
        )
        loss, saved["cross_entropy"] = cross_entropy(
            logits, targets, label_smoothing=label_smoothing, ignore_index=ignore_index
        )
        return loss, saved

    def loss_backward(self, dloss: float, saved: dict[str, Any]) -> None:
        self.backward(cross_entropy_backward(dloss, saved["cross_entropy"]), saved)
