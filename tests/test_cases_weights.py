"""Cases of weights and their settings that people met in public projects."""

from __future__ import annotations

import numpy as np
import pytest
from cases import case
from hugging_face import MODELS
from saved import change, read, rewrite, tensors_of

import npformer as nf
from npformer.weights.family import file_shape, meaning
from npformer.weights.load import FAMILIES
from npformer.weights.safetensors_file import SafetensorsFile
from npformer.weights.settings import Settings


def test_gpt2s_square_matrix_is_not_transposed(tmp_path):
    c = case("P01")
    folder = tmp_path / "m"
    cfg = nf.TransformerConfig(V=3, d=2, L=1, H=1, T_max=5)
    nf.save_pretrained(nf.DecoderLM(cfg, rng=0, dtype=np.float64), folder)
    tensors = tensors_of(folder)
    tensors["transformer.h.0.attn.c_proj.weight"] = c["input"]["file_weight"].astype(float)
    tensors["transformer.h.0.attn.c_proj.bias"] = c["input"]["bias"].astype(float)
    rewrite(folder, tensors)
    y = nf.load_pretrained(folder, np.float64).stack.blocks[0].attn.Wo(c["input"]["x"])
    np.testing.assert_array_equal(y, c["right"]["out"])
    assert not np.array_equal(y, c["wrong"]["out"])
    joined = tensors["transformer.h.0.attn.c_attn.weight"]
    attn = nf.load_pretrained(folder, np.float64).stack.blocks[0].attn
    for i, W in enumerate((attn.Wq, attn.Wk, attn.Wv)):
        np.testing.assert_array_equal(W.W.value, joined[:, 2 * i : 2 * i + 2])


def test_gemmas_gains_in_a_file_are_one_less(tmp_path):
    c = case("N07")
    settings = MODELS["gemma2"] | {"hidden_size": 2, "num_attention_heads": 2, "rms_norm_eps": 1e-6}
    family = FAMILIES["gemma2"]
    cfg = nf.TransformerConfig(**family.read(Settings(settings)))
    model = nf.DecoderLM(cfg, rng=0, dtype=np.float64)
    for gamma, right in ((c["input"]["gamma"], "out"), (c["input"]["gamma2"], "out2")):
        for name, p in model.named_parameters():
            if name.endswith("gamma"):
                p.value[...] = gamma
        nf.save_pretrained(model, tmp_path / "m")
        entries = SafetensorsFile(tmp_path / "m" / "model.safetensors")
        norms = [n for n in entries.entries if "norm" in n]
        assert len(norms) == 4 * cfg.L + 1
        again = nf.load_pretrained(tmp_path / "m", np.float64)
        for name in norms:
            np.testing.assert_array_equal(entries[name], gamma)
        y = again.stack.final_norm(c["input"]["x"][None])
        np.testing.assert_allclose(y[0], c["right"][right], rtol=0, atol=1e-14)


def test_the_head_width_is_the_configurations():
    c = case("P03")
    given = c["input"]["config"]
    settings = change(
        "qwen3",
        hidden_size=given["hidden_size"],
        num_attention_heads=given["heads"],
        num_key_value_heads=given["kv_heads"],
        head_dim=given["head_dim"],
    )
    cfg = read(settings)
    model = nf.DecoderLM(cfg, rng=0)
    family = FAMILIES["qwen3"]
    shapes = {name: p.value.shape for name, p in model.named_parameters()}
    found = {f"model.{slot.file}": file_shape(slot, shapes) for slot in family.slots(shapes)}
    for name, shape in c["right"]["shapes"].items():
        assert found[name] == tuple(shape), name
    assert meaning(cfg)["scale"] == pytest.approx(c["right"]["scale"], rel=1e-15)
    assert meaning(cfg)["scale"] != pytest.approx(c["wrong"]["scale"], rel=1e-2)
    for none in ({"head_dim": None}, {"hidden_size": 20}):
        known = {k: v for k, v in settings.items() if k != "head_dim"}
        cfg = read(known | {"model_type": "llama", "hidden_size": 20} | none)
        assert cfg.d_h == 20 // given["heads"]
    big = c["right"]["qwen3_4b"]
    cfg = nf.preset("qwen3-4b")
    assert (cfg.d, cfg.H, cfg.H_kv, cfg.d_h) == (
        *(big[k] for k in ("hidden", "heads", "kv", "head_dim")),
    )


@pytest.mark.parametrize(
    ("name", "key", "value", "right"),
    [
        ("bert", "layer_norm_eps", 1e-12, "bert_eps_1e-12"),
        ("gpt2", "layer_norm_epsilon", 1e-5, "gpt2_eps_1e-5"),
        ("llama", "rms_norm_eps", 1e-6, "llama_eps_1e-6"),
        ("mistral", "rms_norm_eps", 1e-6, "llama_eps_1e-6"),
        ("qwen2", "rms_norm_eps", 1e-6, "llama_eps_1e-6"),
        ("qwen3", "rms_norm_eps", 1e-6, "llama_eps_1e-6"),
        ("gemma2", "rms_norm_eps", 1e-6, "llama_eps_1e-6"),
    ],
)
def test_eps_is_the_configurations_in_every_norm(name, key, value, right):
    c = case("P07")
    x, y = c["input"]["x"], c["right"][right]
    for given in ({key: value}, {}):  # and the default, where it is absent
        settings = {k: v for k, v in MODELS[name].items() if k != key}
        cfg = read(settings | given)
        model = FAMILIES[MODELS[name]["model_type"]].model(cfg, rng=0, dtype=np.float64)
        norms = [m for _, m in model.named_modules() if hasattr(m, "eps")]
        assert len(norms) >= 2 * cfg.L
        assert {norm.eps for norm in norms} == {value}
    short = type(norms[0])(2, norms[0].eps, np.float64)
    np.testing.assert_allclose(short(x[None])[0], y, rtol=0, atol=1e-12)


def test_which_gelu():
    c = case("P08")
    assert read(MODELS["bert"] | {"hidden_act": "gelu"}).activation == "gelu"
    assert read(MODELS["gpt2"]).activation == "gelu_tanh"
    for name in ("gelu_pytorch_tanh", "gelu_new"):
        assert read(change("gemma2", hidden_activation=name)).activation == "gelu_tanh"
    for name in ("llama", "mistral", "qwen2", "qwen3"):
        assert read(MODELS[name]).activation == "silu"
    old = read(change("gemma2", hidden_act="gelu"))  # what it said before "hidden_activation"
    assert old.activation == "gelu_tanh"
    for name, right in (("gelu", c["right"]["erf"]), ("gelu_tanh", c["right"]["tanh"])):
        y = nf.Activation(name)(c["input"]["x"])
        np.testing.assert_allclose(y, right, rtol=0, atol=1e-14)


def test_gemmas_scales():
    c = case("P09")
    for name, given in c["input"]["query_scale"].items():
        cfg = read(change("gemma2", **given))
        assert cfg.scale == pytest.approx(c["right"]["query_scale"][name], rel=1e-15)
    assert cfg.scale != pytest.approx(c["wrong"]["query_scale_27b"], rel=1e-2)
    for hidden, scale in c["right"]["embed_scale"].items():
        cfg = read(change("gemma2", hidden_size=int(hidden)))
        assert cfg.embedding_scale == pytest.approx(scale["exact"], rel=1e-12)
    sizes = dict(hidden_size=c["input"]["hidden"], vocab_size=1, final_logit_softcapping=None)
    model = nf.DecoderLM(read(change("gemma2", **sizes)), rng=0, dtype=np.float64)
    model.embedding.tokens.E.value[...] = c["input"]["E"]
    x, _ = model.embedding.forward(np.zeros((1, 1), int), np.zeros(1, int))
    np.testing.assert_array_equal(x[0, 0], c["right"]["token0_input"])
    logit = model.head(np.ones((1, 1, 4))).item()
    assert logit == c["right"]["logit_of_h_1111"] != c["wrong"]["logit_if_table_scaled"]
