"""Save a model as a folder that transformers reads."""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from ..arrays import Array
from ..config import TransformerConfig
from ..files import write_json
from ..models import DecoderLM, Encoder, EncoderDecoder
from .family import Family, interleaved_to_half, meaning
from .load import FAMILIES
from .native import MODEL_TYPE, native
from .safetensors_file import NAMES, SIZES, write_safetensors
from .settings import Settings

IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Null unless given: the families' own defaults name tokens of their first models."""


def save_pretrained(
    model: DecoderLM | Encoder | EncoderDecoder,
    folder: str | PathLike[str],
    *,
    architecture: str | None = None,
    dtype: str | None = None,
    settings: Mapping[str, Any] | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Save a model as ``config.json`` and ``model.safetensors``, which `load_pretrained` reads.

    What is written is read in transformers 4 and 5, with the same logits. Everything is first
    written beside its place and renamed at the end: a new folder appears whole or not at all; in
    an old one nothing changes before every new file is complete.

    Parameters
    ----------
    model : DecoderLM, Encoder or EncoderDecoder
    folder : str or path
    architecture : str, optional
        A ``model_type`` of Hugging Face's, or "npformer" for a file with our own names, which
        holds any model but is read here only. Unless given, the first of the former that can
        express the model.
    dtype : str, optional
        "float64", "float32", "float16" or "bfloat16"; the model's own unless given.
    settings : dict, optional
        More for ``config.json``, such as ``eos_token_id``.
    shard_bytes : int
        A larger model is split into files of at most this size and an index. (A tensor is never
        split.)

    Raises
    ------
    ValueError
        if no family can express the model, saying what the nearest one would change: an
        interleaved rotary layout is translated, all else must be exactly as it is.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{target} is a file, but a model is saved as a folder")
    dtype = str(model.dtype) if dtype is None else dtype
    if dtype not in NAMES:
        raise ValueError(f"dtype must be one of {', '.join(NAMES)}, but is {dtype!r}")
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be 1 or more, but is {shard_bytes}")
    family = choose(model.cfg, architecture)
    config = {
        "model_type": family.model_type,
        "architectures": [family.architecture],
        "torch_dtype": dtype,
        **dict.fromkeys(IDS),
        **family.write(model.cfg),
    }
    for name, value in (settings or {}).items():
        if config.get(name) not in (None, value):
            raise ValueError(
                f"settings has {name} = {value!r}, but the model's is {config[name]!r}"
            )
        config[name] = value
    own = family.model_type == MODEL_TYPE
    state = model.state_dict() if own else interleaved_to_half(model, model.cfg)
    tensors = list(family.to_file(state))
    fresh = not target.exists()
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part") if fresh else target
    try:
        part.mkdir(parents=True, exist_ok=True)
        _write(part, config, tensors, dtype, shard_bytes)
        if fresh:
            part.replace(target)
    finally:
        if fresh:
            shutil.rmtree(part, ignore_errors=True)


def choose(cfg: TransformerConfig, architecture: str | None) -> Family:
    """Return the family that expresses a configuration: read again, it must mean the same."""
    if architecture == MODEL_TYPE:
        return native(cfg.kind)
    if architecture is not None and architecture not in FAMILIES:
        raise ValueError(
            f"architecture must be one of {', '.join([*FAMILIES, MODEL_TYPE])}, "
            f"but is {architecture!r}"
        )
    nearest: tuple[str, list[str]] | None = None
    for family in [FAMILIES[architecture]] if architecture else FAMILIES.values():
        if family.kind != cfg.kind:
            continue
        changes = changed_by(family, cfg)
        if not changes:
            return family
        if nearest is None or len(changes) < len(nearest[1]):
            nearest = family.model_type, changes
    own = f'architecture="{MODEL_TYPE}" saves any model'
    if nearest is None:
        raise ValueError(f"{architecture} is no {cfg.kind}, but the model is one; {own}")
    who, changes = nearest
    verdict = "can't" if architecture else "comes nearest, but can't"
    raise ValueError(
        f"{who} {verdict} express this model: it would need {', '.join(changes)}; {own}"
    )


def changed_by(family: Family, cfg: TransformerConfig) -> list[str]:
    """Return what a family would change about a configuration, in words."""
    mine = meaning(cfg)
    try:
        s = Settings({"model_type": family.model_type, **family.write(cfg)})
        fields = family.read(s)
        s.finish()
        fields |= {field: getattr(cfg, field) for field in family.present.values()}
        theirs = meaning(TransformerConfig(**fields, kind=family.kind))
    except ValueError as error:
        return [str(error)]
    return [
        f"{name} {theirs[name]!r} instead of {mine[name]!r}"
        for name in mine
        if not _same(mine[name], theirs[name])
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-12)
    return bool(a == b)


def _write(
    folder: Path,
    config: dict[str, Any],
    tensors: list[tuple[str, Array]],
    dtype: str,
    shard_bytes: int,
) -> None:
    """Write every file under another name, then give them theirs, the configuration last."""
    shards = _shards(tensors, SIZES[NAMES[dtype]], shard_bytes)
    n = len(shards)
    names = [f"model-{i:05}-of-{n:05}.safetensors" for i in range(1, n + 1)]
    names = ["model.safetensors"] if n == 1 else names
    texts = {"config.json": config}
    if n > 1:
        where = {t: name for name, shard in zip(names, shards, strict=True) for t, _ in shard}
        size = sum(a.size for _, a in tensors) * SIZES[NAMES[dtype]]
        index = {"metadata": {"total_size": size}, "weight_map": where}
        texts = {"model.safetensors.index.json": index, **texts}
    token = secrets.token_hex(4)
    parts = {name: folder / f".{name}.{token}" for name in [*names, *texts]}
    try:
        for name, shard in zip(names, shards, strict=True):
            write_safetensors(parts[name], shard, dtype)
        for name, value in texts.items():
            write_json(parts[name], value)
        old = {*folder.glob("model.safetensors*"), *folder.glob("model-*-of-*.safetensors")}
        for name, part in parts.items():
            part.replace(folder / name)
    except BaseException:
        for part in parts.values():
            with suppress(FileNotFoundError):
                part.unlink()
        raise
    for stale in old - {folder / name for name in parts}:
        stale.unlink()  # a reader would prefer it


def _shards(
    tensors: list[tuple[str, Array]], itemsize: int, most: int
) -> list[list[tuple[str, Array]]]:
    shards: list[list[tuple[str, Array]]] = [[]]
    held = 0
    for name, a in tensors:
        if shards[-1] and held + a.size * itemsize > most:
            shards.append([])
            held = 0
        shards[-1].append((name, a))
        held += a.size * itemsize
    return shards
