"""The attention kernels that exist, so that a case is tried on each, and a judge of gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from npformer import functional as F


def _kernels() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    found = {"dense": (F.attention, F.attention_backward)}
    if hasattr(F, "flash_attention"):
        for block in (1, 2, 4, 64):
            forward = functools.partial(F.flash_attention, block_q=block, block_k=block)
            found[f"flash {block}"] = (forward, F.flash_attention_backward)
        uneven = functools.partial(F.flash_attention, block_q=3, block_k=2)
        found["flash 3 2"] = (uneven, F.flash_attention_backward)
    return found


KERNELS = _kernels()


def visible_keys(T: int, S: int, *, causal: bool = False, window: int | None = None) -> np.ndarray:
    """(T, S) booleans straight from the definition, by two loops."""
    seen = np.zeros((T, S), bool)
    for i in range(T):
        for j in range(S):
            ahead = j - (S - T + i)
            seen[i, j] = not (
                (causal and ahead > 0)
                or (window is not None and (-ahead if causal else abs(ahead)) >= window)
            )
    return seen


def plain_weights(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Softmax of the visible scores row by row, zeros in a row that sees nothing."""
    P = np.zeros(np.broadcast_shapes(scores.shape, seen.shape))
    scores, seen = np.broadcast_to(scores, P.shape), np.broadcast_to(seen, P.shape)
    for row in np.ndindex(P.shape[:-1]):
        if seen[row].any():
            e = np.exp(scores[row][seen[row]] - scores[row][seen[row]].max())
            P[row][seen[row]] = e / e.sum()
    return P


def slope_error(
    f: Callable[..., Any], inputs: list[np.ndarray], grads: Any, dy: np.ndarray, seed: int = 0
) -> float:
    """Largest relative error of ``grads`` against the complex step, each input moved by itself.

    A gradient that is below 1e-12 of the largest one, and is so by both counts, is zero.
    """
    rng = np.random.default_rng(seed)
    grads = grads if isinstance(grads, tuple) else (grads,)
    floor = 1e-12 * max(np.linalg.norm(g) for g in grads)
    errors = [0.0]
    for k, g in enumerate(grads):
        v = rng.standard_normal(inputs[k].shape)
        moved = [x.astype(complex) for x in inputs]
        moved[k] += 1e-30j * v
        exact = np.sum(dy * f(*moved)).imag / 1e-30
        by_backward, by_step = np.linalg.norm(g) * np.linalg.norm(v), abs(exact)
        if by_backward <= floor and by_step <= floor:
            continue
        size = max(by_backward, by_step, 1e-300)
        errors.append(abs(np.sum(g * v) - exact) / size)
    return float(np.max(errors))  # NaN stays NaN
