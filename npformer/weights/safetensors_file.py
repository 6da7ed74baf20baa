"""Read and write ``*.safetensors`` files: names, dtypes and shapes in JSON, then plain bytes.

The format is eight bytes with the length of the JSON, the JSON, and the numbers of all tensors one
after the other. It is read here rather than by its own package because that one hands bfloat16 to
NumPy only through a further dependency, and because nothing from outside should reach an array
before every offset was checked.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..files import atomic_write

HEADER_MAX = 100_000_000
"""Bytes of JSON at most, as in the format's own reader: a damaged length must not cost memory."""

SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of one number, for the dtypes of the format that fill whole bytes."""

FLOATS: dict[str, npt.DTypeLike] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The dtypes that a weight may have, as NumPy reads their bytes; it has no bfloat16."""

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""What a file calls them."""


_short = reprlib.Repr()
_short.maxstring, _short.maxother, _short.maxlist = 150, 150, 8


def brief(value: Any) -> str:
    """Return what stands in a file as a piece of one line, whatever it is."""
    if isinstance(value, str) and value.isprintable() and 0 < len(value) <= 150:
        return value
    return _short.repr(value)


class Entry(NamedTuple):
    """Where a tensor lies."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """First byte, counted from the start of the file."""
    end: int


class SafetensorsFile:
    """The tensors of one file, memory-mapped: a number is read when it is asked for.

    Raises
    ------
    ValueError
        naming the file and what is wrong with it: its length, the header, a dtype, offsets that
        are out of range, overlap or leave a gap.

    Attributes
    ----------
    entries : dict
        Name to `Entry`, in the order of the bytes.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.entries = read_entries(self.path)

    def __getitem__(self, name: str) -> Array:
        """Return a tensor as a read-only array over the file; bfloat16 as float32."""
        dtype, shape, begin, _ = self.entries[name]
        if dtype not in FLOATS:
            raise ValueError(
                f"{self.path}: {brief(name)} has dtype {dtype}, but weights must be one of "
                f"{', '.join(FLOATS)}"
            )
        kind = np.dtype(FLOATS[dtype])
        if math.prod(shape) == 0:
            return np.zeros(shape, np.float32 if dtype == "BF16" else kind)
        a = np.memmap(self.path, kind, "r", offset=begin, shape=shape).view(np.ndarray)
        return from_bfloat16(a) if dtype == "BF16" else a


def convert(a: Array, dtype: npt.DTypeLike, name: str = "an array") -> Array:
    """Return ``a`` with another dtype, or refuse a number that it can't hold."""
    with np.errstate(over="ignore"):
        b = a.astype(dtype, copy=False)
    if b.dtype.itemsize < a.dtype.itemsize and not np.all(np.isfinite(b) | ~np.isfinite(a)):
        raise ValueError(f"{name} has numbers that are too large for {b.dtype}")
    return b


def from_bfloat16(bits: Array) -> Array:
    """Return float32 numbers: bfloat16 is the upper half of their bits."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def to_bfloat16(x: Array, name: str = "an array") -> Array:
    """Return the bits of ``x`` rounded to the nearest bfloat16, ties to even, as uint16.

    Within half a step of its end, at 3.396e38, the range of float32 goes on where that of bfloat16
    stops. Such a number is refused, as it is for float16: as infinity it would spoil every sum, and
    as the largest bfloat16 it would be another number than was asked for.
    """
    x = np.ascontiguousarray(convert(x, np.float32, name))
    bits = x.view(np.uint32)
    nearest = bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))
    # Adding would turn the largest NaN patterns into numbers.
    nearest = np.where(np.isnan(x), bits | np.uint32(1 << 22), nearest) >> 16
    if np.any(((nearest & 0x7FFF) == 0x7F80) & np.isfinite(x)):
        raise ValueError(f"{name} has numbers that are too large for bfloat16")
    return nearest.astype("<u2")


def read_entries(path: Path) -> dict[str, Entry]:
    """Return where the tensors of a file lie, after checking everything about it."""

    def wrong(what: str) -> ValueError:
        return ValueError(f"{path} is not a whole safetensors file: {what}")

    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        if len(first) < 8:
            raise wrong(f"it has {size} bytes")
        length = int.from_bytes(first, "little")
        if length > min(HEADER_MAX, size - 8):
            raise wrong(f"its header claims {length} bytes, but the file has {size}")
        header = read_json(file.read(length), f"the header of {path}")
    if not isinstance(header, dict):
        raise wrong("its header is no JSON object")
    header.pop("__metadata__", None)
    found: dict[str, Entry] = {}
    for name, record in header.items():
        try:
            dtype, shape, (begin, end) = record["dtype"], record["shape"], record["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise wrong(f"{brief(name)} lacks its dtype, shape or two offsets") from None
        if not isinstance(dtype, str) or dtype not in SIZES:
            raise wrong(f"{brief(name)} has the unknown dtype {brief(dtype)}")
        if not isinstance(shape, list) or len(shape) > 32 or not all(map(is_size, shape)):
            raise wrong(f"{brief(name)} has the shape {brief(shape)}")
        if not is_size(begin) or not is_size(end) or not begin <= end <= size - 8 - length:
            raise wrong(
                f"{brief(name)} lies at {brief(begin)} to {brief(end)} of {size - 8 - length} bytes"
            )
        if end - begin != math.prod(shape) * SIZES[dtype]:
            raise wrong(
                f"{brief(name)} has {end - begin} bytes for shape {brief(shape)} of {dtype}"
            )
        found[name] = Entry(dtype, tuple(shape), 8 + length + begin, 8 + length + end)
    found = dict(sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)))
    at, before = 8 + length, "the header"
    for name, entry in found.items():
        if entry.begin != at:
            how = "overlap" if entry.begin < at else "leave a gap between them"
            raise wrong(f"{before} and {brief(name)} {how}")
        at, before = entry.end, brief(name)
    if at != size:
        raise wrong(f"{size - at} bytes after {before} belong to no tensor")
    return found


def is_size(n: Any) -> bool:
    """Whether JSON gave a whole number that can count something."""
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 62


def read_json(text: bytes, what: str) -> Any:
    """Return the value of a JSON text; a name that stands twice in an object is an error."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the name {brief(twice)} stands in it twice")
        return found

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not readable as JSON: {error}") from None


def write_safetensors(
    path: str | PathLike[str], tensors: Iterable[tuple[str, Array]], dtype: str | None = None
) -> None:
    """Write named arrays, whole or not at all (see `npformer.files.atomic_write`).

    Parameters
    ----------
    path : str or path
    tensors : pairs of a name and an array, or a dict's items
        Of any memory order; the file has their rows one after the other.
    dtype : str, optional
        A name of `NAMES` that every array is converted to; each its own unless given.
    """
    tensors = list(tensors)
    entries: dict[str, Any] = {}
    at = 0
    for name, a in tensors:
        kind = NAMES.get(dtype or str(a.dtype))
        if kind is None:
            raise ValueError(f"{name} has dtype {dtype or a.dtype}, not one of {', '.join(NAMES)}")
        end = at + a.size * SIZES[kind]
        entries[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, end]}
        at = end
    if len(entries) < len(tensors):
        raise ValueError("two tensors have the same name")
    # transformers 4 refuses a file that does not say that its arrays are stored row by row.
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    header += b" " * (-len(header) % 8)
    with atomic_write(path, binary=True) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, a in tensors:
            kind = entries[name]["dtype"]
            for rows in _pieces(a):
                piece = (
                    to_bfloat16(rows, name) if kind == "BF16" else convert(rows, FLOATS[kind], name)
                )
                file.write(np.ascontiguousarray(piece).data)


def _pieces(a: Array, numbers: int = 1 << 22) -> Iterator[Array]:
    """Rows of ``a``, some megabytes at a time: a transposed table is never copied whole."""
    if a.ndim == 0 or a.size <= numbers:
        yield a
        return
    step = max(1, numbers * len(a) // a.size)
    for i in range(0, len(a), step):
        yield a[i : i + step]
