"""Walk a ``saved`` tree: the dicts and named tuples that a forward pass hands to its backward.

The path of an activation is the path of its module, and its name is the same without the stack that
holds the blocks: ``blocks.3.attn.attention.lse``.
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


def name_of(path: str) -> str:
    """Return the name by which users know a path: ``stack.`` goes without saying.

    >>> name_of("encoder.stack.blocks.0.attn")
    'encoder.blocks.0.attn'
    """
    return ".".join(part for part in path.split(".") if part != "stack")


def matches(name: str, pattern: str) -> bool:
    """Whether a name fits a shell pattern, in which ``*`` is one part and ``**`` any number.

    >>> matches("blocks.3.attn", "blocks.*.attn"), matches("blocks.3.attn", "blocks.*")
    (True, False)
    >>> matches("blocks.3.attn.Wq.W", "**.Wq.*")
    True
    """

    def fits(parts: list[str], wanted: list[str]) -> bool:
        if not wanted:
            return not parts
        if wanted[0] == "**":
            return any(fits(parts[i:], wanted[1:]) for i in range(len(parts) + 1))
        return bool(parts) and fnmatchcase(parts[0], wanted[0]) and fits(parts[1:], wanted[1:])

    return fits(name_of(name).split("."), name_of(pattern).split("."))


def select(saved: Any, pattern: str) -> dict[str, Any]:
    """Return the nodes whose name matches a pattern, ``blocks.*.attn`` for example, by name.

    A ``*`` stands for one part and not for several: ``blocks.*`` is the blocks, not what is in
    them, and ``blocks.**`` is both. ``stack.blocks.*``, as the paths have it, is understood too.
    """
    found = ((name_of(path), node) for path, node in nodes(saved))
    return {name: node for name, node in found if name and matches(name, pattern)}


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
