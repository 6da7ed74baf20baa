"""Models by name (`preset`): one row each, with its source, its published size and its exact one.

A new model is one row. Families share what they have in common in one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from .config import TransformerConfig
from .experts import ExpertsConfig
from .sizes import AnyConfig


@dataclass(frozen=True)
class Row:
    """One named model.

    Attributes
    ----------
    build : callable
        The family; it takes ``sizes``.
    sizes : dict
    parameters : int
        The exact number, a tied table once.
    published : str
        What its makers say.
    source : str
        Where the sizes stand.
    """

    build: Callable[..., AnyConfig]
    sizes: dict[str, Any]
    parameters: int
    published: str
    source: str


def preset(name: str) -> Any:
    """Return the configuration of a named model, a new one at each call.

    Parameters
    ----------
    name : str
        One of `presets`.

    Returns
    -------
    TransformerConfig
        with ``kind`` and ``name`` filled in; an ExpertsConfig for the models that have experts.

    Raises
    ------
    ValueError
        if there is no such model; the message names those that look alike.
    """
    row = describe(name)
    return replace(row.build(**row.sizes), name=name)


def presets() -> tuple[str, ...]:
    """Return the names of all models that `preset` knows."""
    return tuple(ROWS)


def describe(name: str) -> Row:
    """Return the row of a named model, with its source and its published size."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a model must be a string, not {type(name).__name__}")
    if name not in ROWS:
        alike = get_close_matches(name.lower().replace("_", "-"), ROWS, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(alike)}?" if alike else f"known are {', '.join(ROWS)}"
        raise ValueError(f"there is no preset {name!r}; {hint}")
    return ROWS[name]


# ------------------------------------------------------------------------------------ families


def _original(**sizes: Any) -> TransformerConfig:
    """Vaswani et al., 2017: Post-LN, ReLU, sinusoids, one table, no biases in the attention."""
    return TransformerConfig(
        V=37000,
        L=6,
        T_max=512,
        placement="post",
        activation="relu",
        positions="sinusoidal",
        qkv_bias=False,
        out_bias=False,
        embedding_scale=sizes["d"] ** 0.5,
        eps=1e-6,
        init="xavier_uniform",
        kind="encoder-decoder",
        **sizes,
    )


def _chapter(**sizes: Any) -> TransformerConfig:
    """Chapter example 2.5.1: biases, LayerNorm, a tied table, and no table of positions."""
    return TransformerConfig(activation="gelu", positions="sinusoidal", **sizes)


def _gpt(**sizes: Any) -> TransformerConfig:
    """GPT-2 and GPT-3: Pre-LN, biases, learned positions, a tied table."""
    return TransformerConfig(V=50257, dropout=0.1, attention_dropout=0.1, **sizes)


def _bert(**sizes: Any) -> TransformerConfig:
    """BERT: Post-LN, the exact GELU, token types, a norm after the embedding, a pooler."""
    return TransformerConfig(
        placement="post",
        activation="gelu",
        token_types=2,
        embedding_norm=True,
        pooler=True,
        eps=1e-12,
        dropout=0.1,
        attention_dropout=0.1,
        kind="encoder",
        **sizes,
    )


def _llama(**sizes: Any) -> TransformerConfig:
    """Llama and those built like it: RMSNorm, SwiGLU, rotary positions, no biases."""
    options: dict[str, Any] = {
        "norm": "rmsnorm",
        "activation": "silu",
        "gated": True,
        "positions": "rope",
        "rope_layout": "half",
        "bias": False,
        "tied": False,
        "eps": 1e-5,
    }
    return TransformerConfig(**{**options, **sizes})


def _llama3(stretch: float | None = None, **sizes: Any) -> TransformerConfig:
    """Llama 3: the larger base; from 3.1 on frequencies are stretched by a factor as well."""
    scaling = None
    if stretch is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": stretch,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    T_max = 8192 if stretch is None else 131072
    return _llama(
        **{"V": 128256, "T_max": T_max, "rope_base": 5e5, "rope_scaling": scaling, **sizes}
    )


def _qwen25(**sizes: Any) -> TransformerConfig:
    """Qwen2.5: as Llama, with biases of queries, keys and values."""
    return _llama(**{"qkv_bias": True, "rope_base": 1e6, "eps": 1e-6, **sizes})


def _qwen3(**sizes: Any) -> TransformerConfig:
    """Qwen3: as Llama, with a norm of each query and key head; H d_h need not be d."""
    options = {"V": 151936, "d_h": 128, "T_max": 40960, "qk_norm": "head", "rope_base": 1e6}
    return _llama(**{**options, "eps": 1e-6, **sizes})


def _gemma2(**sizes: Any) -> TransformerConfig:
    """Gemma-2: norms on both sides, gains 1 + gamma, soft caps, every other layer a window."""
    L = sizes["L"]
    return _llama(
        **{
            "V": 256000,
            "T_max": 8192,
            "activation": "gelu_tanh",
            "placement": "sandwich",
            "norm_offset": 1.0,
            "embedding_scale": sizes["d"] ** 0.5,
            "softcap": 50.0,
            "logit_softcap": 30.0,
            "window": tuple(None if layer % 2 else 4096 for layer in range(L)),
            "tied": True,
            "eps": 1e-6,
            **sizes,
        }
    )


def _deepseek(**sizes: Any) -> ExpertsConfig:
    """DeepSeek-V2 and V3: the same latent attention, experts of different number and width."""
    return ExpertsConfig(H=128, q_rank=1536, kv_rank=512, d_nope=128, d_rope=64, d_v=128, **sizes)


# ---------------------------------------------------------------------------------------- rows

_PAPER = "the paper's figure can't be reproduced: no one vocabulary gives both 65 M and 213 M"
_V17 = "Vaswani et al., 2017, arXiv:1706.03762, Table 3, with the 37,000 tokens of section 5.1"
_COPY = "the released config.json as copied in config.py of litgpt 0.5.13"
_GPT2 = "openai/gpt-2, README and src/model.py"
_LLAMA2 = f"Touvron et al., 2023, arXiv:2307.09288; {_COPY}"
_LLAMA3 = f"Llama team, 2024, arXiv:2407.21783; {_COPY}"
_LLAMA32 = f"Llama 3.2 model card; {_COPY}"
_QWEN25 = f"Qwen2.5 model cards; {_COPY}"
_QWEN3 = f"Qwen team, 2025, arXiv:2505.09388; {_COPY}"
_GEMMA2 = f"Gemma team, 2024, arXiv:2408.00118, Table 2; {_COPY}"

ROWS: dict[str, Row] = {
    "chapter-12-layer": Row(
        _chapter,
        {"V": 32000, "d": 768, "L": 12, "H": 12, "T_max": 512},
        109_632_000,
        "about 110M",
        "chapter 2.5.5, example 2.5.1",
    ),
    "transformer-base": Row(
        _original, {"d": 512, "H": 8, "dropout": 0.1}, 63_045_632, f"65M ({_PAPER})", _V17
    ),
    "transformer-big": Row(
        _original, {"d": 1024, "H": 16, "dropout": 0.3}, 214_171_648, f"213M ({_PAPER})", _V17
    ),
    "bert-base": Row(
        _bert,
        {"V": 30522, "d": 768, "L": 12, "H": 12, "T_max": 512},
        109_482_240,
        "110M",
        "Devlin et al., 2018, arXiv:1810.04805; uncased, with its pooler",
    ),
    "gpt2": Row(
        _gpt,
        {"d": 768, "L": 12, "H": 12},
        124_439_808,
        "124M (the 117M of the paper was an error, says its README)",
        _GPT2,
    ),
    "gpt2-medium": Row(_gpt, {"d": 1024, "L": 24, "H": 16}, 354_823_168, "355M", _GPT2),
    "gpt2-large": Row(_gpt, {"d": 1280, "L": 36, "H": 20}, 774_030_080, "774M", _GPT2),
    "gpt2-xl": Row(_gpt, {"d": 1600, "L": 48, "H": 25}, 1_557_611_200, "1.5B", _GPT2),
    "gpt3-175b": Row(
        _gpt,
        {"d": 12288, "L": 96, "H": 96, "T_max": 2048},
        174_604_259_328,
        "174,600M (tied, which is inferred from this number)",
        "Brown et al., 2020, arXiv:2005.14165, Tables 2.1 and D.1; its sparse layers, whose "
        "bands are not published, are dense here",
    ),
    "llama-2-7b": Row(
        _llama,
        {"V": 32000, "d": 4096, "L": 32, "H": 32, "d_ff": 11008, "T_max": 4096},
        6_738_415_616,
        "7B",
        _LLAMA2,
    ),
    "llama-2-13b": Row(
        _llama,
        {"V": 32000, "d": 5120, "L": 40, "H": 40, "d_ff": 13824, "T_max": 4096},
        13_015_864_320,
        "13B",
        _LLAMA2,
    ),
    "llama-2-70b": Row(
        _llama,
        {"V": 32000, "d": 8192, "L": 80, "H": 64, "H_kv": 8, "d_ff": 28672, "T_max": 4096},
        68_976_648_192,
        "70B",
        _LLAMA2,
    ),
    "llama-3-8b": Row(
        _llama3,
        {"d": 4096, "L": 32, "H": 32, "H_kv": 8, "d_ff": 14336},
        8_030_261_248,
        "8B",
        _LLAMA3,
    ),
    "llama-3-70b": Row(
        _llama3,
        {"d": 8192, "L": 80, "H": 64, "H_kv": 8, "d_ff": 28672},
        70_553_706_496,
        "70B",
        _LLAMA3,
    ),
    "llama-3.1-405b": Row(
        _llama3,
        {"d": 16384, "L": 126, "H": 128, "H_kv": 8, "d_ff": 53248, "stretch": 8.0},
        405_853_388_800,
        "405B",
        _LLAMA3,
    ),
    "llama-3.2-1b": Row(
        _llama3,
        {"d": 2048, "L": 16, "H": 32, "H_kv": 8, "d_ff": 8192, "tied": True, "stretch": 32.0},
        1_235_814_400,
        "1.23B",
        _LLAMA32,
    ),
    "llama-3.2-3b": Row(
        _llama3,
        {"d": 3072, "L": 28, "H": 24, "H_kv": 8, "d_ff": 8192, "tied": True, "stretch": 32.0},
        3_212_749_824,
        "3.21B",
        _LLAMA32,
    ),
    "qwen2.5-0.5b": Row(
        _qwen25,
        {"V": 151936, "d": 896, "L": 24, "H": 14, "H_kv": 2, "d_ff": 4864, "T_max": 32768}
        | {"tied": True},
        494_032_768,
        "0.5B, 0.36B without embeddings",
        _QWEN25,
    ),
    "qwen2.5-7b": Row(
        _qwen25,
        {"V": 152064, "d": 3584, "L": 28, "H": 28, "H_kv": 4, "d_ff": 18944, "T_max": 131072},
        7_615_616_512,
        "7.6B, 6.5B without embeddings",
        _QWEN25,
    ),
    "qwen2.5-72b": Row(
        _qwen25,
        {"V": 152064, "d": 8192, "L": 80, "H": 64, "H_kv": 8, "d_ff": 29568, "T_max": 131072}
        | {"eps": 1e-5},
        72_706_203_648,
        "72.7B, 70.0B without embeddings",
        _QWEN25,
    ),
    "qwen3-0.6b": Row(
        _qwen3,
        {"d": 1024, "L": 28, "H": 16, "H_kv": 8, "d_ff": 3072, "tied": True},
        596_049_920,
        "0.6B",
        _QWEN3,
    ),
    "qwen3-4b": Row(
        _qwen3,
        {"d": 2560, "L": 36, "H": 32, "H_kv": 8, "d_ff": 9728, "tied": True},
        4_022_468_096,
        "4B",
        _QWEN3,
    ),
    "qwen3-8b": Row(
        _qwen3,
        {"d": 4096, "L": 36, "H": 32, "H_kv": 8, "d_ff": 12288},
        8_190_735_360,
        "8B",
        _QWEN3,
    ),
    "gemma-2-2b": Row(
        _gemma2,
        {"d": 2304, "L": 26, "H": 8, "H_kv": 4, "d_h": 256, "d_ff": 9216},
        2_614_341_888,
        "2,024,517,888 without embeddings",
        _GEMMA2,
    ),
    "gemma-2-9b": Row(
        _gemma2,
        {"d": 3584, "L": 42, "H": 16, "H_kv": 8, "d_h": 256, "d_ff": 14336},
        9_241_705_984,
        "8,324,201,984 without embeddings",
        _GEMMA2,
    ),
    "gemma-2-27b": Row(
        _gemma2,
        {"d": 4608, "L": 46, "H": 32, "H_kv": 16, "d_h": 128, "d_ff": 36864, "scale": 1 / 12},
        27_227_128_320,
        "26,047,480,320 without embeddings",
        _GEMMA2,
    ),
    "mistral-7b": Row(
        _llama,
        {"V": 32000, "d": 4096, "L": 32, "H": 32, "H_kv": 8, "d_ff": 14336, "T_max": 32768}
        | {"window": 4096},
        7_241_732_096,
        "7.3B",
        f"Jiang et al., 2023, arXiv:2310.06825, v0.1; {_COPY}",
    ),
    "deepseek-v2": Row(
        _deepseek,
        {"V": 102400, "d": 5120, "L": 60, "d_ff": 12288, "dense_layers": 1, "d_expert": 1536}
        | {"experts": 160, "shared_experts": 2, "top_k": 6},
        235_741_434_880,
        "236B, 21B active",
        "DeepSeek-AI, 2024, arXiv:2405.04434; deepseek-ai/DeepSeek-V3, inference/configs",
    ),
    "deepseek-v3": Row(
        _deepseek,
        {"V": 129280, "d": 7168, "L": 61, "d_ff": 18432, "dense_layers": 3, "d_expert": 2048}
        | {"experts": 256, "shared_experts": 1, "top_k": 8, "gate_bias": True},
        671_026_419_200,
        "671B, 37B active, without the module for multi-token prediction",
        "DeepSeek-AI, 2024, arXiv:2412.19437; deepseek-ai/DeepSeek-V3, inference/configs",
    ),
}
"""All named models, in the order of their families."""
