"""Read a GGUF file of the Llama line: llama.cpp's format, its weights often quantised.

The file is read and its numbers are widened by the package ``gguf``, of the extra ``models``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..arrays import Array
from .safetensors_file import brief
from .settings import Settings

LAYOUTS = {"llama": "interleaved", "qwen2": "half", "qwen3": "half"}
"""Architectures and their rotary layout: for Llama the converter reorders queries and keys."""

KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""A setting's name there and in ``config.json``."""

TENSORS = {
    "token_embd": "model.embed_tokens",
    "blk.*.attn_norm": "model.layers.*.input_layernorm",
    "blk.*.attn_q": "model.layers.*.self_attn.q_proj",
    "blk.*.attn_k": "model.layers.*.self_attn.k_proj",
    "blk.*.attn_v": "model.layers.*.self_attn.v_proj",
    "blk.*.attn_output": "model.layers.*.self_attn.o_proj",
    "blk.*.attn_q_norm": "model.layers.*.self_attn.q_norm",
    "blk.*.attn_k_norm": "model.layers.*.self_attn.k_norm",
    "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.ffn_gate": "model.layers.*.mlp.gate_proj",
    "blk.*.ffn_up": "model.layers.*.mlp.up_proj",
    "blk.*.ffn_down": "model.layers.*.mlp.down_proj",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""A module's name there and in a Hugging Face file."""

STRETCH = "rope_freqs.weight"
"""The numbers that Llama 3.1's rule divides its rotary frequencies by."""


class GGUFTensors:
    """The tensors of a GGUF file under Hugging Face's names; float32 when they are asked for."""

    def __init__(self, path: Path, tensors: list[Any]) -> None:
        self.where = str(path)
        self._tensors = {hugging_face_name(t.name): t for t in tensors if t.name != STRETCH}
        # There the axis whose numbers lie side by side comes first.
        self.shapes = {
            name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()
        }

    def __getitem__(self, name: str) -> Array:
        return widened(self._tensors[name]).reshape(self.shapes[name])


def widened(tensor: Any) -> Array:
    """Return the numbers that a quantised tensor stands for."""
    from gguf.quants import dequantize

    a: Array = dequantize(tensor.data, tensor.tensor_type)
    return a


def hugging_face_name(name: str) -> str:
    """Return the name of a tensor in a Hugging Face file; one that has none stays as it is."""
    module, _, leaf = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", name)
    place = TENSORS.get(re.sub(r"\.\d+\.", ".*.", module))
    if place is None:
        return name
    return f"{place.replace('*', number[1]) if number else place}.{leaf}"


def open_gguf(
    path: Path, ignore: Collection[str] = ()
) -> tuple[Settings, GGUFTensors, dict[str, Any]]:
    """Return the settings of a GGUF file, its tensors, and what differs from a folder's model."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ImportError(
            f"{path} needs the package gguf to be read: pip install 'npformer[models]'"
        ) from None
    try:
        reader = GGUFReader(str(path))
        # The vocabulary takes seconds and is not needed.
        wanted = [n for n in reader.fields if not n.startswith("tokenizer.")]
        fields = {name: reader.fields[name].contents() for name in wanted}
        tensors = GGUFTensors(path, reader.tensors)
    except (ValueError, LookupError, TypeError, ArithmeticError, MemoryError, struct.error) as e:
        raise ValueError(f"{path} is not a whole GGUF file: {e}") from None
    kind = fields.get("general.architecture")
    if kind not in LAYOUTS:
        raise ValueError(
            f"{path}: architecture {brief(kind)} is not supported, only {', '.join(LAYOUTS)}"
        )
    values: dict[str, Any] = {
        "model_type": kind,
        "tie_word_embeddings": "lm_head.weight" not in tensors.shapes,
        "vocab_size": tensors.shapes.get("model.embed_tokens.weight", (0,))[0],
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors.shapes,
    }
    if kind == "qwen2":
        del values["attention_bias"]  # it always has these
    mine = f"{kind}."
    own = {n.removeprefix(mine): value for n, value in fields.items() if n.startswith(mine)}
    rotated = own.pop("rope.dimension_count", None)
    scaling = own.pop("rope.scaling.type", "none")
    factor = own.pop("rope.scaling.factor", None)
    for name, value in own.items():
        theirs = KEYS.get(name, f"{kind}.{name}")
        if values.get(theirs, value) != value:
            raise ValueError(f"{path}: {name} is {value}, which contradicts {values[theirs]}")
        values[theirs] = value
    heads = values.get("num_attention_heads")
    values.setdefault("num_key_value_heads", heads)  # what absent means there
    if rotated is not None and isinstance(heads, int) and heads > 0:
        width = values.get("head_dim") or values.get("hidden_size", 0) // heads
        if rotated != width:
            raise ValueError(f"{path}: {rotated} of {width} features of a head rotate, not all")
    if scaling == "linear":
        values["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif scaling != "none":
        raise ValueError(f"{path}: rope scaling {brief(scaling)} is not supported, only linear")
    stretch = next((t for t in reader.tensors if t.name == STRETCH), None)
    if stretch is not None:
        divisors = [float(x) for x in widened(stretch).ravel()]
        values["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
        }
    return Settings(values, ignore, str(path)), tensors, {"rope_layout": LAYOUTS[kind]}
