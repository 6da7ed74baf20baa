"""Models saved and loaded: bit for bit, whole or not at all."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hugging_face import MODELS, run, texts
from saved import random_model, same, tensors_of

import npformer as nf
from npformer.files import write_json
from npformer.weights import save
from npformer.weights.load import FAMILIES
from npformer.weights.safetensors_file import SafetensorsFile, write_safetensors
from npformer.weights.settings import Settings

ONE_OF_EACH = sorted({settings["model_type"]: name for name, settings in MODELS.items()}.values())


@pytest.fixture
def gpt2(tmp_path):
    """A saved GPT-2 whose files may be changed: its folder and its tensors."""
    model = random_model("gpt2", np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    return tmp_path / "m", tensors_of(tmp_path / "m")


# ---------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_model_comes_back_bit_for_bit(tmp_path, name, dtype):
    model = random_model(name, dtype)
    nf.save_pretrained(model, tmp_path / "m")
    again = nf.load_pretrained(tmp_path / "m", dtype)
    assert type(again) is type(model)
    assert same(model, again)
    text = texts(MODELS[name], 3)
    assert run(again, text)[0].tobytes() == run(model, text)[0].tobytes()


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bart"])
def test_shards_and_one_file_hold_the_same(tmp_path, name):
    model = random_model(name)
    nf.save_pretrained(model, tmp_path / "m", shard_bytes=3000)
    files = sorted(os.listdir(tmp_path / "m"))  # noqa: PTH208
    assert "model.safetensors" not in files
    assert files[1].startswith("model-00001-of-000")
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files[1:-1])
    assert index["metadata"]["total_size"] == 8 * sum(p.value.size for p in model.parameters()) + (
        2 * 2 * 18 * 8 if name == "bart" else 0  # the rows that no position reads
    )
    assert same(model, nf.load_pretrained(tmp_path / "m", np.float64))


def test_a_tied_table_is_stored_once_and_stays_tied(tmp_path):
    for name in ("gpt2", "bart"):
        nf.save_pretrained(random_model(name), tmp_path / name)
        entries = SafetensorsFile(tmp_path / name / "model.safetensors").entries
        assert "lm_head.weight" not in entries
        again = nf.load_pretrained(tmp_path / name, np.float64)
        assert again.head.E is again.embedding.tokens.E
    assert again.head.E is again.encoder.embedding.tokens.E


@pytest.mark.parametrize(("dtype", "close"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_saved_in_fewer_bits(tmp_path, dtype, close):
    model = random_model("llama", np.float32)
    nf.save_pretrained(model, tmp_path / "m", dtype=dtype)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["torch_dtype"] == dtype
    again = nf.load_pretrained(tmp_path / "m")
    for name, x in model.state_dict().items():
        y = again.state_dict()[name]
        assert y.dtype == np.float32
        assert 0 < np.abs(y - x).max() <= close * np.abs(x).max()
    nf.save_pretrained(again, tmp_path / "again", dtype=dtype)
    assert same(again, nf.load_pretrained(tmp_path / "again"))


def test_the_dtype_is_what_was_asked_for(tmp_path):
    model = random_model("gpt2", np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    wide = nf.load_pretrained(tmp_path / "m", np.float64)
    for name, x in model.state_dict().items():
        np.testing.assert_array_equal(wide.state_dict()[name], x.astype(np.float64))
    assert {p.value.dtype for p in nf.load_pretrained(tmp_path / "m").parameters()} == {
        np.dtype(np.float32)
    }
    for dtype in ("bfloat16", np.int32, complex, "single-ish"):
        with pytest.raises(TypeError, match="dtype must be float64, float32 or float16"):
            nf.load_pretrained(tmp_path / "m", dtype)


def test_a_loaded_model_is_its_own(tmp_path):
    """Its numbers neither change with the file nor change the file, and it can be trained."""
    model = random_model("gpt2", np.float32)
    nf.save_pretrained(model, tmp_path / "m")
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    again = nf.load_pretrained(tmp_path / "m")
    for p in again.parameters():
        p.value -= 1
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before
    other = nf.load_pretrained(tmp_path / "m")
    nf.save_pretrained(random_model("gpt2", np.float32, seed=6), tmp_path / "m")
    assert same(model, other)


@pytest.mark.parametrize(
    ("options", "family"), [({"qkv_bias": True}, "qwen2"), ({"qk_norm": "head"}, "qwen3")]
)
def test_a_model_of_ours_in_a_familys_form(tmp_path, options, family):
    """Modern settings by hand, interleaved pairs: stored in halves, the same function."""
    cfg = nf.TransformerConfig(
        V=23, d=18, L=2, H=6, H_kv=2, d_h=10, d_ff=13, T_max=19, positions="rope", norm="rmsnorm",
        gated=True, activation="silu", bias=False, tied=False, **options,
    )  # fmt: skip
    model = nf.DecoderLM(cfg, rng=1, dtype=np.float64)
    for i, p in enumerate(model.parameters()):
        p.value += np.random.default_rng(i).standard_normal(p.value.shape)
    nf.save_pretrained(model, tmp_path / "m", settings={"eos_token_id": 2})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["model_type"] == family
    assert config["eos_token_id"] == 2
    again = nf.load_pretrained(tmp_path / "m", np.float64)
    ids = np.arange(14).reshape(2, 7)
    assert again.cfg.rope_layout == "half"
    size = np.abs(model(ids)).max()
    np.testing.assert_allclose(again(ids), model(ids), rtol=0, atol=1e-13 * size)
    moved = again.stack.blocks[0].attn.Wq.W.value - model.stack.blocks[0].attn.Wq.W.value
    assert np.abs(moved).max() > 1


def test_an_encoder_with_and_without_a_pooler(tmp_path):
    settings = Settings(MODELS["bert"])
    fields = FAMILIES["bert"].read(settings)
    for pooler in (True, False):
        model = nf.Encoder(nf.TransformerConfig(**fields, pooler=pooler), rng=0)
        nf.save_pretrained(model, tmp_path / str(pooler))
        again = nf.load_pretrained(tmp_path / str(pooler))
        assert again.cfg.pooler is pooler
        assert same(model, again)


# ------------------------------------------------------------------------------- our own format


def test_any_model_can_be_saved_under_our_own_names(tmp_path):
    models = [
        nf.DecoderLM(
            nf.TransformerConfig(V=7, d=6, L=2, H=3, positions="none", window=(3, None)), rng=0
        ),
        nf.Encoder(nf.TransformerConfig(V=7, d=6, L=2, H=3, placement=("pre", "post")), rng=0),
        nf.EncoderDecoder(
            nf.TransformerConfig(V=7, d=6, L=2, L_encoder=1, H=3, positions="sinusoidal"), rng=0
        ),
        random_model("llama yarn", np.float32),
    ]
    for i, model in enumerate(models):
        nf.save_pretrained(model, tmp_path / str(i), architecture="npformer")
        again = nf.load_pretrained(tmp_path / str(i))
        assert type(again) is type(model)
        assert again.cfg == model.cfg
        assert same(model, again)


def test_our_own_format_is_refused_where_it_is_newer(tmp_path):
    cfg = nf.TransformerConfig(V=7, d=6, L=1, H=3)
    nf.save_pretrained(nf.DecoderLM(cfg, rng=0), tmp_path / "m", architecture="npformer")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    for change, message in (
        ({"wings": 2}, "config has wings, which this version does not know"),
        ({"kind": "bird"}, "config.kind must be one of decoder, encoder, encoder-decoder"),
        ({"H": 4}, "H = 4 query heads"),
        ({"d": "6"}, "d must be a whole number"),
    ):
        path.write_text(json.dumps(config | {"config": config["config"] | change}))
        with pytest.raises(ValueError, match=message):
            nf.load_pretrained(tmp_path / "m")


def test_what_no_family_can_express_is_not_saved_as_something_else(tmp_path):
    base = dict(V=7, d=6, L=2, H=3, T_max=11)
    cases = [
        (nf.DecoderLM, dict(positions="sinusoidal"), "gpt2 comes nearest", "positions 'learned'"),
        (nf.DecoderLM, dict(placement="post"), "gpt2 comes nearest", "placement ('pre', 'pre')"),
        (nf.DecoderLM, dict(d_ff=(5, 7)), "gpt2 comes nearest", "d_ff (5, 5) instead of (5, 7)"),
        (nf.DecoderLM, dict(window=3), "gpt2 comes nearest", "window (None, None)"),
        (nf.DecoderLM, dict(scale=0.3), "gpt2 comes nearest", "scale 1.0 instead of 0.3"),
        (nf.Encoder, dict(), "bert comes nearest", "token_types 1 instead of 0"),
        (nf.EncoderDecoder, dict(eps=1e-3), "bart comes nearest", "eps 1e-05 instead of 0.001"),
    ]
    for kind, options, *messages in cases:
        with pytest.raises(ValueError, match='architecture="npformer" saves any model') as error:
            nf.save_pretrained(kind(nf.TransformerConfig(**base, **options), rng=0), tmp_path / "m")
        for message in messages:
            assert message in str(error.value)
    model = nf.DecoderLM(nf.TransformerConfig(**base), rng=0)
    with pytest.raises(ValueError, match="llama can't express this model: it would need"):
        nf.save_pretrained(model, tmp_path / "m", architecture="llama")
    with pytest.raises(ValueError, match="bert is no decoder"):
        nf.save_pretrained(model, tmp_path / "m", architecture="bert")
    assert not list(tmp_path.iterdir())


def test_arguments_that_make_no_sense(tmp_path, gpt2):
    model = nf.load_pretrained(gpt2[0])
    for options, message in (
        ({"architecture": "gpt5"}, "architecture must be one of gpt2, llama"),
        ({"dtype": "int8"}, "dtype must be one of float64, float32, float16, bfloat16"),
        ({"shard_bytes": 0}, "shard_bytes must be 1 or more"),
        ({"settings": {"n_embd": 4}}, "settings has n_embd = 4, but the model's is 15"),
    ):
        with pytest.raises(ValueError, match=message):
            nf.save_pretrained(model, tmp_path / "new", **options)
        assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file, but a model is saved as a folder"):
        nf.save_pretrained(model, tmp_path / "file")


# ------------------------------------------------------------------------------- whole or not


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_save_that_fails_leaves_no_new_folder(tmp_path, monkeypatch, at):
    fail_at(monkeypatch, at)
    with pytest.raises(OSError, match="no space left"):
        nf.save_pretrained(random_model("gpt2"), tmp_path / "new", shard_bytes=15_000)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_save_that_fails_leaves_the_old_model(tmp_path, monkeypatch, at):
    old, new = random_model("gpt2"), random_model("gpt2", seed=6)
    nf.save_pretrained(old, tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    with monkeypatch.context() as patch:
        fail_at(patch, at)
        with pytest.raises(OSError, match="no space left"):
            nf.save_pretrained(new, tmp_path / "m", shard_bytes=15_000)
    assert sorted(os.listdir(tmp_path / "m")) == [  # noqa: PTH208
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert same(old, nf.load_pretrained(tmp_path / "m", np.float64))


def fail_at(patch, count):
    """Let the ``count``-th file fail: two of weights, the index, the configuration."""
    written = []

    def filling(write):
        def full(*arguments):
            written.append(arguments[0].name)
            if len(written) == count:
                raise OSError("no space left")
            write(*arguments)

        return full

    patch.setattr(save, "write_safetensors", filling(write_safetensors))
    patch.setattr(save, "write_json", filling(write_json))


def test_an_old_models_other_files_do_not_stay_in_the_way(tmp_path):
    a, b, c = (random_model("gpt2", seed=seed) for seed in (1, 2, 3))
    nf.save_pretrained(a, tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    nf.save_pretrained(b, tmp_path / "m", shard_bytes=15_000)
    assert same(b, nf.load_pretrained(tmp_path / "m", np.float64))
    nf.save_pretrained(c, tmp_path / "m")
    assert same(c, nf.load_pretrained(tmp_path / "m", np.float64))
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
