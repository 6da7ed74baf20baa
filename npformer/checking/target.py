"""What a gradient check is about: a function pair or a layer, with its inputs, as named tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..arrays import Array
from ..module import Module, Parameter


@dataclass
class Tensor:
    """One array whose gradient is due."""

    name: str
    value: Array
    """float64; a parameter's copy, or the caller's own input."""
    place: int | Parameter
    """Which input it is, or the parameter."""


class Target:
    """A pair or a layer, what it is called with, and the tensors that it is differentiated by.

    Differentiable are the positional inputs that are floating arrays, in order, then every
    parameter of the layer. The pair may consist of bound methods of a layer, such as
    ``(model.loss, model.loss_backward)``: then the layer's parameters count too.
    """

    def __init__(
        self, thing: Any, inputs: Sequence[Any], options: dict[str, Any], seed: int
    ) -> None:
        self.name, self._forward, self._backward, self.layer = _resolve(thing)
        self.inputs = list(inputs)
        self.options = dict(options)
        names = self._bind(seed)
        self.tensors = [
            Tensor(names[i], x, i)
            for i, x in enumerate(self.inputs)
            if isinstance(x, np.ndarray) and x.dtype.kind in "fc"
        ]
        self.count = len(self.tensors)  # of the inputs among them
        for tensor in self.tensors:
            _check_input(tensor)
        self._names = names
        for name, p in self.layer.named_parameters() if self.layer is not None else ():
            value = np.array(p.value, np.float64)
            _check_finite(name, value)
            self.tensors.append(Tensor(name, value, p))
        if not self.tensors:
            for name, x in zip(names, self.inputs, strict=False):
                if isinstance(x, np.ndarray) and x.dtype.kind in "iub":
                    _check_input(Tensor(name, x, 0))  # what else could the gradient be due for?
            raise ValueError(
                f"{self.name} has nothing to check: no input is a floating-point array "
                f"and there are no parameters"
            )

    def _bind(self, seed: int) -> list[str]:
        """Name the inputs after the forward's parameters, and settle the option ``rng``."""
        given = self.options.get("rng")
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, int | np.integer)
        ):
            raise TypeError(
                f"the option rng must be an int, so that every call of {self.name} draws the same "
                f"numbers, but it is a {type(given).__name__}"
            )
        try:
            signature = inspect.signature(self._forward)
        except (TypeError, ValueError):  # some builtins have none
            return [f"input {i}" for i in range(len(self.inputs))]
        try:
            bound = signature.bind(*self.inputs, **self.options)
        except TypeError as error:
            raise TypeError(f"{self.name}{signature} does not fit its inputs: {error}") from None
        names: list[str] = []
        for name in bound.arguments:
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                names += [f"{name}[{i}]" for i in range(len(bound.arguments[name]))]
            elif len(names) < len(self.inputs):
                names.append(name)
        if "rng" in signature.parameters and "rng" not in bound.arguments:
            self.options["rng"] = seed
        return names

    def _call(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        options = self.options
        if options.get("rng") is not None:
            options = options | {"rng": np.random.default_rng(options["rng"])}
        result = self._forward(*inputs, **options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"the forward of {self.name} must return (y, saved), but it returned "
                f"{_describe(result)}"
            )
        return result

    def forward(self, values: Sequence[Array] | None = None) -> tuple[Any, Any]:
        """Call the forward with ``values`` in the place of the tensors, or with their own."""
        inputs = list(self.inputs)
        for i, tensor in enumerate(self.tensors):
            value = tensor.value if values is None else values[i]
            if isinstance(tensor.place, Parameter):
                tensor.place.value = value
            else:
                inputs[tensor.place] = value
        return self._call(inputs)

    def forward_elsewhere(self) -> None:
        """Call the forward with other numbers, as another use of the same layer would."""
        self._call([_other(x) for x in self.inputs])

    def backward(self, dy: Any, saved: Any) -> list[Any]:
        """Call the backward and return its gradients by the inputs, one for each that is due."""
        result = self._backward(dy, saved)
        given = result if isinstance(result, tuple) else (result,)
        found = [g for g in given if g is not None]
        if len(found) == self.count:
            return found
        undue = [
            f"{name} ({getattr(x, 'dtype', type(x).__name__)})"
            for name, x in zip(self._names, self.inputs, strict=False)
            if isinstance(x, int | float | list)
            or (isinstance(x, np.ndarray) and x.dtype.kind in "iub")
        ]
        if len(found) > self.count and undue:
            raise TypeError(
                f"the backward of {self.name} returns {len(found)} gradients, so one is due for "
                f"{' or '.join(undue)}, which is no float64 array: differences need float64"
            )
        inputs = ", ".join(t.name for t in self.tensors[: self.count]) or "none"
        raise ValueError(
            f"the backward of {self.name} must return one gradient for each floating-point input "
            f"({inputs}), but it returned {len(found)}"
        )

    def parameter_gradients(self) -> list[Array | None]:
        """Copies of what the backward passes have put into the parameters, None for nothing."""
        found: list[Array | None] = []
        for tensor in self.tensors[self.count :]:
            p = tensor.place
            assert isinstance(p, Parameter)
            found.append(np.array(p.grad) if p.has_grad else None)
        return found

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Lock the inputs, put float64 copies into the parameters; give everything back after."""
        arrays = [x for x in self.inputs if isinstance(x, np.ndarray)]
        flags = [x.flags.writeable for x in arrays]
        parameters = [t.place for t in self.tensors if isinstance(t.place, Parameter)]
        before = [(p.value, p.grad if p.has_grad else None) for p in parameters]
        try:
            for x in arrays:
                x.flags.writeable = False
            for tensor in self.tensors[self.count :]:
                tensor.value.flags.writeable = False
                assert isinstance(tensor.place, Parameter)
                tensor.place.value, tensor.place.grad = tensor.value, None
            yield
        finally:
            for p, (value, grad) in zip(parameters, before, strict=True):
                p.value, p.grad = value, grad
            for _ in range(2):  # a view can't be unlocked before its base
                for x, writeable in zip(arrays, flags, strict=True):
                    with suppress(ValueError):
                        x.flags.writeable = writeable


def _resolve(thing: Any) -> tuple[str, Callable[..., Any], Callable[..., Any], Module | None]:
    if isinstance(thing, Module):
        return type(thing).__name__, thing.forward, thing.backward, thing
    if not isinstance(thing, type) and hasattr(thing, "forward") and hasattr(thing, "backward"):
        raise TypeError(
            f"{type(thing).__name__} must be a npformer.Module, so that its parameters can be found"
        )
    if isinstance(thing, tuple) and len(thing) == 2 and all(callable(f) for f in thing):
        f, backward = thing
    elif callable(thing) and not isinstance(thing, type):
        f, backward = thing, _partner(thing)
    else:
        if isinstance(thing, type):
            raise TypeError(f"a layer was expected, but not its class {thing.__name__}: make one")
        raise TypeError(
            f"a layer, a function with its backward (f, f_backward), or a function f whose module "
            f"holds f_backward was expected, but not {_describe(thing)}"
        )
    owners = {
        id(o): o for g in (f, backward) if isinstance(o := getattr(g, "__self__", None), Module)
    }
    if len(owners) > 1:
        raise ValueError("the two functions of a pair belong to different layers")
    layer = next(iter(owners.values()), None)
    name = _name(f)
    return (name if layer is None else f"{type(layer).__name__}.{name}"), f, backward, layer


def _name(f: Any) -> str:
    while isinstance(f, partial):
        f = f.func
    return str(getattr(f, "__name__", type(f).__name__))


def _partner(f: Any) -> Callable[..., Any]:
    """Find ``f_backward`` beside ``f``: in its module, or on the layer whose method it is."""
    plain = f
    while isinstance(plain, partial):
        plain = plain.func
    name = f"{_name(plain)}_backward"
    owner = getattr(plain, "__self__", None)
    found = getattr(owner, name, getattr(plain, "__globals__", {}).get(name))
    if not callable(found):
        raise ValueError(
            f"no {name} stands beside {_name(plain)}: give the pair as (f, f_backward)"
        )
    return found


def _check_input(tensor: Tensor) -> None:
    if tensor.value.dtype != np.float64:
        raise TypeError(
            f"{tensor.name} is {tensor.value.dtype}, but a gradient check needs float64 inputs, or "
            f"its differences are rounding noise: give {tensor.name}.astype(np.float64)"
        )
    _check_finite(tensor.name, tensor.value)


def _check_finite(name: str, x: Array) -> None:
    fault = first_not_finite(x)
    if fault:
        raise ValueError(f"{name} holds {fault}, so nothing can be measured")


def first_not_finite(x: Array) -> str:
    """Return e.g. ``"nan at [0, 3]"`` for the first number that is not finite, or ``""``."""
    finite = np.isfinite(x)
    if finite.all():
        return ""
    index = tuple(int(i) for i in np.argwhere(~finite)[0])
    return f"{x[index]} at {list(index)}" if index else f"{x[index]}"


def _other(x: Any) -> Any:
    """An array of the same kind and shape with other numbers."""
    if not isinstance(x, np.ndarray):
        return x
    return x * 1.25 + 0.125 if x.dtype.kind == "f" else np.flip(x)


def _describe(x: Any) -> str:
    if isinstance(x, tuple):
        return f"a tuple of {len(x)}"
    return f"an array {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
