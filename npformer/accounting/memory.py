"""Bytes of weights, of the key-value cache and of training, on one device and on many."""

from __future__ import annotations

from typing import Any

from ..config import TransformerConfig
from ..experts import ExpertsConfig
from ..sizes import AnyConfig, count_parameters, norms_of
from .units import Bytes, has_scales, itemsize, positive


def weight_bytes(cfg: AnyConfig, dtype: Any = "float16") -> Bytes:
    """Bytes of the parameters, what inference needs before any cache (text B section 7)."""
    return Bytes([("weights", count_parameters(cfg) * itemsize(dtype))])


class CacheBytes(Bytes):
    """Bytes of a cache; ``rows`` names its arrays.

    Attributes
    ----------
    per_token : int
        Bytes that one more token of one row takes, in all layers that still grow.
    per_layer : int
        Bytes of the largest layer.
    """

    per_token: int
    per_layer: int


def kv_cache_bytes(
    cfg: AnyConfig,
    B: int,
    T: int,
    dtype: Any = "float16",
    *,
    rolling: bool = False,
    source: int = 0,
) -> CacheBytes:
    r"""Bytes of the keys and values of B rows of T tokens.

    .. math:: 2 \cdot L\, B\, T\, H_{kv}\, d_h \cdot \text{bytes of a number}

    A token of one row takes :math:`2 L H_{kv} d_h` numbers: the chapter's
    :math:`4 n_{kv} d_h` bytes are those of one layer. Latent attention keeps
    :math:`L\,(\text{kv\_rank} + d_{rope})` numbers instead, for all heads together.

    Parameters
    ----------
    cfg : TransformerConfig or ExpertsConfig
    B, T : int
        Rows, and tokens or capacity of each.
    dtype : str or dtype
        A name of `DTYPE_BYTES`, or a NumPy dtype. int8 has a scale of 4 bytes with each vector, as
        in `npformer.KVCache`.
    rolling : bool
        A layer with a window keeps no more than its window, as `npformer.KVCache` does with
        ``rolling=True``.
    source : int
        Tokens on the other side of a cross-attention, whose keys and values are kept too: as the
        model makes them, so in float32 where the cache has int8.

    Returns
    -------
    CacheBytes
        An int, with ``per_token``, ``per_layer`` and ``rows``.

    References
    ----------
    Chapter 2.5.6 and its question 4; Ainslie et al., 2023, arXiv:2305.13245 (groups); DeepSeek-AI,
    2024, arXiv:2405.04434, section 2.1 (latent).

    Examples
    --------
    >>> import npformer as nf
    >>> cache = kv_cache_bytes(nf.preset("llama-2-7b"), B=1, T=8192)
    >>> cache.gib, cache.per_token
    (4.0, 524288)
    """
    positive(B=B, T=T)
    size = itemsize(dtype)
    if isinstance(cfg, ExpertsConfig):
        latent, rotated = (cfg.L * B * T * n * size for n in (cfg.kv_rank, cfg.d_rope))
        result = CacheBytes([("latent vectors", latent), ("rotated keys", rotated)])
        result.per_token = cfg.L * cfg.cached * size
        result.per_layer = B * T * cfg.cached * size
        return result
    if cfg.kind == "encoder":
        raise ValueError(f"{cfg.name or 'an encoder'} generates nothing, so it has no cache")
    a = cfg.attention(0)
    one = a.heads_kv * a.width * size  # keys, or values, of one token in one layer
    scale = 4 * a.heads_kv * has_scales(dtype)
    kept, growing = [], 0
    for layer in range(cfg.L):
        window = cfg.at("window", layer) if rolling else None
        kept.append(T if window is None else min(T, window))
        growing += window is None or window > T
    rows = [("keys", B * sum(kept) * one), ("values", B * sum(kept) * one)]
    if scale:
        rows.append(("scales", 2 * B * sum(kept) * scale))
    if source:
        positive(source=source)
        if cfg.kind != "encoder-decoder":
            raise ValueError(
                f"source tokens are read by an encoder-decoder, but {cfg.name or 'this'} is a "
                f"{cfg.kind}"
            )
        both = 2 * a.heads_kv * a.width * (4 if scale else size)
        rows.append(("keys and values of the source", cfg.L * B * source * both))
    result = CacheBytes(rows)
    result.per_token = 2 * growing * (one + scale)
    result.per_layer = 2 * B * max(kept) * (one + scale)
    return result


ITEMS = (
    ("weights, 16 bits", 2),
    ("gradients, 16 bits", 2),
    ("master weights, 32 bits", 4),
    ("first moment, 32 bits", 4),
    ("second moment, 32 bits", 4),
)
"""Bytes that training with AdamW in mixed precision keeps for each parameter: 16 together."""


class TrainingBytes(Bytes):
    """Bytes of training on the fullest device; ``rows`` are its items.

    Attributes
    ----------
    parameters : tuple of int
        Parameters on a device of each pipeline stage.
    stages : tuple of int
        Bytes on a device of each pipeline stage.
    devices : int
    """

    parameters: tuple[int, ...]
    stages: tuple[int, ...]
    devices: int


def training_bytes(
    cfg: AnyConfig, *, zero: int = 0, data: int = 1, tensor: int = 1, pipeline: int = 1
) -> TrainingBytes:
    r"""Bytes that weights, gradients and AdamW's state take on one device, without activations.

    Mixed precision keeps 16 bytes a parameter: the 16-bit weights and gradients, 2 each, and in 32
    bits the master weights and the two moments, 4 each. So 7e9 parameters ask for 112 GB, more
    than a device of 80 GB has, and the ways out are to share them:

    - ZeRO over N = ``data`` devices that each see other rows. Stage 1 divides the optimizer's 12
      bytes by N, stage 2 the gradients' 2 too, stage 3 the weights' 2 as well:

      .. math:: 16\psi, \qquad 4\psi + 12\psi/N, \qquad 2\psi + 14\psi/N, \qquad 16\psi/N

    - ``tensor`` devices hold a slice of every matrix: attention by heads, the feed-forward network
      by d_ff, the tables by V (rounded up); norms and the biases of Wo and W2 are held by all.
    - ``pipeline`` stages hold L / pipeline layers each, the first ones one more where that is not
      whole; the first stage holds the embedding, the last one the final norm and the output matrix,
      a copy of its own where that is tied.

    Parameters
    ----------
    cfg : TransformerConfig or ExpertsConfig
    zero : {0, 1, 2, 3}
    data, tensor, pipeline : int

    Returns
    -------
    TrainingBytes
        An int, the bytes of the fullest device, with ``rows``, ``stages`` and ``parameters``.

    References
    ----------
    Text B section 7; Rajbhandari et al., 2019, arXiv:1910.02054, section 5 (ZeRO); Shoeybi et al.,
    2019, arXiv:1909.08053, section 3 (tensor splits).

    Examples
    --------
    >>> import npformer as nf
    >>> cfg = nf.preset("llama-2-7b")
    >>> training_bytes(cfg).gb, training_bytes(cfg, zero=3, data=8).gb
    (107.814649856, 13.476831232)
    """
    positive(data=data, tensor=tensor, pipeline=pipeline)
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"zero must be 0, 1, 2 or 3, but is {zero!r}")
    held = stage_parameters(cfg, tensor, pipeline)

    def items(n: int) -> list[tuple[str, int]]:
        rows = []
        for i, (name, size) in enumerate(ITEMS):
            shared = zero >= (3, 2, 1, 1, 1)[i]
            rows.append((name, size * (-(-n // data) if shared else n)))
        return rows

    result = TrainingBytes(items(max(held)))
    result.parameters = tuple(held)
    result.stages = tuple(sum(size for _, size in items(n)) for n in held)
    result.devices = data * tensor * pipeline
    return result


def stage_parameters(cfg: AnyConfig, tensor: int, pipeline: int) -> list[int]:
    """Return how many parameters a device of each pipeline stage holds."""
    if tensor == pipeline == 1:
        return [count_parameters(cfg)]
    if cfg.kind != "decoder":
        raise ValueError(
            f"tensor and pipeline splits are counted for decoders, but this is an {cfg.kind}"
        )
    _divides("heads H", cfg.H, tensor)
    if pipeline > cfg.L:
        raise ValueError(f"{cfg.L} layers can't be shared by {pipeline} pipeline stages")
    experts = isinstance(cfg, ExpertsConfig)
    layers = [
        _experts_layer(cfg, i, tensor) if experts else _layer(cfg, i, tensor)  # type: ignore[arg-type]
        for i in range(cfg.L)
    ]
    tables = -(-cfg.V // tensor) * cfg.d
    first, last, start, stages = tables, 0, 0, []
    if isinstance(cfg, ExpertsConfig):
        last = cfg.d + tables
    else:
        norm = cfg.d * (2 if cfg.norm == "layernorm" else 1)
        first += cfg.d * (cfg.T_max if cfg.positions == "learned" else 0)
        first += cfg.d * cfg.token_types + norm * cfg.embedding_norm
        last = norm * cfg.needs_final_norm + -(-cfg.V // tensor) * cfg.head_bias
        last += 0 if cfg.tied and pipeline == 1 else tables
    for stage in range(pipeline):
        stop = start + cfg.L // pipeline + (stage < cfg.L % pipeline)
        held = sum(layers[start:stop])
        held += first if stage == 0 else 0
        held += last if stage == pipeline - 1 else 0
        stages.append(held)
        start = stop
    return stages


def _divides(name: str, n: int, tensor: int) -> None:
    if n % tensor:
        raise ValueError(f"{name} = {n} can't be shared by {tensor} devices equally")


def _layer(cfg: TransformerConfig, layer: int, tensor: int) -> int:
    """Parameters of one layer on one of ``tensor`` devices."""
    a, d, d_ff = cfg.attention(layer), cfg.d, cfg.at("d_ff", layer)
    _divides("the feed-forward width d_ff", d_ff, tensor)
    if a.heads_kv % tensor and tensor % a.heads_kv:
        raise ValueError(f"H_kv = {a.heads_kv} heads can't be shared by {tensor} devices equally")
    # Fewer key-value heads than devices: each device holds the one that its queries read.
    q, kv = a.H * a.width // tensor, max(1, a.heads_kv // tensor) * a.width
    n = 2 * d * q + 2 * d * kv + d * a.out_bias
    n += sum(width * has for width, has in zip((q, kv, kv), a.biases, strict=True))
    if a.qk_norm is not None:
        n += 2 * a.width if a.qk_norm == "head" else q + kv
    inner = 2 if cfg.gated else 1
    n += (inner + 1) * d * d_ff // tensor
    if cfg.bias if cfg.ffn_bias is None else cfg.ffn_bias:
        n += inner * d_ff // tensor + d
    gains = 2 if cfg.norm == "layernorm" else 1
    return n + 2 * norms_of(cfg.at("placement", layer)) * gains * d


def _experts_layer(cfg: ExpertsConfig, layer: int, tensor: int) -> int:
    """As `_layer`: the heads are shared out, the matrices to the latent vectors held by all."""
    d, heads = cfg.d, cfg.H // tensor
    n = d * (cfg.q_rank + cfg.cached) + cfg.q_rank + cfg.kv_rank + 2 * d
    n += heads * (cfg.q_rank * cfg.d_query + cfg.kv_rank * (cfg.d_nope + cfg.d_v) + cfg.d_v * d)
    if layer < cfg.dense_layers:
        _divides("the feed-forward width d_ff", cfg.d_ff, tensor)
        return n + 3 * d * cfg.d_ff // tensor
    _divides("the width of an expert", cfg.d_expert, tensor)
    n += cfg.experts * (d + cfg.gate_bias)
    return n + (cfg.experts + cfg.shared_experts) * 3 * d * cfg.d_expert // tensor
