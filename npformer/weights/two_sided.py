"""BERT's encoder, and the encoder-decoders BART and Marian."""

from __future__ import annotations

from typing import Any

from ..config import TransformerConfig
from ..models import Encoder, EncoderDecoder
from .decoders import activation_name
from .family import ACTIVATIONS, Family
from .settings import Settings

# --------------------------------------------------------------------------------------- BERT


def _read_bert(s: Settings) -> dict[str, Any]:
    for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
        s.only(name, False)
    s.only("position_embedding_type", "absolute")
    for name in ("directionality", "tie_word_embeddings"):  # of a pooler's kind, and of a head
        s.get(name)
    for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type"):
        s.get(f"pooler_{name}")  # of BERT's first release, read by nothing
    return {
        "V": s.whole("vocab_size"),
        "d": s.whole("hidden_size"),
        "L": s.whole("num_hidden_layers"),
        "H": s.whole("num_attention_heads"),
        "d_ff": s.whole("intermediate_size"),
        "T_max": s.whole("max_position_embeddings"),
        "activation": s.choice("hidden_act", ACTIVATIONS, "gelu"),
        "eps": s.number("layer_norm_eps", 1e-12),
        "placement": "post",
        "token_types": s.whole("type_vocab_size", 2),
        "embedding_norm": True,
        "dropout": s.rate("hidden_dropout_prob", 0.1),
        "attention_dropout": s.rate("attention_probs_dropout_prob", 0.1),
    }


def _write_bert(cfg: TransformerConfig) -> dict[str, Any]:
    return {
        "vocab_size": cfg.V,
        "hidden_size": cfg.d,
        "num_hidden_layers": cfg.L,
        "num_attention_heads": cfg.H,
        "intermediate_size": cfg.at("d_ff", 0),
        "max_position_embeddings": cfg.T_max,
        "hidden_act": activation_name(cfg.activation),
        "layer_norm_eps": cfg.eps,
        "type_vocab_size": max(cfg.token_types, 1),
        "hidden_dropout_prob": cfg.dropout,
        "attention_probs_dropout_prob": cfg.attention_dropout,
    }


BERT = Family(
    model_type="bert",
    architecture="BertModel",
    model=Encoder,
    table={
        "embedding.tokens": "embeddings.word_embeddings",
        "embedding.learned": "embeddings.position_embeddings",
        "embedding.types": "embeddings.token_type_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
        "stack.blocks.*.attn.Wq": "encoder.layer.*.attention.self.query",
        "stack.blocks.*.attn.Wk": "encoder.layer.*.attention.self.key",
        "stack.blocks.*.attn.Wv": "encoder.layer.*.attention.self.value",
        "stack.blocks.*.attn.Wo": "encoder.layer.*.attention.output.dense",
        "stack.blocks.*.attn_norm": "encoder.layer.*.attention.output.LayerNorm",
        "stack.blocks.*.ffn.W1": "encoder.layer.*.intermediate.dense",
        "stack.blocks.*.ffn.W2": "encoder.layer.*.output.dense",
        "stack.blocks.*.ffn_norm": "encoder.layer.*.output.LayerNorm",
        "pooler": "pooler.dense",
    },
    read=_read_bert,
    write=_write_bert,
    prefix="bert.",
    saved_prefix="",
    tied=(),
    # The heads of its tasks: what is loaded is the encoder.
    unused=("embeddings.position_ids", "cls.*", "classifier.*", "qa_outputs.*"),
    present={"pooler.dense.weight": "pooler"},
    renamed=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
)


# ---------------------------------------------------------------------------- BART and Marian


def _read_seq2seq(s: Settings) -> dict[str, Any]:
    """Read what both share: Post-LN on both sides, one table for both and for the logits."""
    s.only("is_encoder_decoder", True)
    for name in ("is_decoder", "add_cross_attention", "normalize_before"):
        s.only(name, False)
    for name in ("add_bias_logits", "add_final_layer_norm"):
        s.only(name, False)
    s.only("tie_word_embeddings", True)  # untied, transformers 4 and 5 disagree about its tables
    s.only("tie_encoder_decoder", False)
    s.get("extra_pos_embeddings")  # BART's two rows, which are always there
    s.get("num_hidden_layers")  # again the encoder's
    d = s.whole("d_model")
    return {
        "V": s.whole("vocab_size"),
        "d": d,
        "L": s.whole("decoder_layers"),
        "H": s.whole("decoder_attention_heads"),
        "d_ff": s.whole("decoder_ffn_dim"),
        "L_encoder": s.whole("encoder_layers"),
        "H_encoder": s.whole("encoder_attention_heads"),
        "d_ff_encoder": s.whole("encoder_ffn_dim"),
        "T_max": s.whole("max_position_embeddings"),
        "activation": s.choice("activation_function", ACTIVATIONS, "gelu"),
        "eps": 1e-5,
        "placement": "post",
        "embedding_scale": d**0.5 if s.flag("scale_embedding", False, null=False) else 1.0,
        "dropout": s.rate("dropout", 0.1),
        "attention_dropout": s.rate("attention_dropout", 0.0),
    }


def _write_seq2seq(cfg: TransformerConfig) -> dict[str, Any]:
    encoder = cfg.encoder_side()
    return {
        "is_encoder_decoder": True,
        "vocab_size": cfg.V,
        "d_model": cfg.d,
        "decoder_layers": cfg.L,
        "decoder_attention_heads": cfg.H,
        "decoder_ffn_dim": cfg.at("d_ff", 0),
        "encoder_layers": encoder.L,
        "encoder_attention_heads": encoder.H,
        "encoder_ffn_dim": encoder.at("d_ff", 0),
        "max_position_embeddings": cfg.T_max,
        "activation_function": activation_name(cfg.activation),
        "scale_embedding": cfg.embedding_scale != 1,
        "tie_word_embeddings": True,
        "dropout": cfg.dropout,
        "attention_dropout": cfg.attention_dropout,
        "activation_dropout": 0.0,
    }


def _read_bart(s: Settings) -> dict[str, Any]:
    s.only("normalize_embedding", True)
    s.only("static_position_embeddings", False)
    return {**_read_seq2seq(s), "embedding_norm": True}


def _read_marian(s: Settings) -> dict[str, Any]:
    s.only("normalize_embedding", False)
    s.only("static_position_embeddings", True)
    s.only("share_encoder_decoder_embeddings", True)
    if s.get("decoder_vocab_size") is not None:
        s.only("decoder_vocab_size", s.whole("vocab_size"))
    return {**_read_seq2seq(s), "positions": "sinusoidal", "sinusoidal_layout": "half"}


def _write_marian(cfg: TransformerConfig) -> dict[str, Any]:
    return {
        **_write_seq2seq(cfg),
        "decoder_vocab_size": cfg.V,
        "share_encoder_decoder_embeddings": True,
    }


def _side(ours: str, theirs: str) -> dict[str, str]:
    """Return the names of one side: "encoder." and "encoder", or "" and "decoder"."""
    layer = f"{theirs}.layers.*"
    names = {
        f"{ours}embedding.learned": f"{theirs}.embed_positions:shifted",
        f"{ours}embedding.norm": f"{theirs}.layernorm_embedding",
        f"{ours}stack.blocks.*.attn_norm": f"{layer}.self_attn_layer_norm",
        f"{ours}stack.blocks.*.cross_norm": f"{layer}.encoder_attn_layer_norm",
        f"{ours}stack.blocks.*.ffn.W1": f"{layer}.fc1",
        f"{ours}stack.blocks.*.ffn.W2": f"{layer}.fc2",
        f"{ours}stack.blocks.*.ffn_norm": f"{layer}.final_layer_norm",
    }
    for attention, place in (("attn", "self_attn"), ("cross", "encoder_attn")):
        for W, name in (("Wq", "q_proj"), ("Wk", "k_proj"), ("Wv", "v_proj"), ("Wo", "out_proj")):
            names[f"{ours}stack.blocks.*.{attention}.{W}"] = f"{layer}.{place}.{name}"
    return names


_TABLE = {
    "encoder.embedding.tokens": "shared",
    **_side("encoder.", "encoder"),
    **_side("", "decoder"),
    "head.b": "final_logits_bias:row",
}
_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")

BART = Family(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    model=EncoderDecoder,
    table=_TABLE,
    read=_read_bart,
    write=_write_seq2seq,
    prefix="model.",
    tied=_TIED,
    unused=("encoder.version", "decoder.version"),
    present={"final_logits_bias": "head_bias"},
)

MARIAN = Family(
    model_type="marian",
    architecture="MarianMTModel",
    model=EncoderDecoder,
    table=_TABLE,
    read=_read_marian,
    write=_write_marian,
    prefix="model.",
    tied=_TIED,
    unused=("encoder.embed_positions.weight", "decoder.embed_positions.weight"),
    present={"final_logits_bias": "head_bias"},
)
