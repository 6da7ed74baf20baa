"""Tiny models of every family in Hugging Face's spelling, with awkward sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))

ROTARY = {
    "vocab_size": 23,
    "hidden_size": 18,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 13,
    "max_position_embeddings": 19,
    "rms_norm_eps": 1e-3,
}
SCALED = ROTARY | {"hidden_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1}
TWO_SIDED = {
    "vocab_size": 23,
    "d_model": 18,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 7,
    "decoder_layers": 2,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 11,
    "max_position_embeddings": 19,
    "scale_embedding": True,
}


def rotary(**settings: Any) -> dict[str, Any]:
    """A rotary setting in the spelling of transformers 5."""
    return {"rope_parameters": {"rope_theta": 50.0, **settings}}


MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 23,
        "n_embd": 15,
        "n_layer": 2,
        "n_head": 5,
        "n_inner": 11,
        "n_positions": 19,
        "layer_norm_epsilon": 1e-3,
    },
    "gpt2 unscaled and untied": {
        "model_type": "gpt2",
        "vocab_size": 23,
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 19,
        "scale_attn_weights": False,
        "tie_word_embeddings": False,
        "activation_function": "relu",
        "reorder_and_upcast_attn": True,
    },
    "llama": {"model_type": "llama", **ROTARY, **rotary(rope_type="default")},
    "llama with biases": {
        "model_type": "llama",
        **ROTARY,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "llama linear": {"model_type": "llama", **SCALED, **rotary(rope_type="linear", factor=3.5)},
    "llama dynamic": {
        "model_type": "llama",
        **SCALED,
        **rotary(rope_type="dynamic", factor=3.5),
        "max_position_embeddings": 5,
    },
    "llama dynamic with a length of its own": {
        "model_type": "llama",
        **SCALED,
        **rotary(rope_type="dynamic", factor=3.5, original_max_position_embeddings=5),
        "max_position_embeddings": 6,
    },
    "llama yarn": {
        "model_type": "llama",
        **SCALED,
        **rotary(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=5,
            beta_fast=2.0,
            beta_slow=0.1,
        ),
    },
    "llama llama3": {
        "model_type": "llama",
        **SCALED,
        **rotary(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=0.1,
            high_freq_factor=1.5,
            original_max_position_embeddings=7,
        ),
    },
    "llama longrope": {
        "model_type": "llama",
        **SCALED,
        **rotary(
            rope_type="longrope",
            factor=3.8,
            original_max_position_embeddings=5,
            short_factor=[1.0, 1.5, 2.0, 2.5, 3.0],
            long_factor=[1.0, 1.1, 1.3, 3.5, 7.0],
        ),
    },
    "mistral": {"model_type": "mistral", **ROTARY, "sliding_window": 3},
    "qwen2": {
        "model_type": "qwen2",
        **SCALED,
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"model_type": "qwen3", **ROTARY},
    "gemma2": {
        "model_type": "gemma2",
        **ROTARY,
        "query_pre_attn_scalar": 7,
        "sliding_window": 3,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "bert": {
        "model_type": "bert",
        "vocab_size": 23,
        "hidden_size": 15,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 11,
        "max_position_embeddings": 19,
        "type_vocab_size": 3,
    },
    "bart": {"model_type": "bart", **TWO_SIDED, "activation_function": "gelu"},
    "marian": {"model_type": "marian", **TWO_SIDED, "activation_function": "swish"},
}
"""``config.json`` by a name of ours. Texts have 7 tokens: more than windows and some contexts."""

SMALL = {"vocab_size": 23, "num_hidden_layers": 2, "intermediate_size": 13}
PAIR = {name: value for name, value in TWO_SIDED.items() if name != "scale_embedding"}

BARE: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 23, "n_embd": 15, "n_layer": 2, "n_head": 5, "n_positions": 19},
    "llama": {**SMALL, "hidden_size": 24, "num_attention_heads": 6},
    "mistral": {**SMALL, "hidden_size": 96, "num_attention_heads": 16},
    "qwen2": {**SMALL, "hidden_size": 384, "num_attention_heads": 64},
    "qwen3": {**SMALL, "hidden_size": 64, "num_attention_heads": 64},
    "gemma2": {**SMALL, "hidden_size": 24, "num_attention_heads": 8},
    "gemma2 with narrow heads": {
        **SMALL,
        "hidden_size": 24,
        "num_attention_heads": 8,
        "head_dim": 10,
    },
    "bert": {**SMALL, "hidden_size": 15, "num_attention_heads": 5},
    "bart": PAIR,
    "marian": PAIR,
}
"""Only what a family can't do without: all else is left to its defaults, which are not small."""

for name, settings in BARE.items():
    settings["model_type"] = name.split()[0]
    if "num_hidden_layers" in settings:
        settings["max_position_embeddings"] = 19

for settings in (*MODELS.values(), *BARE.values()):
    settings |= IDS


def weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Order-one numbers for every tensor of a file, the same for the same names and shapes."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in sorted(shapes):
        a = rng.standard_normal(shapes[name])
        found[name] = 0.5 * a if a.ndim == 2 else 0.5 + a
    return found


def texts(settings: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Two texts of 7 tokens, the second with 2 of padding at its end."""
    rng = np.random.default_rng(seed)
    V = settings["vocab_size"]
    found = {"ids": rng.integers(V, size=(2, 7)), "mask": np.ones((2, 7), bool)}
    found["mask"][1, 5:] = False
    if settings["model_type"] == "bert":
        found["types"] = rng.integers(settings.get("type_vocab_size", 2), size=(2, 7))
    if settings["model_type"] in ("bart", "marian"):
        found["target"] = rng.integers(V, size=(2, 5))
    return found


def run(model: Any, text: dict[str, np.ndarray]) -> tuple[np.ndarray, Any]:
    """Our ``forward``: logits, or the hidden states of an encoder."""
    if "target" in text:
        return model.forward(text["ids"], text["target"], text["mask"])
    if "types" in text:
        return model.forward(text["ids"], text["mask"], token_types=text["types"])
    return model.forward(text["ids"], text["mask"])


def cotangent(y: np.ndarray, text: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Random numbers of the shape of a result, 0 where the text is padding."""
    dy = np.random.default_rng(seed).standard_normal(y.shape)
    if "target" not in text:
        dy[~text["mask"]] = 0
    return dy


def projections(grads: dict[str, np.ndarray], seed: int) -> dict[str, float]:
    """One number for each gradient: its product with random ones."""
    found = {}
    for name, g in sorted(grads.items()):
        r = np.random.default_rng([seed, *g.shape, len(name)]).standard_normal(g.shape)
        found[name] = float(np.sum(g * r))
    return found
