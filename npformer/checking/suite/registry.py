"""The registry of everything that is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import Array
from ...module import Module

Example = tuple[Any, tuple[Any, ...], dict[str, Any]]
Draw = Callable[..., Array]
"""``n(3, 5)``: a (3, 5) array of standard normal numbers."""


@dataclass(frozen=True)
class Case:
    """One thing to check."""

    name: str
    kind: str
    """"pair", "layer" or "model"."""
    example: Callable[[np.random.Generator], Example]

    @property
    def method(self) -> str:
        """How it is checked unless asked otherwise: models along directions only."""
        return "direction" if self.kind == "model" else "complex"


CASES: dict[str, Case] = {}


def enter(name: str, kind: str, example: Callable[[np.random.Generator], Example]) -> None:
    """Add a case under a name of its own."""
    if name in CASES:
        raise ValueError(f"there are two cases called {name!r}")
    CASES[name] = Case(name, kind, example)


def randomised(layer: Module, rng: np.random.Generator) -> Module:
    """Give every parameter random float64 numbers of order one; a product stays of order one."""
    for name, p in layer.named_parameters():
        fresh = rng.standard_normal(p.value.shape)
        if p.value.ndim == 1:  # nothing of the layer's own start is kept: it may be random too
            p.value = 0.5 * fresh + (1.0 if name.endswith("gamma") else 0.0)
        else:
            p.value = fresh * p.value.shape[0] ** -0.5
    return layer


def pair(name: str, f: Any, backward: Any, make: Callable[[Draw], Any], **options: Any) -> None:
    """Enter a function pair; ``make`` draws its inputs."""

    def example(rng: np.random.Generator) -> Example:
        return (f, backward), make(lambda *shape: rng.standard_normal(shape)), dict(options)

    enter(name, "pair", example)


def layer(name: str, build: Callable[[], Any], make: Callable[[Draw], Any], **options: Any) -> None:
    """Enter a layer, with random parameters; ``make`` draws its inputs."""

    def example(rng: np.random.Generator) -> Example:
        thing = randomised(build(), rng)
        return thing, make(lambda *shape: rng.standard_normal(shape)), dict(options)

    enter(name, "layer", example)


def model(
    name: str,
    build: Callable[[], Any],
    ids: tuple[Any, ...],
    loss: bool = False,
    **options: Any,
) -> None:
    """Enter a model that is fed ``ids``, or its loss."""

    def example(rng: np.random.Generator) -> Example:
        whole: Any = randomised(build(), rng)
        thing = (whole.loss, whole.loss_backward) if loss else whole
        return thing, ids, dict(options)

    enter(name, "model", example)
