"""Write files that appear whole or not at all. No mathematics here."""

from __future__ import annotations

import csv
import errno
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` and rename it to ``path`` at the end.

    Whoever reads ``path`` meanwhile sees the old file or the new one. When the body raises,
    `KeyboardInterrupt` included, the temporary file goes and ``path`` stays as it was. Missing
    folders are made; a symbolic link keeps pointing where it did, and what is no plain file
    (``/dev/null``, a pipe) is written to directly.

    Parameters
    ----------
    path : str or path
    binary : bool
        Bytes; otherwise UTF-8 text with newlines as they are given, the same on every system.

    Yields
    ------
    file
        Open for writing.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder, not a file to write")
    target = target.resolve()
    kind: dict[str, Any] = {} if binary else {"encoding": "utf-8", "newline": ""}
    if target.exists() and not target.is_file():
        with target.open("wb" if binary else "w", **kind) as file:
            yield file
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            opened = part.open("xb" if binary else "x", **kind)
        except PermissionError as error:  # about the file that was asked for, not a passing one
            raise PermissionError(error.errno, error.strerror, os.fspath(path)) from None
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            part.chmod(target.stat().st_mode & 0o777)
        part.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


def output_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder for results, or say now that they can't be written, before they are computed.

    Raises
    ------
    OSError
        if it can't be made or written to.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    return folder


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8 by `atomic_write`."""
    with atomic_write(path) as file:
        file.write(text)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as JSON by `atomic_write`.

    Raises
    ------
    ValueError
        if it holds NaN or infinity, which JSON has no word for.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(
    path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write a table by `atomic_write`: one line of names, then the rows; floats in full."""
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
