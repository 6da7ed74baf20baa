"""What a family of models is in a file: the names of its settings, and where its tensors lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..config import TransformerConfig
from ..models import DecoderLM, Encoder, EncoderDecoder
from ..module import Module
from ..rope_scaling import read_scaling
from .settings import Settings

KINDS: dict[type[Any], str] = {
    DecoderLM: "decoder",
    Encoder: "encoder",
    EncoderDecoder: "encoder-decoder",
}
"""Our models and the ``kind`` of their configurations."""

HEADS = ("lm_head", "final_logits_bias")
"""Tensors that stand beside the prefixed ones of the base model."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}
"""Hugging Face's names of activations and ours. ("gelu" is the exact form there and here.)"""

FORMS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "plain": (lambda a: a, lambda a: a),
    "transposed": (lambda a: a.T, lambda a: a.T),
    "row": (lambda a: a[0], lambda a: a[None]),
    "shifted": (lambda a: a[2:], lambda a: np.concatenate([np.zeros_like(a[:2]), a])),
}
"""How the array of a file becomes ours, and back.

``transposed``: a linear map is stored (out, in), as it multiplies columns there; rows x @ W here.
``row``: a bias with a batch axis. ``shifted``: BART's table of positions begins with two rows that
no position reads.
"""


class Slot(NamedTuple):
    """One tensor of a file, and the parameters that lie in it side by side."""

    file: str
    ours: tuple[str, ...]
    form: str


@dataclass(frozen=True)
class Family:
    """One ``model_type``.

    Attributes
    ----------
    model_type, architecture : str
        As in ``config.json``.
    model : class
        `DecoderLM`, `Encoder` or `EncoderDecoder`.
    table : dict
        Module of ours to module of the file; ``*`` is the number of a layer. Modules with the same
        name in the file are stored as one, side by side in this order. A value may add a form after
        a colon.
    read : function
        `Settings` to the fields of a `TransformerConfig`.
    write : function
        The inverse, for configurations that the family can express; it may be sloppy, since what it
        writes is read again and compared.
    prefix : str
        What a model with a head puts before the names of the base model.
    saved_prefix : str, optional
        What is written, if not that.
    transposed : bool
        Whether linear maps are stored (out, in).
    tied : names
        Further names of the embedding table, where it is tied.
    unused : patterns
        Tensors that a file may have and that no formula here needs.
    renamed : pairs
        Endings of names in old files and what they are called today.
    present : dict
        Tensors that a file may lack, and the field of the configuration that says so.
    """

    model_type: str
    architecture: str
    model: type[Any]
    table: dict[str, str]
    read: Callable[[Settings], dict[str, Any]]
    write: Callable[[TransformerConfig], dict[str, Any]]
    prefix: str
    saved_prefix: str | None = None
    transposed: bool = True
    tied: tuple[str, ...] = ("lm_head.weight",)
    unused: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    present: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The ``kind`` of its configurations."""
        return KINDS[self.model]

    def slots(self, names: Iterable[str]) -> list[Slot]:
        """Return where each of a model's parameters lies, in the order of the model."""
        if not self.table:
            return [Slot(name, (name,), "plain") for name in names]
        order = {ours: i for i, ours in enumerate(self.table)}
        joined: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for name in names:
            module, _, leaf = name.rpartition(".")
            pattern = re.sub(r"\.\d+(?=\.|$)", ".*", module)
            target = self.table.get(name) or self.table.get(pattern)
            if target is None:
                raise KeyError(f"{self.model_type} has no place for {name}")
            place, _, form = target.partition(":")
            for number in re.findall(r"\.(\d+)(?=\.|$)", module):
                place = place.replace("*", number, 1)
            if name not in self.table:
                place += ".bias" if leaf in ("b", "beta") else ".weight"
            if not form:
                form = "transposed" if leaf == "W" and self.transposed else "plain"
            joined.setdefault((place, form), []).append((order.get(pattern, 0), name))
        return [
            Slot(place, tuple(name for _, name in sorted(parts)), form)
            for (place, form), parts in joined.items()
        ]

    def to_file(self, values: dict[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yield the tensors of a file for the values (or gradients) of a model's parameters."""
        prefix = self.prefix if self.saved_prefix is None else self.saved_prefix
        for slot in self.slots(values):
            parts = [values[name] for name in slot.ours]
            a = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
            name = slot.file if slot.file.startswith(HEADS) else prefix + slot.file
            yield name, FORMS[slot.form][1](a)


def file_shape(slot: Slot, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that a slot's tensor must have in the file."""
    width = sum(shapes[name][-1] for name in slot.ours)
    ours = np.broadcast_to(np.float32(0), (*shapes[slot.ours[0]][:-1], width))
    if slot.form == "shifted":
        return (ours.shape[0] + 2, *ours.shape[1:])
    return FORMS[slot.form][1](ours).shape


def pieces(slot: Slot, a: Array, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Array]]:
    """Yield the parameters that lie in a tensor of a file, as views of it."""
    a = FORMS[slot.form][0](a)
    at = 0
    for name in slot.ours:
        width = shapes[name][-1]
        yield name, a[..., at : at + width]
        at += width


def interleaved_to_half(model: Module, cfg: TransformerConfig) -> dict[str, Array]:
    r"""Return a model's parameters with the features of queries and keys in the "half" order.

    Rotary pairs are (2i, 2i + 1) in one layout and (i, i + n/2) in the other. A score is a sum over
    features, so the same permutation of the columns of Wq and Wk (and of a norm's gains between
    them and the rotation) leaves it as it is: column 2i of a head moves to i, 2i + 1 to i + n/2.
    """
    state = model.state_dict()
    if cfg.positions != "rope" or cfg.rope_layout == "half":
        return state
    d_h = cfg.attention(0).width
    n = d_h if cfg.rotary_dim is None else cfg.rotary_dim
    order = np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2), np.arange(n, d_h)])
    for name, a in state.items():
        if re.search(r"\.attn\.(Wq|Wk|q_norm|k_norm)\.", name):
            heads = a.reshape(*a.shape[:-1], -1, d_h)
            state[name] = heads[..., order].reshape(a.shape)
    return state


IRRELEVANT = ("kernel", "recompute", "init", "dropout", "attention_dropout", "name", "rope_layout")
"""Fields that no trained function depends on, and the layout that `interleaved_to_half` settles."""


def meaning(cfg: TransformerConfig) -> dict[str, Any]:
    """Return what a configuration says about the function, every default written out.

    Two configurations with the same meaning are the same model with the same parameters.
    """
    found = {f.name: getattr(cfg, f.name) for f in fields(cfg) if f.name not in IRRELEVANT}
    attention = cfg.attention(0)
    del found["bias"]
    found |= {"qkv_bias": attention.bias, "out_bias": attention.out_bias}
    found["ffn_bias"] = cfg.bias if cfg.ffn_bias is None else cfg.ffn_bias
    found["final_norm"] = cfg.needs_final_norm
    found["scale"] = attention.width**-0.5 if cfg.scale is None else cfg.scale
    for name in ("placement", "window", "d_ff"):
        found[name] = tuple(cfg.at(name, layer) for layer in range(cfg.L))
    del found["rope_base"]
    rotated = cfg.positions == "rope"
    found["rope_scaling"] = read_scaling(cfg.rope_scaling, cfg.rope_base) if rotated else None
    found["rotary_dim"] = attention.width if cfg.rotary_dim is None else cfg.rotary_dim
    if cfg.positions != "sinusoidal":
        found["sinusoidal_layout"] = None
    encoder = cfg.encoder_side() if cfg.kind == "encoder-decoder" else cfg
    return found | {
        "L_encoder": encoder.L,
        "H_encoder": encoder.H,
        "d_ff_encoder": tuple(encoder.at("d_ff", layer) for layer in range(encoder.L)),
    }
