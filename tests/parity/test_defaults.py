"""A setting that is left out of ``config.json`` means what it means to transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hugging_face import BARE, IDS, MODELS, run, texts
from saved import read

import npformer as nf

torch = pytest.importorskip("torch", reason="needs the extra `parity`")
pytest.importorskip("transformers", reason="needs the extra `parity`")

from huggingface_hub.errors import StrictDataclassError  # noqa: E402
from reference.hugging_face_models import CLASSES, reference  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)


def written_out(settings):
    """What we read where transformers has written every default down."""
    theirs = CLASSES[settings["model_type"]].config_class(**settings)
    return read(json.loads(json.dumps(theirs.to_dict())))


ALL = {**MODELS, **{f"bare {name}": settings for name, settings in BARE.items()}}
LEFT_OUT = [
    (name, key)
    for name, settings in ALL.items()
    for key in (None, *settings)
    if key != "model_type" and key not in IDS
]


@pytest.mark.parametrize(("name", "key"), LEFT_OUT)
def test_one_setting_left_out(name, key):
    settings = {k: v for k, v in ALL[name].items() if k != key}
    try:
        found = read(settings)
    except ValueError as error:  # a size that we want to see, or one that now fits no other
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert f"{key} is missing" in refused or key in ("head_dim", "num_key_value_heads")
        return
    assert found == written_out(settings)


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, key in LEFT_OUT if key])
def test_one_setting_null(name, key):
    """Where transformers makes anything of it, we make the same of it or refuse it."""
    settings = ALL[name] | {key: None}
    try:
        found = read(settings)
    except ValueError:
        return
    try:
        theirs = written_out(settings)
    except StrictDataclassError:
        return
    assert found == theirs


@pytest.mark.parametrize("name", BARE)
def test_a_file_with_nothing_but_sizes(name, tmp_path):
    settings = BARE[name]
    model, y, _ = reference(settings, seed=7)
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    ours = nf.load_pretrained(tmp_path, np.float64)
    text = texts(settings, seed=7)
    real = text["mask"] if "target" not in text else np.ones(y.shape[:2], bool)
    found, _ = run(ours, text)
    assert np.abs(y).max() > 0.5
    np.testing.assert_allclose(found[real], y[real], rtol=0, atol=1e-10 * np.abs(y).max())
