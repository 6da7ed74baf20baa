"""The forward shape table (chapter 2.5.5) of any model at any size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..attention_config import AttentionConfig
from ..block import PLACEMENTS
from ..config import TransformerConfig
from ..experts import ExpertsConfig
from ..sizes import AnyConfig
from .units import positive


@dataclass(frozen=True)
class ShapeRow:
    """One operation of the forward pass.

    Attributes
    ----------
    operation : str
    symbols : tuple of str
        The shape of its output in letters.
    shape : tuple of int
        The same in numbers.
    weights, biases : int
        Parameters that it has, matrices, tables and norms apart from the biases of linear maps.
    times : int
        How many layers do it; 1 for what stands outside the blocks.
    layers : str
        Which layers: "", "1-12", "3-61", ...
    """

    operation: str
    symbols: tuple[str, ...]
    shape: tuple[int, ...]
    weights: int
    biases: int
    times: int
    layers: str

    @property
    def elements(self) -> int:
        """Numbers in the output."""
        return math.prod(self.shape)

    @property
    def quadratic(self) -> bool:
        """Whether the output grows with the square of the text: T x T, or T x S."""
        return self.symbols[-1] in ("T", "S") and len(self.symbols) == 4


def shapes(cfg: AnyConfig, B: int, T: int, *, source: int | None = None) -> list[ShapeRow]:
    """List what a forward pass computes, in order, with shapes and parameters.

    Layers that are alike are listed once, with their number in ``times``; so the sum of
    ``times * (weights + biases)`` is the number of parameters. The scores and the weights of the
    attention are the rows that grow with T squared; in the logits B T V can be more than they are.

    Parameters
    ----------
    cfg : TransformerConfig or ExpertsConfig
    B, T : int
        Rows, and tokens of each.
    source : int, optional
        Tokens on the encoder's side of an encoder-decoder (S in the table); T unless given.

    Returns
    -------
    list of ShapeRow

    References
    ----------
    Chapter 2.5.5, whose table is ``shapes(preset("chapter-12-layer"), B=8, T=512)``.
    """
    positive(B=B, T=T)
    source = T if source is None else source
    positive(source=source)
    if isinstance(cfg, ExpertsConfig):
        return list(_experts(_Table(cfg, B, T)))
    table = _Table(cfg, B, T)
    if cfg.kind != "encoder-decoder":
        rows = [*_embedding(table, cfg), *_blocks(table, cfg), *_final_norm(table, cfg)]
        return [*rows, *(_pooler(table, cfg) if cfg.kind == "encoder" else _head(table, cfg))]
    encoder, side = cfg.encoder_side(), _Table(cfg, B, source, "encoder: ", "S")
    rows = [*_embedding(side, encoder), *_blocks(side, encoder), *_final_norm(side, encoder)]
    table = _Table(cfg, B, T, "decoder: ", "T", source)
    rows += [*_pooler(side, encoder), *_embedding(table, cfg, cfg.tied), *_blocks(table, cfg)]
    return [*rows, *_final_norm(table, cfg), *_head(table, cfg)]


class _Table:
    """Makes rows: letters become numbers, and the side and the layers are written down."""

    def __init__(
        self, cfg: AnyConfig, B: int, T: int, side: str = "", length: str = "T", source: int = 0
    ) -> None:
        self.cfg, self.side, self.length, self.source = cfg, side, length, source
        self.sizes = {"B": B, "d": cfg.d, "V": cfg.V, "S": source, length: T}
        self.times, self.layers = 1, ""

    def row(
        self, operation: str, symbols: str, weights: int = 0, biases: int = 0, **sizes: int
    ) -> ShapeRow:
        """Return a row; the first T in ``symbols`` stands for this side's length."""
        letters = tuple(self.length if s == "T" else s for s in symbols.split())
        known = self.sizes | sizes
        shape = tuple(known[s] if s in known else int(s) for s in letters)
        return ShapeRow(
            self.side + operation, letters, shape, weights, biases, self.times, self.layers
        )


def _embedding(t: _Table, cfg: TransformerConfig, tied: bool = False) -> Iterator[ShapeRow]:
    yield t.row("token embedding", "B T d", 0 if tied else cfg.V * cfg.d)
    if cfg.positions == "learned":
        yield t.row("learned positions, added", "B T d", cfg.T_max * cfg.d)
    elif cfg.positions == "sinusoidal":
        yield t.row("sinusoidal positions, added", "B T d")
    if cfg.token_types:
        yield t.row("token types, added", "B T d", cfg.token_types * cfg.d)
    if cfg.embedding_norm:
        yield t.row("embedding norm", "B T d", _norm(cfg))


def _norm(cfg: TransformerConfig) -> int:
    return cfg.d * (2 if cfg.norm == "layernorm" else 1)


def _blocks(t: _Table, cfg: TransformerConfig) -> Iterator[ShapeRow]:
    kinds: dict[tuple[str, int], list[int]] = {}
    for layer in range(cfg.L):
        key = cfg.at("placement", layer), cfg.at("d_ff", layer)
        kinds.setdefault(key, []).append(layer)
    for (placement, d_ff), layers in kinds.items():
        t.times, t.layers = len(layers), _ranges(layers)
        names = ["attention", "feed-forward"]
        if t.source:
            names.insert(1, "cross-attention")
        for name in names:
            before, on_output, after = PLACEMENTS[placement]
            if before:
                yield t.row(f"norm before {name}", "B T d", _norm(cfg))
            if name == "attention":
                yield from _attention(t, cfg, cfg.attention(layers[0]), "T")
            elif name == "cross-attention":
                t.side, side = "cross-attention: ", t.side
                yield from _attention(t, cfg, cfg.cross_attention(), "S")
                t.side = side
            else:
                yield from _feedforward(t, cfg, d_ff)
            if on_output:
                yield t.row(f"norm of the {name}'s output", "B T d", _norm(cfg))
            yield t.row("residual sum", "B T d")
            if after:
                yield t.row("norm of the sum", "B T d", _norm(cfg))
    t.times, t.layers = 1, ""


def _ranges(layers: list[int]) -> str:
    """Write layers, counted from 1: "1-4, 7"."""
    runs: list[list[int]] = []
    for i in layers:
        if runs and runs[-1][1] == i:
            runs[-1][1] = i + 1
        else:
            runs.append([i + 1, i + 1])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in runs)


def _attention(
    t: _Table, cfg: TransformerConfig, a: AttentionConfig, keys: str
) -> Iterator[ShapeRow]:
    q, kv = a.H * a.width, a.heads_kv * a.width
    H = {"H": a.H, "H_kv": a.heads_kv, "d_h": a.width}
    keys = t.length if keys == "T" else keys
    q_norm = k_norm = 0
    if a.qk_norm is not None:
        q_norm, k_norm = (a.width, a.width) if a.qk_norm == "head" else (q, kv)
    yield t.row("queries x Wq", "B H T d_h", cfg.d * q, q * a.biases[0], **H)
    yield t.row("keys x Wk", f"B H_kv {keys} d_h", cfg.d * kv, kv * a.biases[1], **H)
    yield t.row("values x Wv", f"B H_kv {keys} d_h", cfg.d * kv, kv * a.biases[2], **H)
    if a.qk_norm is not None:
        yield t.row("norm of the queries", "B H T d_h", q_norm, **H)
        yield t.row("norm of the keys", f"B H_kv {keys} d_h", k_norm, **H)
    if a.rope:
        yield t.row("rotated queries", "B H T d_h", **H)
        yield t.row("rotated keys", f"B H_kv {keys} d_h", **H)
    yield t.row("scores q k^T", f"B H T {keys}", **H)
    yield t.row("softmax over the keys", f"B H T {keys}", **H)
    yield t.row("weighted values P v", "B H T d_h", **H)
    yield t.row("joined heads, Wo", "B T d", q * cfg.d, cfg.d * a.out_bias)


def _feedforward(t: _Table, cfg: TransformerConfig, d_ff: int) -> Iterator[ShapeRow]:
    n, bias = cfg.d * d_ff, cfg.bias if cfg.ffn_bias is None else cfg.ffn_bias
    yield t.row("feed-forward W1", "B T d_ff", n, d_ff * bias, d_ff=d_ff)
    yield t.row(f"activation {cfg.activation}", "B T d_ff", d_ff=d_ff)
    if cfg.gated:
        yield t.row("feed-forward W3", "B T d_ff", n, d_ff * bias, d_ff=d_ff)
        yield t.row("product of both", "B T d_ff", d_ff=d_ff)
    yield t.row("feed-forward W2", "B T d", n, cfg.d * bias)


def _final_norm(t: _Table, cfg: TransformerConfig) -> Iterator[ShapeRow]:
    if cfg.needs_final_norm:
        yield t.row("final norm", "B T d", _norm(cfg))


def _pooler(t: _Table, cfg: TransformerConfig) -> Iterator[ShapeRow]:
    if cfg.pooler:
        yield t.row("pooler of the first token", "B d", cfg.d * cfg.d, cfg.d)


def _head(t: _Table, cfg: TransformerConfig) -> Iterator[ShapeRow]:
    own = 0 if cfg.tied else cfg.V * cfg.d
    name = "logits, by the tied table" if cfg.tied else "logits"
    yield t.row(name, "B T V", own, cfg.V * cfg.head_bias)


def _experts(t: _Table) -> Iterator[ShapeRow]:
    cfg = t.cfg
    assert isinstance(cfg, ExpertsConfig)
    d, H, heads = cfg.d, cfg.H, {"H": cfg.H, "d_v": cfg.d_v, "d_query": cfg.d_query}
    yield t.row("token embedding", "B T d", cfg.V * d)
    dense = list(range(cfg.dense_layers))
    for layers in (dense, list(range(cfg.dense_layers, cfg.L))):
        if not layers:
            continue
        t.times, t.layers = len(layers), _ranges(layers)
        yield t.row("norm before attention", "B T d", d)
        latent = d * cfg.q_rank + cfg.q_rank
        yield t.row("latent vector of the queries, normed", "B T q_rank", latent, q_rank=cfg.q_rank)
        yield t.row("queries", "B H T d_query", cfg.q_rank * H * cfg.d_query, **heads)
        latent = d * cfg.kv_rank + cfg.kv_rank
        yield t.row(
            "latent vector in the cache, normed", "B T kv_rank", latent, kv_rank=cfg.kv_rank
        )
        yield t.row("rotated key in the cache", "B T d_rope", d * cfg.d_rope, d_rope=cfg.d_rope)
        yield t.row("keys", "B H T d_query", cfg.kv_rank * H * cfg.d_nope, **heads)
        yield t.row("values", "B H T d_v", cfg.kv_rank * H * cfg.d_v, **heads)
        yield t.row("scores q k^T", "B H T T", **heads)
        yield t.row("softmax over the keys", "B H T T", **heads)
        yield t.row("weighted values P v", "B H T d_v", **heads)
        yield t.row("joined heads, Wo", "B T d", H * cfg.d_v * d)
        yield t.row("residual sum", "B T d")
        yield t.row("norm before feed-forward", "B T d", d)
        if layers is dense:
            n = 2 * d * cfg.d_ff
            yield t.row("feed-forward W1, W3 and product", "B T d_ff", n, d_ff=cfg.d_ff)
            yield t.row("feed-forward W2", "B T d", d * cfg.d_ff)
        else:
            n, one = cfg.experts + cfg.shared_experts, d * cfg.d_expert
            sizes = {"chosen": cfg.top_k + cfg.shared_experts, "d_expert": cfg.d_expert}
            gate = cfg.experts * (d + cfg.gate_bias)
            yield t.row("gates", "B T experts", gate, experts=cfg.experts)
            yield t.row("experts W1, W3 and product", "B T chosen d_expert", n * 2 * one, **sizes)
            yield t.row("experts W2, summed", "B T d", n * one)
        yield t.row("residual sum", "B T d")
    t.times, t.layers = 1, ""
    yield t.row("final norm", "B T d", d)
    yield t.row("logits", "B T V", cfg.V * d)
