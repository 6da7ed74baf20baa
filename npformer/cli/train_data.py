"""What ``npformer train`` trains on: a long text, lines, or pairs of texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..arrays import Array
    from ..batches import Batches
    from ..data import Vocabulary


NO_FILES = (None, "characters", "bytes")
"""Vocabularies that are no file."""


@dataclass(frozen=True)
class DataConfig:
    """Where the data are, and how they are cut up.

    Attributes
    ----------
    text : str, optional
        A UTF-8 file, one long text in any language; without any of the three the documentation
        inside Python.
    lines : str, optional
        A UTF-8 file in which every line is a text of its own.
    pairs : str, optional
        A UTF-8 file of lines SOURCE, a tab, TARGET: trains an encoder-decoder.
    vocabulary : str
        "characters", "bytes", or the name of a tokenizer.json of the tokenizers package.
    held_out : float
        The last part of the data, which is not trained on.
    start : str, optional
        A folder with a trained or downloaded model to go on from, with its vocabulary.
    """

    text: str | None = None
    lines: str | None = None
    pairs: str | None = None
    vocabulary: str | None = None
    held_out: float = 0.1
    start: str | None = None

    def __post_init__(self) -> None:
        named = [n for n in ("text", "lines", "pairs") if getattr(self, n) is not None]
        if len(named) > 1:
            raise ValueError(f"only one of text, lines and pairs can be given, not {named}")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be at least 0 and below 1, but is {self.held_out}")

    @property
    def kind(self) -> str:
        """The kind of model that these data are for."""
        return "decoder" if self.pairs is None else "encoder-decoder"


@dataclass(frozen=True)
class Corpus:
    """Data as ids.

    Attributes
    ----------
    vocabulary : Vocabulary
    parts : tuple of two lists of arrays, or of two pairs of such lists
        Training and held-out part: one text, rows, or sources and targets.
    longest : int
        Tokens of the longest row that the model is fed; 0 for a long text, which has none.
    """

    source: DataConfig
    vocabulary: Vocabulary
    parts: tuple[Any, Any]
    longest: int

    def batches(self, part: int, B: int, T: int, seed: int) -> Batches | None:
        """Return batches of the training (0) or the held-out part (1), None of an empty one."""
        from ..batches import PairBatches, RowBatches, TextBatches

        data: Any = self.parts[part]
        if self.source.pairs is not None:
            sources, targets = data
            words: Any = self.vocabulary
            if not sources:
                return None
            return PairBatches(sources, targets, words.start, words.end, B, seed)
        if self.source.lines is not None:
            return RowBatches(data, B, seed) if data else None
        if part and len(data) < 2:
            return None
        return TextBatches(data, B, min(T, len(data) - 1) if part else T, seed)


def load_corpus(source: DataConfig, vocabulary: Vocabulary | None = None) -> Corpus:
    """Read the file, make the vocabulary unless one is given, and encode."""
    from ..batches import split
    from ..data import load_text
    from ..vocabulary import MarkedVocabulary, named

    path = source.pairs or source.lines or source.text
    text = load_text(path)
    marked = source.pairs is not None or source.lines is not None
    if vocabulary is None:
        base = named(source.vocabulary or "characters", text.replace("\n", "") if marked else text)
        vocabulary = MarkedVocabulary(base) if marked else base
    if not marked:
        ids = vocabulary.encode(text)
        return Corpus(source, vocabulary, split(ids, source.held_out), 0)
    if not isinstance(vocabulary, MarkedVocabulary):
        raise ValueError(
            "lines and pairs need a vocabulary with marks of start and end, which this model's "
            "vocabulary has not"
        )
    given = [line for line in text.split("\n") if line]
    n = len(given) - round(len(given) * source.held_out)
    if n < 1:
        raise ValueError(f"{path} has {len(given)} lines: there is nothing left to train on")
    if source.lines is not None:
        rows = [marked_row(vocabulary, line) for line in given]
        return Corpus(source, vocabulary, (rows[:n], rows[n:]), max(map(len, rows)) - 1)
    sources, targets = pairs(given, vocabulary, str(path))
    longest = max(*map(len, sources), *(len(t) + 1 for t in targets))
    parts = (sources[:n], targets[:n]), (sources[n:], targets[n:])
    return Corpus(source, vocabulary, parts, longest)


def marked_row(vocabulary: Any, line: str) -> Array:
    """Return the ids of a line between its marks."""
    import numpy as np

    return np.array([vocabulary.start, *vocabulary.encode(line), vocabulary.end])


def pairs(lines: list[str], vocabulary: Any, path: str) -> tuple[list[Array], list[Array]]:
    """Return the ids of sources and targets, or name the line that is no pair."""
    sources, targets = [], []
    for number, line in enumerate(lines, 1):
        cells = line.split("\t")
        if len(cells) != 2 or not cells[0]:
            raise ValueError(
                f"{path}: line {number} must be a source, one tab and a target, but has "
                f"{len(cells) - 1} tabs"
            )
        sources.append(vocabulary.encode(cells[0]))
        targets.append(vocabulary.encode(cells[1]))
    return sources, targets


def absolute(path: str | None) -> str | None:
    """Return a path that means the same from another folder."""
    return None if path is None else str(Path(path).resolve())
