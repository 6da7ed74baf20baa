"""Load a model from a folder, or refuse it in one sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..config import TransformerConfig
from ..position import sinusoidal
from ..sizes import count_parameters
from ..unstarted import Unstarted
from .decoders import GEMMA2, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3
from .family import HEADS, Family, file_shape, pieces
from .native import MODEL_TYPE, kind_of, native
from .safetensors_file import SafetensorsFile, brief, convert, read_json
from .settings import Settings
from .two_sided import BART, BERT, MARIAN

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, BERT, BART, MARIAN)
}
"""The families by their ``model_type``."""

MOST = 40
"""Faults that one message lists."""

NUMBERS = 10_000_000
"""What may be allocated for a model before its tensors are compared, beyond what the files hold."""

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class Tensors(Protocol):
    """The tensors of a model, however they are stored."""

    where: str

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...
    def __getitem__(self, name: str) -> Array: ...


def load_pretrained(
    folder: str | PathLike[str],
    dtype: npt.DTypeLike = np.float32,
    *,
    ignore: Collection[str] = (),
) -> Any:
    """Load a model from a Hugging Face folder.

    The families are GPT-2, Llama (1, 2, 3.x), Mistral, Qwen2 and 2.5, Qwen3, Gemma-2 (a
    `DecoderLM`), BERT with sentence-transformers' MiniLM (an `Encoder`), BART and Marian (an
    `EncoderDecoder`). Nothing is unpickled. The files are memory-mapped, and the numbers are
    copied into arrays of the model's own.

    A setting that would change the function and that no formula here knows is an error, and so is
    one that is not known at all. Rates of dropout that differ by place are left out.

    Parameters
    ----------
    folder : str or path
        With ``config.json`` and ``model.safetensors``, or ``model.safetensors.index.json`` and the
        files that it names; or a ``*.gguf`` file, which needs the extra ``models``.
    dtype : dtype
        float64, float32 or float16; files may have another one, bfloat16 too.
    ignore : names
        Settings of ``config.json`` to leave out.

    Returns
    -------
    model : DecoderLM, Encoder or EncoderDecoder
        Rotary layout as in the files: "half", in a GGUF file of Llama "interleaved".

    Raises
    ------
    FileNotFoundError
        if a file is missing.
    ValueError
        naming every setting or tensor that is missing, unexpected or wrongly shaped, or what is
        wrong with a file.
    """
    path = Path(folder)
    dtype = check_dtype(dtype)
    if path.suffix == ".gguf":
        from .gguf_file import open_gguf

        found, tensors, changed = open_gguf(path, ignore)
        return build(found, tensors, dtype, **changed)
    settings = Settings(read_config(path), ignore, str(path / "config.json"))
    return build(settings, FolderTensors(path), dtype)


def check_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype of a model, or raise TypeError."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found not in (np.float64, np.float32, np.float16):
        raise TypeError(
            f"dtype must be float64, float32 or float16, but is {dtype!r} (files may be in "
            "bfloat16; NumPy has no such type)"
        )
    return found


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in ``config.json``."""
    if not path.is_dir():
        kind = "is a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} must be a folder with config.json, but it {kind}")
    config = path / "config.json"
    if not config.is_file():
        raise FileNotFoundError(f"{path} has no config.json")
    values = read_json(config.read_bytes(), str(config))
    if not isinstance(values, dict):
        raise ValueError(f"{config} is no JSON object")
    return values


class FolderTensors:
    """The tensors of ``model.safetensors``, or of the files that its index names."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if single.is_file():
            self.files = [SafetensorsFile(single)]
        elif index.is_file():
            self.files = [SafetensorsFile(folder / name) for name in self._shards(index)]
        else:
            raise FileNotFoundError(self._nothing(folder))
        self.owner: dict[str, SafetensorsFile] = {}
        for file in self.files:
            for name in file.entries:
                if name in self.owner:
                    raise ValueError(
                        f"{brief(name)} is in {self.owner[name].path} and in {file.path}"
                    )
                self.owner[name] = file
        if not single.is_file():
            self._check_index(index)
        self.shapes = {name: file.entries[name].shape for name, file in self.owner.items()}

    def __getitem__(self, name: str) -> Array:
        return self.owner[name][name]

    def _shards(self, index: Path) -> list[str]:
        values = read_json(index.read_bytes(), str(index))
        weight_map = values.get("weight_map") if isinstance(values, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{index} has no weight_map")
        self.weight_map = weight_map
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            # Links are followed, since caches are made of them; paths are not.
            if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
                raise ValueError(f"{index} names {brief(name)}, which is no file of its own folder")
            if not (index.parent / name).is_file():
                raise FileNotFoundError(f"{index} names {brief(name)}, which does not exist")
        return names

    def _check_index(self, index: Path) -> None:
        there = {name: file.path.name for name, file in self.owner.items()}
        if there != self.weight_map:
            odd = sorted(
                name
                for name in there.keys() | self.weight_map.keys()
                if there.get(name) != self.weight_map.get(name)
            )
            raise ValueError(
                f"{index} and its files disagree about {', '.join(map(brief, odd[:5]))}"
            )

    @staticmethod
    def _nothing(folder: Path) -> str:
        found = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        if found:
            return (
                f"{folder} has {found[0]} but no model.safetensors: a pickle can run any program "
                "and is not read; load it in transformers and call save_pretrained there"
            )
        return f"{folder} has no model.safetensors and no model.safetensors.index.json"


# ------------------------------------------------------------------------------ putting together


LAYER_COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "encoder_layers",
    "decoder_layers",
    "L",
    "L_encoder",
)


def build(settings: Settings, tensors: Tensors, dtype: np.dtype[Any], **changed: Any) -> Any:
    """Return the model of these settings with these tensors in it."""
    kind = settings.get("model_type")
    known = ", ".join([*FAMILIES, MODEL_TYPE])
    if settings.get("quantization_config") is not None:
        raise settings.wrong("quantised weights are not supported")
    family = native(kind_of(settings)) if kind == MODEL_TYPE else FAMILIES.get(str(kind))
    if family is None:
        raise settings.wrong(f"model_type {brief(kind)} is not supported, only {known}")
    for name in LAYER_COUNTS:  # before anything that takes a time proportional to it
        n = settings.values.get(name)
        if isinstance(n, int) and n > len(tensors.shapes):
            raise settings.wrong(f"{name} is {n}, but there are {len(tensors.shapes)} tensors only")
    fields = family.read(settings) | changed
    names = _their_names(family, tensors)
    fields |= {field: tensor in names for tensor, field in family.present.items()}
    fields["name"] = fields.get("name") or Path(tensors.where).name
    settings.finish()
    try:
        cfg = TransformerConfig(**fields, kind=family.kind)
    except (TypeError, ValueError) as error:
        raise settings.wrong(str(error)) from None
    held = sum(math.prod(shape) for shape in tensors.shapes.values())
    needed = count_parameters(cfg)
    if needed > 4 * held + NUMBERS:  # else every tensor that does not fit is named
        raise ValueError(
            f"{tensors.where} holds {held} numbers, but its configuration needs {needed}"
        )
    model = family.model(cfg, rng=Unstarted(dtype), dtype=dtype)
    fill(model, family, tensors, names)
    return model


def _their_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """Return the names as in a family's table, with those in the files."""
    names: dict[str, str] = {}
    for theirs in tensors.shapes:
        name = theirs.removeprefix(family.prefix)
        for old, new in family.renamed:
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if name in names:
            raise ValueError(
                f"{tensors.where}: {brief(names[name])} and {brief(theirs)} are the same tensor"
            )
        names[name] = theirs
    return names


def fill(model: Any, family: Family, tensors: Tensors, names: dict[str, str]) -> None:
    """Copy the tensors into the parameters, or name everything that does not fit."""
    parameters = dict(model.named_parameters())
    shapes = {name: p.value.shape for name, p in parameters.items()}
    slots = family.slots(parameters)
    prefix = family.prefix if any(t.startswith(family.prefix) for t in tensors.shapes) else ""
    wanted = {slot.file for slot in slots}
    tied = family.tied if model.cfg.tied else ()
    table = slots[0].file
    sources = {slot.file: slot.file for slot in slots if slot.file in names}
    if table not in names:  # another name of it will do
        for name in tied:
            if name in names:
                sources[table] = name
    faults = [
        f"missing {slot.file if slot.file.startswith(HEADS) else prefix + slot.file}"
        for slot in slots
        if slot.file not in sources
    ]
    faults += [
        f"unexpected {brief(theirs)}"
        for name, theirs in names.items()
        if name not in wanted and name not in tied and not _unused(family, name)
    ]
    for slot in slots:
        for name in (slot.file, *(tied if slot.file == table else ())):
            if name in names:
                found, expected = tensors.shapes[names[name]], file_shape(slot, shapes)
                if found != expected:
                    faults.append(f"{names[name]} has shape {found} and not {expected}")
    if faults:
        more = f"; and {len(faults) - MOST} more" if len(faults) > MOST else ""
        raise ValueError(
            f"{tensors.where} does not fit its configuration: {'; '.join(faults[:MOST])}{more}"
        )
    _check_ties(tensors, [names[name] for name in (table, *tied) if name in names])
    _check_sinusoids(model.cfg, tensors, names)
    for slot in slots:
        if slot.file in sources:
            theirs = names[sources[slot.file]]
            for name, a in pieces(slot, tensors[theirs], shapes):
                p = parameters[name]
                p.value[...] = convert(a, p.value.dtype, f"{tensors.where}: {theirs}")


def _unused(family: Family, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in family.unused)


def _check_ties(tensors: Tensors, names: list[str]) -> None:
    """A tied table that is stored twice must be the same twice."""
    for name in names[1:]:
        if not np.array_equal(tensors[names[0]], tensors[name], equal_nan=True):
            raise ValueError(
                f"{tensors.where}: {names[0]} and {name} differ, but config.json ties them"
            )


def _check_sinusoids(cfg: TransformerConfig, tensors: Tensors, names: dict[str, str]) -> None:
    """A stored table of sinusoidal positions must be what the formula gives."""
    for name, theirs in names.items():
        if cfg.positions == "sinusoidal" and name.endswith("embed_positions.weight"):
            table = sinusoidal(np.arange(cfg.T_max), cfg.d, np.float64, cfg.sinusoidal_layout)
            found = tensors[theirs]
            if found.shape != table.shape or not np.allclose(found, table, 0, 1e-2):
                raise ValueError(f"{tensors.where}: {theirs} is no table of sinusoidal positions")
