"""Folders that are refused, each in one sentence, and old spellings that are not."""

from __future__ import annotations

import json
import os
import pickle
import sys

import numpy as np
import pytest
from saved import random_model, rewrite, same, tensors_of

import npformer as nf
from npformer.weights.safetensors_file import SafetensorsFile, write_safetensors


@pytest.fixture
def gpt2(tmp_path):
    """A saved GPT-2 whose files may be changed: its folder and its tensors."""
    model = random_model("gpt2", np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    return tmp_path / "m", tensors_of(tmp_path / "m")


# ------------------------------------------------------------------------------------- refusals


def refused(folder, kind=ValueError, **options):
    """The sentence with which a folder is refused."""
    with pytest.raises(kind) as error:
        nf.load_pretrained(folder, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_tensor_that_does_not_fit_is_named(gpt2):
    folder, tensors = gpt2
    tensors["transformer.h.0.mlp.c_fc.weight"] = np.ones((11, 15), np.float32)
    tensors["transformer.h.1.ln_2.bias"] = np.ones(16, np.float32)
    tensors["transformer.h.2.ln_1.weight"] = np.ones(15, np.float32)
    del tensors["transformer.wpe.weight"], tensors["transformer.h.1.attn.c_attn.bias"]
    tensors["spare"] = np.ones(1000, np.float32)
    rewrite(folder, tensors)
    message = refused(folder)
    assert message.startswith(f"{folder} does not fit its configuration: ")
    for fault in (
        "missing transformer.wpe.weight",
        "missing transformer.h.1.attn.c_attn.bias",
        "unexpected transformer.h.2.ln_1.weight",
        "unexpected spare",
        "transformer.h.0.mlp.c_fc.weight has shape (11, 15) and not (15, 11)",
        "transformer.h.1.ln_2.bias has shape (16,) and not (15,)",
    ):
        assert fault in message
    assert message.count(";") == 5


def test_a_config_larger_than_its_weights_allocates_nothing(gpt2):
    folder, tensors = gpt2
    rewrite(folder, tensors, n_embd=15 * 10**9)
    assert "but its configuration needs" in refused(folder)
    for depth in (10**4, 10**9):
        rewrite(folder, tensors, n_embd=15, n_layer=depth)
        assert f"n_layer is {depth}, but there are 28 tensors only" in refused(folder)


def test_more_faults_than_a_message_holds(gpt2):
    folder, tensors = gpt2
    rewrite(
        folder,
        {f"x.{name}": a for name, a in tensors.items()} | {f"y{i}": np.ones(1) for i in range(50)},
    )
    message = refused(folder)
    assert message.count("missing") == len(tensors)
    assert message.endswith(f"; and {2 * len(tensors) + 50 - 40} more")


def test_tensors_of_a_wrong_dtype_are_refused(gpt2):
    folder, _ = gpt2
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"', 1))
    assert "transformer.wte.weight has dtype I32" in refused(folder)


def test_numbers_too_large_for_the_dtype(gpt2):
    folder, tensors = gpt2
    tensors["transformer.wte.weight"][3, 5] = 1e6
    rewrite(folder, tensors)
    assert "transformer.wte.weight has numbers that are too large for float16" in refused(
        folder, dtype=np.float16
    )


def test_names_of_the_base_model_and_buffers(gpt2):
    """What the first files of GPT-2 look like: no prefix, and causal masks."""
    folder, tensors = gpt2
    model = nf.load_pretrained(folder)
    bare = {name.removeprefix("transformer."): a for name, a in tensors.items()}
    bare |= {f"h.{i}.attn.bias": np.tril(np.ones((1, 1, 19, 19), np.float32)) for i in range(2)}
    rewrite(folder, bare)
    assert same(model, nf.load_pretrained(folder))
    del bare["wpe.weight"]
    rewrite(folder, bare)
    assert "missing wpe.weight" in refused(folder)
    rewrite(
        folder,
        bare
        | {
            "ln_f.bias": tensors["transformer.ln_f.bias"],
            "transformer.ln_f.bias": tensors["transformer.ln_f.bias"],
        },
    )
    assert "ln_f.bias and transformer.ln_f.bias are the same tensor" in refused(folder)


def test_a_tied_table_under_its_other_names(gpt2):
    folder, tensors = gpt2
    model = nf.load_pretrained(folder)
    table = tensors["transformer.wte.weight"]
    rewrite(folder, tensors | {"lm_head.weight": table})
    assert same(model, nf.load_pretrained(folder))
    only_head = {n: a for n, a in tensors.items() if n != "transformer.wte.weight"}
    rewrite(folder, only_head | {"lm_head.weight": table})
    assert same(model, nf.load_pretrained(folder))
    rewrite(folder, tensors | {"lm_head.weight": table + 1})
    assert refused(folder).endswith(
        "transformer.wte.weight and lm_head.weight differ, but config.json ties them"
    )
    rewrite(folder, tensors, tie_word_embeddings=False)
    assert refused(folder).endswith("missing lm_head.weight")


def test_berts_old_names(tmp_path):
    model = random_model("bert")
    nf.save_pretrained(model, tmp_path / "m")
    file = SafetensorsFile(tmp_path / "m" / "model.safetensors")
    old = {}
    for name in file.entries:
        key = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[f"bert.{key.replace('LayerNorm.bias', 'LayerNorm.beta')}"] = file[name].copy()
    old["cls.predictions.bias"] = np.ones(23)
    rewrite(tmp_path / "m", old)
    assert same(model, nf.load_pretrained(tmp_path / "m", np.float64))


def test_marians_table_of_positions_must_be_the_formulas(tmp_path):
    model = random_model("marian")
    nf.save_pretrained(model, tmp_path / "m")
    tensors = tensors_of(tmp_path / "m")
    name = "model.encoder.embed_positions.weight"
    table = nf.position.sinusoidal(np.arange(19), 18, layout="half")
    rewrite(tmp_path / "m", tensors | {name: table})
    assert same(model, nf.load_pretrained(tmp_path / "m", np.float64))
    for wrong in (table[::-1], nf.position.sinusoidal(np.arange(19), 18), table[:5]):
        rewrite(tmp_path / "m", tensors | {name: wrong})
        assert "is no table of sinusoidal positions" in refused(tmp_path / "m")


def test_folders_without_a_model(tmp_path, gpt2):
    assert "does not exist" in refused(tmp_path / "nothing", FileNotFoundError)
    assert "has no config.json" in refused(tmp_path, FileNotFoundError)
    assert "it is a file" in refused(gpt2[0] / "config.json", FileNotFoundError)
    assert "does not exist" in refused(tmp_path / "x.gguf", FileNotFoundError)
    (gpt2[0] / "model.safetensors").unlink()
    assert "has no model.safetensors and no" in refused(gpt2[0], FileNotFoundError)


def test_a_gguf_file_without_its_package(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert refused(tmp_path / "x.gguf", ImportError).endswith(
        "needs the package gguf to be read: pip install 'npformer[models]'"
    )


def test_nothing_is_unpickled(gpt2):
    class Bomb:
        def __reduce__(self):
            return os.abort, ()

    (gpt2[0] / "model.safetensors").unlink()
    (gpt2[0] / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    message = refused(gpt2[0], FileNotFoundError)
    assert "pytorch_model.bin" in message
    assert "a pickle can run any program" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not readable as JSON"),
        ("{", "is not readable as JSON"),
        ("[]", "is no JSON object"),
        ('{"model_type": "gpt2", "model_type": "llama"}', "model_type stands in it twice"),
        ("{}", "model_type None is not supported, only gpt2, llama"),
        ('{"model_type": "rwkv"}', "model_type rwkv is not supported"),
        ('{"model_type": ["gpt2"]}', "is not supported"),
        ('{"model_type": "gpt2", "quantization_config": {"bits": 4}}', "quantised weights are not"),
    ],
)
def test_a_wrong_config_file(gpt2, text, message):
    (gpt2[0] / "config.json").write_text(text)
    assert message in refused(gpt2[0])


# -------------------------------------------------------------------------------------- indices


@pytest.fixture
def shards(tmp_path):
    """A folder of shards and what stands in its index."""
    nf.save_pretrained(random_model("gpt2"), tmp_path / "m", shard_bytes=3000)
    path = tmp_path / "m" / "model.safetensors.index.json"
    return tmp_path / "m", json.loads(path.read_text())["weight_map"]


def reindex(folder, value):
    (folder / "model.safetensors.index.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..\\x.safetensors",
        "",
        "..",
        "x.bin",
        3,
    ],
)
def test_an_index_that_points_elsewhere(shards, tmp_path, name):
    folder, weight_map = shards
    write_safetensors(tmp_path / "x.safetensors", [("a", np.ones(3))])
    first = next(iter(weight_map))
    message = refused(reindex(folder, {"weight_map": weight_map | {first: name}}))
    assert "which is no file of its own folder" in message


def test_other_wrong_indices(shards):
    folder, weight_map = shards
    first = next(iter(weight_map))
    last = list(weight_map)[-1]
    for value, message in (
        ([], "has no weight_map"),
        ({"weight_map": []}, "has no weight_map"),
        ({"weight_map": {}}, "has no weight_map"),
        ({"weight_map": weight_map | {first: weight_map[last]}}, f"disagree about {first}"),
        ({"weight_map": weight_map | {"more": weight_map[last]}}, "disagree about more"),
        ({"weight_map": {n: f for n, f in weight_map.items() if n != last}}, f"about {last}"),
    ):
        assert message in refused(reindex(folder, value))
    missing = weight_map | {first: "none.safetensors"}
    message = refused(reindex(folder, {"weight_map": missing}), FileNotFoundError)
    assert "names none.safetensors, which does not exist" in message


def test_a_tensor_in_two_shards(shards):
    folder, weight_map = shards
    twice = next(iter(weight_map))
    file = folder / weight_map[list(weight_map)[-1]]
    entries = SafetensorsFile(file)
    tensors = {name: entries[name].copy() for name in entries.entries}
    write_safetensors(file, (tensors | {twice: np.ones(3)}).items())
    assert f"{twice} is in " in refused(folder)


def test_a_link_to_a_file_is_followed(shards, tmp_path):
    """The cache of a hub is made of links."""
    folder, weight_map = shards
    model = nf.load_pretrained(folder, np.float64)
    file = folder / next(iter(weight_map.values()))
    file.rename(tmp_path / "blob")
    file.symlink_to(tmp_path / "blob")
    assert same(model, nf.load_pretrained(folder, np.float64))
