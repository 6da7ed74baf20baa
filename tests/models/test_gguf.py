"""GGUF files, written here with the package that reads them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hugging_face import MODELS
from saved import random_model, tensors_of

import npformer as nf
from npformer.rope_scaling import rope_frequencies
from npformer.weights.gguf_file import KEYS, STRETCH, TENSORS

gguf = pytest.importorskip("gguf", reason="needs the extra `models`")
pytestmark = pytest.mark.models

THERE = {theirs: ours for ours, theirs in TENSORS.items()}
IDS = np.arange(14).reshape(2, 7)


def there(name):
    """A tensor's name in a GGUF file."""
    module, _, leaf = name.rpartition(".")
    parts = module.split(".")
    number = next((p for p in parts if p.isdigit()), "")
    place = THERE[".".join("*" if p.isdigit() else p for p in parts)]
    return f"{place.replace('*', number)}.{leaf}"


def interleaved(a, heads):
    """Rows of a matrix of queries or keys, from halves to pairs, as the converter does it."""
    return a.reshape(heads, 2, -1, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def write(path, folder, architecture, *, more=(), tensors=(), pairs=False):
    """Write what is in a Hugging Face folder as a GGUF file."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, name in KEYS.items():
        value = config.get(name)
        if isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{architecture}.{key}", value)
    for key, value in more:
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
        add[type(value)](f"{architecture}.{key}", value)
    for name, a in [*tensors_of(folder).items(), *tensors]:
        if pairs and ".q_proj." in name:
            a = interleaved(a, config["num_attention_heads"])
        if pairs and ".k_proj." in name:
            a = interleaved(a, config["num_key_value_heads"])
        key = name if name == STRETCH else there(name)
        writer.add_tensor(key, np.ascontiguousarray(a, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama(tmp_path):
    """A model, its folder, and a GGUF file to write."""
    model = random_model("llama", np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    return model, tmp_path / "m", tmp_path / "m.gguf"


def test_llama_has_its_pairs_side_by_side(llama):
    model, folder, path = llama
    write(path, folder, "llama", pairs=True, more=[("rope.dimension_count", 10)])
    again = nf.load_pretrained(path)
    assert again.cfg.rope_layout == "interleaved"
    assert again.cfg.eps == pytest.approx(1e-3)
    np.testing.assert_allclose(again(IDS), model(IDS), rtol=0, atol=2e-5)


def test_as_many_key_heads_as_heads_where_the_file_has_no_number(tmp_path):
    """Not the 32 of Qwen2's ``config.json``."""
    model = random_model(MODELS["qwen2"] | {"num_key_value_heads": 2}, np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"num_key_value_heads": None}))
    write(tmp_path / "m.gguf", tmp_path / "m", "qwen2")
    assert nf.load_pretrained(tmp_path / "m.gguf").cfg.H_kv == model.cfg.H == 2


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_qwen_has_them_in_halves(tmp_path, name):
    sizes = {k: v for k, v in MODELS[name].items() if "window" not in k}
    model = random_model(sizes, np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    write(tmp_path / "m.gguf", tmp_path / "m", name)
    again = nf.load_pretrained(tmp_path / "m.gguf")
    assert again.cfg.rope_layout == "half"
    np.testing.assert_allclose(again(IDS), model(IDS), rtol=0, atol=2e-5)


def test_rotary_frequencies_that_are_divided(tmp_path):
    """Llama 3.1's rule is stored as the numbers that it divides by."""
    model = random_model("llama llama3", np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    plain, _ = rope_frequencies(10, 50.0)
    scaled, _ = rope_frequencies(10, 50.0, model.cfg.rope_scaling)
    assert (plain / scaled).max() == pytest.approx(8)
    stretch = [(STRETCH, plain / scaled)]
    write(tmp_path / "m.gguf", tmp_path / "m", "llama", pairs=True, tensors=stretch)
    again = nf.load_pretrained(tmp_path / "m.gguf")
    np.testing.assert_allclose(again(IDS), model(IDS), rtol=0, atol=2e-5)


def test_linear_scaling(tmp_path):
    model = random_model("llama linear", np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    more = [("rope.scaling.type", "linear"), ("rope.scaling.factor", 3.5)]
    write(tmp_path / "m.gguf", tmp_path / "m", "llama", pairs=True, more=more)
    again = nf.load_pretrained(tmp_path / "m.gguf")
    assert again.cfg.rope_scaling == {"rope_type": "linear", "factor": 3.5}
    np.testing.assert_allclose(again(IDS), model(IDS), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([("rope.scaling.type", "yarn")], "rope scaling yarn is not supported, only linear"),
        ([("rope.dimension_count", 4)], "4 of 10 features of a head rotate, not all"),
        ([("expert_count", 8)], "it is not known what llama.expert_count = 8 would change"),
        ([("attention.sliding_window", 3)], "llama.attention.sliding_window = 3 would change"),
    ],
)
def test_settings_that_are_not_supported(llama, more, message):
    _, folder, path = llama
    write(path, folder, "llama", more=more)
    with pytest.raises(ValueError, match=r"m\.gguf: ") as error:
        nf.load_pretrained(path)
    assert message in str(error.value)


def test_another_architecture(llama):
    _, folder, path = llama
    write(path, folder, "rwkv7")
    with pytest.raises(ValueError, match="architecture rwkv7 is not supported, only llama, qwen2"):
        nf.load_pretrained(path)


def test_a_damaged_file_is_refused_in_one_sentence(llama, tmp_path):
    _, folder, path = llama
    write(path, folder, "llama")
    whole = path.read_bytes()
    for content in (b"", b"GGUF", b"nothing of the kind" * 9, whole[:100], whole[:-999]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"m\.gguf is not a whole GGUF file: ") as error:
            nf.load_pretrained(path)
        assert "\n" not in str(error.value)
