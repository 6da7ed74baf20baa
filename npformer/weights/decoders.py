"""Decoders: GPT-2, and the line of Llama with Mistral, Qwen2, Qwen3 and Gemma-2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config import TransformerConfig
from ..models import DecoderLM
from .family import ACTIVATIONS, Family
from .rope_settings import read_rope, write_rope
from .safetensors_file import brief
from .settings import Settings


def activation_name(ours: str) -> str:
    """Return Hugging Face's first name of one of our activations (our own where it has none)."""
    return next((theirs for theirs, name in ACTIVATIONS.items() if name == ours), ours)


# -------------------------------------------------------------------------------------- GPT-2


def _read_gpt2(s: Settings) -> dict[str, Any]:
    d = s.whole("n_embd")
    s.only("add_cross_attention", False)
    s.only("is_encoder_decoder", False)
    # Scores divided by the number of the layer, too. That the keys are scaled before the product,
    # in float32, changes rounding only.
    s.only("scale_attn_by_inverse_layer_idx", False)
    s.get("reorder_and_upcast_attn")
    s.get("n_ctx")
    return {
        "V": s.whole("vocab_size"),
        "d": d,
        "L": s.whole("n_layer"),
        "H": s.whole("n_head"),
        "d_ff": s.whole("n_inner", 4 * d, null=4 * d),
        "T_max": s.whole("n_positions"),
        "activation": s.choice("activation_function", ACTIVATIONS, "gelu_new"),
        "eps": s.number("layer_norm_epsilon", 1e-5),
        "scale": None if s.flag("scale_attn_weights", True) else 1.0,
        "tied": s.flag("tie_word_embeddings", True),
        "dropout": s.rate("resid_pdrop", 0.1),
        "attention_dropout": s.rate("attn_pdrop", 0.1),
    }


def _write_gpt2(cfg: TransformerConfig) -> dict[str, Any]:
    return {
        "vocab_size": cfg.V,
        "n_embd": cfg.d,
        "n_layer": cfg.L,
        "n_head": cfg.H,
        "n_inner": cfg.at("d_ff", 0),
        "n_positions": cfg.T_max,
        "activation_function": activation_name(cfg.activation),
        "layer_norm_epsilon": cfg.eps,
        "scale_attn_weights": cfg.scale is None or cfg.scale == (cfg.d_h or 0) ** -0.5,
        "tie_word_embeddings": cfg.tied,
        "resid_pdrop": cfg.dropout,
        "embd_pdrop": cfg.dropout,
        "attn_pdrop": cfg.attention_dropout,
    }


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    model=DecoderLM,
    table={
        "embedding.tokens": "wte",
        "embedding.learned": "wpe",
        "stack.blocks.*.attn_norm": "h.*.ln_1",
        "stack.blocks.*.attn.Wq": "h.*.attn.c_attn",
        "stack.blocks.*.attn.Wk": "h.*.attn.c_attn",
        "stack.blocks.*.attn.Wv": "h.*.attn.c_attn",
        "stack.blocks.*.attn.Wo": "h.*.attn.c_proj",
        "stack.blocks.*.ffn_norm": "h.*.ln_2",
        "stack.blocks.*.ffn.W1": "h.*.mlp.c_fc",
        "stack.blocks.*.ffn.W2": "h.*.mlp.c_proj",
        "stack.final_norm": "ln_f",
        "head": "lm_head",
    },
    read=_read_gpt2,
    write=_write_gpt2,
    prefix="transformer.",
    transposed=False,  # its linear maps are convolutions of width 1, stored (in, out)
    unused=("h.*.attn.bias", "h.*.attn.masked_bias"),  # causal masks
)


# ------------------------------------------------------------------------------ rotary decoders


def _read_common(
    s: Settings,
    activation: str = "hidden_act",
    default: str = "silu",
    *,
    kv: int | None = None,
    head_dim: int | None = None,
) -> dict[str, Any]:
    """Read what all of them share: Pre-LN with RMSNorm, a gated network, no biases.

    ``kv`` and ``head_dim`` are what is meant where a file has no ``num_key_value_heads`` and no
    ``head_dim``: the sizes of a family's first model in some, whatever the other sizes are.
    """
    for name in ("is_encoder_decoder", "add_cross_attention", "use_mrope", "rope_interleaved"):
        s.only(name, False)
    heads, T_max = s.whole("num_attention_heads"), s.whole("max_position_embeddings")
    return {
        "V": s.whole("vocab_size"),
        "d": s.whole("hidden_size"),
        "L": s.whole("num_hidden_layers"),
        "H": heads,
        "H_kv": s.whole("num_key_value_heads", kv or heads, null=heads),
        "d_h": s.whole("head_dim", head_dim),
        "d_ff": s.whole("intermediate_size"),
        "T_max": T_max,
        "norm": "rmsnorm",
        "eps": s.number("rms_norm_eps", 1e-6),
        "activation": s.choice(activation, ACTIVATIONS, default),
        "gated": True,
        "bias": False,
        "positions": "rope",
        "rope_layout": "half",
        "tied": s.flag("tie_word_embeddings", False),
        "attention_dropout": s.rate("attention_dropout", 0.0),
        **read_rope(s, T_max),
    }


def _write_common(cfg: TransformerConfig, activation: str = "hidden_act") -> dict[str, Any]:
    return {
        "vocab_size": cfg.V,
        "hidden_size": cfg.d,
        "num_hidden_layers": cfg.L,
        "num_attention_heads": cfg.H,
        "num_key_value_heads": cfg.H_kv,
        "head_dim": cfg.d_h,
        "intermediate_size": cfg.at("d_ff", 0),
        "max_position_embeddings": cfg.T_max,
        "rms_norm_eps": cfg.eps,
        activation: activation_name(cfg.activation),
        "tie_word_embeddings": cfg.tied,
        "attention_dropout": cfg.attention_dropout,
        **write_rope(cfg),
    }


def _windows(s: Settings, L: int, window: int | None, default: list[str]) -> dict[str, Any]:
    """Return the windows of the layers from ``layer_types``."""
    kinds = s.get("layer_types", default)
    table = {"full_attention": None, "sliding_attention": window}
    if not isinstance(kinds, list) or len(kinds) != L or not all(k in [*table] for k in kinds):
        names = ", ".join(table)
        raise s.wrong(f"layer_types must be {L} names out of {names}, but is {brief(kinds)}")
    if window is None and "sliding_attention" in kinds:
        raise s.wrong("layer_types has sliding_attention, but no sliding_window is in force")
    found = tuple(table[k] for k in kinds)
    return {"window": found[0] if len(set(found)) == 1 else found}


def _layer_types(cfg: TransformerConfig) -> tuple[list[str], int | None]:
    """Return ``layer_types`` and the one window, that of the first layer which has any."""
    windows = [cfg.at("window", layer) for layer in range(cfg.L)]
    kinds = ["full_attention" if w is None else "sliding_attention" for w in windows]
    return kinds, next((w for w in windows if w is not None), None)


def _read_llama(s: Settings) -> dict[str, Any]:
    qkvo = s.flag("attention_bias", False)
    return {
        **_read_common(s),
        "qkv_bias": qkvo,
        "out_bias": qkvo,
        "ffn_bias": s.flag("mlp_bias", False),
    }


def _write_llama(cfg: TransformerConfig) -> dict[str, Any]:
    return {
        **_write_common(cfg),
        "attention_bias": cfg.attention(0).bias,
        "mlp_bias": cfg.bias if cfg.ffn_bias is None else cfg.ffn_bias,
    }


def _read_mistral(s: Settings) -> dict[str, Any]:
    window = s.whole("sliding_window", 4096, null=None)
    common = _read_common(s, kv=8)
    everywhere = "full_attention" if window is None else "sliding_attention"
    kinds = s.get("layer_types", [everywhere])
    if not isinstance(kinds, list) or kinds != [everywhere] * len(kinds):
        raise s.wrong("layer_types that differ from sliding_window are not supported")
    return {**common, "window": window}


def _write_mistral(cfg: TransformerConfig) -> dict[str, Any]:
    return {**_write_common(cfg), "sliding_window": cfg.at("window", 0)}


def _read_qwen(s: Settings, head_dim: int | None = None) -> dict[str, Any]:
    common = _read_common(s, kv=32, head_dim=head_dim)
    window = s.whole("sliding_window", 4096, null=None)
    sliding = s.flag("use_sliding_window", False) and window is not None
    first = s.whole("max_window_layers", 28, least=0)
    default = [
        "sliding_attention" if sliding and layer >= first else "full_attention"
        for layer in range(common["L"])
    ]
    return {**common, **_windows(s, common["L"], window if sliding else None, default)}


def _read_qwen2(s: Settings) -> dict[str, Any]:
    return {**_read_qwen(s), "qkv_bias": True}


def _read_qwen3(s: Settings) -> dict[str, Any]:
    qkvo = s.flag("attention_bias", False)
    return {**_read_qwen(s, 128), "qkv_bias": qkvo, "out_bias": qkvo, "qk_norm": "head"}


def _write_qwen2(cfg: TransformerConfig) -> dict[str, Any]:
    kinds, window = _layer_types(cfg)
    return {
        **_write_common(cfg),
        "layer_types": kinds,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": cfg.L,
    }


def _write_qwen3(cfg: TransformerConfig) -> dict[str, Any]:
    return {**_write_qwen2(cfg), "attention_bias": cfg.attention(0).bias}


def _read_gemma2(s: Settings) -> dict[str, Any]:
    s.only("use_bidirectional_attention", False)
    if s.get("hidden_act") is not None:  # an old name that is not read any more
        s.only("hidden_act", "gelu_pytorch_tanh", "gelu")
    common = _read_common(s, "hidden_activation", "gelu_pytorch_tanh", kv=4, head_dim=256)
    qkvo = s.flag("attention_bias", False)
    alternating = [("full_attention", "sliding_attention")[(i + 1) % 2] for i in range(common["L"])]
    window = s.whole("sliding_window", 4096, null=None)
    caps = {
        "softcap": ("attn_logit_softcapping", 50.0),
        "logit_softcap": ("final_logit_softcapping", 30.0),
    }
    return {
        **common,
        **_windows(s, common["L"], window, alternating),
        "tied": s.flag("tie_word_embeddings", True),
        "qkv_bias": qkvo,
        "out_bias": qkvo,
        "placement": "sandwich",
        "norm_offset": 1.0,  # files hold w and the gain is 1 + w
        "embedding_scale": common["d"] ** 0.5,  # of the embedding, not of the tied output matrix
        "scale": s.number("query_pre_attn_scalar", 256.0, positive=True) ** -0.5,
        **{
            ours: s.number(name, cap, null=None, positive=True)
            for ours, (name, cap) in caps.items()
        },
    }


def _write_gemma2(cfg: TransformerConfig) -> dict[str, Any]:
    kinds, window = _layer_types(cfg)
    scale = (cfg.d_h or 1) ** -0.5 if cfg.scale is None else cfg.scale
    tanh = {"gelu_tanh": "gelu_pytorch_tanh"}.get(cfg.activation)
    return {
        **_write_common(cfg, "hidden_activation"),
        **({"hidden_activation": tanh, "hidden_act": tanh} if tanh else {}),
        "layer_types": kinds,
        "sliding_window": window,
        "attention_bias": cfg.attention(0).bias,
        "query_pre_attn_scalar": round(scale**-2),
        "attn_logit_softcapping": cfg.softcap,
        "final_logit_softcapping": cfg.logit_softcap,
    }


_LLAMA_TABLE = {
    "embedding.tokens": "embed_tokens",
    "stack.blocks.*.attn_norm": "layers.*.input_layernorm",
    "stack.blocks.*.attn.Wq": "layers.*.self_attn.q_proj",
    "stack.blocks.*.attn.Wk": "layers.*.self_attn.k_proj",
    "stack.blocks.*.attn.Wv": "layers.*.self_attn.v_proj",
    "stack.blocks.*.attn.Wo": "layers.*.self_attn.o_proj",
    "stack.blocks.*.attn.q_norm": "layers.*.self_attn.q_norm",
    "stack.blocks.*.attn.k_norm": "layers.*.self_attn.k_norm",
    "stack.blocks.*.ffn_norm": "layers.*.post_attention_layernorm",
    "stack.blocks.*.ffn.W1": "layers.*.mlp.gate_proj",
    "stack.blocks.*.ffn.W3": "layers.*.mlp.up_proj",
    "stack.blocks.*.ffn.W2": "layers.*.mlp.down_proj",
    "stack.final_norm": "norm",
    "head": "lm_head",
}


def _rotary(
    model_type: str,
    architecture: str,
    read: Callable[[Settings], dict[str, Any]],
    write: Callable[[TransformerConfig], dict[str, Any]],
    **other_names: str,
) -> Family:
    names = {f"stack.blocks.*.{ours}": f"layers.*.{theirs}" for ours, theirs in other_names.items()}
    return Family(
        model_type=model_type,
        architecture=architecture,
        model=DecoderLM,
        table=_LLAMA_TABLE | names,
        read=read,
        write=write,
        prefix="model.",
        unused=("layers.*.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"),
    )


LLAMA = _rotary("llama", "LlamaForCausalLM", _read_llama, _write_llama)
MISTRAL = _rotary("mistral", "MistralForCausalLM", _read_mistral, _write_mistral)
QWEN2 = _rotary("qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen2)
QWEN3 = _rotary("qwen3", "Qwen3ForCausalLM", _read_qwen3, _write_qwen3)
GEMMA2 = _rotary(
    "gemma2",
    "Gemma2ForCausalLM",
    _read_gemma2,
    _write_gemma2,
    attn_out_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    ffn_out_norm="post_feedforward_layernorm",
)
