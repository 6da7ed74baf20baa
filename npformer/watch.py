"""Watch what passes through the modules of a model while it runs.

The model is run on a twin that shares its numbers, so what is watched is what runs: the same code,
the same arrays. The model itself, its gradients included, stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

from .arrays import Array
from .module import Module

Forward = Callable[[str, Any, Any], object]
"""Called with a module's path, its result and what it saved."""
Backward = Callable[[str, Module, Array], object]
"""Called with a module's path, the module and the gradient by its result, when its own backward
is done and the gradients of its parameters are there."""


def twin_of(model: Any) -> Any:
    """Return a copy of the modules on the same numbers, without gradients; ties stay tied."""
    arrays = [
        a for p in model.parameters() for a in ((p.value, p.grad) if p.has_grad else [p.value])
    ]
    twin = copy.deepcopy(model, {id(a): a for a in arrays})
    twin.zero_grad()
    return twin


def watched(
    model: Any,
    forward: Forward | None = None,
    backward: Backward | None = None,
    *,
    only: Collection[str] | None = None,
) -> Any:
    """Return a twin of a model that calls ``forward`` and ``backward`` as its modules run.

    Parameters
    ----------
    model : Module
    forward, backward : callable, optional
        See `Forward` and `Backward`. They may read what they get, and must not write into it.
    only : collection of str, optional
        The paths of the modules to watch, as in ``named_modules``; all of them unless given.
    """
    twin = twin_of(model)
    for path, module in list(twin.named_modules()):
        if only is None or path in only:
            if forward is not None:
                _wrap_forward(path, module, forward)
            if backward is not None:
                _wrap_backward(path, module, backward)
    return twin


def _wrap_forward(path: str, module: Any, call: Forward) -> None:
    original = module.forward

    def forward(*inputs: Any, **options: Any) -> Any:
        y, saved = original(*inputs, **options)
        call(path, y, saved)
        return y, saved

    module.forward = forward


def _wrap_backward(path: str, module: Any, call: Backward) -> None:
    original = module.backward

    def backward(dy: Any, saved: Any) -> Any:
        dx = original(dy, saved)
        call(path, module, dy)
        return dx

    module.backward = backward
