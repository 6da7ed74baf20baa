"""Every family against transformers in float64: logits and all gradients, and both ways on disk."""

from __future__ import annotations

import numpy as np
import pytest
from hugging_face import MODELS, cotangent, run, texts
from saved import random_model

import npformer as nf
from npformer.weights.load import FAMILIES

torch = pytest.importorskip("torch", reason="needs the extra `parity`")
transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")

from reference.hugging_face_models import logits, reference, true_float64  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """A family's model, what it gives, and ours from the folder that it saved."""
    settings = MODELS[request.param]
    model, y, grads = reference(settings, seed=7)
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    return settings, model, y, grads, nf.load_pretrained(folder, np.float64)


def test_logits(both):
    settings, _, y, _, ours = both
    text = texts(settings, seed=7)
    real = text["mask"] if "target" not in text else np.ones(y.shape[:2], bool)
    found, _ = run(ours, text)
    assert np.abs(y).max() > 0.5
    np.testing.assert_allclose(found[real], y[real], rtol=0, atol=1e-10 * np.abs(y).max())


def test_gradients(both):
    settings, _, y, grads, ours = both
    text = texts(settings, seed=7)
    _, saved = run(ours, text)
    ours.zero_grad()
    ours.backward(cotangent(y, text, seed=7), saved)
    family = FAMILIES[settings["model_type"]]
    found = dict(family.to_file({name: p.grad for name, p in ours.named_parameters()}))
    missing = {"pooler.dense.weight", "pooler.dense.bias", "final_logits_bias"}
    assert found.keys() - grads.keys() <= missing  # no parameters there, or not reached
    assert grads.keys() <= found.keys()
    largest = max(np.abs(g).max() for g in grads.values())
    for name, g in grads.items():
        size = max(np.abs(g).max(), 1e-6 * largest)  # a key's bias has exactly no gradient
        assert np.abs(found[name] - g).max() <= 1e-9 * size, name


def test_what_we_save_loads_there(both, tmp_path):
    settings, model, y, _, ours = both
    nf.save_pretrained(ours, tmp_path / "ours")
    with true_float64():
        again, info = type(model).from_pretrained(
            tmp_path / "ours",
            dtype=torch.float64,
            attn_implementation="eager",
            output_loading_info=True,
        )
    assert not any(info.values()), info
    kept = dict(model.named_parameters())
    for name, p in again.named_parameters():
        if not name.endswith("embed_positions.weight"):
            np.testing.assert_array_equal(p.detach(), kept[name].detach(), err_msg=name)
    text = texts(settings, seed=7)
    real = text["mask"] if "target" not in text else np.ones(y.shape[:2], bool)
    # Marian's own table of positions is rounded to float32.
    close = 1e-6 if settings["model_type"] == "marian" else 1e-12
    found = logits(again, text).detach().numpy()
    np.testing.assert_allclose(found[real], y[real], rtol=0, atol=close * np.abs(y).max())


def test_an_interleaved_model_of_ours_is_the_same_there(tmp_path):
    """Queries and keys are stored in the other rotary layout there."""
    cfg = nf.TransformerConfig(
        V=23, d=18, L=2, H=6, H_kv=2, d_h=10, d_ff=13, T_max=19, positions="rope", norm="rmsnorm",
        gated=True, activation="silu", bias=False, tied=False, qk_norm="head", rope_base=50.0,
    )  # fmt: skip
    ours = nf.DecoderLM(cfg, rng=3, dtype=np.float64)
    for i, p in enumerate(ours.parameters()):
        p.value += 0.3 * np.random.default_rng(i).standard_normal(p.value.shape)
    nf.save_pretrained(ours, tmp_path / "ours")
    with true_float64():
        there = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "ours", dtype=torch.float64, attn_implementation="eager"
        )
    text = {"ids": np.arange(14).reshape(2, 7), "mask": np.ones((2, 7), bool)}
    y = ours(text["ids"])
    assert type(there).__name__ == "Qwen3ForCausalLM"
    np.testing.assert_allclose(logits(there, text).detach().numpy(), y, rtol=0, atol=1e-12)
    again = nf.load_pretrained(tmp_path / "ours", np.float64)
    assert again.cfg.rope_layout == "half"
    np.testing.assert_allclose(again(text["ids"]), y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_training_goes_on_there_and_comes_back(name, tmp_path):
    """Two steps here and two there are four steps here."""
    text = texts(MODELS[name], seed=11)
    ids, targets = text["ids"][:, :-1], text["ids"][:, 1:]

    def train(model, steps):
        optimizer = nf.optim.SGD(model, lr=0.01, momentum=0.0)
        for _ in range(steps):
            _, saved = model.loss(ids, targets)
            model.zero_grad()
            model.loss_backward(1.0, saved)
            optimizer.step()
        return model

    start = random_model(name)
    here = train(start.astype(np.float64), 4)
    nf.save_pretrained(train(start.astype(np.float64), 2), tmp_path / "half way")
    with true_float64():
        there = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "half way", dtype=torch.float64, attn_implementation="eager"
        )
        optimizer = torch.optim.SGD(there.parameters(), lr=0.01)
        for _ in range(2):
            z = there(torch.from_numpy(ids)).logits
            loss = torch.nn.functional.cross_entropy(
                z.reshape(-1, z.shape[-1]), torch.from_numpy(targets.reshape(-1).copy())
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    there.save_pretrained(tmp_path / "back")
    back = nf.load_pretrained(tmp_path / "back", np.float64)
    moved = 0.0
    for (key, p), (_, q), (_, r) in zip(
        here.named_parameters(), back.named_parameters(), start.named_parameters(), strict=True
    ):
        np.testing.assert_allclose(q.value, p.value, rtol=0, atol=1e-11, err_msg=key)
        moved = max(moved, np.abs(q.value - r.value).max())
    assert moved > 1e-3
