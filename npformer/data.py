"""From text to token ids: load a text, give every character or byte an id, cut out windows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .arrays import Array, require_ids

DEFAULT_TEXT = "pydoc_data.topics"
"""The language reference that ships inside CPython: real text on every machine, no download."""


def load_text(path: str | os.PathLike[str] | None = None) -> str:
    """Return a text: that of a UTF-8 file, or by default the documentation inside CPython.

    A byte-order mark is dropped and Windows line ends become plain ones, as Python reads text.
    The default text differs a little from one version of Python to the next.

    Raises
    ------
    ValueError
        if the file is empty or is not UTF-8; the message names the first bad byte.
    OSError
        if it can't be read.
    """
    if path is None:
        return _python_documentation()
    raw = Path(path).read_bytes()
    if not raw:
        raise ValueError(f"{path} is empty: there is no text to read")
    mark = b"\xef\xbb\xbf"
    body = raw.removeprefix(mark)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + len(raw) - len(body)
        raise ValueError(
            f"{path} is not UTF-8: byte {at} is 0x{raw[at]:02x}, {error.reason}{_guess(raw)}"
        ) from None
    if not text.strip():
        raise ValueError(f"{path} holds nothing but white space: there is no text to read")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _guess(raw: bytes) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "; it looks like UTF-16: save it as UTF-8 first"
    return "; convert the file to UTF-8 first"


def _python_documentation() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError(
            f"this Python comes without {DEFAULT_TEXT}, the default text: give a text file"
        ) from None
    return "\n".join(topics[name] for name in sorted(topics))


class Vocabulary(Protocol):
    """What turns text into ids and back."""

    @property
    def V(self) -> int:
        """Number of different ids."""
        ...

    def encode(self, text: str) -> Array:
        """Return the ids (n,) of a text, int64."""
        ...

    def decode(self, ids: Any) -> str:
        """Return the text of ids (n,)."""
        ...


class CharacterVocabulary:
    """One id for every character of a text, in the order of their code points.

    Parameters
    ----------
    text : str
        Whatever holds all characters; their order and repeats don't matter.

    Examples
    --------
    >>> vocabulary = CharacterVocabulary("abracadabra")
    >>> vocabulary.V
    5
    >>> vocabulary.encode("cab").tolist()
    [2, 0, 1]
    >>> vocabulary.decode([2, 0, 1])
    'cab'
    """

    def __init__(self, text: str) -> None:
        self.characters = "".join(sorted(set(text)))
        self._codes = _code_points(self.characters)

    @property
    def V(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Array:
        codes = _code_points(text)
        ids = np.searchsorted(self._codes, codes)
        known = ids < self.V
        known[known] = self._codes[ids[known]] == codes[known]
        if not known.all():
            at = int(np.argmin(known))
            raise ValueError(
                f"the vocabulary has no {text[at]!r}, which stands at position {at} of the text"
            )
        return ids.astype(np.int64)

    def decode(self, ids: Any) -> str:
        ids = require_ids(ids, self.V, "token ids")
        return "".join(self.characters[i] for i in ids)


def utf8(text: str) -> bytes:
    """Return the bytes of a text.

    Parameters
    ----------
    text : str

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        if the text holds half a character (a surrogate by itself), which UTF-8 can't write.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:  # what the system makes of bytes that are no UTF-8
        raise ValueError(
            f"the text is no Unicode: {text[error.start]!r} at position {error.start} is half a "
            f"character"
        ) from None


class ByteVocabulary:
    """The 256 bytes of UTF-8: every text in every language, one to four ids a character.

    Examples
    --------
    >>> ByteVocabulary().encode("层").tolist()
    [229, 177, 130]
    """

    V = 256

    def encode(self, text: str) -> Array:
        return np.frombuffer(utf8(text), np.uint8).astype(np.int64)

    def decode(self, ids: Any) -> str:
        """Return the text; bytes that are no UTF-8, cut off characters among them, as U+FFFD."""
        ids = require_ids(ids, self.V, "token ids")
        return bytes(ids.astype(np.uint8)).decode("utf-8", errors="replace")


def _code_points(text: str) -> Array:
    order = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
    return np.frombuffer(text.encode(order, "surrogatepass"), np.uint32)


def windows(
    ids: Array, T: int, B: int, rng: np.random.Generator | int | None = None
) -> tuple[Array, Array]:
    """Cut B pieces of T tokens out of a text, at random places.

    Parameters
    ----------
    ids : (n,) array of integers, n > T
    T, B : int
    rng : Generator or int, optional

    Returns
    -------
    inputs, targets : (B, T) arrays
        ``targets[b, t]`` is the id that follows ``inputs[b, t]`` in the text.

    Raises
    ------
    ValueError
        if the text is too short for one window and the token after it.
    """
    if len(ids) <= T:
        raise ValueError(
            f"the text is too short: {len(ids)} tokens, but a window of {T} and the token after it "
            f"need {T + 1}"
        )
    starts = np.random.default_rng(rng).integers(len(ids) - T, size=B)
    places = starts[:, None] + np.arange(T)
    return ids[places], ids[places + 1]
