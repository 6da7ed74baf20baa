"""Batches for training: any batch of any epoch by its number, so a run can go on anywhere.

Batch number n of a seed is always the same: its epoch's order comes from a generator seeded with
(seed, epoch). Nothing is remembered, so the position in the data is one number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .arrays import Array, require_ids

IGNORED = -100
"""The target of padding, which no loss counts."""


class Batch(NamedTuple):
    arguments: dict[str, Any]
    """What the model's ``loss`` takes, by name."""
    tokens: int
    """Targets that count."""


class Batches(Protocol):
    """A training set, or a held-out one."""

    def at(self, n: int) -> Batch:
        """Return batch n = 0, 1, 2, ..., in shuffled epochs without an end."""
        ...

    def whole(self) -> Iterator[Batch]:
        """Yield batches that hold every target once, in order."""
        ...

    def digest(self) -> str:
        """Return a checksum of the data and of how it is cut up."""
        ...


class _Shuffled:
    """Batches of B of n items: every epoch in an order of its own."""

    def __init__(self, n: int, B: int, seed: int) -> None:
        if B < 1:
            raise ValueError(f"a batch needs at least one row, but B = {B}")
        self.n, self.B, self.seed = n, min(B, n), seed
        self.per_epoch = n // self.B
        self._order: tuple[int, Array] = (-1, np.zeros(0, np.int64))

    def items(self, number: int) -> tuple[int, Array]:
        """Return the epoch of a batch and the (B,) items in it; what is left over waits."""
        epoch, place = divmod(number, self.per_epoch)
        if self._order[0] != epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.n)
            self._order = epoch, self.arranged(order, epoch)
        return epoch, self._order[1][place * self.B : (place + 1) * self.B]

    def arranged(self, order: Array, epoch: int) -> Array:
        return order


class TextBatches(_Shuffled):
    """Windows of T tokens of one long text, and the tokens that follow each.

    The windows of an epoch stand side by side; where the first one starts differs from epoch to
    epoch, so a token is seen at many places of a window.

    Parameters
    ----------
    ids : (n,) array of integers, n > T
    B, T : int
    seed : int
    """

    def __init__(self, ids: Array, B: int, T: int, seed: int = 0) -> None:
        ids = np.asarray(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise TypeError(f"a text must be (n,) integers, but is {ids.dtype} {ids.shape}")
        if T < 1:
            raise ValueError(f"a window needs at least one token, but T = {T}")
        if len(ids) <= T:
            raise ValueError(
                f"the text is too short: {len(ids)} tokens, but a window of {T} and the token "
                f"after it need {T + 1}"
            )
        self.ids, self.T = ids, T
        super().__init__(max(1, (len(ids) - 1) // T - 1), B, seed)

    def at(self, n: int) -> Batch:
        epoch, windows = self.items(n)
        room = len(self.ids) - 1 - self.n * self.T
        shift = np.random.default_rng([self.seed, epoch, 1]).integers(room + 1)
        places = (shift + windows * self.T)[:, None] + np.arange(self.T)
        return Batch({"ids": self.ids[places], "targets": self.ids[places + 1]}, places.size)

    def whole(self) -> Iterator[Batch]:
        full = (len(self.ids) - 1) // self.T
        inputs = self.ids[: full * self.T].reshape(full, self.T)
        targets = self.ids[1 : full * self.T + 1].reshape(full, self.T)
        for i in range(0, full, self.B):
            part = slice(i, i + self.B)
            yield Batch({"ids": inputs[part], "targets": targets[part]}, inputs[part].size)
        if len(rest := self.ids[full * self.T :]) > 1:
            yield Batch({"ids": rest[None, :-1], "targets": rest[None, 1:]}, len(rest) - 1)

    def digest(self) -> str:
        return checksum(["text", self.B, self.T, self.seed], self.ids)


class _Rows(_Shuffled):
    """Rows of different lengths; those of a batch are of similar length, so little is padded."""

    lengths: Array

    def arranged(self, order: Array, epoch: int) -> Array:
        # Sorted within stretches of 32 batches only, and the batches shuffled after it: which rows
        # share a batch, and when it comes, still differs from epoch to epoch.
        stretch = 32 * self.B
        parts = [order[i : i + stretch] for i in range(0, self.n, stretch)]
        parts = [part[np.argsort(self.lengths[part], kind="stable")] for part in parts]
        order = np.concatenate(parts)
        full = order[: self.per_epoch * self.B].reshape(self.per_epoch, self.B)
        return np.random.default_rng([self.seed, epoch, 1]).permutation(full).reshape(-1)


class RowBatches(_Rows):
    """Texts of their own, such as lines or documents, each a row of token ids; right-padded.

    The first token of a row is given, the others are targets; put a start token in front where the
    first is to be learned, and a stop token at the end where a text shall end.
    """

    def __init__(self, rows: Sequence[Any], B: int, seed: int = 0) -> None:
        self.rows = as_rows(rows, 2, "row")
        self.lengths = np.array([len(row) for row in self.rows])
        super().__init__(len(self.rows), B, seed)

    def at(self, n: int) -> Batch:
        return self._batch([self.rows[i] for i in self.items(n)[1]])

    def whole(self) -> Iterator[Batch]:
        for i in range(0, self.n, self.B):
            yield self._batch(self.rows[i : i + self.B])

    def digest(self) -> str:
        return checksum(["rows", self.B, self.seed], *self.rows)

    @staticmethod
    def _batch(rows: list[Array]) -> Batch:
        ids, mask = right_padded([row[:-1] for row in rows])
        targets, _ = right_padded([row[1:] for row in rows], IGNORED)
        return Batch({"ids": ids, "targets": targets, "mask": mask}, int(mask.sum()))


class PairBatches(_Rows):
    """Source and target texts for an encoder-decoder, with shifted targets (teacher forcing).

    The decoder is fed ``start`` and the target, and is asked for the target and ``end``.

    Parameters
    ----------
    sources, targets : lists of rows of ids
    start, end : int
        The ids of the two marks.
    B, seed : int
    """

    def __init__(
        self,
        sources: Sequence[Any],
        targets: Sequence[Any],
        start: int,
        end: int,
        B: int,
        seed: int = 0,
    ) -> None:
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources don't pair with {len(targets)} targets")
        self.sources = as_rows(sources, 1, "source")
        self.targets = as_rows(targets, 0, "target")
        self.start, self.end = start, end
        self.lengths = np.array(
            [len(s) + len(t) for s, t in zip(self.sources, self.targets, strict=True)]
        )
        super().__init__(len(self.sources), B, seed)

    def at(self, n: int) -> Batch:
        return self._batch(self.items(n)[1])

    def whole(self) -> Iterator[Batch]:
        for i in range(0, self.n, self.B):
            yield self._batch(np.arange(i, min(i + self.B, self.n)))

    def digest(self) -> str:
        marks = ["pairs", self.B, self.seed, self.start, self.end]
        return checksum(marks, *self.sources, *self.targets)

    def _batch(self, items: Array) -> Batch:
        source, source_mask = right_padded([self.sources[i] for i in items])
        rows = [self.targets[i] for i in items]
        target, mask = right_padded([np.insert(row, 0, self.start) for row in rows])
        wanted, _ = right_padded([np.append(row, self.end) for row in rows], IGNORED)
        arguments = {
            "source_ids": source,
            "target_ids": target,
            "targets": wanted,
            "source_mask": source_mask,
            "target_mask": mask,
        }
        return Batch(arguments, int(mask.sum()))


def split(ids: Array, held_out: float) -> tuple[Array, Array]:
    """Cut the last part off a text: ``(training, held out)``.

    Examples
    --------
    >>> split(np.arange(10), 0.2)
    (array([0, 1, 2, 3, 4, 5, 6, 7]), array([8, 9]))
    """
    if not 0 <= held_out < 1:
        raise ValueError(f"the held-out share must be at least 0 and below 1, but is {held_out}")
    n = len(ids) - round(len(ids) * held_out)
    return ids[:n], ids[n:]


def right_padded(rows: Sequence[Array], pad: int = 0) -> tuple[Array, Array]:
    """Return (B, T) ids, ``pad`` after the end of each row, and True where they are tokens."""
    T = max(map(len, rows))
    ids, real = np.full((len(rows), T), pad, np.int64), np.zeros((len(rows), T), np.bool_)
    for b, row in enumerate(rows):
        ids[b, : len(row)] = row
        real[b, : len(row)] = True
    return ids, real


def as_rows(rows: Sequence[Any], shortest: int, name: str) -> list[Array]:
    """Return rows of ids as arrays, or say which is wrong."""
    found = []
    for i, given in enumerate(rows):
        row = np.asarray(given) if len(given) else np.zeros(0, np.int64)
        if row.ndim != 1 or row.dtype.kind not in "iu":
            raise TypeError(f"{name} {i} must be (n,) integers, but is {row.dtype} {row.shape}")
        if len(row) < shortest:
            raise ValueError(f"{name} {i} has {len(row)} tokens, but needs {shortest} or more")
        found.append(require_ids(row, 2**31, f"{name} {i}"))
    if not found:
        raise ValueError(f"there is no {name} to train on")
    return found


def checksum(options: Sequence[Any], *arrays: Array) -> str:
    """Return the SHA-256 of options and arrays, their lengths included."""
    state = hashlib.sha256(repr(list(options)).encode())
    for a in arrays:
        state.update(len(a).to_bytes(8, "little"))
        state.update(np.ascontiguousarray(a, "<i8").tobytes())
    return state.hexdigest()
