"""Named models: exact sizes, what distinguishes a family, and refusals before any allocation."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from cases import case

import npformer as nf
from npformer import catalogue, sizes
from npformer.sizes import count_parameters

# The numbers of the checkpoints, found twice: in closed form and by building the models.
TOTALS = {
    "chapter-12-layer": 109_632_000,
    "transformer-base": 63_045_632,
    "transformer-big": 214_171_648,
    "bert-base": 109_482_240,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "mistral-7b": 7_241_732_096,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
}


def test_every_model_is_listed_and_has_its_exact_number_of_parameters():
    assert set(nf.presets()) == set(TOTALS)
    for name in nf.presets():
        cfg, row = nf.preset(name), catalogue.describe(name)
        assert count_parameters(cfg) == TOTALS[name] == row.parameters, name
        assert cfg.name == name
        assert row.source
        assert row.published


def test_the_names_stay_functions_after_their_module_is_imported():
    # A module of the same name would take the function's place at the second use.
    assert callable(nf.presets)
    assert nf.preset("gpt2") == nf.preset("gpt2")
    assert callable(nf.presets)


def test_counts_of_a_known_fault_tied_tables_twice():
    c01, names = (
        case("C01"),
        {
            "gpt2_small": "gpt2",
            "llama3_8b": "llama-3-8b",
            "llama32_1b": "llama-3.2-1b",
            "qwen25_05b": "qwen2.5-0.5b",
            "qwen3_4b": "qwen3-4b",
            "gemma2_2b": "gemma-2-2b",
            "bert_base_with_pooler": "bert-base",
        },
    )
    for key, n in c01["right"]["parameters"].items():
        assert count_parameters(nf.preset(names[key])) == n
    for key, wrong in c01["wrong"]["tied_counted_twice"].items():
        assert count_parameters(replace(nf.preset(names[key]), tied=False)) == wrong


@pytest.mark.parametrize("H", [1, 2, 4, 8, 16, 64])
def test_attention_has_as_many_parameters_for_any_number_of_heads(H):
    cfg = nf.TransformerConfig(V=2, d=512, L=1, H=H)
    attention = sum(p.count for p in sizes.parts(cfg) if p.group == "attention")
    assert attention == case("C01")["right"]["attention_d512"] == 4 * 512**2 + 4 * 512


def test_the_original_transformer_with_attention_biases():
    for name, n in (("transformer-base", 63_082_496), ("transformer-big", 214_245_376)):
        cfg = replace(nf.preset(name), qkv_bias=True, out_bias=True)
        assert count_parameters(cfg) == n
    # No vocabulary gives the paper's 65 M and 213 M both.
    blocks = {
        name: count_parameters(nf.preset(name)) - 37000 * nf.preset(name).d
        for name in ("transformer-base", "transformer-big")
    }
    assert (65e6 - blocks["transformer-base"]) / 512 > 40_000
    assert (213e6 - blocks["transformer-big"]) / 1024 < 36_500


def test_bert_without_its_pooler():
    assert count_parameters(replace(nf.preset("bert-base"), pooler=False)) == 108_891_648


def test_what_makes_a_family():
    gpt, llama, bert = (nf.preset(n) for n in ("gpt2", "llama-2-7b", "bert-base"))
    assert (gpt.bias, gpt.tied, gpt.positions, gpt.eps) == (True, True, "learned", 1e-5)
    assert (gpt.activation, bert.activation, bert.eps) == ("gelu_tanh", "gelu", 1e-12)
    assert (llama.H_kv, llama.tied, llama.bias, llama.eps) == (32, False, False, 1e-5)
    assert [nf.preset(f"llama-3.2-{n}").tied for n in ("1b", "3b")] == [True, True]
    assert nf.preset("llama-3.1-405b").rope_scaling["factor"] == 8
    assert nf.preset("llama-3.2-3b").rope_scaling["factor"] == 32
    assert nf.preset("llama-3-8b").rope_scaling is None
    qwen = nf.preset("qwen2.5-7b")
    a = qwen.attention(0)
    assert (a.bias, a.out_bias, qwen.bias, a.qk_norm) == (True, False, False, None)
    assert (qwen.eps, nf.preset("qwen2.5-72b").eps) == (1e-6, 1e-5)
    qwen = nf.preset("qwen3-0.6b")
    assert qwen.H * qwen.d_h == 2 * qwen.d
    assert (qwen.qk_norm, qwen.attention(0).bias) == ("head", False)
    assert nf.preset("mistral-7b").window == 4096


def test_gemma_2_scales_windows_and_caps():
    for name, scale in (("gemma-2-2b", 1 / 16), ("gemma-2-9b", 1 / 16), ("gemma-2-27b", 1 / 12)):
        cfg = nf.preset(name)
        a = cfg.attention(0)
        assert (cfg.d_h**-0.5 if a.scale is None else a.scale) == pytest.approx(scale, rel=1e-15)
        assert [cfg.at("window", i) for i in range(3)] == [4096, None, 4096]
        assert (cfg.softcap, cfg.logit_softcap, cfg.norm_offset) == (50, 30, 1)
        assert cfg.embedding_scale**2 == pytest.approx(cfg.d)


def test_the_kind_of_a_model_follows_its_class():
    assert nf.preset("bert-base").kind == "encoder"
    assert nf.preset("transformer-big").kind == "encoder-decoder"
    cfg = nf.TransformerConfig(V=5, d=4, L=1, H=1, T_max=3)
    kinds = (nf.DecoderLM, "decoder"), (nf.Encoder, "encoder"), (nf.EncoderDecoder, None)
    for model, kind in kinds:
        assert model(cfg, rng=0).cfg.kind == (kind or "encoder-decoder")
    with pytest.raises(ValueError, match=r"kind must be one of .* 'encoder_decoder'"):
        nf.TransformerConfig(V=5, d=4, L=1, H=1, kind="encoder_decoder")


def test_an_unknown_name_is_one_sentence_with_what_looks_alike():
    with pytest.raises(ValueError, match=r"no preset 'gpt-2'; did you mean gpt2,") as error:
        nf.preset("gpt-2")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="did you mean llama-3-8b"):
        nf.preset("Llama3_8B")
    with pytest.raises(ValueError, match="no preset 'xyzzy'; known are chapter-12-layer, "):
        nf.preset("xyzzy")
    with pytest.raises(TypeError, match="must be a string, not int"):
        nf.preset(2)


# --------------------------------------------------------------- models that are too large


@pytest.mark.parametrize("model", [nf.DecoderLM, nf.Encoder, nf.EncoderDecoder])
def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_allocated(model, monkeypatch):
    cfg = nf.TransformerConfig(V=97, d=8, L=2, H=2, T_max=5)
    needed = sum(p.value.nbytes for p in model(cfg, rng=0).parameters())
    monkeypatch.setattr(sizes, "free_memory", lambda: needed)
    model(cfg, rng=0)  # just fits
    with pytest.raises(ValueError, match="float64 parameters"):
        model(cfg, rng=0, dtype=np.float64)
    monkeypatch.setattr(sizes, "free_memory", lambda: needed - 1)
    monkeypatch.setattr(np.random, "default_rng", lambda *_: pytest.fail("something was made"))
    with pytest.raises(ValueError, match=r"this model needs 0\.0 GB for its float32 parameters"):
        model(cfg, rng=0)


def test_the_refusal_names_model_and_sizes(monkeypatch):
    monkeypatch.setattr(sizes, "free_memory", lambda: 24_690_000_000)
    with pytest.raises(ValueError) as error:
        nf.DecoderLM(nf.preset("llama-3.1-405b"), rng=0)
    assert str(error.value) == (
        "llama-3.1-405b needs 1623.4 GB for its float32 parameters, but this machine has 24.7 GB "
        "free"
    )


def test_a_system_that_does_not_say_refuses_nothing(monkeypatch):
    monkeypatch.setattr(sizes, "free_memory", lambda: None)
    nf.DecoderLM(nf.TransformerConfig(V=5, d=4, L=1, H=1, T_max=3), rng=0)


def test_free_memory_reads_what_there_is(monkeypatch, tmp_path):
    meminfo, container = tmp_path / "meminfo", tmp_path / "container"
    monkeypatch.setattr(sizes, "MEMINFO", str(meminfo))
    monkeypatch.setattr(sizes, "CONTAINER", str(container))
    meminfo.write_text("MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable:     700 kB\n")
    assert sizes.free_memory() == 700 * 1024
    container.mkdir()
    (container / "memory.max").write_text("max\n")
    assert sizes.free_memory() == 700 * 1024
    (container / "memory.max").write_text("500000\n")
    (container / "memory.current").write_text("300000\n")
    (container / "memory.stat").write_text("anon 100\ninactive_file 50000\nactive_file 7\n")
    assert sizes.free_memory() == 250_000
    meminfo.write_text("nonsense\n")
    assert sizes.free_memory() == 250_000
    (container / "memory.max").write_text("nonsense\n")
    known = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(sizes.os, "sysconf", lambda name: known.get(name, -1))
    assert sizes.free_memory() == 4_096_000
    monkeypatch.delattr(sizes.os, "sysconf")  # as on Windows
    assert sizes.free_memory() is None


def test_experts_have_accounts_and_no_layers():
    cfg = nf.preset("deepseek-v3")
    with pytest.raises(TypeError, match=r"no layers for the latent attention .* deepseek-v3"):
        nf.DecoderLM(cfg, rng=0)
    with pytest.raises(TypeError, match="made from a TransformerConfig, but was given dict"):
        nf.Encoder({"V": 3}, rng=0)


def test_sizes_of_experts_are_checked():
    cfg = nf.preset("deepseek-v2")
    for change, message in [
        ({"d": 0}, "d must be a whole number from 1 on, but is 0"),
        ({"dense_layers": -1}, "dense_layers must be a whole number from 0 on"),
        ({"dense_layers": 61}, "dense_layers = 61 is more than L = 60"),
        ({"top_k": 161}, "top_k = 161 is more than there are experts, 160"),
        ({"kv_rank": 2.0}, r"kv_rank must be a whole number from 1 on, but is 2\.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(cfg, **change)


def test_presets_are_not_imported_with_the_package():
    code = "import sys, npformer; print('npformer.catalogue' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
