"""`Parameter` (a value and its gradient) and `Module` (a tree of named parameters)."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .arrays import Array, require_real

_adding = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_adding.acquire, after_in_parent=_adding.release, after_in_child=_adding.release
    )
_apart: ContextVar[GradientsApart | None] = ContextVar("npformer_gradients_apart", default=None)


class Parameter:
    """An array that training changes, with the gradient of the loss by it.

    Attributes
    ----------
    value : array
        The numbers themselves.
    grad : array of the same shape and dtype
        The sum of all gradients since the last `Module.zero_grad`; zeros before the first.

    Raises
    ------
    TypeError
        if the value is not a floating-point array.
    """

    __slots__ = ("_grad", "value")

    def __init__(self, value: Array) -> None:
        require_real(value.dtype)
        self.value = value
        self._grad: Array | None = None

    @property
    def grad(self) -> Array:
        if self._grad is None:
            self._grad = np.zeros_like(self.value)
        return self._grad

    @grad.setter
    def grad(self, g: Array | None) -> None:
        self._grad = g

    @property
    def has_grad(self) -> bool:
        """Whether a gradient has arrived since the last `Module.zero_grad`."""
        return self._grad is not None

    def accumulate(self, g: Array) -> None:
        """``grad += g``, for a fresh array ``g`` that nobody else holds.

        The first gradient is kept as it is instead of being added to zeros: one pass over the
        memory saved, two for a large embedding table. Layers call this and never assign, because
        a layer may run twice and a tied weight is read in two places. It gets the dtype of the
        value, or a cotangent in float64 would make a float32 model train in float64.
        """
        if g.shape != self.value.shape:
            raise ValueError(f"a gradient of shape {g.shape} for a parameter {self.value.shape}")
        if g.dtype != self.value.dtype and g.dtype.kind == self.value.dtype.kind:
            g = g.astype(self.value.dtype)
        apart = _apart.get()
        if apart is not None:
            apart.collect(self, g)
            return
        with _adding:
            if self._grad is None:
                self._grad = g
            else:
                self._grad += g

    def accumulate_rows(self, ids: Array, rows: Array) -> None:
        """``grad[ids] += rows`` for distinct ids: of a large table only few rows were read."""
        if _apart.get() is not None:
            whole = np.zeros_like(self.value)
            whole[ids] = rows
            self.accumulate(whole)
            return
        with _adding:
            self.grad[ids] += rows


class GradientsApart:
    """The gradients of one backward pass, kept apart until `add` puts them into the parameters."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Parameter, Array]] = {}

    def collect(self, parameter: Parameter, g: Array) -> None:
        if id(parameter) in self._sums:
            self._sums[id(parameter)][1].__iadd__(g)
        else:
            self._sums[id(parameter)] = (parameter, g)

    def add(self) -> None:
        """Add what was collected to the parameters, once."""
        for parameter, g in self._sums.values():
            parameter.accumulate(g)
        self._sums = {}


@contextmanager
def gradients_apart() -> Iterator[GradientsApart]:
    """Collect the gradients of the backward passes inside, in this thread only.

    For backward passes that run at the same time: each thread collects its own, then one thread
    calls `GradientsApart.add` on each in a fixed order, so the sum is the same at every run.
    """
    apart = GradientsApart()
    token = _apart.set(apart)
    try:
        yield apart
    finally:
        _apart.reset(token)


class Module:
    """A layer: parameters and child modules as attributes, no other state.

    ``y, saved = layer.forward(x)`` and ``dx = layer.backward(dy, saved)``; ``layer(x)`` is
    inference and keeps nothing. What the backward needs is in ``saved`` and never on the layer, so
    the same layer can run twice, or in two threads, before its backward passes.
    """

    def forward(self, *inputs: Any, **options: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def backward(self, dy: Any, saved: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.forward(*inputs, **options)[0]

    def children(self) -> Iterator[tuple[str, Module | Parameter]]:
        """Yield the modules and parameters held directly, with their names (``blocks.0``)."""
        for key, child in vars(self).items():
            if isinstance(child, Module | Parameter):
                yield key, child
            elif isinstance(child, list):
                for i, one in enumerate(child):
                    if isinstance(one, Module | Parameter):
                        yield f"{key}.{i}", one

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield ``(name, module)`` for this module ("") and all below it."""
        yield prefix, self
        for key, child in self.children():
            if isinstance(child, Module):
                yield from child.named_modules(f"{prefix}.{key}" if prefix else key)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield ``(name, parameter)``; a tied parameter comes once, under its first name."""
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for key, child in module.children():
                if isinstance(child, Parameter) and id(child) not in seen:
                    seen.add(id(child))
                    yield (f"{prefix}.{key}" if prefix else key), child

    def parameters(self) -> list[Parameter]:
        """Return every parameter once."""
        return [p for _, p in self.named_parameters()]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the first parameter (float32 for a module without any)."""
        return next((p.value.dtype for p in self.parameters()), np.dtype(np.float32))

    def zero_grad(self) -> None:
        """Forget every gradient."""
        for p in self.parameters():
            p.grad = None

    def state_dict(self) -> dict[str, Array]:
        """Return name to value; the arrays are the parameters' own, not copies."""
        return {name: p.value for name, p in self.named_parameters()}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Copy ``state`` into the parameters, keeping their dtype and their ties.

        Raises
        ------
        TypeError
            if a tensor does not hold real numbers.
        ValueError
            naming every missing, unexpected or wrongly shaped tensor, and those with numbers too
            large for the dtype of the parameter. Nothing is changed in either case.
        """
        own = dict(self.named_parameters())
        faults = [f"missing {name}" for name in own if name not in state]
        faults += [f"unexpected {name}" for name in state if name not in own]
        faults += [
            f"{name} has shape {np.shape(state[name])} and not {p.value.shape}"
            for name, p in own.items()
            if name in state and np.shape(state[name]) != p.value.shape
        ]
        if faults:
            raise ValueError("the state does not fit this model: " + "; ".join(faults))
        cast = {name: _cast(name, state[name], p.value.dtype) for name, p in own.items()}
        for name, p in own.items():
            p.value[...] = cast[name]

    def astype(self, dtype: npt.DTypeLike) -> Self:
        """Return a copy whose parameters have ``dtype``; what was tied stays tied.

        Raises
        ------
        TypeError
            if the dtype is not a floating-point one.
        """
        dtype = require_real(dtype)
        twin = copy.deepcopy(self)
        for p in twin.parameters():
            p.value, p.grad = p.value.astype(dtype), None
        return twin


def _cast(name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """Return a tensor of a state in ``dtype``, or say why it would be another tensor there."""
    given = np.asarray(value)
    if given.dtype.kind not in ("fiuc" if dtype.kind == "c" else "fiu"):
        raise TypeError(f"{name} must hold real numbers, but its dtype is {given.dtype}")
    if given.dtype == dtype:
        return given
    with np.errstate(over="ignore"):
        cast = given.astype(dtype)
    if np.isinf(cast).sum() > np.isinf(given).sum():
        raise ValueError(f"{name} holds numbers that are too large for {dtype}")
    return cast
