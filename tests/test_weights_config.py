"""What a ``config.json`` says, read, written and refused."""

from __future__ import annotations

import json
import math

import pytest
from hugging_face import MODELS, ROTARY
from saved import change, read

import npformer as nf
from npformer.weights.family import meaning
from npformer.weights.load import FAMILIES
from npformer.weights.save import changed_by, choose
from npformer.weights.settings import Settings

# ------------------------------------------------------------------------------- both directions


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_means_what_was_read(name):
    family = FAMILIES[MODELS[name]["model_type"]]
    cfg = read(MODELS[name])
    again = read({"model_type": family.model_type, **family.write(cfg)})
    assert meaning(again) == meaning(cfg)
    assert changed_by(family, cfg) == []
    assert choose(cfg, None).model_type == family.model_type


def test_every_dense_preset_has_its_own_family():
    started = {"gpt": "gpt2", "lla": "llama", "qwe": "qwen", "gem": "gemma2", "mis": "mistral"}
    seen = set()
    for name in nf.presets():
        cfg = nf.preset(name)
        if name[:3] in started:
            family = choose(cfg, None)
            assert family.model_type.startswith(started[name[:3]]), name
            seen.add(family.model_type)
    assert choose(nf.preset("bert-base"), None).model_type == "bert"
    assert seen == {"gpt2", "llama", "qwen2", "qwen3", "gemma2", "mistral"}


RULES = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 7, "mscale": 0.7},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 7,
    },
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["rope_type"])
def test_both_spellings_of_rotary_settings(rule):
    five = read(change("llama", rope_parameters={**rule, "rope_theta": 77.0}))
    four = change("llama", rope_scaling=rule, rope_theta=77.0)
    del four["rope_parameters"]
    old = {("type" if key == "rope_type" else key): value for key, value in rule.items()}
    assert five.rope_base == 77.0
    assert five.rope_scaling["rope_type"] == rule["rope_type"]
    assert meaning(read(four)) == meaning(five)
    assert meaning(read(four | {"rope_scaling": old})) == meaning(five)
    assert meaning(read(four | {"rope_scaling": {**rule, "rope_theta": 77.0}})) == meaning(five)
    assert meaning(read(four | {"rope_theta": 78.0})) != meaning(five)


def test_plain_rotary_settings():
    for rope in ({}, {"rope_scaling": None}, {"rope_parameters": {}}, {"rope_parameters": None}):
        settings = {k: v for k, v in MODELS["llama"].items() if k != "rope_parameters"}
        cfg = read(settings | rope)
        assert (cfg.rope_base, cfg.rope_scaling) == (10000.0, None)
    assert read(settings | {"rope_theta": 5e5}).rope_base == 5e5


def test_a_context_that_a_rule_leaves_to_the_model():
    rule = {"rope_type": "yarn", "factor": 2.0}
    cfg = read(change("llama", rope_parameters=rule))
    assert cfg.rope_scaling["original_max_position_embeddings"] == cfg.T_max
    outer = read(change("llama", rope_parameters=rule, original_max_position_embeddings=5))
    assert outer.rope_scaling["original_max_position_embeddings"] == 5


def test_windows():
    assert read(change("mistral", sliding_window=None)).window is None
    assert (
        read({k: v for k, v in MODELS["mistral"].items() if k != "sliding_window"}).window == 4096
    )
    assert read(change("qwen2", use_sliding_window=False)).window is None
    assert read(change("qwen2", max_window_layers=1)).window == (None, 3)
    assert read(change("qwen2", layer_types=["sliding_attention", "full_attention"])).window == (
        3,
        None,
    )
    assert read(MODELS["gemma2"]).window == (3, None)
    assert read(change("gemma2", layer_types=["sliding_attention"] * 2)).window == 3


def test_settings_that_are_absent_are_not_settings_that_are_null():
    absent = {k: v for k, v in MODELS["gemma2"].items() if "softcapping" not in k}
    assert (read(absent).softcap, read(absent).logit_softcap) == (50.0, 30.0)
    null = absent | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert (read(null).softcap, read(null).logit_softcap) == (None, None)


def test_tensors_that_are_stored_as_one_have_the_order_of_the_table():
    model = nf.DecoderLM(read(MODELS["gpt2"]), rng=0)
    names = list(model.state_dict())
    first, again = (FAMILIES["gpt2"].slots(n) for n in (names, reversed(names)))
    assert sorted(first) == sorted(again)
    joined = [slot.ours for slot in first if slot.file == "h.1.attn.c_attn.weight"]
    assert joined == [tuple(f"stack.blocks.1.attn.W{x}.W" for x in "qkv")]


# ------------------------------------------------------------------------------------- refusals

REFUSED = [
    (
        "scale_attn_by_inverse_layer_idx True is not supported",
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True},
    ),
    ("add_cross_attention True is not supported", "gpt2", {"add_cross_attention": True}),
    (
        "activation_function gelu_fast is not supported, only gelu,",
        "gpt2",
        {"activation_function": "gelu_fast"},
    ),
    ("hidden_act mish is not supported", "llama", {"hidden_act": "mish"}),
    ("n_embd is missing", "gpt2", {"n_embd": None}),
    ("n_layer must be a whole number from 1 on, but is 0", "gpt2", {"n_layer": 0}),
    ("n_head must be a whole number from 1 on, but is 2.0", "gpt2", {"n_head": 2.0}),
    ("n_positions must be a whole number from 1 on, but is True", "gpt2", {"n_positions": True}),
    (
        "layer_norm_epsilon must be a number from 0 on, but is nan",
        "gpt2",
        {"layer_norm_epsilon": math.nan},
    ),
    (
        "layer_norm_epsilon must be a number from 0 on, but is 1e-5",
        "gpt2",
        {"layer_norm_epsilon": "1e-5"},
    ),
    (
        "tie_word_embeddings must be true or false, but is yes",
        "gpt2",
        {"tie_word_embeddings": "yes"},
    ),
    (
        "rope type mrope is not supported, only default,",
        "llama",
        {"rope_parameters": {"type": "mrope"}},
    ),
    (
        "rope type yarn_paper is not supported",
        "llama",
        {"rope_parameters": {"rope_type": "yarn_paper", "factor": 2.0}},
    ),
    ("needs factor", "llama", {"rope_parameters": {"rope_type": "linear"}}),
    (
        "does not know twist",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "twist": 1}},
    ),
    (
        "rope_theta is 3.0 in one place and 2.0 in another",
        "llama",
        {"rope_theta": 3.0, "rope_parameters": {"rope_theta": 2.0}},
    ),
    (
        "rope_theta must be a positive number, but is many",
        "llama",
        {"rope_parameters": {"rope_theta": "many"}},
    ),
    ("rope_scaling must be an object, but is 2.0", "llama", {"rope_scaling": 2.0}),
    (
        "rotary settings that differ by layer",
        "llama",
        {"rope_parameters": {"full_attention": {"rope_theta": 2.0}}},
    ),
    ("partial_rotary_factor is not supported", "llama", {"partial_rotary_factor": 0.5}),
    ("use_mrope True is not supported", "qwen2", {"use_mrope": True}),
    ("rope_interleaved True is not supported", "llama", {"rope_interleaved": True}),
    (
        "layer_types that differ from sliding_window",
        "mistral",
        {"layer_types": ["full_attention"] * 2},
    ),
    ("layer_types must be 2 names", "qwen2", {"layer_types": ["full_attention"]}),
    ("layer_types must be 2 names out", "gemma2", {"layer_types": ["full_attention", {}]}),
    (
        "no sliding_window is in force",
        "qwen2",
        {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 2},
    ),
    ("use_bidirectional_attention True", "gemma2", {"use_bidirectional_attention": True}),
    (
        "query_pre_attn_scalar must be a number above 0, but is 0",
        "gemma2",
        {"query_pre_attn_scalar": 0},
    ),
    ("attn_logit_softcapping must be a number above 0", "gemma2", {"attn_logit_softcapping": -1.0}),
    ("is_decoder True is not supported", "bert", {"is_decoder": True}),
    (
        "position_embedding_type relative_key is not supported",
        "bert",
        {"position_embedding_type": "relative_key"},
    ),
    ("normalize_before True is not supported", "bart", {"normalize_before": True}),
    ("tie_word_embeddings False is not supported", "bart", {"tie_word_embeddings": False}),
    ("is_encoder_decoder False is not supported", "bart", {"is_encoder_decoder": False}),
    ("static_position_embeddings False", "marian", {"static_position_embeddings": False}),
    (
        "share_encoder_decoder_embeddings False",
        "marian",
        {"share_encoder_decoder_embeddings": False},
    ),
    ("decoder_vocab_size 29 is not supported, only 23", "marian", {"decoder_vocab_size": 29}),
    ("layer_types that differ from sliding_window", "mistral", {"layer_types": 5}),
    (
        "max_window_layers must be a whole number from 0 on, but is some",
        "qwen2",
        {"max_window_layers": "some"},
    ),
    ("rms_norm_eps must be a number from 0 on", "llama", {"rms_norm_eps": 10**400}),
    (
        "rope_theta must be a positive number, but is 1000",
        "llama",
        {"rope_parameters": {"rope_theta": 10**400}},
    ),
    (
        "factor of a rope scaling must be a number from 1 on, but is 1000",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 10**400}},
    ),
    (
        "it is not known what residual_multiplier = 0.5 would change",
        "llama",
        {"residual_multiplier": 0.5},
    ),
    ("it is not known what layers_to_skip = [1] would change", "gpt2", {"layers_to_skip": [1]}),
    (
        "it is not known what pruned_heads = {'0': [1]} would change",
        "bert",
        {"pruned_heads": {"0": [1]}},
    ),
]


@pytest.mark.parametrize(("message", "name", "settings"), REFUSED)
def test_a_setting_that_changes_the_function_is_refused(message, name, settings):
    with pytest.raises(ValueError, match=r"^config\.json: ") as error:
        read(change(name, **settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_known_can_be_left_out():
    settings = change("llama", residual_multiplier=0.5)
    assert read(settings, ignore=["residual_multiplier"]) == read(MODELS["llama"])


def test_what_is_turned_off_or_harmless_is_no_matter():
    settings = change(
        "llama",
        some_new_feature=False,
        another=None,
        eos_token_id=[1, 2],
        transformers_version="4.40.0",
        torch_dtype="bfloat16",
        use_cache=True,
        pretraining_tp=1,
        initializer_range=0.02,
        unsloth_version="1",
    )
    assert read(settings) == read(MODELS["llama"])


def test_settings_of_released_models():
    """The files that these models came with, with everything that stood in them."""
    bart = {
        "_name_or_path": "bart-base", "activation_dropout": 0.1, "activation_function": "gelu",
        "add_bias_logits": False, "add_final_layer_norm": False, "architectures": ["BartModel"],
        "attention_dropout": 0.1, "bos_token_id": 0, "classif_dropout": 0.1,
        "classifier_dropout": 0.0, "d_model": 768, "decoder_attention_heads": 12,
        "decoder_ffn_dim": 3072, "decoder_layerdrop": 0.0, "decoder_layers": 6,
        "decoder_start_token_id": 2, "dropout": 0.1, "early_stopping": True,
        "encoder_attention_heads": 12, "encoder_ffn_dim": 3072, "encoder_layerdrop": 0.0,
        "encoder_layers": 6, "eos_token_id": 2, "forced_bos_token_id": 0,
        "forced_eos_token_id": 2, "gradient_checkpointing": False,
        "id2label": {"0": "LABEL_0"}, "init_std": 0.02, "is_encoder_decoder": True,
        "label2id": {"LABEL_0": 0}, "max_position_embeddings": 1024, "model_type": "bart",
        "no_repeat_ngram_size": 3, "normalize_before": False, "normalize_embedding": True,
        "num_beams": 4, "num_hidden_layers": 6, "pad_token_id": 1, "scale_embedding": False,
        "task_specific_params": {"summarization": {"length_penalty": 1.0}},
        "torch_dtype": "float32", "transformers_version": "4.12.0.dev0", "use_cache": True,
        "vocab_size": 50265,
    }  # fmt: skip
    cfg = read(bart)
    assert (cfg.L_encoder, cfg.embedding_scale, cfg.dropout) == (6, 1.0, 0.1)
    gpt2 = {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257,
    }  # fmt: skip
    assert meaning(read(gpt2)) == meaning(nf.preset("gpt2"))


def test_settings_are_an_object():
    for text in ("[]", "1", '"llama"'):
        with pytest.raises(ValueError, match="is no JSON object"):
            Settings(json.loads(text))


def test_all_sizes_here_differ():
    """Else a mistake of two sizes for one another could not be seen."""
    sizes = [v for k, v in ROTARY.items() if isinstance(v, int) and k != "num_hidden_layers"]
    assert len(set(sizes)) == len(sizes)
