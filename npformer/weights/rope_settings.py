"""The rotary settings of a ``config.json``, in the spelling of transformers 4 and of 5."""

from __future__ import annotations

from typing import Any

from ..arrays import is_number
from ..config import TransformerConfig
from ..rope_scaling import read_scaling
from .safetensors_file import brief
from .settings import Settings

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
"""What Hugging Face knows, out of `npformer.rope_scaling.RULES`."""


def read_rope(s: Settings, T_max: int) -> dict[str, Any]:
    """Return base and scaling from either spelling.

    transformers 5 writes ``rope_parameters`` with everything in it, transformers 4 ``rope_theta``
    and, where something is scaled, ``rope_scaling``; the kind is "rope_type", in old files "type".
    """
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(s.get(name, {}), dict):
            raise s.wrong(f"{name} must be an object, but is {brief(s.get(name))}")
    found = dict(s.get("rope_scaling", {}) or s.get("rope_parameters", {}))
    if any(isinstance(value, dict) for value in found.values()):
        raise s.wrong("rotary settings that differ by layer are not supported")
    null = None in (s.values.get("rope_theta", 0), found.get("rope_theta", 0))
    inside, outside = found.pop("rope_theta", None), s.number("rope_theta", None)
    if null and inside is None and outside is None:
        raise s.wrong("rope_theta is null: give it a value or leave it out")
    if None not in (inside, outside) and inside != outside:
        raise s.wrong(f"rope_theta is {outside} in one place and {inside} in another")
    theta = inside if inside is not None else outside if outside is not None else 10000.0
    if not is_number(theta) or theta <= 0:
        raise s.wrong(f"rope_theta must be a positive number, but is {brief(theta)}")
    kind = found.pop("rope_type", found.get("type", "default"))
    found.pop("type", None)
    if kind not in ROPE_TYPES:
        raise s.wrong(f"rope type {brief(kind)} is not supported, only {', '.join(ROPE_TYPES)}")
    if (found.pop("partial_rotary_factor", None) or s.get("partial_rotary_factor", 1.0)) != 1:
        raise s.wrong("partial_rotary_factor is not supported for this model_type")
    found = {k: v for k, v in found.items() if v is not None}
    original = s.whole("original_max_position_embeddings", None)
    if kind == "dynamic":
        found["original_max_position_embeddings"] = T_max  # whatever the file says
    elif kind in ("yarn", "llama3", "longrope"):
        found.setdefault("original_max_position_embeddings", T_max)
        if original is not None:
            found["original_max_position_embeddings"] = original
    if kind == "longrope" and "factor" not in found:
        found["max_position_embeddings"] = T_max
    scaling = {"rope_type": kind, **found}
    try:
        read_scaling(scaling, theta)
    except ValueError as error:
        raise s.wrong(str(error)) from None
    return {"rope_base": float(theta), "rope_scaling": None if kind == "default" else scaling}


def write_rope(cfg: TransformerConfig) -> dict[str, Any]:
    """Return the spelling of transformers 4, which 5 reads too."""
    scaling = dict(cfg.rope_scaling or {})
    theta = scaling.pop("rope_theta", cfg.rope_base)
    kind = scaling.pop("type", scaling.get("rope_type", "default"))
    scaling.pop("max_position_embeddings", None)
    if kind == "dynamic":
        del scaling["original_max_position_embeddings"]
    found = {
        "rope_theta": theta,
        "rope_scaling": None if kind == "default" else {**scaling, "rope_type": kind},
    }
    if kind == "longrope":  # transformers 4 looks for it here
        name = "original_max_position_embeddings"
        found[name] = scaling[name]
    return found
