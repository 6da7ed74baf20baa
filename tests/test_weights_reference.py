"""Every family against numbers that transformers gave, recorded: no PyTorch is needed here."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import DATA
from hugging_face import MODELS, cotangent, projections, run, texts, weights

import npformer as nf
from npformer.weights.load import FAMILIES
from npformer.weights.safetensors_file import write_safetensors

RECORDS = json.loads((DATA / "transformers_reference.json").read_text(encoding="utf-8"))
SEED = RECORDS.pop("about")["seed"]


@pytest.fixture(scope="module", params=MODELS)
def loaded(request, tmp_path_factory):
    """A model from a folder in transformers' spelling, and what transformers said of it."""
    settings, record = MODELS[request.param], RECORDS[request.param]
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "config.json").write_text(json.dumps(settings))
    shapes = {name: tuple(shape) for name, (shape, _) in record["tensors"].items()}
    numbers = weights(shapes, SEED)
    if settings["model_type"] == "marian":  # sinusoids, which are not stored
        numbers = {n: a for n, a in numbers.items() if "embed_positions" not in n}
    write_safetensors(folder / "model.safetensors", numbers.items())
    return settings, record, nf.load_pretrained(folder, np.float64)


def test_there_is_a_record_of_every_model():
    assert RECORDS.keys() == MODELS.keys()


def test_logits(loaded):
    settings, record, model = loaded
    y, _ = run(model, texts(settings, SEED))
    size = np.abs(record["last"]).max()
    np.testing.assert_allclose(y[0, -1], record["last"], rtol=0, atol=1e-11 * size)


def test_gradients(loaded):
    settings, record, model = loaded
    text = texts(settings, SEED)
    y, saved = run(model, text)
    model.zero_grad()
    model.backward(cotangent(y, text, SEED), saved)
    family = FAMILIES[settings["model_type"]]
    grads = dict(family.to_file({name: p.grad for name, p in model.named_parameters()}))
    products = {n: product for n, (_, product) in record["tensors"].items() if product is not None}
    found = projections({name: grads[name] for name in products}, SEED)
    sizes = {name: np.sqrt(np.sum(grads[name] ** 2)) for name in products}
    for name, product in products.items():  # a key's bias has no gradient at all
        close = 1e-10 * max(sizes[name], 1e-4 * max(sizes.values()))
        assert abs(found[name] - product) < close, name
