"""Three tables of a run that grow line by line: steps, evaluations, and norms by tensor."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..files import write_csv

TABLES = {
    "steps": ("step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "seconds"),
    "held_out": ("step", "loss", "seconds"),
    "norms": ("step", "name", "value_norm", "grad_norm"),
}
"""Their columns; each is a file ``<name>.csv`` in the folder of the run."""


class Log:
    """The tables, in memory and, where there is a folder, on disk.

    Lines are appended as they come. A run that goes on from the state of step n first drops what
    was logged after it, half-written lines included.
    """

    def __init__(self, folder: Path | None, step: int = 0) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self._files: dict[str, IO[str]] = {}
        self._folder = folder
        if folder is not None:
            with self._writing():
                folder.mkdir(parents=True, exist_ok=True)
                for name, columns in TABLES.items():
                    path = folder / f"{name}.csv"
                    if step and path.exists():
                        self.rows[name] = [r for r in read(path, columns) if r[0] <= step]
                    if self.rows[name] or name == "steps":
                        write_csv(path, columns, self.rows[name])
                    else:
                        path.unlink(missing_ok=True)

    def add(self, table: str, *row: Any) -> None:
        """Append a row."""
        self.rows[table].append(row)
        if self._folder is None:
            return
        with self._writing():
            if table not in self._files:
                path = self._folder / f"{table}.csv"
                if not path.exists():
                    write_csv(path, TABLES[table], [])
                self._files[table] = path.open("a", encoding="utf-8", newline="")
            csv.writer(self._files[table], lineterminator="\n").writerow(row)
            self._files[table].flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # a full disk names no file, and a temporary file no folder
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(
                error.errno, f"the run's log can't be written: {reason}", str(self._folder)
            ) from None

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}


def read(path: Path, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the complete rows of a table, whole numbers and floats as such."""
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        lines = file.read().split("\n")
    for cells in csv.reader(lines[1:-1]):  # what has no end of line is not complete
        if len(cells) == len(columns) and isinstance(number(cells[0]), int):
            rows.append(tuple(number(cell) for cell in cells))
    return rows


def number(cell: str) -> Any:
    """Return an int, a float or the text itself."""
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
