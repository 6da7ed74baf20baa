"""The rules of forward and backward that no comparison of numbers can show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import tree
from ..arrays import Array
from .target import Target, first_not_finite

_SAME = 1e-12
"""Relative: BLAS may add up in another order from call to call."""


@dataclass
class Pass:
    """One forward and backward pass."""

    y: Array
    dy: Any
    """The random cotangent; a Python float where the output is one."""
    saved: Any
    gradients: list[Array]
    """By the tensors of the target, parameters last."""
    silent: list[bool]
    """Which parameters received no gradient at all."""
    problems: list[str]


def run_rules(target: Target, rng: np.random.Generator) -> Pass:
    """Run forward and backward several times, and note every broken rule in ``problems``."""
    problems: list[str] = []
    before = _copies(target)
    y, saved = _guarded(target, "forward", target.forward)
    _check_output(target, y)
    again, _ = _guarded(target, "forward", target.forward)
    if not _same(y, again):
        raise ValueError(
            f"the forward of {target.name} gives something else the second time, so it can't be "
            f"differentiated: give it its random numbers by a seed, and leave no state behind"
        )
    fault = first_not_finite(np.asarray(y))
    if fault:
        problems.append(f"the output holds {fault}")

    dy = _cotangent(y, rng)
    kept = {path: np.array(a) for path, a in tree.leaves(saved)}
    y = np.array(y)
    inputs = _backward(target, dy, saved)
    parameters = target.parameter_gradients()
    repeated = _backward(target, dy, saved)
    for tensor, g1, g2 in zip(target.tensors, inputs, repeated, strict=False):
        if not _same(g1, g2):
            problems.append(f"{tensor.name}: a second backward gives another gradient")
    doubled = target.parameter_gradients()
    names = [t.name for t in target.tensors[target.count :]]
    for name, p1, p2 in zip(names, parameters, doubled, strict=True):
        problems += _addition(name, p1, p2)
    for path, a in tree.leaves(saved):
        if path in kept and not _same(a, kept[path], 0):
            name = f"saved.{path}".rstrip(".")
            problems.append(f"the backward changes {name}, which it only may read")
    for name, a, b in zip(before, before.values(), _copies(target).values(), strict=True):
        if not _same(a, b, 0):
            problems.append(f"{name} was changed, though it belongs to the caller")
    if not any("second backward" in problem for problem in problems):
        problems += _state_left(target, dy, inputs, parameters)

    gradients = inputs + [
        np.zeros_like(t.value) if g is None else g
        for t, g in zip(target.tensors[target.count :], parameters, strict=True)
    ]
    silent = [False] * target.count + [g is None for g in parameters]
    return Pass(y, dy, saved, gradients, silent, problems)


def _addition(name: str, once: Array | None, twice: Array | None) -> list[str]:
    if once is None or twice is None or once.shape != twice.shape or _same(2.0 * once, twice):
        return []
    if _same(once, twice):
        return [
            (
                f"{name}: the backward overwrites the parameter's gradient instead of adding to "
                f"it; a layer may run twice, so write accumulate(g) or grad += g"
            )
        ]
    return [f"{name}: a second backward does not add the same gradient"]


def _state_left(
    target: Target, dy: Any, inputs: list[Array], parameters: list[Array | None]
) -> list[str]:
    """Run the layer elsewhere between forward and backward: ``saved`` must be all it needs."""
    _, saved = target.forward()
    try:
        target.forward_elsewhere()
    except Exception:  # other numbers may be out of the forward's range: then nothing is learnt
        return []
    if target.layer is not None:
        target.layer.zero_grad()
    fresh = target.backward(dy, saved)
    same = all(_same(a, np.asarray(b)) for a, b in zip(inputs, fresh, strict=True)) and all(
        (a is None) == (b is None) and (a is None or _same(a, b))
        for a, b in zip(parameters, target.parameter_gradients(), strict=True)
    )
    if same:
        return []
    return [
        (
            "a second forward before the backward changes the gradient: something is kept on the "
            "layer, which must be in saved"
        )
    ]


def _backward(target: Target, dy: Any, saved: Any) -> list[Array]:
    gradients = _guarded(target, "backward", lambda: target.backward(dy, saved))
    copies = []
    for tensor, g in zip(target.tensors, gradients, strict=False):
        g = np.array(g)
        if g.dtype.kind not in "fiu":
            raise TypeError(f"the gradient of {tensor.name} must be floating, but it is {g.dtype}")
        copies.append(g)
    return copies


def _guarded(target: Target, which: str, call: Callable[[], Any]) -> Any:
    """Call, and say in plain words what NumPy means by "read-only"."""
    try:
        return call()
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise ValueError(
            f"the {which} of {target.name} writes into an array that it was given "
            f"(an input, a parameter or dy): work on a copy"
        ) from error


def _check_output(target: Target, y: Any) -> None:
    if isinstance(y, tuple | list | dict):
        raise TypeError(
            f"the output of {target.name} must be one array, but is a {type(y).__name__}"
        )
    dtype = np.asarray(y).dtype
    if dtype.kind != "f":
        raise TypeError(f"the output of {target.name} must be floating-point, but is {dtype}")
    if dtype.itemsize < 8:
        raise TypeError(
            f"the forward of {target.name} turns float64 into {dtype}, so its slopes are rounding "
            f"noise: look for a table or a number of that type"
        )


def _cotangent(y: Any, rng: np.random.Generator) -> Any:
    """Random and never ones: softmax and LayerNorm have zero gradient there."""
    shape = np.shape(y)
    dy = rng.standard_normal(shape) if shape else rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.5)
    if not isinstance(y, np.ndarray):
        return float(dy)
    dy = np.asarray(dy)
    dy.flags.writeable = False
    return dy


def _copies(target: Target) -> dict[str, Array]:
    arrays = {t.name: t.value for t in target.tensors}
    arrays |= {
        f"input {i}": x
        for i, x in enumerate(target.inputs)
        if isinstance(x, np.ndarray) and x.dtype.kind not in "fc"
    }
    return {name: np.array(a) for name, a in arrays.items()}


def _same(a: Any, b: Any, tolerance: float = _SAME) -> bool:
    """Whether two arrays are equal, or closer than ``tolerance`` of their largest number."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
        return True
    if tolerance == 0 or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
    return bool(np.max(np.abs(a - b)) <= tolerance * max(np.max(np.abs(a)), np.max(np.abs(b))))
