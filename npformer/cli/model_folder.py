"""A folder with a model: a run of ``npformer train``, or weights in Hugging Face's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..data import Vocabulary

STATE, VOCABULARY, TOKENIZER = "state.npz", "vocabulary.json", "tokenizer.json"


class Found(NamedTuple):
    """A model, how it reads and writes text, and which tokens start and end one."""

    model: Any
    vocabulary: Vocabulary | None
    start: int | None
    end: list[int]


def load_folder(folder: str) -> Found:
    """Load what is in a folder.

    Raises
    ------
    OSError
        if there is no such folder.
    ValueError
        if it holds no model, or one that can't be read.
    """
    home = Path(folder)
    if not home.is_dir():
        raise NotADirectoryError(20, "no such folder", folder)
    if (home / STATE).exists():
        from ..training import load_trained

        model, vocabulary = load_trained(home)
        return Found(model, vocabulary, *marks(vocabulary))
    if not (home / "config.json").exists():
        raise ValueError(f"{folder} holds neither a run of npformer train nor a config.json")
    from ..weights import load_pretrained

    model = load_pretrained(home)
    if (home / VOCABULARY).exists():
        from ..vocabulary import restored

        vocabulary = restored(read(home / VOCABULARY))
        return Found(model, vocabulary, *marks(vocabulary))
    vocabulary = None
    if (home / TOKENIZER).exists():
        from ..vocabulary import FileVocabulary

        vocabulary = FileVocabulary.from_file(home / TOKENIZER)
    return Found(model, vocabulary, *ids_of(home))


def marks(vocabulary: Any) -> tuple[int | None, list[int]]:
    """Return the ids of a vocabulary's marks, if it has any."""
    start, end = getattr(vocabulary, "start", None), getattr(vocabulary, "end", None)
    return start, [] if end is None else [end]


def ids_of(home: Path) -> tuple[int | None, list[int]]:
    """Return the start and stop tokens that the configuration files name."""
    found: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):  # the latter has the last word
        if (home / name).exists():
            found |= {k: v for k, v in read(home / name).items() if v is not None}
    start = found.get("decoder_start_token_id", found.get("bos_token_id"))
    end = found.get("eos_token_id", [])
    return start, [int(i) for i in (end if isinstance(end, list) else [end])]


def read(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return value
