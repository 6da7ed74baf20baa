"""Models with order-one numbers everywhere, saved, compared and tampered with."""

from __future__ import annotations

import json

import numpy as np
from hugging_face import MODELS, weights

import npformer as nf
from npformer.weights.load import FAMILIES
from npformer.weights.safetensors_file import SafetensorsFile, write_safetensors
from npformer.weights.settings import Settings


def random_model(name, dtype=np.float64, seed=5):
    """A family's model, by its name or settings, with order-one numbers in every parameter."""
    settings = MODELS[name] if isinstance(name, str) else name
    family = FAMILIES[settings["model_type"]]
    cfg = nf.TransformerConfig(**family.read(Settings(settings)), kind=family.kind)
    model = family.model(cfg, rng=0, dtype=dtype)
    state = model.state_dict()
    for key, a in weights({key: a.shape for key, a in state.items()}, seed).items():
        state[key][...] = a
    return model


def same(a, b):
    """Whether two models have the same parameters, bit for bit and row by row."""
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    for name, x in left.items():
        assert right[name].dtype == x.dtype
        assert right[name].flags.c_contiguous
        assert right[name].flags.writeable
        assert right[name].tobytes() == x.tobytes(), name
    return True


def rewrite(folder, tensors, **settings):
    """Write tensors, and settings over those that are there."""
    write_safetensors(folder / "model.safetensors", tensors.items())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


def tensors_of(folder):
    """The tensors of a folder's one file, by name, in memory."""
    file = SafetensorsFile(folder / "model.safetensors")
    return {name: file[name].copy() for name in file.entries}


def read(settings, ignore=()):
    """The configuration that a file's settings stand for."""
    s = Settings(settings, ignore)
    family = FAMILIES[settings["model_type"]]
    fields = family.read(s)
    s.finish()
    return nf.TransformerConfig(**fields, kind=family.kind)


def change(name, **settings):
    """The settings of a model with some others."""
    return MODELS[name] | settings
