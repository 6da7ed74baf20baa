"""Configurations drawn from all that a count depends on, and the models of each kind."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import npformer as nf

CLASSES = {"decoder": nf.DecoderLM, "encoder": nf.Encoder, "encoder-decoder": nf.EncoderDecoder}
PLACEMENTS = ("pre", "post", "sandwich", "output")


UNREAD = {
    "decoder": ("L_encoder", "H_encoder", "d_ff_encoder", "pooler"),
    "encoder": ("L_encoder", "H_encoder", "d_ff_encoder", "head_bias", "logit_softcap"),
    "encoder-decoder": (),
}
"""Fields that a kind refuses."""


def read_by(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Those of the fields that a kind of model has a use for."""
    return {name: value for name, value in fields.items() if name not in UNREAD[kind]}


def config(**changes: Any) -> nf.TransformerConfig:
    """Sizes that are all different."""
    sizes: dict[str, Any] = {"V": 13, "d": 14, "L": 3, "H": 6, "H_kv": 2, "d_h": 10, "d_ff": 11}
    return nf.TransformerConfig(**{**sizes, "T_max": 17, **changes})


def some_configs(n: int) -> list[nf.TransformerConfig]:
    """Configurations drawn from everything that a count depends on."""
    rng, found = np.random.default_rng(5), []

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    def drawn(kind: str, **fields: Any) -> nf.TransformerConfig:
        return config(kind=kind, **read_by(kind, fields))

    def maybe(p: float = 0.5) -> bool:
        return bool(rng.random() < p)

    for kind in itertools.islice(itertools.cycle(CLASSES), n):
        norm, L = one_of("layernorm", "rmsnorm"), one_of(1, 2, 3)
        positions = one_of("learned", "sinusoidal", "rope", "none")
        H, H_kv = one_of((3, 3), (6, 2), (4, 1), (6, 3))
        found.append(
            drawn(
                kind=kind,
                norm=norm,
                L=L,
                L_encoder=one_of(None, 2),
                H_encoder=one_of(None, 1),
                d_ff_encoder=one_of(None, 9),
                H=H,
                H_kv=H_kv,
                d_h=one_of(10, 2, 6),
                d_ff=one_of(7, None, tuple(range(3, 3 + L))),
                placement=one_of(*PLACEMENTS, tuple(one_of(*PLACEMENTS) for _ in range(L))),
                activation=one_of("gelu", "gelu_tanh", "relu", "silu", "tanh"),
                gated=maybe(),
                positions=positions,
                rotary_dim=2 if positions == "rope" and maybe(0.3) else None,
                bias=maybe(),
                qkv_bias=one_of(None, True, False),
                out_bias=one_of(None, True),
                ffn_bias=one_of(None, False),
                tied=maybe(),
                window=one_of(None, 3, (2,) * L),
                softcap=one_of(None, 5.0),
                logit_softcap=one_of(None, 3.0),
                qk_norm=one_of(None, "head", "projection"),
                norm_offset=1.0 if norm == "rmsnorm" and maybe(0.4) else 0.0,
                embedding_scale=one_of(1.0, 2.0),
                final_norm=one_of(None, True, False),
                token_types=one_of(0, 2),
                embedding_norm=maybe(0.3),
                pooler=maybe(0.3),
                head_bias=maybe(0.3),
                dropout=one_of(0.0, 0.3),
                attention_dropout=one_of(0.0, 0.2),
                kernel=one_of("dense", "flash", "auto"),
                recompute=maybe(0.25),
            )
        )
    return found


def ids_of(cfg: nf.TransformerConfig, B: int, T: int, source: int) -> list[Any]:
    rng = np.random.default_rng(3)
    lengths = (source, T) if cfg.kind == "encoder-decoder" else (T,)
    return [rng.integers(0, cfg.V, (B, n)) for n in lengths]
