"""Bytes that a forward pass keeps for its backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..attention_config import AttentionConfig
from ..block import PLACEMENTS
from ..config import TransformerConfig
from ..experts import ExpertsConfig
from ..rope_scaling import read_scaling, rotary_dimension
from ..sizes import AnyConfig
from .units import Bytes, itemsize, positive

INT = 8  # positions are int64


def activation_bytes(
    cfg: AnyConfig,
    B: int,
    T: int,
    dtype: Any = "float32",
    *,
    source: int | None = None,
    dropout: bool = False,
    loss: bool = False,
) -> Bytes:
    r"""Bytes that ``model.forward`` keeps for the backward, beside parameters and inputs.

    It counts what the function pairs of this package save, each array once. With w bytes a number
    and :math:`N = B T` tokens, a Pre-LN block of LayerNorms keeps

    .. math::
        w N \bigl(\underbrace{4 d}_{\hat x \text{ and the normed rows, twice}}
        + \underbrace{(2 H + 2 H_{kv})\, d_h + H}_{q, k, v, y, \mathrm{lse}}
        + \underbrace{2 d_{ff}}_{\phi', \phi} + 2 \bigr),

    and no array of T by T. RMSNorm keeps the stream itself in place of :math:`\hat x`; a gated
    network keeps :math:`4 d_{ff}`, for derivative, both factors and their product; the rotation of
    n features keeps tables of T n numbers; a norm of q and k keeps them once more; Post-LN keeps
    :math:`\hat x` and its input, the normed rows of the layer before. With ``recompute`` a block
    keeps its input and nothing else.

    Parameters
    ----------
    cfg : TransformerConfig
    B, T : int
        Rows, and tokens of each.
    dtype : str or dtype
        Of the parameters. With float16 statistics and rotary tables are float32.
    source : int, optional
        Tokens on the encoder's side of an encoder-decoder; T unless given.
    dropout : bool
        Count the masks of dropout, a byte a number: as if ``rng`` were given.
    loss : bool
        Count what ``model.loss`` keeps on top, the logits above all.

    Returns
    -------
    Bytes
        An int; ``rows`` are the parts.

    References
    ----------
    The ``saved`` of `npformer.norm`, `npformer.multihead`, `npformer.feedforward` and
    `npformer.stack`; for frameworks that keep the attention weights see Korthikanti et al., 2022,
    arXiv:2205.05198, section 4.
    """
    if isinstance(cfg, ExpertsConfig):
        raise TypeError(
            f"there are no layers for {cfg.name or 'an ExpertsConfig'} here, so nothing is kept"
        )
    positive(B=B, T=T)
    source = T if source is None else source
    positive(source=source)
    count = _Count(cfg, B, T, itemsize(dtype), dropout)
    if cfg.kind == "encoder-decoder":
        other = _Count(cfg.encoder_side(), B, source, itemsize(dtype), dropout)
        rows = [(f"encoder {name}", n) for name, n in other.stack()]
        rows.append(("encoder output", other.w * other.N * cfg.d))
        rows += [(f"decoder {name}", n) for name, n in count.stack(source)]
    else:
        rows = list(count.stack())
    if cfg.kind != "encoder":
        rows += count.head(loss)
    return Bytes(row for row in _summed(rows) if row[1])


def _summed(rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for name, n in rows:
        sums[name] = sums.get(name, 0) + n
    return list(sums.items())


class _Count:
    """One stack on rows of one length: N tokens, w bytes a number, f a statistic."""

    def __init__(self, cfg: TransformerConfig, B: int, T: int, w: int, dropout: bool) -> None:
        self.cfg, self.B, self.T, self.w = cfg, B, T, w
        self.N = B * T
        self.f = max(w, 4)
        self.dropout = dropout and cfg.dropout > 0

    def stack(self, source: int | None = None) -> Iterator[tuple[str, int]]:
        """Embedding, blocks and final norm; ``source`` tokens are read by cross-attention."""
        cfg, N, w = self.cfg, self.N, self.w
        yield from self.embedding()
        for layer in range(cfg.L):
            if cfg.recompute:
                yield "block inputs", w * N * cfg.d
            else:
                yield from self.block(layer, source)
        if cfg.needs_final_norm:
            yield from self.norm()

    def embedding(self) -> Iterator[tuple[str, int]]:
        cfg = self.cfg
        if cfg.positions == "learned" or cfg.recompute:
            yield "embedding", INT * self.T  # the positions, one array for all that read them
        if cfg.token_types:
            yield "embedding", INT * self.N
        if cfg.embedding_norm:
            yield from self.norm(offset=0.0)
        yield from self.mask()

    def norm(self, offset: float | None = None) -> Iterator[tuple[str, int]]:
        """LayerNorm keeps the standardised rows, RMSNorm its input; both one number a row."""
        yield "norms", self.w * self.N * self.cfg.d + self.f * self.N
        if self.cfg.norm_offset if offset is None else offset:
            yield "norms", self.w * self.cfg.d  # 1 + gamma

    def mask(self) -> Iterator[tuple[str, int]]:
        if self.dropout:
            yield "dropout", self.N * self.cfg.d

    def block(self, layer: int, source: int | None) -> Iterator[tuple[str, int]]:
        cfg, N, w = self.cfg, self.N, self.w
        before, on_output, after = PLACEMENTS[cfg.at("placement", layer)]
        names = ["attention", "feed-forward"]
        if source is not None:
            names.insert(1, "cross-attention")
        for name in names:
            # What the sub-layer's matrices read: the normed rows, or the stream itself.
            yield name, w * N * cfg.d
            for _ in range((before or after) + on_output):
                yield from self.norm()
            if name == "attention":
                yield from self.attention(cfg.attention(layer), self.T, name)
            elif name == "cross-attention":
                yield from self.attention(cfg.cross_attention(), source or 0, name)
            else:
                # derivative and activated half; where gated also the other half and the product
                yield name, w * N * (4 if cfg.gated else 2) * cfg.at("d_ff", layer)
            yield from self.mask()

    def attention(self, a: AttentionConfig, S: int, name: str) -> Iterator[tuple[str, int]]:
        N, M, w = self.N, self.B * S, self.w
        q, kv = a.H * a.width, a.heads_kv * a.width
        yield name, w * (2 * N * q + 2 * M * kv)  # q and y, k and v
        yield name, self.f * N * a.H  # lse
        if a.qk_norm is not None:
            whole = a.qk_norm == "projection"
            yield "norms", w * (N * q + M * kv)  # what the norms read
            yield "norms", self.f * (N + M if whole else N * a.H + M * a.heads_kv)
            if a.norm_offset:
                yield "norms", w * (q + kv if whole else 2 * a.width)
        if a.rope:
            scaling = read_scaling(a.rope_scaling, a.rope_base)
            n = rotary_dimension(a.width, a.rotary_dim, scaling)
            yield "rotary tables", self.f * self.T * n  # cosines and sines, for q and k alike

    def head(self, loss: bool) -> list[tuple[str, int]]:
        """The logits' input; the logits themselves for the soft cap and for the loss."""
        cfg, N = self.cfg, self.N
        rows = [("output matrix", self.w * N * cfg.d)]
        if cfg.logit_softcap is not None or loss:
            rows.append(("logits", self.w * N * cfg.V))
        if loss:
            rows.append(("loss", 2 * self.f * N + N))  # m and log_sum, and which rows count
        return rows
