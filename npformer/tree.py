"""Walk a ``saved`` tree: the dicts and named tuples that a forward pass hands to its backward.

The path of an activation is the path of its module: ``blocks.3.attn.attention.lse``.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .arrays import Array


def nodes(saved: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(path, node)`` for the tree's inner nodes and its arrays, parents first."""
    if isinstance(saved, dict):
        items = [(str(k), v) for k, v in saved.items()]
    elif isinstance(saved, tuple) and hasattr(saved, "_fields"):
        items = list(zip(saved._fields, saved, strict=True))
    elif isinstance(saved, list | tuple):
        items = [(str(i), v) for i, v in enumerate(saved)]
    elif isinstance(saved, np.ndarray):
        items = []
    else:
        return  # options such as eps or causal are not activations
    yield path, saved
    for key, child in items:
        yield from nodes(child, f"{path}.{key}" if path else key)


def leaves(saved: Any) -> Iterator[tuple[str, Array]]:
    """Yield ``(path, array)`` for every array of the tree."""
    for path, node in nodes(saved):
        if isinstance(node, np.ndarray):
            yield path, node


def select(saved: Any, pattern: str) -> dict[str, Any]:
    """Return the nodes whose path matches a shell pattern, ``blocks.*.attn`` for example.

    A ``*`` stands for one name and not for several: ``blocks.*`` is the blocks, not their parts.
    """
    wanted = pattern.split(".")
    found = {}
    for path, node in nodes(saved):
        names = path.split(".")
        if len(names) == len(wanted) and all(map(fnmatchcase, names, wanted)):
            found[path] = node
    return found


def owner(a: Array) -> Array:
    """Return the array that owns the memory of ``a``, itself or what it is a view of."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


def nbytes(saved: Any, *, without: Any = ()) -> int:
    """Bytes that a tree keeps alive: each owning buffer once, those of ``without`` not at all."""
    known = {id(owner(a)) for _, a in leaves(without)}
    total = 0
    for _, a in leaves(saved):
        buffer = owner(a)
        if id(buffer) not in known:
            known.add(id(buffer))
            total += buffer.nbytes
    return total
