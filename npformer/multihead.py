"""Multi-head attention as a layer (chapter 2.5.1): projections around an attention kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array, require_last
from .attention import attention, attention_backward
from .attention_config import AttentionConfig
from .cache import LayerCache
from .flash import flash_attention, flash_attention_backward
from .linear import Linear, linears
from .masks import check_mask, combine_masks, has_gaps, token_window
from .module import Module
from .norm import RMSNorm
from .position import RopeSaved, rope_backward, rope_table, rotate, text_length

__all__ = ["KERNELS", "AttentionConfig", "MultiHeadAttention", "merge_heads", "split_heads"]

KERNELS: dict[str, tuple[Any, Any]] = {
    "dense": (attention, attention_backward),
    "flash": (flash_attention, flash_attention_backward),
}
"""The attention kernels by name, each with its backward."""


class MultiHeadAttention(Module):
    r"""Project to heads, attend in each, project back.

    .. math::
        \operatorname{MHA}(X) = [\text{head}_1; \dots; \text{head}_H]\, W^O, \qquad
        \text{head}_h = \operatorname{attention}(X W^Q_h, C W^K_h, C W^V_h)

    with C = X (self-attention) or a ``context`` of its own length (cross-attention: queries from
    the side that is written, keys and values from the side that is read).

    ``forward`` takes ``x`` (B, T, d) and the options

    - ``context`` (B, S, d_context); the backward then returns ``(dx, dcontext)``;
    - ``mask``, booleans as in `npformer.functional.attention`;
    - ``positions`` (T,) or (B, T), for rotary attention; 0 ... T - 1 unless given, or what the
      cache says;
    - ``cache``, a `LayerCache` that holds the earlier keys and values and takes the new ones, with
      its own mask of what is padding; there is no backward then. Of a context it keeps the keys and
      values of the first call;
    - ``rng`` for dropout.

    The kernel "auto" is "flash" from 128 queries on that read more than 1024 keys, where a row of
    scores no longer stays in the cache beside its neighbours (a quarter faster at 4096 keys, equal
    at 1024), and "dense" otherwise, as in decoding.

    ``saved["attention"]`` is what the kernel saved: `npformer.functional.attention_weights` of it
    gives the attention maps. (A rolling cache changes it with the next call.)
    """

    def __init__(
        self,
        config: AttentionConfig,
        *,
        kernel: str | None = None,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        rng = np.random.default_rng(rng)
        c, (H, H_kv, d_h) = config, (config.H, config.heads_kv, config.width)
        d_context = c.d if c.d_context is None else c.d_context
        self.config = c
        self.kernel = c.kernel if kernel is None else kernel
        if self.kernel not in (*KERNELS, "auto"):
            raise ValueError(
                f"kernel must be one of {', '.join([*KERNELS, 'auto'])}, not {kernel!r}"
            )
        self.Wq = Linear(c.d, H * d_h, c.biases[0], rng=rng, dtype=dtype)
        self.Wk = Linear(d_context, H_kv * d_h, c.biases[1], rng=rng, dtype=dtype)
        self.Wv = Linear(d_context, H_kv * d_h, c.biases[2], rng=rng, dtype=dtype)
        self.Wo = Linear(H * d_h, c.d, c.out_bias, rng=rng, dtype=dtype)
        if c.qk_norm is not None:
            whole = c.qk_norm == "projection"
            self.q_norm = RMSNorm(H * d_h if whole else d_h, c.eps, dtype, c.norm_offset)
            self.k_norm = RMSNorm(H_kv * d_h if whole else d_h, c.eps, dtype, c.norm_offset)

    def forward(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: Array | None = None,
        positions: Any = None,
        cache: LayerCache | None = None,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        c, saved = self.config, dict[str, Any]()
        self._check(x, context, cache)
        if positions is None:
            positions = np.arange(x.shape[1]) if cache is None else cache.new_positions
        if context is None:
            q, k, v = self._project(x, "qkv", saved)
            q, k, v = self._read_itself(q, k, v, positions, cache, saved)
            mask, window = self._sight(q, k, mask, cache)
        else:
            (q,) = self._project(x, "q", saved)
            q, k, v = self._read_context(q, context, positions, cache, saved)
            window = c.window
        kernel, _ = self._kernel(q, k)
        y, saved["attention"] = kernel(
            q,
            k,
            v,
            mask=mask,
            causal=c.causal,
            window=window,
            scale=c.scale,
            softcap=c.softcap,
            dropout=c.dropout,
            rng=rng,
        )
        y = y.astype(q.dtype, copy=False)  # whatever the cache stores
        y, saved["Wo"] = self.Wo.forward(merge_heads(y))
        saved["cached"], saved["cross"] = cache is not None, context is not None
        return y, saved

    def backward(self, dy: Array, saved: dict[str, Any]) -> Any:
        if saved["cached"]:
            raise ValueError("there is no backward after a forward pass with a cache")
        dy = split_heads(self.Wo.backward(dy, saved["Wo"]), self.config.H)
        _, kernel_backward = self._kernel(saved["attention"].q, saved["attention"].k)
        dheads = dict(zip("qkv", kernel_backward(dy, saved["attention"]), strict=True))
        del dy  # like each of dheads, an array that the next one can be written to
        dx = self._project_backward(dheads.pop("q"), "q", saved)
        dcontext = self._project_backward(dheads.pop("k"), "k", saved)
        dcontext += self._project_backward(dheads.pop("v"), "v", saved)
        if saved["cross"]:
            return dx, dcontext
        dx += dcontext
        return dx

    def _check(self, x: Array, context: Array | None, cache: LayerCache | None) -> None:
        c = self.config
        require_last(x, c.d, "x")
        if x.ndim != 3:
            raise ValueError(f"x must have 3 axes, (B, T, d), but its shape is {x.shape}")
        if x.shape[1] == 0:
            raise ValueError(f"attention needs at least one token, but x has shape {x.shape}")
        if context is None:
            if cache is not None and not c.causal:
                raise ValueError(
                    "a cache needs causal attention: earlier tokens can't be seen anew"
                )
            return
        require_last(context, c.d if c.d_context is None else c.d_context, "context")
        if context.ndim != 3 or len(context) != len(x):
            raise ValueError(
                f"context must be (B, S, d_context) with B = {len(x)}, but is {context.shape}"
            )
        if c.by_length:
            raise ValueError("a rotation that follows the length of a text can't read a context")
        known = None if cache is None else cache.cross
        if known is not None and known[0].shape[2] != context.shape[1]:
            raise ValueError(
                f"the cache holds a context of {known[0].shape[2]} tokens, but this one has "
                f"{context.shape[1]}"
            )

    def _kernel(self, q: Array, k: Array) -> tuple[Any, Any]:
        if self.kernel != "auto":
            return KERNELS[self.kernel]
        return KERNELS["flash" if q.shape[2] >= 128 and k.shape[2] > 1024 else "dense"]

    def _read_itself(
        self,
        q: Array,
        k: Array,
        v: Array,
        positions: Any,
        cache: LayerCache | None,
        saved: dict[str, Any],
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values of self-attention, rotated, those of the cache included."""
        if cache is not None and self.config.by_length:
            # All keys are rotated anew, at the length that the text has reached.
            k, v = cache.append(k, v)
            k = k.astype(q.dtype, copy=False)
            length = text_length(cache.positions)
            q = rotate(q, *self._table(q, positions, length))
            return q, rotate(k, *self._table(k, cache.positions, length)), v
        if self.config.rope:
            saved["rope_q"] = saved["rope_k"] = table = self._table(q, positions)
            q, k = rotate(q, *table), rotate(k, *table)
        return (q, k, v) if cache is None else (q, *cache.append(k, v))

    def _read_context(
        self,
        q: Array,
        context: Array,
        positions: Any,
        cache: LayerCache | None,
        saved: dict[str, Any],
    ) -> tuple[Array, Array, Array]:
        """Queries, and keys and values of the context, which a cache keeps from the first call."""
        rope = self.config.rope
        if rope:
            saved["rope_q"] = self._table(q, positions)
            q = rotate(q, *saved["rope_q"])
        if cache is not None and cache.cross is not None:
            return q, *cache.cross
        k, v = self._project(context, "kv", saved)
        if rope:
            saved["rope_k"] = self._table(k, np.arange(k.shape[2]))
            k = rotate(k, *saved["rope_k"])
        if cache is not None:
            cache.cross = k, v
        return q, k, v

    def _sight(
        self, q: Array, k: Array, mask: Array | None, cache: LayerCache | None
    ) -> tuple[Array | None, int | None]:
        """The mask and the window that the kernel gets, in self-attention.

        The window counts tokens. Counted by places it does so too, and the kernel can skip what it
        hides, unless padding stands between the tokens of a row.
        """
        (B, H, T, _), S = q.shape, k.shape[2]
        keys, window = None if cache is None else cache.mask, self.config.window
        if mask is not None:
            wide = check_mask(mask, B, H, T, S)
            if cache is None and mask.ndim == 4 and mask.shape[1:3] == (1, 1):
                keys, mask = mask, None
            elif keys is not None:
                mask = wide
        if window is not None and keys is not None and has_gaps(keys[:, 0, 0]):
            keys = token_window(keys[:, 0, 0], T, window, causal=self.config.causal)
            window = None
        return combine_masks(mask, keys), window

    def _table(self, x: Array, positions: Any, length: int | None = None) -> RopeSaved:
        c = self.config
        return rope_table(
            x, positions, c.rope_base, c.rope_scaling, c.rope_layout, c.rotary_dim, length
        )

    def _project(self, x: Array, names: str, saved: dict[str, Any]) -> list[Array]:
        """Queries, keys or values by their letters, (B, heads, T, d_h) each, not rotated yet."""
        projected = []
        made = linears(x, *(self._parts(name)[0] for name in names))
        for name, (rows, saved[f"W{name}"]) in zip(names, made, strict=True):
            _, norm, heads = self._parts(name)
            if norm is not None:
                shape = rows.shape
                if self.config.qk_norm == "head":
                    rows = rows.reshape(*shape[:2], heads, self.config.width)
                rows, saved[f"{name}_norm"] = norm.forward(rows)
                rows = rows.reshape(shape)
            projected.append(split_heads(rows, heads))
        return projected

    def _project_backward(self, dx: Array, name: str, saved: dict[str, Any]) -> Array:
        """Undo the rotation, the norm and the projection of queries, keys or values."""
        layer, norm, _ = self._parts(name)
        if self.config.rope and name != "v":
            dx = rope_backward(dx, saved[f"rope_{name}"])
        rows = merge_heads(dx)
        if norm is not None:
            normed = saved[f"{name}_norm"]
            rows = norm.backward(rows.reshape(normed.x.shape), normed).reshape(rows.shape)
        return layer.backward(rows, saved[f"W{name}"])

    def _parts(self, name: str) -> tuple[Linear, RMSNorm | None, int]:
        """The projection, the norm and the number of heads of "q", "k" or "v"."""
        c = self.config
        normed = c.qk_norm is not None and name != "v"
        norm = getattr(self, f"{name}_norm") if normed else None
        return getattr(self, f"W{name}"), norm, c.H if name == "q" else c.heads_kv


def split_heads(x: Array, heads: int) -> Array:
    """(B, T, H d_h) to (B, H, T, d_h), a view."""
    B, T, width = x.shape
    return x.reshape(B, T, heads, width // heads).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(B, H, T, d_h) to (B, T, H d_h)."""
    B, H, T, d_h = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * d_h)
