"""Probes of a whole model: whether it sees its future, whether padding leaks into it.

A model without its causal mask trains wonderfully and generates nonsense (chapter 2.5.7, the first
of the five misunderstandings). `check_causal` finds it in a second, before any training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Array
from .models import Encoder, EncoderDecoder
from .module import Module


@dataclass(frozen=True)
class ProbeReport:
    """What a probe found; true where it passed."""

    passed: bool
    detail: str

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return f"{'ok' if self.passed else 'FAIL'}: {self.detail}"


def check_causal(
    model: Module, *, T: int = 7, B: int = 2, rng: np.random.Generator | int = 0
) -> ProbeReport:
    """Change every token from a place on; the outputs before it must stay the same bit for bit.

    For each t in 1 ... T - 1. The outputs from t on must change, or the probe proves nothing.

    Parameters
    ----------
    model : DecoderLM or EncoderDecoder
        Of the latter the target side is probed.
    T, B : int
        Length and rows of the random text.
    rng : Generator or int

    Returns
    -------
    ProbeReport
        ``passed``, and ``detail`` naming the first leak.
    """
    if isinstance(model, Encoder):
        raise TypeError("an Encoder sees the whole text by design: nothing in it is causal")
    rng = np.random.default_rng(rng)
    V = model.cfg.V  # type: ignore[attr-defined]
    ids, source = rng.integers(0, V, (2, B, T))

    def outputs(ids: Array) -> Array:
        y: Array = model(source, ids) if isinstance(model, EncoderDecoder) else model(ids)
        return y

    whole = outputs(ids)
    for t in range(1, T):
        changed = ids.copy()
        changed[:, t:] = (changed[:, t:] + rng.integers(1, V, (B, T - t))) % V
        other = outputs(changed)
        if not np.array_equal(whole[:, :t], other[:, :t]):
            moved = np.abs(whole[:, :t] - other[:, :t]).max(axis=(0, 2))
            first = int(np.flatnonzero(moved)[0])
            return ProbeReport(
                False,
                f"the output at position {first} changes by {moved[first]:.2e} when the tokens "
                f"from {t} on change: position {first} sees its future",
            )
        if np.array_equal(whole[:, t:], other[:, t:]):
            return ProbeReport(False, f"the outputs from {t} on do not depend on their own tokens")
    return ProbeReport(True, f"earlier outputs stay bit for bit the same at all {T - 1} places")


def check_padding(
    model: Module,
    *,
    T: int = 5,
    pad: int = 3,
    rng: np.random.Generator | int = 0,
    tolerance: float | None = None,
) -> ProbeReport:
    """Pad a text on the left and on the right, with any tokens; its outputs must stay.

    Parameters
    ----------
    model : DecoderLM, Encoder or EncoderDecoder
        Of the last the source is padded, on the right.
    T, pad : int
        Length of the text and of the padding.
    rng : Generator or int
    tolerance : float, optional
        Allowed relative change, 1e-10 in float64 and 1e-4 in float32 unless given. Other shapes
        round otherwise, so the outputs are equal but not bit for bit.

    Returns
    -------
    ProbeReport
    """
    if isinstance(model, EncoderDecoder):
        target = np.random.default_rng(0).integers(0, model.cfg.V, (1, T))
        return _check_source_padding(model, target, T, pad, np.random.default_rng(rng), tolerance)
    rng = np.random.default_rng(rng)
    V = model.cfg.V  # type: ignore[attr-defined]
    if tolerance is None:
        tolerance = 1e-4 if model.dtype.itemsize <= 4 else 1e-10
    text = rng.integers(0, V, (1, T))
    alone = model(text)
    for side, real in (("left", slice(pad, None)), ("right", slice(0, T))):
        mask = np.zeros((1, T + pad), np.bool_)
        mask[:, real] = True
        results = []
        for _ in range(2):
            ids: Any = rng.integers(0, V, (1, T + pad))
            ids[:, real] = text
            results.append(model(ids, mask)[:, real])
        if not np.array_equal(*results):
            change = np.abs(results[0] - results[1]).max()
            return ProbeReport(
                False, f"what stands in the padding on the {side} changes the text by {change:.2e}"
            )
        error = np.abs(results[0] - alone).max() / np.abs(alone).max()
        if not error <= tolerance:
            return ProbeReport(
                False, f"padding on the {side} changes the text by {error:.2e} of its largest value"
            )
    return ProbeReport(True, f"padding by {pad} on either side leaves the text as it is")


def _check_source_padding(
    model: EncoderDecoder,
    target: Array,
    T: int,
    pad: int,
    rng: np.random.Generator,
    tolerance: float | None,
) -> ProbeReport:
    """Pad the text that an encoder-decoder reads; what it writes must stay."""
    if tolerance is None:
        tolerance = 1e-4 if model.dtype.itemsize <= 4 else 1e-10
    source = rng.integers(0, model.cfg.V, (1, T))
    alone = model(source, target)
    padded: Any = rng.integers(0, model.cfg.V, (1, T + pad))
    padded[:, :T] = source
    mask = np.arange(T + pad)[None] < T
    error = np.abs(model(padded, target, mask) - alone).max() / np.abs(alone).max()
    if not error <= tolerance:
        return ProbeReport(
            False, f"padding of the source changes the text by {error:.2e} of its largest value"
        )
    return ProbeReport(True, f"padding of the source by {pad} leaves the text as it is")
