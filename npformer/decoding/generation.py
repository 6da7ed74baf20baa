"""`generate`: prompts in, texts out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..arrays import Array, require_ids, require_whole
from ..batches import right_padded
from ..models import DecoderLM, EncoderDecoder
from .beam import beam_search
from .sampling import Sampling
from .writer import Writer


def generate(
    model: DecoderLM | EncoderDecoder,
    ids: Any,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_id: int | Collection[int] | None = None,
    rng: np.random.Generator | int | Sequence[int] | Array = 0,
    *,
    repetition_penalty: float = 1.0,
    beams: int = 1,
    length_penalty: float = 1.0,
    pad_id: int | None = None,
    source_ids: Any = None,
    source_mask: Any = None,
    cached: bool = True,
    stream: Callable[[Array], None] | None = None,
) -> Array:
    """Continue texts, one token at a time.

    Parameters
    ----------
    model : DecoderLM or EncoderDecoder
    ids : (B, T) array of integers, or list of B rows of any lengths
        The prompts. Shorter ones are padded on the left while the model reads, and masked, so that
        every row gets the tokens that it would get alone.
    max_new_tokens : int
    temperature, top_k, top_p, repetition_penalty
        See `Sampling`. Temperature 0 is greedy.
    eos_id : int or several, optional
        A row ends with the first of these tokens that it writes.
    rng : Generator or int, or B ints (a list or an array)
        Every row draws from a generator of its own, seeded by a number that is drawn from this
        one, or given; so what a row writes doesn't depend on the others.
    beams : int
        Beginnings that `beam_search` keeps; 1 for none. It looks for the likeliest text and draws
        nothing: ``temperature`` and ``rng`` have no part in it, and top-k and top-p, which say
        what may be drawn, are refused. So is ``stream``: which of the beginnings wins is known at
        the end. A repetition penalty counts.
    length_penalty : float
        See `beam_search`.
    pad_id : int, optional
        What follows the end of a row: by default the (first) stop token, or 0.
    source_ids : (B, S) array or list of B rows, for an encoder-decoder
        What it reads; ``ids`` is how the texts start, often one start token.
    source_mask : (B, S) array of bool, optional
        True = a real token, where ``source_ids`` is an array.
    cached : bool
        Keep keys and values of earlier tokens; without, the same tokens come out, later.
    stream : callable, optional
        Called after every step with the (B,) ids just chosen, ``pad_id`` in rows that have ended.

    Returns
    -------
    (B, T + max_new_tokens) array, int64
        Each row is its prompt, what was written, and padding. T is the longest prompt's.

    Examples
    --------
    >>> import npformer as nf
    >>> model = nf.DecoderLM(nf.TransformerConfig(V=5, d=4, L=1, H=2, T_max=8), rng=0)
    >>> nf.generate(model, [[3], [1, 2]], max_new_tokens=2, temperature=0).shape
    (2, 4)
    """
    if not isinstance(model, DecoderLM | EncoderDecoder):
        raise TypeError(
            f"a DecoderLM or an EncoderDecoder can write text, but the model is a "
            f"{type(model).__name__}"
        )
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    V = model.cfg.V
    rows = rows_of(ids, V, "ids")
    B, T = len(rows), max(map(len, rows))
    eos = stop_ids(eos_id, V)
    if pad_id is None:
        pad_id = eos[0] if eos else 0
    check(model, T, max_new_tokens, beams, sampling, stream)
    check_length_penalty(length_penalty, max_new_tokens)
    reading = sources(model, source_ids, source_mask, B)
    out = np.full((B, T + max_new_tokens), pad_id, np.int64)
    for row, text in zip(out, rows, strict=True):
        row[: len(text)] = text
    if max_new_tokens == 0:
        return out

    prompt, real = left_padded(rows)
    if beams > 1:
        reading = {k: None if a is None else np.repeat(a, beams, 0) for k, a in reading.items()}
    writer = Writer(model, B * beams, T + max_new_tokens, cached=cached, **reading)
    if beams > 1:
        found = beam_search(
            writer,
            prompt,
            real,
            max_new_tokens=max_new_tokens,
            beams=beams,
            eos=eos,
            length_penalty=length_penalty,
            repetition_penalty=repetition_penalty,
        )
        for row, text, (written, _) in zip(out, rows, found, strict=True):
            row[len(text) : len(text) + len(written)] = written
        return out

    generators = [np.random.default_rng(seed) for seed in seeds(rng, B)]
    lengths = [len(text) for text in rows]
    running = np.ones(B, np.bool_)
    fed: tuple[Array, Array | None] = prompt, real
    for _ in range(max_new_tokens):
        logits = writer.feed(*fed)
        chosen, tokens = np.full(B, pad_id), np.zeros(B, np.int64)
        for b in np.flatnonzero(running):
            text = out[b, : lengths[b]]
            token = sampling.choose(logits[b], text, generators[b])
            out[b, lengths[b]] = chosen[b] = tokens[b] = token
            lengths[b] += 1
            running[b] = token not in eos
        if stream is not None:
            stream(chosen)
        if not running.any():
            break
        fed = tokens[:, None], None
    return out


def rows_of(ids: Any, V: int, name: str) -> list[Array]:
    """Return the rows of a (B, T) array or of a list of rows, checked."""
    if isinstance(ids, np.ndarray) and ids.ndim != 2:
        raise ValueError(f"{name} must have shape (B, T) or be a list of rows, not {ids.shape}")
    rows = [require_ids(row, V, name) for row in ids]
    if not rows or any(row.ndim != 1 or len(row) == 0 for row in rows):
        raise ValueError(
            f"{name} must be rows of at least one token each, but their shapes are "
            f"{[row.shape for row in rows]}"
        )
    return rows


def stop_ids(eos_id: int | Collection[int] | None, V: int) -> list[int]:
    """Return the stop tokens as a list."""
    if eos_id is None:
        return []
    given = [eos_id] if isinstance(eos_id, int | np.integer) else list(eos_id)
    return [int(i) for i in require_ids(given, V, "eos_id")] if given else []


def left_padded(rows: Sequence[Array]) -> tuple[Array, Array]:
    """Return (B, T) ids, and True where they are no padding."""
    T = max(map(len, rows))
    ids, real = np.zeros((len(rows), T), np.int64), np.zeros((len(rows), T), np.bool_)
    for b, row in enumerate(rows):
        ids[b, T - len(row) :] = row
        real[b, T - len(row) :] = True
    return ids, real


def sources(
    model: DecoderLM | EncoderDecoder, source_ids: Any, source_mask: Any, B: int
) -> dict[str, Array | None]:
    """Return what an encoder-decoder reads as arrays, right-padded."""
    if not isinstance(model, EncoderDecoder):
        if source_ids is not None or source_mask is not None:
            raise ValueError("a DecoderLM reads no source: source_ids is for an EncoderDecoder")
        return {}
    if source_ids is None:
        raise ValueError("an EncoderDecoder needs source_ids, the rows that it reads")
    rows = rows_of(source_ids, model.cfg.V, "source_ids")
    if len(rows) != B:
        raise ValueError(f"source_ids has {len(rows)} rows, but ids has {B}")
    if source_mask is not None:
        return {"source_ids": np.asarray(source_ids), "source_mask": np.asarray(source_mask)}
    ids, real = right_padded(rows)
    return {"source_ids": ids, "source_mask": None if real.all() else real}


def seeds(rng: np.random.Generator | int | Sequence[int] | Array, B: int) -> list[int]:
    """Return a seed for each row."""
    if isinstance(rng, int | np.integer) and rng < 0:
        raise ValueError(f"a seed must be 0 or more, but is {rng}")
    if isinstance(rng, Sequence | np.ndarray):
        if len(rng) != B:
            raise ValueError(f"rng has {len(rng)} seeds for {B} rows")
        return [int(np.random.default_rng(seed).integers(2**63)) for seed in rng]
    return [int(seed) for seed in np.random.default_rng(rng).integers(2**63, size=B)]


def check(
    model: DecoderLM | EncoderDecoder,
    T: int,
    new: int,
    beams: int,
    sampling: Sampling,
    stream: Callable[[Array], None] | None,
) -> None:
    """Raise where the options contradict each other or the text would not fit."""
    require_whole(new, "max_new_tokens")
    require_whole(beams, "beams")
    if new < 0:
        raise ValueError(f"max_new_tokens must be 0 or more, but is {new}")
    if beams < 1:
        raise ValueError(f"beams must be 1 or more, but is {beams}")
    if beams > 1:
        if sampling.top_k is not None or sampling.top_p is not None:
            raise ValueError("beam search takes no top_k or top_p: it draws nothing")
        if stream is not None:
            raise ValueError("beam search takes no stream: its text is known at the end only")
    if model.cfg.positions == "learned" and T + new - 1 > model.cfg.T_max:
        raise ValueError(
            f"a prompt of {T} tokens and {new} new ones need {T + new - 1} positions, but the "
            f"model has T_max = {model.cfg.T_max}"
        )


def check_length_penalty(alpha: float, new: int) -> None:
    """Raise unless n**alpha is an ordinary number for every n up to ``new``."""
    if not abs(alpha) * math.log(max(new, 1) + 1) < 700:  # false for NaN
        raise ValueError(
            f"length_penalty must be a number of moderate size for {new} tokens, but is {alpha}"
        )
