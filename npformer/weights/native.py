"""Our own ``model_type``, for models that no family of Hugging Face's can express."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ..config import TransformerConfig
from .family import KINDS, Family
from .safetensors_file import brief
from .settings import Settings

MODEL_TYPE = "npformer"


def native(kind: str) -> Family:
    """Return the family in which tensors are called and laid out as the parameters are."""
    model = next(model for model, name in KINDS.items() if name == kind)
    return Family(
        model_type=MODEL_TYPE,
        architecture=model.__name__,
        model=model,
        table={},
        read=_read,
        write=_write,
        prefix="",
        tied=(),
    )


def kind_of(s: Settings) -> str:
    """Return the ``kind`` of the configuration in the file."""
    values = s.get("config", {})
    kind = values.get("kind") if isinstance(values, dict) else None
    if kind not in KINDS.values():
        raise s.wrong(f"config.kind must be one of {', '.join(KINDS.values())}, not {brief(kind)}")
    return str(kind)


def _read(s: Settings) -> dict[str, Any]:
    values = dict(s.get("config", {}))
    unknown = sorted(values.keys() - {f.name for f in fields(TransformerConfig)})
    if unknown:
        raise s.wrong(
            f"config has {', '.join(map(brief, unknown))}, which this version does not know"
        )
    del values["kind"]
    return values


def _write(cfg: TransformerConfig) -> dict[str, Any]:
    return {"config": asdict(cfg)}
