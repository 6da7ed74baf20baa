"""The parts that every model is made of: embedding, a stack of blocks, and the logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Array, require_ids, require_last, require_shape
from .block import Block, Recompute
from .cache import KVCache
from .config import TransformerConfig
from .dropout import dropout, dropout_backward
from .linear import Embedding
from .module import Module, Parameter
from .norm import make_norm
from .parallel import matmul, matmuls, rowwise, total_row
from .position import LearnedPositions, sinusoidal
from .team import with_single_blas


class InputEmbedding(Module):
    """Tokens, positions and token types, added; then a norm and dropout where asked for."""

    def __init__(
        self, cfg: TransformerConfig, rng: np.random.Generator, dtype: npt.DTypeLike
    ) -> None:
        self.cfg = cfg
        self.tokens = Embedding(cfg.V, cfg.d, rng=rng, dtype=dtype)
        if cfg.positions == "learned":
            self.learned = LearnedPositions(cfg.T_max, cfg.d, rng=rng, dtype=dtype)
        if cfg.token_types:
            self.types = Embedding(cfg.token_types, cfg.d, rng=rng, dtype=dtype)
        if cfg.embedding_norm:
            self.norm = make_norm(cfg.norm, cfg.d, cfg.eps, dtype)

    def forward(
        self,
        ids: Any,
        positions: Any,
        token_types: Any = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        if positions is not None and np.shape(positions) not in (ids.shape[1:], ids.shape):
            raise ValueError(
                f"positions must have shape (T,) or (B, T) with B, T = {ids.shape[0]}, "
                f"{ids.shape[1]}, but their shape is {np.shape(positions)}"
            )
        if token_types is not None:
            require_shape(token_types, ids.shape, "token_types")
        saved: dict[str, Any] = {}
        x, saved["tokens"] = self.tokens.forward(ids)
        if self.cfg.embedding_scale != 1:
            x *= self.cfg.embedding_scale
        if self.cfg.positions == "learned":
            p, saved["learned"] = self.learned.forward(positions)
            x += p
        elif self.cfg.positions == "sinusoidal":
            x += sinusoidal(positions, self.cfg.d, x.real.dtype, self.cfg.sinusoidal_layout)
        if self.cfg.token_types:
            types = np.zeros_like(ids) if token_types is None else token_types
            t, saved["types"] = self.types.forward(types)
            x += t
        elif token_types is not None:
            raise ValueError("this model has no token types")
        if self.cfg.embedding_norm:
            x, saved["norm"] = self.norm.forward(x)
        if self.cfg.dropout and rng is not None:
            x, saved["dropout"] = dropout(x, self.cfg.dropout, rng)
        return x, saved

    def backward(self, dx: Array, saved: dict[str, Any]) -> None:
        if "dropout" in saved:
            dx = dropout_backward(dx, saved["dropout"])
        if "norm" in saved:
            dx = self.norm.backward(dx, saved["norm"])
        if "types" in saved:
            self.types.backward(dx, saved["types"])
        if "learned" in saved:
            # Positions that are the same for every row were added to the whole batch.
            shared = saved["learned"].ids.ndim == 1
            self.learned.backward(dx.sum(axis=0) if shared else dx, saved["learned"])
        if self.cfg.embedding_scale != 1:
            dx = dx * self.cfg.embedding_scale
        self.tokens.backward(dx, saved["tokens"])


class Stack(Module):
    """Blocks one after the other, then the final norm that a Pre-LN stack needs."""

    def __init__(
        self,
        cfg: TransformerConfig,
        rng: np.random.Generator,
        dtype: npt.DTypeLike,
        *,
        causal: bool,
        cross: bool = False,
    ) -> None:
        self.recompute = cfg.recompute
        self.blocks = [
            Block(
                cfg.attention(layer, causal=causal),
                cfg.at("d_ff", layer),
                norm=cfg.norm,
                placement=cfg.at("placement", layer),
                activation=cfg.activation,
                gated=cfg.gated,
                bias=cfg.bias if cfg.ffn_bias is None else cfg.ffn_bias,
                eps=cfg.eps,
                norm_offset=cfg.norm_offset,
                dropout=cfg.dropout,
                cross=cfg.cross_attention() if cross else None,
                rng=rng,
                dtype=dtype,
            )
            for layer in range(cfg.L)
        ]
        options = {"offset": cfg.norm_offset} if cfg.norm_offset else {}
        self.final_norm = (
            make_norm(cfg.norm, cfg.d, cfg.eps, dtype, **options) if cfg.needs_final_norm else None
        )

    @with_single_blas
    def forward(
        self,
        x: Array,
        context: Array | None = None,
        *,
        cache: KVCache | None = None,
        **options: Any,
    ) -> tuple[Array, dict[str, Any]]:
        saved: dict[str, Any] = {"blocks": []}
        for layer, block in enumerate(self._blocks()):
            part = {} if cache is None else {"cache": cache.layer(layer)}
            x, kept = block.forward(x, context, **part, **options)
            saved["blocks"].append(kept)
        if self.final_norm is not None:
            x, saved["final_norm"] = self.final_norm.forward(x)
        return x, saved

    @with_single_blas
    def __call__(
        self,
        x: Array,
        context: Array | None = None,
        *,
        cache: KVCache | None = None,
        **options: Any,
    ) -> Array:
        """Inference: what a block saved is dropped before the next one runs."""
        for layer, block in enumerate(self.blocks):
            part = {} if cache is None else {"cache": cache.layer(layer)}
            x = block(x, context, **part, **options)
        return x if self.final_norm is None else self.final_norm(x)

    @with_single_blas
    def backward(self, dy: Array, saved: dict[str, Any]) -> Any:
        """Return ``dx``, or ``(dx, dcontext)`` where the blocks read a context."""
        dcontext: Array | None = None
        if self.final_norm is not None:
            dy = self.final_norm.backward(dy, saved["final_norm"])
        for block, kept in zip(reversed(self._blocks()), reversed(saved["blocks"]), strict=True):
            dy = block.backward(dy, kept)
            if isinstance(dy, tuple):
                dy, d = dy
                dcontext = d if dcontext is None else dcontext + d
        return dy if dcontext is None else (dy, dcontext)

    def _blocks(self) -> list[Module]:
        return [Recompute(b) if self.recompute else b for b in self.blocks]


class UnembeddingSaved(NamedTuple):
    x: Array
    """(..., d), by reference."""
    E: Array
    bias: bool


def unembedding(x: Array, E: Array, b: Array | None = None) -> tuple[Array, UnembeddingSaved]:
    r"""Score every row of the table: :math:`z = x E^T + b`.

    Parameters
    ----------
    x : (..., d) array
    E : (V, d) array
        The embedding table itself where the two are tied.
    b : (V,) array, optional

    Returns
    -------
    z : (..., V) array
    saved : UnembeddingSaved
    """
    require_last(x, E.shape[1], "x")
    if b is not None:
        require_shape(b, (len(E),), "b")
    z = matmul(x.reshape(-1, x.shape[-1]), E.T, b)
    return z.reshape(*x.shape[:-1], len(E)), UnembeddingSaved(x, E, b is not None)


def unembedding_backward(dz: Array, saved: UnembeddingSaved) -> tuple[Array, ...]:
    r"""Gradient of `unembedding`: ``dx`` (..., d), ``dE`` (V, d) and, with a bias, ``db`` (V,).

    From :math:`z_{tv} = \sum_c x_{tc} E_{vc} + b_v`:

    .. math:: dx = dz\, E, \qquad dE = dz^T x, \qquad db = \textstyle\sum_t dz_t.
    """
    x, E, bias = saved
    require_shape(dz, (*x.shape[:-1], len(E)), "dz")
    rows = dz.reshape(-1, len(E))
    dx, dE = matmuls((rows, E, None), (rows.T, x.reshape(-1, x.shape[-1]), None))
    dx = dx.reshape(x.shape)
    return (dx, dE, total_row(rows)) if bias else (dx, dE)


class SoftcapSaved(NamedTuple):
    y: Array
    cap: float


def softcap(x: Array, cap: float) -> tuple[Array, SoftcapSaved]:
    r"""Keep numbers within a cap, smoothly: :math:`y = c \tanh(x / c)` (arXiv:2408.00118)."""

    def block(x: Array) -> tuple[Array]:
        return (np.tanh(x * (1 / cap)) * cap,)

    (y,) = rowwise(block, x)
    return y, SoftcapSaved(y, cap)


def softcap_backward(dy: Array, saved: SoftcapSaved) -> Array:
    r"""Gradient of `softcap`: :math:`dx = dy\,(1 - \tanh^2(x/c)) = dy\,(1 - (y/c)^2)`."""
    y, cap = saved
    require_shape(dy, y.shape, "dy")

    def block(dy: Array, y: Array) -> tuple[Array]:
        t = y * (1 / cap)
        return (dy * (1 - t * t),)

    return rowwise(block, dy, y)[0]


class Head(Module):
    """Logits from hidden states: `unembedding` with the tied or an own table, then a soft cap."""

    def __init__(
        self,
        cfg: TransformerConfig,
        table: Parameter,
        rng: np.random.Generator,
        dtype: npt.DTypeLike,
    ) -> None:
        self.cap = cfg.logit_softcap
        if cfg.tied:
            self.E = table
        else:
            std = 0.02 if cfg.init == "gpt2" else cfg.d**-0.5
            start = rng.standard_normal((cfg.V, cfg.d), np.float32)
            self.E = Parameter((std * start).astype(dtype))
        self.b = Parameter(np.zeros(cfg.V, dtype)) if cfg.head_bias else None

    def forward(self, x: Array) -> tuple[Array, dict[str, Any]]:
        saved: dict[str, Any] = {}
        b = None if self.b is None else self.b.value
        z, saved["unembedding"] = unembedding(x, self.E.value, b)
        if self.cap is not None:
            z, saved["softcap"] = softcap(z, self.cap)
        return z, saved

    def backward(self, dz: Array, saved: dict[str, Any]) -> Array:
        if self.cap is not None:
            dz = softcap_backward(dz, saved["softcap"])
        dx, dE, *db = unembedding_backward(dz, saved["unembedding"])
        self.E.accumulate(dE)
        if self.b is not None:
            self.b.accumulate(db[0])
        return dx


def check_text(ids: Any, mask: Any, V: int, name: str = "ids") -> tuple[Array, Array | None]:
    """Return (B, T) ids and the (B, T) mask of real tokens, or say what is wrong with them."""
    ids = require_ids(ids, V, name)
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(
            f"{name} must have shape (B, T) with at least one row and one token, not {ids.shape}"
        )
    if mask is None:
        return ids, None
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise TypeError(f"mask must be boolean, True = a real token, but the dtype is {mask.dtype}")
    if mask.shape != ids.shape:
        raise ValueError(f"mask must have the shape {ids.shape} of the {name}, not {mask.shape}")
    return ids, mask


def default_positions(T: int, mask: Array | None) -> Array:
    """0 ... T - 1; with padding each row (B, T) counts its real tokens."""
    if mask is None:
        return np.arange(T)
    return np.maximum(np.cumsum(mask, axis=1) - 1, 0)
