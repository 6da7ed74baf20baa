"""Inputs with right values for faults met in public projects, read from ``tests/data``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"


def numbers(value: Any) -> Any:
    """Turn lists into arrays, the strings "nan", "inf" and "-inf" into floats, deeply.

    Lists of whole numbers become int64 arrays, lists of booleans bool arrays, all others float64.
    """
    if isinstance(value, dict):
        return {key: numbers(child) for key, child in value.items()}
    if isinstance(value, list):
        inner = [numbers(child) for child in value]
        if not inner:
            return np.zeros(0)
        texts = any(isinstance(child, str | dict) for child in inner)
        return inner if texts else np.array(inner)
    return float(value) if value in ("nan", "inf", "-inf") else value


@functools.cache
def _records() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(DATA.glob("cases_*.json")):
        records = json.loads(path.read_text(encoding="utf-8"))
        assert not found.keys() & records.keys(), path
        found |= {name: json.dumps(record) for name, record in records.items()}
    return found


def names() -> list[str]:
    """Every case there is."""
    return sorted(_records())


def case(name: str) -> dict[str, Any]:
    """Return a fresh copy of one case: kind, references, input, right and, mostly, wrong."""
    record = json.loads(_records()[name])
    return record | {
        part: numbers(record[part]) for part in ("input", "right", "wrong") if part in record
    }
