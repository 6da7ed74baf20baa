"""More ways from text to ids: files of the tokenizers package, marks of start and end, streams."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import Array, require_ids
from .data import ByteVocabulary, CharacterVocabulary, Vocabulary, utf8


class FileVocabulary:
    """A ``tokenizer.json`` of Hugging Face's `tokenizers` package (extra ``tokenizers``).

    Parameters
    ----------
    text : str
        What stands in the file.
    """

    def __init__(self, text: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ImportError(
                "a tokenizer file needs the tokenizers package: pip install 'npformer[tokenizers]'"
            ) from None
        try:
            self.tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the package raises Exception itself
            raise ValueError(f"this is no tokenizer file: {error}") from None
        self.tokenizer.no_padding()  # a file may ask for rows of one length
        self.tokenizer.no_truncation()
        self.text = text
        # Not get_vocab_size: ids may have gaps.
        self._size = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> FileVocabulary:
        """Read a file; an error names it."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def V(self) -> int:
        """One more than the highest id."""
        return int(self._size)

    def encode(self, text: str) -> Array:
        utf8(text)  # refuses, by name, what the package chokes on
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, np.int64)

    def encode_whole(self, text: str) -> Array:
        """Return the ids of a text with the marks of its start and end that the file asks for."""
        utf8(text)
        return np.array(self.tokenizer.encode(text).ids, np.int64)

    def decode(self, ids: Any) -> str:
        """Return the text; ids that the file does not know have none.

        A model's table often has more rows than its tokenizer has tokens, to a round number.
        """
        ids = require_ids(ids, 2**31, "token ids")
        text: str = self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def id_of(self, token: str) -> int | None:
        """Return the id of a whole token such as ``</s>``, or None."""
        found: int | None = self.tokenizer.token_to_id(token)
        return found


class MarkedVocabulary:
    """Another vocabulary and two ids after its last: where a text starts and where it ends.

    Examples
    --------
    >>> vocabulary = MarkedVocabulary(CharacterVocabulary("abc"))
    >>> vocabulary.start, vocabulary.end, vocabulary.V
    (3, 4, 5)
    >>> vocabulary.decode([3, 1, 0, 4])
    'ba'
    """

    def __init__(self, base: Vocabulary) -> None:
        self.base = base
        self.start, self.end = base.V, base.V + 1
        self.V = base.V + 2

    def encode(self, text: str) -> Array:
        return self.base.encode(text)

    def decode(self, ids: Any) -> str:
        """Return the text; the marks have none."""
        ids = require_ids(ids, self.V, "token ids")
        return self.base.decode(ids[ids < self.base.V])


class TextStream:
    """Text as it comes, id by id, whole characters only.

    A character of several bytes may be spread over several ids; until the last of them has come,
    decoding ends with U+FFFD and nothing is handed out. The parts put together are the text that
    decoding all ids at once gives.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._ids: list[int] = []  # the last that were handed out, and those that came since
        self._done = 0

    def feed(self, token: int) -> str:
        """Take one more id and return what became readable, often one character or nothing."""
        self._ids.append(int(token))
        text = self.vocabulary.decode(self._ids)
        return "" if text.endswith("\ufffd") else self._hand_out(text)

    def flush(self) -> str:
        """Return what is left; characters that were never finished are U+FFFD."""
        return self._hand_out(self.vocabulary.decode(self._ids)) if self._ids else ""

    def _hand_out(self, text: str) -> str:
        # The ids handed out last are decoded again with the new ones: some tokenizers drop a
        # space at the start of what they decode.
        before = self.vocabulary.decode(self._ids[: self._done]) if self._done else ""
        if len(text) > len(before):  # an id without text is no neighbour to decode with
            self._ids = self._ids[self._done :]
            self._done = len(self._ids)
        return text[len(before) :]


def description(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return what JSON can hold and `restored` makes a vocabulary of again."""
    match vocabulary:
        case MarkedVocabulary():
            return {"kind": "marked", "base": description(vocabulary.base)}
        case CharacterVocabulary():
            return {"kind": "characters", "characters": vocabulary.characters}
        case ByteVocabulary():
            return {"kind": "bytes"}
        case FileVocabulary():
            return {"kind": "tokenizers", "file": json.loads(vocabulary.text)}
    raise TypeError(f"a {type(vocabulary).__name__} can't be written down")


def restored(given: dict[str, Any]) -> Vocabulary:
    """Return the vocabulary of a `description`."""
    match given:
        case {"kind": "marked", "base": base}:
            return MarkedVocabulary(restored(base))
        case {"kind": "characters", "characters": characters}:
            return CharacterVocabulary(characters)
        case {"kind": "bytes"}:
            return ByteVocabulary()
        case {"kind": "tokenizers", "file": file}:
            return FileVocabulary(json.dumps(file))
    raise ValueError(f"there is no vocabulary of kind {given.get('kind')!r}")


def named(name: str, text: str) -> Vocabulary:
    """Return ``characters`` (those of ``text``), ``bytes``, or the vocabulary of a file."""
    if name == "characters":
        return CharacterVocabulary(text)
    if name == "bytes":
        return ByteVocabulary()
    return FileVocabulary.from_file(name)
