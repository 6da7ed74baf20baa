"""How many parameters a configuration has, in closed form: nothing is allocated to know it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from .arrays import require_real
from .block import PLACEMENTS
from .config import TransformerConfig

if TYPE_CHECKING:
    from .experts import ExpertsConfig

AnyConfig: TypeAlias = "TransformerConfig | ExpertsConfig"


@dataclass(frozen=True)
class Part:
    """One kind of parameters of a model.

    Attributes
    ----------
    group : str
        "embedding", "attention", "feed-forward", "norm" or "head".
    name : str
    formula : str
        For one layer where ``layers`` is not 0.
    count : int
        Numbers in all layers together; 0 for a table that is tied to one counted before.
    layers : int
        How many layers have this part, 0 for parts outside the blocks.
    active : int
        How many of them one token uses: fewer than ``count`` only where it is sent to experts.
    alike : bool
        Whether all these layers have the same number.
    """

    group: str
    name: str
    formula: str
    count: int
    layers: int = 0
    active: int = -1
    alike: bool = True

    def __post_init__(self) -> None:
        if self.active < 0:
            object.__setattr__(self, "active", self.count)

    @property
    def per_layer(self) -> int | None:
        """Numbers in one layer; None outside the blocks and where layers differ."""
        return self.count // self.layers if self.layers and self.alike else None


def count_parameters(cfg: AnyConfig) -> int:
    """Return how many parameters a model has, a tied table once."""
    return sum(part.count for part in parts(cfg))


def parts(cfg: AnyConfig) -> list[Part]:
    r"""Return every kind of parameter of a model and how many there are.

    For a decoder without biases, with n norms of one gain each in a layer and a gated network, the
    sum is

    .. math::
        N = V d\,(1 \text{ tied}, 2 \text{ untied}) + d
            + L\,\bigl(2 d H d_h + 2 d H_{kv} d_h + 3 d\, d_{ff} + n d\bigr),

    chapter example 2.5.1 and text B section 7. With H_kv = H and H d_h = d the attention has
    :math:`4 d^2`, whatever H is (theorem 2.5.1).
    """
    if not isinstance(cfg, TransformerConfig):
        return list(_experts_parts(cfg))
    cfg.check_all_is_read()
    if cfg.kind == "encoder-decoder":
        return [*_two_sides(cfg)]
    head = _pooler(cfg) if cfg.kind == "encoder" else _head(cfg)
    return [*_embedding(cfg), *_blocks(cfg, cfg.L), *_final_norm(cfg), *head]


def _two_sides(cfg: TransformerConfig) -> Iterator[Part]:
    """Encoder and decoder; where tied, one table serves both embeddings and the logits."""
    encoder = cfg.encoder_side()
    yield from _embedding(encoder, "encoder ")
    yield from _blocks(encoder, encoder.L, "encoder ")
    yield from _final_norm(encoder, "encoder ")
    yield from _pooler(encoder)
    yield from _embedding(cfg, "decoder ", tied=cfg.tied)
    yield from _blocks(cfg, cfg.L, "decoder ", cross=True)
    yield from _final_norm(cfg, "decoder ")
    yield from _head(cfg)


def _embedding(cfg: TransformerConfig, side: str = "", *, tied: bool = False) -> Iterator[Part]:
    formula = "tied: counted above" if tied else "V d"
    yield Part("embedding", f"{side}token embedding", formula, 0 if tied else cfg.V * cfg.d)
    if cfg.positions == "learned":
        yield Part("embedding", f"{side}learned positions", "T_max d", cfg.T_max * cfg.d)
    if cfg.token_types:
        yield Part("embedding", f"{side}token types", "types d", cfg.token_types * cfg.d)
    if cfg.embedding_norm:
        yield Part("norm", f"{side}embedding norm", *_norm(cfg))


def _norm(cfg: TransformerConfig, n: int = 1) -> tuple[str, int]:
    """Return formula and size of n norms: a gain, and a shift with LayerNorm."""
    rows = 2 * n if cfg.norm == "layernorm" else n
    return ("d" if rows == 1 else f"{rows} d"), rows * cfg.d


def _blocks(
    cfg: TransformerConfig, L: int, side: str = "", *, cross: bool = False
) -> Iterator[Part]:
    yield from _attention(cfg, L, side)
    if cross:
        yield from _attention(cfg, L, side, "cross-attention")
    widths = [cfg.at("d_ff", layer) for layer in range(L)]
    alike = len(set(widths)) == 1
    n, total = 3 if cfg.gated else 2, sum(widths)
    name = f"{side}feed-forward matrices"
    yield Part("feed-forward", name, f"{n} d d_ff", n * cfg.d * total, L, alike=alike)
    if cfg.bias if cfg.ffn_bias is None else cfg.ffn_bias:
        formula, count = "2 d_ff + d" if cfg.gated else "d_ff + d", (n - 1) * total + L * cfg.d
        name = f"{side}feed-forward biases"
        yield Part("feed-forward", name, formula, count, L, alike=alike)
    norms = [norms_of(cfg.at("placement", layer)) * (3 if cross else 2) for layer in range(L)]
    alike = len(set(norms)) == 1
    formula = _norm(cfg, norms[0])[0] if alike else f"{_norm(cfg)[0]} a norm"
    yield Part("norm", f"{side}norms", formula, _norm(cfg, sum(norms))[1], L, alike=alike)


def norms_of(placement: str) -> int:
    """How many norms a sub-layer has under a placement."""
    before, on_output, after = PLACEMENTS[placement]
    return (before or after) + on_output


def _attention(
    cfg: TransformerConfig, L: int, side: str, name: str = "attention"
) -> Iterator[Part]:
    a = cfg.attention(0)
    q, kv = a.H * a.width, a.heads_kv * a.width
    matrices = f"{side}{name} matrices"
    yield Part("attention", matrices, "2 d (H + H_kv) d_h", L * 2 * cfg.d * (q + kv), L)
    heads = {"H": q, "H_kv": kv}
    of_three = [h for h, has in zip(("H", "H_kv", "H_kv"), a.biases, strict=True) if has]
    count = sum(heads[h] for h in of_three) + cfg.d * a.out_bias
    if count:
        terms = [f"({' + '.join(of_three)}) d_h"] if of_three else []
        formula = " + ".join([*terms, *(["d"] if a.out_bias else [])])
        yield Part("attention", f"{side}{name} biases", formula, L * count, L)
    if a.qk_norm is not None:
        formula, n = ("2 d_h", 2 * a.width) if a.qk_norm == "head" else ("(H + H_kv) d_h", q + kv)
        yield Part("norm", f"{side}{name} norms of q and k", formula, L * n, L)


def _final_norm(cfg: TransformerConfig, side: str = "") -> Iterator[Part]:
    if cfg.needs_final_norm:
        yield Part("norm", f"{side}final norm", *_norm(cfg))


def _pooler(cfg: TransformerConfig) -> Iterator[Part]:
    if cfg.pooler:
        yield Part("head", "pooler", "d d + d", cfg.d * cfg.d + cfg.d)


def _head(cfg: TransformerConfig) -> Iterator[Part]:
    if cfg.tied:
        yield Part("head", "output matrix", "tied: counted above", 0)
    else:
        yield Part("head", "output matrix", "V d", cfg.V * cfg.d)
    if cfg.head_bias:
        yield Part("head", "output bias", "V", cfg.V)


def _experts_parts(cfg: ExpertsConfig) -> Iterator[Part]:
    d, L, H, sparse = cfg.d, cfg.L, cfg.H, cfg.L - cfg.dense_layers
    yield Part("embedding", "token embedding", "V d", cfg.V * d)
    queries = d * cfg.q_rank + cfg.q_rank * H * cfg.d_query
    yield Part("attention", "query matrices", "d q_rank + q_rank H d_query", L * queries, L)
    values = d * cfg.cached + cfg.kv_rank * H * (cfg.d_nope + cfg.d_v)
    formula = "d (kv_rank + d_rope) + kv_rank H (d_nope + d_v)"
    yield Part("attention", "key and value matrices", formula, L * values, L)
    yield Part("attention", "output matrices", "H d_v d", L * H * cfg.d_v * d, L)
    if cfg.dense_layers:
        dense = cfg.dense_layers * 3 * d * cfg.d_ff
        yield Part("feed-forward", "dense networks", "3 d d_ff", dense, cfg.dense_layers)
    if sparse:
        one = 3 * d * cfg.d_expert * sparse
        yield Part(
            "feed-forward",
            "experts",
            "experts 3 d d_expert",
            cfg.experts * one,
            sparse,
            cfg.top_k * one,
        )
        if cfg.shared_experts:
            count = cfg.shared_experts * one
            yield Part("feed-forward", "shared experts", "shared 3 d d_expert", count, sparse)
        gate = cfg.experts * (d + cfg.gate_bias)
        formula = "experts (d + 1)" if cfg.gate_bias else "experts d"
        yield Part("feed-forward", "gates", formula, sparse * gate, sparse)
    latent = cfg.q_rank + cfg.kv_rank
    yield Part("norm", "norms of the latent vectors", "q_rank + kv_rank", L * latent, L)
    yield Part("norm", "norms", "2 d", L * 2 * d, L)
    yield Part("norm", "final norm", "d", d)
    yield Part("head", "output matrix", "V d", cfg.V * d)


# ------------------------------------------------------------------- does it fit this machine?


def fitting(cfg: Any, kind: str, dtype: npt.DTypeLike) -> TransformerConfig:
    """Return ``cfg`` as a configuration of ``kind``, or refuse a model that memory can't hold.

    Raises
    ------
    TypeError
        if it is not one, or parameters can't be kept in ``dtype``.
    ValueError
        with the model's size, before anything is allocated; or if a field is for another kind.
    """
    if not isinstance(cfg, TransformerConfig):
        wanted = "a model is made from a TransformerConfig"
        if hasattr(cfg, "experts"):
            raise TypeError(
                f"{wanted}: there are no layers for the latent attention and the experts of "
                f"{cfg.name or 'an ExpertsConfig'}, only its accounts"
            )
        raise TypeError(f"{wanted}, but was given {type(cfg).__name__}")
    cfg = cfg if cfg.kind == kind else replace(cfg, kind=kind)
    dtype = require_real(dtype)
    needed, free = count_parameters(cfg) * dtype.itemsize, free_memory()
    if free is not None and needed > free:
        raise ValueError(
            f"{cfg.name or 'this model'} needs {needed / 1e9:.1f} GB for its {dtype} parameters, "
            f"but this machine has {free / 1e9:.1f} GB free"
        )
    return cfg


def free_memory() -> int | None:
    """Bytes of memory that can be had, or None where the system does not say.

    Linux counts what it can take back from its file caches (MemAvailable), and a container may
    have a limit of its own; elsewhere it is what `os.sysconf` knows.
    """
    found = [n for n in (_linux_available(), _container_room()) if n is not None]
    if found:
        return min(found)
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            n = os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            continue
        if n > 0:
            return n
    return None


MEMINFO = "/proc/meminfo"
CONTAINER = "/sys/fs/cgroup"


def _linux_available() -> int | None:
    try:
        for line in _read(MEMINFO).splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _container_room() -> int | None:
    try:
        limit = _read(f"{CONTAINER}/memory.max").strip()
        if limit == "max":
            return None
        used = int(_read(f"{CONTAINER}/memory.current"))
        stat = _read(f"{CONTAINER}/memory.stat").split()
        used -= int(stat[stat.index("inactive_file") + 1])  # file caches, given back when needed
        return max(0, int(limit) - used)
    except (OSError, ValueError):
        return None


def _read(path: str) -> str:
    from pathlib import Path  # late: it would take a tenth of the time to import npformer

    return Path(path).read_text(encoding="ascii")
