"""A wrong constant factor, named after the sizes in the game: B, T, d, sqrt(d_h), 1 - p."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .target import Target

_AXES = {1: ("d",), 2: ("B", "d"), 3: ("B", "T", "d"), 4: ("B", "H", "T", "d_h")}


def name_factor(ratio: float, target: Target, output_shape: tuple[int, ...]) -> str:
    """Say by which factor a gradient is off, and what the factor may be."""
    if math.isclose(ratio, -1, rel_tol=1e-5):
        return "the sign is wrong: everything else is right"
    sign = " and has the wrong sign" if ratio < 0 else ""
    size = abs(ratio)
    if math.isclose(size, 1, rel_tol=1e-5):
        return f"every number is off by the factor {ratio:.10g}"
    words = f"every number is off by the same factor {size:.6g}{sign}"
    guesses = list(dict.fromkeys(_guesses(size, target, output_shape)))
    return f"{words}; that is {', or '.join(guesses[:3])}" if guesses else words


def _guesses(size: float, target: Target, output_shape: tuple[int, ...]) -> Iterator[str]:
    for value, name in _sizes(target, output_shape):
        forms = {
            value: name,
            1 / value: f"1 / {_bracket(name)}",
            math.sqrt(value): f"sqrt({name})",
            1 / math.sqrt(value): f"1 / sqrt({name})",
        }
        if value > 2:
            forms[(value - 1) / value] = f"({name} - 1) / {_bracket(name)}"
            forms[value / (value - 1)] = f"{_bracket(name)} / ({name} - 1)"
        for number, words in forms.items():
            if math.isclose(size, number, rel_tol=1e-5):
                yield f"{words} with {name} = {value:g}"
    for name, option in target.options.items():
        if isinstance(option, float) and option > 0:
            forms = {option: name, 1 / option: f"1 / {name}"}
            if name in ("p", "dropout") and option < 1:
                forms |= {1 - option: f"1 - {name}", 1 / (1 - option): f"1 / (1 - {name})"}
            for number, words in forms.items():
                if math.isclose(size, number, rel_tol=1e-5):
                    yield f"{words} with {name} = {option:g}"
    if math.isclose(size, 2, rel_tol=1e-5):
        yield "2: something is counted twice"
    if math.isclose(size, 0.5, rel_tol=1e-5):
        yield "1 / 2"


def _sizes(target: Target, output_shape: tuple[int, ...]) -> list[tuple[float, str]]:
    """The lengths of axes, products of the leading ones, and a layer's whole numbers, by name."""
    found: dict[float, list[str]] = {}

    def note(length: int, name: str) -> None:
        if length > 1 and name not in found.setdefault(float(length), []):
            found[float(length)].append(name)

    shapes = [np.shape(x) for x in target.inputs if isinstance(x, np.ndarray)]
    for shape in [*shapes, output_shape]:
        for letter, length in zip(_AXES.get(len(shape), ()), shape, strict=False):
            note(length, letter)
        if len(shape) == 3:
            note(shape[0] * shape[1], "B T")
    for owner in (target.layer, getattr(target.layer, "config", None)):
        for name, value in getattr(owner, "__dict__", {}).items():
            if isinstance(value, int) and not isinstance(value, bool):
                note(value, name)
    for tensor in target.tensors:
        for i, length in enumerate(tensor.value.shape):
            if float(length) not in found:
                note(length, f"the length of axis {i} of {tensor.name}")
    return [(length, name) for length, names in found.items() for name in names]


def _bracket(name: str) -> str:
    return f"({name})" if " " in name else name
