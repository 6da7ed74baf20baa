"""What a ``config.json`` means by a setting that it leaves out, or gives as null."""

from __future__ import annotations

import pytest
from hugging_face import BARE, MODELS
from saved import change, read

from npformer.weights.rope_settings import write_rope

NULLS_REFUSED = [
    ("gpt2", "activation_function"),
    ("gpt2", "layer_norm_epsilon"),
    ("gpt2", "scale_attn_weights"),
    ("gpt2", "tie_word_embeddings"),
    ("llama", "hidden_act"),
    ("llama", "rms_norm_eps"),
    ("llama", "attention_bias"),
    ("mistral", "rope_theta"),
    ("qwen2", "max_window_layers"),
    ("qwen3", "head_dim"),
    ("gemma2", "hidden_activation"),
    ("gemma2", "query_pre_attn_scalar"),
    ("bert", "hidden_act"),
    ("bert", "layer_norm_eps"),
    ("bert", "type_vocab_size"),
    ("bert", "position_embedding_type"),
    ("bart", "activation_function"),
    ("bart", "is_encoder_decoder"),
    ("marian", "tie_word_embeddings"),
]


@pytest.mark.parametrize(("name", "key"), NULLS_REFUSED)
def test_a_null_that_says_nothing_is_refused(name, key):
    with pytest.raises(ValueError, match=rf"^config.json: {key} is null: give it a value or leave"):
        read(change(name, **{key: None}))
    assert read(change(name, **{key: None}), ignore=[key]) == read(
        {k: v for k, v in MODELS[name].items() if k != key}
    )


def test_a_null_inside_the_rotary_settings_is_refused():
    with pytest.raises(ValueError, match="rope_theta is null"):
        read(change("llama", rope_parameters={"rope_theta": None}))
    assert read(change("llama", rope_theta=None)).rope_base == 50.0  # it stands inside


@pytest.mark.parametrize(
    ("name", "key", "field", "value"),
    [
        ("gpt2", "n_inner", "d_ff", 60),
        ("gpt2", "attn_pdrop", "attention_dropout", 0.1),
        ("llama", "num_key_value_heads", "H_kv", 6),
        ("mistral", "sliding_window", "window", None),
        ("bart", "scale_embedding", "embedding_scale", 1.0),
        ("marian", "decoder_vocab_size", "V", 23),
    ],
)
def test_a_null_that_transformers_understands(name, key, field, value):
    assert getattr(read(change(name, **{key: None})), field) == value


DEFAULTS = {
    "gpt2": ("d_ff", 60, "activation", "gelu_tanh", "eps", 1e-5, "scale", None, "tied", True),
    "llama": ("H_kv", 6, "d_h", 4, "activation", "silu", "eps", 1e-6, "rope_base", 1e4),
    "mistral": ("H_kv", 8, "d_h", 6, "window", 4096, "eps", 1e-6, "tied", False),
    "qwen2": ("H_kv", 32, "d_h", 6, "window", None, "qkv_bias", True, "out_bias", None),
    "qwen3": ("H_kv", 32, "d_h", 128, "window", None, "qkv_bias", False, "tied", False),
    "gemma2": ("H_kv", 4, "d_h", 256, "window", (4096, None), "scale", 256**-0.5, "tied", True),
    "bert": ("token_types", 2, "activation", "gelu", "eps", 1e-12, "dropout", 0.1),
    "bart": ("embedding_scale", 1.0, "activation", "gelu", "attention_dropout", 0.0),
    "marian": ("embedding_scale", 1.0, "activation", "gelu", "dropout", 0.1),
}
"""From the declarations of transformers 5.24; `tests/parity/test_defaults.py` asks it for all."""


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_left_out_has_the_default_of_its_family(name):
    cfg, (*expected,) = read(BARE[name]), DEFAULTS[name]
    for field, value in zip(expected[::2], expected[1::2], strict=True):
        assert getattr(cfg, field) == value, field


def test_narrow_heads_change_nothing_about_the_scale():
    assert read(BARE["gemma2 with narrow heads"]).scale == 1 / 16


def test_a_dynamic_rule_starts_at_the_models_own_length():
    """transformers looks at ``max_position_embeddings`` only, whatever the rule says."""
    rule = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 5}
    for spelling in ("rope_parameters", "rope_scaling"):
        settings = change("llama", max_position_embeddings=8)
        del settings["rope_parameters"]
        cfg = read(settings | {spelling: rule})
        assert cfg.rope_scaling["original_max_position_embeddings"] == 8
        assert "original_max_position_embeddings" not in write_rope(cfg)["rope_scaling"]
