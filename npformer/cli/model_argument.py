"""A model on the command line: the name of a preset, or a file that describes one."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..catalogue import preset
from ..config import TransformerConfig
from ..experts import ExpertsConfig
from ..sizes import AnyConfig


def read_model(name: str) -> AnyConfig:
    """Return the configuration of a preset, or that in a file whose name ends in .json or .toml."""
    return config_file(name) if name.endswith((".json", ".toml")) else preset(name)


def config_file(path: str) -> AnyConfig:
    """Read a configuration: the fields of `TransformerConfig`, or those of `ExpertsConfig`.

    A Hugging Face ``config.json`` is understood too. A file without a ``name`` lends it its own.

    Raises
    ------
    ValueError
        in one sentence that begins with the file's name.
    """
    file = Path(path)
    try:
        text = file.read_bytes().decode()
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold the fields of a TransformerConfig by name")
    if "model_type" in values:
        return _hugging_face(values, path)
    kind: Any = ExpertsConfig if "experts" in values else TransformerConfig
    known = {f.name: f for f in fields(kind)}
    for key in values:
        if key not in known:
            alike = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f", did you mean {alike[0]}?" if alike else ""
            raise ValueError(f"{path} has {key!r}, which {kind.__name__} does not know{hint}")
    missing = [name for name in _required(kind) if name not in values]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    try:
        cfg: AnyConfig = kind(**{"name": file.stem, **values})
        if isinstance(cfg, TransformerConfig):
            cfg.check_all_is_read()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return cfg


def _required(kind: Any) -> list[str]:
    from dataclasses import MISSING

    return [f.name for f in fields(kind) if f.default is MISSING]


def _hugging_face(values: dict[str, Any], path: str) -> TransformerConfig:
    from ..weights.load import FAMILIES
    from ..weights.settings import Settings

    settings = Settings(values, (), path)
    family = FAMILIES.get(str(settings.get("model_type")))
    if family is None:
        raise ValueError(
            f"{path}: model_type {values['model_type']!r} is not supported, only "
            f"{', '.join(FAMILIES)}"
        )
    found = family.read(settings)
    settings.finish()
    try:
        folder = Path(path).resolve().parent.name
        return TransformerConfig(**{"kind": family.kind, "name": folder, **found})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
