"""Multi-head attention as a layer (chapter 2.5.1): projections around an attention kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array, require_last
from .attention import attention, attention_backward
from .cache import LayerCache
from .linear import Linear
from .module import Module
from .norm import RMSNorm
from .position import rope, rope_backward

KERNELS: dict[str, tuple[Any, Any]] = {"dense": (attention, attention_backward)}
"""The attention kernels by name, each with its backward."""


@dataclass(frozen=True)
class AttentionConfig:
    """What a `MultiHeadAttention` is, in one value.

    Attributes
    ----------
    d, H : int
        Width and query heads.
    H_kv : int, optional
        Key-value heads: H (multi-head), a divisor of it (grouped) or 1 (multi-query).
    d_h : int, optional
        Width of a head, d / H unless given; H d_h need not be d.
    d_context : int, optional
        Width of the context that cross-attention reads, d unless given.
    causal : bool
    window : int, optional
    scale : float, optional
        Of the scores, 1 / sqrt(d_h) unless given.
    softcap : float, optional
    dropout : float
        Of the weights.
    bias, out_bias : bool
        Of Wq, Wk, Wv, and of Wo.
    rope : bool
        Rotate queries and keys, with ``rope_base``, ``rope_scaling``, ``rope_layout`` and
        ``rotary_dim`` as in `npformer.functional.rope`.
    qk_norm : {None, "head", "projection"}
        RMSNorm of queries and keys before the rotation: each head by itself (Qwen3, Gemma-3), or
        the whole projection (OLMo-2).
    eps, norm_offset : float
        Of that norm.
    kernel : {"dense", "flash", "auto"}
    """

    d: int
    H: int
    H_kv: int | None = None
    d_h: int | None = None
    d_context: int | None = None
    causal: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    bias: bool = True
    out_bias: bool = True
    rope: bool = False
    rope_base: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_layout: str = "interleaved"
    rotary_dim: int | None = None
    qk_norm: str | None = None
    eps: float = 1e-6
    norm_offset: float = 0.0
    kernel: str = "dense"

    def __post_init__(self) -> None:
        if self.d < 1 or self.H < 1:
            raise ValueError(f"d and H must be 1 or more, but are {self.d} and {self.H}")
        if self.d_h is None:
            if self.d % self.H:
                raise ValueError(
                    f"d = {self.d} is not divisible by H = {self.H}: choose another H or give d_h"
                )
            object.__setattr__(self, "d_h", self.d // self.H)
        if self.H_kv is None:
            object.__setattr__(self, "H_kv", self.H)
        if self.heads_kv < 1 or self.H % self.heads_kv:
            raise ValueError(
                f"H = {self.H} query heads can't share H_kv = {self.H_kv} heads equally"
            )
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be 1 or more, but is {self.window}")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap must be positive, but is {self.softcap}")
        if self.qk_norm not in (None, "head", "projection"):
            raise ValueError(f'qk_norm must be None, "head" or "projection", not {self.qk_norm!r}')
        if self.kernel not in (*KERNELS, "auto"):
            raise ValueError(
                f"kernel must be one of {', '.join([*KERNELS, 'auto'])}, but is {self.kernel!r}"
            )
        rotated = self.width if self.rotary_dim is None else self.rotary_dim
        if self.rope and (rotated % 2 or not 0 < rotated <= self.width):
            raise ValueError(
                f"the rotary dimension must be even and at most d_h = {self.d_h}, but is {rotated}"
            )

    @property
    def width(self) -> int:
        """``d_h`` as a number."""
        assert self.d_h is not None
        return self.d_h

    @property
    def heads_kv(self) -> int:
        """``H_kv`` as a number."""
        assert self.H_kv is not None
        return self.H_kv


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
    - ``positions`` (T,) or (B, T), for rotary attention; 0 ... T - 1 unless given;
    - ``cache``, a `LayerCache` that holds the earlier keys and values and takes the new ones;
    - ``rng`` for dropout.
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
        self.Wq = Linear(c.d, H * d_h, c.bias, rng=rng, dtype=dtype)
        self.Wk = Linear(d_context, H_kv * d_h, c.bias, rng=rng, dtype=dtype)
        self.Wv = Linear(d_context, H_kv * d_h, c.bias, rng=rng, dtype=dtype)
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
        self._check(x, context)
        if positions is None:
            positions = np.arange(x.shape[1])
        q = self._queries(x, positions, saved)
        if context is None:
            k, v = self._keys_values(x, positions, saved)
            if cache is not None:
                k, v = cache.append(k, v)
        elif cache is not None and cache.cross is not None:
            k, v = cache.cross
        else:
            k, v = self._keys_values(context, np.arange(context.shape[1]), saved)
            if cache is not None:
                cache.cross = k, v
        saved["cached"] = cache is not None
        kernel, _ = self._kernel(q, k)
        y, saved["attention"] = kernel(
            q,
            k,
            v,
            mask=mask,
            causal=c.causal,
            window=c.window,
            scale=c.scale,
            softcap=c.softcap,
            dropout=c.dropout,
            rng=rng,
        )
        y, saved["Wo"] = self.Wo.forward(merge_heads(y))
        saved["cross"] = context is not None
        return y, saved

    def backward(self, dy: Array, saved: dict[str, Any]) -> Any:
        if saved["cached"]:
            raise ValueError("there is no backward after a forward pass with a cache")
        dy = split_heads(self.Wo.backward(dy, saved["Wo"]), self.config.H)
        _, kernel_backward = self._kernel(saved["attention"].q, saved["attention"].k)
        dq, dk, dv = kernel_backward(dy, saved["attention"])
        dx = self._project_back(dq, "Wq", "q", saved)
        dcontext = self._project_back(dk, "Wk", "k", saved)
        dcontext += self.Wv.backward(merge_heads(dv), saved["Wv"])
        if saved["cross"]:
            return dx, dcontext
        dx += dcontext
        return dx

    def _check(self, x: Array, context: Array | None) -> None:
        c = self.config
        require_last(x, c.d, "x")
        if x.ndim != 3:
            raise ValueError(f"x must have 3 axes, (B, T, d), but its shape is {x.shape}")
        if x.shape[1] == 0:
            raise ValueError(f"attention needs at least one token, but x has shape {x.shape}")
        if context is not None:
            require_last(context, c.d if c.d_context is None else c.d_context, "context")
            if context.ndim != 3 or len(context) != len(x):
                raise ValueError(
                    f"context must be (B, S, d_context) with B = {len(x)}, but is {context.shape}"
                )

    def _kernel(self, q: Array, k: Array) -> tuple[Any, Any]:
        return KERNELS["dense" if self.kernel == "auto" else self.kernel]

    def _queries(self, x: Array, positions: Any, saved: dict[str, Any]) -> Array:
        q, saved["Wq"] = self.Wq.forward(x)
        return self._normed_rotated(q, "q", self.config.H, positions, saved)

    def _keys_values(
        self, context: Array, positions: Any, saved: dict[str, Any]
    ) -> tuple[Array, Array]:
        k, saved["Wk"] = self.Wk.forward(context)
        v, saved["Wv"] = self.Wv.forward(context)
        H_kv = self.config.heads_kv
        return self._normed_rotated(k, "k", H_kv, positions, saved), split_heads(v, H_kv)

    def _normed_rotated(
        self, x: Array, name: str, heads: int, positions: Any, saved: dict[str, Any]
    ) -> Array:
        c = self.config
        if c.qk_norm is not None:
            norm = self.q_norm if name == "q" else self.k_norm
            rows = x if c.qk_norm == "projection" else x.reshape(*x.shape[:2], heads, c.width)
            rows, saved[f"{name}_norm"] = norm.forward(rows)
            x = rows.reshape(x.shape)
        x = split_heads(x, heads)
        if c.rope:
            x, saved[f"rope_{name}"] = rope(
                x, positions, c.rope_base, c.rope_scaling, c.rope_layout, c.rotary_dim
            )
        return x

    def _project_back(self, dx: Array, linear: str, name: str, saved: dict[str, Any]) -> Array:
        """Undo what `_normed_rotated` did to queries or keys, then their projection."""
        if self.config.rope:
            dx = rope_backward(dx, saved[f"rope_{name}"])
        rows = merge_heads(dx)
        if self.config.qk_norm is not None:
            norm = self.q_norm if name == "q" else self.k_norm
            shape = saved[f"{name}_norm"].x.shape
            rows = norm.backward(rows.reshape(shape), saved[f"{name}_norm"]).reshape(rows.shape)
        layer = self.Wq if linear == "Wq" else self.Wk
        return layer.backward(rows, saved[linear])


def split_heads(x: Array, heads: int) -> Array:
    """(B, T, H d_h) to (B, H, T, d_h), a view."""
    B, T, width = x.shape
    return x.reshape(B, T, heads, width // heads).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(B, H, T, d_h) to (B, T, H d_h)."""
    B, H, T, d_h = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * d_h)
